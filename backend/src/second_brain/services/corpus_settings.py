"""How the collections of a corpus are searched where a caller gives no fusion: read and stored.

Over REST these are methods of the provider, which needs the service role's key. Over psycopg the
`KnowledgeWriter` has them.
"""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from second_brain.errors import documented
from second_brain.services.blocking import blocking
from second_brain.services.searches import Searches


class CorpusSettings(BaseModel):
    """The settings of a collection; the collection `""` stands for all others.

    `fusion` is None for the caller's default. The caller's weights multiply these weights.
    """

    model_config = ConfigDict(frozen=True)

    collection: str = ""
    fusion: str | None = None
    vector_weight: float = 1.0
    text_weight: float = 1.0
    embedding_model: str | None = None
    updated_at: datetime | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `set_knowledge_settings`."""
        return self.model_dump(exclude={"updated_at"})


@documented
class AsyncStoredSettings(Searches):
    """The settings of a corpus, for a provider over REST; every method raises on failure."""

    async def set_settings(
        self, settings: CorpusSettings, *, timeout: float | None = None
    ) -> CorpusSettings:
        """Store the settings of a collection in place of what was stored, and return them.

        Raises a SecondBrainError.
        """

        async def stored() -> CorpusSettings:
            row = await self._call("set_knowledge_settings", settings.arguments(), timeout)
            return CorpusSettings.model_validate(row)

        return await self._raising(stored())

    async def settings(self, *, timeout: float | None = None) -> list[CorpusSettings]:
        """Return the stored settings in the order of their collections.

        Raises a SecondBrainError.
        """

        async def read() -> list[CorpusSettings]:
            rows = await self._rows("list_knowledge_settings", {}, timeout)
            return [CorpusSettings.model_validate(row) for row in rows]

        return await self._raising(read())

    async def reset_settings(self, collection: str = "", *, timeout: float | None = None) -> bool:
        """Remove the settings of a collection; return whether there were any.

        Raises a SecondBrainError.
        """

        async def removed() -> bool:
            arguments = {"collection": collection}
            return await self._call("reset_knowledge_settings", arguments, timeout) is True

        return await self._raising(removed())


class StoredSettings(Searches):
    """`AsyncStoredSettings` for threads."""

    set_settings = blocking(AsyncStoredSettings.set_settings)
    settings = blocking(AsyncStoredSettings.settings)
    reset_settings = blocking(AsyncStoredSettings.reset_settings)

"""How a collection is searched where a caller gives no fusion. Writers read and store it."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict


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

"""How a collection is searched where a caller gives no fusion. Writers read and store it."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Measured(BaseModel):
    """On what stored settings were measured, and when they were stored."""

    model_config = ConfigDict(frozen=True)

    on: str
    at: datetime

    def __str__(self) -> str:
        return f"measured on {self.on}, {self.at:%Y-%m-%d}"


class CorpusSettings(BaseModel):
    """The settings of a collection; the collection `""` stands for all others.

    `fusion` is None for that of all collections, else rrf. The caller's weights multiply these
    weights. `changes` are sentences: what has changed since the settings were measured.
    """

    model_config = ConfigDict(frozen=True)

    collection: str = ""
    fusion: str | None = None
    vector_weight: float = 1.0
    text_weight: float = 1.0
    embedding_model: str | None = None
    updated_at: datetime | None = None
    measured: Measured | None = None
    changes: list[str] = Field(default=[])

    @property
    def stale(self) -> str | None:
        """Say what has changed since the settings were measured; None where nothing has."""
        return "; ".join(self.changes) or None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `set_knowledge_settings`, without `measured_on`."""
        return self.model_dump(exclude={"updated_at", "measured", "changes"})

"""How a collection is searched where a caller gives no fusion. Writers read and store it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Self

from pydantic import Field

from second_brain.frozen import Frozen

FIELDS = ("heading_weight", "title_weight", "text_keys")
"""The settings that `set_knowledge_fields` stores: what is searched as text."""


class Measured(Frozen):
    """On what stored settings were measured, and when they were stored."""

    on: str
    at: datetime

    def __str__(self) -> str:
        return f"measured on {self.on}, {self.at:%Y-%m-%d}"


class CorpusSettings(Frozen):
    """The settings of a collection; the collection `""` stands for all others.

    `fusion` is None for that of all collections, else rrf. The caller's weights multiply these
    weights. `heading_weight`, `title_weight` and `text_keys` say what is searched as text; None for
    that of all collections, else 2, 0 and no metadata key. `bm25_k1` and `bm25_b` are None for 1.2
    and a b by how often the corpus repeats its words. `changes` are sentences: what has
    changed since the settings were measured.
    """

    collection: str = ""
    fusion: str | None = None
    vector_weight: float = 1.0
    text_weight: float = 1.0
    embedding_model: str | None = None
    bm25_k1: float | None = None
    bm25_b: float | None = None
    heading_weight: int | None = None
    title_weight: int | None = None
    text_keys: list[str] | None = None
    updated_at: datetime | None = None
    measured: Measured | None = None
    changes: list[str] = Field(default=[])

    @property
    def stale(self) -> str | None:
        """Say what has changed since the settings were measured; None where nothing has."""
        return "; ".join(self.changes) or None

    @property
    def fields(self) -> str | None:
        """Say how often heading, title and metadata count; None where nothing is stored."""
        weights = {"heading": self.heading_weight, "title": self.title_weight}
        said = [f"{name} {weight}" for name, weight in weights.items() if weight is not None]
        if self.text_keys is not None:
            said.append(f"metadata {', '.join(self.text_keys) or 'none'}")
        return ", ".join(said) or None

    def among(self, stored: Iterable[Self]) -> Self:
        """Return the stored settings of the same collection; itself without any."""
        return next((one for one in stored if one.collection == self.collection), self)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `set_knowledge_settings`, without `measured_on`."""
        return self.model_dump(exclude={"updated_at", "measured", "changes", *FIELDS})

    def field_arguments(self) -> dict[str, Any]:
        """Return the arguments of `set_knowledge_fields`."""
        return self.model_dump(include={"collection", *FIELDS})

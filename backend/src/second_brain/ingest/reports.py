"""What a run of ingestion is told, and what it reports of each document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from second_brain.services.write import UpsertCounts


@dataclass(frozen=True, slots=True)
class Labels:
    """What every document of a run is stored under; see the columns of knowledge_documents.

    None leaves a stored document as it is and gives a new one the column's default; an empty list
    of `allowed_groups` removes them. With the
    language `auto` each document's own is detected. `metadata` is added to the document's.
    """

    collection: str | None = None
    knowledge_type: str | None = None
    source_origin: str | None = None
    language: str | None = None
    visibility: str | None = None
    owner_id: UUID | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    allowed_groups: Sequence[str] | None = None


NO_LABELS = Labels()


@dataclass(frozen=True, slots=True)
class Change:
    """A field of a stored document that gets another value; `metadata.KEY` for metadata."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class DocumentReport:
    """What became of one document, or with `dry_run` what would become of it.

    `empty` means that it has no text and is not, or no longer, stored, `left out` that a page does
    not want to be. `changes` are those of a
    document that was stored before. `embedded` counts the embeddings made now, `text_only` the
    chunks that have none because the model knows nothing in them. `repeated_lines` counts the lines
    that were left out because its whole site has them. `notes` say what else was left out or
    guessed. `error` is set only when it failed; then nothing of it was written.
    """

    external_key: str
    outcome: Literal["stored", "unchanged", "empty", "left out", "failed"]
    counts: UpsertCounts | None = None
    changes: tuple[Change, ...] = ()
    embedded: int = 0
    text_only: int = 0
    removed: int = 0
    repeated_lines: int = 0
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def changed(self) -> int:
        """How many chunks were added, replaced or removed."""
        if self.counts is None:
            return self.removed
        counts = self.counts
        return counts.chunks_added + counts.chunks_changed + counts.chunks_removed

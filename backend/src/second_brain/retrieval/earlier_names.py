"""Names that callers of earlier systems use for fields of queries, results and responses.

`docs/reference.md` lists them. Nothing here has a meaning of its own.
"""
# mypy knows no decorator above a property.
# mypy: disable-error-code="prop-decorator"

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, computed_field

from second_brain.frozen import Frozen
from second_brain.retrieval.settings import Mode

QUERY_FIELDS = {"query_text": "query", "bm25_weight": "text_weight", "k": "rrf_k"}
"""Names of fields of a SearchQuery. `search_mode`, a field itself, may also name the mode."""


class QueryNames(BaseModel):
    """The other names of what a SearchQuery has."""

    if TYPE_CHECKING:
        query: str
        text_weight: float | None

    @property
    def query_text(self) -> str:
        """Another name of `query`."""
        return self.query

    @property
    def bm25_weight(self) -> float | None:
        """Another name of `text_weight`."""
        return self.text_weight


class ResultNames(Frozen):
    """The other names of what a SearchResult has, in JSON too."""

    if TYPE_CHECKING:
        id: str
        content: str
        document_id: str | None
        chunk_index: int | None
        metadata: dict[str, Any]
        similarity: float | None
        text_score: float | None
        heading: str | None
        document_chunks: int | None
        confidence: float

    @computed_field
    @property
    def score(self) -> float:
        """Another name of `confidence`, 0 to 1. A reranker's own score is `rerank_score`."""
        return self.confidence

    @computed_field
    @property
    def original_score(self) -> float:
        """Another name of `score`, which a reranker does not change."""
        return self.confidence

    @computed_field
    @property
    def original_combined_score(self) -> float:
        """Another name of `original_score`."""
        return self.confidence

    @computed_field
    @property
    def distance(self) -> float | None:
        """The cosine distance, 0 to 2; None when the vector leg did not find it."""
        return None if self.similarity is None else 1 - self.similarity

    @computed_field
    @property
    def is_chunk(self) -> bool:
        """Whether it is a part of a document, and not a whole one."""
        return self.chunk_index is not None

    @computed_field
    @property
    def chunk_id(self) -> str:
        """Another name of `id`."""
        return self.id

    @computed_field
    @property
    def chunk_text(self) -> str:
        """Another name of `content`."""
        return self.content

    @computed_field
    @property
    def artifact_id(self) -> str | None:
        """Another name of `document_id`."""
        return self.document_id

    @computed_field
    @property
    def vector_score(self) -> float | None:
        """Another name of `similarity`."""
        return self.similarity

    @computed_field
    @property
    def bm25_score(self) -> float | None:
        """Another name of `text_score`."""
        return self.text_score

    @computed_field
    @property
    def context_header(self) -> str | None:
        """Another name of `heading`: title and section path."""
        return self.heading

    @computed_field
    @property
    def total_chunks(self) -> int | None:
        """Another name of `document_chunks`: how many chunks the document has."""
        return self.document_chunks

    @computed_field
    @property
    def chunk_token_count(self) -> int | None:
        """`metadata.token_count`: the estimate of `ingest`, or what the writer stored."""
        count = self.metadata.get("token_count")
        return count if isinstance(count, int) and not isinstance(count, bool) else None

    @computed_field
    @property
    def source_file(self) -> str | None:
        """`metadata.source_file`: the name of the file that `ingest` read."""
        return _text(self.metadata.get("source_file"))

    @computed_field
    @property
    def source_category(self) -> str | None:
        """`metadata.source_category`."""
        return _text(self.metadata.get("source_category"))


class ResponseNames(BaseModel):
    """The other name of what a SearchResponse has, in JSON too."""

    if TYPE_CHECKING:
        mode_used: Mode

    @computed_field
    @property
    def search_mode(self) -> str:
        """Another name of `mode_used`, with `bm25` for `text`."""
        return "bm25" if self.mode_used == "text" else self.mode_used


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

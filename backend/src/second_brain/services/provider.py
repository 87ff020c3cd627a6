"""The three searches as both providers offer them: arguments in, results and details out.

A provider only says how rows are fetched (`_rows`). Ranking, fusing and filtering are the
database's, and so is the judgement of an embedding or a bound: what the caller gives is sent.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

from second_brain.errors import SecondBrainError, safe_message, translate
from second_brain.services.results import MemorySearchResult, Mode, Source, normalize_rows

logger = logging.getLogger(__name__)

Details: TypeAlias = dict[str, Any]
Results: TypeAlias = tuple[list[MemorySearchResult], Details]


class SupportsToList(Protocol):
    """A numpy array or a tensor."""

    def tolist(self) -> Any:
        """Return the values as Python's own numbers."""


Embedding: TypeAlias = Sequence[float] | SupportsToList | str


class ClientUnavailableError(SecondBrainError):
    """There are no credentials to make a client with."""

    kind = "client_unavailable"
    default_remedy = "Give supabase_url and supabase_key, or set SUPABASE_URL and SUPABASE_KEY."


class SearchProvider(ABC):
    """Hybrid, vector and full-text search; every call is one round trip.

    Each method returns the hits and a dict that says how they came about:

    - `provider` (`supabase` or `postgres`), `mode` (`hybrid`, `vector` or `fulltext`),
      `raw_count` (rows received), `real_provider` (True when a database answered);
    - when it did not: `fallback_reason` (`client_unavailable` without credentials, otherwise
      `provider_error`), `error_type` (what was raised), `error_kind` and `code` (which class of
      `second_brain.errors` it is, and the database's code), `error_message` (bounded, without
      credentials) and `remedy`. The hits are then empty; nothing is raised.

    An embedding is a list, tuple, numpy array or pgvector's text form, of the corpus's dimension.
    """

    name: ClassVar[Source]

    def hybrid_search(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        top_k: int = 5,
        threshold: float = 0.0,
        vector_weight: float = 1.0,
        text_weight: float = 1.0,
        filter_type: str | None = None,
        search_mode: str = "websearch",
        pool_size: int = 50,
        *,
        rrf_k: float = 60.0,
        fusion: str = "auto",
    ) -> Results:
        """Search by meaning and by words in one call, and fuse the two lists.

        Without an embedding, or without text, the other leg answers alone. `threshold` is the
        least cosine similarity (-1 to 1) in the vector leg, `pool_size` the candidates per leg,
        `search_mode` one of websearch, simple and phrase, `filter_type` one knowledge_type.
        `fusion`: `auto` (each leg counts by the evidence it shows for the query), `relative_score`
        (each leg scaled to 0..1) or `rrf` (weighted reciprocal rank, constant `rrf_k`).
        """
        return self._search(
            "hybrid",
            "hybrid_search_knowledge_chunks",
            {
                "query_embedding": query_embedding,
                "query_text": query_text,
                "match_count": top_k,
                "match_threshold": threshold,
                "vector_weight": vector_weight,
                "text_weight": text_weight,
                "filter_type": filter_type,
                "search_mode": search_mode,
                "pool_size": pool_size,
                "rrf_k": rrf_k,
                "fusion": fusion,
            },
        )

    def search(
        self,
        query_embedding: Embedding | None,
        top_k: int = 5,
        threshold: float = 0.6,
        filter_type: str | None = None,
    ) -> Results:
        """Search by meaning alone: the chunks of at least `threshold` cosine similarity."""
        return self._search(
            "vector",
            "match_knowledge_chunks",
            {
                "query_embedding": query_embedding,
                "match_count": top_k,
                "match_threshold": threshold,
                "filter_type": filter_type,
            },
        )

    def fulltext_search(
        self,
        query_text: str | None,
        top_k: int = 5,
        search_mode: str = "websearch",
        filter_type: str | None = None,
    ) -> Results:
        """Search by words alone."""
        return self._search(
            "fulltext",
            "search_knowledge_chunks_fulltext",
            {
                "query_text": query_text,
                "search_mode": search_mode,
                "filter_type": filter_type,
                "match_count": top_k,
            },
        )

    @abstractmethod
    def _rows(self, function: str, arguments: dict[str, Any]) -> Sequence[object]:
        """Call the SQL function once and return its rows; raise anything on failure."""

    def _secrets(self) -> Iterable[object]:
        """Return the values that no message may hold."""
        return ()

    def _search(self, mode: Mode, function: str, given: Mapping[str, object]) -> Results:
        details: Details = {
            "provider": self.name,
            "mode": mode,
            "real_provider": False,
            "raw_count": 0,
        }
        try:
            arguments = {name: plain(value) for name, value in given.items()}
            rows = self._rows(function, arguments)
            results = normalize_rows(
                rows, mode=mode, source=self.name, limit=arguments["match_count"]
            )
        except ClientUnavailableError as error:
            logger.warning("%s: %s", function, error)
            details |= {"fallback_reason": "client_unavailable", "remedy": error.remedy}
            return [], details
        # The contract is an answer that says what failed, whatever it was.
        except Exception as error:  # noqa: BLE001
            known = translate(error)
            # Neither message nor arguments: a log is read by more people than the answer is.
            logger.warning(
                "%s failed: %s (%s, code %s)",
                function,
                type(error).__name__,
                known.kind,
                known.code,
            )
            details |= {
                "fallback_reason": "provider_error",
                "error_type": type(error).__name__,
                "error_kind": known.kind,
                "error_message": safe_message(known, secrets=self._secrets()),
                "code": known.code,
                "remedy": known.remedy,
            }
            return [], details
        details |= {"real_provider": True, "raw_count": len(rows)}
        return results, details


def plain(value: object) -> Any:
    """Return numpy's and other array libraries' values as Python's own, tuples as lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value

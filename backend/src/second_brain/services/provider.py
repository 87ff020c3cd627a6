"""The searches as both providers offer them: arguments in, results and details out.

A provider only says how a function is called (`_call`). Ranking, fusing and filtering are the
database's, and so is the judgement of an embedding or a bound: what the caller gives is sent. Only
a text that is no date, no UUID or no list is refused here, since Postgres would not say which.
"""

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)
from uuid import UUID

from second_brain.errors import (
    InvalidInputError,
    PermissionDeniedError,
    SecondBrainError,
    UnexpectedAnswerError,
    safe_message,
    translate,
)
from second_brain.filters import Filters, conditions, json_form
from second_brain.services.results import (
    MemorySearchResult,
    Mode,
    Source,
    normalize_rows,
    query_index,
    total_count,
)

logger = logging.getLogger(__name__)

Details: TypeAlias = dict[str, Any]
Results: TypeAlias = tuple[list[MemorySearchResult], Details]
BatchResults: TypeAlias = tuple[list[list[MemorySearchResult]], Details]
Parsed = TypeVar("Parsed")


class SupportsToList(Protocol):
    """A numpy array or a tensor."""

    def tolist(self) -> Any:
        """Return the values as Python's own numbers."""


Embedding: TypeAlias = Sequence[float] | SupportsToList | str


class Formulation(TypedDict, total=False):
    """One more way to ask the same question, in words, as an embedding, or both."""

    query_text: str | None
    query_embedding: Embedding | None


class OwnSearchOptions(TypedDict, total=False):
    """What `search_my_knowledge` takes beside the question; see `SearchProvider.hybrid_search`."""

    top_k: int
    threshold: float
    vector_weight: float
    text_weight: float
    filter_type: str | None
    search_mode: str
    pool_size: int
    rrf_k: float
    fusion: str
    filters: Filters | None
    date_from: date | str | None
    date_to: date | str | None
    collections: Sequence[str] | None
    public_only: bool
    one_per_document: bool
    neighbor_window: int
    recency_half_life: float | None
    match_offset: int
    snippet: bool
    formulations: Sequence[Formulation] | None


class SearchOptions(OwnSearchOptions, total=False):
    """What `hybrid_search` takes beside the question."""

    viewer_id: UUID | str | None


class SearchQuery(SearchOptions, total=False):
    """One query of a batch: what `hybrid_search` takes, with its names and defaults."""

    query_embedding: Embedding | None
    query_text: str | None


class ClientUnavailableError(SecondBrainError):
    """There are no credentials to make a client with."""

    kind = "client_unavailable"
    default_remedy = "Give supabase_url and supabase_key, or set SUPABASE_URL and SUPABASE_KEY."


class SearchProvider(ABC):
    """Hybrid, vector and full-text search; every call is one round trip.

    Each search returns the hits and a dict that says how they came about:

    - `provider` (`supabase` or `postgres`), `mode` (`hybrid`, `vector` or `fulltext`),
      `raw_count` (rows received), `total_count` (the length of the list that match_offset pages
      through; None without a row), `real_provider` (True when a database answered);
    - when it did not: `fallback_reason` (`client_unavailable` without credentials, otherwise
      `provider_error`), `error_type` (what was raised), `error_kind` and `code` (which class of
      `second_brain.errors` it is, and the database's code), `error_message` (bounded, without
      credentials) and `remedy`. The hits are then empty; nothing is raised.

    An embedding is a list, tuple, numpy array or pgvector's text form, of the corpus's dimension.

    With `multi_tenant=True` a call that says neither `viewer_id` nor `public_only=True` is refused
    before anything is sent, so that a forgotten viewer does not see everybody's rows.
    """

    name: ClassVar[Source]

    def __init__(self, *, multi_tenant: bool = False) -> None:
        self._multi_tenant = multi_tenant

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
        filters: Filters | None = None,
        date_from: date | str | None = None,
        date_to: date | str | None = None,
        collections: Sequence[str] | None = None,
        viewer_id: UUID | str | None = None,
        public_only: bool = False,
        one_per_document: bool = False,
        neighbor_window: int = 0,
        recency_half_life: float | None = None,
        match_offset: int = 0,
        snippet: bool = False,
        formulations: Sequence[Formulation] | None = None,
    ) -> Results:
        """Search by meaning and by words in one call, and fuse the two lists.

        Without an embedding, or without text, the other leg answers alone. `threshold` is the
        least cosine similarity (-1 to 1) in the vector leg, `pool_size` the candidates per leg,
        `search_mode` one of websearch, simple and phrase, `filter_type` one knowledge_type.
        `fusion`: `auto` (each leg counts by the evidence it shows for the query), `relative_score`
        (each leg scaled to 0..1) or `rrf` (weighted reciprocal rank, constant `rrf_k`).

        Which rows: `filters` (see `second_brain.filters`), `date_from` and `date_to` (of
        document_date, both included), `viewer_id` (rows that it owns, and public ones; None: all),
        `public_only`, `collections` (each ranked by itself, then fused). `formulations` are up to
        10 further ways to ask the same question.

        Which hits: `one_per_document`, `recency_half_life` (days after which a score counts half),
        `match_offset` (hits to skip). In a hit's metadata: `neighbor_window` puts the chunks so far
        (0 to 5) around it into `context`, `snippet` an excerpt in HTML with `<mark>`.
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
                "filters": filters,
                "date_from": date_from,
                "date_to": date_to,
                "collections": collections,
                "viewer_id": viewer_id,
                "public_only": public_only,
                "one_per_document": one_per_document,
                "neighbor_window": neighbor_window,
                "recency_half_life": recency_half_life,
                "match_offset": match_offset,
                "snippet": snippet,
                "formulations": formulations,
            },
        )

    def search_my_knowledge(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[OwnSearchOptions],
    ) -> Results:
        """Search as the signed-in user whose token or claims the connection carries.

        As `hybrid_search`, but the database takes the viewer from the token: for a Supabase client
        with a user's token, or a psycopg connection with role authenticated and its claims.
        """
        given = {"query_embedding": query_embedding, "query_text": query_text, **options}
        arguments = _arguments(given, "search_my_knowledge()", unknown={"viewer_id"})
        del arguments["viewer_id"]
        hits, details = self._search("hybrid", "search_my_knowledge_chunks", arguments)
        if details.get("error_kind") == PermissionDeniedError.kind:
            details["remedy"] = (
                "Call with the token of a signed-in user (role authenticated): "
                "with the service role, give hybrid_search a viewer_id."
            )
        return hits, details

    def search(
        self,
        query_embedding: Embedding | None,
        top_k: int = 5,
        threshold: float = 0.6,
        filter_type: str | None = None,
        *,
        viewer_id: UUID | str | None = None,
        public_only: bool = False,
    ) -> Results:
        """Search by meaning alone: the chunks of at least `threshold` cosine similarity.

        `viewer_id` and `public_only` as in `hybrid_search`.
        """
        return self._search_leg(
            "vector",
            "match_knowledge_chunks",
            {
                "query_embedding": query_embedding,
                "match_count": top_k,
                "match_threshold": threshold,
                "filter_type": filter_type,
            },
            {"viewer_id": viewer_id, "public_only": public_only},
        )

    def fulltext_search(
        self,
        query_text: str | None,
        top_k: int = 5,
        search_mode: str = "websearch",
        filter_type: str | None = None,
        *,
        viewer_id: UUID | str | None = None,
        public_only: bool = False,
    ) -> Results:
        """Search by words alone. `viewer_id` and `public_only` as in `hybrid_search`."""
        return self._search_leg(
            "fulltext",
            "search_knowledge_chunks_fulltext",
            {
                "query_text": query_text,
                "search_mode": search_mode,
                "filter_type": filter_type,
                "match_count": top_k,
            },
            {"viewer_id": viewer_id, "public_only": public_only},
        )

    @overload
    def hybrid_search_batch(
        self, queries: Sequence[SearchQuery], *, fuse: Literal[False] = False
    ) -> BatchResults: ...

    @overload
    def hybrid_search_batch(
        self, queries: Sequence[SearchQuery], *, fuse: Literal[True]
    ) -> Results: ...

    @overload
    def hybrid_search_batch(
        self, queries: Sequence[SearchQuery], *, fuse: bool
    ) -> BatchResults | Results: ...

    def hybrid_search_batch(
        self, queries: Sequence[SearchQuery], *, fuse: bool = False
    ) -> BatchResults | Results:
        """Search for up to 50 queries in one round trip; return one list of hits for each.

        A query is a dict with the argument names of `hybrid_search`. All queries together return
        at most 1,000 hits. In the details, `total_count` is a list with one for each query. When
        one query is refused, all are, and every list is empty.

        With `fuse=True` the queries are formulations of one question and the answer is one list:
        the first may have every argument, the others query_text and query_embedding.
        """
        function = "hybrid_search_knowledge_chunks_batch"
        details = self._details("hybrid")
        queries = list(queries)
        try:
            asked = [
                # What a further formulation does not say is the first one's.
                without_defaults(
                    _converted(
                        _arguments(query, f"queries[{place}]", complete=not (fuse and place))
                    )
                )
                for place, query in enumerate(queries)
            ]
            for place, arguments in enumerate(asked[:1] if fuse else asked):
                self._require_viewer(arguments, f"queries[{place}]: ")
            rows = self._rows(function, {"queries": asked, "fuse": fuse})
            answers = _by_query(rows, 1 if fuse else len(asked))
            found = [
                normalize_rows(
                    answer, mode="hybrid", source=self.name, limit=arguments["match_count"]
                )
                for arguments, answer in zip(asked, answers, strict=False)
            ]
        # The contract is an answer that says what failed, whatever it was.
        except Exception as error:  # noqa: BLE001
            nothing: list[Any] = [] if fuse else [[] for _ in queries]
            return nothing, details | self._failure(function, error)
        totals = [total_count(answer) for answer in answers]
        details |= {"real_provider": True, "raw_count": len(rows)}
        if fuse:
            return found[0], details | {"total_count": totals[0]}
        return found, details | {"total_count": totals}

    def explain_hybrid_search(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[SearchOptions],
    ) -> dict[str, Any]:
        """Return how `hybrid_search` comes to its answer for the same arguments.

        Each leg's strategy, rows and milliseconds, why it found fewer rows than asked for, the
        lexemes with their document frequencies, the weights of the fusion, and the hits' ranks and
        scores. Raises a SecondBrainError on failure.
        """
        given = {"query_embedding": query_embedding, "query_text": query_text, **options}
        arguments = _arguments(given, "explain_hybrid_search()")
        try:
            converted = _converted(arguments)
            self._require_viewer(converted)
            return self._object("explain_hybrid_search", converted)
        except Exception as error:
            known = translate(error)
            known.args = (safe_message(known, secrets=self._secrets()),)
            if known is error:
                raise
            raise known from error

    @abstractmethod
    def _call(self, function: str, arguments: dict[str, Any]) -> object:
        """Call the SQL function once and return its rows, or its JSON; raise on failure."""

    def _secrets(self) -> Iterable[object]:
        """Return the values that no message may hold."""
        return ()

    def _search_leg(
        self, mode: Mode, function: str, given: dict[str, object], viewer: dict[str, object]
    ) -> Results:
        if viewer == {"viewer_id": None, "public_only": False}:
            return self._search(mode, function, given)
        # The functions for a single leg know no viewer.
        arguments = {**_arguments({}, function), **given, **viewer}
        return self._search(mode, "hybrid_search_knowledge_chunks", arguments)

    def _search(self, mode: Mode, function: str, given: Mapping[str, object]) -> Results:
        details = self._details(mode)
        try:
            arguments = _converted(given)
            if function != "search_my_knowledge_chunks":
                self._require_viewer(arguments)
            rows = self._rows(function, arguments)
            results = normalize_rows(
                rows, mode=mode, source=self.name, limit=arguments["match_count"]
            )
        # The contract is an answer that says what failed, whatever it was.
        except Exception as error:  # noqa: BLE001
            return [], details | self._failure(function, error)
        details |= {
            "real_provider": True,
            "raw_count": len(rows),
            "total_count": total_count(rows),
        }
        return results, details

    def _rows(self, function: str, arguments: dict[str, Any]) -> Sequence[object]:
        rows = self._call(function, arguments)
        if rows is None:
            return []
        if not isinstance(rows, list):
            raise UnexpectedAnswerError(f"rows expected, {type(rows).__name__} received")
        return rows

    def _object(self, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
        answer = self._call(function, arguments)
        if not isinstance(answer, dict):
            raise UnexpectedAnswerError(f"an object expected, {type(answer).__name__} received")
        return answer

    def _require_viewer(self, arguments: Mapping[str, object], place: str = "") -> None:
        if not self._multi_tenant or arguments.get("public_only") is True:
            return
        if arguments.get("viewer_id") is None:
            raise InvalidInputError(
                f"{place}viewer_id is missing, and this provider is multi-tenant",
                remedy="Give the viewer_id of the user who asks, or public_only=True.",
            )

    def _details(self, mode: Mode) -> Details:
        return {
            "provider": self.name,
            "mode": mode,
            "real_provider": False,
            "raw_count": 0,
            "total_count": None,
        }

    def _failure(self, function: str, error: Exception) -> Details:
        if isinstance(error, ClientUnavailableError):
            logger.warning("%s: %s", function, error)
            return {"fallback_reason": "client_unavailable", "remedy": error.remedy}
        known = translate(error)
        # Neither message nor arguments: a log is read by more people than the answer is.
        logger.warning(
            "%s failed: %s (%s, code %s)", function, type(error).__name__, known.kind, known.code
        )
        return {
            "fallback_reason": "provider_error",
            "error_type": type(error).__name__,
            "error_kind": known.kind,
            "error_message": safe_message(known, secrets=self._secrets()),
            "code": known.code,
            "remedy": known.remedy,
        }


_PARAMETERS = list(inspect.signature(SearchProvider.hybrid_search).parameters.values())[1:]
_DEFAULTS: Mapping[str, object] = {
    one.name: None if one.default is one.empty else one.default for one in _PARAMETERS
}
# The keyword-only ones came after the first nine, and their defaults are the database's.
_LATER_ARGUMENTS: Mapping[str, object] = {
    one.name: one.default for one in _PARAMETERS if one.kind is one.KEYWORD_ONLY
}
_SQL_NAMES = {"top_k": "match_count", "threshold": "match_threshold"}


def _arguments(
    given: Mapping[str, object],
    caller: str,
    *,
    unknown: Iterable[str] = (),
    complete: bool = True,
) -> dict[str, object]:
    """Return the SQL function's arguments, those left out at `hybrid_search`'s defaults."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{caller} must be a dict, not {type(given).__name__}")
    for name in given:
        if name not in _DEFAULTS or name in unknown:
            raise TypeError(f"{caller} got an unexpected argument {name!r}")
    arguments = {**_DEFAULTS, **given} if complete else given
    return {_SQL_NAMES.get(name, name): value for name, value in arguments.items()}


def _converted(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments in JSON's types."""
    return {name: _converted_value(name, value) for name, value in arguments.items()}


def _converted_value(name: str, value: Any) -> Any:
    if name == "filters":
        return conditions(value)
    if name == "collections" and isinstance(value, str):
        raise InvalidInputError(f"collections must be a list of names, not {value[:100]!r}")
    if name in ("date_from", "date_to") and isinstance(value, str):
        return _read(name, value, date.fromisoformat, "an ISO date such as 2026-01-31").isoformat()
    if name == "viewer_id" and isinstance(value, str):
        return str(_read(name, value, UUID, "a UUID"))
    # What is no vector, the database says better.
    return _plain(value) if name == "query_embedding" else json_form(value, name)


def _read(name: str, value: str, parse: Callable[[str], Parsed], expected: str) -> Parsed:
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidInputError(f"{name} must be {expected}, not {value[:100]!r}") from error


def _plain(value: object) -> Any:
    """Return arrays as lists, and their numbers as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def without_defaults(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the arguments after the first nine that are at their default.

    PostgREST knows a function by the names it is called with, so a default that is sent needlessly
    would fail (404) on a project whose migrations are older than this client.
    """
    return {
        name: value
        for name, value in arguments.items()
        if name not in _LATER_ARGUMENTS or value != _LATER_ARGUMENTS[name]
    }


def _by_query(rows: Sequence[object], count: int) -> list[list[object]]:
    answers: list[list[object]] = [[] for _ in range(count)]
    for row in rows:
        place = query_index(row)
        if place is None or not 0 <= place < count:
            raise UnexpectedAnswerError("a row belongs to none of the queries")
        answers[place].append(row)
    return answers

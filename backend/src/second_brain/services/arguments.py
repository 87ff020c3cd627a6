"""The arguments of a search: their defaults, and their names and types in SQL.

The database checks embeddings, bounds and filters. This module rejects only invalid dates, UUIDs
and lists, because the error of Postgres would not contain the name of the argument.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from typing import Any, Literal, Protocol, TypeAlias, TypedDict
from uuid import UUID

from pgvector import Vector

from second_brain.errors import InvalidInputError, UnknownArgumentError
from second_brain.filters import Filters, conditions, json_form

Leg = Literal["hybrid", "vector", "text"]
"""The legs that a search runs: one leg, or both with fusion."""

TextMode = Literal["websearch", "simple", "phrase"]
"""How the text leg parses the query; the argument is `search_mode` everywhere."""


class SupportsToList(Protocol):
    """A numpy array or a tensor."""

    def tolist(self) -> Any:
        """Return the values as Python's own numbers."""


Embedding: TypeAlias = Sequence[float] | SupportsToList | Vector | str


class Formulation(TypedDict, total=False):
    """Another formulation of the same query: a text, an embedding, or both."""

    query_text: str | None
    query_embedding: Embedding | None


class KeywordArguments(TypedDict, total=False):
    """The keyword-only arguments of `hybrid_search` except those that say who asks."""

    rrf_k: float
    fusion: str | None
    filters: Filters | None
    date_from: date | str | None
    date_to: date | str | None
    collections: Sequence[str] | None
    one_per_document: bool
    neighbor_window: int
    recency_half_life: float | None
    match_offset: int
    snippet: bool
    formulations: Sequence[Formulation] | None
    on_bad_embedding: Literal["error", "text"]
    prefix_last: bool


class HybridOptions(KeywordArguments, total=False):
    """All keyword-only arguments of `hybrid_search`."""

    viewer_id: UUID | str | None
    viewer_groups: Sequence[str] | None
    public_only: bool
    exact_total: bool
    timeout: float | None


class SearchArguments(KeywordArguments, total=False):
    """All arguments of a search except the query, those that say who asks, and the timeout."""

    top_k: int
    threshold: float
    vector_weight: float
    text_weight: float
    filter_type: str | None
    search_mode: str
    pool_size: int


class PublicSearchOptions(SearchArguments, total=False):
    """The arguments of `search_public_knowledge` except the query."""

    timeout: float | None


class OwnSearchOptions(PublicSearchOptions, total=False):
    """The arguments of `search_my_knowledge` except the query."""

    public_only: bool


class SearchOptions(OwnSearchOptions, total=False):
    """The arguments of `explain_hybrid_search` except the query."""

    viewer_id: UUID | str | None
    viewer_groups: Sequence[str] | None


class FindOptions(SearchOptions, total=False):
    """The arguments of `find` and `search_pages` except the query."""

    exact_total: bool


class OwnRowOptions(TypedDict, total=False):
    """The arguments of a search that select rows, except those that name the viewer."""

    filter_type: str | None
    filters: Filters | None
    date_from: date | str | None
    date_to: date | str | None
    collections: Sequence[str] | None
    public_only: bool
    timeout: float | None


class RowOptions(OwnRowOptions, total=False):
    """The arguments of a search that select rows."""

    viewer_id: UUID | str | None
    viewer_groups: Sequence[str] | None


class BatchQuery(SearchArguments, total=False):
    """One query of a batch, with the names and defaults of `hybrid_search`."""

    query_embedding: Embedding | None
    query_text: str | None
    viewer_id: UUID | str | None
    viewer_groups: Sequence[str] | None
    public_only: bool


KEYWORD_DEFAULTS: Mapping[str, object] = {
    "rrf_k": 60.0,
    "fusion": None,
    "filters": None,
    "date_from": None,
    "date_to": None,
    "collections": None,
    "viewer_id": None,
    "public_only": False,
    "one_per_document": False,
    "neighbor_window": 0,
    "recency_half_life": None,
    "match_offset": 0,
    "snippet": False,
    "formulations": None,
    "viewer_groups": None,
    "on_bad_embedding": "error",
    "prefix_last": False,
}
"""Defaults of the keyword-only arguments. They are equal to those of the SQL function."""

VIEWER = ("viewer_id", "viewer_groups")
"""The arguments that name the viewer. With a user's token, the database takes both from there."""

DEFAULTS: Mapping[str, object] = {
    "query_embedding": None,
    "query_text": None,
    "top_k": 5,
    "threshold": 0.0,
    "vector_weight": 1.0,
    "text_weight": 1.0,
    "filter_type": None,
    "search_mode": "websearch",
    "pool_size": 50,
    **KEYWORD_DEFAULTS,
}
"""Defaults of `hybrid_search` and of the queries of a batch."""

ROWS = ("filter_type", "filters", "date_from", "date_to", "collections", "public_only")
"""The arguments that select rows, beside those that name the viewer."""

LARGEST_POOL = 1000
"""The most candidates for each leg, hits on a page, and hits to skip before it."""

SQL_NAMES = {"top_k": "match_count", "threshold": "match_threshold"}

WITH_SEARCH = frozenset(
    {
        "explain_hybrid_search",
        "estimate_hybrid_search",
        "explain_missing_knowledge_chunk",
        "count_matching_knowledge_chunks",
        "count_pending_knowledge_embeddings",
        "count_my_pending_knowledge_embeddings",
        "facet_knowledge_chunks",
        "facet_my_knowledge_chunks",
        "read_knowledge_question",
        "knowledge_candidates",
        "fuse_knowledge_candidates",
        "knowledge_candidate_hits",
    }
)
"""The SQL functions that take the arguments of a search as one object."""


def named(
    given: Mapping[str, object], caller: str, *, without: Collection[str] = (), filled: bool = True
) -> dict[str, object]:
    """Return the arguments under their SQL names, with defaults for missing ones.

    With `filled=False`, no defaults are added. Raises UnknownArgumentError.
    """
    if not isinstance(given, Mapping):
        raise InvalidInputError(f"{caller} must be a dict, not {type(given).__name__}")
    for name in given:
        if name not in DEFAULTS or name in without:
            raise UnknownArgumentError(f"{caller} got an unexpected argument {name!r:.100}")
    arguments = {**DEFAULTS, **given} if filled else given
    return {
        SQL_NAMES.get(name, name): value for name, value in arguments.items() if name not in without
    }


def packed(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the SQL function takes them.

    Searches have named arguments. Functions that count, explain or compare searches take those of
    the search as one object, `search`.
    """
    if function not in WITH_SEARCH:
        return arguments
    names = {SQL_NAMES.get(name, name) for name in DEFAULTS}
    search = {name: value for name, value in arguments.items() if name in names}
    others = {name: value for name, value in arguments.items() if name not in names}
    return {"search": search, **others}


def converted(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments as JSON values. Raises InvalidInputError."""
    return {name: _converted(name, value) for name, value in arguments.items()}


def without_defaults(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out keyword-only arguments that have their default.

    PostgREST finds a function by the names of its arguments. On a project with older migrations,
    a name that its function does not have causes status 404, even if the value is the default.
    """
    return {
        name: value
        for name, value in arguments.items()
        if name not in KEYWORD_DEFAULTS or value != KEYWORD_DEFAULTS[name]
    }


def _converted(name: str, value: Any) -> Any:
    if name == "query_embedding":
        # The database rejects invalid vectors, with a better message than one about JSON.
        return _plain(value)
    if name == "filters":
        return conditions(value)
    if name in ("collections", "viewer_groups") and isinstance(value, str):
        raise InvalidInputError(f"{name} must be a list of names, not {value[:100]!r}")
    if name in ("date_from", "date_to") and isinstance(value, str):
        return _parsed(name, value, date.fromisoformat, "an ISO date such as 2026-01-31")
    if name in ("viewer_id", "document_id", "chunk_id") and isinstance(value, str):
        return _parsed(name, value, UUID, "a UUID")
    return json_form(value, name)


def _parsed(name: str, value: str, parse: Callable[[str], object], expected: str) -> str:
    try:
        return str(parse(value))
    except ValueError as error:
        raise InvalidInputError(f"{name} must be {expected}, not {value[:100]!r}") from error


def _plain(value: object) -> Any:
    """Return arrays as lists of Python numbers."""
    if isinstance(value, Vector):
        return value.to_list()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value

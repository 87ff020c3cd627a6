"""What a search is asked: its arguments, their defaults, and their names and types in SQL.

The database checks embeddings, bounds and filters. Only a text that is not a date, a UUID or a list
is refused here, because Postgres would not name the argument.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from typing import Any, Literal, Protocol, TypeAlias, TypedDict
from uuid import UUID

from pgvector import Vector

from second_brain.errors import InvalidInputError
from second_brain.filters import Filters, conditions, json_form

Leg = Literal["hybrid", "vector", "text"]
"""What a search runs: one leg, or both and their fusion."""

TextMode = Literal["websearch", "simple", "phrase"]
"""How the text leg reads the question, `search_mode` everywhere."""


class SupportsToList(Protocol):
    """A numpy array or a tensor."""

    def tolist(self) -> Any:
        """Return the values as Python's own numbers."""


Embedding: TypeAlias = Sequence[float] | SupportsToList | Vector | str


class Formulation(TypedDict, total=False):
    """One more way to ask the same question: as text, as an embedding, or both."""

    query_text: str | None
    query_embedding: Embedding | None


class KeywordArguments(TypedDict, total=False):
    """The arguments of `hybrid_search` that are given by name only."""

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


class HybridOptions(KeywordArguments, total=False):
    """What `hybrid_search` takes by name only."""

    viewer_id: UUID | str | None
    timeout: float | None


class SearchArguments(KeywordArguments, total=False):
    """Everything that a search takes beside the question and the viewer."""

    top_k: int
    threshold: float
    vector_weight: float
    text_weight: float
    filter_type: str | None
    search_mode: str
    pool_size: int


class OwnSearchOptions(SearchArguments, total=False):
    """What `search_my_knowledge` takes beside the question."""

    timeout: float | None


class SearchOptions(OwnSearchOptions, total=False):
    """What `explain_hybrid_search` and `find` take beside the question."""

    viewer_id: UUID | str | None


class BatchQuery(SearchArguments, total=False):
    """One query of a batch, with the names and defaults of `hybrid_search`."""

    query_embedding: Embedding | None
    query_text: str | None
    viewer_id: UUID | str | None


KEYWORD_DEFAULTS: Mapping[str, object] = {
    "rrf_k": 60.0,
    "fusion": "auto",
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
}
"""Defaults of the arguments that are given by name only. They are those of the SQL function."""

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
"""Defaults of `hybrid_search`, which queries of a batch have too."""

SQL_NAMES = {"top_k": "match_count", "threshold": "match_threshold"}


def named(
    given: Mapping[str, object], caller: str, *, without: Collection[str] = (), filled: bool = True
) -> dict[str, object]:
    """Return the arguments under their SQL names, with the defaults of those left out.

    Raises TypeError for a name that is not an argument. `filled=False` adds no defaults.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"{caller} must be a dict, not {type(given).__name__}")
    for name in given:
        if name not in DEFAULTS or name in without:
            raise TypeError(f"{caller} got an unexpected argument {name!r}")
    arguments = {**DEFAULTS, **given} if filled else given
    return {
        SQL_NAMES.get(name, name): value for name, value in arguments.items() if name not in without
    }


def converted(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments as values that JSON has. Raises InvalidInputError."""
    return {name: _converted(name, value) for name, value in arguments.items()}


def without_defaults(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out keyword-only arguments that have their default.

    PostgREST finds a function by the names of its arguments. A name that is sent without need
    fails with 404 on a project whose migrations are older than this client.
    """
    return {
        name: value
        for name, value in arguments.items()
        if name not in KEYWORD_DEFAULTS or value != KEYWORD_DEFAULTS[name]
    }


def _converted(name: str, value: Any) -> Any:
    if name == "query_embedding":
        # The database's error for an invalid vector is better than one about JSON.
        return _plain(value)
    if name == "filters":
        return conditions(value)
    if name == "collections" and isinstance(value, str):
        raise InvalidInputError(f"collections must be a list of names, not {value[:100]!r}")
    if name in ("date_from", "date_to") and isinstance(value, str):
        return _parsed(name, value, date.fromisoformat, "an ISO date such as 2026-01-31")
    if name == "viewer_id" and isinstance(value, str):
        return _parsed(name, value, UUID, "a UUID")
    return json_form(value, name)


def _parsed(name: str, value: str, parse: Callable[[str], object], expected: str) -> str:
    try:
        return str(parse(value))
    except ValueError as error:
        raise InvalidInputError(f"{name} must be {expected}, not {value[:100]!r}") from error


def _plain(value: object) -> Any:
    """Return arrays as lists, and their numbers as Python's own."""
    if isinstance(value, Vector):
        return value.to_list()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value

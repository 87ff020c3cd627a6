"""The arguments of a search, each listed once: types, defaults, help, and the names in SQL.

The database checks embeddings, bounds and filters. This module rejects only invalid dates, UUIDs,
lists and texts, because the error of Postgres would not contain the name of the argument.
"""

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    get_args,
    get_type_hints,
)
from uuid import UUID

from second_brain.errors import (
    WRONG_VALUE,
    InvalidInputError,
    UnknownArgumentError,
    redacted,
    safe_message,
)
from second_brain.filters import Filters, conditions, json_form
from second_brain.lists import Fusion as Fusion
from second_brain.sql_modules import objects

Leg = Literal["hybrid", "vector", "text"]
"""The legs that a search runs: one leg, or both with fusion."""

FUSIONS: tuple[Fusion, ...] = get_args(Fusion)

OnBadEmbedding = Literal["error", "text", "from_text"]
"""What follows an embedding that cannot be searched with: an error, the text leg alone, or an
embedding made of the best text hits."""

TextMode = Literal["websearch", "simple", "phrase"]
"""How the text leg parses the query; the argument is `search_mode` everywhere."""


class SupportsToList(Protocol):
    """A numpy array or a tensor."""

    def tolist(self) -> Any:
        """Return the values as Python's own numbers."""


class PgVector(Protocol):
    """A `pgvector.Vector`, of any version of pgvector's package."""

    def to_list(self) -> list[float]:
        """Return the numbers."""


Embedding: TypeAlias = Sequence[float] | SupportsToList | PgVector | str | None
"""An embedding, as text also in pgvector's form; None runs the text leg alone."""


class Formulation(TypedDict, total=False):
    """Another formulation of the same query: a text, an embedding, or both."""

    query_text: str | None
    query_embedding: Embedding


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the search: its default, and a help text of one phrase.

    `name` and `type` are Python's, `sql_name` is the name in SQL and REST.
    """

    name: str
    type: Any
    default: Any
    help: str
    sql_name: str

    @property
    def sql_type(self) -> str:
        """Its type in SQL, from the list that is written from the SQL."""
        arguments = objects()["functions"]["hybrid_search_knowledge_chunks"]["arguments"]
        return str(arguments[self.sql_name])


# The lists of the arguments, from which the options of the methods are put together. A new argument
# is one entry: its type, its default, a help text, and its name in SQL where that is another.
class _Positional(TypedDict, total=False):
    top_k: Annotated[int, 5, "the most hits", "match_count"]
    threshold: Annotated[
        float, 0.0, "the lowest cosine similarity (-1 to 1) in the vector leg", "match_threshold"
    ]
    vector_weight: Annotated[float, 1.0, "the weight of the vector leg in the fusion"]
    text_weight: Annotated[float, 1.0, "the weight of the text leg in the fusion"]
    filter_type: Annotated[str | None, None, "only this knowledge_type"]
    search_mode: Annotated[str, "websearch", "how the text is read: websearch, simple or phrase"]
    pool_size: Annotated[int, 50, "the candidates of each leg"]


class _Conditions(TypedDict, total=False):
    filters: Annotated[Filters | None, None, "conditions on columns and metadata keys"]
    date_from: Annotated[date | str | None, None, "only documents of this date or later"]
    date_to: Annotated[date | str | None, None, "only documents of this date or earlier"]
    collections: Annotated[
        Sequence[str] | None, None, "only these collections, each ranked by itself, then fused"
    ]
    required_filters: Annotated[
        Filters | None, None, "conditions of the server: other rows are not there"
    ]
    as_of: Annotated[
        datetime | date | str | None, "now", "only rows that hold at this time; null: all"
    ]


class _Viewer(TypedDict, total=False):
    viewer_id: Annotated[
        UUID | str | None, None, "the user who asks: their own rows and public ones"
    ]
    viewer_groups: Annotated[Sequence[str] | None, None, "the groups of the user who asks"]
    public_only: Annotated[bool, False, "only public rows"]


class _Keywords(_Conditions, total=False):
    rrf_k: Annotated[float, 60.0, "the constant of reciprocal rank fusion"]
    fusion: Annotated[str | None, None, f"{', '.join(FUSIONS)}; none: as stored, else rrf"]
    one_per_document: Annotated[bool, False, "only the best chunk of each document"]
    neighbor_window: Annotated[int, 0, "the chunks before and after a hit in its context, 0 to 5"]
    recency_half_life: Annotated[float | None, None, "the age in days that halves a score"]
    match_offset: Annotated[int, 0, "the hits to skip"]
    snippet: Annotated[bool, False, "an excerpt of each hit in HTML, with <mark>"]
    formulations: Annotated[
        Sequence[Formulation] | None, None, "up to 10 further formulations of the query"
    ]
    on_bad_embedding: Annotated[
        OnBadEmbedding, "error", "text, from_text: a text replaces an embedding of a wrong size"
    ]
    prefix_last: Annotated[bool, False, "the last word may be the beginning of a word"]
    embedding_from_text: Annotated[
        bool, False, "a text without embedding gets one of its best text hits"
    ]
    like_ids: Annotated[
        Sequence[UUID | str] | None,
        None,
        "up to 20 chunks or documents that the hits should be like",
    ]
    boosts: Annotated[
        Sequence[Mapping[str, object]] | None,
        None,
        "up to 10 factors of the score, by conditions, numbers or dates",
    ]
    diversity: Annotated[float, 0.0, "how much hits should differ from those above, 0 to 1"]
    max_per_document: Annotated[int | None, None, "the most hits of each document"]
    merge_duplicates: Annotated[bool, False, "hits that say the same are shown once"]
    min_confidence: Annotated[float | None, None, "the least answer_confidence of each hit, 0 to 1"]
    snippets: Annotated[int, 1, "the passages of a snippet, 1 to 3"]
    order_by: Annotated[str | None, None, "a field with a date or number, such as document_date"]


class BatchQuery(_Positional, _Keywords, _Viewer, total=False):
    """One query of a batch: all arguments of a search, with the defaults of `hybrid_search`."""

    query_embedding: Annotated[Embedding, None, "the embedding of the query, for the vector leg"]
    query_text: Annotated[str | None, None, "the words of the query, for the text leg"]


class HybridOptions(_Keywords, _Viewer, total=False):
    """All keyword-only arguments of `hybrid_search`."""

    exact_total: bool
    timeout: float | None


class PublicSearchOptions(_Positional, _Keywords, total=False):
    """The arguments of `search_public_knowledge` except the query."""

    timeout: float | None


class OwnSearchOptions(PublicSearchOptions, total=False):
    """The arguments of `search_my_knowledge` except the query."""

    public_only: bool


class SearchOptions(PublicSearchOptions, _Viewer, total=False):
    """The arguments of `explain_hybrid_search` except the query."""


class FindOptions(SearchOptions, total=False):
    """The arguments of `find` and `search_pages` except the query."""

    exact_total: bool


class OwnRowOptions(_Conditions, total=False):
    """The arguments of a search that select rows, except those that name the viewer."""

    filter_type: str | None
    public_only: bool
    timeout: float | None


class RowOptions(_Conditions, _Viewer, total=False):
    """The arguments of a search that select rows."""

    filter_type: str | None
    timeout: float | None


class LegOptions(_Viewer, total=False):
    """The arguments of `search` and `fulltext_search` that select rows."""

    required_filters: Filters | None
    timeout: float | None


class DocumentOptions(LegOptions, total=False):
    """The arguments of `read_document` and `list_documents` that select documents."""

    collections: Sequence[str] | None


ARGUMENTS: Mapping[str, Argument] = {
    name: Argument(name, type_, default, help_, *(sql_name or [name]))
    for name, hint in get_type_hints(BatchQuery, include_extras=True).items()
    for type_, default, help_, *sql_name in [get_args(hint)]
}
"""The one list of what a search takes, by Python's names. Other lists are made of it, or are
compared with it by a test."""

DEFAULTS: Mapping[str, object] = {one.name: one.default for one in ARGUMENTS.values()}
"""Defaults of `hybrid_search` and of the queries of a batch."""

KEYWORD_DEFAULTS: Mapping[str, object] = {
    name: default for name, default in DEFAULTS.items() if name in get_type_hints(HybridOptions)
}
"""Defaults of the keyword-only arguments. They are equal to those of the SQL function."""

SQL_NAMES = {one.name: one.sql_name for one in ARGUMENTS.values() if one.sql_name != one.name}

PYTHON_NAMES = {sql_name: name for name, sql_name in SQL_NAMES.items()}

QUERY_NAMES = {
    "query": "query_text",
    "category": "filter_type",
    "limit": "top_k",
    "offset": "match_offset",
    "min_similarity": "threshold",
    "expand_neighbors": "neighbor_window",
}
"""The fields of a query of the service that have another name than their argument."""

FIELD_NAMES = {argument: field for field, argument in QUERY_NAMES.items()}

VIEWER = ("viewer_id", "viewer_groups")
"""The arguments that name the viewer. With a user's token, the database takes both from there."""

LARGEST_POOL = 1000
"""The most candidates for each leg, hits on a page, and hits to skip before it."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a question about a name that is not known; nothing if no name is like it."""
    own = PYTHON_NAMES.get(name, name)
    others = (own, QUERY_NAMES.get(own), FIELD_NAMES.get(own))
    near = [one for one in others if one in known] or difflib.get_close_matches(name, known, n=1)
    return f", did you mean {near[0]}?" if near else ""


def renamed(message: str, names: Mapping[str, str]) -> str:
    """Return a message with the caller's names of arguments; what it quotes stays."""
    said, comma, value = message.partition(", not ")
    return _NAME.sub(lambda name: names.get(name[0], name[0]), said) + comma + value


def bound(
    given: Mapping[str, Any], function: str, place: str = "", beside: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the arguments that an SQL function takes, as JSON values under their SQL names.

    Missing ones get their default. `beside`: what the method takes beside them. Raises
    InvalidInputError and UnknownArgumentError.
    """
    if not isinstance(given, Mapping):
        raise InvalidInputError(f"{place}must be a dict, not {type(given).__name__}")
    known = names_of(function)
    if unknown := [name for name in given if name not in known]:
        allowed = sorted((*known, *beside))
        raise UnknownArgumentError(
            f"{place}got an unexpected argument {unknown[0]!r:.100}"
            f"{did_you_mean(str(unknown[0]), allowed) or '.'} Known are {', '.join(allowed)}."
        )
    arguments: dict[str, Any] = {}
    for name in known:
        default = DEFAULTS[name]
        value = given.get(name, default)
        # Null as as_of is all times.
        value = default if value is None and name != "as_of" else value
        if not (value is None or (type(value) is type(default) and value == default)):
            try:
                value = _READERS.get(name, _json)(value, name)
            except WRONG_VALUE as error:
                raise _wrong(name, error) from redacted(error)
        arguments[ARGUMENTS[name].sql_name] = value
    return arguments


@cache
def names_of(function: str) -> tuple[str, ...]:
    """Return the arguments of a search that a function takes, by Python's names.

    One with the argument `search` takes all in it; one for a user takes the viewer from the token,
    and one that counts rows takes those that select rows.
    """
    own = objects()["functions"][function]["arguments"]
    if "search" not in own:
        return tuple(one.name for one in ARGUMENTS.values() if one.sql_name in own)
    known = RowOptions.__annotations__ if "_pending_" in function else ARGUMENTS
    without = VIEWER if "_my_" in function else ()
    return tuple(name for name in ARGUMENTS if name in known and name not in without)


def converted(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return arguments as JSON values under their names. Raises InvalidInputError."""
    values = dict[str, Any](arguments)
    for name, value in arguments.items():
        if value is not None:
            try:
                values[name] = _READERS.get(name, _json)(value, name)
            except WRONG_VALUE as error:
                raise _wrong(name, error) from redacted(error)
    return values


def _wrong(name: str, error: Exception) -> InvalidInputError:
    if isinstance(error, InvalidInputError):
        return error
    return InvalidInputError(f"{name} has a value of a wrong type: {safe_message(error)}")


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


def _names(value: Any, name: str) -> Any:
    given = None if isinstance(value, str) else json_form(value, name)
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise InvalidInputError(f"{name} must be a list of names, not {value!r:.100}")
    if name == "collections" and not given:
        raise InvalidInputError(f"{name} must be 1 to 50 names, not []")
    return given


def _question(value: Any, name: str) -> Any:
    """Read the words of a question or its embedding, which may be a text of pgvector's form."""
    is_text = isinstance(value, str)
    if name == "query_text":
        if not is_text:
            raise InvalidInputError(f"{name} must be a text, not {type(value).__name__}")
        # Which says what is wrong with a text.
        return value if value.isprintable() else json_form(value, name)
    if is_text and not value.lstrip().startswith("["):
        raise InvalidInputError(
            f"{name} must be a list of numbers, not {value[:100]!r}",
            remedy="Give the words of the question as query_text.",
        )
    if type(value) is list and {*map(type, value)} <= {int, float}:
        return value
    return _plain(value)


def _parsed(parse: Callable[[str], object], expected: str) -> Callable[[Any, str], Any]:
    def read(value: Any, name: str) -> Any:
        given = json_form(value, name)
        try:
            # NumPy's array of None becomes None.
            return None if given is None else str(parse(given))
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidInputError(f"{name} must be {expected}, not {given!r:.100}") from error

    return read


def _date(value: Any, name: str) -> Any:
    # Of a time, the day: the form of one with an offset is in UTC.
    given = json_form(value, name)
    is_time = isinstance(given, str) and not isinstance(value, str)
    return _day(given[:10] if is_time else given, name)


def _time(text: str) -> str:
    if text == "now":
        return text
    if (form := _TIME.fullmatch(text)) is None or not datetime.fromisoformat(text):
        raise ValueError
    # Without an offset it is UTC, as in filters.
    return text if form["offset"] else f"{text}Z" if form["time"] else f"{text}T00:00:00Z"


def _scalar(kind: type) -> Callable[[Any, str], Any]:
    """Return what reads a value, or the text of one as a URL has it, and refuses others."""

    def read(value: Any, name: str) -> Any:
        given = json_form(value, name)
        if isinstance(given, str) and kind is bool:
            given = {"true": True, "false": False}.get(given, given)
        elif isinstance(given, str) and kind is not str and _NUMBER.fullmatch(given):
            given = json_form(float(given), name)
        if kind is int and isinstance(given, float) and given.is_integer():
            given = int(given)
        # A whole number is a number, too.
        if type(given) is not kind and (kind, type(given)) != (float, int):
            raise InvalidInputError(f"{name} must be {_SCALARS[kind]}, not {given!r:.100}")
        return given

    return read


def _plain(value: object) -> Any:
    """Return arrays as lists of Python numbers.

    The database rejects invalid vectors, with a better message than one about JSON.
    """
    for method in ("tolist", "to_list"):
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


_TIME = re.compile(
    r"\d{4}-\d\d-\d\d(?P<time>[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(?P<offset>Z|[+-]\d\d(:\d\d)?)?)?",
    re.ASCII,
)
# A name in quotation marks, or a key below another one, is none of an argument.
_NAME = re.compile(r'"[^"]*"|(?<![\w.])[a-z_]+(?!\w|\.\w)')
_json: Callable[[Any, str], Any] = json_form
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_day = _parsed(
    # Not the other forms that Python reads, such as 20260131.
    lambda text: date.fromisoformat(text if text.count("-") == 2 and "W" not in text else ""),
    "an ISO date such as 2026-01-31",
)
_uuid = _parsed(UUID, "a UUID")
read_time = _parsed(_time, "an ISO date or timestamp such as 2026-01-31T12:00:00Z, or now")
_SCALARS = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
# How a value becomes one of JSON, where that is more than `json_form`.
_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    **{
        one.name: _scalar(kind)
        for one in ARGUMENTS.values()
        # An optional one has its type before the None.
        for kind in [(get_args(one.type) or (one.type,))[0], type(one.default)]
        if kind in _SCALARS
    },
    **dict.fromkeys(("query_embedding", "query_text"), _question),
    **dict.fromkeys(("filters", "required_filters"), conditions),
    **dict.fromkeys(("collections", "viewer_groups", "facets"), _names),
    "like_ids": lambda value, name: [_uuid(one, name) for one in _names(value, name)],
    **dict.fromkeys(("date_from", "date_to"), _date),
    "as_of": read_time,
    **dict.fromkeys(("viewer_id", "chunk_id"), _uuid),
    "document": lambda value, _: _uuid(value, "document_id"),
    "queries": lambda queries, _: [one.model_dump(mode="json") for one in queries],
    "max_age": lambda age, _: f"{age.total_seconds()} seconds",
}

"""The arguments of a search, each listed once: types, defaults, help, and the names in SQL.

The database checks embeddings, bounds and filters. This module rejects only invalid dates, UUIDs,
lists and texts, because the error of Postgres would not contain the name of the argument.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
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

from second_brain.errors import InvalidInputError, UnknownArgumentError
from second_brain.filters import Filters, conditions, json_form
from second_brain.lists import Fusion as Fusion

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


Embedding: TypeAlias = Sequence[float] | SupportsToList | PgVector | str


class Formulation(TypedDict, total=False):
    """Another formulation of the same query: a text, an embedding, or both."""

    query_text: str | None
    query_embedding: Embedding | None


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the search: its default, its SQL type, and a help text of one phrase.

    `name` and `type` are Python's, `sql_name` is the name in SQL and REST.
    """

    default: Any
    sql_type: str
    help: str
    sql_name: str = ""
    name: str = ""
    type: Any = None


class _Question(TypedDict, total=False):
    query_embedding: Annotated[
        Embedding | None,
        Argument(None, "extensions.vector", "the embedding of the query, for the vector leg"),
    ]
    query_text: Annotated[
        str | None, Argument(None, "text", "the words of the query, for the text leg")
    ]


class _Type(TypedDict, total=False):
    filter_type: Annotated[str | None, Argument(None, "text", "only this knowledge_type")]


class _Conditions(TypedDict, total=False):
    filters: Annotated[
        Filters | None, Argument(None, "jsonb", "conditions on columns and metadata keys")
    ]
    date_from: Annotated[
        date | str | None, Argument(None, "date", "only documents of this date or later")
    ]
    date_to: Annotated[
        date | str | None, Argument(None, "date", "only documents of this date or earlier")
    ]
    collections: Annotated[
        Sequence[str] | None,
        Argument(None, "text[]", "only these collections, each ranked by itself, then fused"),
    ]
    required_filters: Annotated[
        Filters | None,
        Argument(None, "jsonb", "conditions of the server: other rows are not there"),
    ]
    as_of: Annotated[
        datetime | date | str | None,
        Argument("now", "timestamp with time zone", "only rows that hold at this time; null: all"),
    ]


class _PublicOnly(TypedDict, total=False):
    public_only: Annotated[bool, Argument(False, "boolean", "only public rows")]


class _Viewer(TypedDict, total=False):
    viewer_id: Annotated[
        UUID | str | None,
        Argument(None, "uuid", "the user who asks: their own rows and public ones"),
    ]
    viewer_groups: Annotated[
        Sequence[str] | None, Argument(None, "text[]", "the groups of the user who asks")
    ]


class _Scores(TypedDict, total=False):
    top_k: Annotated[int, Argument(5, "integer", "the most hits", "match_count")]
    threshold: Annotated[
        float,
        Argument(
            0.0,
            "double precision",
            "the lowest cosine similarity (-1 to 1) in the vector leg",
            "match_threshold",
        ),
    ]
    vector_weight: Annotated[
        float, Argument(1.0, "double precision", "the weight of the vector leg in the fusion")
    ]
    text_weight: Annotated[
        float, Argument(1.0, "double precision", "the weight of the text leg in the fusion")
    ]


class _Reading(TypedDict, total=False):
    search_mode: Annotated[
        str,
        Argument("websearch", "text", "how the text is read: websearch, simple or phrase"),
    ]
    pool_size: Annotated[int, Argument(50, "integer", "the candidates of each leg")]


class KeywordArguments(_Conditions, total=False):
    """The keyword-only arguments of `hybrid_search` except those that say who asks."""

    rrf_k: Annotated[
        float, Argument(60.0, "double precision", "the constant of reciprocal rank fusion")
    ]
    fusion: Annotated[
        str | None,
        Argument(None, "text", f"{', '.join(FUSIONS)}; none: as stored, else rrf"),
    ]
    one_per_document: Annotated[
        bool, Argument(False, "boolean", "only the best chunk of each document")
    ]
    neighbor_window: Annotated[
        int, Argument(0, "integer", "the chunks before and after a hit in its context, 0 to 5")
    ]
    recency_half_life: Annotated[
        float | None, Argument(None, "double precision", "the age in days that halves a score")
    ]
    match_offset: Annotated[int, Argument(0, "integer", "the hits to skip")]
    snippet: Annotated[
        bool, Argument(False, "boolean", "an excerpt of each hit in HTML, with <mark>")
    ]
    formulations: Annotated[
        Sequence[Formulation] | None,
        Argument(None, "jsonb", "up to 10 further formulations of the query"),
    ]
    on_bad_embedding: Annotated[
        OnBadEmbedding,
        Argument("error", "text", "text, from_text: a text replaces an embedding of a wrong size"),
    ]
    prefix_last: Annotated[
        bool, Argument(False, "boolean", "the last word may be the beginning of a word")
    ]
    embedding_from_text: Annotated[
        bool, Argument(False, "boolean", "a text without embedding gets one of its best text hits")
    ]
    like_ids: Annotated[
        Sequence[UUID | str] | None,
        Argument(None, "uuid[]", "up to 20 chunks or documents that the hits should be like"),
    ]
    boosts: Annotated[
        Sequence[Mapping[str, object]] | None,
        Argument(None, "jsonb", "up to 10 factors of the score, by conditions, numbers or dates"),
    ]
    diversity: Annotated[
        float,
        Argument(0.0, "double precision", "how much hits should differ from those above, 0 to 1"),
    ]
    max_per_document: Annotated[
        int | None, Argument(None, "integer", "the most hits of each document")
    ]
    merge_duplicates: Annotated[
        bool, Argument(False, "boolean", "hits that say the same are shown once")
    ]
    min_confidence: Annotated[
        float | None,
        Argument(None, "double precision", "the least answer_confidence of each hit, 0 to 1"),
    ]
    snippets: Annotated[int, Argument(1, "integer", "the passages of a snippet, 1 to 3")]
    order_by: Annotated[
        str | None, Argument(None, "text", "a field with a date or number, such as document_date")
    ]


class _Timeout(TypedDict, total=False):
    timeout: float | None


class _ExactTotal(TypedDict, total=False):
    exact_total: bool


class HybridOptions(KeywordArguments, _Viewer, _PublicOnly, _ExactTotal, _Timeout, total=False):
    """All keyword-only arguments of `hybrid_search`."""


class SearchArguments(_Scores, _Type, _Reading, KeywordArguments, total=False):
    """All arguments of a search except the query, those that say who asks, and the timeout."""


class PublicSearchOptions(SearchArguments, _Timeout, total=False):
    """The arguments of `search_public_knowledge` except the query."""


class OwnSearchOptions(PublicSearchOptions, _PublicOnly, total=False):
    """The arguments of `search_my_knowledge` except the query."""


class SearchOptions(OwnSearchOptions, _Viewer, total=False):
    """The arguments of `explain_hybrid_search` except the query."""


class FindOptions(SearchOptions, _ExactTotal, total=False):
    """The arguments of `find` and `search_pages` except the query."""


class OwnRowOptions(_Type, _Conditions, _PublicOnly, _Timeout, total=False):
    """The arguments of a search that select rows, except those that name the viewer."""


class RowOptions(OwnRowOptions, _Viewer, total=False):
    """The arguments of a search that select rows."""


class LegOptions(_Viewer, _PublicOnly, _Timeout, total=False):
    """The arguments of `search` and `fulltext_search` that select rows."""

    required_filters: Filters | None


class DocumentOptions(LegOptions, total=False):
    """The arguments of `read_document` and `list_documents` that select documents."""

    collections: Sequence[str] | None


class BatchQuery(_Question, SearchArguments, _Viewer, _PublicOnly, total=False):
    """One query of a batch, with the names and defaults of `hybrid_search`."""


ARGUMENTS: Mapping[str, Argument] = {
    name: replace(argument, name=name, type=type_, sql_name=argument.sql_name or name)
    for name, hint in get_type_hints(BatchQuery, include_extras=True).items()
    for type_, argument in [get_args(hint)]
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

VIEWER = tuple(get_type_hints(_Viewer))
"""The arguments that name the viewer. With a user's token, the database takes both from there."""

ROWS = tuple(name for name in get_type_hints(OwnRowOptions) if name in ARGUMENTS)
"""The arguments that select rows, beside those that name the viewer."""

_OF_A_LEG = get_type_hints(LegOptions).keys() | {"filter_type", "top_k"}
NOT_OF_VECTOR = DEFAULTS.keys() - _OF_A_LEG - {"query_embedding", "threshold"}
NOT_OF_FULLTEXT = DEFAULTS.keys() - _OF_A_LEG - {"query_text", "search_mode"}
NOT_OF_DOCUMENTS = DEFAULTS.keys() - get_type_hints(DocumentOptions).keys()
"""The arguments of a hybrid search that `search`, `fulltext_search` and documents do not take."""

LARGEST_POOL = 1000
"""The most candidates for each leg, hits on a page, and hits to skip before it."""


def bound(
    arguments: Mapping[str, Any], caller: str, *, without: Collection[str] = (), filled: bool = True
) -> tuple[dict[str, Any], float | None]:
    """Return the arguments of a search as JSON values under their SQL names, and the timeout.

    Missing ones get their default, but not with `filled=False`. Raises InvalidInputError and
    UnknownArgumentError.
    """
    if not isinstance(arguments, Mapping):
        raise InvalidInputError(f"{caller} must be a dict, not {type(arguments).__name__}")
    known = {*DEFAULTS, "timeout"} - set(without)
    if unknown := [name for name in arguments if name not in known]:
        raise UnknownArgumentError(
            f"{caller} got an unexpected argument {unknown[0]!r:.100}, not one of "
            + ", ".join(sorted(known))
        )
    values: dict[str, Any] = {}
    for name, value in ({**DEFAULTS, **arguments} if filled else arguments).items():
        if name in known and name != "timeout":
            sql_name, read = SQL_NAMES.get(name, name), _READERS.get(name)
            default = DEFAULTS[name]
            value = default if value is None and name != "as_of" else value
            is_default = value is None or (type(value) is type(default) and value == default)
            if read is not None and not is_default:
                value = read(value, name)
            elif not is_default and type(value) not in (bool, int):
                value = json_form(value, sql_name)
            values[sql_name] = value
    return values, arguments.get("timeout")


def converted(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return arguments as JSON values under their names. Raises InvalidInputError."""
    return {
        name: None if value is None else _READERS.get(name, _json)(value, name)
        for name, value in arguments.items()
    }


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


def _scalar(sql_type: str) -> Callable[[Any, str], Any]:
    """Return what reads a value, or the text of one as a URL has it, and refuses others."""
    expected, *kinds = _SCALARS[sql_type]

    def read(value: Any, name: str) -> Any:
        given = json_form(value, name)
        if isinstance(given, str) and sql_type == "boolean":
            given = {"true": True, "false": False}.get(given, given)
        elif isinstance(given, str) and sql_type != "text" and _NUMBER.fullmatch(given):
            given = json_form(float(given), name)
        if sql_type == "integer" and isinstance(given, float) and given.is_integer():
            given = int(given)
        if type(given) not in kinds:
            raise InvalidInputError(f"{name} must be {expected}, not {given!r:.100}")
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
_json: Callable[[Any, str], Any] = json_form
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_day = _parsed(
    # Not the other forms that Python reads, such as 20260131.
    lambda text: date.fromisoformat(text if text.count("-") == 2 and "W" not in text else ""),
    "an ISO date such as 2026-01-31",
)
_uuid = _parsed(UUID, "a UUID")
_SCALARS: Mapping[str, tuple[Any, ...]] = {
    "integer": ("an integer", int),
    "double precision": ("a number", int, float),
    "boolean": ("true or false", bool),
    "text": ("a text", str),
}
# How a value becomes one of JSON, where that is more than `json_form`.
_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    **{one.name: _scalar(one.sql_type) for one in ARGUMENTS.values() if one.sql_type in _SCALARS},
    **dict.fromkeys(("query_embedding", "query_text"), _question),
    **dict.fromkeys(("filters", "required_filters"), conditions),
    **dict.fromkeys(("collections", "viewer_groups"), _names),
    "like_ids": lambda value, name: [_uuid(one, name) for one in _names(value, name)],
    **dict.fromkeys(("date_from", "date_to"), _date),
    "as_of": _parsed(_time, "an ISO date or timestamp such as 2026-01-31T12:00:00Z, or now"),
    **dict.fromkeys(("viewer_id", "document_id", "chunk_id"), _uuid),
}

"""What a caller asks the retrieval service.

`SearchQuery` is what a client may ask for: the body of a request. `Access` is what the server
decides beside it. Both check their values when they are made. What only the database can check,
such as a filter's fields, the database checks.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from types import UnionType
from typing import Annotated, Any, Literal, TypedDict, Union, cast, get_args, get_origin
from uuid import UUID

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    field_validator,
    model_validator,
)

from second_brain.errors import InvalidInputError
from second_brain.filters import FilterBuilder, FilterExpression, Filters, conditions
from second_brain.retrieval.earlier_names import QUERY_FIELDS, QueryNames
from second_brain.retrieval.settings import (
    LIMIT_BOUND,
    MATCH_COUNT_BOUND,
    Mode,
    ModeField,
    Weight,
    without_alias,
)
from second_brain.services.arguments import ARGUMENTS, Fusion, Leg, TextMode, read_time

QUESTION_BOUND = 1000
"""Characters. A longer text is a document, which no embedding model reads as a question."""

OFFSET_BOUND = 1000


SearchMode = Literal[TextMode, Mode, "bm25"]
"""How the text leg reads the question, or a mode."""

MODES = (*get_args(Mode), "bm25")


def _conditions(filters: Any, name: str = "filters") -> Any:
    try:
        return conditions(filters, name)
    except InvalidInputError as error:
        raise ValueError(str(error)) from error


def _required(filters: Any) -> Any:
    # What a key of the short form means depends on the key; what must hold is written in full.
    if isinstance(filters, Mapping):
        raise ValueError("must be a list of conditions")  # noqa: TRY004
    return _conditions(filters, "required_filters")


def whole_neighbors(expand: object) -> object:
    """Return a number of neighbours; true is one on each side."""
    return int(expand) if isinstance(expand, bool) else expand


def takes(annotation: Any, *kinds: object) -> bool:
    """Say whether one of the types that an annotation names is one of these."""
    if get_origin(annotation) is Annotated:
        return takes(get_args(annotation)[0], *kinds)
    if get_origin(annotation) in (Union, UnionType):
        return any(takes(one, *kinds) for one in get_args(annotation))
    return annotation in kinds or get_origin(annotation) in kinds


class Strict(BaseModel):
    """A model in which true and false are no numbers, as in the database."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean(cls, given: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or ""]
        reads = [getattr(one, "func", None) for one in field.metadata]
        if isinstance(given, bool) and whole_neighbors not in reads:
            for kind, name in ((int, "an integer"), (float, "a number")):
                if takes(field.annotation, kind):
                    raise ValueError(f"must be {name}, not {given}")
        return given


def _listed(names: object) -> object:
    if isinstance(names, str):
        raise ValueError("must be a list of names, not one text")  # noqa: TRY004
    return list(names) if isinstance(names, set | frozenset) else names


def _give(named: dict[str, Any], field: str, other_name: str, value: object) -> None:
    if named.get(field) is not None:
        raise ValueError(f"{field} and {other_name} are both given, and are names of one field")
    named[field] = value


def _question(given: object, check: ValidatorFunctionWrapHandler) -> object:
    return "" if given is _NO_QUESTION else check(given)


_NO_QUESTION = object()
Text = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=QUESTION_BOUND)
]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


def _day(given: object, check: ValidatorFunctionWrapHandler) -> object:
    try:
        # As the day of a time, pydantic takes a number.
        return check(str(given) if isinstance(given, int | float) else given)
    except ValidationError as error:
        raise ValueError(f"must be an ISO date such as 2026-01-31, not {given!r:.100}") from error


def _moment(given: object) -> object:
    try:
        return None if given is None else read_time(given, "as_of")
    except InvalidInputError as error:
        raise ValueError(str(error).removeprefix("as_of ")) from error


Day = Annotated[date | None, WrapValidator(_day)]
AsOf = Annotated[datetime | Literal["now"] | None, BeforeValidator(_moment)]


def argument_field(name: str, **given: Any) -> Any:
    """Return a field with the default and the help of the search's argument of this name."""
    argument = ARGUMENTS[name]
    text = f"{argument.help[0].upper()}{argument.help[1:]}."
    return Field(**{"default": argument.default, "description": text, **given})


Conditions = Annotated[
    Any,
    PlainValidator(lambda filters: _conditions(filters)),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "object"}]}),
]


class Access(BaseModel):
    """What a server decides about a search, whoever wrote the query: whose rows, and which.

    For the whole answer, rows that do not meet `required_filters` are not there; it does not name
    them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    viewer_id: UUID | None = Field(default=None, description="Rows of this user, and public ones.")
    viewer_groups: Names | None = Field(
        default=None, description="Rows that one of these groups may see, too."
    )
    public_only: bool = Field(default=False, description="Public rows only.")
    required_filters: Annotated[Any, PlainValidator(_required)] = Field(
        default=None, description="Conditions that always hold, as a list."
    )


class ForAll(Strict):
    """What assistants may set as other clients do: with the same name, type, bounds and help."""

    date_from: Day = argument_field("date_from")
    date_to: Day = argument_field("date_to")
    as_of: AsOf = argument_field("as_of")
    prefix_last: bool = argument_field("prefix_last")
    diversity: float = argument_field("diversity", ge=0, le=1)
    merge_duplicates: bool = argument_field("merge_duplicates")


class SearchQuery(ForAll, QueryNames):
    """One validated search of a client: what `RetrievalService.search` takes, also as JSON.

    It may be the body of a request: it has no field that says whose rows are searched.

    For a field that is None and has a setting (`mode`, `limit`, weights, ...), the setting counts.
    `query_text`, `bm25_weight` and `k` are other names of `query`, `text_weight` and `rrf_k`; a
    `search_mode` that names legs, such as `hybrid`, is the `mode`. Raises pydantic's
    ValidationError for a value out of bounds and for a name that is none of these.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        named = dict(given)
        for name in QUERY_FIELDS.keys() & named.keys():
            _give(named, QUERY_FIELDS[name], name, named.pop(name))
        mode = named.get("search_mode")
        # The field search_mode keeps what was given, so a dumped query has both.
        if mode in MODES and without_alias(named.get("mode")) != without_alias(mode):
            _give(named, "mode", "search_mode", mode)
        is_blank = not str(named.get("query") or "").strip()
        if named.get("like_ids") and is_blank and cls.model_fields["query"].is_required():
            named["query"] = _NO_QUESTION
        return named

    query: Annotated[Text, WrapValidator(_question)] = Field(
        description="The question, 1 to 1,000 characters; it may be empty with like_ids.",
        json_schema_extra={"minLength": 0},
    )
    mode: ModeField | None = Field(
        default=None, description="hybrid, vector, text (or bm25) or rerank."
    )
    limit: int | None = Field(default=None, ge=1, le=LIMIT_BOUND, description="Results, 1 to 100.")
    offset: int = Field(default=0, ge=0, le=OFFSET_BOUND, description="Results to skip.")
    category: str | None = Field(default=None, description="One knowledge_type.")
    tags: Names = Field(default=(), description="metadata.tags has every one of them.")
    filters: Conditions = Field(default=None, description="Conditions on columns and metadata.")
    min_similarity: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="Least cosine similarity of what the vector leg finds.",
    )
    collections: Names | None = Field(
        default=None, description="Each ranked by itself, then fused."
    )
    expand_neighbors: Annotated[int, BeforeValidator(whole_neighbors)] = Field(
        default=0, ge=0, le=5, description="Chunks before and after each hit; true is 1."
    )
    one_per_document: bool = argument_field("one_per_document")
    recency_half_life: float | None = argument_field("recency_half_life", gt=0, allow_inf_nan=False)
    snippet: bool = argument_field("snippet")
    search_mode: SearchMode = Field(
        default="websearch", description="How the text leg reads the question; or the mode."
    )
    formulations: Annotated[tuple[Text, ...], BeforeValidator(_listed)] = Field(
        default=(), max_length=10, description="Further ways to ask the same question."
    )
    exact_total: bool = Field(
        default=False, description="Count all rows that match, beyond the candidates too."
    )
    rrf_k: float | None = argument_field("rrf_k", default=None, gt=0, allow_inf_nan=False)
    fusion: Fusion | None = Field(default=None, description="How the lists of the legs are fused.")
    vector_weight: Weight | None = argument_field("vector_weight", default=None)
    text_weight: Weight | None = argument_field("text_weight", default=None)
    include_memory: bool | None = Field(
        default=None, description="Search the collection memory too."
    )
    like_ids: tuple[UUID, ...] | None = argument_field("like_ids")
    boosts: tuple[dict[str, Any], ...] | None = argument_field("boosts")
    max_per_document: int | None = argument_field("max_per_document", ge=1, le=1000)
    min_confidence: float | None = argument_field("min_confidence", ge=0, le=1)
    snippets: int = argument_field("snippets", ge=1, le=3)
    order_by: str | None = argument_field("order_by")
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="The best results with at most this many tokens, at least one result.",
    )

    @property
    def text_mode(self) -> TextMode:
        """How the text leg reads the question."""
        return "websearch" if self.search_mode in MODES else cast(TextMode, self.search_mode)


class OperatorQuery(SearchQuery):
    """A search of an operator, on the command line or in the workbench, with wider bounds.

    `reranked_leg` are the legs below a reranker; None: those of the settings.
    """

    query: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1), WrapValidator(_question)
    ]
    limit: int | None = Field(default=None, ge=1, le=MATCH_COUNT_BOUND)
    reranked_leg: Leg | None = None


class AccessOptions(TypedDict, total=False):
    """What `RetrievalService.search` takes by name beside a SearchQuery: fields of Access."""

    viewer_id: UUID | str | None
    viewer_groups: Sequence[str] | set[str] | frozenset[str] | None
    public_only: bool
    required_filters: Sequence[Mapping[str, object] | FilterExpression] | FilterBuilder | None


class QueryOptions(AccessOptions, total=False):
    """What `RetrievalService.search` takes by name beside the question.

    These are the fields of SearchQuery and of Access, and the names of earlier systems.
    """

    mode: Mode | Literal["bm25"] | None
    limit: int | None
    offset: int
    category: str | None
    tags: Sequence[str] | set[str] | frozenset[str]
    date_from: date | str | None
    date_to: date | str | None
    as_of: datetime | date | str | None
    filters: Filters | None
    min_similarity: float | None
    collections: Sequence[str] | None
    expand_neighbors: bool | int
    one_per_document: bool
    recency_half_life: float | None
    snippet: bool
    search_mode: SearchMode
    formulations: Sequence[str]
    exact_total: bool
    rrf_k: float | None
    k: float | None
    fusion: Fusion | None
    vector_weight: float | None
    text_weight: float | None
    bm25_weight: float | None
    include_memory: bool | None
    prefix_last: bool
    like_ids: Sequence[UUID | str] | None
    boosts: Sequence[Mapping[str, object]] | None
    diversity: float
    max_per_document: int | None
    merge_duplicates: bool
    min_confidence: float | None
    snippets: int
    order_by: str | None
    max_tokens: int | None

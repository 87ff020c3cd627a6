"""Conditions that narrow a search, typed and built step by step, and the JSON form of values.

Unknown fields and operators, and values without a JSON form, are refused here by name. What else is
wrong, such as an operator that a field does not have, comes back as the database's refusal.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Self, TypeAlias, TypeVar, get_args
from uuid import UUID

from second_brain.errors import InvalidInputError

Value = TypeVar("Value")

Operator = Literal[
    "eq", "ne", "in", "not_in", "contains", "has_any", "gte", "gt", "lte", "lt", "between", "exists"
]
"""`contains` and `has_any` are for metadata only; gte, gt, lte, lt and between for dates, numbers
and metadata."""

OPERATORS: tuple[str, ...] = get_args(Operator)

COLUMNS = (
    "chunk_index",
    "collection",
    "created_at",
    "document_date",
    "document_id",
    "embedding_model",
    "knowledge_type",
    "language",
    "owner_id",
    "sensitivity",
    "source_id",
    "source_origin",
    "updated_at",
    "visibility",
)
"""The columns that a condition can name, those of `knowledge_internal.filter_columns()`."""


OTHER_NAMES = {
    "artifact_type": "knowledge_type",
    "date_range": "document_date",
    "document_type": "metadata.document_type",
    "source_category": "metadata.source_category",
    "source_file": "metadata.source_file",
    "time_range": "document_date",
}
"""Names that callers of earlier systems use for fields."""

_SAME_TYPES = (("markdown", "md"), ("text", "txt"), ("html", "htm"))
"""Names of one kind of document: `ingest` stores the file's ending, front matter any of them."""

_BOUNDS: Mapping[str, Operator] = {
    "from": "gte",
    "start": "gte",
    "gte": "gte",
    "gt": "gt",
    "to": "lte",
    "end": "lte",
    "lte": "lte",
    "lt": "lt",
}

_ORDERED = ("chunk_index", "created_at", "document_date", "updated_at")


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """One condition: `FilterExpression("metadata.tags", "contains", ["api"])`.

    `field` is a column (knowledge_type, document_date, …), `metadata.` and a path of keys, or one
    of `OTHER_NAMES`. Only `exists` may go without a value, and then asks for rows that have one.
    Raises InvalidInputError for an unknown field or operator.
    """

    field: str
    operator: Operator
    value: object = ...

    def __post_init__(self) -> None:
        """Refuse an unknown field or operator."""
        _check_names("filters", self.field, self.operator)

    def condition(self) -> dict[str, Any]:
        """Return the condition in JSON's types, as the database takes it.

        Dates, datetimes, UUIDs, enums, tuples, sets, decimals and arrays are converted. Raises
        InvalidInputError for a value without a JSON form.
        """
        condition: dict[str, Any] = {"field": self.field, "op": self.operator}
        if self.value is not ...:
            condition["value"] = json_form(self.value, f"filters: the value for {self.field}")
        return _renamed(condition)


class FilterBuilder:
    """Collects conditions, all of which must hold.

    Every method but `build` returns the builder: `FilterBuilder().add_category("note")
    .add_tags(["api"]).add_date_range(date(2026, 1, 1)).build()`.
    """

    def __init__(self) -> None:
        self._expressions: list[FilterExpression] = []

    def add(self, field: str, operator: Operator, value: object = ...) -> Self:
        """Add any condition."""
        self._expressions.append(FilterExpression(field, operator, value))
        return self

    def add_category(self, *categories: str | Iterable[str], field: str = "knowledge_type") -> Self:
        """Keep rows of one of these knowledge_types, or values of another field."""
        return self._add_one_of(field, categories)

    def add_source(self, *source_origins: str | Iterable[str]) -> Self:
        """Keep rows of one of these source_origins."""
        return self._add_one_of("source_origin", source_origins)

    def add_source_category(self, *categories: str | Iterable[str]) -> Self:
        """Keep rows with one of these values of metadata.source_category."""
        return self._add_one_of("source_category", categories)

    def add_source_file(self, *names: str | Iterable[str]) -> Self:
        """Keep rows with one of these values of metadata.source_file."""
        return self._add_one_of("source_file", names)

    def add_tags(self, tags: str | Iterable[str], *, field: str = "metadata.tags") -> Self:
        """Keep rows that have every one of the tags; no tags, no condition."""
        wanted = [tags] if isinstance(tags, str) else list(tags)
        return self.add(field, "contains", wanted) if wanted else self

    def add_any(self, names: str | Iterable[str], *, field: str = "metadata.tags") -> Self:
        """Keep rows that have any of the tags; with `field="metadata"`, any of the keys."""
        return self.add(field, "has_any", _listed(field, [names]))

    def add_date_range(
        self,
        start: date | str | None = None,
        end: date | str | None = None,
        *,
        field: str = "document_date",
        from_date: date | str | None = None,
        to_date: date | str | None = None,
    ) -> Self:
        """Keep rows dated from `start` to `end`, both included; None leaves that side open.

        In a field that holds times, such as created_at, a date is the whole day in UTC.
        `from_date` and `to_date` are other names of `start` and `end`.
        """
        start = given_once("start", start, "from_date", from_date)
        end = given_once("end", end, "to_date", to_date)
        day = _last_day(field, end)
        if day is not None:
            self.add(field, "lt", day + timedelta(days=1))
            end = None
        if start is not None and end is not None:
            return self.add(field, "between", [start, end])
        if start is not None:
            return self.add(field, "gte", start)
        return self if end is None else self.add(field, "lte", end)

    def add_metadata(self, path: str, value: object) -> Self:
        """Keep rows whose metadata has exactly this JSON value at the path (`team` or `a.b`)."""
        return self.add(f"metadata.{path}", "eq", value)

    def exclude_sensitivity(self, *labels: str | Iterable[str]) -> Self:
        """Leave out rows with one of these labels; rows without a label stay."""
        return self.add("sensitivity", "not_in", _listed("exclude_sensitivity", labels))

    def build(self) -> list[FilterExpression]:
        """Return the conditions, for `filters=` of a search."""
        return list(self._expressions)

    def _add_one_of(self, field: str, values: Iterable[str | Iterable[str]]) -> Self:
        wanted = _listed(field, values)
        if len(wanted) == 1:
            return self.add(field, "eq", wanted[0])
        return self.add(field, "in", wanted)


def given_once(name: str, value: Value, other_name: str, other: Value) -> Value:
    """Return the value of an argument with two names; raise InvalidInputError for two values."""
    if value is not None and other is not None:
        raise InvalidInputError(
            f"{name} and {other_name} are both given, and are names of one argument"
        )
    return other if value is None else value


def _listed(name: str, values: Iterable[str | Iterable[str]]) -> list[str]:
    """Return names given one by one or as lists; without any the condition would keep no row."""
    wanted = [name for value in values for name in ([value] if isinstance(value, str) else value)]
    if not wanted:
        raise InvalidInputError(f"filters: {name} is given no value, give at least one")
    return wanted


def _check_names(place: str, field: object, operator: object) -> None:
    if not isinstance(field, str) or not (
        field in COLUMNS
        or field in OTHER_NAMES
        or field == "metadata"
        or field.startswith("metadata.")
    ):
        raise InvalidInputError(
            f"{place}.field must be one of {', '.join(COLUMNS)} or metadata.<key>, "
            f"not {field!r:.100}"
        )
    if operator not in OPERATORS:
        raise InvalidInputError(
            f"{place}.op must be one of {', '.join(OPERATORS)}, not {operator!r:.100}"
        )


def _last_day(field: str, value: object) -> date | None:
    """Return the last day of a range of times, if it is a day and no time of day."""
    if field in ("document_date", "chunk_index") or not isinstance(value, date | str):
        return None
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            return None
    return None if isinstance(value, datetime) else value


Filters: TypeAlias = (
    FilterExpression
    | FilterBuilder
    | Mapping[str, object]
    | Sequence[FilterExpression | Mapping[str, object]]
)
"""What a search takes as filters: conditions that must all hold, as objects or as dicts
(`{"field": …, "op": …, "value": …}`), or one dict of columns and metadata keys with the values that
they equal: a key is a column where one has its name. There, dates, times and chunk_index also take
a range: `{"document_date": {"from": …, "to": …}}`."""


_OPERATORS_ELSEWHERE = {
    **{f"${name}": name for name in ("eq", "ne", "gt", "gte", "lt", "lte", "in", "exists")},
    "$between": "between",
    "$nin": "not_in",
    "$and": "the list itself",
}

REMEDY = (
    'Give {"team": "search"}, or a list of conditions such as '
    '[{"field": "metadata.page", "op": "in", "value": [1, 2]}].'
)


def refuse_operators(filters: Mapping[str, object], place: str = "filters") -> None:
    """Refuse a dict with an operator of other stores, such as `$in`: no row would equal it.

    Raises InvalidInputError, which names the operator that means the same.
    """
    for key, value in filters.items():
        for name in (key, *(value if isinstance(value, Mapping) else ())):
            if isinstance(name, str) and name and not name.startswith("$"):
                continue
            own = _OPERATORS_ELSEWHERE.get(str(name))
            remedy = f"In a list of conditions it is {own}. {REMEDY}" if own else REMEDY
            raise InvalidInputError(f"{place}: {name!r:.100} is no key of metadata", remedy=remedy)


def conditions(filters: Filters | None, name: str = "filters") -> Any:
    """Return filters as the JSON that the database takes.

    Raises InvalidInputError, with the argument's `name`, for a value without a JSON form.
    """
    if isinstance(filters, FilterBuilder):
        filters = filters.build()
    if isinstance(filters, FilterExpression):
        filters = [filters]
    if isinstance(filters, Mapping):
        refuse_operators(filters, name)
        if any(map(_is_converted, filters.items())):
            return listed_conditions(filters)
    if not isinstance(filters, list | tuple):
        return json_form(filters, name)
    return [
        one.condition()
        if isinstance(one, FilterExpression)
        else _condition(one, f"{name}[{place}]")
        for place, one in enumerate(filters)
    ]


def listed_conditions(filters: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the dict form of filters as a list, to which other conditions can be added.

    Raises InvalidInputError for an array, an object or null under a key of metadata with a dot,
    which only the dict form has.
    """
    refuse_operators(filters)
    listed: list[dict[str, object]] = []
    for key, value in json_form(filters, "filters").items():
        field = OTHER_NAMES.get(key, key)
        if field in _ORDERED and isinstance(value, dict):
            listed += _range(field, value)
        elif field in COLUMNS or key in OTHER_NAMES:
            listed.append(_renamed({"field": key, "op": "eq", "value": value}))
        elif key and "." not in key:
            listed.append({"field": f"metadata.{key}", "op": "eq", "value": value})
        elif isinstance(value, str | int | float):
            # For a value that is no array or object, containment is equality.
            listed.append({"field": "metadata", "op": "contains", "value": {key: value}})
        else:
            raise InvalidInputError(
                f"filters: {key!r:.100} has a dot, and further conditions are given too",
                remedy="Give a string, a number or a boolean for this key, or this key alone "
                "(with collections=[...]: without the condition of the service).",
            )
    return listed


def _is_converted(item: tuple[str, object]) -> bool:
    """Say whether the database would read a key of the dict form in another way."""
    key, value = item
    return key in OTHER_NAMES or (key in _ORDERED and isinstance(value, Mapping))


def _range(field: str, bounds: Mapping[str, object]) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = []
    for name, bound in bounds.items():
        if name not in _BOUNDS:
            raise InvalidInputError(
                f"filters: a range of {field} has the keys {', '.join(_BOUNDS)}, not {name!r:.100}"
            )
        day = _last_day(field, bound) if name in ("to", "end") else None
        if day is not None:
            listed.append(
                {"field": field, "op": "lt", "value": (day + timedelta(days=1)).isoformat()}
            )
        elif bound is not None:
            listed.append({"field": field, "op": _BOUNDS[name], "value": bound})
    return listed


def _condition(given: object, place: str) -> Any:
    condition = json_form(given, place)
    if isinstance(condition, dict):
        # A name that is missing is the database's to report.
        _check_names(
            place,
            condition.get("field", "metadata"),
            condition.get("op", condition.get("operator", "eq")),
        )
        condition = _renamed(condition)
    return condition


def _renamed(condition: dict[str, Any]) -> dict[str, Any]:
    """Return a condition with the field's own name, and a document_type with all its names."""
    field, value = condition.get("field"), condition.get("value")
    if field not in OTHER_NAMES:
        return condition
    renamed = {**condition, "field": OTHER_NAMES[field]}
    operator = condition.get("op", condition.get("operator", "eq"))
    listing = {"eq": "in", "in": "in", "ne": "not_in", "not_in": "not_in"}.get(operator)
    if field != "document_type" or listing is None:
        return renamed
    given = value if isinstance(value, list) else [value]
    same = [name for names in _SAME_TYPES for name in names if {*names} & {*map(str, given)}]
    if not same:
        return renamed
    return {"field": renamed["field"], "op": listing, "value": [*given, *same]}


def json_form(value: object, name: str) -> Any:
    """Return a copy of the value in JSON's types. Raises the errors of json_text."""
    return json.loads(json_text(value, name))


def json_text(value: object, name: str) -> str:
    """Return the value as JSON.

    Raises InvalidInputError, with the path of the part below `name`, where there is none: NaN, a
    lone surrogate, bytes.
    """
    try:
        return _dumped(value)
    except RecursionError as error:
        raise InvalidInputError(f"{name} is nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{_path_of_fault(value, name)}: {error}") from error


def _dumped(value: object) -> str:
    text = json.dumps(value, default=json_default, allow_nan=False, ensure_ascii=False)
    text.encode()
    return text


def _path_of_fault(value: object, name: str) -> str:
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, Mapping):
        parts = ((f"{name}.{key!s:.100}", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        parts = ((f"{name}[{place}]", part) for place, part in enumerate(value))
    for path, part in parts:
        try:
            _dumped(part)
        except (TypeError, ValueError):
            return _path_of_fault(part, path)
    return name


def json_default(value: object) -> Any:
    """Return what `json.dumps` writes for a value of another type (`default=`)."""
    if hasattr(value, "tolist"):  # numpy's and other libraries' arrays and numbers
        return value.tolist()
    if hasattr(value, "to_list"):  # pgvector.Vector
        return value.to_list()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Decimal) and Decimal(repr(float(value))) == value:
        return float(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")

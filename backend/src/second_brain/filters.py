"""Conditions that narrow a search, typed and built step by step, and the JSON form of values.

The database reads filters, and refuses by place what is wrong. Refused here are values without a
JSON form, and an unknown operator of a FilterExpression.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Self, TypeAlias, TypeVar
from uuid import UUID

from second_brain.errors import InvalidInputError
from second_brain.lists import COLUMNS as COLUMNS
from second_brain.lists import TAKES
from second_brain.lists import Operator as Operator

Value = TypeVar("Value")

# After an even number of backslashes.
_DEEPEST_PATH = 20
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

OPERATORS = tuple(TAKES)


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """One condition: `FilterExpression("metadata.tags", "contains", ["api"])`.

    `field` is a column (knowledge_type, document_date, …) or `metadata.` and a path of keys.
    `exists` without a value asks for rows that have one, as `is_not_null` does, which takes no
    value. Raises InvalidInputError for an unknown operator.
    """

    field: str
    operator: Operator
    value: object = ...

    def __post_init__(self) -> None:
        """Refuse an unknown operator."""
        if self.operator not in OPERATORS:
            raise InvalidInputError(
                f"filters.op must be one of {', '.join(OPERATORS)}, not {self.operator!r:.100}"
            )

    def condition(self) -> dict[str, Any]:
        """Return the condition in JSON's types, as the database takes it.

        Dates, datetimes, UUIDs, enums, tuples, sets, decimals and arrays are converted. Raises
        InvalidInputError for a value without a JSON form.
        """
        condition: dict[str, Any] = {"field": self.field, "op": self.operator}
        if self.value is not ...:
            condition["value"] = json_form(self.value, f"filters: the value for {self.field}")
        return condition


class FilterBuilder:
    """Collects conditions, all of which must hold.

    Every method but `build` returns the builder: `FilterBuilder().add_category("note")
    .add_tags(["api"]).add_date_range(date(2026, 1, 1)).build()`.
    """

    def __init__(self) -> None:
        self._expressions: list[FilterExpression | Mapping[str, object]] = []

    def add(self, field: str, operator: Operator, value: object = ...) -> Self:
        """Add any condition."""
        self._expressions.append(FilterExpression(field, operator, value))
        return self

    def add_group(self, op: Literal["any", "all", "not"], *parts: "Part") -> Self:
        """Keep rows that meet any of the parts, all of them, or not the one part.

        A part is a FilterExpression, a condition or group as a dict, or another builder, all of
        whose conditions it stands for.
        """
        if op == "not" and len(parts) != 1:
            raise InvalidInputError(f"filters: not takes one part, not {len(parts)}")
        self._expressions.append({op: parts[0] if op == "not" else list(parts)})
        return self

    def add_category(self, *categories: str | Iterable[str], field: str = "knowledge_type") -> Self:
        """Keep rows of one of these knowledge_types, or values of another field."""
        return self._add_one_of(field, categories)

    def add_source(self, *source_origins: str | Iterable[str]) -> Self:
        """Keep rows of one of these source_origins."""
        return self._add_one_of("source_origin", source_origins)

    def add_source_category(self, *categories: str | Iterable[str]) -> Self:
        """Keep rows with one of these values of metadata.source_category."""
        return self._add_one_of("metadata.source_category", categories)

    def add_source_file(self, *names: str | Iterable[str]) -> Self:
        """Keep rows with one of these values of metadata.source_file."""
        return self._add_one_of("metadata.source_file", names)

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

    def add_words(
        self, *, required: str | Iterable[str] = (), excluded: str | Iterable[str] = ()
    ) -> Self:
        """Keep rows whose text has every required word or phrase and none of the excluded ones."""
        if required:
            self.add("text", "has_all_words", _listed("required", [required]))
        if excluded:
            self.add("text", "has_no_word", _listed("excluded", [excluded]))
        return self

    def build(self) -> "list[FilterExpression | Mapping[str, object]]":
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


Part: TypeAlias = FilterExpression | FilterBuilder | Mapping[str, object]

Filters: TypeAlias = (
    FilterExpression
    | FilterBuilder
    | Mapping[str, object]
    | Sequence[FilterExpression | Mapping[str, object]]
)
"""What a search takes as filters: conditions that must all hold, as objects or as dicts
(`{"field": …, "op": …, "value": …}`), or a dict of columns and metadata keys with the values that
they equal: a key is a column where one has its name. There, dates, times and chunk_index also take
a range: `{"document_date": {"from": …, "to": …}}`. A list may have such dicts, too. Groups stand
where conditions do: `{"any": [...]}`, `{"all": [...]}`, `{"not": {...}}`."""


def conditions(filters: Filters | None, name: str = "filters") -> Any:
    """Return filters as the JSON that the database takes.

    Raises InvalidInputError, with the argument's `name`, for a value without a JSON form.
    """
    if isinstance(filters, FilterBuilder):
        filters = filters.build()
    if isinstance(filters, FilterExpression):
        filters = [filters]
    if not isinstance(filters, list | tuple):
        return json_form(filters, name)
    return [
        one.condition() if isinstance(one, FilterExpression) else json_form(one, f"{name}[{place}]")
        for place, one in enumerate(filters)
    ]


def listed(filters: Any) -> list[Any]:
    """Return filters in JSON's types as a list, to which conditions can be added."""
    return [filters] if isinstance(filters, dict) else list(filters or ())


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
    if _NUL.search(text):
        raise ValueError("a text has the character NUL, which Postgres cannot store")
    return text


def _path_of_fault(value: object, name: str) -> str:
    # Values can contain themselves.
    for _ in range(_DEEPEST_PATH):
        parts: Iterable[tuple[str, object]] = ()
        if isinstance(value, Mapping):
            parts = ((f"{name}.{key!s:.100}", part) for key, part in value.items())
        elif isinstance(value, list | tuple):
            parts = ((f"{name}[{place}]", part) for place, part in enumerate(value))
        faulty = next((one for one in parts if not _is_json(one[1])), None)
        if faulty is None:
            break
        name, value = faulty
    return name


def _is_json(value: object) -> bool:
    try:
        _dumped(value)
    except (RecursionError, TypeError, ValueError):
        return False
    return True


def json_default(value: object) -> Any:
    """Return what `json.dumps` writes for a value of another type (`default=`)."""
    if isinstance(value, FilterExpression):
        return value.condition()
    if isinstance(value, FilterBuilder):
        return {"all": value.build()}
    if hasattr(value, "tolist"):  # numpy's and other libraries' arrays and numbers
        return value.tolist()
    if hasattr(value, "to_list"):  # pgvector's
        return value.to_list()
    if isinstance(value, date) and value == value:  # pandas' NaT is none
        # Texts are compared, so times with an offset are written in one zone.
        if isinstance(value, datetime) and value.tzinfo is not None:
            value = value.astimezone(UTC)
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

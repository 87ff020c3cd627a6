"""The filters of frameworks as conditions of a search.

The frameworks have trees of conditions, joined by and, or and not. A search takes a list of
conditions that must all hold. What has no such form is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from second_brain.errors import InvalidInputError
from second_brain.filters import (
    REMEDY,
    FilterBuilder,
    FilterExpression,
    Filters,
    Operator,
    refuse_operators,
)

Joint = Literal["and", "or", "not"]
"""`not`: at least one of the conditions does not hold."""

_NEGATED: Mapping[Operator, Operator] = {
    "eq": "ne",
    "ne": "eq",
    "in": "not_in",
    "not_in": "in",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Conditions that are joined."""

    joint: Joint
    members: Sequence["Group | FilterExpression"]


def metadata_filters(given: Filters | None) -> Filters | None:
    """Return filters in which the keys of a dict are keys of metadata, never columns.

    Raises InvalidInputError for what is neither a dict of values nor conditions: operators of other
    stores, such as `$in`, and functions would match nothing, or everything.
    """
    if isinstance(given, Mapping):
        return [equals(key, value) for key, value in given.items()]
    if given is None or isinstance(given, list | tuple | FilterExpression | FilterBuilder):
        return given
    raise InvalidInputError(
        f"filters must be a dict of metadata keys or a list of conditions, "
        f"not {type(given).__name__}",
        remedy=REMEDY,
    )


def equals(key: str, value: Any) -> FilterExpression:
    """Return the condition that the metadata has this value under this key.

    Raises InvalidInputError for a key without such a condition, and for operators of other stores.
    """
    refuse_operators({key: value})
    if "." not in key:
        return FilterExpression(f"metadata.{key}", "eq", value)
    # In a field, the dot is a path. Containment of a scalar is equality.
    if isinstance(value, str | int | float):
        return FilterExpression("metadata", "contains", {key: value})
    raise InvalidInputError(
        f"filters: {key!r:.100} has a dot, and its value is {type(value).__name__}",
        remedy="Give a text, a number or a boolean; for the path of keys, a list of conditions.",
    )


def all_of(tree: Group | FilterExpression) -> list[FilterExpression]:
    """Return conditions that must all hold, for a tree of conditions.

    Raises InvalidInputError for a tree without this form: `or` between different fields.
    """
    return _listed(tree, is_negated=False)


def _listed(tree: Group | FilterExpression, *, is_negated: bool) -> list[FilterExpression]:
    if isinstance(tree, FilterExpression):
        return [_negated(tree) if is_negated else tree]
    if tree.joint == "not":
        return _listed(Group("and", tree.members), is_negated=not is_negated)
    parts = [_listed(one, is_negated=is_negated) for one in tree.members]
    if len(parts) == 1 or (tree.joint == "and") is not is_negated:
        return [condition for part in parts for condition in part]
    return [_either(parts)]


def _negated(condition: FilterExpression) -> FilterExpression:
    if condition.operator == "exists":
        return FilterExpression(condition.field, "exists", condition.value is False)
    if condition.operator not in _NEGATED:
        raise InvalidInputError(
            f"filters: not ({condition.field} {condition.operator} ...) cannot be searched",
            remedy=f"Negate only {', '.join(_NEGATED)} and exists.",
        )
    return FilterExpression(condition.field, _NEGATED[condition.operator], condition.value)


def _either(parts: Sequence[Sequence[FilterExpression]]) -> FilterExpression:
    """Return one condition for several of which one must hold."""
    values: list[Any] = []
    fields: set[str] = set()
    for part in parts:
        (only,) = part if len(part) == 1 else (None,)
        if only is None or only.operator not in ("eq", "in"):
            fields.clear()
            break
        fields.add(only.field)
        values += [only.value] if only.operator == "eq" else _elements(only.value)
    if len(fields) != 1:
        raise InvalidInputError(
            "filters: `or` must join equal values of one field",
            remedy="Search once for each alternative.",
        )
    return FilterExpression(fields.pop(), "in", values)


def _elements(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]

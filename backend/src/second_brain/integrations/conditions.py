"""The filters of frameworks as conditions of a search.

The frameworks have trees of conditions, joined by and, or and not. A search takes a list of
conditions that must all hold. What has no such form is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from second_brain.errors import InvalidInputError
from second_brain.filters import FilterExpression, Filters, Operator

Joint = Literal["and", "or", "not"]
"""`not`: at least one of the conditions does not hold."""

_NEGATED: Mapping[Operator, Operator] = {
    "eq": "ne",
    "ne": "eq",
    "in": "not_in",
    "not_in": "in",
}

_DOLLAR: Mapping[str, Operator] = {
    "$eq": "eq",
    "$ne": "ne",
    "$in": "in",
    "$nin": "not_in",
    "$gt": "gt",
    "$gte": "gte",
    "$lt": "lt",
    "$lte": "lte",
    "$between": "between",
    "$exists": "exists",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Conditions that are joined."""

    joint: Joint
    members: Sequence["Group | FilterExpression"]


def metadata_filters(given: Filters | None) -> Filters | None:
    """Return filters in which the keys of a dict are keys of metadata, never columns."""
    if not isinstance(given, Mapping) or {"field", "op"} <= given.keys():
        return given
    return all_of(_tree(given))


def _tree(given: Mapping[str, Any]) -> Group:
    """Read a dict of keys of metadata, with the `$` operators of LangChain's other stores."""
    members: list[Group | FilterExpression] = []
    for key, value in ((str(key), value) for key, value in given.items()):
        if key in ("$and", "$or", "$not"):
            parts = [value] if isinstance(value, Mapping) else value
            if not isinstance(parts, list | tuple) or not all(
                isinstance(one, Mapping) for one in parts
            ):
                raise InvalidInputError(f"filters: {key} must have a list of dicts, not {value!r}")
            joint: Joint = "or" if key == "$or" else "and" if key == "$and" else "not"
            members.append(Group(joint, [_tree(one) for one in parts]))
        elif key.startswith("$"):
            raise _unknown(key)
        elif isinstance(value, Mapping) and any(str(one).startswith("$") for one in value):
            for name, operand in value.items():
                if name not in _DOLLAR:
                    raise _unknown(str(name))
                members.append(condition(key, _DOLLAR[name], operand))
        else:
            members.append(condition(key, "eq", value))
    return Group("and", members)


def _unknown(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"filters: there is no operator {name}",
        remedy=f"Use one of {', '.join(_DOLLAR)}, $and, $or and $not.",
    )


def condition(key: str, operator: Operator, value: Any) -> FilterExpression:
    """Return the condition on the value of the metadata under this key.

    Raises InvalidInputError for a key with a dot, which a condition reads as a path of keys.
    """
    if "." not in key:
        return FilterExpression(f"metadata.{key}", operator, value)
    # Containment of a scalar is equality.
    if operator == "eq" and isinstance(value, str | int | float):
        return FilterExpression("metadata", "contains", {key: value})
    raise InvalidInputError(
        f"filters: {key!r:.100} has a dot, so it can only equal a text, a number or a boolean",
        remedy="Where the dot stands for a path of keys, give a list of conditions: "
        '[{"field": "metadata.a.b", "op": "in", "value": [1, 2]}].',
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

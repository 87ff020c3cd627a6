"""The filters of frameworks as conditions of a search: trees, joined by and, or and not."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from second_brain.errors import InvalidInputError
from second_brain.filters import FilterExpression, Filters, Operator, Part

Joint = Literal["and", "or", "not"]
"""`not`: at least one of the conditions does not hold."""

Group = Mapping[str, object]

_JOINTS: Mapping[str, Joint] = {"$and": "and", "$or": "or", "$not": "not"}

# In a list of conditions, and in other systems.
_GROUPS = ("any", "all", "not", "and", "or")

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


def metadata_filters(given: Filters | None) -> Filters | None:
    """Return filters in which the keys of a dict are keys of metadata, never columns."""
    if not isinstance(given, Mapping) or ("field" in given and {"op", "operator"} & given.keys()):
        return given
    return all_of(_tree(given))


def _tree(given: Mapping[str, Any]) -> Group:
    """Read a dict of keys of metadata, with the `$` operators of LangChain's other stores."""
    members: list[Part] = []
    for key, value in ((str(key), value) for key, value in given.items()):
        if key in _JOINTS:
            parts = [value] if isinstance(value, Mapping) else value
            if not isinstance(parts, list | tuple) or not all(
                isinstance(one, Mapping) for one in parts
            ):
                raise InvalidInputError(f"filters: {key} must have a list of dicts, not {value!r}")
            members.append(joined(_JOINTS[key], [_tree(one) for one in parts]))
        elif key.startswith("$") or (key.lower() in _GROUPS and _has_conditions(value)):
            raise _unknown(key)
        elif isinstance(value, Mapping) and any(str(one).startswith("$") for one in value):
            for name, operand in value.items():
                if name not in _DOLLAR:
                    raise _unknown(str(name))
                members.append(condition(key, _DOLLAR[name], operand))
        else:
            members.append(condition(key, "eq", value))
    return joined("and", members)


def _has_conditions(value: object) -> bool:
    parts = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(one, Mapping) for one in parts)


def _unknown(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"filters: there is no operator {name}",
        remedy=f"Use one of {', '.join(_DOLLAR)}, $and, $or and $not.",
    )


def condition(key: str, operator: Operator, value: Any) -> Part:
    """Return the condition on the value of the metadata under this key.

    A key with a dot is a path after `metadata.`, as in other stores. Any other is compared by
    containment, because a condition reads it as a path, too. Raises InvalidInputError where
    containment is not the same.
    """
    if "." not in key or key.startswith("metadata."):
        return FilterExpression(f"metadata.{key.removeprefix('metadata.')}", operator, value)
    values = [value] if operator in ("eq", "ne") else value
    is_list = operator in ("eq", "ne", "in", "not_in") and isinstance(values, list | tuple)
    if is_list and values and all(isinstance(one, str | int | float) for one in values):
        # Containment of a scalar is equality.
        either = {"any": [FilterExpression("metadata", "contains", {key: one}) for one in values]}
        return either if operator in ("eq", "in") else {"not": either}
    raise InvalidInputError(
        f"filters: {key!r:.100} has a dot, so it can only equal texts, numbers or booleans",
        remedy="Where the dot stands for a path of keys, give a list of conditions: "
        '[{"field": "metadata.a.b", "op": "in", "value": [1, 2]}].',
    )


def joined(joint: Joint, members: Sequence[Part]) -> Group:
    """Return the group of these conditions."""
    if joint == "not":
        return {"not": {"all": list(members)}}
    return {"any" if joint == "or" else "all": list(members)}


def all_of(tree: Part) -> list[Any]:
    """Return conditions and groups that must all hold, for a tree of them."""
    members = tree.get("all") if isinstance(tree, Mapping) else None
    return list(members) if isinstance(members, list) else [tree]

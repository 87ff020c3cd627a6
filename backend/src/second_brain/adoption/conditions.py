"""Conditions of an old function that narrow the search.

What a drop-in shows meets all of them as they are written, so one that narrows nothing costs hits,
and shows no other row. knowledge_internal.adopted_filters makes filters of what is written here.
"""

from sqlglot import exp

from second_brain.adoption.queries import (
    Leaf,
    Query,
    alias_of,
    conditions_of,
    literal,
    name_of,
    relations_of,
    table_of,
    text_of,
)

_JSON_TEXT = "text of JSON"
# The types of columns that a filter compares as the condition does, each with that of the value.
_VALUES = {
    _JSON_TEXT: "text",
    **dict.fromkeys(("text", "varchar", "enum"), "text"),
    **dict.fromkeys(("int2", "int4", "int8", "numeric"), "numeric"),
    "uuid": "uuid",
}
_MOST_KEYS = 1000  # of a list in a filter


def narrowing(query: Query) -> tuple[list[str], str, bool]:
    """Return SQL of the filters that narrow a search, of the only keys, and whether these are all.

    Without a query of the keys of all rows that meet the conditions, it is empty.
    """
    filters: list[list[str]] = []
    keys: list[str] = []
    guards: list[str] = []
    for leaf in query.leaves:
        found = [(one, _filter(one, query, leaf)) for one in leaf.conditions]
        filters.append([one for _, one in found if one])
        values = [text_of(one) for one, _ in found if _is_value(one, query, leaf)]
        guards.append(" and ".join(f"({one})" for one in values))
        is_whole = all(
            one or _is_join(condition, query, leaf) or _is_value(condition, query, leaf)
            for condition, one in found
        )
        keys.append("" if is_whole else _keys(query, leaf))
        if not is_whole and not keys[-1]:
            return [], "", False
    # A row of the result can come from any leaf.
    shared = [one for one in dict.fromkeys(filters[0]) if all(one in other for other in filters)]
    if all(guards):
        # A value is cast only where the old query would cast it.
        guard = " or ".join(dict.fromkeys(guards))
        shared = [f"case when {guard} then {one} end" for one in shared]
    union = "\n union ".join(dict.fromkeys(keys))
    limited = f"({union}\n limit {_MOST_KEYS + 1})" if all(keys) else ""
    return shared, limited, not any(keys)


def _keys(query: Query, leaf: Leaf) -> str:
    """Return the query of the keys of all rows that meet the conditions of a leaf."""
    if query.names_with(leaf.select):
        return ""
    select = leaf.select.copy()
    for one in list(conditions_of(select)):
        if one not in leaf.conditions:
            one.replace(exp.true())
    for name in ("order", "limit", "offset", "distinct"):
        select.set(name, None)
    key = exp.column(query.source.key, table=leaf.alias, quoted=True)
    select.set("expressions", [exp.cast(key, "text")])
    return text_of(select)


def _filter(condition: exp.Expr, query: Query, leaf: Leaf) -> str:
    """Return SQL of a JSON object that all rows meet that meet the condition, empty for none."""
    bare = condition.unnest()
    if isinstance(bare, exp.Or):
        # "argument is null or column = argument": null where the first part is true.
        for always, rest in ((bare.this, bare.expression), (bare.expression, bare.this)):
            if _is_value(always, query, leaf) and (found := _filter(rest, query, leaf)):
                return f"case when ({text_of(always)}) is not true then {found} end"
        return ""
    column, value = bare.this, bare.args.get("expression")
    operator, is_list = "in", True
    if isinstance(bare, exp.In):
        inner, listed = bare.args.get("query"), bare.args.get("expressions")
        value = exp.Anonymous(this="array", expressions=[inner.unnest().copy()]) if inner else None
        value = exp.Array(expressions=[one.copy() for one in listed]) if listed else value
    elif isinstance(bare, exp.ArrayContainsAll):
        operator, is_list = "contains", False
    elif isinstance(bare, exp.EQ) and isinstance(value, exp.Any):
        value = value.this.unnest()
    elif isinstance(bare, exp.EQ):
        is_list = False
        if not _column(column, query, leaf)[1]:
            column, value = value, column
    else:
        return ""
    name, kind = _column(column, query, leaf)
    types = {"metadata": "jsonb"} if operator == "contains" else _VALUES
    if kind not in types or not isinstance(value, exp.Expr) or not _is_value(value, query, leaf):
        return ""
    text = f"to_jsonb(({text_of(value)})::{types[kind]}{'[]' * is_list})"
    given = f"'field', {literal(name)}, 'op', '{operator}', 'value', {text}"
    given += ", 'is_text', true" * (kind == _JSON_TEXT)
    return f"jsonb_build_object({given})"


def _column(node: exp.Expr, query: Query, leaf: Leaf) -> tuple[str, str]:
    """Return the field and the type of a column that metadata has, empty for others.

    Of `metadata ->> 'key'`, the type is _JSON_TEXT.
    """
    node = node.unnest()
    if isinstance(node, exp.JSONExtractScalar):
        path = node.expression.expressions if node.expression else []
        name = str(path[1].this) if len(path) == 2 and isinstance(path[1], exp.JSONPathKey) else ""
        is_whole = _column(node.this, query, leaf)[1] == "metadata" and name and "." not in name
        return (f"metadata.{name}", _JSON_TEXT) if is_whole else ("", "")
    name = name_of(node)
    if not isinstance(node, exp.Column) or table_of(node) not in ("", leaf.alias) or "." in name:
        return "", ""
    kind = query.source.carried.get(name, "")
    return "metadata" if kind == "metadata" else f"metadata.{name}", kind


def _is_value(node: exp.Expr, query: Query, leaf: Leaf) -> bool:
    """Return whether an expression has one value for the whole call.

    It reads no column of the leaf; a query in it reads its own tables alone.
    """
    if query.names_with(node) or (node.find(exp.Window) and not node.find(exp.From)):
        return False
    known = query.source.tables
    outer = {alias_of(one): name_of(one) for one in relations_of(leaf.select)}

    def is_of(column: exp.Column, relations: dict[str, str]) -> bool:
        table, name = table_of(column), name_of(column)
        return table in relations or (
            not table and any(name in known.get(one, ()) for one in relations.values())
        )

    for column in node.find_all(exp.Column):
        own: dict[str, str] = {}
        select = column.parent_select
        while select is not None and select is not leaf.select:
            own |= {alias_of(one): name_of(one) for one in relations_of(select)}
            select = select.parent_select
        is_argument = name_of(column) in query.arguments
        if not is_of(column, own) and (is_of(column, outer) or not is_argument):
            return False
    return True


def _is_join(condition: exp.Expr, query: Query, leaf: Leaf) -> bool:
    """Return whether a condition compares columns of two relations alone."""
    bare = condition.unnest()
    sides = (bare.this, bare.args.get("expression"))
    return isinstance(bare, exp.EQ) and all(
        isinstance(one, exp.Column) and not _is_value(one, query, leaf) for one in sides
    )

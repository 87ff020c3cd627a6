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

# The types whose values a filter compares as the condition does, each with the type of its value.
# Not so: dates, citext, char(n), float4, arrays, and the order of texts and enums.
_VALUES = {
    **dict.fromkeys(("text", "varchar", "enum"), "text"),
    **dict.fromkeys(("int2", "int4", "int8", "numeric"), "numeric"),
    **{name: name for name in ("uuid", "bool", "float8", "timestamp", "timestamptz")},
}
_COMPARED: dict[type[exp.Expr], str] = {
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.GT: "gt",
    exp.LT: "lt",
    exp.GTE: "gte",
    exp.LTE: "lte",
    exp.ArrayOverlaps: "has_any",
    exp.ArrayContainsAll: "contains",
}
_MIRRORED = {"gt": "lt", "lt": "gt", "gte": "lte", "lte": "gte", "contains": ""}
_TIMES = ("timestamp", "timestamptz")
_JSON_TEXT = "text of JSON"
_MOST_GROUPS = 4  # in one another
_MOST_KEYS = 1000  # of a list in a filter


def narrowing(query: Query) -> tuple[list[str], bool]:
    """Return SQL of the conditions that narrow a search, and whether these are all."""
    listed: list[list[str]] = []
    keys: list[str] = []
    is_whole = True
    for leaf in query.leaves:
        found = {one: _condition(one, query, leaf) for one in leaf.conditions}
        listed.append([one for one in found.values() if one])
        rest = [
            one
            for one in leaf.conditions
            if not found[one]
            and not _is_join(one, query, leaf)
            and _value(one, query, leaf) is None
        ]
        keys.append(_keys(query, leaf) if rest else "")
        is_whole = is_whole and not rest
    # A row of the result can come from any leaf.
    shared = [one for one in listed[0] if all(one in other for other in listed)]
    if all(keys):
        names = f"{literal(query.source.adoption)} || '/' || listed.key"
        union = "\n union ".join(dict.fromkeys(keys))
        rows = f"({union}\n limit {_MOST_KEYS + 1}) as listed (key)"
        shared.append(_object("external_key", "in", f"array(select {names} from {rows})"))  # noqa: S608
    return list(dict.fromkeys(shared)), is_whole


def _keys(query: Query, leaf: Leaf) -> str:
    """Return the query of the documents' keys of all rows that meet the conditions of a leaf."""
    if query.source.document is None or query.names_with(leaf.select):
        return ""
    select = leaf.select.copy()
    for one in list(conditions_of(select)):
        if one not in leaf.conditions:
            one.replace(exp.true())
    for name in ("order", "limit", "distinct"):
        select.set(name, None)
    key = exp.column(query.source.document, table=leaf.alias, quoted=True)
    select.set("expressions", [exp.cast(key, "text")])
    return text_of(select)


def _condition(
    condition: exp.Expr, query: Query, leaf: Leaf, groups: int = _MOST_GROUPS
) -> str | None:
    """Return SQL of a JSON object that all rows meet that meet the condition, None for none."""
    bare = condition.unnest()
    if isinstance(bare, exp.And | exp.Or):
        if not groups:
            return None
        parts = list(bare.flatten())
        # "argument is null or column = argument": without the value there is no filter.
        always = [one and f"({one}) is true" for one in (_value(x, query, leaf) for x in parts)]
        always = [None for _ in parts] if isinstance(bare, exp.And) else always
        rest = [x for x, one in zip(parts, always, strict=True) if not one]
        found = [one for x in rest if (one := _condition(x, query, leaf, groups - 1))]
        if not found or (isinstance(bare, exp.Or) and len(found) < len(rest)):
            return None
        word = "all" if isinstance(bare, exp.And) else "any"
        text = f"jsonb_build_object('{word}', jsonb_build_array({', '.join(found)}))"
        text = found[0] if len(found) == 1 else text
        if any(always):
            text = f"case when {' or '.join(filter(None, always))} then null else {text} end"
        return text
    is_not = isinstance(bare, exp.Not) or bool(bare.args.get("negate"))
    bare = bare.this.unnest() if isinstance(bare, exp.Not) else bare
    if isinstance(bare, exp.Is):
        if isinstance(bare.expression, exp.Null):
            name, kind = _column(bare.this, query, leaf)
            operator = "is_not_null" if is_not else "is_null"
            is_own = kind not in ("", "metadata", _JSON_TEXT)
            return _object(f"metadata.{name}", operator) if is_own else None
        if is_not:
            return None  # Null is not true, and not false.
        bare = exp.EQ(this=bare.this.copy(), expression=bare.expression.copy())
    elif isinstance(bare, exp.Column):
        bare = exp.EQ(this=bare.copy(), expression=exp.true())
    if is_not and not isinstance(bare, exp.In):
        if not isinstance(bare, exp.EQ) or not isinstance(bare.expression, exp.Boolean):
            return None
        bare = exp.EQ(this=bare.this.copy(), expression=exp.convert(not bare.expression.this))
    return _comparison(bare, query, leaf, is_not=is_not)


def _comparison(bare: exp.Expr, query: Query, leaf: Leaf, *, is_not: bool) -> str | None:
    column, value = bare.this, bare.args.get("expression")
    operator = _COMPARED.get(type(bare), "")
    if isinstance(bare, exp.In):
        operator, value = "not_in" if is_not else "in", _listed(bare)
    elif not isinstance(value, exp.Expr) or not isinstance(column, exp.Expr):
        return None
    elif not _column(column, query, leaf)[1]:
        column, value, operator = value, column, _MIRRORED.get(operator, operator)
    if isinstance(value, exp.Any):
        operator, value = {"eq": "in"}.get(operator, ""), value.this.unnest()
    elif isinstance(value, exp.Anonymous) and _name(value) == "all":
        operator, value = {"ne": "not_in"}.get(operator, ""), value.expressions[0]
    name, kind = _column(column, query, leaf)
    if value is None or not operator or not kind or ("." in name and kind != _JSON_TEXT):
        return None
    parts = value.expressions if _name(value) == "coalesce" else []
    keeps_all = len(parts) == 2 and parts[1] == column
    text = _value(parts[0] if keeps_all else value, query, leaf)
    if text is None:
        return None
    field = "metadata" if kind == "metadata" else f"metadata.{name}"
    is_list = operator in ("in", "not_in", "has_any")
    type_ = _VALUES.get(kind)
    if operator == "contains":
        type_ = "jsonb" if kind in ("json", "jsonb", "metadata") else None
    elif operator == "has_any":
        type_ = "text" if kind in ("_text", "_varchar") else None
    elif kind == _JSON_TEXT:
        type_, operator = "text", {"eq": "is_text", "in": "is_text"}.get(operator, "")
    elif (type_ in _TIMES and is_list) or (type_ in ("text", "uuid") and operator in _MIRRORED):
        type_ = None
    if type_ is None or not operator:
        return None
    text = f"({text})::{type_}{'[]' * is_list}"
    # In metadata, a time is a text in UTC.
    text += " at time zone 'UTC'" * (type_ == "timestamptz")
    return _object(field, operator, text, keeps_all=keeps_all)


def _object(field: str, operator: str, value: str = "", *, keeps_all: bool = False) -> str:
    given = f"'field', {literal(field)}, 'op', '{operator}'"
    given += f", 'value', to_jsonb({value})" * bool(value) + ", 'keeps_all', true" * keeps_all
    return f"jsonb_build_object({given})"


def _listed(node: exp.In) -> exp.Expr | None:
    """Return the values of a list, or those that a query returns, as an array."""
    inner = node.args.get("query")
    if inner is not None:
        return exp.Anonymous(this="array", expressions=[inner.unnest().copy()])
    values = node.args.get("expressions")
    return exp.Array(expressions=[one.copy() for one in values]) if values else None


def _column(node: exp.Expr, query: Query, leaf: Leaf) -> tuple[str, str]:
    """Return the name and the type of a column that metadata has, empty for others.

    Of `column ->> 'key'`, the path, and _JSON_TEXT as type.
    """
    keys: list[str] = []
    while isinstance(inner := node.unnest(), exp.JSONExtract | exp.JSONExtractScalar):
        if not keys and not isinstance(inner, exp.JSONExtractScalar):
            break
        path = inner.expression.expressions if inner.expression else []
        names = [one.this for one in path if isinstance(one, exp.JSONPathKey)]
        keys[:0] = names if len(names) + 1 == len(path) else [""]
        node = inner.this
    node = node.unnest()
    if keys:
        name, kind = _column(node, query, leaf)
        is_known = kind in ("json", "jsonb", "metadata") and all(
            isinstance(one, str) and one and "." not in one for one in keys
        )
        path = ".".join(keys if kind == "metadata" else [name, *keys])
        return (path, _JSON_TEXT) if is_known else ("", "")
    if isinstance(node, exp.Cast):
        name, kind = _column(node.this, query, leaf)
        cast = text_of(node.args["to"]).lower()
        # The text of a text, of an enum and of a UUID is what metadata has.
        is_text = kind in ("text", "varchar", "enum", "uuid") and cast in ("text", "varchar")
        return (name, "text") if is_text else (name, kind if cast == kind else "")
    is_own = isinstance(node, exp.Column) and table_of(node) in ("", leaf.alias)
    name = name_of(node) if is_own else ""
    return name, query.source.carried.get(name, "")


def _value(node: exp.Expr, query: Query, leaf: Leaf) -> str | None:
    """Return an expression that has one value for the whole call as SQL, None for others.

    It reads no column of the leaf; a query in it reads its own tables alone.
    """
    if query.names_with(node) or (node.find(exp.Window) and not node.find(exp.From)):
        return None
    known = query.source.tables
    outer = {alias_of(one): name_of(one) for one in relations_of(leaf.select)}
    for column in node.find_all(exp.Column):
        own: dict[str, str] = {}
        select = column.parent_select
        while select is not None and select is not leaf.select:
            own |= {alias_of(one): name_of(one) for one in relations_of(select)}
            select = select.parent_select
        name, table = name_of(column), table_of(column)
        if table in own or (not table and any(name in known.get(one, ()) for one in own.values())):
            continue
        is_outer = table in outer or (
            not table and any(name in known.get(one, ()) for one in outer.values())
        )
        if is_outer or name not in query.arguments:
            return None
    return text_of(node)


def _is_join(condition: exp.Expr, query: Query, leaf: Leaf) -> bool:
    """Return whether a condition compares columns of two relations alone."""
    bare = condition.unnest()
    sides = (bare.this, bare.args.get("expression"))
    return isinstance(bare, exp.EQ) and all(
        isinstance(one, exp.Column) and _value(one, query, leaf) is None for one in sides
    )


def _name(node: exp.Expr | None) -> str:
    return node.name.lower() if isinstance(node, exp.Anonymous) else ""

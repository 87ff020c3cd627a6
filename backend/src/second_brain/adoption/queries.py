"""The query of a searching function, read: its clauses, its conditions, the filters of them.

A parser (sqlglot) reads the SQL; nothing here asks the database.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from psycopg import sql
from sqlglot import exp, parse
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.parsers.postgres import PostgresParser

from second_brain.services.install import Install

QUOTED = r"(?<![\w$])[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""
"""The pattern of a quoted literal or name."""
_LITERAL = QUOTED + r"|(?<![\w$])\$(\w*)\$.*?\$\2\$"
_COMMENT = r"--[^\n]*|/\*.*?\*/"
# Operators of extensions that other databases do not have, or read as something else.
_OPERATOR = r"<[=#~+%-]>|<<?->>?|<<?%|%>>?|@@@?"
_LEXED = re.compile(
    rf"({_LITERAL}|operator\s*\([^)]*\))|({_COMMENT})|({_OPERATOR})", re.DOTALL | re.IGNORECASE
)
# A statement before the query sets a variable or a setting.
_QUERY = re.compile(
    r"\s*(?:(?:#variable_conflict\s+use_column\s+)?(?:declare\s+(?P<declared>.*?)\s*)?"
    r"begin\s+(?:atomic|(?P<set>(?:(?!return\b)[^;]*;\s*)*?)return\s+query)\s+(?P<text>.*?);?"
    r"(?:\s*return\s*;)?\s*end\s*;?|(?P<sql>(?:select|with)\b.*))\s*",
    re.DOTALL | re.IGNORECASE,
)
_SETTING = re.compile(
    r"\s*(?:set\s+(?:local\s+)?[\w.]+\s*(?:=|to)\s*[^;]*"
    r"|perform\s+(?:pg_catalog\.)?set_config\s*\([^()]*(?:\([^()]*\)[^()]*)*\))\s*",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(
    r"\s*(?P<name>\w+)\s*(?:(?:constant\s+)?(?P<type>[\w. ()\[\],]+?)(?:\s+not\s+null)?)?\s*"
    r"(?:(?::=|=|\bdefault\b)\s*(?P<value>.+))?\s*",
    re.DOTALL | re.IGNORECASE,
)
_EXECUTED = re.compile(
    r"execute\s+(?:format\s*\(\s*)?'((?:[^'%]|'')*)'\s*\)?(?:\s+using\s+(.*))?",
    re.DOTALL | re.IGNORECASE,
)
_TEXT_OPERATORS = ("@@", "@@@", "<%", "%>", "<<%", "%>>")
_TEXT_FUNCTIONS = re.compile(r"ts_rank|tsquery|similarity$", re.IGNORECASE)
_WORDS_OF = re.compile(r"to_tsvector|.*similarity", re.IGNORECASE)
_ABOUT_CLAIMS = re.compile(r"\bauth\.(uid|jwt)\b|request\.jwt\.claim", re.IGNORECASE)
_ABOUT_ROWS = re.compile(r"\b(select|exists|current_\w+|session_user)\b|\bauth\.", re.IGNORECASE)
_PLAIN_OPERATOR = re.compile(r"OPERATOR\(([^\w.()]+)\)")
_OF_SCORES = re.compile(r"rank|score|similarity|distance|\brn\b|row_num", re.IGNORECASE)
_COMPARED: dict[type[exp.Expr], str] = {
    exp.EQ: "eq",
    exp.NullSafeEQ: "eq",
    exp.NEQ: "ne",
    exp.GT: "gt",
    exp.GTE: "gte",
    exp.LT: "lt",
    exp.LTE: "lte",
}
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.EQ,
    exp.NullSafeEQ: exp.NullSafeEQ,
    exp.NEQ: exp.NEQ,
    exp.GT: exp.LT,
    exp.LT: exp.GT,
    exp.GTE: exp.LTE,
    exp.LTE: exp.GTE,
    exp.ArrayOverlaps: exp.ArrayOverlaps,
}
JSON_TEXT = "text of JSON"
_JSON_SCALAR = r"^(-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?|true|false)$"
MOST_VALUES = 1000
"""Of a list in a filter."""
_NOT_KEPT = (exp.Except, exp.Intersect, exp.Having, exp.Insert, exp.Update, exp.Delete)
# The types whose values a filter compares as the condition does, each with the type of its value.
# Not so: citext, char(n), float4, arrays, and the order of texts and enums.
_VALUES = {
    **dict.fromkeys(("text", "varchar", "enum"), "text"),
    **dict.fromkeys(("int2", "int4", "int8", "numeric"), "numeric"),
    **{name: name for name in ("uuid", "bool", "float8", "date", "timestamp", "timestamptz")},
}
_UNORDERED = ("text", "uuid")


class _Dialect(Postgres):
    class Parser(PostgresParser):
        # Calls stay as they are written.
        FUNCTIONS: ClassVar[dict[str, Any]] = {}

        def _parse_interval(self, *_: object, **__: object) -> None:
            """Leave intervals to casts: what is read as one keeps a number and a unit only."""


def literal(value: str) -> str:
    """Return a text as SQL."""
    return sql.Literal(value).as_string(None)


def quoted(name: str) -> str:
    """Return a name as SQL."""
    return sql.Identifier(name).as_string(None)


def parsed(text: str) -> list[exp.Expr]:
    """Return the statements of an SQL text. Raises SqlglotError."""
    return [one for one in parse(_lexed(text), dialect=_Dialect) if one is not None]


def text_of(node: exp.Expr | None) -> str:
    """Return a part of a query as SQL."""
    if node is None:
        return ""
    written = node.sql(_Dialect, normalize_functions=False, comments=False)
    return _PLAIN_OPERATOR.sub(r"\1", written)


def name_of(node: exp.Expr | None) -> str:
    """Return the name of an identifier as the catalogues have it."""
    identifier = node if isinstance(node, exp.Identifier) or node is None else node.this
    if not isinstance(identifier, exp.Identifier):
        return ""
    name = str(identifier.this)
    return name if identifier.quoted else name.lower()


@dataclass(frozen=True)
class Source:
    """An adopted table: its columns, those that metadata has, and its key, with their types.

    In `carried`, the column that is the metadata has the type metadata, and those of enums enum.
    `searched`: columns whose words are searched. `collection`: the one that all its rows are in;
    `is_shared`: other documents are in it, too. `tables`: the columns of all tables, by name;
    `unique`: tables and columns that have each value once.
    """

    schema: str
    name: str
    columns: Mapping[str, str]
    carried: Mapping[str, str]
    searched: Collection[str]
    key: Mapping[str, str]
    adoption: str
    install: Install
    collection: str | None
    is_shared: bool
    tables: Mapping[str, Collection[str]]
    unique: Collection[tuple[str, str]]
    embedding: str | None
    has_policies: bool
    has_hnsw: bool

    def vector(self, query: "Query | None" = None) -> str | None:
        """Return the column that has the embeddings: the adopted, else one that a query names."""
        if self.embedding is not None:
            return self.embedding
        names = [name for name, kind in self.columns.items() if kind in ("vector", "halfvec")]
        named = {name_of(one) for one in query.tree.find_all(exp.Column)} if query else ()
        return min(names, key=lambda one: one not in named, default=None)

    def named_by(self, node: exp.Expr) -> bool:
        """Return whether a column that restricts rows is in an expression."""
        kinds = [self.columns.get(name_of(one), "tsvector") for one in node.find_all(exp.Column)]
        return any(one not in ("vector", "halfvec", "sparsevec", "tsvector") for one in kinds)


@dataclass
class Conditions:
    """What becomes of the conditions of an old function.

    `kept`: conditions about the table; `filters`: SQL of the filters that follow from them;
    `undecided`: why other rows may be returned.
    """

    kept: list[str] = field(default_factory=list)
    filters: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)


class Query:
    """The query of a function over the adopted table.

    `is_plain`: one select that names the table once, whose columns and joins can stay.
    """

    def __init__(self, tree: exp.Query, source: Source) -> None:
        self.tree = tree
        self.source = source
        tables = list(tree.find_all(exp.Table))
        expressions = [name_of(one.args["alias"]) for one in tree.find_all(exp.CTE)]
        # Sub-selects of conditions stay as they are written.
        own = [one for one in tables if self._is_source(one) and not _is_within(one)]
        self._aliases = [name_of(one.args.get("alias")) or name_of(one) for one in own]
        others = [
            (one.text("db"), one.this)
            for one in tables
            if not self._is_source(one) and not _is_within(one)
        ]
        others += [("", one.this) for one in tree.find_all(exp.Lateral)]
        self._others = {
            f"{schema}.{one.name}" if schema else one.name
            for schema, one in others
            if isinstance(one, exp.Identifier | exp.Anonymous) and one.name not in expressions
        } | {one.key for one in tree.find_all(exp.Unnest, exp.Values) if not _is_within(one)}
        inner = [one for one in tree.find_all(exp.Alias) if one.parent is not tree]
        # Names that sub-selects give to something else than a column of this name.
        self._renamed = {
            name_of(one.args["alias"]): one.this
            for one in inner
            if name_of(one.args["alias"]) != name_of(one.this)
        } | {
            name_of(one): one
            for alias in tree.find_all(exp.TableAlias)
            for one in alias.args.get("columns") or []
        }
        relations = tree.find_all(exp.Table, exp.Subquery, exp.Lateral, exp.Unnest, exp.Values)
        self.relations = {one.alias_or_name for one in relations}
        self.names_source = bool(own)
        self.is_plain = (
            isinstance(tree, exp.Select)
            and len(own) == 1
            and own[0].parent_select is tree
            and not any(
                tree.args.get(one)
                for one in ("with_", "distinct", "group", "having", "windows", "locks")
            )
            and not isinstance(tree.args.get("limit"), exp.Fetch)
        )
        self.alias = "source"
        if self.is_plain:
            self.alias = text_of(own[0].args["alias"].this if own[0].alias else own[0].this)

    def _is_source(self, table: exp.Table) -> bool:
        named = (name_of(table), name_of(table.args.get("db")) or self.source.schema)
        return named == (self.source.name, self.source.schema)

    def column(self, node: exp.Expr) -> tuple[str, str]:
        """Return the name and the type of a column that metadata has, empty for others.

        Of `column ->> 'key'`, the path, and JSON_TEXT as type.
        """
        keys: list[str] = []
        while isinstance(inner := node.unnest(), exp.JSONExtract | exp.JSONExtractScalar):
            if not keys and not isinstance(inner, exp.JSONExtractScalar):
                break
            path = inner.expression.expressions if inner.expression else []
            names = [one.this for one in path if isinstance(one, exp.JSONPathKey)]
            keys[:0] = names if len(names) + 1 == len(path) else [""]
            node = inner.this
        if keys:
            name, kind = self.column(node)
            is_known = kind in ("json", "jsonb", "metadata") and all(
                isinstance(one, str) and one and "." not in one for one in keys
            )
            keys = keys if kind == "metadata" else [name, *keys]
            return (".".join(keys), JSON_TEXT) if is_known else ("", "")
        if isinstance(node := node.unnest(), exp.Cast):
            name, kind = self.column(node.this)
            cast = text_of(node.args["to"]).lower()
            # The text of a text, of an enum and of a UUID is what metadata has.
            is_text = kind in ("text", "varchar", "enum", "uuid") and cast in ("text", "varchar")
            return (name, "text") if is_text else (name, kind if cast == kind else "")
        is_own = isinstance(node, exp.Column) and node.text("table") in ("", self.alias)
        name = name_of(node) if is_own else ""
        return name, self.source.carried.get(name, "")

    def clause(self, name: str) -> str:
        """Return the expression of limit, fetch or offset as SQL, empty without one."""
        node = self.tree.args.get(name)
        if isinstance(node, exp.Fetch):
            return text_of(node.args.get("count")) or "1"
        return "" if node is None else text_of(node.expression)

    def result(self, place: int) -> str:
        """Return a column of the result as SQL over the adopted table, empty where it is none."""
        shown = self.tree.expressions[place] if place < len(self.tree.expressions) else None
        if not isinstance(shown, exp.Expr):
            return ""
        value: exp.Expr = shown.unalias()
        if isinstance(value, exp.Column) and value.text("table") not in self._aliases:
            value = self._renamed.get(name_of(value), value)
        is_read = (
            value.text("table") in self._aliases and name_of(value) in self.source.columns
            if isinstance(value, exp.Column)
            else isinstance(value, exp.Subquery) and not value.find(exp.AggFunc, exp.Window)
        )
        return text_of(value.transform(self._of_source)) if is_read else ""

    def shown(self) -> str:
        """Return the columns of a plain select."""
        return ",\n         ".join(
            f"{self.alias}.*" if isinstance(one, exp.Star) else text_of(one)
            for one in self.tree.expressions
        )

    def tables(self) -> str:
        """Return what a plain select reads, with its joins."""
        joins = [text_of(one) for one in self.tree.args.get("joins") or []]
        return text_of(self.tree.args["from_"].this) + "".join(
            one if one.startswith(",") else f" {one.strip()}" for one in joins
        )

    def has_computed_order(self) -> bool:
        """Return whether a sum or a product with a distance or a rank orders the rows."""
        if not self.is_plain:
            return False
        order = self.tree.args.get("order")
        return bool(order and order.find(exp.Add, exp.Mul)) or any(
            any(_is_text(part) or _is_distance(part) for part in sum_.walk())
            for one in self.tree.expressions
            for sum_ in one.find_all(exp.Add, exp.Mul)
        )

    def compares_text(self, argument: str, *, patterns: bool) -> bool:
        """Return whether an argument is words to search for, with `patterns` those of like too."""
        for node in self.tree.walk():
            is_text = isinstance(node, exp.Anonymous) and re.search(
                "to_tsquery|similarity", node.name, re.IGNORECASE
            )
            if is_text or (patterns and self._compares_words(node)):
                within = node.expression if isinstance(node, exp.Binary) else node
                if within is not None and _names(within, argument):
                    return True
        return False

    def _compares_words(self, node: exp.Expr) -> bool:
        """Return whether a condition compares texts that are searched with a pattern."""
        if not isinstance(node, exp.Like | exp.ILike):
            return False
        named = {name_of(one) for one in node.this.find_all(exp.Column)}
        return bool(named) and named.issubset(self.source.searched)

    def of_users(self) -> Iterator[tuple[str, str, list[str]]]:
        """Yield the columns that are compared with a claim: table, column, path of the claim."""
        aliases = {
            name_of(one.args.get("alias")) or name_of(one): name_of(one)
            for one in self.tree.find_all(exp.Table)
        }
        for equal in self.tree.find_all(exp.EQ, exp.NullSafeEQ):
            for column, value in ((equal.this, equal.expression), (equal.expression, equal.this)):
                column = column.unnest()
                column = column.this if isinstance(column, exp.Cast) else column
                if not isinstance(column, exp.Column) or _ABOUT_CLAIMS.search(text_of(column)):
                    continue
                if value.find(exp.From) or not _ABOUT_CLAIMS.search(text_of(value)):
                    continue
                keys = [one.this for one in value.find_all(exp.JSONPathKey)][::-1]
                own = list(_tables_of(column.parent_select))
                relation = column.text("table") or (name_of(own[0]) if own else "")
                yield aliases.get(relation, self.source.name), name_of(column), keys or ["sub"]

    def conditions(self, arguments: Sequence[str], question: str | None) -> Conditions:
        """Sort the conditions of the query.

        One on words is of the retrieval, and is not kept; so is one on distances if the search has
        a question too. `arguments` and `question` are names.
        """
        found = Conditions()
        seen: set[str] = set()
        for condition, is_inner in self._conditions():
            text = text_of(condition)
            if text in seen or condition == exp.true():
                continue
            seen.add(text)
            names = {_argument(one) for one in condition.walk()} - {None}
            # Words that are no part of the question are a condition as others are.
            is_own = question not in names and names <= {*arguments, *self.source.columns}
            if (any(map(_is_text, condition.walk())) and not is_own) or (
                question is not None
                and (any(map(_is_distance, condition.walk())) or _names(condition, question))
            ):
                outside = condition.transform(self._without_words)
                is_hiding = condition.find(exp.Case, exp.Not)
                if is_hiding or _is_about_rows(outside) or self.source.named_by(outside):
                    found.undecided.append(f"its condition {text} is not kept")
            elif (
                not self.is_plain
                and _OF_SCORES.search(text)
                and not _is_about_rows(condition)
                and not self.source.named_by(condition)
            ):
                values = [self._renamed.get(name_of(one)) for one in condition.find_all(exp.Column)]
                is_of_groups = any(
                    window.args.get("partition_by")
                    for value in values
                    if value is not None
                    for window in value.find_all(exp.Window)
                )
                reasons = found.undecided if is_of_groups else found.notes
                reasons.append(f"its condition {text} on scores is not kept")
            elif is_inner and any(
                name_of(one) in self._renamed and name_of(one) in self.source.columns
                for one in condition.find_all(exp.Column)
            ):
                found.undecided.append(f"its condition {text} is on an expression")
            else:
                found.kept.append(text)
                filter_ = _filter(condition, self, arguments)
                if filter_ is not None:
                    found.filters.append(filter_)
                    if any(one is not condition for one in condition.find_all(exp.From)):
                        found.notes.append(
                            f"its condition {text} narrows the search for up to {MOST_VALUES:,}"
                            " values; of more, the hits are checked"
                        )
                elif _value(condition, self, arguments) is None and not any(
                    map(_is_distance, condition.walk())
                ):
                    found.undecided.append(f"its condition {text} is no filter")
        found.undecided += [
            f"its join on {text_of(one)} is no filter"
            for one in self._joined_by()
            if self.is_plain and not _joins(one)
        ]
        if not self.is_plain:
            found.undecided += [
                f"its join on {text_of(one)} is not kept"
                for one in self._joined_by()
                if not isinstance(one, exp.EQ)
                or _is_about_rows(one)
                or one.find(exp.Parameter)
                or any(
                    name in arguments
                    or (name in self.source.columns and name not in self.source.key)
                    for name in map(name_of, one.find_all(exp.Column))
                )
            ]
            found.undecided += [f"it reads {one} too" for one in sorted(self._others)]
            found.undecided += [
                f"its {name} is {text_of(one)}"
                for name, one in self._renamed.items()
                if name in self.source.key
                and name_of(one) in self.source.columns
                and isinstance(one, exp.Column)
            ]
            found.undecided += [
                f"its {kind.key} is not kept" for kind in _NOT_KEPT if self.tree.find(kind)
            ]
            if any(one.args.get("on") for one in self.tree.find_all(exp.Distinct)):
                found.undecided.append("its distinct on is not kept")
        return found

    def _selects(self) -> Iterator[exp.Select]:
        """Yield the selects whose rows the query returns: none within a condition."""
        if self.is_plain and isinstance(self.tree, exp.Select):
            yield self.tree
            return
        for one in self.tree.find_all(exp.Select):
            if not _is_within(one):
                yield one

    def _conditions(self) -> Iterator[tuple[exp.Expr, bool]]:
        """Yield the conditions, each with whether it is on the rows of a sub-select."""
        for select in self._selects():
            where = select.args.get("where")
            is_inner = not any(
                one.parent_select is select and self._is_source(one)
                for one in select.find_all(exp.Table)
            )
            for one in _conjuncts(where.this if where else None):
                yield one if self.is_plain else one.transform(self._of_source), is_inner

    def _joined_by(self) -> Iterator[exp.Expr]:
        for select in self._selects():
            for join in select.args.get("joins") or []:
                yield from _conjuncts(join.args.get("on"))

    def _of_source(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and name_of(node.args.get("table")) in self._aliases:
            return exp.column(node.this.copy(), table=self.alias)
        return node

    def _without_words(self, node: exp.Expr) -> exp.Expr:
        """Take the columns away that a condition on words reads."""
        if isinstance(node, exp.Anonymous) and _WORDS_OF.fullmatch(node.name):
            return exp.null()
        if self._compares_words(node):
            node.set("this", exp.null())
        return node


def read(
    body: str, source: Source, arguments: Sequence[str], function: str = "", notes: Any = None
) -> Query | None:
    """Read the body of a function; None if it does more than to return one query.

    What its variables are is in the query then, once each, and so are arguments with the name of
    the function before them. `notes` gets what is left out: settings.
    """
    code = _lexed(body)
    found = _QUERY.fullmatch(code)
    if found is None:
        return None
    text = found["text"] or found["sql"]
    variables = _variables(
        found["declared"], found["set"], arguments, [] if notes is None else notes
    )
    if variables is None:
        return None
    executed = _EXECUTED.fullmatch(text.strip())
    using: list[exp.Expr] = []
    try:
        if executed is not None:
            text = executed[1].replace("''", "'")
            using = parsed(f"select {executed[2]}")[0].expressions if executed[2] else []
        if not re.match(r"\s*(select|with)\b", text, re.IGNORECASE):
            return None
        statements = parsed(text)
    except SqlglotError:
        return None
    query = statements[0] if len(statements) == 1 else None
    if not isinstance(query, exp.Query):
        return None
    if executed is not None:
        # What is executed sees no names of the function: values are its arguments by their places.
        names = [name_of(column) for one in using for column in one.find_all(exp.Column)]
        places = [int(one.name) for one in query.find_all(exp.Parameter)]
        if not set(names).issubset(arguments) or max(places, default=0) > len(using):
            return None
        values = [one.transform(lambda node: _placed(node, arguments)) for one in using]
        for one in list(query.find_all(exp.Parameter)):
            one.replace(exp.paren(values[int(one.name) - 1]))
    else:
        for column in list(query.find_all(exp.Column)):
            relation, name = column.text("table"), name_of(column)
            if relation == function and name in arguments and relation != source.name:
                column.replace(exp.Parameter(this=exp.Literal.number(arguments.index(name) + 1)))
            elif not relation and name in variables and name not in source.columns:
                column.replace(exp.paren(variables[name].copy()))
    ctes = {name_of(one.args["alias"]) for one in query.find_all(exp.CTE)}
    for select in list(query.find_all(exp.Select)):
        if not _is_within(select):
            is_plain = select is query and not select.args.get("with_")
            _join_by_conditions(select, source, ctes, is_plain=is_plain)
    return Query(query, source)


def _join_by_conditions(
    select: exp.Select, source: Source, ctes: Collection[str], *, is_plain: bool
) -> None:
    """Write joins of the adopted table with others as conditions: `column in (select key ...)`.

    Of a plain query, those that restrict rows; the columns of the others are read where they are
    shown. What else reads the other table leaves the join as it is.
    """
    joins = [*(select.args.get("joins") or [])]
    from_ = select.args.get("from_")
    if from_ is None:
        return
    relations = [(from_.this, "", None)]
    relations += [(one.this, one.side or one.kind, one) for one in joins]
    named = [one for one in relations if isinstance(one[0], exp.Table)]
    own = [one[0] for one in named if name_of(one[0]) == source.name]
    if len(own) != 1 or len(named) < len(relations) or any(one.args.get("using") for one in joins):
        return
    alias_of = {id(one): name_of(one.args.get("alias")) or name_of(one) for one, _, _ in named}
    for table, side, join in named:
        columns = source.tables.get(name_of(table), ())
        is_inner = side.upper() in ("", "INNER")
        if table is own[0] or name_of(table) in ctes or not (is_inner or side.upper() == "LEFT"):
            continue
        alias = alias_of[id(table)]

        def relation(node: exp.Expr, alias: str = alias, columns: Any = columns) -> str:
            is_other = name_of(node) not in source.columns and name_of(node) in columns
            return node.text("table") or (alias if is_other else "")

        def reads(node: exp.Expr | None, alias: str = alias, relation: Any = relation) -> bool:
            return node is not None and any(
                relation(one) == alias for one in node.find_all(exp.Column)
            )

        inner_joins = [one for one in joins if not one.side]
        of_joins = inner_joins if is_inner or join is None else [join]
        where = select.args.get("where")
        pool = [one for other in of_joins for one in _conjuncts(other.args.get("on"))]
        pool += _conjuncts(where.this) if where and is_inner else []
        link = next(filter(None, (_link(one, alias, alias_of[id(own[0])], source, name_of(table))
                                  for one in pool)), None)  # fmt: skip
        if link is None:
            continue
        key, column, equal = link
        mine = [one for one in pool if reads(one) and one is not equal]
        others = {alias_of[id(one)] for one, _, _ in named} - {alias}
        elsewhere = [
            value
            for name, value in select.args.items()
            if name not in ("expressions", "joins", "where", "from_", "with_")
        ]
        is_mixed = any(
            relation(one) in others or (not relation(one) and name_of(one) in source.columns)
            for condition in mine
            for one in condition.find_all(exp.Column)
        )
        read_elsewhere = any(
            reads(part)
            for value in elsewhere
            for part in (value if isinstance(value, list) else [value])
            if isinstance(part, exp.Expr)
        ) or (where is not None and not is_inner and reads(where))
        read_elsewhere = read_elsewhere or any(
            reads(one.args.get("on")) for one in joins if one not in of_joins
        )
        if is_mixed or read_elsewhere or (mine and not is_inner) or (is_plain and not mine):
            continue
        for one in [*mine, *select.expressions]:
            for node in list(one.find_all(exp.Column)):
                if relation(node) == alias:
                    node.set("table", exp.to_identifier(alias))
        inner = exp.select(exp.column(key, table=alias)).from_(table.copy())
        for one in mine:
            inner = inner.where(one.copy())
        for one in list(select.expressions):
            for node in list(one.find_all(exp.Column)):
                if node.text("table") == alias:
                    shown = exp.select(node.copy()).from_(table.copy())
                    shown = shown.where(
                        exp.EQ(this=exp.column(key, table=alias), expression=column)
                    )
                    value: exp.Expr = exp.Subquery(this=shown)
                    is_bare = node is one
                    node.replace(exp.alias_(value, name_of(node)) if is_bare else value)
        kept = [one.copy() for one in pool if one is not equal and one not in mine]
        if is_inner:
            kept.append(exp.In(this=column.copy(), query=exp.Subquery(this=inner)))
            rest = [one for one in joins if one is not join and one not in of_joins]
            others_joined = [one for one in of_joins if one is not join]
            for one in others_joined:
                one.set("on", exp.true())
            if join is None:
                first = next(one for one in others_joined if one.this is own[0])
                from_.set("this", own[0].copy())
                others_joined.remove(first)
            joins = [*others_joined, *rest]
            select.set("where", exp.Where(this=exp.and_(*kept, copy=False)))
        else:
            joins = [one for one in joins if one is not join]
        select.set("joins", joins)
        _join_by_conditions(select, source, ctes, is_plain=is_plain)
        return


def _link(
    condition: exp.Expr, alias: str, own: str, source: Source, table: str
) -> tuple[str, exp.Column, exp.Expr] | None:
    """Return the key of a table and the column of the adopted one that a condition compares."""
    if not _joins(condition):
        return None
    for key, column in (
        (condition.this, condition.expression), (condition.expression, condition.this)
    ):  # fmt: skip
        is_key = key.text("table") == alias and (table, name_of(key)) in source.unique
        if is_key and column.text("table") in ("", own) and name_of(column) in source.columns:
            return name_of(key), column.copy(), condition
    return None


def _variables(
    declared: str | None, assigned: str | None, arguments: Sequence[str], notes: list[str]
) -> dict[str, exp.Expr] | None:
    """Return the values of variables of PL/pgSQL; None if they are more than one expression each.

    They may read arguments and earlier variables.
    """
    found: dict[str, exp.Expr] = {}
    statements = [(one, True) for one in (declared or "").split(";") if one.strip()]
    statements += [(one, False) for one in (assigned or "").split(";") if one.strip()]
    for statement, is_declared in statements:
        if _SETTING.fullmatch(statement):
            notes.append(f"its statement {statement.strip()} is left out")
            continue
        one = _ASSIGNED.fullmatch(statement)
        if one is None or not (is_declared or (one["value"] and not one["type"])):
            return None
        if one["value"] is None:
            continue
        try:
            (read,) = parsed(f"select {one['value']}")
        except (SqlglotError, ValueError):
            return None
        values = read.expressions
        if len(values) != 1 or read.find(exp.From) or one["name"] in found:
            return None
        names = {name_of(column) for column in read.find_all(exp.Column)}
        if not names <= {*arguments, *found}:
            return None
        value: exp.Expr = exp.paren(values[0].copy())
        for column in list(value.find_all(exp.Column)):
            name = name_of(column)
            if name in found:
                column.replace(exp.paren(found[name].copy()))
            else:
                place = exp.Literal.number(arguments.index(name) + 1)
                column.replace(exp.Parameter(this=place))
        type_ = one["type"]
        if type_:
            (cast,) = parsed(f"select null::{type_}")
            value = exp.Cast(this=value, to=cast.expressions[0].args["to"].copy())
        found[one["name"].lower()] = value
    return found


def _placed(node: exp.Expr, arguments: Sequence[str]) -> exp.Expr:
    if not isinstance(node, exp.Column):
        return node
    return exp.Parameter(this=exp.Literal.number(arguments.index(name_of(node)) + 1))


def _lexed(code: str) -> str:
    """Remove comments, and write operators of extensions so that any parser reads them."""
    return _LEXED.sub(
        lambda one: one[1] or (f" operator({one[4]}) " if one[4] else " "),
        code,
    )


def _is_within(node: exp.Expr | None) -> bool:
    """Return whether a node is in a condition or a column of a query."""
    return node is not None and (
        isinstance(node, exp.Where)
        or (isinstance(node.parent, exp.Select) and node.arg_key == "expressions")
        or (isinstance(node.parent, exp.Join) and node.arg_key == "on")
        or _is_within(node.parent)
    )


def _conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    inner = condition.unnest() if condition is not None else None
    if isinstance(inner, exp.And):
        yield from _conjuncts(inner.this)
        yield from _conjuncts(inner.expression)
    elif condition is not None:
        yield exp.paren(condition, copy=True) if isinstance(condition, exp.Or) else condition


def _joins(condition: exp.Expr) -> bool:
    """Return whether a condition of a join compares two columns alone."""
    sides = (condition.this, condition.args.get("expression"))
    return isinstance(condition, exp.EQ) and all(isinstance(one, exp.Column) for one in sides)


def _names(node: exp.Expr, argument: str) -> bool:
    return any(_argument(one) == argument for one in node.walk())


def _argument(node: exp.Expr) -> str | None:
    """Return the name that an argument would have: `$1`, or the last part of a name."""
    if isinstance(node, exp.Parameter):
        return f"${node.name}"
    return name_of(node) if isinstance(node, exp.Column) else None


def _operator(node: exp.Expr) -> str:
    return node.args["operator"].split(".")[-1] if isinstance(node, exp.Operator) else ""


def _is_distance(node: exp.Expr) -> bool:
    return _operator(node) in ("<=>", "<->", "<#>")


def _is_text(node: exp.Expr) -> bool:
    return _operator(node) in _TEXT_OPERATORS or (
        isinstance(node, exp.Anonymous) and _TEXT_FUNCTIONS.search(node.name) is not None
    )


def is_about_users(code: str) -> bool:
    """Return whether SQL reads the claims of its caller."""
    return _ABOUT_CLAIMS.search(code) is not None


def _is_about_rows(node: exp.Expr) -> bool:
    return _ABOUT_ROWS.search(text_of(node)) is not None


def _filter(condition: exp.Expr, query: Query, arguments: Sequence[str]) -> str | None:
    """Return SQL for the filters that a condition implies, None for none.

    No row that meets the condition is left out; the drop-in checks the condition on each hit.
    """
    bare = condition.unnest()
    if bare.args.get("negate"):
        bare = bare.copy()
        bare.set("negate", None)
        bare = exp.Not(this=bare)
    if isinstance(bare, exp.And | exp.Or):
        return _filter_of_both(bare, query, arguments)
    is_not_in = isinstance(bare, exp.Not) and isinstance(bare.this.unnest(), exp.In)
    if is_not_in:
        bare = bare.this.unnest()
    elif isinstance(bare, exp.Not):
        inner = bare.this.unnest()
        if _is_null(inner):
            return _null_filter(inner.this, "is_not_null", query)
        bare = exp.EQ(this=inner, expression=exp.false())
    elif _is_null(bare):
        return _null_filter(bare.this, "is_null", query)
    elif isinstance(bare, exp.Column | exp.Is):
        is_true = exp.true() if isinstance(bare, exp.Column) else bare.expression
        bare = exp.EQ(this=bare if isinstance(bare, exp.Column) else bare.this, expression=is_true)
    if isinstance(bare, exp.Between):
        low = exp.GTE(this=bare.this, expression=bare.args["low"])
        high = exp.LTE(this=bare.this.copy(), expression=bare.args["high"])
        bare = exp.And(this=low, expression=high)
        return _filter_of_both(bare, query, arguments)
    if type(bare) in _MIRRORED and query.column(bare.expression)[1]:
        bare = _MIRRORED[type(bare)](this=bare.expression, expression=bare.this)
    if not isinstance(bare.this, exp.Expr):
        return None
    (name, kind), value = query.column(bare.this), bare.args.get("expression")
    if not kind or ("." in name and kind != JSON_TEXT):
        return None
    metadata = "metadata" if kind == "metadata" else f"metadata.{name}"
    type_, operator = _VALUES.get(kind), _COMPARED.get(type(bare))
    if isinstance(bare, exp.In):
        operator, value = "not_in" if is_not_in else "in", _listed(bare)
    elif isinstance(value, exp.Any):
        operator, value = "in" if operator == "eq" else None, value.this.unnest()
    elif isinstance(value, exp.Anonymous) and value.name.lower() == "all":
        operator, value = "not_in" if operator == "ne" else None, value.expressions[0]
    if value is None:
        return None
    keeps_null = (
        isinstance(value, exp.Anonymous)
        and value.name.lower() == "coalesce"
        and value.expressions[1:] == [bare.this]
    )
    text = _value(value.expressions[0] if keeps_null else value, query, arguments)
    if text is None:
        return None
    if isinstance(bare, exp.ArrayContainsAll) and kind in ("json", "jsonb", "metadata"):
        without = "value is null or value = '{}'"
        if kind == "metadata":
            without += " or jsonb_typeof(value) <> 'object'"
        return _filter_sql(metadata, "contains", f"({text})::jsonb", {without: "'[]'"})
    if isinstance(bare, exp.ArrayOverlaps) and kind in ("_text", "_varchar"):
        return _list_filter(metadata, "has_any", text, "text")
    if kind == JSON_TEXT and operator == "in":
        scalars = f"jsonb_agg(one::jsonb) filter (where one ~ {literal(_JSON_SCALAR)})"
        values = f"coalesce(jsonb_agg(one), '[]') || coalesce({scalars}, '[]')"
        listed = f"(select {values} from unnest(({text})::text[]) as one)"  # noqa: S608
        cases = {
            f"jsonb_array_length(value) > {MOST_VALUES} or value::text ~ '\"[[:space:]]*[[{{]'": (
                "'[]'"
            )
        }
        return _filter_sql(metadata, "in", listed, cases)
    if kind == JSON_TEXT and operator == "eq":
        # A number or a boolean of JSON has the same text.
        shown = (
            f"case when value #>> '{{}}' ~ {literal(_JSON_SCALAR)} then"
            " jsonb_build_array(value, (value #>> '{}')::jsonb) else jsonb_build_array(value) end"
        )
        cases = {
            "value is null": _condition(metadata, "in", "'[]'::jsonb"),
            "value #>> '{}' ~ '^[[:space:]]*[[{]'": "'[]'",
        }
        return _filter_sql(metadata, "in", f"to_jsonb(({text})::text)", cases, shown)
    is_equal = operator in ("eq", "ne", "in", "not_in")
    if type_ is None or operator is None or (type_ in _UNORDERED and not is_equal):
        return None
    if operator in ("in", "not_in"):
        is_time = type_ in ("date", "timestamp", "timestamptz")
        return None if is_time else _list_filter(metadata, operator, text, type_)
    if type_ == "date":
        # The value can be a time of a day: its date is less.
        operator = {"lt": "lte", "ne": None}.get(operator, operator)
    if operator is None:
        return None
    # In metadata, a time is a text in UTC.
    value_sql = f"({text})::{type_}" + " at time zone 'UTC'" * (type_ == "timestamptz")
    # Nothing is equal to null, unless the condition takes null for every row, or for a value.
    without = "'[]'" if keeps_null else _condition(metadata, "in", "'[]'::jsonb")
    if isinstance(bare, exp.NullSafeEQ):
        without = _null_condition(metadata, "is_null")
    return _filter_sql(metadata, operator, f"to_jsonb({value_sql})", {"value is null": without})


def _filter_of_both(bare: exp.And | exp.Or, query: Query, arguments: Sequence[str]) -> str | None:
    """Return SQL for the filters of two conditions; of a value that is the same for all, a case."""
    both = (bare.this, bare.expression)
    if isinstance(bare, exp.And):
        found = [one for side in both if (one := _filter(side, query, arguments)) is not None]
        return f"({' || '.join(found)})" if found else None
    for given, other in (both, both[::-1]):
        # "argument is null or column = argument": without the value there is no filter.
        always = _value(given.unnest(), query, arguments)
        found_of_other = _filter(other, query, arguments) if always else None
        if found_of_other is not None:
            return f"case when ({always}) is true then '[]' else {found_of_other} end"
    sides = [_filter(side, query, arguments) for side in both]
    if None in sides:
        return None
    parts = ", ".join(f"jsonb_build_object('all', {one})" for one in sides)
    no_side = " or ".join(f"{one} = '[]'" for one in sides)
    return (
        f"case when {no_side} then '[]' else jsonb_build_array(jsonb_build_object("
        f"'any', jsonb_build_array({parts}))) end"
    )


def _listed(node: exp.In) -> exp.Expr | None:
    """Return the values of a list, or those that a query returns, as an array."""
    inner = node.args.get("query")
    if inner is not None:
        return exp.Anonymous(this="array", expressions=[inner.unnest()])
    values = node.args.get("expressions")
    return exp.Array(expressions=[one.copy() for one in values]) if values else None


def _condition(metadata: str, operator: str, value: str) -> str:
    return (
        "jsonb_build_array(jsonb_build_object("
        f"'field', {literal(metadata)}, 'op', '{operator}', 'value', {value}))"
    )


def _filter_sql(
    metadata: str, operator: str, value: str, without: Mapping[str, str], shown: str = "value"
) -> str:
    """Return SQL for a filter; `without` has other filters for values that meet a condition."""
    cases = " ".join(f"when {condition} then {other}" for condition, other in without.items())
    found = f"case {cases} else {_condition(metadata, operator, shown)} end"
    return f"(select {found} from (select {value} as value offset 0) as given)"  # noqa: S608


def _list_filter(metadata: str, operator: str, values: str, type_: str) -> str:
    """Return SQL for the filter of a list of values; none of one longer than a filter may be."""
    listed = f"coalesce(to_jsonb(array_remove(({values})::{type_}[], null)), '[]')"
    without = {f"jsonb_array_length(value) > {MOST_VALUES}": "'[]'"}
    return _filter_sql(metadata, operator, listed, without)


def _null_filter(column: exp.Expr, operator: str, query: Query) -> str | None:
    name, kind = query.column(column)
    if kind in ("", "metadata") or "." in name:
        return None
    return _null_condition(f"metadata.{name}", operator)


def _null_condition(metadata: str, operator: str) -> str:
    return (
        f"jsonb_build_array(jsonb_build_object('field', {literal(metadata)}, 'op', '{operator}'))"
    )


def _is_null(node: exp.Expr) -> bool:
    is_null = isinstance(node, exp.Is) and isinstance(node.expression, exp.Null)
    return is_null and not node.args.get("negate")


def _place(node: exp.Expr, query: Query, arguments: Sequence[str]) -> int | None:
    """Return the place of the argument that a node is, None for others: columns come first."""
    name = _argument(node) or ""
    if isinstance(node, exp.Parameter):
        return int(node.name)
    relation = node.text("table")
    if relation in query.relations or (not relation and name in query.source.columns):
        return None
    return arguments.index(name) + 1 if name in arguments else None


def _value(node: exp.Expr, query: Query, arguments: Sequence[str]) -> str | None:
    """Return an expression that has one value for the whole call as SQL, None for others.

    It reads no column of the table; a query in it reads its own tables alone.
    """
    is_query = any(one is not node for one in node.find_all(exp.From))
    if not is_query and node.find(exp.AggFunc, exp.Window):
        return None
    copied = exp.paren(node.copy())
    for one in list(copied.find_all(exp.Column, exp.Parameter)):
        inner = one.parent_select
        own = {name_of(t.args.get("alias")) or name_of(t): name_of(t) for t in _tables_of(inner)}
        if inner is not None and one.text("table") in own and isinstance(one, exp.Column):
            continue
        is_inner = not one.text("table") and any(
            name_of(one) in query.source.tables.get(table, ()) for table in own.values()
        )
        place = None if is_inner else _place(one, query, arguments)
        if place is not None:
            one.replace(exp.Parameter(this=exp.Literal.number(place)))
        elif not is_inner:
            return None
    return text_of(copied.this)


def _tables_of(select: exp.Expr | None) -> Iterator[exp.Expr]:
    """Yield the tables of a query that is a part of an expression, and of those around it."""
    while select is not None:
        yield from (one for one in select.find_all(exp.Table) if one.parent_select is select)
        select = select.parent_select

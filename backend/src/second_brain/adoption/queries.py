"""The query of a searching function, read: which of its selects find rows of the adopted table.

A parser (sqlglot) reads the SQL; nothing here asks the database. What is not recognised is Unknown,
with the reason: no shape is guessed.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

from psycopg import sql
from sqlglot import exp, parse
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.parsers.postgres import PostgresParser

from second_brain.services.install import Install

_QUOTED = r"(?<![\w$])[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""
_LITERAL = _QUOTED + r"|(?<![\w$])\$(\w*)\$.*?\$\2\$"
_COMMENT = r"--[^\n]*|/\*.*?\*/"
# Operators of extensions that other databases do not have, or read as something else.
_OPERATOR = r"<[=#~+%-]>|<<?->>?|<<?%|%>>?|@@@?"
_LEXED = re.compile(
    rf"({_LITERAL}|operator\s*\([^)]*\))|({_COMMENT})|({_OPERATOR})", re.DOTALL | re.IGNORECASE
)
_PLAIN_OPERATOR = re.compile(r"OPERATOR\(([^\w.()]+)\)")
# A statement of a body: all to the next semicolon that is no part of a literal.
_STATEMENT = re.compile(
    rf"(?:{_QUOTED}|\$(\w*)\$.*?\$\1\$|{_COMMENT}|[^;])+", re.DOTALL | re.IGNORECASE
)
_RETURNED = re.compile(r"\breturn\s+query\s+", re.IGNORECASE)
_EXECUTED = re.compile(
    r"execute\s+(?:format\s*\(\s*)?'((?:[^'%]|'')*)'\s*\)?(?:\s+using\s+(.*))?",
    re.DOTALL | re.IGNORECASE,
)
_AGGREGATES = frozenset(
    ("count", "sum", "avg", "min", "max", "array_agg", "string_agg", "json_agg", "jsonb_agg")
)
_CLAIMS = re.compile(r"\bauth\.(uid|jwt)\b|request\.jwt\.claim", re.IGNORECASE)
_TEXT_FUNCTION = re.compile(r"ts_rank|tsquery|similarity$", re.IGNORECASE)
_TO_QUERY = re.compile(r"tsquery\s*\(", re.IGNORECASE)
# Whatever gives a variable a value; one that no part has a value for has no name of its own there.
_ASSIGNED = re.compile(
    r"(?:^|;|\b(?:declare|begin|then|else|loop)\b)\s*"
    r"""(?=("[^"]+"|\w+)[\w\s.()\[\],%"]*?(?::=|=|\bdefault\b)([^;]*))"""
    r"|\b(?:into(?:\s+strict)?|for|foreach)\s+([\w\s,\"]+)",
    re.IGNORECASE,
)
# What an expression of words alone can have, beside columns.
_PLAIN = (
    *(exp.Anonymous, exp.Cast, exp.Column, exp.DataType, exp.Dot, exp.DPipe),
    *(exp.Identifier, exp.Literal, exp.Null, exp.ObjectIdentifier, exp.Parameter, exp.Paren),
    exp.Trim,
)
_PATHS = (exp.JSONExtract, exp.JSONExtractScalar)
_OF_WORDS = re.compile(
    r"(websearch_to_|plainto_|phraseto_|to_)tsquery|to_tsvector|ts_rank(_cd)?|coalesce|nullif"
    r"|(strict_)?(word_)?similarity|setweight|strip|[blr]?trim|lower|upper|left|(regexp_)?replace"
    r"|(immutable_|f_)?unaccent|concat(_ws)?|array_to_string|regexp_split_to_array|string_to_array",
    re.IGNORECASE,
)


class Unknown(Exception):  # noqa: N818
    """A query that is not recognised; the text is the reason."""


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


def assignments(body: str) -> Iterator[tuple[str, str]]:
    """Yield the variables of a body that get a value, with it: empty for one that is not read."""
    code = without_comments(body)
    masked = _LEXED.sub(
        lambda one: one[0] if one[0].startswith('"') or one[3] else "'" * len(one[0]), code
    )
    for one in _ASSIGNED.finditer(masked):
        for name in (one[1] or one[3]).split(","):
            name = name.strip().split(" ")[0]
            bare = name.strip('"') if name.startswith('"') else name.lower()
            yield bare, code[one.start(2) : one.end(2)] if one[1] else ""


def names_of_words(body: str) -> set[str]:
    """Return the names in what makes a tsquery of words: of several arguments, in the last."""
    code = without_comments(body)
    found: set[str] = set()
    for one in _TO_QUERY.finditer(code):
        depth, start = 1, one.end()
        for part in re.finditer(rf"({_LITERAL})|[(),]", code[start:], re.DOTALL | re.IGNORECASE):
            depth += {"(": 1, ")": -1}.get(part[0], 0)
            if depth == 0:
                found |= {*re.findall(r"[\w$]+", code[start : one.end() + part.start()])}
                break
            if part[0] == "," and depth == 1:
                start = one.end() + part.end()
    return found


def is_plain(node: exp.Expr, is_asked: Callable[[exp.Expr], bool] | None = None) -> bool:
    """Return whether an expression is made of columns and literals by functions of words alone.

    With `is_asked`, of such columns alone, of at least one; without, of at least one column.
    """
    configurations: set[int] = set()
    names = []
    for one in node.walk():
        if not isinstance(one, _PLAIN):
            return False
        if isinstance(one, exp.Anonymous):
            if not _OF_WORDS.fullmatch(one.name):
                return False
            if re.search(r"ts(query|vector)$", one.name) and len(one.expressions) > 1:
                configurations |= {id(part) for part in one.expressions[0].walk()}
        if isinstance(one, exp.Dot) and name_of(one.this) not in ("pg_catalog", "extensions"):
            return False
        if isinstance(one, exp.Literal) and _is_joined_text(one) and re.search(r"\w", one.name):
            return False
        if isinstance(one, exp.Column | exp.Parameter):
            names.append(one)
    names = [one for one in names if id(one) not in configurations]
    return bool(names) and (is_asked is None or all(map(is_asked, names)))


def are_words(value: str, asked: Collection[str]) -> bool:
    """Return whether a value of a variable has words of the question alone, or nothing."""
    try:
        (one,) = parsed(f"select {value}")[0].expressions
    except (Unknown, ValueError):
        return False
    return isinstance(one, exp.Null) or is_plain(
        one,
        lambda name: (
            f"${name.name}" in asked
            if isinstance(name, exp.Parameter)
            else not table_of(name) and name_of(name) in asked
        ),
    )


def _is_joined_text(node: exp.Expr) -> bool:
    """Return whether a literal is joined to a text: `'draft & ' || question`."""
    parent = node.parent
    return isinstance(parent, exp.DPipe) or (
        isinstance(parent, exp.Anonymous) and parent.name.lower().startswith("concat")
    )


def parsed(text: str) -> list[exp.Expr]:
    """Return the statements of an SQL text. Raises Unknown."""
    try:
        return [one for one in parse(without_comments(text), dialect=_Dialect) if one is not None]
    except SqlglotError as error:
        raise Unknown("the parser does not read its query") from error


def without_comments(code: str) -> str:
    """Remove comments, and write operators of extensions so that any parser reads them."""
    return _LEXED.sub(lambda one: one[1] or (f" operator({one[4]}) " if one[4] else " "), code)


def text_of(node: exp.Expr | None, *, pretty: bool = False) -> str:
    """Return a part of a query as SQL."""
    if node is None:
        return ""
    written = node.sql(_Dialect, normalize_functions=False, comments=False, pretty=pretty)
    return _PLAIN_OPERATOR.sub(r"\1", written)


def name_of(node: exp.Expr | None) -> str:
    """Return the name of an identifier as the catalogues have it."""
    identifier = node if isinstance(node, exp.Identifier) or node is None else node.this
    if not isinstance(identifier, exp.Identifier):
        return ""
    name = str(identifier.this)
    return name if identifier.quoted else name.lower()


def is_about_users(code: str) -> bool:
    """Return whether SQL reads the claims of its caller."""
    return _CLAIMS.search(code) is not None


@dataclass(frozen=True)
class Source:
    """An adopted table: its columns, those that metadata has, and its key, with their types.

    In `carried`, the column that is the metadata has the type metadata, and those of enums enum.
    `collection`: the one that all its rows are in; `is_shared`: other documents are in it, too.
    `tables`: the columns of all tables, by name.
    """

    schema: str
    name: str
    key: str
    key_type: str
    embedding: str | None
    has_policies: bool
    has_hnsw: bool
    columns: Mapping[str, str]
    carried: Mapping[str, str]
    adoption: str
    install: Install
    collection: str | None
    is_shared: bool
    tables: Mapping[str, Collection[str]]

    @property
    def vector(self) -> str | None:
        """The column that has the embeddings."""
        names = [name for name, kind in self.columns.items() if kind in ("vector", "halfvec")]
        return self.embedding or next(iter(names), None)

    @property
    def as_sql(self) -> str:
        """The table as SQL."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"


@dataclass(frozen=True)
class Leaf:
    """A select that finds rows of the table, which it calls `alias`.

    `words`: conditions on the words of the question; `conditions`: the others, without those on
    distances.
    """

    select: exp.Select
    alias: str
    conditions: Sequence[exp.Expr]
    words: Sequence[exp.Expr]


def statements(body: str, language: str) -> list[tuple[int, int, str]]:
    """Return the queries whose rows a function returns: where each is in its body, and its text."""
    found: list[tuple[int, int, str]] = []
    for one in _STATEMENT.finditer(body):
        if language != "sql":
            masked = _LEXED.sub(
                lambda part: " " * len(part[0]) if part[1] or part[3] else part[0], one[0]
            )
            start = _RETURNED.search(masked)
            if start is not None:
                found.append((one.start() + start.end(), one.end(), one[0][start.end() :]))
        elif without_comments(one[0]).strip():
            found[:] = [(one.start(), one.end(), one[0])]
    return found


def parts_of(body: str) -> list[str]:
    """Return the statements of a body."""
    return [one[0] for one in _STATEMENT.finditer(body)]


def executed(text: str, arguments: Sequence[str]) -> str | None:
    """Return the query of `execute` with the values of `using`; None for another statement.

    It saw no names of the function, so arguments are their places there.
    """
    text = without_comments(text).strip()
    one = _EXECUTED.fullmatch(text)
    if one is None:
        if re.match(r"execute\b", text, re.IGNORECASE):
            raise Unknown("its query is put together when it runs")
        return None
    (query,) = parsed(one[1].replace("''", "'"))
    given = parsed(f"select {one[2] or 'null'}")[0]
    for name in list(given.find_all(exp.Column)):
        if name_of(name) not in arguments:
            raise Unknown(f"its query has the variable {name_of(name)}")
        number = exp.Literal.number(arguments.index(name_of(name)) + 1)
        name.replace(exp.Parameter(this=number))
    using = given.expressions
    for place in list(query.find_all(exp.Parameter)):
        if not place.name.isdigit() or int(place.name) > len(using):
            raise Unknown("its query is put together when it runs")
        place.replace(exp.paren(using[int(place.name) - 1].copy()))
    return text_of(query)


@dataclass
class Query:
    """A query over the adopted table, read. Raises Unknown.

    `arguments`: names that are values of the call; `asked`: those that have words of the question.
    `sees_table`: whether the name of the table without its schema is the table.
    """

    text: str
    source: Source
    arguments: Collection[str]
    asked: Collection[str]
    sees_table: bool
    leaves: list[Leaf] = field(default_factory=list)

    def __post_init__(self) -> None:
        trees = parsed(self.text)
        tree = trees[0].unnest() if len(trees) == 1 else None
        if isinstance(tree, exp.SetOperation):
            raise Unknown(f"its {tree.key} is not kept")
        if not isinstance(tree, exp.Select):
            raise Unknown("its body does more than to return a query")
        self.tree = tree
        self._refuse()
        for select in self._readers:
            own = [one for one in relations_of(select) if self._is_source(one)]
            if len(own) > 1:
                raise Unknown("it joins the table with itself")
            others = [one for one in relations_of(select) if one is not own[0]]
            if not any(map(self._reads, others)):
                self.leaves.append(self._leaf(select, own[0]))
            elif not self._is_joined_by_key(select, own[0]):
                raise Unknown("it shows other rows of the table than those that it finds")
        if not self.leaves:
            raise Unknown("its query does not name the table")
        for leaf in self.leaves:
            # What is left out beside the hits is not known.
            if leaf.select is not tree and self._shown_key(leaf.select) is None:
                raise Unknown("a part of it reads other rows than those that it finds")
        aliases = [alias_of(one) for one in relations_of(tree) if self._is_source(one)]
        for order in (tree.args["order"].expressions if tree.args.get("order") else [])[:1]:
            shown = {one.alias_or_name: one.unalias() for one in tree.expressions}
            by = shown.get(order.this.name, order.this)
            if isinstance(by, exp.Column) and table_of(by) in aliases:
                raise Unknown(f"it orders by {text_of(order)}")

    def _refuse(self) -> None:
        tree, names = self.tree, self._ctes
        kinds = (exp.Except, exp.Intersect, exp.Insert, exp.Update, exp.Delete, exp.Merge)
        for one in tree.find_all(*kinds):
            raise Unknown(f"its {one.key} is not kept")
        if any(one.args.get("recursive") for one in tree.find_all(exp.With)):
            raise Unknown("its query is recursive")
        if self.source.name in names or len(names) < len(list(tree.find_all(exp.CTE))):
            raise Unknown("a name of its with is ambiguous")
        for one in tree.find_all(exp.Distinct):
            if one.args.get("on"):
                raise Unknown("its distinct on is not kept")
        for window in tree.find_all(exp.Window):
            if window.args.get("partition_by") and window.parent_select in self._outside:
                raise Unknown("its groups of rows (partition by) are not kept")
        # What a condition reads must be whole, and what it finds are hits alone.
        for name in self._conditional & {
            name_of(one) for one in tree.find_all(exp.Table) if not is_within(one)
        }:
            if self._reads(names[name].this):
                raise Unknown(f"a condition reads {name}, too")

    @cached_property
    def _ctes(self) -> dict[str, exp.CTE]:
        return {name_of(one.args["alias"]): one for one in self.tree.find_all(exp.CTE)}

    @cached_property
    def _conditional(self) -> set[str]:
        """The names of `with` that conditions and columns read."""
        tables = self.tree.find_all(exp.Table)
        return {name_of(one) for one in tables if is_within(one)} & self._ctes.keys()

    @cached_property
    def _readers(self) -> list[exp.Select]:
        """The selects from the table whose rows the query returns: none within a condition."""
        hidden = [self._ctes[one] for one in self._conditional]
        return [
            one
            for one in self._outside
            if any(map(self._is_source, relations_of(one)))
            and not any(cte in _parents(one) for cte in hidden)
        ]

    @cached_property
    def _outside(self) -> list[exp.Select]:
        """The selects that are in no condition and no column."""
        return [one for one in self.tree.find_all(exp.Select) if not is_within(one)]

    def _is_source(self, node: exp.Expr) -> bool:
        schema = name_of(node.args.get("db"))
        is_seen = schema == self.source.schema if schema else self.sees_table
        return is_seen and isinstance(node, exp.Table) and name_of(node) == self.source.name

    def _reads(self, node: exp.Expr) -> bool:
        """Return whether a relation has rows of the table."""
        cte = self._ctes.get(name_of(node)) if isinstance(node, exp.Table) else None
        inner = cte.this if cte is not None else node
        return any(
            self._is_source(one) or (one is not inner and self._reads(one))
            for one in inner.find_all(exp.Table)
        )

    def _is_joined_by_key(self, select: exp.Select, table: exp.Expr) -> bool:
        alias = alias_of(table)
        joins = [join for _, join in _joined(select) if join is not None]
        using = [name_of(one) for join in joins for one in join.args.get("using") or ()]
        return self.source.key in using or any(
            isinstance(bare := side.unnest(), exp.Column)
            and (table_of(bare), name_of(bare)) == (alias, self.source.key)
            for one in (one.unnest() for one in conditions_of(select, all_joins=True))
            for side in ((one.left, one.right) if isinstance(one, exp.EQ) else ())
        )

    def _leaf(self, select: exp.Select, table: exp.Expr) -> Leaf:
        if select.args.get("group") or select.args.get("having") or _aggregates(select):
            raise Unknown("its groups are not kept")
        orders = [one.args.get("order") for one in select.find_all(exp.Window)]
        if select.args.get("limit") or select is self.tree:
            orders.append(select.args.get("order"))
        if select.args.get("offset") and select is not self.tree:
            raise Unknown("an offset within its query is not kept")
        for order in orders:
            if order is not None and not self._is_retrieval(order.expressions[0].this, select):
                raise Unknown(f"it orders by {text_of(order.expressions[0])}")
        conditions = [one for one in conditions_of(select) if one != exp.true()]
        words = [one for one in conditions if self._is_of_words(one, select)]
        # "embedding is not null" is true of what a search by an embedding finds.
        kept = [
            one
            for one in conditions
            if one not in words and not _is_distance(one) and not self._is_of_vectors(one)
        ]
        return Leaf(select, alias_of(table), kept, words)

    def _is_retrieval(self, node: exp.Expr, select: exp.Select) -> bool:
        """Return whether an expression is about words or distances, with what columns are."""
        if isinstance(node, exp.Literal) and node.is_int:
            node = select.expressions[min(int(node.name), len(select.expressions)) - 1]
        named = {one.alias: one.this for one in select.expressions if isinstance(one, exp.Alias)}
        reads = [node, *(named[one.name] for one in node.find_all(exp.Column) if one.name in named)]
        return any(_operator(part) or _is_text(part) for one in reads for part in one.walk())

    def _is_of_vectors(self, condition: exp.Expr) -> bool:
        """Return whether a condition reads embeddings alone."""
        kinds = {self.source.columns.get(name_of(one)) for one in condition.find_all(exp.Column)}
        return bool(kinds) and kinds <= {"vector", "halfvec"}

    def _is_of_words(self, condition: exp.Expr, select: exp.Select) -> bool:
        """Return whether a condition is `@@` of the question or its rank above 0, or a distance."""
        bare = condition.unnest()
        if isinstance(bare, exp.Or):
            sides = (bare.this, bare.expression)
            return any(self._is_of_words(one, select) for one in sides) and all(
                self._is_of_words(one, select) or _is_distance(one) for one in sides
            )

        is_asked = partial(self._is_asked, select=select)
        if isinstance(bare, exp.GT) and bare.expression.name in ("0", "0.0"):
            rank = bare.this.unnest()
            return _is_text(rank) and any(is_plain(one, is_asked) for one in rank.expressions)
        sides = (bare.this, bare.args.get("expression"))
        return _operator(bare) in ("@@", "@@@") and any(
            is_plain(words, is_asked) and is_plain(text) for words, text in (sides, sides[::-1])
        )

    def _is_asked(self, node: exp.Expr, select: exp.Select) -> bool:
        """Return whether a name has words of the question, also by a relation of one row."""
        if isinstance(node, exp.Parameter):
            return f"${node.name}" in self.asked
        table, name = table_of(node), name_of(node)
        for relation in relations_of(select):
            if table in ("", alias_of(relation)):
                made, within = self._made(relation, name, select)
                if made is not None:
                    return is_plain(made, partial(self._is_asked, select=within))
        names = {alias_of(one) for one in relations_of(select)}
        return name in self.asked and table not in names and name not in self.source.columns

    def _made(
        self, relation: exp.Expr, name: str, select: exp.Select
    ) -> tuple[exp.Expr | None, exp.Select]:
        """Return what a column of a relation of one row is, and where that is written."""
        alias = relation.args.get("alias")
        columns = [name_of(one) for one in (alias.args.get("columns") if alias else None) or ()]
        if isinstance(relation, exp.Table) and isinstance(relation.this, exp.Anonymous):
            return relation.this if name in (alias_of(relation), *columns) else None, select
        cte = self._ctes.get(name_of(relation)) if isinstance(relation, exp.Table) else None
        inner = (cte.this if cte is not None else relation).unnest()
        if not isinstance(inner, exp.Select) or relations_of(inner) or columns:
            return None, select
        named = [one.unalias() for one in inner.expressions if one.alias_or_name == name]
        return next(iter(named), None), inner

    @cached_property
    def key(self) -> exp.Expr:
        """The key of the table's row that a row of the result is of."""
        tree, relations = self.tree, relations_of(self.tree)
        # The table itself has the key of each row; of joined sides, one can have none.
        own = [one for one in relations if self._is_source(one)] or relations
        found = [
            exp.column(name, table=alias_of(one), quoted=True)
            for one in own
            if (name := self._key_name(one)) is not None
        ]
        shown = [one.unalias() for one in tree.expressions if self._is_key(one.unalias(), tree)]
        group = tree.args.get("group")
        if group is not None:
            listed = [
                tree.expressions[int(one.name) - 1].unalias() if one.is_int else one
                for one in group.expressions
            ]
            found = [one.copy() for one in listed if self._is_key(one, tree)]
        elif _aggregates(tree) or (tree.args.get("distinct") and not shown):
            found = []
        if not found:
            raise Unknown("its rows have no key of the table")
        return found[0] if len(found) == 1 else exp.Anonymous(this="coalesce", expressions=found)

    def _key_name(self, relation: exp.Expr) -> str | None:
        """Return the column of a relation that has keys of the table."""
        if self._is_source(relation):
            return self.source.key
        cte = self._ctes.get(name_of(relation)) if isinstance(relation, exp.Table) else None
        inner = (cte.this if cte is not None else relation).unnest()
        while isinstance(inner, exp.SetOperation):
            inner = inner.this.unnest()
        alias = (cte if cte is not None else relation).args.get("alias")
        renamed = [name_of(one) for one in alias.args.get("columns") or ()] if alias else []
        return self._shown_key(inner, renamed) if isinstance(inner, exp.Select) else None

    def _shown_key(self, select: exp.Select, renamed: Sequence[str] = ()) -> str | None:
        """Return what a select calls the column of its result that has keys of the table."""
        for place, one in enumerate(select.expressions):
            value = one.unalias()
            if isinstance(value, exp.Star) or isinstance(value.this, exp.Star):
                of = table_of(value) if isinstance(value, exp.Column) else ""
                others = [x for x in relations_of(select) if of in ("", alias_of(x))]
                if name := next(filter(None, map(self._key_name, others)), None):
                    return name
            elif self._is_key(value, select):
                own = one.args["alias"] if isinstance(one, exp.Alias) else one
                return renamed[place] if place < len(renamed) else name_of(own)
        return None

    def _is_key(self, node: exp.Expr, select: exp.Select) -> bool:
        node = node.unnest()
        if isinstance(node, exp.Cast):
            return self._is_key(node.this, select)
        if isinstance(node, exp.Anonymous) and _function(node) == "coalesce":
            return all(self._is_key(one, select) for one in node.expressions)
        return isinstance(node, exp.Column) and any(
            table_of(node) in ("", alias_of(one)) and self._key_name(one) == name_of(node)
            for one in relations_of(select)
        )

    def names_with(self, node: exp.Expr) -> bool:
        """Return whether a part of the query reads a name of its with."""
        return any(name_of(one) in self._ctes for one in node.find_all(exp.Table))

    def clause(self, name: str) -> str:
        """Return the expression of limit, fetch or offset as SQL, empty without one.

        Without a limit of the whole, that of the first inner query, or the sum of those that find.
        """
        trees: list[Any] = [self.tree]
        if name == "limit":
            leaves = [one.select for one in self.leaves]
            trees += [one for one in self._outside if one not in leaves and self._reads(one)]
            if not any(one.args.get(name) for one in trees):
                limits = [self._bound(one.args.get(name)) for one in leaves]
                return " + ".join(limits) if all(limits) else ""
        return next(filter(None, (self._bound(one.args.get(name)) for one in trees)), "")

    def _bound(self, node: exp.Expr | None) -> str:
        if isinstance(node, exp.Fetch):
            return text_of(node.args.get("count")) or "1"
        return "" if node is None else f"({text_of(node.expression)})"

    @property
    def is_row(self) -> bool:
        """Whether its columns are those of the table, also of later ones."""
        own = relations_of(self.tree)
        stars = [one for one in self.tree.expressions if one.is_star]
        of = table_of(stars[0]) if stars else ""
        found = [self._is_source(one) for one in own if of in ("", alias_of(one))]
        return len(stars) == len(self.tree.expressions) == 1 and found == [True]

    @property
    def has_star(self) -> bool:
        """Whether it shows all columns of something."""
        return any(one.is_star for one in self.tree.expressions)

    def _with_key(self, tree: exp.Select) -> str:
        """Return the query with the key as its last column, or alone if it shows whole rows."""
        if self.is_row:
            tree.set("expressions", [])
        return text_of(tree.select(self.key, copy=False), pretty=True)

    def up_to(self, limit: str, *, is_page: bool) -> str:
        """Return the query as it is written, with the key; of a page, all rows to its end."""
        tree = self.tree.copy()
        if is_page:
            tree.set("offset", None)
            # Rows of the same rank are on one page.
            tree.order_by(self.key.copy(), copy=False)
            bound = parsed(f"select {limit}")[0].expressions if limit else []
            tree.set("limit", exp.Limit(expression=bound[0]) if bound else None)
        return self._with_key(tree)

    def _has_words(self, leaf: Leaf) -> exp.Expr:
        """Return the condition that the search has found a row of a leaf by its words."""
        hits = "(select hit.key from drop_in_hits as hit where hit.has_words)"
        key = f"{quoted(leaf.alias)}.{quoted(self.source.key)}"
        condition: exp.Expr = parsed(f"select {key} in {hits}")[0].expressions[0]
        return condition

    def over(self, rows: str) -> str:
        """Return the query over other rows of the table, with the key as its last column.

        Without its order and limits; a condition on the words of the question is that the search
        has found the row by them.
        """
        tree = self.tree.copy()
        leaves = {id(one.select): one for one in self.leaves}
        pairs = zip(self.tree.find_all(exp.Select), tree.find_all(exp.Select), strict=True)
        for own, one in list(pairs):
            leaf = leaves.get(id(own))
            for name in ("order", "limit", "offset") if leaf or own is self.tree else ():
                one.set(name, None)
            if leaf is None:
                continue
            for condition in list(conditions_of(one)):
                parts = list(condition.walk()) if condition in leaf.words else []
                for part in parts:
                    if not isinstance(part.unnest(), exp.Or) and self._is_of_words(part, own):
                        part.replace(self._has_words(leaf))
            for table in list(filter(self._is_source, relations_of(one))):
                other = exp.table_(rows, alias=exp.to_identifier(leaf.alias, quoted=True))
                other.set("joins", table.args.get("joins"))
                table.replace(other)
        return self._with_key(tree)


def compared_with_claims(
    trees: Sequence[exp.Expr], table: str, variables: Collection[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the columns that are compared with a claim: table, column, path of the claim."""
    for tree in trees:
        for equal in tree.find_all(exp.EQ, exp.NullSafeEQ):
            for column, value in ((equal.this, equal.expression), (equal.expression, equal.this)):
                column = column.unnest()
                column = column.this if isinstance(column, exp.Cast) else column
                if not isinstance(column, exp.Column) or value.find(exp.From):
                    continue
                if is_about_users(text_of(value)) or name_of(value) in variables:
                    paths = [one.expression for one in value.find_all(*_PATHS)][::-1]
                    keys = [
                        str(key.this)
                        for path in paths
                        for key in path.find_all(exp.JSONPathKey, exp.Literal)
                    ]
                    select = column.parent_select
                    own = {
                        alias_of(x): name_of(x) for x in (relations_of(select) if select else ())
                    }
                    relation = own.get(table_of(column)) or next(iter(own.values()), table)
                    yield relation, name_of(column), keys or ["sub"]


def conditions_of(select: exp.Select, *, all_joins: bool = False) -> Iterator[exp.Expr]:
    """Yield the conditions of a select and of its joins that restrict rows."""
    where = select.args.get("where")
    yield from _conjuncts(where.this if where else None)
    for _, join in _joined(select):
        if join is not None and (all_joins or not join.side):
            yield from _conjuncts(join.args.get("on"))


def _conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    inner = condition.unnest() if condition is not None else None
    if isinstance(inner, exp.And):
        yield from _conjuncts(inner.this)
        yield from _conjuncts(inner.expression)
    elif condition is not None:
        yield condition


def alias_of(relation: exp.Expr) -> str:
    """Return what a query calls a table or another relation."""
    return name_of(relation.args.get("alias")) or name_of(relation)


def table_of(column: exp.Expr) -> str:
    """Return the name before that of a column, empty without one."""
    return name_of(column.args.get("table"))


def relations_of(select: exp.Select) -> list[exp.Expr]:
    """Return what a select is from, with its joins, also those in brackets."""
    return [one for one, _ in _joined(select)]


def _joined(node: exp.Expr) -> Iterator[tuple[exp.Expr, exp.Join | None]]:
    from_ = node.args.get("from_")
    if from_ is not None:
        yield from _joined(from_.this)
    elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table | exp.Subquery):
        yield from _joined(node.this)
    elif not isinstance(node, exp.Select):
        yield node, None
    for join in node.args.get("joins") or []:
        (first, _), *others = _joined(join.this)
        yield first, join
        yield from others


def _parents(node: exp.Expr | None) -> Iterator[exp.Expr]:
    while node is not None:
        yield node
        node = node.parent


def is_within(node: exp.Expr) -> bool:
    """Return whether a node is in a condition or a column of a query."""
    return any(
        isinstance(one, exp.Where | exp.Having)
        or (isinstance(one.parent, exp.Select | exp.Join) and one.arg_key in ("expressions", "on"))
        for one in _parents(node)
    )


def _aggregates(select: exp.Select) -> bool:
    """Return whether a select makes one row of several."""
    return any(
        _function(one) in _AGGREGATES
        and not isinstance(one.parent, exp.Window)
        and one.parent_select is select
        for one in select.find_all(exp.Func)
    )


def _function(node: exp.Expr) -> str:
    return (node.name if isinstance(node, exp.Anonymous) else node.key).lower()


def _operator(node: exp.Expr) -> str:
    return node.args["operator"].split(".")[-1] if isinstance(node, exp.Operator) else ""


def _is_distance(condition: exp.Expr) -> bool:
    return any(_operator(one) in ("<=>", "<->", "<#>") for one in condition.walk())


def _is_text(node: exp.Expr) -> bool:
    return isinstance(node, exp.Like | exp.ILike) or (
        isinstance(node, exp.Anonymous) and _TEXT_FUNCTION.search(node.name) is not None
    )

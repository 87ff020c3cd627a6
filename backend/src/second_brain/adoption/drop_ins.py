"""Drop-ins: functions over this search with the name, arguments and result of old ones.

A drop-in keeps the header of the old function, its conditions on rows, and, where its query is one
plain select, its columns and its joins too. Only the retrieval is replaced: adopted_hits returns
the keys of rows, best first, and the drop-in reads them from the table with the rights of the old
function.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from second_brain.adoption import queries, replaced
from second_brain.adoption.queries import Conditions, Source, literal, quoted
from second_brain.services.install import Database

_SOURCE = """
select namespace.nspname, class.relname,
       (
         select json_object_agg(
                  attribute.attname, array[type.typname::text, type.typtype::text]
                  order by attribute.attnum
                )
           from pg_catalog.pg_attribute as attribute
           join pg_catalog.pg_type as type on type.oid = attribute.atttypid
          where attribute.attrelid = class.oid
            and attribute.attnum > 0
            and not attribute.attisdropped
       ),
       array[adoption.key_column], array[adoption.key_type],
       pg_catalog.pg_get_viewdef(%(view)s::regclass), adoption.embedding_column,
       class.relrowsecurity,
       exists (
         select
           from pg_catalog.pg_index as index
           join pg_catalog.pg_class as indexed on indexed.oid = index.indexrelid
           join pg_catalog.pg_am as method on method.oid = indexed.relam
          where index.indrelid = class.oid and method.amname = 'hnsw'
       )
  from public.knowledge_adoptions as adoption
  join pg_catalog.pg_class as class on class.oid = adoption.source
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where adoption.name = %(name)s
"""
_IS_SHARED = """
select exists (
         select
           from public.knowledge_documents as document
          where document.collection = %(collection)s
            and document.source_row ->> 'adoption' is distinct from %(name)s
       )
"""
_UNIQUE = """
select class.relname, attribute.attname
  from pg_catalog.pg_index as index
  join pg_catalog.pg_class as class on class.oid = index.indrelid
  join pg_catalog.pg_attribute as attribute
    on attribute.attrelid = index.indrelid and attribute.attnum = index.indkey[0]
 where index.indisunique and index.indnkeyatts = 1 and index.indpred is null
"""
_TABLES = """
select class.relname, array_agg(attribute.attname::text)
  from pg_catalog.pg_class as class
  join pg_catalog.pg_attribute as attribute on attribute.attrelid = class.oid
 where class.relkind in ('r', 'p', 'v', 'm', 'f')
   and class.relnamespace <> 'pg_catalog'::regnamespace
   and attribute.attnum > 0
   and not attribute.attisdropped
 group by class.relname
"""
_FUNCTION = """
select namespace.nspname, proc.proname, format('%%I.%%I', namespace.nspname, proc.proname),
       format('%%I.%%I', before.schema, before.name), proc.oid::regprocedure::text,
       pg_catalog.pg_get_functiondef(proc.oid),
       coalesce(pg_catalog.pg_get_function_sqlbody(proc.oid), proc.prosrc), proc.prosecdef,
       array_to_string(proc.proconfig, ',') ~ 'search_path=',
       coalesce((
         select jsonb_agg(array[
                  coalesce(nullif(proc.proargnames[listed.place], ''), '$' || listed.place),
                  type.typname, pg_catalog.format_type(listed.type, null)
                ] order by listed.place)
           from unnest(proc.proargtypes::oid[]) with ordinality as listed (type, place)
           join pg_catalog.pg_type as type on type.oid = listed.type
       ), '[]'),
       proc.pronargs - proc.pronargdefaults, proc.prorettype = class.reltype,
       coalesce((
         select jsonb_agg(
                  array[listed.name, pg_catalog.format_type(listed.type, null)]
                  order by listed.place
                )
           from (
             select listed.name, listed.type, listed.place
               from unnest(proc.proargnames, proc.proallargtypes, proc.proargmodes)
                    with ordinality as listed (name, type, mode, place)
              where listed.mode in ('t', 'o', 'b')
             union all
             select attribute.attname, attribute.atttypid, attribute.attnum
               from pg_catalog.pg_type as type
               join pg_catalog.pg_attribute as attribute on attribute.attrelid = type.typrelid
              where type.oid = proc.prorettype
                and attribute.attnum > 0
                and not attribute.attisdropped
           ) as listed
       ), '[]'),
       array(
         select role.rolname
           from pg_catalog.pg_roles as role
          where not proc.prosecdef
            and role.rolname in ('anon', 'authenticated', 'service_role')
            and has_function_privilege(role.oid, proc.oid, 'execute')
            and has_table_privilege(role.oid, class.oid, 'select')
          order by role.rolname
       ),
       case when proc.proowner <> current_user::regrole then proc.proowner::regrole::text end,
       before.schema, before.name, kept.oid is not null,
       coalesce(pg_catalog.obj_description(kept.oid, 'pg_proc'), '')
         ~ '^Was .* before the adoption '
  from pg_catalog.pg_proc as proc
  join pg_catalog.pg_namespace as namespace on namespace.oid = proc.pronamespace
  join pg_catalog.pg_class as class on class.oid = %(source)s::regclass
 -- A name has at most 63 bytes. A body that may name the function keeps this name, elsewhere.
 cross join lateral (
         select case
                  when strpos(lower(proc.prosrc), lower(proc.proname) || '.') > 0
                    then array[%(internals)s, proc.proname]
                  else array[
                    namespace.nspname,
                    left(
                      proc.proname, 56 - octet_length(proc.proname) + char_length(proc.proname)
                    ) || '_before'
                  ]
                end
       ) as named (parts)
 cross join lateral (select named.parts[1], named.parts[2]) as before (schema, name)
  left join pg_catalog.pg_proc as kept
    on kept.pronamespace = to_regnamespace(quote_ident(before.schema))
   and kept.proargtypes = proc.proargtypes
   and kept.proname = before.name
 where proc.oid = %(signature)s::regprocedure
"""
_ROLES = (
    ("text_weight", r"(p_|match_)?(full_?text|text|keyword|bm25|lexical|fts)_weight"),
    ("vector_weight", r"(p_|match_)?(semantic|vector|embedding)_weight"),
    ("rrf_k", r".*rrf_?k.*"),
    ("threshold", r".*(threshold|min_?similarity|min_?relevance|max_?distance).*"),
)
_OF_SOURCE = ("", "source")  # how the view of an adoption names a column of the table
_COUNT = r".*(count|limit|top_?k|max_results).*|(p_)?k"
# Literals of the header can have any text.
_PART = rf"((?>{queries.QUOTED}|[^'\"])*?)"
_HEADER = re.compile(
    rf"{_PART}\n LANGUAGE \w+{_PART}(?:AS \$|\nBEGIN ATOMIC|\n ?RETURN ).*", re.DOTALL
)
_FOUND = "found (found_key, found_place, found_similarity, found_score, found_text_score)"


def adopted(database: Database, name: str) -> Source:
    """Read what drop-ins need to know of an adoption."""
    view = f"{database.install.internals}.adopted_{name}"
    row: Any = database.execute(_SOURCE, {"name": name, "view": view}).fetchone()
    schema, table, attributes, key, key_types, definition, embedding, *facts = row
    has_policies, has_hnsw = facts
    columns = {name: kind for name, (kind, _) in attributes.items()}
    carried, searched, collection = _mapped(definition, columns)
    given = {"collection": collection, "name": name}
    (is_shared,) = database.execute(_IS_SHARED, given).fetchone() or (False,)
    return Source(
        schema,
        table,
        columns,
        {name: "enum" if attributes[name][1] == "e" else kind for name, kind in carried.items()},
        searched,
        dict(zip(key, key_types, strict=True)),
        name,
        database.install,
        collection,
        is_shared,
        dict(database.execute(_TABLES).fetchall()),
        {(table, column) for table, column in database.execute(_UNIQUE).fetchall()},
        embedding,
        has_policies,
        has_hnsw,
    )


def _mapped(
    definition: str, columns: Mapping[str, str]
) -> tuple[dict[str, str], set[str], str | None]:
    """Return the columns that metadata has in the view of an adoption, with their types.

    And those whose words are searched, and the collection that all rows are in.
    """
    try:
        (mapping,) = queries.parsed(definition)
    except SqlglotError:
        return {}, set(), None  # No filter follows from a condition then.
    carried: dict[str, str] = {}
    searched: set[str] = set()
    collection: str | None = None
    for field_ in mapping.expressions if isinstance(mapping, exp.Select) else ():
        named = {queries.name_of(node) for node in field_.find_all(exp.Column)}
        if field_.alias_or_name in ("content", "title", "heading"):
            searched |= named
        if field_.alias_or_name == "collection":
            value = field_.this.this if isinstance(field_.this, exp.Cast) else field_.this
            collection = value.name if isinstance(value, exp.Literal) else None
        if field_.alias_or_name != "metadata":
            continue
        named = {
            queries.name_of(node)
            for node in field_.find_all(exp.Column)
            if node.text("table") in _OF_SOURCE
        }
        for name in named:
            if columns.get(name) in ("json", "jsonb"):
                carried[name] = "metadata"
        for call in field_.find_all(exp.Anonymous):
            for key, value in zip(call.expressions[::2], call.expressions[1::2], strict=False):
                is_own = isinstance(value, exp.Column) and value.text("table") in _OF_SOURCE
                name = queries.name_of(value) if is_own else ""
                shown = key.find(exp.Literal)
                if name in columns and shown and shown.name == name:
                    carried[name] = columns[name]
    return carried, searched, collection


@dataclass(frozen=True)
class Function:
    """A searching function, as the catalogues describe it.

    `before` is its name once its drop-in has taken its place; `as_sql` and `before_as_sql` are both
    names with the schema, as SQL. `is_ours`: a function of that name is the one that an earlier
    drop-in, which is gone, had replaced. `arguments` have a name (`$1` for
    none), a type without its schema, and the type as SQL. `roles`: which API roles call it as
    themselves and read the table.
    """

    schema: str
    name: str
    as_sql: str
    before_as_sql: str
    signature: str
    definition: str
    body: str
    is_definer: bool
    has_search_path: bool
    arguments: Sequence[tuple[str, str, str]]
    required: int
    returns_rows: bool
    columns: Sequence[tuple[str, str]]
    roles: Sequence[str]
    other_owner: str | None
    before_schema: str
    before: str
    has_before: bool
    is_ours: bool

    def part(self, query: queries.Query | None, place: int) -> str | None:
        """Return what an argument is: embedding, question, a weight, rrf_k, threshold or count.

        None for all others, which conditions and columns use as they are.
        """
        argument, kind, _ = self.arguments[place - 1]
        name = argument.lower()
        named = [_named_part(*one) for one in self.arguments]
        if named[place - 1]:
            return named[place - 1]
        if (
            kind in ("text", "varchar")
            and "question" not in named
            and query is not None
            # Beside an embedding, a pattern is a condition.
            and query.compares_text(argument, patterns="embedding" not in named)
        ):
            return "question"
        found = [part for part, pattern in _ROLES if re.fullmatch(pattern, name)]
        is_count = kind in ("int4", "int8") and re.fullmatch(_COUNT, name)
        return found[0] if found else "count" if is_count else None


def _named_part(argument: str, kind: str, _: str) -> str | None:
    name = argument.lower()
    if kind in ("vector", "halfvec") or (
        kind in ("text", "varchar", "jsonb", "json", "_float4", "_float8")
        and re.search("embedding|vector", name)
    ):
        return "embedding"
    is_question = re.search("query|search|keyword|question|term", name)
    return "question" if kind in ("text", "varchar") and is_question else None


@dataclass
class DropIn:
    """A drop-in: the `statements` that put it in the place of `function`.

    `notes`: what differs. `left`: why the function stays as it is. `undecided`: why it may return
    other rows or columns than the old function; a person decides. `parts`: the places of the
    arguments by what they are, from 1.

    The others compare the answers for `asked` rows as questions. Of the first ten rows of both,
    `both_rows` counts those of the drop-in that the old function returns too, however many it is
    asked for, `old_rows` those that the drop-in lacks; `new_rows` are keys that only the drop-in
    returns, `conditions` what those rows do not meet and all others do. `users`: users with few
    rows, and how many rows both functions return to each.
    """

    function: Function
    source: Source
    query: queries.Query | None
    parts: dict[str, int] = field(default_factory=dict)
    given: Conditions = field(default_factory=Conditions)
    left_out: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    left: str | None = None
    scores: list[str] = field(default_factory=list)
    asked: int = 0
    both_rows: int = 0
    old_rows: int = 0
    new_rows: list[str] = field(default_factory=list)
    users: list[tuple[str, int, int]] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        function, source, query = self.function, self.source, self.query
        for place in range(1, len(function.arguments) + 1):
            part = function.part(query, place)
            if part is not None:
                self.parts[part] = place
        names = [name for name, _, _ in function.arguments]
        if query is not None:
            self.given = query.conditions(names, self.named("question"))
        reasons = {
            "its body does more than to return one query, so its conditions are not known": (
                query is None
            ),
            "its query does not name the table": query and not query.names_source,
            "none of its arguments is an embedding or a question": self.parts.keys().isdisjoint(
                ("embedding", "question")
            ),
            **dict.fromkeys(self.given.undecided, True),
            f"there is a function {function.before}": (
                function.has_before and not function.is_ours
            ),
            f"it belongs to {function.other_owner}: create the drop-in as that role": (
                function.other_owner
            ),
            "its collection has other documents: adopt the table again with a --collection of its "
            "own": source.is_shared,
        }
        self.undecided = [reason for reason, holds in reasons.items() if holds]
        body = self._body()
        if "question" not in self.parts and not self._finds_more():
            self.left = "it searches by an embedding alone, and finds the same rows as fast itself"
        threshold = self.named("threshold")
        scores = ", ".join(self.scores)
        notes = {
            **dict.fromkeys([*self.given.notes, *self.left_out], True),
            f"{scores}: of this search, on another scale": scores,
            "it returns at most 1,000 rows": not re.search(r"limit \d{1,3}\n", body),
            "a visitor gets at most 50 rows, for the first 1,000 characters of a question": (
                "anon" in function.roles
            ),
            f"{threshold} is the least similarity of hits by their embedding; hits by words can "
            "have less": self.parts.keys() >= {"question", "threshold", "embedding"},
            "the old function computes a score; hits come in the order of this search": (
                query and query.has_computed_order()
            ),
            **{
                f"its argument {name} is not used": not re.search(
                    rf"(?<![\w$])({re.escape(name)}|\${place})(?!\w)", body
                )
                for place, name in enumerate(names, 1)
            },
        }
        self.notes = [note for note, holds in notes.items() if holds]
        self.statements = self._statements(body)

    @property
    def is_about_users(self) -> bool:
        """Whether the old function reads the claims of its caller."""
        return queries.is_about_users(self.function.body)

    def compared_with_claims(self, policies: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
        """Yield table, column and path of a claim that decides which rows a caller sees.

        Of the query, and of the policies of the table where the function runs as its caller.
        """
        read = [self.query]
        if self.function.roles and self.source.has_policies:
            table = f"{quoted(self.source.schema)}.{quoted(self.source.name)}"
            selects = [f"select from {table} where {policy}" for policy in policies]
            read += [queries.read(one, self.source, ()) for one in selects]
        for query in read:
            if query is not None:
                yield from query.of_users()

    @property
    def kept(self) -> str:
        """The old function under its other name, as SQL."""
        types = ", ".join(type_ for _, _, type_ in self.function.arguments)
        return f"{self.function.before_as_sql}({types})"

    def _finds_more(self) -> bool:
        """Return whether a search by an embedding alone can find rows that the old function misses.

        An HNSW index stops before it has the rows that policies and conditions leave.
        """
        is_filtered = self.given.kept or (self.function.roles and self.source.has_policies)
        return bool(self.source.has_hnsw and is_filtered)

    def named(self, part: str) -> str | None:
        """Return the name of the argument that is a part of the search."""
        return self.function.arguments[self.parts[part] - 1][0] if part in self.parts else None

    def search_path(self) -> str:
        """Return the schemas of the function, of the table and of pgvector."""
        schemas = {self.function.schema, self.source.schema, self.source.install.extensions}
        return ", ".join([*map(quoted, sorted(schemas)), "pg_temp"])

    def _embedding(self) -> str | None:
        place = self.parts.get("embedding")
        if place is None:
            return None
        is_json = self.function.arguments[place - 1][1] in ("json", "jsonb")
        return f"${place}{'::text' if is_json else ''}::{self.source.install.extensions}.vector"

    def _columns(self) -> str:
        """Return the columns for a query that is no plain select: columns by name, and scores."""
        if self.function.returns_rows:
            return "source.*"
        vector, embedding = self.source.vector(self.query), self._embedding()
        similarity, extensions = "found_text_score", self.source.install.extensions
        if vector is not None and embedding is not None:
            similarity = (
                f"coalesce(found_similarity, 1 - ((source.{quoted(vector)})::{extensions}.vector "
                f"operator({extensions}.<=>) {embedding}))"
            )
        scores = {
            "similarity|cosine|(vector|semantic|embedding)_?score": similarity,
            "(text|keyword|fts|bm25|lexical)_?(rank|score)|^rank$": "coalesce(found_text_score, 0)",
            "distance": f"1 - {similarity}",
            "score|relevance|^rrf|_rank$": "found_score",
            "^(is_)?(keyword|text)_match$": "found_text_score is not null",
            "^total_count$": "count(*) over ()",
        }
        shown = []
        for place, (name, type_) in enumerate(self.function.columns):
            read = self.query.result(place) if self.query else ""
            if read:
                shown.append(f"({read})::{type_}")
                continue
            own = [f"source.{quoted(name)}"] if name in self.source.columns else []
            values = own + [scores[one] for one in scores if re.search(one, name, re.IGNORECASE)]
            if not values:
                self.undecided.append(f"nothing is known for its column {name}")
            elif not own:
                self.scores.append(name)
            shown.append(f"({[*values, 'null'][0]})::{type_}")
        return ",\n         ".join(shown)

    def _body(self) -> str:
        source, query = self.source, self.query
        count = query.clause("limit") if query else ""
        skipped = query.clause("offset") if query else ""
        if not count and "count" in self.parts:
            count = f"${self.parts['count']}"
        most = "1000"
        if count:
            most = f"coalesce({count}, 1000)" + (f" + coalesce({skipped}, 0)" if skipped else "")
            most = f"least(greatest({most}, 1), 1000)::integer"
        alias, shown = "source", ""
        tables = f"\n    join {quoted(source.schema)}.{quoted(source.name)} as source on true"
        if query is not None and query.is_plain:
            alias, shown, tables = query.alias, query.shown(), f",\n         {query.tables()}"
        conditions = [
            f"{alias}.{quoted(name)} = (found_key ->> {literal(name)})::{type_}"
            for name, type_ in source.key.items()
        ]
        lines = [
            f"  select {shown or self._columns()}",
            f"    from {self._search(most)}{tables}",
            "   where " + "\n     and ".join([*conditions, *self.given.kept]),
            "   order by found_place",
            f"   limit {count}" if count else "",
            f"  offset {skipped}" if skipped else "",
        ]
        return "\n" + "".join(f"{line}\n" for line in lines if line)

    def _search(self, most: str) -> str:
        """Return the call of the search."""
        source, parts = self.source, self.parts
        given, filters = [f"'match_count', {most}"], self.given.filters
        if "question" in parts:
            given.append(f"'query_text', ${parts['question']}")
            weights = ("text_weight", "vector_weight", "rrf_k")
            given += [f"'{one}', ${parts[one]}" for one in weights if one in parts]
            if parts.keys() >= {"threshold", "embedding"}:
                is_distance = "distance" in str(self.named("threshold")).lower()
                given.append(
                    f"'match_threshold', {'1 - ' if is_distance else ''}${parts['threshold']}"
                )
        else:
            # A condition of the old function compares the distances of all hits.
            given.append("'match_threshold', -1")
        if source.collection is not None:
            filters = [
                "jsonb_build_array(jsonb_build_object('field', 'collection', 'op', 'eq', "
                f"'value', {literal(source.collection)}::text))",
                *filters,
            ]
        if filters:
            given.append("'filters', " + "\n               || ".join(filters))
        name = "adopted_hits" if self.function.is_definer else "adopted_hits_for_caller"
        return (
            f"{source.install.internals}.{name}(\n"
            f"           {literal(source.adoption)}, {self._embedding() or 'null'},\n"
            "           jsonb_build_object(\n             "
            + ",\n             ".join(given)
            + f"\n           )\n         ) as {_FOUND}"
        )

    def _statements(self, body: str) -> list[str]:
        """Return the statements that keep the old function for its owner, and create the drop-in.

        One that runs as its caller searches through the readers of its callers.
        """
        function, internals = self.function, self.source.install.internals
        # The body is the last part; Postgres chooses its marks.
        header = _HEADER.sub(r"\1\n LANGUAGE sql\2", function.definition).rstrip("\n")
        if not function.has_search_path:
            header += f"\n SET search_path TO {self.search_path()}"
        mark = "$call$"
        while mark in body:
            mark = "$call_" + mark[1:]
        kept = self.kept
        was = f"Was {function.as_sql} before the adoption {self.source.adoption}."
        statements = [f"drop function {kept}"] if function.is_ours else []
        statements += [
            replaced.renamed(function.definition, function.as_sql, function.before_as_sql),
            f"revoke all on function {kept} from public, anon, authenticated, service_role",
            f"comment on function {kept} is {literal(was)}",
            f"{header}\nAS {mark}{body}{mark}",
        ]
        for role in function.roles:
            if role != "service_role":
                statements.append(
                    f"select {internals}.let_search({literal(role)}, for_drop_ins => true)"
                )
            statements.append(f"grant usage on schema {internals} to {role}")
            statements.append(
                f"grant execute on function {internals}.adopted_hits_for_caller to {role}"
            )
        return statements


def write(database: Database, signature: str, source: Source) -> DropIn:
    """Write the drop-in of a function."""
    table = f"{quoted(source.schema)}.{quoted(source.name)}"
    given = {"signature": signature, "source": table, "internals": database.install.internals}
    row: Any = database.execute(_FUNCTION, given).fetchone()
    function = Function(*row)
    names = [name for name, _, _ in function.arguments]
    left_out: list[str] = []
    query = queries.read(function.body, source, names, function.name, left_out)
    return DropIn(function, source, query, left_out=left_out)

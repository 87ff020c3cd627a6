"""Drop-ins: functions over this search with the name, arguments and result of old ones.

A drop-in is the old function with other rows to choose from: in each query that it returns, the
adopted table is the hits of adopted_hits, and the order is theirs. All else stays as it is written:
columns, joins, conditions, scores, and what the body does before. The old query follows in the same
statement: it fills up an answer that has fewer rows than were asked for.
"""

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from second_brain.adoption import conditions, queries, replaced
from second_brain.adoption.queries import (
    Query,
    Source,
    Unknown,
    literal,
    name_of,
    quoted,
    table_of,
)
from second_brain.services.install import Database

_SOURCE = """
select namespace.nspname, class.relname, adoption.key_column, adoption.key_type,
       adoption.embedding_column, class.relrowsecurity,
       exists (
         select
           from pg_catalog.pg_index as index
           join pg_catalog.pg_class as indexed on indexed.oid = index.indexrelid
           join pg_catalog.pg_am as method on method.oid = indexed.relam
          where index.indrelid = class.oid and method.amname = 'hnsw'
       ),
       pg_catalog.pg_get_viewdef(%(view)s::regclass),
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
       array(
         select distinct document.collection
           from public.knowledge_documents as document
          where document.source_row ->> 'adoption' = adoption.name
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
       proc.oid::regprocedure::text, pg_catalog.pg_get_functiondef(proc.oid),
       coalesce(pg_catalog.pg_get_function_sqlbody(proc.oid), proc.prosrc), language.lanname,
       proc.prosecdef,
       (
         select substr(setting, 13) from unnest(proc.proconfig) as setting
          where setting like 'search_path=%%'
       ),
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
            and has_any_column_privilege(role.oid, class.oid, 'select')
          order by role.rolname
       ),
       exists (
         select
           from pg_catalog.pg_roles as role
          where not proc.prosecdef
            and role.rolname in ('anon', 'authenticated', 'service_role')
            and has_function_privilege(role.oid, proc.oid, 'execute')
            and has_any_column_privilege(role.oid, class.oid, 'select')
            and not has_table_privilege(role.oid, class.oid, 'select')
       ),
       case when proc.proowner <> current_user::regrole then proc.proowner::regrole::text end
  from pg_catalog.pg_proc as proc
  join pg_catalog.pg_language as language on language.oid = proc.prolang
  join pg_catalog.pg_namespace as namespace on namespace.oid = proc.pronamespace
  join pg_catalog.pg_class as class on class.oid = %(source)s::regclass
 where proc.oid = %(signature)s::regprocedure
"""
# Whether the name of a table without its schema is the table: by the search_path, and where this
# has none of the name, as the only one.
_SEES = """
select coalesce(to_regclass(quote_ident(class.relname)) = class.oid, %(is_any)s and (
         select count(*) = 1 from pg_catalog.pg_class as other
          where other.relname = class.relname and other.relkind in ('r', 'p', 'v', 'm', 'f')
       ))
  from pg_catalog.pg_class as class where class.oid = %(source)s::regclass
"""
_PATH = "select set_config('search_path', %s, true)"
_PARTS = (
    ("text_weight", r"(p_|match_)?(full_?text|text|keyword|bm25|lexical|fts)_weight"),
    ("vector_weight", r"(p_|match_)?(semantic|vector|embedding)_weight"),
    ("rrf_k", r".*rrf_?k.*"),
    ("threshold", r".*(threshold|min_?similarity|min_?relevance|max_?distance).*"),
)
_COUNT = r".*(count|limit|top_?k|max_results).*|(p_)?k"
_QUESTION = (
    r"(\w+_)?(query|search|keywords?|question|terms?)(_?(text|query|string|terms?|phrase|words?))?"
)
_DISTANCE = r"operator\s*\([^)]*<[=#-]>\)"
# An argument that is compared by a distance, or cast to what is.
_COMPARED = (
    rf"{_DISTANCE}[\s(]*(?:cast\s*\(\s*)?(?:\w+\s*\.\s*)?{{0}}"
    rf"|{{0}}[\s)]*(?:::\s*[\w.]+(?:\(\w+\))?[\s)]*)?{_DISTANCE}"
    r"|{0}(?:\s*::\s*text)?[\s)]*(?:::|\sas\s)\s*(?:\w+\.)?(?:vector|halfvec)\b"
)
_OF_SOURCE = ("", "source")  # how the view of an adoption names a column of the table
_ATOMIC = re.compile(r"\s*BEGIN ATOMIC\s(.*)END\s*", re.DOTALL)
_DECLARED = re.compile(r"\s*(?:#\w+\s+\w+\s+)*declare\b(.*?)\bbegin\b", re.DOTALL | re.IGNORECASE)
_TEMPLATE = """  select {shown}
    from {search} as hit
    join {table} as source on source.{key} = (hit.key ->> {key_name})::{key_type}
   where true -- the conditions of the old function
   order by hit.place"""
_SELECTED = re.compile(r"(?:\s*(?:begin|then|else)\b)*\s*(select\b.*)", re.DOTALL | re.IGNORECASE)
_PAGED = "100"  # hits of a function with pages: the same ones for each page
_MANY = 10  # times as many hits as rows where a condition is no filter
# A returned query of a drop-in. {limit}: or all; the old query has the rows that are missing.
_ANSWER = """with drop_in_hits as materialized (
  select (hit.key ->> {key_name})::{key_type} as key, hit.place, hit.has_words
    from {search} as hit
), drop_in_source as materialized (
  select source.* from drop_in_hits as hit join {table} as source on source.{key} = hit.key
), drop_in_rows as materialized (
  select fresh.*, hit.place from (
    {fresh}
  ) as fresh ({columns}found_key)
    join drop_in_hits as hit on hit.key = fresh.found_key
   order by hit.place{most}
)
select {shown} from (
  select shown.* from drop_in_rows as shown
  union all
  select old.* from (
    select old.*, 1000000 + row_number() over () from (
      {old}
    ) as old ({columns}found_key)
  ) as old
   where {is_short}
     and not exists (select from drop_in_rows as shown where shown.found_key = old.found_key)
) as answer ({columns}found_key, place){rows}
 order by answer.place{bounds}"""
# The rows of the keys, with the columns that the table has by then.
_ROWS = "\n  join {table} as source on source.{key} = answer.found_key"


def adopted(database: Database, name: str) -> Source:
    """Read what drop-ins need to know of an adoption."""
    view = f"{database.install.internals}.adopted_{name}"
    row: Any = database.execute(_SOURCE, {"name": name, "view": view}).fetchone()
    *facts, definition, columns, collections = row
    carried = {
        one: "metadata" if is_whole else "enum" if columns[one][1] == "e" else columns[one][0]
        for one, is_whole in _carried(definition).items()
        if one in columns and (not is_whole or columns[one][0] in ("json", "jsonb"))
    }
    # Not where each row says its collection.
    collection = collections[0] if len(collections) == 1 else None
    given = {"collection": collection, "name": name}
    (is_shared,) = database.execute(_IS_SHARED, given).fetchone() or (False,)
    values = [
        *facts,
        {name: kind for name, (kind, _) in columns.items()},
        carried,
        name,
        database.install,
        collection,
        is_shared,
        dict(database.execute(_TABLES).fetchall()),
    ]
    return Source(*values)


def _carried(definition: str) -> dict[str, bool]:
    """Return the columns that metadata has in the view of an adoption, and whether they are it."""
    found: dict[str, bool] = {}
    # Without a view that the parser reads, no filter follows from a condition.
    with contextlib.suppress(Unknown):
        for field_ in (one for tree in queries.parsed(definition) for one in tree.expressions):
            if field_.alias_or_name == "metadata":
                columns = [*field_.find_all(exp.Column)]
                found |= {name_of(one): True for one in columns if table_of(one) in _OF_SOURCE}
                for call in field_.find_all(exp.Anonymous):
                    for shown, part in itertools.pairwise(call.expressions):
                        text = shown.find(exp.Literal)
                        if part in columns and text and text.name == name_of(part):
                            found[name_of(part)] = False
    return found


@dataclass(frozen=True)
class Function:
    """A searching function, as the catalogues describe it.

    `as_sql` is its name with the schema. `arguments` have a name (`$1` for none), a type without
    its schema, and the type as SQL. `roles`: which API roles call it as themselves and read the
    table; `has_partial_roles`: whether one of them reads some columns alone. `sees_table`: whether
    the name of the table without its schema is the table.
    """

    schema: str
    name: str
    as_sql: str
    signature: str
    definition: str
    body: str
    language: str
    is_definer: bool
    search_path: str | None
    arguments: Sequence[tuple[str, str, str]]
    required: int
    returns_rows: bool
    columns: Sequence[tuple[str, str]]
    roles: Sequence[str]
    has_partial_roles: bool
    other_owner: str | None
    sees_table: bool

    def parts(self) -> dict[str, int]:
        """Return the places of the arguments by what they are: embedding, question, count, ...

        Conditions and columns use all others as they are. Raises Unknown.
        """
        code = queries.without_comments(self.body)
        assigned = [*queries.assignments(self.body)] if self.language != "sql" else []
        words = queries.names_of_words(self.body)
        for name, value in [one for one in assigned for _ in assigned]:
            words |= {*re.findall(r"[\w$]+", value)} if name in words else set()
        found: dict[str, int] = {}
        used: dict[str, list[int]] = {"embedding": [], "question": []}
        others: dict[str, list[int]] = {"embedding": [], "question": []}
        for place, (argument, kind, _) in enumerate(self.arguments, 1):
            name = argument.lower()
            is_text = kind in ("text", "varchar")
            is_vector = kind in ("vector", "halfvec")
            # In PL/pgSQL, $1 is mostly of what is executed.
            names = {argument, name, *((f"${place}",) if self.language == "sql" else ())}
            itself = rf"(?<![\w$])(?:{'|'.join(map(re.escape, names))})(?!\w)"
            if is_text and names & words:
                used["question"].append(place)
            elif (is_vector or is_text or kind in ("jsonb", "json", "_float4", "_float8")) and (
                re.search(_COMPARED.format(itself), code, re.IGNORECASE)
            ):
                used["embedding"].append(place)
            elif is_vector or (is_text and re.fullmatch(_QUESTION, name)):
                others["embedding" if is_vector else "question"].append(place)
            elif kind in ("int4", "int8") and re.fullmatch(_COUNT, name):
                found.setdefault("count", place)
            else:
                named = next((one for one, like in _PARTS if re.fullmatch(like, name)), None)
                found |= {named: place} if named else {}
        for part, places in used.items():
            places = places or others[part][:1]
            if len(places) > 1:
                several = ", ".join(self.arguments[place - 1][0] for place in places)
                raise Unknown(f"several of its arguments are the {part}: {several}")
            found |= {part: places[0]} if places else {}
        return found


@dataclass
class DropIn:
    """A drop-in: the `statements` that put it in the place of `function`.

    `notes`: what differs. `left`: why the function stays as it is. `undecided`: why it may return
    other rows or columns than the old function; a person decides. `parts`: the places of the
    arguments by what they are, from 1. `claims`: variables that are claims of the caller;
    `trees`: statements that set variables.

    `users`: the owner and users with few rows, and how many rows both functions return to each for
    `asked` rows as questions.
    """

    function: Function
    source: Source
    parts: dict[str, int] = field(default_factory=dict)
    queries: list[Query] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    left: str | None = None
    claims: set[str] = field(default_factory=set)
    trees: list[exp.Expr] = field(default_factory=list)
    asked: int = 0
    users: list[tuple[str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        function, source = self.function, self.source
        try:
            self.parts = function.parts()
            body = self._body()
        except Unknown as reason:
            self.undecided.append(str(reason))
            body = self._template()
        reasons = {
            "none of its arguments is an embedding or a question": not self.undecided
            and self.parts.keys().isdisjoint(("embedding", "question")),
            f"it belongs to {function.other_owner}: create the drop-in as that role": (
                function.other_owner
            ),
            "a role that calls it may select some columns of the table alone": (
                function.has_partial_roles
            ),
            "its collection has other documents: adopt the table again with a --collection of its "
            "own": source.is_shared,
        }
        self.undecided += [reason for reason, holds in reasons.items() if holds]
        if "question" not in self.parts and not self._finds_more():
            self.left = "it searches by an embedding alone, and finds the same rows as fast itself"
        limits = [one.clause("limit") for one in self.queries]
        notes = {
            "it returns at most 1,000 rows of this search, then those of the old query": not all(
                re.fullmatch(r"\(\d{1,3}\)", one) for one in limits
            ),
            "a visitor gets at most 50 rows of this search, for the first 1,000 characters of a "
            "question, then those of the old query": "anon" in function.roles,
            "its rows come in the order of this search; its scores are computed as before": (
                "question" in self.parts
            ),
            f"its pages have {_PAGED} rows of this search, then those of the old query": any(
                one.clause("offset") for one in self.queries
            ),
            "it counts the hits alone": any(
                one.tree.find(exp.Window)
                and re.search(r"count\(.*\) over", one.text, re.IGNORECASE)
                for one in self.queries
            ),
        }
        self.notes = [note for note, holds in notes.items() if holds]
        self.statements = self._statements(body)

    @property
    def names_table(self) -> bool:
        """Whether the function can be about the table, and not another of this name."""
        function, source = self.function, self.source
        qualified = rf'(?<!\w)"?{re.escape(source.schema)}"?\s*\.\s*"?{re.escape(source.name)}'
        is_qualified = re.search(qualified, function.body, re.IGNORECASE)
        return function.sees_table or function.returns_rows or bool(is_qualified)

    @property
    def is_about_users(self) -> bool:
        """Whether the old function reads the claims of its caller."""
        return queries.is_about_users(self.function.body)

    def compared_with_claims(self, policies: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
        """Yield table, column and path of a claim that decides which rows a caller sees.

        Of its queries, and of the policies of the table where the function runs as its caller.
        """
        trees = [*self.trees, *(one.tree for one in self.queries)]
        if self.function.roles and self.source.has_policies:
            for policy in policies:
                trees += queries.parsed(f"select from {self.source.as_sql} where {policy}")
        yield from queries.compared_with_claims(trees, self.source.name, self.claims)

    @property
    def kept_schema(self) -> str:
        """The schema that has the old function, as SQL: there, it keeps its name."""
        return quoted(f"{self.source.install.internals}_{self.function.schema}")

    @property
    def kept_name(self) -> str:
        """The old function, as SQL."""
        return f"{self.kept_schema}.{quoted(self.function.name)}"

    @property
    def kept(self) -> str:
        """The old function with the types of its arguments, as SQL."""
        types = ", ".join(type_ for _, _, type_ in self.function.arguments)
        return f"{self.kept_name}({types})"

    def _finds_more(self) -> bool:
        """Return whether a search by an embedding alone can find rows that the old function misses.

        An HNSW index stops before it has the rows that policies and conditions leave.
        """
        leaves = [leaf for one in self.queries for leaf in one.leaves]
        is_filtered = any(leaf.conditions for leaf in leaves) or (
            self.function.roles and self.source.has_policies
        )
        return bool(self.source.has_hnsw and (is_filtered or not leaves))

    def named(self, part: str) -> str | None:
        """Return the name of the argument that is a part of the search."""
        return self.function.arguments[self.parts[part] - 1][0] if part in self.parts else None

    def search_path(self) -> str:
        """Return the schemas of the table, of the function and of pgvector."""
        schemas = (self.source.schema, self.function.schema, self.source.install.extensions)
        return ", ".join([*map(quoted, dict.fromkeys(schemas)), "pg_temp"])

    def _body(self) -> str:
        """Return the body with each query that it returns over hits. Raises Unknown."""
        function = self.function
        atomic = _ATOMIC.fullmatch(function.body)
        body = atomic[1] if atomic else function.body
        code = queries.without_comments(body)
        declared = _DECLARED.match(code)
        names = {name for name, _, _ in function.arguments}
        names |= {f"${place}" for place in range(1, len(function.arguments) + 1)}
        parts = queries.parts_of(code)
        asked = self._asked()
        for one in filter(None, map(_SELECTED.match, parts if declared else ())):
            with contextlib.suppress(Unknown):
                self.trees += queries.parsed(one[1])
        for statement in queries.parts_of(declared[1]) if declared else ():
            names |= {word.lower() for word in statement.split()[:1]}
        returned = queries.statements(body, function.language)
        is_executed = False
        for start, end, text in reversed(returned):
            inner = queries.executed(text, [name for name, _, _ in function.arguments])
            is_executed = is_executed or inner is not None
            query = Query(inner or text, self.source, names, asked, function.sees_table)
            self.queries.append(query)
            body = f"{body[:start]}{self._answer(query)}{body[end:]}"
        if not returned:
            raise Unknown("its body returns no query")
        # What is executed sees no names of the function.
        return f"\n#variable_conflict use_column\n{body}" if is_executed else body

    def _asked(self) -> set[str]:
        """Return the names that have words of the question; note those that have claims."""
        values: dict[str, list[str]] = {}
        if self.function.language != "sql":
            for name, value in queries.assignments(self.function.body):
                values.setdefault(name, []).append(value)
                if queries.is_about_users(value):
                    self.claims.add(name)
        own = str(self.named("question"))
        asked = {own, f"${self.parts['question']}"} if "question" in self.parts else set()
        if not all(queries.are_words(one, asked) for one in values.pop(own, [])):
            return set()
        before: set[str] = set()
        while asked != before:
            before = {*asked}
            asked |= {
                name
                for name, listed in values.items()
                if name not in before
                and all(queries.are_words(one, {*before, name}) for one in listed)
            }
        return asked

    def _template(self) -> str:
        """Return a body to begin with: the rows of the hits, the columns by their names."""
        source, count = self.source, self.parts.get("count")
        most = f"least(greatest(coalesce(${count}, 1000), 1), 1000)" if count else "1000"
        shown = ",\n         ".join(
            f"(source.{quoted(name)})::{type_}" if name in source.columns else f"null::{type_}"
            for name, type_ in self.function.columns
        )
        query = _TEMPLATE.format(
            shown="source.*" if self.function.returns_rows else shown,
            search=self._search(most, [], ""),
            table=source.as_sql,
            key=quoted(source.key),
            key_name=literal(source.key),
            key_type=source.key_type,
        )
        is_sql = self.function.language == "sql"
        return query if is_sql else f"begin\n  return query\n{query};\nend"

    def _answer(self, query: Query) -> str:
        source = self.source
        limit, skipped = query.clause("limit"), query.clause("offset")
        filters, keys, is_whole = conditions.narrowing(query)
        if self.function.returns_rows and query.has_star and not query.is_row:
            raise Unknown("its columns are not those of the table alone")
        # The rows of a page are counted from the first row of all.
        most = f"{limit}::bigint + coalesce({skipped}, 0)" if limit and skipped else limit
        count = f"coalesce({limit}, 1000)" if limit else "1000"
        count = count if is_whole else f"{_MANY} * ({count})"
        count = _PAGED if skipped else count
        rows = "(select count(*) from drop_in_rows)"
        columns = [f"c{one}" for one in range(len(self.function.columns) or 1)]
        columns = [] if query.is_row else columns
        names = {"key": quoted(source.key), "table": source.as_sql}
        return _ANSWER.format(
            key_name=literal(source.key),
            key_type=source.key_type,
            **names,
            search=self._search(f"least(greatest({count}, 1), 1000)::integer", filters, keys),
            fresh=query.over("drop_in_source"),
            old=query.up_to(most if skipped else "", is_page=bool(skipped)),
            columns="".join(f"{one}, " for one in columns),
            shown=", ".join(f"answer.{one}" for one in columns) or "source.*",
            most=f"\n   limit {most}" if limit else "",
            is_short=f"({rows} < {most}) is not false" if limit else "true",
            rows=_ROWS.format(**names) if query.is_row else "",
            bounds=(f"\n limit {limit}" if limit else "")
            + (f"\n offset {skipped}" if skipped else ""),
        )

    def _search(self, most: str, filters: Sequence[str], keys: str) -> str:
        """Return the call of the search."""
        source, parts = self.source, self.parts
        given = [f"'match_count', {most}"]
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
            own = f"'field', 'collection', 'op', 'in', 'value', {literal(source.collection)}::text"
            filters = [f"jsonb_build_object({own})", *filters]
        listed = ",\n               ".join(filters)
        given.append(f"'conditions', jsonb_build_array(\n               {listed}\n             )")
        if keys:
            given.append(f"'keys', to_jsonb(array{keys})")
        embedding = "null"
        if "embedding" in parts:
            place = parts["embedding"]
            is_json = self.function.arguments[place - 1][1] in ("json", "jsonb")
            embedding = f"${place}{'::text' * is_json}::{source.install.extensions}.vector"
        name = "adopted_hits" if self.function.is_definer else "adopted_hits_for_caller"
        arguments = ",\n             ".join(given)
        call = f"{source.install.internals}.{name}({literal(source.adoption)}, {embedding},"
        return f"{call}\n           jsonb_build_object(\n             {arguments}\n           ))"

    def _statements(self, body: str) -> list[str]:
        """Return the statements that keep the old function for its owner, and create the drop-in.

        One that runs as its caller searches through the readers of its callers.
        """
        function, internals = self.function, self.source.install.internals
        # The body is the last part; Postgres chooses its marks.
        header = function.definition[: function.definition.rindex(function.body)]
        header = re.sub(r"AS \$\w*\$\Z", "", header).rstrip("\n")
        if function.search_path is None:
            header += f"\n SET search_path TO {self.search_path()}"
        mark = "$call$"
        while mark in body:
            mark = "$call_" + mark[1:]
        kept = self.kept
        drop_in = kept.replace(self.kept_name, function.as_sql, 1)
        names = ", ".join(map(literal, (kept, drop_in, self.source.adoption)))
        statements = [
            f"create schema if not exists {self.kept_schema}",
            # Of a drop-in that is gone.
            f"drop function if exists {kept}",
            replaced.renamed(function.definition, function.as_sql, self.kept_name),
            f"{header}\nAS {mark}{body}{mark}",
            f"select {internals}.keep_old_search({names})",
        ]
        return statements + [
            f"select {internals}.let_search({literal(role)}, for_drop_ins => true)"
            for role in function.roles
        ]


def write(database: Database, signature: str, source: Source) -> DropIn:
    """Write the drop-in of a function."""
    given = {"signature": signature, "source": source.as_sql}
    row: Any = database.execute(_FUNCTION, given).fetchone()
    path: str | None = row[8]
    seen: Any = None
    with database.connection.transaction(force_rollback=True):
        if path is not None:
            database.execute(_PATH, [path])
        seen = database.execute(_SEES, given | {"is_any": path is None}).fetchone()
    facts = [*row, *seen]
    return DropIn(Function(*facts), source)

"""Functions of a project that search an adopted table: found, replaced, and compared.

`drop_ins` writes what replaces them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from second_brain.adoption import carrying
from second_brain.adoption.migration import view_name
from second_brain.errors import ConfigurationError
from second_brain.extras import needed
from second_brain.services.install import Database

if TYPE_CHECKING:
    from second_brain.adoption.drop_ins import DropIn

_QUESTIONS = 20
_ROWS = 10  # that a comparison asks for

# The functions that search a table and are no drop-ins: they have an embedding as an argument, or
# search by words or distances, and name the table.
_SEARCHING = """
select proc.oid::regprocedure::text
  from pg_catalog.pg_proc as proc
  join pg_catalog.pg_language as language on language.oid = proc.prolang
  join pg_catalog.pg_namespace as namespace on namespace.oid = proc.pronamespace
  join pg_catalog.pg_class as class on class.oid = %(source)s::regclass
 cross join lateral (
         select coalesce(pg_catalog.pg_get_function_sqlbody(proc.oid), proc.prosrc)
       ) as body (code)
 where proc.prokind = 'f'
   and language.lanname in ('sql', 'plpgsql')
   and namespace.nspname not in ('pg_catalog', 'information_schema', 'extensions')
   -- Those of this package, drop-ins, and what they replaced; a quoted name can contain anything.
   and not starts_with(namespace.nspname, %(internals)s)
   and strpos(regexp_replace(body.code, '"[^"]*"', '', 'g'), %(internals)s || '.') = 0
   and not exists (
         select
           from pg_catalog.pg_depend as dependency
          where dependency.classid = 'pg_catalog.pg_proc'::regclass
            and dependency.objid = proc.oid
            and dependency.deptype = 'e'
       )
   and (
     body.code ~* '@@|ts_rank|<=>|<#>|<->'
     or exists (
          select
            from unnest(proc.proargtypes::oid[]) as listed (type)
            join pg_catalog.pg_type as type on type.oid = listed.type
           where type.typname in ('vector', 'halfvec')
        )
   )
   and (
     proc.prorettype = class.reltype
     or ' ' || body.code || ' ' ~* (
          '[^[:alnum:]_$]'
          -- As a quoted name has them.
          || regexp_replace(replace(class.relname, '"', '""'), '(\\W)', '\\\\\\1', 'g')
          || '[^[:alnum:]_]'
        )
   )
 order by proc.oid::regprocedure::text
"""
# Some rows of the table as questions: each column as text, and words of the content.
_ASKED = """
select {columns}, array_to_string((regexp_split_to_array(btrim(adopted.content), '\\s+'))[1:5], ' ')
  from {table} as source
  join knowledge_internal.{view} as adopted on adopted.key_1 = {key}
 order by sha256(convert_to(({key})::text, 'UTF8'))
 limit %(most)s
"""
_ANSWERED = "select count(*) from {function}({given})"
# Whose policies, and the value of a column that the fewest rows have.
_POLICIES = """
select pg_catalog.pg_get_expr(policy.polqual, policy.polrelid)
  from pg_catalog.pg_policy as policy
 where policy.polrelid = %s::regclass and policy.polqual is not null
   and policy.polcmd in ('r', '*')
"""
_TABLE_OF = """
select class.oid::regclass::text
  from pg_catalog.pg_class as class
  join pg_catalog.pg_attribute as attribute on attribute.attrelid = class.oid
 where class.relname = %s and attribute.attname = %s and class.relkind in ('r', 'p', 'v', 'm')
 order by class.oid = %s::regclass desc
 limit 1
"""
_FEWEST = """
select source.{column}::text from {table} as source
 where source.{column} is not null group by 1 order by count(*), 1 limit 1
"""
_CLAIMS = "select set_config('request.jwt.claims', %s, true)"


def searching(database: Database, source: str) -> list[str]:
    """List the functions that search a table and are no drop-ins."""
    given = {"source": source, "internals": database.install.internals}
    return [name for (name,) in database.execute(_SEARCHING, given).fetchall()]


def keep(database: Database, name: str, *, run: bool = False) -> "list[DropIn]":
    """Write the drop-ins of an adoption and compare them with the functions that they replace.

    With `run`, those without anything undecided stay; else all is rolled back. Raises
    ConfigurationError while rows are not carried over: the drop-ins would not find them.
    """
    with needed("sqlglot", "adoption"):
        from second_brain.adoption import drop_ins
    adoption = carrying.named(database, name)
    missing = next(carrying.pages(database, name, 1000, only_missing=True), [])
    known = [one.key for one in carrying.problems(database, name)]
    if any(key not in known for key in missing):
        raise ConfigurationError(
            f"rows of {adoption.source} are not carried over, and the drop-ins would not find them",
            remedy=f"Run: second-brain adopt --backfill {name}",
        )
    source = drop_ins.adopted(database, name)
    found = searching(database, adoption.source)
    written = [drop_ins.write(database, one, source) for one in found]
    calls = [one for one in written if one.names_table]
    for call in calls:
        if call.left or call.function.other_owner:
            continue  # What another role wrote is not run as this one.
        try:
            with database.connection.transaction() as outer:
                for statement in call.statements:
                    database.connection.execute(statement.encode())
                compare(database, call)
                if call.undecided or not run:
                    raise psycopg.Rollback(outer)
        except psycopg.Error as error:
            call.undecided.append(f"it does not fit: {error.diag.message_primary}")
    return calls


def compare(database: Database, call: "DropIn") -> None:
    """Call the old function and its drop-in with rows of the table as questions."""
    source, function = call.source, call.function
    # The old function can need the search_path of its callers.
    database.connection.execute("select set_config('search_path', %s, true)", [call.search_path()])
    asked = database.execute(
        _ASKED,
        {"most": _QUESTIONS},
        columns=_texts(source.columns),
        table=_name(source.schema, source.name),
        view=sql.Identifier(view_name(source.adoption)),
        key=_name("source", source.key),
    ).fetchall()
    old_function, new_function = (
        database.install.composed(
            _ANSWERED, function=sql.SQL(name.replace("%", "%%")), given=_arguments(call)
        )
        for name in (call.kept_name, function.as_sql)
    )
    call.asked = len(asked)
    values: list[dict[str, Any]] = [
        {"most": _ROWS} | {f"value_{place}": value for place, value in enumerate(row)}
        for row in asked
    ]

    def rows(query: sql.Composed) -> int:
        found = [database.connection.execute(query, given).fetchone() for given in values]
        return sum(count for (count,) in filter(None, found))

    for shown, claims in [("the owner", None), *_users(database, call)]:
        before = None
        try:
            with database.connection.transaction(force_rollback=True):
                given = json.dumps({**claims, "role": "authenticated"}) if claims else ""
                database.connection.execute(_CLAIMS, [given])
                if claims and "authenticated" in function.roles:
                    for granted in (
                        f"usage on schema {call.kept_schema}",
                        f"execute on function {call.kept}",
                    ):
                        grant = f"grant {granted} to authenticated"
                        database.connection.execute(grant.encode())
                    database.connection.execute("set local role authenticated")
                before = rows(old_function)
                now = rows(new_function)
        except psycopg.Error as error:
            message = f"{shown}: {error.diag.message_primary}"
            if before is None:
                call.notes.append(f"not compared as {message}")
            else:
                call.undecided.append(f"it does not fit {message}")
            continue
        call.users.append((shown, before, now))
        if before == now == 0:
            call.notes.append(f"{shown} gets no row, before or now: this proves nothing")
        if now < before:
            call.undecided.append(f"{shown} gets {now} rows, and {before} before")
    if len(call.users) < 2 and call.is_about_users:
        call.notes.append("compared without a user, so the comparison shows nothing of users")


def _users(database: Database, call: "DropIn") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield users with few rows: the column and value by which, and the claims of their tokens."""
    source = call.source
    table = source.as_sql
    policies = database.connection.execute(_POLICIES, [table]).fetchall()
    for relation, column, path in call.compared_with_claims([one for (one,) in policies]):
        found = database.connection.execute(_TABLE_OF, [relation, column, table]).fetchone()
        value = (
            found
            and database.execute(
                _FEWEST, column=sql.Identifier(column), table=sql.SQL(found[0])
            ).fetchone()
        )
        if value:
            claims: Any = value[0]
            for key in reversed(path):
                claims = {key: claims}
            yield f"a user with {column} = {value[0]}", claims


def _name(*parts: str) -> sql.Identifier:
    """Return a name for a statement that has arguments, in which % begins one."""
    return sql.Identifier(*(part.replace("%", "%%") for part in parts))


def _texts(columns: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("source.{}::text").format(_name(one)) for one in columns)


def _arguments(call: "DropIn") -> sql.Composed:
    """Return the arguments of a function in a comparison; values are those of a row asked for."""
    function, source = call.function, call.source
    values = {name: f"%(value_{place})s" for place, name in enumerate(source.columns)}
    parts = {
        "embedding": values.get(source.vector or ""),
        "question": f"%(value_{len(values)})s",
        "count": "%(most)s",
        "threshold": "2" if "distance" in (call.named("threshold") or "").lower() else "-1",
    }
    roles = {place: part for part, place in call.parts.items()}
    given: list[sql.Composable] = []
    for place, (argument, kind, type_) in enumerate(function.arguments, 1):
        value = parts.get(roles.get(place, ""))
        bare = re.sub(r"^(p_|in_|filter_|match_|_+)", "", argument)
        for column in (argument, bare, f"{bare}_id") if place not in roles else ():
            if source.columns.get(column) == kind:
                value = value or values[column]
            elif f"_{source.columns.get(column)}" == kind:
                value = value or f"array[{values[column]}]"
        if value is None and kind == "jsonb" and place not in roles:
            value = "'{}'"
        is_named = not argument.startswith("$")
        if value or not is_named or place <= function.required:
            name = f"{_name(argument).as_string(None)} => " if is_named else ""
            # Placeholders, and names and types that Postgres wrote.
            type_ = type_.replace("%", "%%")
            given.append(sql.SQL(f"{name}({value or 'null'})::{type_}"))
    return sql.SQL(", ").join(given)


def migration(calls: "Sequence[DropIn]", name: str) -> str:
    """Return the SQL of drop-ins; those that a person must decide on are comments."""
    text = f"-- Drop-ins of the functions that search the table adopted as {name}.\n"
    for call in calls:
        if call.left:
            continue
        statements = "".join(f"{one};\n\n" for one in call.statements)
        # A line break would end the comment.
        reasons = [f"  {one}" for one in [*call.undecided, *call.notes]]
        lines = [re.sub(r"\n\s*|[\r\v\f]", " ", one) for one in [call.function.signature, *reasons]]
        text += "\n" + "".join(f"-- {one}\n" for one in lines)
        if call.undecided:
            text += "-- Not replaced: decide, change the drop-in, and remove these comment marks.\n"
            statements = "".join(f"-- {line}\n" for line in statements.splitlines())
        text += "\n" + statements
    return text.rstrip("\n") + "\n"

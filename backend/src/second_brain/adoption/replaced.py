"""Functions that drop-ins have replaced: how they come back."""

from collections.abc import Sequence
from typing import Any

from second_brain.errors import ConfigurationError
from second_brain.services.install import Database

# The comment that keep_old_search gives to the old function.
_REPLACED = """
select quote_ident(namespace.nspname), pg_catalog.pg_get_functiondef(proc.oid),
       format('%I.%I', namespace.nspname, proc.proname),
       was.parts[1], proc.oid::regprocedure::text, was.parts[2], present.oid,
       coalesce(knowledge_internal.drop_in_hash(present.oid) = was.parts[3], false)
  from pg_catalog.pg_proc as proc
  join pg_catalog.pg_namespace as namespace on namespace.oid = proc.pronamespace
 cross join regexp_match(
         pg_catalog.obj_description(proc.oid, 'pg_proc'),
         '^Was (.*) before the adoption (.*); its drop-in is (.*)[.]$'
       ) as was (parts)
  left join lateral (
         select called.oid
           from pg_catalog.pg_proc as called
           join pg_catalog.pg_namespace as space on space.oid = called.pronamespace
          where format('%I.%I', space.nspname, called.proname) = was.parts[1]
            and called.proargtypes = proc.proargtypes
       ) as present on true
 where was.parts is not null
   -- A comment that another role wrote on a function of its own brings nothing back.
   and proc.proowner in (
         select current_user::regrole
         union
         select class.relowner
           from pg_catalog.pg_class as class
          where class.oid = 'public.knowledge_adoptions'::regclass
       )
 order by proc.oid
"""
# The functions that call the search of an adoption. A quoted name can contain anything.
_CALLING = """
select proc.oid, proc.oid::regprocedure::text
  from pg_catalog.pg_proc as proc
 where strpos(regexp_replace(proc.prosrc, '"[^"]*"', '', 'g'), %(called)s) > 0
   and strpos(proc.prosrc, '(' || quote_literal(%(name)s) || ',') > 0
   and proc.pronamespace <> to_regnamespace(%(internals)s)
 order by 2
"""
_REVOKED = """
select format(revoked.sql, granted.grantee::regrole, proc.pronamespace::regnamespace)
  from pg_catalog.pg_proc as proc
 cross join lateral aclexplode(proc.proacl) as granted
  join pg_catalog.pg_roles as role on role.oid = granted.grantee
 cross join (
         values
           ('revoke execute on function knowledge_internal.adopted_hits_for_caller from %s'),
           ('revoke usage on schema %2$s from %1$s')
       ) as revoked (sql)
 where proc.oid = 'knowledge_internal.adopted_hits_for_caller'::regproc
   and role.rolname in ('anon', 'authenticated', 'service_role')
union all
select 'select knowledge_internal.write_readers()'
"""
_UNCHECKED = "set local check_function_bodies = off"  # of a table that has changed since


def undo(database: Database, name: str) -> list[str]:
    """Return the statements that bring the functions back that drop-ins have replaced.

    A function that has been replaced since stays as it is. With the last drop-in go the rights on
    the search that only drop-ins need. Raises ConfigurationError for functions that would stay and
    call the search.
    """
    found = database.execute(_REPLACED).fetchall()
    changed = _changed(database, name, found)
    if changed:
        raise ConfigurationError(
            "functions are not the drop-ins that --calls wrote, and call the search: "
            + ", ".join(changed.values()),
            remedy="Change them back, give them a body without the search, or drop them. The old"
            f" functions are in the schemas {database.install.internals}_*.",
        )
    statements = [
        statement
        for _, definition, kept, was, signature, adoption, _, is_drop_in in found
        if adoption == name
        for statement in (
            *([_UNCHECKED, renamed(definition, kept, was)] if is_drop_in else []),
            f"drop function {signature}",
        )
    ]
    if statements and all(row[5] == name for row in found):
        statements += [f"drop schema {one}" for one in sorted({row[0] for row in found})]
        statements += [statement for (statement,) in database.execute(_REVOKED).fetchall()]
    return statements


def faults(database: Database, name: str) -> list[str]:
    """List what is wrong with the drop-ins of an adoption: those that are gone, or have changed."""
    found = database.execute(_REPLACED).fetchall()
    changed = _changed(database, name, found)
    gone = [row for row in found if row[5] == name and not row[7] and row[6] not in changed]
    return [f"{one} is not the drop-in that --calls wrote" for one in changed.values()] + [
        f"{row[3]} is no drop-in any more" for row in gone
    ]


def _changed(database: Database, name: str, found: Sequence[Any]) -> dict[int, str]:
    """Return the functions that search an adoption and are not as --calls wrote them."""
    internals = database.install.internals
    written = [row[6] for row in found if row[7]]
    given = {"called": f"{internals}.adopted_hits", "internals": internals, "name": name}
    rows = database.execute(_CALLING, given).fetchall()
    return {oid: signature for oid, signature in rows if oid not in written}


def renamed(definition: str, name: str, wanted: str) -> str:
    """Return the statement of a function with another name; both are names as SQL."""
    start = "CREATE OR REPLACE FUNCTION "
    return f"{start}{wanted}{definition.removeprefix(start + name)}"

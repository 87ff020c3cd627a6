"""Functions that drop-ins have replaced: how they come back."""

from second_brain.services.install import Database

# The comment that a drop-in's statements give to the old function.
_REPLACED = """
select pg_catalog.pg_get_functiondef(proc.oid), format('%I.%I', namespace.nspname, proc.proname),
       format('%I.%I', namespace.nspname, was.parts[1]), proc.oid::regprocedure::text, was.parts[2]
  from pg_catalog.pg_proc as proc
  join pg_catalog.pg_namespace as namespace on namespace.oid = proc.pronamespace
 cross join regexp_match(
         pg_catalog.obj_description(proc.oid, 'pg_proc'),
         '^Was (.*) before the adoption (.*)[.]$'
       ) as was (parts)
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
_REVOKED = """
select format(revoked.sql, granted.grantee::regrole)
  from pg_catalog.pg_proc as proc
 cross join lateral aclexplode(proc.proacl) as granted
  join pg_catalog.pg_roles as role on role.oid = granted.grantee
 cross join (
         values
           ('revoke execute on function knowledge_internal.adopted_hits_for_caller from %%s'),
           ('revoke usage on schema knowledge_internal from %%s')
       ) as revoked (sql)
 where proc.oid = 'knowledge_internal.adopted_hits_for_caller'::regproc
   and role.rolname in ('anon', 'authenticated', 'service_role')
   and %(is_last)s
union all
select 'select knowledge_internal.write_readers()' where %(is_last)s
"""


def undo(database: Database, name: str) -> list[str]:
    """Return the statements that bring the functions back that drop-ins have replaced.

    With the last drop-in go the rights on the search that only drop-ins need.
    """
    found = database.execute(_REPLACED).fetchall()
    statements = [
        statement
        for definition, kept, was, signature, adoption in found
        if adoption == name
        for statement in (renamed(definition, kept, was), f"drop function {signature}")
    ]
    if statements:
        is_last = all(row[-1] == name for row in found)
        revoked = database.execute(_REVOKED, {"is_last": is_last}).fetchall()
        statements += [statement for (statement,) in revoked]
    return statements


def renamed(definition: str, name: str, wanted: str) -> str:
    """Return the statement of a function with another name; both are names as SQL."""
    start = "CREATE OR REPLACE FUNCTION "
    return f"{start}{wanted}{definition.removeprefix(start + name)}"

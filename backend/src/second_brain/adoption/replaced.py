"""Functions that drop-ins have replaced: how they come back."""

from second_brain.services.install import Database

# The comment that a drop-in's statements give to the old function.
_REPLACED = """
select quote_ident(namespace.nspname), pg_catalog.pg_get_functiondef(proc.oid),
       format('%%I.%%I', namespace.nspname, proc.proname),
       was.parts[1], proc.oid::regprocedure::text, was.parts[2], coalesce(present.is_drop_in, false)
  from pg_catalog.pg_proc as proc
  join pg_catalog.pg_namespace as namespace on namespace.oid = proc.pronamespace
 cross join regexp_match(
         pg_catalog.obj_description(proc.oid, 'pg_proc'),
         '^Was (.*) before the adoption (.*)[.]$'
       ) as was (parts)
  left join lateral (
         -- A quoted name can contain anything.
         select strpos(
                  regexp_replace(called.prosrc, '"[^"]*"', '', 'g'),
                  %(internals)s || '.adopted_hits'
                ) > 0 as is_drop_in
           from pg_catalog.pg_proc as called
           join pg_catalog.pg_namespace as space on space.oid = called.pronamespace
          where format('%%I.%%I', space.nspname, called.proname) = was.parts[1]
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


def undo(database: Database, name: str) -> list[str]:
    """Return the statements that bring the functions back that drop-ins have replaced.

    A function that has been replaced since stays as it is. With the last drop-in go the rights on
    the search that only drop-ins need.
    """
    found = _found(database)
    statements = [
        statement
        for _, definition, kept, was, signature, adoption, is_drop_in in found
        if adoption == name
        for statement in (
            *([renamed(definition, kept, was)] if is_drop_in else []),
            f"drop function {signature}",
        )
    ]
    if statements and all(adoption == name for *_, adoption, _ in found):
        statements += [f"drop schema {one}" for one in sorted({row[0] for row in found})]
        statements.append(f"select {database.install.internals}.end_drop_in_searches()")
    return statements


def gone(database: Database, name: str) -> list[str]:
    """List the functions of an adoption that are no drop-ins any more."""
    return [
        was
        for *_, was, _, adoption, is_drop_in in _found(database)
        if adoption == name and not is_drop_in
    ]


def _found(database: Database) -> list[tuple[str, str, str, str, str, str, bool]]:
    return database.execute(_REPLACED, {"internals": database.install.internals}).fetchall()


def renamed(definition: str, name: str, wanted: str) -> str:
    """Return the statement of a function with another name; both are names as SQL."""
    start = "CREATE OR REPLACE FUNCTION "
    return f"{start}{wanted}{definition.removeprefix(start + name)}"

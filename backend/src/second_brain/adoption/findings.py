"""What `doctor` says of adoptions."""

from second_brain.adoption import carrying, replaced
from second_brain.database import naming, pgvector
from second_brain.database.doctor import Connection, Findings
from second_brain.services.install import Database, Install

# Rows of each adopted table that are compared: `adopt --check` compares all.
_COMPARED = 1000
_READERS = """
select found.fault, found.is_error
  from unnest(knowledge_internal.searching_roles()) as role (name)
 cross join lateral knowledge_internal.reader_faults(role.name) as found
"""


def findings(connection: Connection, schema: str) -> Findings:
    """Report adoptions that do not follow their tables, and rows that could not be carried over."""
    vector = pgvector.installed(connection)
    extensions = naming.EXTENSIONS if vector is None else vector.schema
    database = Database(connection, Install(schema, extensions))
    adoptions = carrying.listed(database)
    if not adoptions:
        yield "ok", "no table is adopted", None
    option = "" if schema == naming.SCHEMA else f" --schema {schema}"
    for one in adoptions:
        check = f"second-brain adopt --check {one.name}{option}"
        about = f"{one.name} ({one.source})"
        faults = carrying.faults(database, one.name)
        if faults:
            yield (
                "error",
                f"{about}: {'; '.join(faults)}",
                "Run the migration of the adoption again, or adopt the table again after a column"
                f" was renamed. Then repair what was missed: {check} --repair",
            )
            continue
        for fault in replaced.faults(database, one.name):
            yield (
                "warning",
                f"{about}: {fault}, a later statement has changed it",
                f"Write it again: second-brain adopt --calls {one.name}{option}. Or leave the new"
                " one: the same with --undo",
            )
        compared = carrying.compare(database, one.name, most=_COMPARED)
        if compared.differences:
            yield (
                "warning",
                f"{about}: {compared.differences} of {compared.compared} compared rows differ from"
                " their documents",
                f"Repair them: {check} --repair",
            )
        lost = sum(not problem.is_carried_over for problem in compared.problems)
        if lost:
            yield (
                "warning",
                f"{about}: {lost} {'row' if lost == 1 else 'rows'} cannot be carried over",
                f"List them with their reasons: {check}",
            )
        if not compared.differences and not lost:
            yield "ok", f"{about}: {compared.compared} rows compared, none differs", None
    for fault, is_error in database.execute(_READERS).fetchall():
        yield (
            "warning" if is_error else "info",
            fault,
            "Mend what a select of the role would say, too, then: select"
            " knowledge_internal.let_search(name of the role)",
        )

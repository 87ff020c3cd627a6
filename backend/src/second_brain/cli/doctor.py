"""The command doctor: arguments and output; `database.doctor` and `database.recall` do the work."""

from collections.abc import Iterator
from typing import Annotated

import typer

from second_brain.cli.corpus import configured_embedder, refuse_other_embedder
from second_brain.cli.installs import Outcome, for_all, refuse_dsn
from second_brain.cli.options import (
    AllOption,
    DsnOption,
    EmbedderOption,
    JsonOption,
    SchemaOption,
    StopOption,
    parsed,
)
from second_brain.cli.output import show
from second_brain.cli.tables import number
from second_brain.cli.target import resolve_dsn
from second_brain.database import doctor, naming, recall
from second_brain.errors import SecondBrainError
from second_brain.models.embedder import embed_queries
from second_brain.services.connections import connect
from second_brain.services.install import Database, Install

_EXAMPLES = """\b
Examples:
  second-brain doctor
  second-brain doctor --dsn postgresql://postgres@db.example.org/postgres --json
  second-brain doctor --all installs.txt
  second-brain doctor --recall 50 --filters '{"team": "platform"}'
"""

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "doctor",
    epilog=_EXAMPLES,
)
def _doctor(
    dsn: DsnOption = None,
    as_json: JsonOption = False,
    schema: SchemaOption = naming.SCHEMA,
    all_installs: AllOption = None,
    stop: StopOption = False,
    asked: Annotated[
        int | None,
        typer.Option(
            "--recall",
            min=1,
            max=1000,
            help="Measure the vector index with so many stored chunks, and as many questions of "
            "the query log, as questions.",
        ),
    ] = None,
    filters: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="With --recall: the filters of the searches."),
    ] = None,
    embedder_name: EmbedderOption = "wordllama",
) -> None:
    """Check a database, and print a remedy for each problem. Exit code 1 if there is an error."""
    if (all_installs and asked) or (filters is not None and asked is None):
        raise typer.BadParameter("--recall measures one database; --filters needs --recall")
    if all_installs:
        refuse_dsn(dsn)

        def examine_one(target: str, schema: str) -> Outcome:
            with connect(target, autocommit=True) as connection:
                found = doctor.examine(connection, schema)
            problems = tuple(
                f"{one.status}: {one.check}: {one.message} {one.remedy or ''}"
                for one in found
                if one.status in ("error", "warning")
            )
            errors = sum(one.status == "error" for one in found)
            warnings = len(problems) - errors
            result = f"{number(errors, 'error')}, {number(warnings, 'warning')}"
            return Outcome(not errors, result, problems)

        for_all(all_installs, schema, examine_one, stop=stop, as_json=as_json)
        return
    with connect(resolve_dsn(dsn), autocommit=True) as connection:
        findings = doctor.examine(connection, schema)
        if asked is not None:
            findings += _recall(
                Database(connection, Install(schema)), asked, filters, embedder_name
            )
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<8}{finding.check}: {finding.message}")
        if finding.remedy:
            lines.append(f"{'':<8}-> {finding.remedy}")
    show(findings, "\n".join(lines), as_json=as_json)
    if any(finding.status == "error" for finding in findings):
        raise typer.Exit(1)


def _recall(
    database: Database, count: int, filters: str | None, embedder_name: str
) -> Iterator[doctor.Finding]:
    search = {} if filters is None else {"filters": parsed(filters, "--filters")}
    stored = recall.stored_questions(database, count)
    yield recall.finding("stored chunks", recall.measure(database, stored, search))
    logged = recall.logged_questions(database, count)
    if not logged:
        return
    try:
        embedder = configured_embedder(embedder_name)
        refuse_other_embedder(database, embedder)
    except SecondBrainError as error:
        yield doctor.Finding("recall", "info", f"no logged question was asked: {error}")
        return
    asked = [(None, str(vector.tolist())) for vector in embed_queries(embedder, logged)]
    yield recall.finding("logged questions", recall.measure(database, asked, search))

"""The command judgments: which documents are right for a question, exported and imported."""

from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from second_brain.cli.database import DsnOption, SchemaOption, opened
from second_brain.cli.tables import number
from second_brain.evaluation import judgments as files
from second_brain.services.install import SCHEMA
from second_brain.services.write import KnowledgeWriter

CollectionOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Collection that the questions are asked in.", show_default=False
    ),
]

judgments = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  second-brain judgments import questions.tsv
  second-brain judgments export judged.csv
  second-brain judgments export judged/
  second-brain eval judged/

A line of questions.tsv: how do I rotate the keys?<TAB>docs/keys.md
""",
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(judgments, name="judgments", help="Which documents are right for a question.")


@judgments.command("import")
def import_judgments(
    path: Annotated[
        Path,
        typer.Argument(help="BEIR folder, CSV, or a question and a document in each line."),
    ],
    collection: CollectionOption = None,
    judged_by: Annotated[
        UUID | None, typer.Option(help="User who judged, where the file does not say.")
    ] = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Store the judgments of a file, in place of those of the same user for the same thing."""
    read = [
        one.model_copy(
            update={
                "collection": one.collection if collection is None else collection,
                "judged_by": one.judged_by or judged_by,
            }
        )
        for one in files.read(path)
    ]
    with opened(dsn, schema) as database:
        stored = KnowledgeWriter(database.connection, schema=schema).set_judgments(read)
    typer.echo(f"{number(stored, 'judgment')} stored.")


@judgments.command("export")
def export_judgments(
    path: Annotated[
        Path, typer.Argument(help="A .csv file, or a folder for BEIR: corpus, queries, qrels.")
    ],
    collection: CollectionOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Write the stored judgments to a file or a folder."""
    with opened(dsn, schema) as database:
        stored = KnowledgeWriter(database.connection, schema=schema).judgments(collection)
        if path.suffix == ".csv":
            files.write_csv(path, stored)
        else:
            files.write_beir(path, stored, database, collection)
    typer.echo(f"{number(len(stored), 'judgment')} written to {path}.")

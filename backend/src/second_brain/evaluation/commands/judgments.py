"""The command judgments: which documents are right for a question."""

from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from second_brain.cli.options import DsnOption, JsonOption, SchemaOption, new_group
from second_brain.cli.output import show
from second_brain.cli.tables import number, printable
from second_brain.cli.target import opened
from second_brain.evaluation import judgments as files
from second_brain.evaluation import known_items
from second_brain.services.install import SCHEMA
from second_brain.services.write import KnowledgeWriter

CollectionOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Collection that the questions are asked in."),
]

app = typer.Typer(rich_markup_mode=None)
judgments = new_group(
    app,
    "judgments",
    """\b
Examples:
  second-brain corpus judgments import questions.tsv
  second-brain corpus judgments generate --count 50
  second-brain corpus judgments delete --generated
  second-brain corpus eval
  second-brain corpus judgments export judged.csv
  second-brain corpus judgments export judged/

A line of questions.tsv: how do I rotate the keys?<TAB>docs/keys.md
""",
)


@judgments.command("import")
def import_judgments(
    path: Annotated[
        Path, typer.Argument(help="BEIR folder, CSV, or a question and a document in each line.")
    ],
    collection: CollectionOption = None,
    judged_by: Annotated[
        UUID | None, typer.Option(help="User who judged, where the file does not say.")
    ] = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
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
    show({"stored": stored}, f"{number(stored, 'judgment')} stored.", as_json=as_json)


@judgments.command("export")
def export_judgments(
    path: Annotated[
        Path, typer.Argument(help="A .csv file, or a folder for BEIR: corpus, queries, qrels.")
    ],
    collection: CollectionOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Write the stored judgments to a file or a folder."""
    with opened(dsn, schema) as database:
        stored = KnowledgeWriter(database.connection, schema=schema).judgments(collection)
        if path.suffix == ".csv":
            files.write_csv(path, stored)
        else:
            files.write_beir(path, stored, database, collection)
    said = f"{number(len(stored), 'judgment')} written to {path}."
    show({"judgments": len(stored), "path": path}, said, as_json=as_json)


@judgments.command("generate")
def generate_judgments(
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Number of questions.")] = 50,
    collection: CollectionOption = None,
    seed: Annotated[int, typer.Option(help="Seed of the choice of documents.")] = 0,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Make questions from words of documents, each with its document as the right one.

    They show documents that the search loses, and make a start possible. They cannot replace
    questions of people: they have words of the document, so the text leg looks better than it is.
    `corpus eval` and `corpus tune` use them only if there are no others, or with --questions.
    """
    with opened(dsn, schema) as database:
        made = known_items.generate(database, count, collection=collection, seed=seed)
        KnowledgeWriter(database.connection, schema=schema).set_judgments(made)
    lines = [f"{number(len(made), 'generated question')} stored, such as:"]
    pairs = ((printable(one.question), printable(one.document_key or "")) for one in made[:3])
    lines += [f"  {question}  ->  {document}" for question, document in pairs]
    show({"stored": len(made), "judgments": made}, "\n".join(lines), as_json=as_json)


@judgments.command("delete")
def delete_judgments(
    question: Annotated[str | None, typer.Option(help="Only of this question.")] = None,
    collection: CollectionOption = None,
    judged_by: Annotated[UUID | None, typer.Option(help="Only of this user.")] = None,
    is_generated: Annotated[
        bool | None,
        typer.Option("--generated/--asked", help="Only generated questions, or only asked ones."),
    ] = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Delete the judgments that fit all options; at least one is necessary."""
    with opened(dsn, schema) as database:
        deleted = KnowledgeWriter(database.connection, schema=schema).delete_judgments(
            question=question, collection=collection, judged_by=judged_by, is_generated=is_generated
        )
    show({"deleted": deleted}, f"{number(deleted, 'judgment')} deleted.", as_json=as_json)

"""The command settings: how a corpus is searched where a caller gives no fusion."""

from typing import Annotated

import typer

from second_brain.cli.options import DsnOption, JsonOption, SchemaOption, new_group
from second_brain.cli.output import show
from second_brain.cli.target import opened
from second_brain.services.arguments import Fusion
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.install import SCHEMA
from second_brain.services.write import KnowledgeWriter

CollectionOption = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Collection; without it, all that have no settings of their own."
    ),
]
WeightOption = Annotated[float, typer.Option(help="Multiplies the weight of a caller.", min=0)]

app = typer.Typer(rich_markup_mode=None)
settings = new_group(
    app,
    "settings",
    """\b
Examples:
  second-brain corpus settings show
  second-brain corpus settings set --fusion auto --vector-weight 0.7
  second-brain corpus settings set --collection support --fusion relative_score
  second-brain corpus settings reset --collection support
""",
)


def describe(stored: CorpusSettings) -> str:
    """Return the settings in one line, and in a second one what makes them stale."""
    name = f"collection {stored.collection!r}" if stored.collection else "all other collections"
    model = f", embedding model {stored.embedding_model}" if stored.embedding_model else ""
    measured = f"; {stored.measured}" if stored.measured else ""
    stale = f"\n  stale, tune again: {stored.stale}" if stored.stale else ""
    return (
        f"{name}: fusion {stored.fusion or 'not stored'}, vector weight "
        f"{stored.vector_weight:g}, text weight {stored.text_weight:g}{model}{measured}{stale}"
    )


@settings.command("show")
def show_settings(
    dsn: DsnOption = None, schema: SchemaOption = SCHEMA, as_json: JsonOption = False
) -> None:
    """Show the stored settings."""
    with opened(dsn, schema) as database:
        stored = KnowledgeWriter(database.connection, schema=schema).settings()
    nothing = "Nothing is stored: a search that names no fusion uses rrf."
    show(stored, "\n".join(map(describe, stored)) or nothing, as_json=as_json)


@settings.command("set")
def set_settings(
    collection: CollectionOption = "",
    fusion: Annotated[
        Fusion | None,
        typer.Option(help="Without it, that of all collections, else rrf."),
    ] = None,
    vector_weight: WeightOption = 1.0,
    text_weight: WeightOption = 1.0,
    embedding_model: Annotated[
        str | None, typer.Option(help="Model that the embeddings should have.")
    ] = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Store the settings of a collection in place of those that it has."""
    given = CorpusSettings(
        collection=collection,
        fusion=fusion,
        vector_weight=vector_weight,
        text_weight=text_weight,
        embedding_model=embedding_model,
    )
    with opened(dsn, schema) as database:
        stored = KnowledgeWriter(database.connection, schema=schema).set_settings(given)
    show(stored, f"Stored for {describe(stored)}", as_json=as_json)


@settings.command("reset")
def reset_settings(
    collection: CollectionOption = "",
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Remove the settings of a collection."""
    with opened(dsn, schema) as database:
        found = KnowledgeWriter(database.connection, schema=schema).reset_settings(collection)
    said = "Removed." if found else "There are no such settings."
    show({"collection": collection, "removed": found}, said, as_json=as_json)

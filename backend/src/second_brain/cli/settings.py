"""The command settings: how a corpus is searched where a caller gives no fusion, and its fields."""

from contextlib import suppress
from time import sleep
from typing import Annotated

import typer

from second_brain.cli.options import DsnOption, JsonOption, SchemaOption, new_group
from second_brain.cli.output import show, showing_progress
from second_brain.cli.target import opened
from second_brain.database.maintenance import Progress
from second_brain.errors import ModuleMissingError
from second_brain.services.arguments import Fusion
from second_brain.services.corpus_settings import FIELDS, CorpusSettings
from second_brain.services.install import SCHEMA
from second_brain.services.write import KnowledgeWriter

CollectionOption = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Collection; without it, all that have no settings of their own."
    ),
]
WeightOption = Annotated[float, typer.Option(help="Multiplies the weight of a caller.", min=0)]

_PAUSE = 1.0  # seconds, while others have locked all chunks that are left

app = typer.Typer(rich_markup_mode=None)
settings = new_group(
    app,
    "settings",
    """\b
Examples:
  second-brain corpus settings show
  second-brain corpus settings set --fusion auto --vector-weight 0.7
  second-brain corpus settings set --collection support --fusion relative_score
  second-brain corpus settings fields --title-weight 2 --text-key author
  second-brain corpus settings reset --collection support
""",
)


def describe(stored: CorpusSettings) -> str:
    """Return the settings in one line, and in a second one what makes them stale."""
    name = f"collection {stored.collection!r}" if stored.collection else "all other collections"
    fields = f", {stored.fields}" if stored.fields else ""
    model = f", embedding model {stored.embedding_model}" if stored.embedding_model else ""
    constants = "".join(
        f", {name} {value:g}"
        for name, value in (("k1", stored.bm25_k1), ("b", stored.bm25_b))
        if value is not None
    )
    measured = f"; {stored.measured}" if stored.measured else ""
    stale = f"\n  stale, tune again: {stored.stale}" if stored.stale else ""
    return (
        f"{name}: fusion {stored.fusion or 'not stored'}, vector weight {stored.vector_weight:g}, "
        f"text weight {stored.text_weight:g}{constants}{fields}{model}{measured}{stale}"
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
    k1: Annotated[float | None, typer.Option(help="k1 of BM25; without it 1.2.")] = None,
    b: Annotated[
        float | None, typer.Option("--b", help="b of BM25; without it by the corpus, 0.4 to 0.75.")
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
        bm25_k1=k1,
        bm25_b=b,
    )
    with opened(dsn, schema) as database:
        stored = KnowledgeWriter(database.connection, schema=schema).set_settings(given)
    show(stored, f"Stored for {describe(stored)}", as_json=as_json)


@settings.command("fields")
def set_fields(
    collection: CollectionOption = "",
    heading_weight: Annotated[
        int | None, typer.Option(help="How often a word of the heading counts; at first 2.")
    ] = None,
    title_weight: Annotated[
        int | None, typer.Option(help="How often a word of the title counts; at first 0.")
    ] = None,
    text_keys: Annotated[
        list[str] | None,
        typer.Option(
            "--text-key",
            metavar="KEY",
            help="Metadata key that is searched as text; may be repeated. An empty text: none.",
        ),
    ] = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Change which fields are searched and how often they count, and rewrite the chunks.

    What is not given stays as it is. Chunks are rewritten in batches while searches go on; after an
    interruption, run the command again, without options.
    """
    from second_brain.ingest.pipeline import finish

    keys = None if text_keys is None else [key for key in text_keys if key]
    values = dict(zip(FIELDS, (heading_weight, title_weight, keys), strict=True))
    given = {name: value for name, value in values.items() if value is not None}
    with opened(dsn, schema) as database, showing_progress() as on_progress:
        writer = KnowledgeWriter(database.connection, schema=schema)
        if given:
            stored = CorpusSettings(collection=collection).among(writer.settings())
            writer.set_fields(stored.model_copy(update=given))
        stale = left = writer.rewrite_chunks(0)
        while left:
            on_progress(Progress(f"Rewriting {stale:,} chunks: {left:,} left", 1 - left / stale))
            before, left = left, writer.rewrite_chunks()
            if left >= before:
                sleep(_PAUSE)
        finish(database.connection, stale, schema=schema)
    show({"rewritten": stale}, f"{stale:,} chunks were rewritten.", as_json=as_json)


@settings.command("reset")
def reset_settings(
    collection: CollectionOption = "",
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Remove the settings of a collection."""
    with opened(dsn, schema) as database:
        writer = KnowledgeWriter(database.connection, schema=schema)
        stored = CorpusSettings(collection=collection).among(writer.settings())
        found = writer.reset_settings(collection)
        stale = 0
        if stored.fields:
            # Without the module, core rewrites nothing.
            with suppress(ModuleMissingError):
                stale = writer.rewrite_chunks(0)
    said = "Removed." if found else "There are no such settings."
    if stale:
        said += f" {stale:,} chunks have its fields: run `second-brain corpus settings fields`."
    show({"collection": collection, "removed": found}, said, as_json=as_json)

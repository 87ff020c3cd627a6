"""The embedder that a command uses, and whether it is the corpus's."""

from typing import Annotated, Any

import psycopg
import typer

from second_brain.database import migrations
from second_brain.errors import (
    ConfigurationError,
    DimensionMismatchError,
    MigrationMissingError,
)
from second_brain.models import EMBEDDER_NAMES, Embedder

_MODELS = """
    select distinct sample.embedding_model
    from (
      select chunk.embedding_model, chunk.embedding is not null as is_embedded
      from public.knowledge_chunks as chunk
      where chunk.status = 'active'
      limit 10000
    ) as sample
    where sample.is_embedded
    order by sample.embedding_model
"""


EmbedderOption = Annotated[
    str,
    typer.Option(
        "--embedder",
        metavar="NAME",
        envvar="SECOND_BRAIN_EMBEDDER",
        help=f"Model of the embeddings: {', '.join(EMBEDDER_NAMES)}; @N after MODEL asks for N "
        "dimensions.",
    ),
]


def refuse_other_embedder(
    connection: psycopg.Connection[Any], embedder: Embedder, *, switch_model: bool = False
) -> None:
    """Raise when the embedder's vectors cannot be compared with the stored ones."""
    dimensions = migrations.stored_dimensions(connection)
    if dimensions is None:
        raise MigrationMissingError(
            "the database has no knowledge tables",
            remedy=f"Make them: second-brain migrate --dimensions {embedder.dimensions}",
        )
    if dimensions != embedder.dimensions:
        raise DimensionMismatchError(
            f"the database holds embeddings of {dimensions} dimensions and {embedder.model} makes "
            f"{embedder.dimensions}",
            remedy="Use the embedder of the corpus, or change the corpus's, which takes no time "
            "while it is empty: second-brain reembed start --embedder NAME. A search needs none "
            "with --mode text.",
        )
    others = [name for (name,) in connection.execute(_MODELS) if name != embedder.model]
    if others and not switch_model:
        named = ", ".join(name or "an unnamed model" for name in others)
        raise ConfigurationError(
            f"there are embeddings of {named} in the database, not comparable with "
            f"{embedder.model}'s",
            remedy="Use the embedder of the corpus, search with --mode text, or ingest everything "
            "again with --switch-model.",
        )

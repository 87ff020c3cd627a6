"""The options --embedder, with the check that its model matches the corpus, and --viewer-groups."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from second_brain.cli import configuration
from second_brain.database import migrations
from second_brain.errors import (
    ConfigurationError,
    DimensionMismatchError,
    MigrationMissingError,
    MissingExtraError,
)
from second_brain.models import Embedder, load_embedder
from second_brain.retrieval.embedding import NO_EMBEDDER
from second_brain.services.install import SCHEMA, Database

logger = logging.getLogger(__name__)

_MODELS = """
    select distinct sample.embedding_model
    from (
      select chunk.embedding_model, chunk.embedding_bits is not null as is_embedded
      from public.knowledge_chunks as chunk
      where chunk.status = 'active'
      limit 10000
    ) as sample
    where sample.is_embedded
    order by sample.embedding_model
"""


def schema_option(schema: str) -> str:
    """Return the option --schema for a command to print, empty for the default."""
    return "" if schema == SCHEMA else f" --schema {schema}"


def configured_embedder(name: str) -> Embedder:
    """Load an embedder, at the address that is configured for embeddings."""
    configured = configuration.load()
    address = configured.get("embedder-address") if name.startswith("openai:") else None
    return load_embedder(name, address=address, key=configured.get("embedder-key"))


def question_embedder(name: str) -> Embedder:
    """Load the embedder of questions; NO_EMBEDDER for `none`, or where WordLlama is not installed.

    Without one, a hybrid search makes the embedding of the question of its best text hits.
    """
    if name == "none":
        return NO_EMBEDDER
    try:
        return configured_embedder(name)
    except MissingExtraError as error:
        if name != "wordllama":
            raise
        logger.warning("questions are searched without an embedder: %s. %s", error, error.remedy)
        return NO_EMBEDDER


def refuse_other_embedder(
    database: Database, embedder: Embedder, *, switch_model: bool = False
) -> None:
    """Raise an error if the embedder's vectors are not comparable with the stored ones."""
    schema = database.install.schema
    dimensions = migrations.stored_dimensions(database.connection, schema)
    if dimensions is None:
        raise MigrationMissingError(
            f"the database has no knowledge tables in schema {schema}",
            remedy=f"Create them: second-brain migrate --dimensions {embedder.dimensions}"
            f"{schema_option(schema)}",
        )
    if dimensions != embedder.dimensions:
        raise DimensionMismatchError(
            f"the embeddings in the database have {dimensions} dimensions, but {embedder.model} "
            f"has {embedder.dimensions}",
            remedy="Use the embedder of the stored chunks, or change the model with "
            "`second-brain corpus reembed start --embedder NAME` (immediate in an empty database). "
            "A search with --embedder none needs none.",
        )
    # Embeddings that name no model count as the corpus's: doctor tells of them.
    others = [name for (name,) in database.execute(_MODELS) if name not in (None, embedder.model)]
    if others and not switch_model:
        raise ConfigurationError(
            f"the database has embeddings of {', '.join(others)}, which are not comparable with "
            f"those of {embedder.model}",
            remedy="Use the embedder of the stored chunks, search with --embedder none, or ingest "
            "all documents again with --switch-model.",
        )


@contextmanager
def explained_refusal(database: Database, embedder: Embedder) -> Iterator[None]:
    """Say by commands what to do, where a search is refused because the embedder does not fit."""
    try:
        yield
    except (ConfigurationError, DimensionMismatchError, MigrationMissingError):
        if embedder is not NO_EMBEDDER:
            refuse_other_embedder(database, embedder)
        raise


def groups(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the groups of a repeated option: None when it is not given, none for an empty text."""
    return None if given is None else tuple(name for name in given if name)

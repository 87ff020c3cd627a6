"""Documents into the database: split, embed what is new, upsert each in one transaction.

What is stored decides what is left to do, so an interrupted run goes on where it stopped, and a
run over unchanged documents embeds nothing and changes nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from second_brain.errors import DimensionMismatchError, InvalidInputError, UnexpectedAnswerError
from second_brain.ingest.language import DEFAULT_LANGUAGE, detect_language
from second_brain.ingest.loading import LoadedDocument, Source, UnreadableDocumentError
from second_brain.ingest.splitting import Chunk, split
from second_brain.models import Embedder
from second_brain.services.write import KnowledgeWriter, UpsertCounts

_IS_CHANGED_MUCH = """
    select changes.changed >= 50 + 0.1 * relation.reltuples
    from pg_catalog.pg_class as relation
    cross join (select %(changed)s::integer as changed) as changes
    where relation.oid = 'public.knowledge_chunks'::regclass
"""

_INGESTED_KEYS = """
    select external_key
    from public.knowledge_documents
    where metadata ->> 'path' = external_key
      or starts_with(external_key, 'python-stdlib:')
    order by external_key
"""


@dataclass(frozen=True, slots=True)
class Labels:
    """What every document of a run is stored under; see the columns of knowledge_documents.

    With the language `auto` each document's own is detected.
    """

    collection: str = "knowledge"
    knowledge_type: str = "document"
    source_origin: str = "manual"
    language: str = DEFAULT_LANGUAGE


@dataclass(frozen=True, slots=True)
class DocumentReport:
    """What became of one document.

    `empty` means that it has no text and is not, or no longer, stored. `embedded` counts the
    embeddings made now, `text_only` the chunks that have none because the model knows nothing in
    them. `error` is set only when it failed; then nothing of it was written.
    """

    external_key: str
    outcome: Literal["stored", "unchanged", "empty", "failed"]
    counts: UpsertCounts | None = None
    embedded: int = 0
    text_only: int = 0
    removed: int = 0
    error: str | None = None

    @property
    def changed(self) -> int:
        """How many chunks were added, replaced or removed."""
        if self.counts is None:
            return self.removed
        counts = self.counts
        return counts.chunks_added + counts.chunks_changed + counts.chunks_removed


def ingest(
    sources: Iterable[Source],
    writer: KnowledgeWriter,
    embedder: Embedder,
    labels: Labels = Labels(),
) -> Iterator[DocumentReport]:
    """Store documents one after the other and report each; run `finish` afterwards.

    A document that cannot be read, or that the database refuses, is reported as failed and the
    next one follows. Anything else (no connection, no right to write, an embedder of another
    size than the column) is raised, with every document before it stored.
    """
    for source in sources:
        try:
            yield _store(source.external_key, source.load(), writer, embedder, labels)
        except DimensionMismatchError:
            raise
        except (UnreadableDocumentError, InvalidInputError) as exc:
            yield DocumentReport(source.external_key, "failed", error=f"{exc}. {exc.remedy}")


def stale_keys(
    connection: psycopg.Connection[Any], folders: Iterable[str], found: Iterable[str]
) -> list[str]:
    """List the stored documents that came from these folders and are no longer found there.

    `folders` are keys' prefixes (`docs/`, `python-stdlib:`; empty for the whole base folder),
    `found` the keys of this run. Only documents that `ingest` read from files, or from the
    standard library, are listed.
    """
    prefixes, kept = list(folders), set(found)
    named = tuple(prefix for prefix in prefixes if prefix)
    stored = (key for (key,) in connection.execute(_INGESTED_KEYS))
    # A key outside the base folder is absolute, and the empty prefix does not mean it.
    return [
        key
        for key in stored
        if key not in kept
        and (key.startswith(named) or ("" in prefixes and not key.startswith("/")))
    ]


def finish(connection: psycopg.Connection[Any], writer: KnowledgeWriter, changed: int) -> None:
    """Renew the statistics that ranking reads, when that many changed chunks matter to them."""
    found = connection.execute(_IS_CHANGED_MUCH, {"changed": changed}).fetchone()
    if found is not None and found[0]:
        connection.execute("analyze public.knowledge_chunks")
        writer.refresh_statistics()


def _store(
    external_key: str,
    document: LoadedDocument,
    writer: KnowledgeWriter,
    embedder: Embedder,
    labels: Labels,
) -> DocumentReport:
    chunks = split(document)
    if not chunks:
        removed = writer.delete_document(external_key)
        return DocumentReport(external_key, "empty", removed=removed)
    embeddings = _embed_missing(chunks, writer, embedder)
    language = detect_language(document.text) if labels.language == "auto" else labels.language
    counts = writer.upsert_document(
        {
            "external_key": external_key,
            "title": document.title,
            "knowledge_type": labels.knowledge_type,
            "source_url": document.source_url,
            "source_origin": labels.source_origin,
            "author": document.author,
            "document_date": document.document_date,
            "language": language,
            "collection": labels.collection,
            "metadata": document.metadata,
        },
        [
            {
                "heading": chunk.heading,
                "content": chunk.content,
                "metadata": chunk.metadata,
                "embedding": embeddings.get(_content_hash(chunk)),
                "embedding_model": embedder.model,
            }
            for chunk in chunks
        ],
    )
    report = DocumentReport(
        external_key,
        "stored",
        counts,
        embedded=sum(embedding is not None for embedding in embeddings.values()),
        text_only=counts.embeddings_missing,
    )
    if report.changed or report.embedded:
        return report
    return DocumentReport(external_key, "unchanged", counts, text_only=report.text_only)


def _embed_missing(
    chunks: Sequence[Chunk], writer: KnowledgeWriter, embedder: Embedder
) -> dict[str, list[float] | None]:
    """Embed the chunks that have no stored embedding of this model; None for a zero vector."""
    texts = {_content_hash(chunk): f"{chunk.heading}\n{chunk.content}" for chunk in chunks}
    missing = sorted(writer.missing_embeddings(list(texts), embedder.model))
    if not missing:
        return {}
    vectors = embedder.embed([texts[content_hash] for content_hash in missing])
    if vectors.shape != (len(missing), embedder.dimensions):
        raise UnexpectedAnswerError(
            f"{embedder.model} gave an array of shape {vectors.shape} for {len(missing)} texts",
            remedy=f"An embedder must give one vector of {embedder.dimensions} numbers per text.",
        )
    return {
        content_hash: vector.tolist() if vector.any() else None
        for content_hash, vector in zip(missing, vectors, strict=True)
    }


def _content_hash(chunk: Chunk) -> str:
    # The same as knowledge_content_hash() in the database.
    return hashlib.sha256(f"{chunk.heading}\n{chunk.content}".encode()).hexdigest()

"""Documents into the database: split, embed what is new, upsert each in one transaction.

What is stored decides what is left to do, so an interrupted run goes on where it stopped, and a
run over unchanged documents embeds nothing and changes nothing. A field that neither the file nor
the caller gives keeps the value that it has in the database.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg.rows import dict_row, scalar_row

from second_brain.errors import (
    ConfigurationError,
    DimensionMismatchError,
    InvalidInputError,
    MissingExtraError,
    UnexpectedAnswerError,
)
from second_brain.ingest.document import (
    LeftOutError,
    LoadedDocument,
    UnreadableDocumentError,
    unforeseen,
)
from second_brain.ingest.language import detect_language
from second_brain.ingest.repeated_lines import Sites
from second_brain.ingest.reports import NO_LABELS, Change, DocumentReport, Labels
from second_brain.ingest.sources import KnowledgeSource, UnreadDocument
from second_brain.ingest.splitting import DEFAULT_CHUNKING, Chunk, Chunking, split
from second_brain.models import Embedder, Encoder, as_embedder
from second_brain.models.hosted import estimate_tokens
from second_brain.services.calls import finished, is_rolled_back, retried
from second_brain.services.install import SCHEMA, Database, Install
from second_brain.services.write import WRITE_RETRIES, KnowledgeWriter, UpsertCounts

_IS_CHANGED_MUCH = """
    select changes.changed >= 50 + 0.1 * relation.reltuples
    from pg_catalog.pg_class as relation
    cross join (select %(changed)s::integer as changed) as changes
    where relation.oid = 'public.knowledge_chunks'::regclass
"""

_FIND_SOURCE = """
    select id, config ->> 'location' as location
    from public.knowledge_sources
    where name = %(name)s
"""

_ADD_SOURCE = """
    insert into public.knowledge_sources (name, config)
    values (%(name)s, jsonb_strip_nulls(jsonb_build_object('location', %(location)s::text)))
    on conflict (name) do nothing
"""

_STORED_KEYS = """
    select document.external_key
    from public.knowledge_documents as document
    join public.knowledge_sources as source on source.id = document.source_id
    where source.name = %(source)s and starts_with(document.external_key, %(prefix)s)
    order by document.external_key
"""

_STORED_DOCUMENT = """
    select to_jsonb(document) as fields,
      array(
        select jsonb_build_array(chunk.chunk_index, chunk.content_hash, chunk.metadata)
        from public.knowledge_chunks as chunk
        where chunk.document_id = document.id
          and chunk.status = 'active'
          and chunk.chunk_index is not null
        order by chunk.chunk_index, chunk.id
      ) as chunks
    from public.knowledge_documents as document
    where document.external_key = %(external_key)s
"""

# A model may take longer for a document than a transaction may be idle.
_LOCK = """
    select
      pg_try_advisory_xact_lock(
        hashtextextended(%(external_key)s, 'public.knowledge_documents'::regclass::oid::bigint)
      ),
      set_config('idle_in_transaction_session_timeout', '0', true)
"""

_NOT_STORED_YET = UUID(int=0)
_LOCK_PAUSE = 0.1
LOCK_WAIT = 600.0
"""Seconds that a run waits, at its end, for a document that another process stores."""


def ingest(
    documents: Iterable[UnreadDocument],
    connection: psycopg.Connection[Any],
    embedder: Embedder | Encoder,
    labels: Labels = NO_LABELS,
    *,
    chunking: Chunking = DEFAULT_CHUNKING,
    schema: str = SCHEMA,
    dry_run: bool = False,
    lock_wait: float = LOCK_WAIT,
) -> Iterator[DocumentReport]:
    """Store documents one after the other and report each; run `finish` afterwards.

    The connection must be an autocommit one, or everything is one transaction. `schema` is the
    schema of the install. `dry_run` only reads: it embeds nothing and writes nothing.

    A document that another process stores at the moment comes last: it is then unchanged, or this
    process stores it if the other has died. After `lock_wait` seconds it is reported as failed.

    A document that cannot be read, that needs an extra which is not installed, or that the
    database refuses, is reported as failed and the next one follows. Anything else (no
    connection, no right to write, an embedder of another size than the column) is raised, with
    every document before it stored.
    """
    database, writer = (
        Database(connection, Install(schema)),
        KnowledgeWriter(connection, schema=schema),
    )
    documents = list(documents)
    sites = Sites(database, documents, dry_run)
    run = _Run(database, writer, as_embedder(embedder), labels, chunking, dry_run, sites)
    locked: list[UnreadDocument] = []
    for document in documents:
        report = run.report(document)
        if report is None:
            locked.append(document)
        else:
            sites.forget(document)
            yield report
    for document in locked:
        deadline = time.monotonic() + lock_wait
        while (report := run.report(document)) is None and time.monotonic() < deadline:
            time.sleep(_LOCK_PAUSE)
        yield report or DocumentReport(
            document.external_key,
            "failed",
            error=f"another process has been storing it for {lock_wait:g} s. Run it again.",
        )


def check_source(
    connection: psycopg.Connection[Any],
    source: KnowledgeSource,
    *,
    schema: str = SCHEMA,
    is_named: bool = False,
) -> None:
    """Raise ConfigurationError when a source of this name stands for another place.

    With `is_named` the caller says that it is the same source. Then only a folder inside the
    known one, or around it, is refused: the same path would mean two files.
    """
    known = _find_source(Database(connection, Install(schema)), source)
    old, new = known["location"] if known else None, source.location
    if old is None or new is None or old == new:
        return
    if not is_named:
        raise ConfigurationError(
            f"the database has a source {source.name} of {old}, and this one is {new}",
            remedy="Give this one a name of its own with --source NAME, or say that it is the "
            f"same: --source {source.name}.",
        )
    if old.startswith("/") and (Path(old) in Path(new).parents or Path(new) in Path(old).parents):
        raise ConfigurationError(
            f"paths in the source {source.name} are relative to {old}, not to {new}",
            remedy=f"Pass --base {old}, or another --source.",
        )


def stale_keys(
    connection: psycopg.Connection[Any],
    folders: Iterable[tuple[KnowledgeSource, str]],
    kept: Iterable[str],
    unread: Iterable[str] = (),
    *,
    schema: str = SCHEMA,
) -> list[str]:
    """List the documents of these sources and folders that are no longer there.

    `folders` are what keys begin with, as `FoundFiles` has them; `kept` the keys of documents that
    stay. `unread` are those that were excluded or failed: one can be a folder, and its documents
    stay too.
    """
    inside = tuple(f"{key}/" for key in unread)
    found = {*kept, *unread}
    stale: set[str] = set()
    statement = Install(schema).statement(_STORED_KEYS)
    for source, prefix in folders:
        with connection.cursor(row_factory=scalar_row) as cursor:
            cursor.execute(statement, {"source": source.name, "prefix": prefix})
            stale.update(key for key in cursor if key not in found and not key.startswith(inside))
    return sorted(stale)


def finish(connection: psycopg.Connection[Any], changed: int, *, schema: str = SCHEMA) -> None:
    """Renew the statistics that ranking reads, when that many changed chunks matter to them."""
    database = Database(connection, Install(schema))
    found = database.execute(_IS_CHANGED_MUCH, {"changed": changed}).fetchone()
    if found is not None and found[0]:
        database.execute("analyze public.knowledge_chunks")
        KnowledgeWriter(connection, schema=schema).refresh_statistics()


def _find_source(database: Database, source: KnowledgeSource) -> dict[str, Any] | None:
    return _row(database, _FIND_SOURCE, {"name": source.name})


def _row(
    database: Database, query: LiteralString, arguments: Mapping[str, str]
) -> dict[str, Any] | None:
    with database.connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(database.install.statement(query), arguments).fetchone()


@dataclass(frozen=True, slots=True)
class _Stored:
    """A document as it is in the database: its fields, and its chunks in their order."""

    fields: dict[str, Any] = field(default_factory=dict)
    chunks: Sequence[tuple[int, str, dict[str, Any]]] = ()

    @property
    def metadata(self) -> dict[str, Any]:
        return self.fields.get("metadata") or {}


@dataclass
class _Run:
    database: Database
    writer: KnowledgeWriter
    embedder: Embedder
    labels: Labels
    chunking: Chunking
    dry_run: bool
    sites: Sites
    source_ids: dict[str, str | None] = field(default_factory=dict)

    def report(self, unread: UnreadDocument) -> DocumentReport | None:
        """Store a document in a transaction; None while another process stores it."""
        key = unread.external_key
        try:
            made: dict[str, list[float] | None] = {}
            # Outside of the transaction: else other processes wait for its end.
            if unread.source:
                self._source_id(unread.source)
            self.sites.prepare(unread)
            if self.dry_run:
                return self._store(unread, made)

            async def attempt(_: object) -> DocumentReport | None:
                with self.database.connection.transaction():
                    locked = self.database.execute(_LOCK, {"external_key": key}).fetchone()
                    return self._store(unread, made) if locked and locked[0] else None

            return finished(
                retried(attempt, _sleep, retries=WRITE_RETRIES, is_passing=is_rolled_back)
            )
        except DimensionMismatchError:
            raise
        except LeftOutError as exc:
            return DocumentReport(key, "left out", notes=(str(exc),))
        except (UnreadableDocumentError, InvalidInputError) as exc:
            return DocumentReport(key, "failed", error=f"{exc}. {exc.remedy}")

    def _store(self, unread: UnreadDocument, made: dict[str, list[float] | None]) -> DocumentReport:
        """Store a document; `made` keeps its new embeddings for another attempt."""
        key = unread.external_key
        try:
            document, repeated = self.sites.load(unread)
        except MissingExtraError as exc:
            # Files of other types need no more than what is installed.
            raise UnreadableDocumentError(str(exc), remedy=exc.remedy) from exc
        try:
            chunks = split(document, self.chunking)
        except Exception as exc:
            raise unforeseen(exc) from exc
        stored = self._stored(key)
        if not chunks and stored.chunks and (document.is_page or document.notes):
            raise UnreadableDocumentError(
                "; ".join(
                    ["has no text any more, and what is stored of it stays", *document.notes]
                ),
                remedy="Look at it: a script may write its text, or a part may not be read. Delete "
                f"the document if it is gone: second-brain corpus delete '{key}'.",
            )
        if not chunks:
            removed = len(stored.chunks) if self.dry_run else self.writer.delete_document(key)
            return DocumentReport(
                key, "empty", removed=removed, repeated_lines=repeated, notes=document.notes
            )
        given = self._fields(unread, document, stored)
        changes = tuple(_changes(given, stored)) if stored.fields else ()
        if self.dry_run:
            foreseen = self._foreseen(key, chunks, stored, changes)
            return replace(foreseen, repeated_lines=repeated, notes=document.notes)
        embeddings = self._embed_missing(chunks, made)
        counts = self.writer.upsert_document(
            {"external_key": key, **given},
            [
                {
                    "heading": chunk.heading,
                    "content": chunk.content,
                    "metadata": metadata,
                    "embedding": embeddings.get(_content_hash(chunk)),
                    "embedding_model": self.embedder.model,
                }
                for chunk, metadata in zip(chunks, _chunk_metadata(chunks, stored), strict=True)
            ],
        )
        report = DocumentReport(
            key,
            "stored",
            counts,
            changes,
            embedded=sum(embedding is not None for embedding in embeddings.values()),
            text_only=counts.embeddings_missing,
            repeated_lines=repeated,
            notes=document.notes,
        )
        is_changed = report.changed or report.embedded or changes
        return report if is_changed else replace(report, outcome="unchanged")

    def _stored(self, key: str) -> _Stored:
        try:
            row = _row(self.database, _STORED_DOCUMENT, {"external_key": key})
        except (ValueError, RecursionError) as exc:
            raise InvalidInputError(f"its stored metadata cannot be read: {exc}") from exc
        return _Stored(**row) if row else _Stored()

    def _fields(
        self, unread: UnreadDocument, document: LoadedDocument, stored: _Stored
    ) -> dict[str, Any]:
        """Return the fields that the file and the labels say something about."""
        labels = self.labels
        is_detected = labels.language == "auto"
        fields = {
            "title": document.title,
            "source_id": self._source_id(unread.source) if unread.source else None,
            "source_url": document.source_url,
            "author": document.author,
            "document_date": document.document_date,
            "knowledge_type": labels.knowledge_type,
            "source_origin": labels.source_origin or document.source_origin,
            "language": detect_language(document.text) if is_detected else labels.language,
            "collection": labels.collection,
            "visibility": labels.visibility,
            "owner_id": labels.owner_id,
        }
        given = {name: _json(value) for name, value in fields.items() if value is not None}
        if labels.allowed_groups is not None:
            # As the database stores them.
            given["allowed_groups"] = sorted(set(labels.allowed_groups)) or None
        # The database replaces metadata as a whole.
        metadata = {**stored.metadata, **document.metadata, **labels.metadata}
        return {**given, "metadata": metadata}

    def _source_id(self, source: KnowledgeSource) -> str | None:
        """Return the id of a source's row, which a dry run does not insert."""
        if source.name not in self.source_ids:
            if not self.dry_run:
                arguments = {"name": source.name, "location": source.location}
                self.database.execute(_ADD_SOURCE, arguments)
            row = _find_source(self.database, source)
            self.source_ids[source.name] = str(row["id"]) if row else None
        return self.source_ids[source.name]

    def _foreseen(
        self, key: str, chunks: Sequence[Chunk], stored: _Stored, changes: tuple[Change, ...]
    ) -> DocumentReport:
        hashes = [_content_hash(chunk) for chunk in chunks]
        missing = self.writer.missing_embeddings(hashes, self.embedder.model)
        # As upsert_knowledge_document counts: a text that stays keeps its row, wherever it stands.
        kept = Counter(hashes) & Counter(content_hash for _, content_hash, _ in stored.chunks)
        new, old = Counter(kept), Counter(kept)
        added = {place for place, one in enumerate(hashes) if not _take(new, one)}
        superseded = {place for place, one, _ in stored.chunks if not _take(old, one)}
        counts = UpsertCounts(
            document_id=UUID(stored.fields["id"]) if stored.fields else _NOT_STORED_YET,
            chunks_added=len(added - superseded),
            chunks_changed=len(added & superseded),
            chunks_unchanged=kept.total(),
            chunks_removed=len(superseded - added),
            embeddings_reused=len(chunks) - len(missing),
            embeddings_missing=0,
        )
        is_changed = bool(added or superseded or missing or changes)
        return DocumentReport(
            key, "stored" if is_changed else "unchanged", counts, changes, embedded=len(missing)
        )

    def _embed_missing(
        self, chunks: Sequence[Chunk], made: dict[str, list[float] | None]
    ) -> dict[str, list[float] | None]:
        """Embed the chunks that have no stored embedding of this model; None for a zero vector."""
        embedder = self.embedder
        texts = {_content_hash(chunk): f"{chunk.heading}\n{chunk.content}" for chunk in chunks}
        stored_nowhere = self.writer.missing_embeddings(list(texts), embedder.model)
        missing = sorted(stored_nowhere - made.keys())
        if not missing:
            return made
        vectors = embedder.embed([texts[content_hash] for content_hash in missing])
        if vectors.shape != (len(missing), embedder.dimensions):
            raise UnexpectedAnswerError(
                f"{embedder.model} gave an array of shape {vectors.shape} for {len(missing)} texts",
                remedy=f"An embedder must give one vector of {embedder.dimensions} numbers per "
                "text.",
            )
        for content_hash, vector in zip(missing, vectors, strict=True):
            made[content_hash] = vector.tolist() if vector.any() else None
        return made


def _changes(given: Mapping[str, Any], stored: _Stored) -> Iterator[Change]:
    for name, new in given.items():
        if name != "metadata" and (old := stored.fields.get(name)) != new:
            yield Change(name, old, new)
    for name, new in given["metadata"].items():
        if (old := stored.metadata.get(name)) != new:
            yield Change(f"metadata.{name}", old, new)


def _chunk_metadata(chunks: Sequence[Chunk], stored: _Stored) -> list[dict[str, Any]]:
    """Return each chunk's metadata and tokens, with what was set elsewhere on the stored one."""
    own = {
        content_hash: {
            name: value
            for name, value in metadata.items()
            # The document's are copied to its chunks, and follow the document's.
            if name not in stored.metadata or stored.metadata[name] != value
        }
        for _, content_hash, metadata in reversed(stored.chunks)
    }
    return [
        {
            "token_count": estimate_tokens(chunk.content, "content"),
            **own.get(_content_hash(chunk), {}),
            **chunk.metadata,
        }
        for chunk in chunks
    ]


def _take(counter: Counter[str], key: str) -> bool:
    counter[key] -= 1
    return counter[key] >= 0


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def _json(value: object) -> object:
    """Return a value as to_jsonb writes it."""
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def _content_hash(chunk: Chunk) -> str:
    # The same as knowledge_content_hash() in the database.
    return hashlib.sha256(f"{chunk.heading}\n{chunk.content}".encode()).hexdigest()

"""What every writer does: one method for each SQL function that writes, and for what it reads.

`write.KnowledgeWriter` has these methods over psycopg, `supabase.SupabaseProvider` over REST.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from second_brain.errors import InvalidInputError, documented
from second_brain.filters import json_default
from second_brain.services.calls import Client, finished
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.judgments import Judgment, batches


@dataclass(frozen=True, slots=True)
class UpsertCounts:
    """What an upsert changed, in chunks; `document_id` is the document's."""

    document_id: UUID
    chunks_added: int
    chunks_changed: int
    chunks_unchanged: int
    chunks_removed: int
    embeddings_reused: int
    embeddings_missing: int


@dataclass(frozen=True, slots=True)
class DeletedCounts:
    """What a deletion removed."""

    documents_deleted: int
    chunks_deleted: int


@documented
class Writes(Client):
    """The writing side, for the owner of the tables or `service_role`; it raises on failure.

    A deadlock or a serialization failure is tried again after a short random pause, a lost
    connection is not. `timeout` is the maximum time of a call, in seconds.
    """

    def upsert_document(
        self,
        document: Mapping[str, object],
        chunks: Sequence[Mapping[str, object]],
        *,
        fields: Literal["merge", "replace"] = "merge",
        timeout: float | None = None,
    ) -> UpsertCounts:
        """Store a document and its chunks, in their order; an unchanged chunk keeps its row.

        `document` needs `external_key`, a chunk `content`. An embedding may be a list, tuple,
        numpy array or pgvector.Vector; a chunk without one takes it from a stored chunk with the
        same text and `embedding_model`. A field that is not given keeps its value with
        `fields="merge"` and gets its default with `"replace"`; None is the default in both.
        """
        arguments = _upsert(document, chunks, fields)
        return finished(self._read(UpsertCounts, "upsert_knowledge_document", arguments, timeout))

    def missing_embeddings(
        self, content_hashes: Sequence[str], embedding_model: str, *, timeout: float | None = None
    ) -> set[str]:
        """Return the hashes for which no stored chunk has an embedding of that model."""
        arguments = {"content_hashes": list(content_hashes), "model": embedding_model}
        return finished(self._read(set[str], "missing_knowledge_embeddings", arguments, timeout))

    def delete_document(self, external_key: str, *, timeout: float | None = None) -> int:
        """Delete a document and return how many chunks it had; 0 when there is none."""
        arguments = {"document_key": external_key}
        return finished(self._read(int, "delete_knowledge_document", arguments, timeout))

    def supersede_document(
        self, old: str, new: str, at: datetime | None = None, *, timeout: float | None = None
    ) -> int:
        """End the document `old` and start `new`, both by external_key, at a time (None: now).

        It is written into their metadata as `valid_until` and `valid_from`. Returns how many active
        chunks `old` has. Needs the module versions.
        """
        given = {"old": old, "new": new, "at": _moment(at)}
        return finished(self._read(int, "supersede_knowledge_document", given, timeout))

    def delete_owner(self, owner_id: UUID | str, *, timeout: float | None = None) -> DeletedCounts:
        """Delete everything that belongs to one owner."""
        arguments = {"owner": owner_id}
        return finished(self._read(DeletedCounts, "delete_knowledge_owner", arguments, timeout))

    def purge(self, older_than: timedelta, *, timeout: float | None = None) -> int:
        """Remove chunks that were superseded or deleted longer ago, and return how many."""
        arguments = {"older_than": f"{older_than.total_seconds()} seconds"}
        return finished(self._read(int, "purge_knowledge_chunks", arguments, timeout))

    def set_settings(
        self,
        settings: CorpusSettings,
        *,
        measured_on: str | None = None,
        timeout: float | None = None,
    ) -> CorpusSettings:
        """Store how a collection is searched, in place of what was stored, and return it.

        `measured_on` says on what fusion and weights were measured; `settings()` then tells what
        has changed since.
        """
        arguments = {**settings.arguments(), "measured_on": measured_on}
        return finished(self._read(CorpusSettings, "set_knowledge_settings", arguments, timeout))

    def set_fields(
        self, settings: CorpusSettings, *, timeout: float | None = None
    ) -> CorpusSettings:
        """Store only `heading_weight`, `title_weight` and `text_keys` of a collection.

        Chunks that are written later have them; `rewrite_chunks` rewrites those that there are.
        """
        arguments = settings.field_arguments()
        return finished(self._read(CorpusSettings, "set_knowledge_fields", arguments, timeout))

    def rewrite_chunks(self, most: int = 1000, *, timeout: float | None = None) -> int:
        """Rewrite the words of that many chunks that have other fields; return how many are left.

        Call it until it returns 0; each call is a transaction.
        """
        return finished(self._read(int, "rewrite_knowledge_chunks", {"most": most}, timeout))

    def settings(self, *, timeout: float | None = None) -> list[CorpusSettings]:
        """Return the stored settings in the order of their collections."""
        return finished(self._read(list[CorpusSettings], "list_knowledge_settings", {}, timeout))

    def reset_settings(self, collection: str = "", *, timeout: float | None = None) -> bool:
        """Remove the settings of a collection; return whether there were any."""
        return finished(
            self._read(bool, "reset_knowledge_settings", {"collection": collection}, timeout)
        )

    def set_judgments(self, judgments: Sequence[Judgment], *, timeout: float | None = None) -> int:
        """Store judgments, each in place of the same user's for the same question and thing.

        Returns their number. Each 1,000 are a transaction.
        """
        return finished(_judged(self, judgments, timeout))

    def withdraw_judgments(
        self, judgments: Sequence[Judgment], *, timeout: float | None = None
    ) -> None:
        """Remove these judgments, of the same user for the same question and thing.

        Their grades are not compared.
        """
        finished(_judged(self, judgments, timeout, withdrawn=True))

    def judgments(
        self,
        collection: str | None = None,
        judged_by: UUID | str | None = None,
        *,
        timeout: float | None = None,
    ) -> list[Judgment]:
        """Return the judgments in a collection, of one user, by question and document."""
        arguments = {"in_collection": collection, "by_user": judged_by and str(judged_by)}
        return finished(self._read(list[Judgment], "list_knowledge_judgments", arguments, timeout))

    def delete_judgments(
        self,
        *,
        question: str | None = None,
        collection: str | None = None,
        judged_by: UUID | str | None = None,
        is_generated: bool | None = None,
        timeout: float | None = None,
    ) -> int:
        """Delete the judgments that fit all that is given; return their number."""
        arguments = {
            "question": question,
            "collection": collection,
            "judged_by": judged_by,
            "is_generated": is_generated,
        }
        return finished(self._read(int, "delete_knowledge_judgments", arguments, timeout))

    def refresh_statistics(self, *, timeout: float | None = None) -> bool:
        """Renew the document frequencies that ranking reads, after ANALYZE."""
        return finished(self._read(bool, "refresh_knowledge_statistics", {}, timeout))


@documented
class AsyncWrites(Client):
    """The methods of `Writes`, for an event loop."""

    _pause = staticmethod(asyncio.sleep)

    async def upsert_document(
        self,
        document: Mapping[str, object],
        chunks: Sequence[Mapping[str, object]],
        *,
        fields: Literal["merge", "replace"] = "merge",
        timeout: float | None = None,
    ) -> UpsertCounts:
        """`Writes.upsert_document` for an event loop."""
        arguments = _upsert(document, chunks, fields)
        return await self._read(UpsertCounts, "upsert_knowledge_document", arguments, timeout)

    async def missing_embeddings(
        self, content_hashes: Sequence[str], embedding_model: str, *, timeout: float | None = None
    ) -> set[str]:
        """`Writes.missing_embeddings` for an event loop."""
        arguments = {"content_hashes": list(content_hashes), "model": embedding_model}
        return await self._read(set[str], "missing_knowledge_embeddings", arguments, timeout)

    async def delete_document(self, external_key: str, *, timeout: float | None = None) -> int:
        """`Writes.delete_document` for an event loop."""
        arguments = {"document_key": external_key}
        return await self._read(int, "delete_knowledge_document", arguments, timeout)

    async def supersede_document(
        self, old: str, new: str, at: datetime | None = None, *, timeout: float | None = None
    ) -> int:
        """`Writes.supersede_document` for an event loop."""
        given = {"old": old, "new": new, "at": _moment(at)}
        return await self._read(int, "supersede_knowledge_document", given, timeout)

    async def delete_owner(
        self, owner_id: UUID | str, *, timeout: float | None = None
    ) -> DeletedCounts:
        """`Writes.delete_owner` for an event loop."""
        arguments = {"owner": owner_id}
        return await self._read(DeletedCounts, "delete_knowledge_owner", arguments, timeout)

    async def purge(self, older_than: timedelta, *, timeout: float | None = None) -> int:
        """`Writes.purge` for an event loop."""
        arguments = {"older_than": f"{older_than.total_seconds()} seconds"}
        return await self._read(int, "purge_knowledge_chunks", arguments, timeout)

    async def set_settings(
        self,
        settings: CorpusSettings,
        *,
        measured_on: str | None = None,
        timeout: float | None = None,
    ) -> CorpusSettings:
        """`Writes.set_settings` for an event loop."""
        arguments = {**settings.arguments(), "measured_on": measured_on}
        return await self._read(CorpusSettings, "set_knowledge_settings", arguments, timeout)

    async def set_fields(
        self, settings: CorpusSettings, *, timeout: float | None = None
    ) -> CorpusSettings:
        """`Writes.set_fields` for an event loop."""
        arguments = settings.field_arguments()
        return await self._read(CorpusSettings, "set_knowledge_fields", arguments, timeout)

    async def rewrite_chunks(self, most: int = 1000, *, timeout: float | None = None) -> int:
        """`Writes.rewrite_chunks` for an event loop."""
        return await self._read(int, "rewrite_knowledge_chunks", {"most": most}, timeout)

    async def settings(self, *, timeout: float | None = None) -> list[CorpusSettings]:
        """`Writes.settings` for an event loop."""
        return await self._read(list[CorpusSettings], "list_knowledge_settings", {}, timeout)

    async def reset_settings(self, collection: str = "", *, timeout: float | None = None) -> bool:
        """`Writes.reset_settings` for an event loop."""
        return await self._read(
            bool, "reset_knowledge_settings", {"collection": collection}, timeout
        )

    async def set_judgments(
        self, judgments: Sequence[Judgment], *, timeout: float | None = None
    ) -> int:
        """`Writes.set_judgments` for an event loop."""
        return await _judged(self, judgments, timeout)

    async def withdraw_judgments(
        self, judgments: Sequence[Judgment], *, timeout: float | None = None
    ) -> None:
        """`Writes.withdraw_judgments` for an event loop."""
        await _judged(self, judgments, timeout, withdrawn=True)

    async def judgments(
        self,
        collection: str | None = None,
        judged_by: UUID | str | None = None,
        *,
        timeout: float | None = None,
    ) -> list[Judgment]:
        """`Writes.judgments` for an event loop."""
        arguments = {"in_collection": collection, "by_user": judged_by and str(judged_by)}
        return await self._read(list[Judgment], "list_knowledge_judgments", arguments, timeout)

    async def delete_judgments(
        self,
        *,
        question: str | None = None,
        collection: str | None = None,
        judged_by: UUID | str | None = None,
        is_generated: bool | None = None,
        timeout: float | None = None,
    ) -> int:
        """`Writes.delete_judgments` for an event loop."""
        arguments = {
            "question": question,
            "collection": collection,
            "judged_by": judged_by,
            "is_generated": is_generated,
        }
        return await self._read(int, "delete_knowledge_judgments", arguments, timeout)

    async def refresh_statistics(self, *, timeout: float | None = None) -> bool:
        """`Writes.refresh_statistics` for an event loop."""
        return await self._read(bool, "refresh_knowledge_statistics", {}, timeout)


def _moment(at: datetime | None) -> datetime:
    if at is not None and not isinstance(at, datetime):
        raise InvalidInputError(
            f"at must be a datetime, not {type(at).__name__}",
            remedy="Give a datetime with a time zone, or None for now.",
        )
    return at or datetime.now(UTC)


def _upsert(
    document: Mapping[str, object], chunks: Sequence[Mapping[str, object]], fields: str
) -> dict[str, Any]:
    """Return the arguments of `upsert_knowledge_document`. Raises InvalidInputError."""
    if chunks is None or isinstance(chunks, str | bytes | Mapping):
        raise InvalidInputError(
            f"chunks must be a list of chunks, not {type(chunks).__name__}",
            remedy='Give each chunk as {"content": text}, or [] for a document without chunks.',
        )
    chunks = list(chunks)
    named = {"document": document, **{f"chunks[{at}]": chunk for at, chunk in enumerate(chunks)}}
    for name, value in named.items():
        if not isinstance(value, Mapping):
            raise InvalidInputError(
                f"{name} must be a dict, not {type(value).__name__}",
                remedy='Give the document as {"external_key": text}, a chunk as {"content": text}.',
            )
    return {
        "document": dict(document),
        "chunks": list(map(_with_embedding_as_text, chunks)),
        "fields": fields,
    }


async def _judged(
    client: Client,
    judgments: Sequence[Judgment],
    timeout: float | None,
    *,
    withdrawn: bool = False,
) -> int:
    """Send judgments, as many as one call may have; return their number."""
    for some in batches(judgments, withdrawn=withdrawn):
        await client._read(int, "set_knowledge_judgments", {"judgments": some}, timeout)
    return len(judgments)


def _with_embedding_as_text(chunk: Mapping[str, object]) -> dict[str, Any]:
    """Return a chunk whose embedding is a text: the database reads an array much slower."""
    embedding = chunk.get("embedding")
    if embedding is None or isinstance(embedding, str):
        return dict(chunk)
    return {**chunk, "embedding": json.dumps(embedding, default=json_default)}

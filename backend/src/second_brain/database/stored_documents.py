"""The stored documents, whoever owns them: listed page by page, and described with their chunks.

For people who are responsible for the corpus, over psycopg as a role that may call the functions:
the owner or `service_role`. What a user may see of the own documents is in
`services/own_documents.py`.
"""

from datetime import date, datetime
from typing import Any, Literal
from uuid import UUID

from second_brain.frozen import Frozen
from second_brain.services.connection_calls import ask
from second_brain.services.install import Database

DocumentState = Literal["ready", "pending", "empty"]


class DocumentSummary(Frozen):
    """A document and the number of its chunks.

    `state` is `ready`, `pending` (an active chunk needs an embedding) or `empty` (no active chunk).
    Of the active `chunks`, `pending` need an embedding; `EmbeddingQueue.failed` lists those that
    the workers have given up. `inactive` chunks are superseded, archived or deleted. `bytes` is the
    size of the text of the active chunks.
    """

    id: UUID
    external_key: str
    title: str | None
    state: DocumentState
    collection: str
    knowledge_type: str
    language: str
    source_origin: str
    source_url: str | None
    document_date: date | None
    visibility: Literal["private", "public"]
    owner_id: UUID | None
    chunks: int
    pending: int
    inactive: int
    bytes: int
    created_at: datetime
    updated_at: datetime


class DocumentDetail(DocumentSummary):
    """A document with the columns that its list does not have."""

    author: str | None
    allowed_groups: list[str] | None
    sensitivity: str | None
    metadata: dict[str, Any]
    source_row: dict[str, Any] | None


class StoredChunk(Frozen):
    """A chunk; `reason` says why it is not `ready`, and `bytes` and `words` are of its text."""

    id: UUID
    chunk_index: int | None
    version: int
    status: Literal["active", "superseded", "archived", "deleted"]
    state: Literal["ready", "pending", "inactive"]
    reason: str | None
    heading: str | None
    content: str
    bytes: int
    words: int
    collection: str
    language: str
    visibility: Literal["private", "public"]
    metadata: dict[str, Any]
    is_embedded: bool
    embedding_model: str | None
    created_at: datetime
    updated_at: datetime


class StoredDocument(Frozen):
    """A document, None for a chunk without one, and a page of its chunks, active ones first."""

    document: DocumentDetail | None
    chunks: list[StoredChunk]


def list_documents(
    database: Database,
    *,
    collection: str | None = None,
    knowledge_type: str | None = None,
    state: DocumentState | None = None,
    named: str | None = None,
    after_key: str | None = None,
    page_size: int = 50,
) -> list[DocumentSummary]:
    """Return a page of the documents in the order of their keys.

    `named` is a text in the key or the title, in any case. `after_key` is the last key of the page
    before; `page_size` is 1 to 200. Raises a SecondBrainError.
    """
    rows = ask(
        database,
        "list_knowledge_documents",
        in_collection=collection,
        of_type=knowledge_type,
        in_state=state,
        named=named,
        after_key=after_key,
        page_size=page_size,
    )
    return [DocumentSummary.model_validate(row) for row in rows]


def describe_document(
    database: Database,
    *,
    document_key: str | None = None,
    document_id: UUID | None = None,
    chunk_id: UUID | None = None,
    chunk_count: int = 50,
    chunk_offset: int = 0,
) -> StoredDocument | None:
    """Return a document and a page of its chunks, or None if it is not stored.

    Give one of the three names; with `chunk_id`, that chunk only. `chunk_count` is 1 to 500. Raises
    a SecondBrainError.
    """
    found = ask(
        database,
        "describe_knowledge_document",
        document_key=document_key,
        document_id=document_id,
        chunk_id=chunk_id,
        chunk_count=chunk_count,
        chunk_offset=chunk_offset,
    )
    return None if found is None else StoredDocument.model_validate(found)

"""A signed-in user's own documents, over Supabase's REST API: listed, read and deleted.

Each method calls one SQL function, which takes the user from the token. It is not for a backend
that acts for all users: that reads the tables and writes with a KnowledgeWriter.
"""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, cast
from uuid import UUID

from second_brain.errors import documented
from second_brain.frozen import Frozen
from second_brain.services.calls import Client, finished


class OwnDocument(Frozen):
    """A document that a user may see; `chunk_count` counts its active chunks that they may see."""

    id: UUID
    external_key: str
    title: str | None
    knowledge_type: str
    collection: str
    source_origin: str
    source_url: str | None
    document_date: date | None
    visibility: str
    is_own: bool
    chunk_count: int
    created_at: datetime
    updated_at: datetime


class OwnChunk(Frozen):
    """A chunk of a document that was read."""

    id: UUID
    chunk_index: int | None
    heading: str | None
    content: str
    collection: str
    metadata: Mapping[str, Any]


class OwnDocumentContent(OwnDocument):
    """A document with the chunks that were asked for, in their order."""

    author: str | None
    language: str
    sensitivity: str | None
    allowed_groups: tuple[str, ...] | None
    metadata: Mapping[str, Any]
    chunks: tuple[OwnChunk, ...]


CONTENT = cast("type[OwnDocumentContent | None]", OwnDocumentContent | None)


@documented
class OwnDocuments(Client):
    """What a client with a user's token may do with documents; every method raises on failure."""

    def list_my_documents(
        self,
        *,
        page_size: int = 50,
        after_key: str | None = None,
        include_public: bool = False,
        include_groups: bool = False,
        timeout: float | None = None,
    ) -> list[OwnDocument]:
        """Return a page of the user's documents in the order of external_key.

        With `include_public` and `include_groups`, public documents and those of the user's groups
        too. `page_size` is 1 to 200; `after_key` is the last external_key of the page before.
        Raises a SecondBrainError.
        """
        arguments = {
            "page_size": page_size,
            "after_key": after_key,
            "include_public": include_public,
            "include_groups": include_groups,
        }
        return finished(
            self._read(list[OwnDocument], "list_my_knowledge_documents", arguments, timeout)
        )

    def read_my_document(
        self,
        document_id: UUID | str,
        *,
        chunk_count: int = 100,
        chunk_offset: int = 0,
        timeout: float | None = None,
    ) -> OwnDocumentContent | None:
        """Return a document that is the user's, of a group of theirs, or public; else None.

        Only its owner gets `allowed_groups`. `chunk_count` is 1 to 500. Raises a SecondBrainError.
        """
        arguments = {
            "document": str(document_id),
            "chunk_count": chunk_count,
            "chunk_offset": chunk_offset,
        }
        return finished(self._read(CONTENT, "read_my_knowledge_document", arguments, timeout))

    def delete_my_document(self, document_id: UUID | str, *, timeout: float | None = None) -> bool:
        """Delete a document of the user for good; say whether there was one.

        It is not sent again when the connection is lost. Raises a SecondBrainError.
        """
        arguments = {"document": str(document_id)}
        return finished(self._read(bool, "delete_my_knowledge_document", arguments, timeout))


@documented
class AsyncOwnDocuments(Client):
    """The methods of `OwnDocuments`, for an event loop."""

    async def list_my_documents(
        self,
        *,
        page_size: int = 50,
        after_key: str | None = None,
        include_public: bool = False,
        include_groups: bool = False,
        timeout: float | None = None,
    ) -> list[OwnDocument]:
        """`OwnDocuments.list_my_documents` for an event loop."""
        arguments = {
            "page_size": page_size,
            "after_key": after_key,
            "include_public": include_public,
            "include_groups": include_groups,
        }
        return await self._read(
            list[OwnDocument], "list_my_knowledge_documents", arguments, timeout
        )

    async def read_my_document(
        self,
        document_id: UUID | str,
        *,
        chunk_count: int = 100,
        chunk_offset: int = 0,
        timeout: float | None = None,
    ) -> OwnDocumentContent | None:
        """`OwnDocuments.read_my_document` for an event loop."""
        arguments = {
            "document": str(document_id),
            "chunk_count": chunk_count,
            "chunk_offset": chunk_offset,
        }
        return await self._read(CONTENT, "read_my_knowledge_document", arguments, timeout)

    async def delete_my_document(
        self, document_id: UUID | str, *, timeout: float | None = None
    ) -> bool:
        """`OwnDocuments.delete_my_document` for an event loop."""
        arguments = {"document": str(document_id)}
        return await self._read(bool, "delete_my_knowledge_document", arguments, timeout)

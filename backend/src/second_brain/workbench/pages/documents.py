"""The page Documents: the stored documents by key, and one with its chunks and their states."""

from collections.abc import Mapping
from typing import Any, cast, get_args
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from second_brain.database.stored_documents import (
    DocumentState,
    describe_document,
    list_documents,
)
from second_brain.workbench.frame import Page, link, render, whole_number, workbench_of

_STATES = get_args(DocumentState)
_PAGE_SIZE = 50
_CHUNKS = 50
_LAST_OFFSET = 1_000_000


def show_list(request: Request) -> Response:
    """Show a page of the documents."""
    asked = request.query_params
    given = {name: asked.get(name, "").strip() for name in ("q", "collection", "type", "state")}
    state = given["state"] if given["state"] in _STATES else None
    with workbench_of(request).connections.reading() as database:
        documents = list_documents(
            database,
            collection=given["collection"] or None,
            knowledge_type=given["type"] or None,
            state=cast(DocumentState | None, state),
            named=given["q"] or None,
            after_key=asked.get("after") or None,
            page_size=_PAGE_SIZE,
        )
    following = None
    if len(documents) == _PAGE_SIZE:
        following = link("/documents", **given, after=documents[-1].external_key)
    return render(
        request,
        "documents.html",
        {
            "documents": documents,
            "given": given,
            "states": _STATES,
            "following": following,
            "is_first": not asked.get("after"),
            "start": link("/documents", **given),
        },
        page="documents",
    )


def show_document(request: Request) -> Response:
    """Show a document by its id."""
    return _described(request, {"document_id": request.path_params["document_id"]})


def show_by_key(request: Request) -> Response:
    """Show a document by its key, or by the id of a document or chunk."""
    key = request.query_params.get("key", "").strip()
    return _described(request, {"document_key": key})


def show_chunk(request: Request) -> Response:
    """Show one chunk and its document."""
    return _described(request, {"chunk_id": request.path_params["chunk_id"]})


def _described(request: Request, named: Mapping[str, Any]) -> Response:
    offset = whole_number("offset", request.query_params.get("offset", "0"), 0, _LAST_OFFSET)
    with workbench_of(request).connections.reading() as database:
        found = describe_document(database, **named, chunk_count=_CHUNKS, chunk_offset=offset)
    name = next(iter(named.values()))
    if found is None:
        return render(
            request, "document_missing.html", {"name": name}, page="documents", status=404
        )
    document = found.document
    count = 0 if document is None else document.chunks + document.inactive
    is_chunk = isinstance(named.get("chunk_id"), UUID)
    address = None if document is None else f"/document/{document.id}"
    return render(
        request,
        "document.html",
        {
            "document": document,
            "chunks": found.chunks,
            "is_chunk": is_chunk,
            "address_of_document": address,
            "first": offset + 1,
            "last": offset + len(found.chunks),
            "count": count,
            "before": link(address, offset=max(offset - _CHUNKS, 0))
            if address and offset > 0 and not is_chunk
            else None,
            "after": link(address, offset=offset + _CHUNKS)
            if address and offset + len(found.chunks) < count and not is_chunk
            else None,
        },
        page="documents",
    )


PAGE = Page(
    "documents",
    "Documents",
    "/documents",
    [
        Route("/documents", show_list),
        Route("/document", show_by_key),
        Route("/document/{document_id:uuid}", show_document),
        Route("/chunk/{chunk_id:uuid}", show_chunk),
    ],
)

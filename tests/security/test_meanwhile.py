"""What another session changes in an open transaction, for who reads or deletes it meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from conftest import Connect
from support.documents import upsert
from support.emptied import dsn as dsn
from waiting import await_lock_of

ANA, BEN = UUID(int=1), UUID(int=2)


def after(connect: Connect, change: str, role: Any, statement: str) -> list[Any]:
    """Run a statement of a role that has to wait until a change is committed; return its rows."""
    changing, asking, watching = connect("service_role"), connect(role, uid=ANA), connect()
    with ThreadPoolExecutor(1) as threads:
        with changing.transaction():
            changing.execute(change.encode())
            waiting = threads.submit(asking.execute, statement.encode())
            await_lock_of(watching, asking)
        return waiting.result(timeout=30).fetchall()


def test_a_chunk_of_a_document_that_turns_private_is_private(connect: Connect) -> None:
    upsert(connect("service_role"), "doc", "first", visibility="public")
    written = after(
        connect,
        "update public.knowledge_documents set visibility = 'private'",
        "service_role",
        "insert into public.knowledge_chunks (document_id, content)"
        " select id, 'second' from public.knowledge_documents returning visibility",
    )
    assert written == [("private",)]


def test_a_deletion_counts_the_chunk_that_comes_before_it(connect: Connect) -> None:
    upsert(connect("service_role"), "doc", "first")
    deleted = after(
        connect,
        "insert into public.knowledge_chunks (document_id, content)"
        " select id, 'second' from public.knowledge_documents",
        "service_role",
        "select public.delete_knowledge_document('doc')",
    )
    assert deleted == [(2,)]


@pytest.mark.module("own_documents")
def test_a_document_that_changes_hands_is_not_deleted_by_its_former_owner(connect: Connect) -> None:
    id_ = upsert(connect("service_role"), "doc", "first", owner_id=ANA)
    deleted = after(
        connect,
        f"update public.knowledge_documents set owner_id = '{BEN}'",
        "authenticated",
        f"select public.delete_my_knowledge_document('{id_}')",
    )
    assert deleted == [(False,)]

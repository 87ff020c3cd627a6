"""Documents, owners and superseded chunks out: deletion and purge."""

from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from stored import Documents
from stored import documents as documents

from conftest import Connection
from support.documents import upsert
from support.emptied import dsn as dsn

ME, YOU = UUID(int=1), UUID(int=2)


def test_a_deleted_document_takes_all_its_chunks_along(documents: Documents) -> None:
    documents.upsert(["one", "two"])
    documents.upsert(["one", "2"])
    documents.upsert(["other"], key="other")
    delete = "select public.delete_knowledge_document(document_key => %s)"
    assert documents.rows(delete, "doc") == [(3,)]
    assert documents.rows(delete, "doc") == [(0,)]
    assert documents.contents("doc") == []
    assert documents.contents("other") == ["other"]
    assert len(documents.everything()) == 2
    assert documents.counts(["one"]) == (1, 0, 0, 0)


def test_a_deleted_owner_leaves_nothing_of_theirs(documents: Documents) -> None:
    for key, owner, texts in (
        ("a", ME, ["one"]),
        ("b", ME, ["two", "three"]),
        ("b", ME, ["two"]),
        ("c", YOU, ["yours"]),
        ("d", None, ["nobody's"]),
    ):
        documents.upsert(texts, key, owner_id=owner and str(owner))
    insert = "insert into public.knowledge_chunks (content, owner_id) values ('loose', %s)"
    documents.rows(insert, ME)
    delete = "select * from public.delete_knowledge_owner(owner => %s)"
    assert documents.rows(delete, ME) == [(2, 4)]
    assert documents.rows(delete, ME) == [(0, 0)]
    left = documents.rows("select content from public.knowledge_chunks order by 1")
    assert left == [("nobody's",), ("yours",)]


def test_a_deleted_owner_leaves_no_old_version_in_a_document_of_somebody_else(
    documents: Documents,
) -> None:
    for content, owner in (("old", ME), ("new", ME), ("new", YOU)):
        documents.upsert([content], owner_id=str(owner))
    owners = "select owner_id, status from public.knowledge_chunks order by owner_id"
    assert documents.rows(owners) == [(ME, "superseded"), (YOU, "active")]
    documents.rows("select public.delete_knowledge_owner(%s)", ME)
    assert documents.rows(owners) == [(YOU, "active")]


def test_a_row_that_holds_the_whole_document_is_left_alone(documents: Documents) -> None:
    documents.upsert(["one", "two"])
    documents.rows(
        "insert into public.knowledge_chunks (document_id, collection, content)"
        " select id, 'artifacts', 'one two' from public.knowledge_documents"
    )
    documents.upsert(["one", "three"])
    assert {row["content"] for row in documents.chunks()} == {"one", "three", "one two"}


def test_a_purge_removes_what_was_superseded_long_enough_ago(
    documents: Documents, database: Connection
) -> None:
    documents.upsert(["old", "recent", "kept"])
    documents.upsert(["2", "recent", "kept"])
    database.execute("alter table public.knowledge_chunks disable trigger complete_chunk")
    database.execute(
        "update public.knowledge_chunks set updated_at = now() - interval '31 days'"
        " where content in ('old', 'kept')"
    )
    database.execute("alter table public.knowledge_chunks enable trigger complete_chunk")
    # A document that goes on changing does not keep its old chunks alive.
    documents.upsert(["2", "3", "kept"], metadata={"synced": 1})
    purge = "select public.purge_knowledge_chunks()"
    assert documents.rows(purge) == [(1,)]
    assert documents.rows(purge) == [(0,)]
    assert [row["content"] for row in documents.chunks(status="superseded")] == ["recent"]
    assert documents.rows("select public.purge_knowledge_chunks(older_than => '0')") == [(1,)]
    assert documents.contents() == ["2", "3", "kept"]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("delete_knowledge_document(null)", "document_key"),
        ("delete_knowledge_owner(null)", "owner"),
        ("purge_knowledge_chunks(null)", "older_than"),
        ("purge_knowledge_chunks('-1 day')", "older_than"),
        ("purge_knowledge_chunks('100000 years')", "older_than"),
    ],
)
def test_a_deletion_refuses_by_name(documents: Documents, call: str, named: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"^{named} "):
        documents.rows(f"select public.{call}")


@pytest.mark.module("words")
@pytest.mark.parametrize(
    "delete",
    [
        "select public.delete_knowledge_document('a')",
        "delete from public.knowledge_chunks where content like 'the merger%'",
        "delete from public.knowledge_documents where external_key in ('a', 'b')",
        "update public.knowledge_chunks set content = 'x' where content like 'the merger%'",
        "select public.upsert_knowledge_document('{\"external_key\": \"a\"}', '[]')",
    ],
)
def test_a_word_stays_known_while_a_chunk_has_it(
    knowledge: Connection, delete: LiteralString
) -> None:
    upsert(knowledge, "a", "the merger with quixotronics", "zebra giraffe")
    upsert(knowledge, "b", "quixotronics plans", "zebra lions")
    upsert(knowledge, "c", "plans of lions", "giraffe and quixotronics")
    knowledge.execute("analyze public.knowledge_chunks")
    knowledge.execute(delete)
    words = {word for (word,) in knowledge.execute("select word from public.knowledge_words")}
    assert {"quixotronics", "plans", "lions", "giraffe"} <= words

"""Documents, owners and superseded chunks out: deletion and purge."""

from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from stored import chunks_of, contents, counts, dsn, everything, upsert

from conftest import Connect, Connection

__all__ = ["dsn"]  # a fixture

ME, YOU = UUID(int=1), UUID(int=2)


def test_a_deleted_document_takes_all_its_chunks_along(service_role: Connection) -> None:
    upsert(service_role, ["one", "two"])
    upsert(service_role, ["one", "2"])
    upsert(service_role, ["other"], key="other")
    delete = "select public.delete_knowledge_document(document_key => %s)"
    assert service_role.execute(delete, ["doc"]).fetchall() == [(3,)]
    assert service_role.execute(delete, ["doc"]).fetchall() == [(0,)]
    assert contents(service_role, "doc") == []
    assert contents(service_role, "other") == ["other"]
    assert len(everything(service_role)) == 2
    assert counts(upsert(service_role, ["one"])) == (1, 0, 0, 0)


def test_a_deleted_owner_leaves_nothing_of_theirs(service_role: Connection) -> None:
    upsert(service_role, ["one"], key="a", owner_id=str(ME))
    upsert(service_role, ["two", "three"], key="b", owner_id=str(ME))
    upsert(service_role, ["two"], key="b", owner_id=str(ME))
    upsert(service_role, ["yours"], key="c", owner_id=str(YOU))
    upsert(service_role, ["nobody's"], key="d")
    service_role.execute(
        "insert into public.knowledge_chunks (content, owner_id) values ('loose', %s)", [ME]
    )
    delete = "select * from public.delete_knowledge_owner(owner => %s)"
    assert service_role.execute(delete, [ME]).fetchall() == [(2, 4)]
    assert service_role.execute(delete, [ME]).fetchall() == [(0, 0)]
    left = service_role.execute("select content from public.knowledge_chunks order by 1").fetchall()
    assert left == [("nobody's",), ("yours",)]


def test_a_deleted_owner_leaves_no_old_version_in_a_document_of_somebody_else(
    service_role: Connection,
) -> None:
    for content, owner in (("old", ME), ("new", ME), ("new", YOU)):
        upsert(service_role, [content], owner_id=str(owner))
    owners = "select owner_id, status from public.knowledge_chunks order by owner_id"
    assert service_role.execute(owners).fetchall() == [(ME, "superseded"), (YOU, "active")]
    service_role.execute("select public.delete_knowledge_owner(%s)", [ME])
    assert service_role.execute(owners).fetchall() == [(YOU, "active")]


def test_a_row_that_holds_the_whole_document_is_left_alone(connect: Connect) -> None:
    service_role = connect("service_role")
    upsert(service_role, ["one", "two"])
    service_role.execute(
        "insert into public.knowledge_chunks (document_id, collection, content)"
        " select id, 'artifacts', 'one two' from public.knowledge_documents"
    )
    upsert(service_role, ["one", "three"])
    assert {row["content"] for row in chunks_of(service_role)} == {"one", "three", "one two"}


def test_a_purge_removes_what_was_superseded_long_enough_ago(connect: Connect) -> None:
    service_role, owner = connect("service_role"), connect()
    upsert(service_role, ["old", "recent", "kept"])
    upsert(service_role, ["2", "recent", "kept"])
    owner.execute("alter table public.knowledge_chunks disable trigger complete_chunk")
    owner.execute(
        "update public.knowledge_chunks set updated_at = now() - interval '31 days'"
        " where content in ('old', 'kept')"
    )
    owner.execute("alter table public.knowledge_chunks enable trigger complete_chunk")
    # A document that goes on changing does not keep its old chunks alive.
    upsert(service_role, ["2", "3", "kept"], metadata={"synced": 1})
    purge = "select public.purge_knowledge_chunks()"
    assert service_role.execute(purge).fetchall() == [(1,)]
    assert service_role.execute(purge).fetchall() == [(0,)]
    assert [row["content"] for row in chunks_of(service_role, status="superseded")] == ["recent"]
    assert service_role.execute(
        "select public.purge_knowledge_chunks(older_than => '0')"
    ).fetchall() == [(1,)]
    assert contents(service_role) == ["2", "3", "kept"]


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
def test_a_deletion_refuses_by_name(service_role: Connection, call: str, named: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"^{named} ") as caught:
        service_role.execute(f"select public.{call}".encode())
    assert caught.value.sqlstate == "22023"


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
    upsert(knowledge, ["the merger with quixotronics", "zebra giraffe"], "a")
    upsert(knowledge, ["quixotronics plans", "zebra lions"], "b")
    upsert(knowledge, ["plans of lions", "giraffe and quixotronics"], "c")
    knowledge.execute("analyze public.knowledge_chunks")
    knowledge.execute(delete)
    words = {word for (word,) in knowledge.execute("select word from public.knowledge_words")}
    assert {"quixotronics", "plans", "lions", "giraffe"} <= words

"""Judgments: stored, listed and deleted, erased with what they judge, and kept in files."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from conftest import Connect, Connection
from second_brain.errors import InvalidInputError
from second_brain.evaluation import judgments as files
from second_brain.evaluation.collection import CollectionError, load
from second_brain.services.install import Database
from second_brain.services.judgments import Judgment
from second_brain.services.write import KnowledgeWriter
from support.documents import upsert
from support.emptied import dsn as dsn

pytestmark = pytest.mark.module("insight")

ANNA, BEN = uuid4(), uuid4()


@pytest.fixture
def writer(connect: Connect) -> KnowledgeWriter:
    connection = connect("service_role")
    upsert(connection, "keys", "The key opens.", "Rotate the key.", owner_id=ANNA)
    upsert(connection, "invoices", "Invoices are paid.", owner_id=BEN, title="Invoices")
    upsert(connection, "fruit", "Bananas are yellow.", owner_id=BEN)
    return KnowledgeWriter(connection)


def of(document_key: str = "keys", question: str = "how?", **given: Any) -> Judgment:
    return Judgment(question=question, document_key=document_key, **given)


def stored(writer: KnowledgeWriter) -> list[tuple[str, str | None, int]]:
    return [(one.question, one.document_key, one.grade) for one in writer.judgments()]


def test_the_last_judgment_of_a_user_counts(writer: KnowledgeWriter) -> None:
    writer.set_judgments([of(grade=0, judged_by=ANNA), of(grade=0, judged_by=BEN)])
    writer.set_judgments([of(grade=2, judged_by=ANNA)])
    assert [one.grade for one in writer.judgments(judged_by=ANNA)] == [2]
    assert [one.grade for one in writer.judgments(judged_by=BEN)] == [0]


def test_unknown_judges_do_not_add_up(writer: KnowledgeWriter) -> None:
    for grade in (1, 2):
        writer.set_judgments([of(grade=grade)])
    assert stored(writer) == [("how?", "keys", 2)]


def test_a_judged_chunk_names_its_document(writer: KnowledgeWriter, database: Connection) -> None:
    query = "select id from public.knowledge_chunks where content ~ 'Rot'"
    ((chunk,),) = database.execute(query).fetchall()
    writer.set_judgments([Judgment(question="how?", chunk_id=chunk, grade=1)])
    (judgment,) = writer.judgments()
    assert (judgment.document_key, judgment.chunk_id) == ("keys", chunk)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"question": " ", "document_key": "keys"}, r"judgments\[1\].question"),
        ({"question": "how?", "document_key": "nowhere"}, r"judgments\[1\].*nowhere"),
        ({"question": "how?", "chunk_id": uuid4()}, r"judgments\[1\].*chunk_id"),
    ],
)
def test_a_wrong_judgment_is_named_and_none_is_stored(
    writer: KnowledgeWriter, given: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInputError, match=named):
        writer.set_judgments([of(), Judgment(**given)])
    assert writer.judgments() == []


@pytest.mark.parametrize(
    ("judgments", "named"),
    [
        ('{"question": "how?"}', "must be an array"),
        ('[{"question": "how?", "grade": 3, "document_key": "keys"}]', "grade must be 0, 1 or 2"),
    ],
)
def test_sql_refuses_other_json(database: Connection, judgments: str, named: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=named):
        database.execute("select public.set_knowledge_judgments(%s::jsonb)", [judgments])


def test_judgments_are_deleted_by_question_collection_and_user(writer: KnowledgeWriter) -> None:
    writer.set_judgments(
        [
            of(question=question, collection=collection, judged_by=judge)
            for question in ("how?", "why?")
            for collection in ("", "docs")
            for judge in (ANNA, BEN)
        ]
    )
    assert writer.delete_judgments(question="how?", collection="docs", judged_by=ANNA) == 1
    assert writer.delete_judgments(question="how?") == 3
    assert writer.delete_judgments(judged_by=BEN) == 2
    with pytest.raises(InvalidInputError, match="give at least one"):
        writer.delete_judgments()
    assert {(one.question, one.judged_by) for one in writer.judgments()} == {("why?", ANNA)}


def test_erasing_an_owner_erases_the_judgments_of_the_owner_and_of_the_owners_documents(
    writer: KnowledgeWriter,
) -> None:
    by_ben = of("invoices", judged_by=BEN, grade=1)
    writer.set_judgments([of(judged_by=BEN), of("invoices", judged_by=ANNA), by_ben])
    writer.delete_owner(ANNA)
    assert stored(writer) == [("how?", "invoices", 1)]


def test_a_deleted_or_truncated_chunk_takes_its_judgment_along(
    writer: KnowledgeWriter, database: Connection
) -> None:
    chunks = database.execute("select id from public.knowledge_chunks order by content").fetchall()
    writer.set_judgments([Judgment(question="how?", chunk_id=id_) for (id_,) in chunks])
    writer.set_judgments([of()])
    database.execute("delete from public.knowledge_chunks where content ~ 'Rotate'")
    assert len(writer.judgments()) == 4
    database.execute("truncate public.knowledge_chunks")
    assert [(one.document_key, one.chunk_id) for one in writer.judgments()] == [("keys", None)]
    database.execute("truncate public.knowledge_chunks, public.knowledge_documents")
    assert writer.judgments() == []


def test_a_start_file_has_a_question_and_a_document_in_each_line(
    writer: KnowledgeWriter, tmp_path: Path
) -> None:
    file = tmp_path / "start.tsv"
    file.write_text("how, and when?\tkeys\nwhat is paid?\tinvoices\t1\n")
    writer.set_judgments(files.read(file))
    assert stored(writer) == [("how, and when?", "keys", 2), ("what is paid?", "invoices", 1)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("how?\n", "line 1: a question and a document"),
        ("how?\tkeys\t7\n", "line 1: grade"),
        ("question\tpage\nhow?\tkeys\n", "unknown column 'page'"),
        ("question,chunk\nhow?,x\n", "line 2: chunk_id"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "start.tsv"
    file.write_text(text)
    with pytest.raises(CollectionError, match=named):
        files.read(file)


@pytest.mark.parametrize("name", ["judged.csv", "judged"])
def test_what_is_exported_is_imported_again(
    writer: KnowledgeWriter, database: Connection, tmp_path: Path, name: str
) -> None:
    exactly, paid = 'how, "exactly"?', "what is paid?"
    writer.set_judgments(
        [of("keys", exactly), of("fruit", exactly, grade=0), of("invoices", paid, grade=1)]
    )
    before = stored(writer)
    path = tmp_path / name
    if path.suffix:
        files.write_csv(path, writer.judgments())
    else:
        assert files.write_beir(path, writer.judgments(), Database(database)) == 2
        documents = {one.id: one for one in load(path).documents}
        assert documents["keys"].text == "The key opens.\n\nRotate the key."
        assert documents["invoices"].title == "Invoices"
    for question in (exactly, paid):
        writer.delete_judgments(question=question)
    writer.set_judgments(files.read(path))
    assert stored(writer) == before

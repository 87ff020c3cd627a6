"""Judgments: stored, listed and deleted, erased with what they judge, and kept in files."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from stored import upsert

from conftest import Connect, Connection
from second_brain.errors import InvalidInputError
from second_brain.evaluation import judgments as files
from second_brain.evaluation.collection import CollectionError, load
from second_brain.services.install import Database
from second_brain.services.judgments import Judgment
from second_brain.services.write import KnowledgeWriter
from support.emptied import dsn as dsn

pytestmark = pytest.mark.module("insight")

ANNA, BEN = uuid4(), uuid4()


@pytest.fixture
def writer(connect: Connect) -> KnowledgeWriter:
    """A writer as the service role, with three documents stored."""
    connection = connect("service_role")
    upsert(connection, ["The key opens.", "Rotate the key."], "keys", owner_id=str(ANNA))
    upsert(connection, ["Invoices are paid."], "invoices", owner_id=str(BEN), title="Invoices")
    upsert(connection, ["Bananas are yellow."], "fruit", owner_id=str(BEN))
    return KnowledgeWriter(connection)


def told(judgments: list[Judgment]) -> list[tuple[str, str | None, int]]:
    return [(one.question, one.document_key, one.grade) for one in judgments]


def test_the_last_judgment_of_a_user_counts(writer: KnowledgeWriter) -> None:
    first = Judgment(question="how?", document_key="keys", grade=0, judged_by=ANNA)
    writer.set_judgments([first, first.model_copy(update={"judged_by": BEN})])
    writer.set_judgments([first.model_copy(update={"grade": 2})])
    assert [one.grade for one in writer.judgments(judged_by=ANNA)] == [2]
    assert [one.grade for one in writer.judgments(judged_by=BEN)] == [0]


def test_unknown_judges_do_not_add_up(writer: KnowledgeWriter) -> None:
    for grade in (1, 2):
        writer.set_judgments([Judgment(question="how?", document_key="keys", grade=grade)])
    assert told(writer.judgments()) == [("how?", "keys", 2)]


def test_a_judged_chunk_names_its_document(writer: KnowledgeWriter, database: Connection) -> None:
    row = database.execute(
        "select id from public.knowledge_chunks where content ~ 'Rot'"
    ).fetchone()
    assert row is not None
    writer.set_judgments([Judgment(question="how?", chunk_id=row[0], grade=1)])
    (judgment,) = writer.judgments()
    assert (judgment.document_key, judgment.chunk_id) == ("keys", row[0])


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
    good = Judgment(question="how?", document_key="keys")
    with pytest.raises(InvalidInputError, match=named):
        writer.set_judgments([good, Judgment(**given)])
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
            Judgment(question=question, document_key="keys", collection=collection, judged_by=judge)
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


def test_erasing_an_owner_erases_the_judgments_of_the_owners_documents(
    writer: KnowledgeWriter,
) -> None:
    writer.set_judgments(
        [
            Judgment(question="how?", document_key="keys", judged_by=BEN),
            Judgment(question="how?", document_key="fruit", judged_by=BEN, grade=0),
        ]
    )
    writer.delete_owner(ANNA)
    assert told(writer.judgments()) == [("how?", "fruit", 0)]


def test_a_deleted_or_truncated_chunk_takes_its_judgment_along(
    writer: KnowledgeWriter, database: Connection
) -> None:
    chunks = database.execute("select id from public.knowledge_chunks order by content").fetchall()
    writer.set_judgments([Judgment(question="how?", chunk_id=id_) for (id_,) in chunks])
    writer.set_judgments([Judgment(question="how?", document_key="keys")])
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
    assert told(writer.judgments()) == [
        ("how, and when?", "keys", 2),
        ("what is paid?", "invoices", 1),
    ]


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
    writer.set_judgments(
        [
            Judgment(question='how, "exactly"?', document_key="keys"),
            Judgment(question='how, "exactly"?', document_key="fruit", grade=0),
            Judgment(question="what is paid?", document_key="invoices", grade=1),
        ]
    )
    before = told(writer.judgments())
    path = tmp_path / name
    if path.suffix:
        files.write_csv(path, writer.judgments())
    else:
        assert files.write_beir(path, writer.judgments(), Database(database)) == 2
        documents = {one.id: one for one in load(path).documents}
        assert documents["keys"].text == "The key opens.\n\nRotate the key."
        assert documents["invoices"].title == "Invoices"
    for question in ('how, "exactly"?', "what is paid?"):
        writer.delete_judgments(question=question)
    writer.set_judgments(files.read(path))
    assert told(writer.judgments()) == before


def test_an_erased_user_takes_the_users_judgments_along(writer: KnowledgeWriter) -> None:
    by_anna = Judgment(question="how?", document_key="invoices", grade=2, judged_by=ANNA)
    writer.set_judgments([by_anna, by_anna.model_copy(update={"judged_by": BEN, "grade": 1})])
    writer.delete_owner(ANNA)
    assert told(writer.judgments()) == [("how?", "invoices", 1)]

"""Triggers of one event fire in the order of their names: no result may depend on it."""

from typing import Any, LiteralString

import pytest
from psycopg import sql
from stored import upsert

from conftest import Connection

ANALYZE = "analyze public.knowledge_chunks"
# What a write leaves, without ids and times.
READ: dict[str, LiteralString] = {
    "knowledge_chunks": "select content, collection, status, content_tsv::text, bm25::text,"
    " text_length, metadata::text from public.knowledge_chunks",
    "knowledge_documents": "select external_key, title from public.knowledge_documents",
    "knowledge_words": "select distinct word from public.knowledge_words",
    "knowledge_judgments": "select question, grade from public.knowledge_judgments",
    "knowledge_native_texts": "select tokens::text from public.knowledge_native_texts",
    "knowledge_lexeme_statistics": "select lexeme from public.knowledge_lexeme_statistics",
}


def reverse_triggers(connection: Connection) -> None:
    """Rename all triggers so that each table's fire in the opposite order."""
    found = connection.execute(
        "select tgrelid::regclass::text, tgname,"
        '       row_number() over (order by tgname collate "C" desc)'
        "  from pg_trigger where not tgisinternal"
    ).fetchall()
    for table, name, place in found:
        connection.execute(
            sql.SQL("alter trigger {} on {} rename to {}").format(
                sql.Identifier(name), sql.SQL(table), sql.Identifier(f"t{place:03}_{name}"[:63])
            )
        )


def left_by(connection: Connection, statements: tuple[LiteralString, ...]) -> dict[str, list[Any]]:
    """Store the same documents, run the statements, and return what they leave."""
    modules = {
        name
        for name in READ
        if connection.execute("select to_regclass(%s)", [f"public.{name}"]).fetchall() != [(None,)]
    }
    connection.execute(
        "truncate public.knowledge_chunks, public.knowledge_documents,"
        " public.knowledge_corpus_statistics, public.knowledge_lexeme_statistics,"
        " public.knowledge_settings"
    )
    upsert(connection, ["the merger with quixotronics", "zebra giraffe"], "a", title="First")
    upsert(connection, ["quixotronics plans", "zebra lions"], "b", title="Second")
    upsert(connection, ["plans of lions", "giraffe and quixotronics"], "c", title="Third")
    if "knowledge_judgments" in modules:
        connection.execute(
            "insert into public.knowledge_judgments (question, document_id, grade)"
            " select external_key, id, 2 from public.knowledge_documents"
        )
    for statement in statements:
        connection.execute(statement)
    return {
        name: sorted(connection.execute(READ[name]).fetchall(), key=str) for name in sorted(modules)
    }


WRITES: dict[str, tuple[LiteralString, ...]] = {
    "a deleted document": (ANALYZE, "select public.delete_knowledge_document('a')"),
    "deleted chunks": (
        ANALYZE,
        "delete from public.knowledge_chunks where content like '%quixotr%' or chunk_index = 1",
    ),
    "two deletions": (
        ANALYZE,
        "select public.delete_knowledge_document('c')",
        ANALYZE,
        "select public.delete_knowledge_document('b')",
    ),
    "another text": (
        ANALYZE,
        "update public.knowledge_chunks set content = 'lions roar' where chunk_index = 0",
    ),
    "a new chunk": (
        ANALYZE,
        "insert into public.knowledge_chunks (content) values ('quixotronics and okapis')",
    ),
    "another title and collection": (
        ANALYZE,
        "update public.knowledge_documents set title = 'Okapis', collection = 'other'",
    ),
    "superseded chunks": (
        ANALYZE,
        "update public.knowledge_chunks set status = 'superseded' where chunk_index = 0",
        ANALYZE,
        "delete from public.knowledge_chunks where status = 'superseded'",
    ),
    "emptied tables": (ANALYZE, "truncate public.knowledge_chunks, public.knowledge_documents"),
}


def test_the_order_of_triggers_decides_nothing(knowledge: Connection) -> None:
    in_order = {name: left_by(knowledge, statements) for name, statements in WRITES.items()}
    reverse_triggers(knowledge)
    reversed_order = {name: left_by(knowledge, statements) for name, statements in WRITES.items()}
    for name, left in in_order.items():
        assert reversed_order[name] == left, name


@pytest.mark.module("field_weights")
@pytest.mark.parametrize("old", [0, 2])
@pytest.mark.parametrize("new", [0, 2])
def test_a_title_is_searched_by_the_weight_of_its_new_collection(
    knowledge: Connection, old: int, new: int
) -> None:
    weigh = "select public.set_knowledge_fields(%s, title_weight => %s)"
    left = []
    for _ in range(2):
        left_by(knowledge, ())
        knowledge.execute(weigh, ["knowledge", old])
        knowledge.execute(weigh, ["other", new])
        knowledge.execute("update public.knowledge_chunks set content_tsv = null")
        knowledge.execute(
            "update public.knowledge_documents set title = 'Okapis', collection = 'other'"
        )
        left.append(
            knowledge.execute(
                # Impact levels depend on the mean length at the time.
                "select content, content_tsv @@ 'okapi',"
                "       ts_filter(content_tsv, '{a,b,c,d}')::text"
                " from public.knowledge_chunks order by content"
            ).fetchall()
        )
        reverse_triggers(knowledge)
    assert left[0] == left[1]
    assert {has_title for _, has_title, _ in left[0]} == {new > 0}


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
@pytest.mark.parametrize("reverses", [False, True])
def test_a_word_stays_known_while_a_chunk_has_it(
    knowledge: Connection, delete: LiteralString, reverses: bool
) -> None:
    if reverses:
        reverse_triggers(knowledge)
    left = left_by(knowledge, (ANALYZE, delete))
    assert ("quixotronics",) in left["knowledge_words"]
    assert all((word,) in left["knowledge_words"] for word in ("plans", "lions", "giraffe"))

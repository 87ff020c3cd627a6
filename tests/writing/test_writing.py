"""Documents and chunks in, changed and out, on a real Postgres, as service_role."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Json, Jsonb
from stored import Chunk, Row, chunks_of, contents, counts, embedded, embeddings, everything, upsert

from conftest import Connect, Connection

ME, YOU = UUID(int=1), UUID(int=2)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    """Stand in for the fixture of a database per test."""
    return emptied_dsn


# Chunks: kept, changed, moved, removed.


def test_a_new_document_is_stored_with_its_chunks_in_order(service_role: Connection) -> None:
    row = upsert(
        service_role,
        ["first", {"content": "second", "heading": "Part 2"}],
        title="A title",
        author="Ann",
        source_url="https://example.org",
        document_date="2024-02-29",
    )
    assert counts(row) == (2, 0, 0, 0)
    assert embeddings(row) == (0, 2)
    assert contents(service_role) == ["first", "second"]
    first, second = chunks_of(service_role)
    assert first["document_id"] == row["document_id"]
    # A chunk without a heading has the title.
    assert (first["heading"], second["heading"]) == ("A title", "Part 2")
    assert (first["status"], first["version"]) == ("active", 1)
    ((author, date),) = service_role.execute(
        "select author, document_date::text from public.knowledge_documents"
    ).fetchall()
    assert (author, date) == ("Ann", "2024-02-29")


def test_a_long_document_is_stored_whole(service_role: Connection) -> None:
    texts = [f"part {number}" for number in range(1500)]
    assert counts(upsert(service_role, texts)) == (1500, 0, 0, 0)
    assert contents(service_role) == texts
    assert counts(upsert(service_role, [*texts[:-1], "end"])) == (0, 1, 1499, 0)
    assert contents(service_role) == [*texts[:-1], "end"]


def test_the_same_call_twice_changes_nothing(service_role: Connection) -> None:
    chunks: list[Chunk] = [
        embedded("one", 1),
        "two",
        "two",
        {"content": "three", "heading": "H", "metadata": {"page": 3}, "collection": "history"},
    ]
    document: dict[str, Any] = {
        "title": "T",
        "owner_id": str(ME),
        "metadata": {"a": [1, None]},
        "knowledge_type": "note",
        "language": "german",
    }
    upsert(service_role, chunks, **document)
    before = everything(service_role)
    assert len(before) == 5
    row = upsert(service_role, chunks, **document)
    assert counts(row) == (0, 0, 4, 0)
    assert everything(service_role) == before


def test_a_changed_chunk_supersedes_the_one_in_its_place(service_role: Connection) -> None:
    upsert(service_role, ["one", "two", "three"])
    before = {row["content"]: row["id"] for row in chunks_of(service_role)}
    assert counts(upsert(service_role, ["one", "2", "three"])) == (0, 1, 2, 0)
    after = chunks_of(service_role)
    assert [(row["content"], row["version"]) for row in after] == [
        ("one", 1),
        ("2", 2),
        ("three", 1),
    ]
    assert (after[0]["id"], after[2]["id"]) == (before["one"], before["three"])
    (old,) = chunks_of(service_role, status="superseded")
    assert (old["id"], old["content"], old["version"]) == (before["two"], "two", 1)

    upsert(service_role, ["one", "II", "three"])
    assert [row["version"] for row in chunks_of(service_role)] == [1, 3, 1]


def test_moved_chunks_keep_their_rows(service_role: Connection) -> None:
    upsert(service_role, [embedded("one", 1), embedded("two", 2), embedded("three", 3)])
    before = {row["content"]: (row["id"], row["embedding"]) for row in chunks_of(service_role)}
    row = upsert(service_role, ["three", "one", "two"])
    assert counts(row) == (0, 0, 3, 0)
    assert embeddings(row) == (3, 0)
    assert contents(service_role) == ["three", "one", "two"]
    after = {row["content"]: (row["id"], row["embedding"]) for row in chunks_of(service_role)}
    assert after == before


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (["a", "b"], ["new", "a", "b"], (1, 0, 2, 0)),
        (["a", "b", "c"], ["a", "c"], (0, 0, 2, 1)),
        (["a", "b"], [], (0, 0, 0, 2)),
        ([], ["a"], (1, 0, 0, 0)),
        (["a", "a", "b"], ["a", "b"], (0, 0, 2, 1)),
        (["a", "b"], ["a", "a", "a", "b"], (2, 0, 2, 0)),
        (["a", "b"], ["c", "d"], (0, 2, 0, 0)),
        (["a", "b"], ["b", "a"], (0, 0, 2, 0)),
        (["a"], ["a "], (0, 1, 0, 0)),
    ],
)
def test_counts_tell_what_happened(
    service_role: Connection, before: list[str], after: list[str], expected: tuple[int, ...]
) -> None:
    upsert(service_role, before)
    assert counts(upsert(service_role, after)) == expected
    assert contents(service_role) == after


def test_a_title_is_searched_so_a_new_one_makes_new_chunks(service_role: Connection) -> None:
    chunks: list[Chunk] = ["plain", {"content": "headed", "heading": "Own"}]
    upsert(service_role, chunks, title="Old")
    assert counts(upsert(service_role, chunks, title="New")) == (0, 1, 1, 0)


def test_documents_do_not_touch_each_other(service_role: Connection) -> None:
    upsert(service_role, ["same", "text"], key="one")
    before = chunks_of(service_role, "one")
    upsert(service_role, ["same", "text"], key="two")
    upsert(service_role, [], key="two")
    assert chunks_of(service_role, "one") == before


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(st.lists(st.sampled_from("abcde"), max_size=6), min_size=1, max_size=5))
def test_any_sequence_of_upserts_leaves_the_last_content(
    service_role: Connection, steps: list[list[str]]
) -> None:
    service_role.execute("select public.delete_knowledge_document('doc')")
    previous: list[str] = []
    for step in steps:
        row = upsert(service_role, step)
        assert contents(service_role) == step
        added, changed, unchanged, removed = counts(row)
        assert added + changed + unchanged == len(step)
        assert changed + unchanged + removed == len(previous)
        previous = step


# Embeddings: kept, reused, missing.


def test_an_unchanged_chunk_keeps_its_embedding(service_role: Connection) -> None:
    upsert(service_role, [embedded("one", 1), embedded("two", 2)])
    row = upsert(service_role, [{"content": "one", "embedding_model": "m"}, "two"])
    assert embeddings(row) == (2, 0)
    assert [row["embedding"] for row in chunks_of(service_role)] == ["[1,1,0]", "[2,1,0]"]


@pytest.mark.parametrize("origin", ["another document", "a superseded chunk", "a deleted chunk"])
def test_an_embedding_of_the_same_text_and_model_is_reused(
    service_role: Connection, origin: str
) -> None:
    upsert(service_role, [embedded("one", 5)], key="source")
    if origin == "a superseded chunk":
        upsert(service_role, [], key="source")
    elif origin == "a deleted chunk":
        service_role.execute("update public.knowledge_chunks set status = 'deleted'")
    row = upsert(service_role, [{"content": "one", "embedding_model": "m"}])
    assert embeddings(row) == (1, 0)
    (stored,) = chunks_of(service_role)
    assert (stored["embedding"], stored["embedding_model"]) == ("[5,1,0]", "m")


@pytest.mark.parametrize(
    "chunk",
    [
        {"content": "one", "embedding_model": "other"},
        {"content": "one"},
        {"content": "another", "embedding_model": "m"},
        {"content": "one", "heading": "Headed", "embedding_model": "m"},
    ],
)
def test_an_embedding_of_another_model_or_text_is_not_reused(
    service_role: Connection, chunk: dict[str, Any]
) -> None:
    upsert(service_role, [embedded("one", 5)], key="source")
    assert embeddings(upsert(service_role, [chunk])) == (0, 1)
    (stored,) = chunks_of(service_role)
    assert (stored["embedding"], stored["embedding_model"]) == (None, None)


def test_a_missing_embedding_can_be_given_later(service_role: Connection) -> None:
    upsert(service_role, ["one"])
    (before,) = chunks_of(service_role)
    row = upsert(service_role, [embedded("one", 1)])
    assert (counts(row), embeddings(row)) == ((0, 0, 1, 0), (0, 0))
    (after,) = chunks_of(service_role)
    assert after["id"] == before["id"]
    assert (after["embedding"], after["embedding_model"]) == ("[1,1,0]", "m")


def test_an_embedding_of_a_new_model_replaces_the_old_one(service_role: Connection) -> None:
    upsert(service_role, [embedded("one", 1, "old")])
    # Asked for and not there: the old one stays, and counts as missing.
    asked: Chunk = {"content": "one", "embedding_model": "new"}
    assert embeddings(upsert(service_role, [asked])) == (0, 1)
    upsert(service_role, [embedded("one", 7, "new")])
    (stored,) = chunks_of(service_role)
    assert (stored["embedding"], stored["embedding_model"]) == ("[7,1,0]", "new")


def test_missing_embeddings_are_told_by_hash_and_model(service_role: Connection) -> None:
    upsert(service_role, [embedded("one", 1), "two", embedded("three", 3, "other")])
    hashes = {
        content: hashlib.sha256(f"\n{content}".encode()).hexdigest()
        for content in ("one", "two", "three", "four")
    }
    assert {row["content"]: row["content_hash"] for row in chunks_of(service_role)} == {
        content: hashes[content] for content in ("one", "two", "three")
    }

    def missing(asked: Sequence[str]) -> list[str]:
        rows = service_role.execute(
            "select public.missing_knowledge_embeddings(content_hashes => %s, model => 'm')",
            [list(asked)],
        ).fetchall()
        # One value: PostgREST would cut rows at its Max rows.
        ((hashes,),) = rows
        return list(hashes)

    asked = [*hashes.values(), hashes["two"]]
    assert sorted(missing(asked)) == sorted(hashes[one] for one in ("two", "three", "four"))
    assert missing([]) == []
    assert missing([hashes["one"]]) == []
    assert len(missing([f"{number:064x}" for number in range(1500)])) == 1500


@pytest.mark.parametrize(
    ("hashes", "model", "named"),
    [(None, "m", "content_hashes"), (["a", None], "m", "content_hashes"), (["a"], None, "model")],
)
def test_missing_embeddings_of_null_are_refused(
    service_role: Connection, hashes: Any, model: Any, named: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"{named} must be .* null"):
        service_role.execute("select public.missing_knowledge_embeddings(%s, %s)", [hashes, model])


@pytest.mark.parametrize(
    ("heading", "content"),
    [(None, "text"), ("", "text"), ("Überschrift", "Größe\n🐈"), ("a\nb", "")],
)
def test_a_content_hash_is_that_of_heading_and_content(
    service_role: Connection, heading: str | None, content: str
) -> None:
    ((answer,),) = service_role.execute(
        "select public.knowledge_content_hash(heading => %s, content => %s)", [heading, content]
    ).fetchall()
    assert answer == hashlib.sha256(f"{heading or ''}\n{content}".encode()).hexdigest()


# What a chunk has from its document.

COPIED: dict[str, tuple[Any, Any]] = {
    "knowledge_type": ("note", "decision"),
    "source_origin": ("web", "email"),
    "language": ("german", "english"),
    "document_date": ("2024-01-31", None),
    "owner_id": (str(ME), str(YOU)),
    "visibility": ("private", "public"),
    "sensitivity": ("high", None),
    "collection": ("memory", "history"),
}


@pytest.mark.parametrize("column", COPIED)
def test_a_column_is_copied_to_the_chunks_and_follows(
    service_role: Connection, column: str
) -> None:
    old, new = COPIED[column]
    upsert(service_role, ["kept", "left"], **{column: old})

    def values() -> set[str | None]:
        return {
            None if row[column] is None else str(row[column]) for row in chunks_of(service_role)
        }

    assert values() == {old}
    assert counts(upsert(service_role, ["kept", "left"], **{column: new})) == (0, 0, 2, 0)
    assert values() == {new}
    service_role.execute(f"update public.knowledge_documents set {column} = %s".encode(), [old])
    assert values() == {old}


def test_a_change_of_the_document_leaves_superseded_chunks_alone(
    service_role: Connection,
) -> None:
    upsert(service_role, ["kept", "left"])
    upsert(service_role, ["kept"])

    def superseded() -> list[Any]:
        return service_role.execute(
            "select xmin::text, ctid::text from public.knowledge_chunks where status = 'superseded'"
        ).fetchall()

    before = superseded()
    upsert(service_role, ["kept"], visibility="public", metadata={"synced": 1})
    assert (len(before), superseded()) == (1, before)


@pytest.mark.parametrize("column", [name for name in COPIED if name != "collection"])
def test_a_restored_chunk_has_the_present_fields_of_its_document(
    service_role: Connection, column: str
) -> None:
    old, new = COPIED[column]
    upsert(service_role, ["Die Häuser", "kept"], **{column: old}, metadata={"a": 1, "b": 1})
    upsert(service_role, ["kept"])
    upsert(service_role, ["kept"], **{column: new}, metadata={"a": 2})
    service_role.execute("update public.knowledge_chunks set status = 'active'")
    kept, restored = sorted(chunks_of(service_role), key=lambda row: row["content"], reverse=True)
    assert restored[column] == kept[column]
    assert restored["metadata"] == {"a": 2, "b": 1}
    assert ("'haus'" in restored["content_tsv"]) == (kept["language"] == "german")


def test_a_new_language_has_the_chunks_analysed_again(service_role: Connection) -> None:
    upsert(service_role, ["Die Häuser"], language="german")
    (german,) = chunks_of(service_role)
    upsert(service_role, ["Die Häuser"], language="english")
    (english,) = chunks_of(service_role)
    assert ("'haus'" in german["content_tsv"], german["text_length"]) == (True, 1)
    assert ("'häuser'" in english["content_tsv"], english["text_length"]) == (True, 2)
    assert english["bm25"] != german["bm25"]
    assert english["id"] == german["id"]


def test_a_chunk_has_its_own_collection_and_keeps_it(service_role: Connection) -> None:
    chunks: list[Chunk] = ["plain", {"content": "own", "collection": "artifacts"}]
    upsert(service_role, chunks, collection="memory")
    assert [row["collection"] for row in chunks_of(service_role)] == ["memory", "artifacts"]
    service_role.execute("update public.knowledge_documents set collection = 'history'")
    assert [row["collection"] for row in chunks_of(service_role)] == ["history", "artifacts"]


def test_a_documents_metadata_lies_under_the_chunks_own(service_role: Connection) -> None:
    own: Chunk = {"content": "own", "metadata": {"b": "mine", "page": 3}}
    upsert(service_role, ["plain", own], metadata={"a": 1, "b": 2})
    assert [row["metadata"] for row in chunks_of(service_role)] == [
        {"a": 1, "b": 2},
        {"a": 1, "b": "mine", "page": 3},
    ]
    service_role.execute("""update public.knowledge_documents set metadata = '{"b": 3, "c": 4}'""")
    followed = [{"b": 3, "c": 4}, {"b": "mine", "c": 4, "page": 3}]
    assert [row["metadata"] for row in chunks_of(service_role)] == followed
    upsert(service_role, ["plain", "own"], metadata={"d": 5})
    followed = [{"d": 5}, {"b": "mine", "d": 5, "page": 3}]
    assert [row["metadata"] for row in chunks_of(service_role)] == followed


def test_a_chunk_without_a_searchable_word_is_stored(service_role: Connection) -> None:
    upsert(service_role, ["the", "", "!?"])
    upsert(service_role, ["the", "", "!?", "and now a word"])
    assert [row["text_length"] for row in chunks_of(service_role)] == [0, 0, 0, 1]


def test_what_the_document_has_not_said_is_its_default(service_role: Connection) -> None:
    upsert(service_role, ["text"], author=None, metadata=None, visibility=None, language=None)
    (row,) = chunks_of(service_role)
    assert {name: row[name] for name in ("visibility", "language", "collection", "metadata")} == {
        "visibility": "private",
        "language": "english",
        "collection": "knowledge",
        "metadata": {},
    }


def test_a_deleted_source_leaves_its_documents(service_role: Connection) -> None:
    ((source,),) = service_role.execute(
        "insert into public.knowledge_sources (name) values ('wiki') returning id"
    ).fetchall()
    upsert(service_role, ["text"], source_id=str(source))
    assert chunks_of(service_role)[0]["source_id"] == source
    service_role.execute("delete from public.knowledge_sources")
    assert chunks_of(service_role)[0]["source_id"] is None
    assert contents(service_role) == ["text"]


def test_the_databases_own_columns_cannot_be_forged(service_role: Connection) -> None:
    read = (
        "select content_hash, content_tsv::text, text_length, bm25::text"
        " from public.knowledge_chunks"
    )
    service_role.execute("insert into public.knowledge_chunks (content) values ('alpha beta')")
    honest = service_role.execute(read).fetchall()
    service_role.execute(
        "update public.knowledge_chunks set content_hash = 'forged', content_tsv = 'forged',"
        " text_length = 99, bm25 = null"
    )
    assert service_role.execute(read).fetchall() == honest
    service_role.execute(
        "insert into public.knowledge_chunks"
        " (content, content_hash, content_tsv, text_length, bm25)"
        " values ('alpha beta', 'forged', 'forged', 99, '{1:1}/536870912')"
    )
    assert service_role.execute(read).fetchall() == honest * 2


def test_changed_text_is_analysed_again(service_role: Connection) -> None:
    service_role.execute("insert into public.knowledge_chunks (content) values ('alpha beta')")
    service_role.execute("update public.knowledge_chunks set content = 'gamma'")
    ((digest, found, lost, length),) = service_role.execute(
        "select content_hash, content_tsv @@ 'gamma', content_tsv @@ 'alpha', text_length"
        " from public.knowledge_chunks"
    ).fetchall()
    assert digest == hashlib.sha256(b"\ngamma").hexdigest()
    assert (found, lost, length) == (True, False, 1)


# Refusals.

REFUSED: list[tuple[Any, Any, str]] = [
    (None, [], "document"),
    ([], [], "document"),
    ("text", [], "document"),
    ({}, [], "external_key"),
    ({"external_key": ""}, [], "external_key"),
    ({"external_key": None}, [], "external_key"),
    ({"external_key": 5}, [], "external_key"),
    ({"external_key": {"a": 1}}, [], "external_key"),
    ({"external_key": "x" * 20_000}, [], "external_key"),
    *[
        ({"external_key": "doc", **wrong}, [], next(iter(wrong)))
        for wrong in cast(
            Sequence[Row],
            (
                {"titel": "T"},
                {"title": 5},
                {"title": {"a": 1}},
                {"metadata": []},
                {"metadata": "text"},
                {"knowledge_type": "recipe"},
                {"source_origin": "fax"},
                {"visibility": "secret"},
                {"owner_id": "me"},
                {"source_id": "nowhere"},
                {"source_id": str(UUID(int=9))},
                {"document_date": "2024-13-01"},
                {"document_date": "infinity"},
                {"document_date": "tomorrow"},
                {"document_date": "01.02.2026"},
                {"document_date": "20261-01-01"},
                {"document_date": "0000-01-01"},
                {"document_date": 20240101},
                {"language": ""},
                {"collection": ""},
            ),
        )
    ],
    ({"external_key": "doc"}, None, "chunks"),
    ({"external_key": "doc"}, {}, "chunks"),
    ({"external_key": "doc"}, "text", "chunks"),
    *[
        ({"external_key": "doc"}, [{"content": "fine"}, wrong], "chunks")
        for wrong in cast(
            Sequence[Any],
            (
                None,
                "text",
                [],
                {},
                {"content": None},
                {"content": 5},
                {"content": "x", "text": "y"},
                {"content": "x", "heading": 5},
                {"content": "x", "metadata": []},
                {"content": "x", "embedding": 5},
                {"content": "x", "embedding": {}},
                {"content": "x", "embedding": []},
                {"content": "x", "embedding": [1, 2]},
                {"content": "x", "embedding": [1, 2, 3, 4]},
                {"content": "x", "embedding": [1, 2, None]},
                {"content": "x", "embedding": [1, 2, "a"]},
                {"content": "x", "embedding": [0, 0, 0]},
                {"content": "x", "embedding": [1e-30, 0, 0]},
                {"content": "x", "embedding": [1e39, 0, 0]},
                {"content": "x", "embedding_model": 5},
                {"content": "x", "collection": ["a"]},
                {"content": "x", "collection": ""},
            ),
        )
    ],
]


@pytest.mark.parametrize(("document", "chunks", "named"), REFUSED)
def test_a_wrong_value_is_refused_by_name_and_leaves_nothing(
    service_role: Connection, document: Any, chunks: Any, named: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        service_role.execute(
            "select public.upsert_knowledge_document(%s, %s)",
            [
                None if document is None else Jsonb(document),
                None if chunks is None else Jsonb(chunks),
            ],
        )
    assert caught.value.sqlstate == "22023"
    message = caught.value.diag.message_primary or ""
    assert len(message) < 1000
    assert message.startswith("chunks" if named == "chunks" else "document")
    assert everything(service_role) == []


NESTED_51 = json.loads('{"a":' * 51 + "1" + "}" * 51)


@pytest.mark.parametrize(
    ("document", "chunk", "message"),
    [
        ({"owner_id": "me"}, {}, "document.owner_id must be a UUID, not me"),
        ({"source_id": str(UUID(int=9))}, {}, "document.source_id must be the id of a row of"),
        ({"language": "x" * 61}, {}, "document.language must be a text of 1 to 60 characters"),
        ({"metadata": NESTED_51}, {}, "document.metadata has more than 50 levels"),
        ({}, {"metadata": NESTED_51}, "chunks[1].metadata has more than 50 levels"),
        ({}, {"metadata": Json('{"n": 1e309}')}, "chunks[1].metadata has a number beyond"),
        ({}, {"collection": "x" * 201}, "chunks[1].collection must be a text of 1 to 200"),
        ({}, {"embedding": [1, 2]}, "chunks[1].embedding has 2 dimensions, the corpus has 3 "),
        ({}, {"embedding": [1, "a", 2]}, "chunks[1].embedding must be an array of finite"),
        ({}, {"embedding": [0, 0, 0]}, "chunks[1].embedding must have a direction"),
    ],
)
def test_a_refusal_names_field_value_and_what_is_allowed(
    service_role: Connection, document: Row, chunk: Row, message: str
) -> None:
    upsert(service_role, [embedded("stored", 1)], key="corpus")
    chunks = [{"content": "fine"}, {"content": "x", **chunk}]
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        service_role.execute(
            "select public.upsert_knowledge_document(%s::jsonb, %s::jsonb)",
            [as_json({"external_key": "doc", **document}), as_json(chunks)],
        )
    primary = caught.value.diag.message_primary or ""
    assert primary.startswith(message)
    if "dimensions" in message:
        assert primary.endswith("(model: m)")


def as_json(value: object) -> str:
    """Write JSON in which a Json stands for its own text."""
    text = json.dumps(value, default=lambda one: f"raw:{one.obj}:raw")
    return re.sub(r'"raw:(.*?):raw"', lambda found: json.loads(f'"{found[1]}"'), text)


@pytest.mark.parametrize("metadata", ['{"n": 1e5000}', '{"n": [-1e400]}', json.dumps(NESTED_51)])
@pytest.mark.parametrize(
    "statement",
    [
        "insert into public.knowledge_chunks (content, metadata) values ('x', %s)",
        "insert into public.knowledge_documents (external_key, metadata) values ('x', %s)",
        "update public.knowledge_documents set metadata = %s",
        "update public.knowledge_chunks set metadata = %s",
    ],
)
def test_metadata_that_clients_cannot_read_is_refused_by_the_tables(
    service_role: Connection, statement: str, metadata: str
) -> None:
    upsert(service_role, ["text"])
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"^metadata has ") as caught:
        service_role.execute(statement.encode(), [metadata])
    assert "50 levels" in (caught.value.diag.message_hint or "")


def test_metadata_at_the_limits_is_stored(service_role: Connection) -> None:
    nested = json.loads('{"a":' * 50 + "1" + "}" * 50)
    upsert(service_role, ["text"], metadata={**nested, "n": 1.6e308})
    (row,) = chunks_of(service_role)
    assert float(row["metadata"]["n"]) == 1.6e308


def test_a_refused_change_leaves_the_document_as_it_was(service_role: Connection) -> None:
    upsert(service_role, [embedded("one", 1), "two"], title="T")
    before = everything(service_role)
    for chunks, document in (
        ([embedded("one", 1), {"content": "new", "embedding": [1]}], {"title": "New"}),
        (["one"], {"title": "New", "visibility": "secret"}),
    ):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            upsert(service_role, chunks, **document)
    assert everything(service_role) == before


# Several writers of one document.


def at_once(tasks: Sequence[Callable[[], object]]) -> list[Any]:
    """Run tasks in threads that start together; raise what one of them raises."""
    barrier = Barrier(len(tasks))

    def run(task: Callable[[], object]) -> object:
        barrier.wait(timeout=30)
        return task()

    with ThreadPoolExecutor(len(tasks)) as threads:
        return list(threads.map(run, tasks))


def one_consistent_version(connection: Connection) -> list[str]:
    """Check that one document has one active chunk in each place; return the contents."""
    ((documents,),) = connection.execute(
        "select count(*) from public.knowledge_documents"
    ).fetchall()
    assert documents <= 1
    ((orphans,),) = connection.execute(
        "select count(*) from public.knowledge_chunks as chunk where not exists"
        " (select from public.knowledge_documents as parent where parent.id = chunk.document_id)"
    ).fetchall()
    assert orphans == 0
    return contents(connection)


def test_writers_of_the_same_content_store_it_once(connect: Connect) -> None:
    connections = [connect("service_role") for _ in range(4)]
    chunks = ["one", "two", "two", "three"]
    rows = at_once([partial(upsert, one, chunks) for one in connections])
    assert sorted(counts(row) for row in rows) == [(0, 0, 4, 0)] * 3 + [(4, 0, 0, 0)]
    assert one_consistent_version(connections[0]) == chunks
    assert chunks_of(connections[0], status="superseded") == []


def test_writers_of_different_contents_leave_one_of_them_whole(connect: Connect) -> None:
    connections = [connect("service_role") for _ in range(4)]
    versions = [
        [f"{writer} {place}" for place in range(3 + writer)] + ["shared"] for writer in range(4)
    ]
    for _ in range(5):
        at_once(
            [
                partial(upsert, one, chunks, title=chunks[0])
                for one, chunks in zip(connections, versions, strict=True)
            ]
        )
        found = one_consistent_version(connections[0])
        assert found in versions
        assert {row["heading"] for row in chunks_of(connections[0])} == {found[0]}


def test_writers_and_a_deletion_do_not_leave_half_a_document(connect: Connect) -> None:
    connections = [connect("service_role") for _ in range(4)]
    versions = [[f"{writer} {place}" for place in range(4)] for writer in range(2)]
    deletions = [
        "select public.delete_knowledge_document('doc')",
        f"select * from public.delete_knowledge_owner('{ME}')",
    ]

    def write(connection: Connection, chunks: list[str]) -> None:
        for _ in range(10):
            upsert(connection, chunks, owner_id=str(ME))

    def delete(connection: Connection, statement: str) -> None:
        for _ in range(10):
            connection.execute(statement.encode())

    for _ in range(2):
        writers = zip(connections[:2], versions, strict=True)
        deleters = zip(connections[2:], deletions, strict=True)
        at_once(
            [partial(write, *one) for one in writers] + [partial(delete, *one) for one in deleters]
        )
        assert one_consistent_version(connections[0]) in [*versions, []]
    upsert(connections[0], ["last"])
    assert one_consistent_version(connections[0]) == ["last"]


def test_a_purge_waits_for_nobody(connect: Connect) -> None:
    first, second = connect("service_role"), connect("service_role")
    upsert(first, ["one", "two"])
    upsert(first, ["three"])
    second.execute("set lock_timeout = '1s'")
    purge = "select public.purge_knowledge_chunks(older_than => '0')"
    with first.transaction():
        first.execute("select from public.knowledge_chunks where content = 'one' for update")
        assert second.execute(purge).fetchall() == [(1,)]
    assert second.execute(purge).fetchall() == [(1,)]


def test_writers_and_purges_do_not_deadlock(connect: Connect) -> None:
    connections = [connect("service_role") for _ in range(4)]

    def write(connection: Connection, writer: int) -> None:
        for edit in range(40):
            upsert(
                connection,
                [f"{writer} {edit} {place}" for place in range(8)],
                key=str(edit % 2),
                metadata={"edit": edit},
            )

    def purge(connection: Connection) -> None:
        for _ in range(80):
            connection.execute("select public.purge_knowledge_chunks(older_than => '0')")

    at_once(
        [partial(write, one, writer) for writer, one in enumerate(connections[:2])]
        + [partial(purge, one) for one in connections[2:]]
    )
    assert len(contents(connections[0], "0")) == 8


def test_a_second_writer_waits_for_the_first(connect: Connect) -> None:
    first, second, watching = connect("service_role"), connect("service_role"), connect()
    give_up_at = time.monotonic() + 30
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            upsert(first, ["one", "two"])
            waiting = threads.submit(upsert, second, ["one", "three"])
            while not watching.execute(
                "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'",
                [second.info.backend_pid],
            ).fetchall():
                assert not waiting.done()
                assert time.monotonic() < give_up_at
        assert counts(waiting.result(timeout=30)) == (0, 1, 1, 0)
    assert one_consistent_version(first) == ["one", "three"]


def test_a_document_that_comes_during_a_deletion_of_its_owner_stays_whole(connect: Connect) -> None:
    first, second, deleting, watching = (*(connect("service_role") for _ in range(3)), connect())
    upsert(first, ["one"], key="old", owner_id=str(ME))
    give_up_at = time.monotonic() + 30
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            upsert(first, ["two"], key="old", owner_id=str(ME))
            delete = f"select * from public.delete_knowledge_owner('{ME}')"
            waiting = threads.submit(deleting.execute, delete.encode())
            while not watching.execute(
                "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'",
                [deleting.info.backend_pid],
            ).fetchall():
                assert not waiting.done()
                assert time.monotonic() < give_up_at
            upsert(second, ["three", "four"], key="new", owner_id=str(ME))
        assert waiting.result(timeout=30).fetchall() == [(1, 2)]
    assert contents(first, "old") == []
    assert contents(first, "new") == ["three", "four"]


# Out again.


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

"""Documents and chunks in, changed and out, on a real Postgres, as service_role."""

import hashlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import Chunk, chunks_of, contents, counts, dsn, embedded, embeddings, everything, upsert

from conftest import Connection

__all__ = ["dsn"]  # a fixture

ME, YOU = UUID(int=1), UUID(int=2)


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


def test_a_change_of_the_document_leaves_superseded_chunks_alone(service_role: Connection) -> None:
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


def test_a_deleted_source_leaves_its_documents(service_role: Connection) -> None:
    ((source,),) = service_role.execute(
        "insert into public.knowledge_sources (name) values ('wiki') returning id"
    ).fetchall()
    upsert(service_role, ["text"], source_id=str(source))
    assert chunks_of(service_role)[0]["source_id"] == source
    service_role.execute("delete from public.knowledge_sources")
    assert chunks_of(service_role)[0]["source_id"] is None
    assert contents(service_role) == ["text"]


def test_no_table_or_function_gives_up_durability(service_role: Connection) -> None:
    weak = service_role.execute(
        "select relname from pg_class where relkind in ('r', 'm') and relpersistence <> 'p'"
        "   and relnamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)"
        " union all "
        "select proname from pg_proc where array_to_string(proconfig, ' ') ~ 'synchronous_commit'"
    )
    assert weak.fetchall() == []


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

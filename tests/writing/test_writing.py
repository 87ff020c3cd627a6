"""Documents and chunks in, changed and out, on a real Postgres, as service_role."""

import hashlib
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import Chunk, Documents, Row, counts, embedded, embeddings
from stored import documents as documents

from second_brain.services.write import KnowledgeWriter
from support.emptied import dsn as dsn
from support.properties import tried

ME, YOU = UUID(int=1), UUID(int=2)
SET: dict[str, Any] = {
    "title": "T",
    "knowledge_type": "note",
    "source_url": "https://example.org",
    "source_origin": "web",
    "author": "Ann",
    "document_date": "2024-01-31",
    "owner_id": str(UUID(int=1)),
    "visibility": "public",
    "sensitivity": "high",
    "language": "german",
    "collection": "memory",
    "metadata": {"a": [1, None]},
}
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(SET),
    "knowledge_type": "document",
    "source_origin": "manual",
    "visibility": "private",
    "language": "english",
    "collection": "knowledge",
    "metadata": {},
}


# Chunks: kept, changed, moved, removed.


def test_a_new_document_is_stored_with_its_chunks_in_order(documents: Documents) -> None:
    chunks: list[Chunk] = ["first", {"content": "second", "heading": "Part 2"}]
    row = documents.upsert(chunks, title="A title", author="Ann", document_date="2024-02-29")
    assert counts(row) == (2, 0, 0, 0)
    assert embeddings(row) == (0, 2)
    assert documents.contents() == ["first", "second"]
    first, second = documents.chunks()
    assert first["document_id"] == row["document_id"]
    # A chunk without a heading has the title.
    assert (first["heading"], second["heading"]) == ("A title", "Part 2")
    assert (first["status"], first["version"]) == ("active", 1)
    stored = documents.rows("select author, document_date::text from public.knowledge_documents")
    assert stored == [("Ann", "2024-02-29")]


def test_a_long_document_is_stored_whole(documents: Documents) -> None:
    texts = [f"part {number}" for number in range(1500)]
    assert documents.counts(texts) == (1500, 0, 0, 0)
    assert documents.contents() == texts
    assert documents.counts([*texts[:-1], "end"]) == (0, 1, 1499, 0)
    assert documents.contents() == [*texts[:-1], "end"]


def test_the_same_call_twice_changes_nothing(documents: Documents) -> None:
    own = {"content": "three", "heading": "H", "metadata": {"page": 3}, "collection": "history"}
    chunks: list[Chunk] = [embedded("one", 1), "two", "two", own]
    documents.upsert(chunks, **SET)
    before = documents.everything()
    assert len(before) == 5
    assert documents.counts(chunks, **SET) == (0, 0, 4, 0)
    assert documents.everything() == before


def test_a_changed_chunk_supersedes_the_one_in_its_place(documents: Documents) -> None:
    documents.upsert(["one", "two", "three"])
    one, two, three = (row["id"] for row in documents.chunks())
    assert documents.counts(["one", "2", "three"]) == (0, 1, 2, 0)
    first, changed, last = documents.chunks()
    assert (first["id"], last["id"]) == (one, three)
    assert (changed["content"], changed["version"]) == ("2", 2)
    (old,) = documents.chunks(status="superseded")
    assert (old["id"], old["content"], old["version"]) == (two, "two", 1)
    documents.upsert(["one", "II", "three"])
    assert [row["version"] for row in documents.chunks()] == [1, 3, 1]


def test_moved_chunks_keep_their_rows(documents: Documents) -> None:
    def stored() -> dict[str, tuple[object, object]]:
        return {row["content"]: (row["id"], row["embedding"]) for row in documents.chunks()}

    documents.upsert([embedded("one", 1), embedded("two", 2), embedded("three", 3)])
    before = stored()
    row = documents.upsert(["three", "one", "two"])
    assert counts(row) == (0, 0, 3, 0)
    assert embeddings(row) == (3, 0)
    assert documents.contents() == ["three", "one", "two"]
    assert stored() == before


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("ab", "nab", (1, 0, 2, 0)),
        ("abc", "ac", (0, 0, 2, 1)),
        ("ab", "", (0, 0, 0, 2)),
        ("aab", "ab", (0, 0, 2, 1)),
        ("ab", "aaab", (2, 0, 2, 0)),
        ("ab", "cd", (0, 2, 0, 0)),
        (["a"], ["a "], (0, 1, 0, 0)),
    ],
)
def test_counts_tell_what_happened(
    documents: Documents, before: str, after: str, expected: tuple[int, ...]
) -> None:
    documents.upsert(list(before))
    assert documents.counts(list(after)) == expected
    assert documents.contents() == list(after)


def test_a_title_is_searched_so_a_new_one_makes_new_chunks(documents: Documents) -> None:
    chunks: list[Chunk] = ["plain", {"content": "headed", "heading": "Own"}]
    documents.upsert(chunks, title="Old")
    assert documents.counts(chunks, title="New") == (0, 1, 1, 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [("Walrus", "Penguin"), (None, "Penguin"), ("Walrus", None), ("A > B", "C"), ("%_", "Penguin")],
)
def test_a_title_that_is_updated_is_that_of_the_chunks(
    documents: Documents, old: str | None, new: str | None
) -> None:
    headings = ["Own", f"{old} > Care", f"{old}s", f"{old}: Feeding"]
    chunks: list[Chunk] = [{"content": one, "heading": one} for one in headings]
    documents.upsert(["plain", *chunks], title=old)
    documents.rows("update public.knowledge_documents set title = %s", new)
    paths = [headings[1], headings[3]]
    if old is not None:
        paths = [path.replace(old, new or "", 1) for path in paths]
    written = [new, "Own", paths[0], headings[2], paths[1]]
    assert [row["heading"] for row in documents.chunks()] == written
    assert {row["status"] for row in documents.chunks()} == {"active"}
    if new:
        assert documents.rows("select id from public.hybrid_search_knowledge_chunks(null, %s)", new)


def test_documents_do_not_touch_each_other(documents: Documents) -> None:
    documents.upsert(["same", "text"], key="one")
    before = documents.chunks("one")
    documents.upsert(["same", "text"], key="two")
    documents.upsert([], key="two")
    assert documents.chunks("one") == before


@tried(25)
@given(steps=st.lists(st.lists(st.sampled_from("abcde"), max_size=6), min_size=1, max_size=5))
def test_any_sequence_of_upserts_leaves_the_last_content(
    documents: Documents, steps: list[list[str]]
) -> None:
    documents.rows("select public.delete_knowledge_document('doc')")
    previous: list[str] = []
    for step in steps:
        added, changed, unchanged, removed = documents.counts(step)
        assert documents.contents() == step
        assert added + changed + unchanged == len(step)
        assert changed + unchanged + removed == len(previous)
        previous = step


# Embeddings: kept, reused, missing.


@pytest.mark.parametrize("origin", ["another document", "a superseded chunk", "a deleted chunk"])
def test_an_embedding_of_the_same_text_and_model_is_reused(
    documents: Documents, origin: str
) -> None:
    documents.upsert([embedded("one", 5)], key="source")
    if origin == "a superseded chunk":
        documents.upsert([], key="source")
    elif origin == "a deleted chunk":
        documents.rows("update public.knowledge_chunks set status = 'deleted'")
    row = documents.upsert([{"content": "one", "embedding_model": "m"}])
    assert embeddings(row) == (1, 0)
    (stored,) = documents.chunks()
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
    documents: Documents, chunk: dict[str, Any]
) -> None:
    documents.upsert([embedded("one", 5)], key="source")
    assert embeddings(documents.upsert([chunk])) == (0, 1)
    (stored,) = documents.chunks()
    assert (stored["embedding"], stored["embedding_model"]) == (None, None)


def test_a_missing_embedding_can_be_given_later(documents: Documents) -> None:
    documents.upsert(["one"])
    (before,) = documents.chunks()
    row = documents.upsert([embedded("one", 1)])
    assert (counts(row), embeddings(row)) == ((0, 0, 1, 0), (0, 0))
    (after,) = documents.chunks()
    assert after["id"] == before["id"]
    assert (after["embedding"], after["embedding_model"]) == ("[1,1,0]", "m")


def test_an_embedding_of_a_new_model_replaces_the_old_one(documents: Documents) -> None:
    documents.upsert([embedded("one", 1, "old")])
    # Asked for and not there: the old one stays, and counts as missing.
    asked: Chunk = {"content": "one", "embedding_model": "new"}
    assert embeddings(documents.upsert([asked])) == (0, 1)
    documents.upsert([embedded("one", 7, "new")])
    (stored,) = documents.chunks()
    assert (stored["embedding"], stored["embedding_model"]) == ("[7,1,0]", "new")


def hash_of(heading: str | None, content: str) -> str:
    return hashlib.sha256(f"{heading or ''}\n{content}".encode()).hexdigest()


def test_missing_embeddings_are_told_by_hash_and_model(documents: Documents) -> None:
    documents.upsert([embedded("one", 1), "two", embedded("three", 3, "other")])
    one, *others = [hash_of(None, content) for content in ("one", "two", "three", "four")]

    def missing(*hashes: str) -> set[str]:
        # One value: PostgREST would cut rows at its Max rows.
        missing = "public.missing_knowledge_embeddings(content_hashes => %s, model => 'm')"
        ((found,),) = documents.rows(f"select {missing}", list(hashes))
        assert len(found) == len(set(found))
        return set(found)

    assert missing(one, *others, others[0]) == set(others)
    assert missing() == missing(one) == set()
    assert len(missing(*(f"{number:064x}" for number in range(1500)))) == 1500


@pytest.mark.parametrize(
    ("hashes", "model", "named"),
    [(None, "m", "content_hashes"), (["a", None], "m", "content_hashes"), (["a"], None, "model")],
)
def test_missing_embeddings_of_null_are_refused(
    documents: Documents, hashes: Any, model: Any, named: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"{named} must be .* null"):
        documents.rows("select public.missing_knowledge_embeddings(%s, %s)", hashes, model)


@pytest.mark.parametrize(
    ("heading", "content"),
    [(None, "text"), ("", "text"), ("Überschrift", "Größe\n🐈"), ("a\nb", "")],
)
def test_a_content_hash_is_that_of_heading_and_content(
    documents: Documents, heading: str | None, content: str
) -> None:
    documents.upsert([{"heading": heading, "content": content}])
    assert [row["content_hash"] for row in documents.chunks()] == [hash_of(heading, content)]
    hashed = "select public.knowledge_content_hash(heading => %s, content => %s)"
    assert documents.rows(hashed, heading, content) == [(hash_of(heading, content),)]


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
def test_a_column_is_copied_to_the_chunks_and_follows(documents: Documents, column: str) -> None:
    old, new = COPIED[column]

    def values() -> set[str | None]:
        return {row[column] and str(row[column]) for row in documents.chunks()}

    documents.upsert(["kept", "left"], **{column: old})
    assert values() == {old}
    assert documents.counts(["kept", "left"], **{column: new}) == (0, 0, 2, 0)
    assert values() == {new}
    documents.rows(f"update public.knowledge_documents set {column} = %s", old)
    assert values() == {old}


def test_a_change_of_the_document_leaves_superseded_chunks_alone(documents: Documents) -> None:
    documents.upsert(["kept", "left"])
    documents.upsert(["kept"])
    place = "select xmin::text, ctid::text from public.knowledge_chunks where status = 'superseded'"
    before = documents.rows(place)
    documents.upsert(["kept"], visibility="public", metadata={"synced": 1})
    assert (len(before), documents.rows(place)) == (1, before)


@pytest.mark.parametrize("column", [name for name in COPIED if name != "collection"])
def test_a_restored_chunk_has_the_present_fields_of_its_document(
    documents: Documents, column: str
) -> None:
    old, new = COPIED[column]
    documents.upsert(["Die Häuser", "kept"], **{column: old}, metadata={"a": 1, "b": 1})
    documents.upsert(["kept"])
    documents.upsert(["kept"], **{column: new}, metadata={"a": 2})
    documents.rows("update public.knowledge_chunks set status = 'active'")
    kept, restored = sorted(documents.chunks(), key=lambda row: row["content"], reverse=True)
    assert restored[column] == kept[column]
    assert restored["metadata"] == {"a": 2, "b": 1}
    assert ("'haus'" in restored["content_tsv"]) == (kept["language"] == "german")


def test_a_new_language_has_the_chunks_analysed_again(documents: Documents) -> None:
    documents.upsert(["Die Häuser"], language="german")
    (german,) = documents.chunks()
    documents.upsert(["Die Häuser"], language="english")
    (english,) = documents.chunks()
    assert ("'haus'" in german["content_tsv"], german["text_length"]) == (True, 1)
    assert ("'häuser'" in english["content_tsv"], english["text_length"]) == (True, 2)
    assert english["bm25"] != german["bm25"]
    assert english["id"] == german["id"]


def test_a_documents_metadata_lies_under_the_chunks_own(documents: Documents) -> None:
    def metadata() -> list[object]:
        return [row["metadata"] for row in documents.chunks()]

    own: Chunk = {"content": "own", "metadata": {"b": "mine", "page": 3}}
    documents.upsert(["plain", own], metadata={"a": 1, "b": 2})
    assert metadata() == [{"a": 1, "b": 2}, {"a": 1, "b": "mine", "page": 3}]
    documents.rows("""update public.knowledge_documents set metadata = '{"b": 3, "c": 4}'""")
    assert metadata() == [{"b": 3, "c": 4}, {"b": "mine", "c": 4, "page": 3}]
    documents.upsert(["plain", "own"], metadata={"d": 5})
    assert metadata() == [{"d": 5}, {"b": "mine", "d": 5, "page": 3}]


def test_a_chunk_without_a_searchable_word_is_stored(documents: Documents) -> None:
    documents.upsert(["the", "", "!?"])
    documents.upsert(["the", "", "!?", "and now a word"])
    assert [row["text_length"] for row in documents.chunks()] == [0, 0, 0, 1]


def test_a_deleted_source_leaves_its_documents(documents: Documents) -> None:
    insert = "insert into public.knowledge_sources (name) values ('wiki') returning id"
    ((source,),) = documents.rows(insert)
    documents.upsert(["text"], source_id=str(source))
    assert documents.chunks()[0]["source_id"] == source
    documents.rows("delete from public.knowledge_sources")
    assert [(row["source_id"], row["content"]) for row in documents.chunks()] == [(None, "text")]


def test_no_table_or_function_gives_up_durability(documents: Documents) -> None:
    weak = documents.rows(
        "select relname from pg_class where relkind in ('r', 'm') and relpersistence <> 'p'"
        "   and relnamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)"
        " union all "
        "select proname from pg_proc where array_to_string(proconfig, ' ') ~ 'synchronous_commit'"
    )
    assert weak == []


def test_the_databases_own_columns_cannot_be_forged(documents: Documents) -> None:
    columns = "content_hash, content_tsv::text, text_length, bm25::text"
    read = f"select {columns} from public.knowledge_chunks"
    insert = "insert into public.knowledge_chunks"
    documents.rows(f"{insert} (content) values ('alpha beta')")
    honest = documents.rows(read)
    documents.rows(
        "update public.knowledge_chunks set content_hash = 'forged', content_tsv = 'forged',"
        " text_length = 99, bm25 = null"
    )
    assert documents.rows(read) == honest
    documents.rows(
        f"{insert} (content, content_hash, content_tsv, text_length, bm25)"
        " values ('alpha beta', 'forged', 'forged', 99, '{1:1}/536870912')"
    )
    assert documents.rows(read) == honest * 2


# What an upsert does to the fields that it is not given.


def document_of(documents: Documents) -> Row:
    ((fields,),) = documents.rows(
        "select to_jsonb(document) from public.knowledge_documents as document"
    )
    return {name: fields[name] for name in SET}


@pytest.mark.parametrize(("fields", "expected"), [("merge", SET), ("replace", DEFAULTS)])
def test_fields_that_are_not_given_are_kept_or_reset(
    documents: Documents, fields: str, expected: Row
) -> None:
    documents.upsert([{"content": "text", "heading": "H"}], **SET)
    documents.upsert([{"content": "text", "heading": "H"}], fields=fields)
    assert document_of(documents) == expected
    (chunk,) = documents.chunks()
    copied = ("knowledge_type", "visibility", "language", "collection", "metadata")
    assert {name: chunk[name] for name in copied} == {name: expected[name] for name in copied}


def test_an_upsert_without_the_argument_keeps_what_is_not_given(documents: Documents) -> None:
    documents.upsert(["text"], **SET)
    before = documents.everything()
    writer = KnowledgeWriter(documents.connection)
    writer.upsert_document({"external_key": "doc"}, [{"content": "text"}])
    assert documents.everything() == before


@pytest.mark.parametrize("name", SET)
def test_a_field_given_as_null_gets_its_default(documents: Documents, name: str) -> None:
    documents.upsert(["text"], **SET)
    cleared: Row = {name: None}
    documents.upsert(["text"], **cleared)
    assert document_of(documents) == {**SET, name: DEFAULTS[name]}


@pytest.mark.parametrize("fields", ["merge", "replace"])
def test_a_new_document_has_defaults(documents: Documents, fields: str) -> None:
    documents.upsert(["text"], fields=fields)
    assert document_of(documents) == DEFAULTS


OWN = {"content": "own", "collection": "artifacts", "metadata": {"page": 3}}


def own_fields(documents: Documents) -> list[tuple[str, object]]:
    return [(row["collection"], row["metadata"]) for row in documents.chunks()]


@pytest.mark.parametrize(
    ("fields", "collection", "metadata"),
    [("merge", "artifacts", {"e": 2, "page": 3}), ("replace", "history", {"e": 2})],
)
def test_an_unchanged_chunk_keeps_or_loses_its_own_fields(
    documents: Documents, fields: str, collection: str, metadata: Row
) -> None:
    documents.upsert([OWN, "plain"], metadata={"d": 1}, collection="memory")
    changed: Row = {"metadata": {"e": 2}, "collection": "history"}
    assert documents.counts(["own", "plain"], fields=fields, **changed) == (0, 0, 2, 0)
    assert own_fields(documents) == [(collection, metadata), ("history", {"e": 2})]


def test_a_chunk_field_given_as_null_is_the_documents(documents: Documents) -> None:
    documents.upsert([OWN], metadata={"d": 1}, collection="memory")
    documents.upsert([{"content": "own", "collection": None, "metadata": None}])
    assert own_fields(documents) == [("memory", {"d": 1})]


def test_a_changed_chunk_does_not_take_the_fields_of_the_one_before(documents: Documents) -> None:
    documents.upsert([OWN])
    documents.upsert(["new text"])
    assert own_fields(documents) == [("knowledge", {})]


@pytest.mark.parametrize("fields", [None, "", "keep", "MERGE"])
def test_another_value_of_fields_is_refused(documents: Documents, fields: Any) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"^fields must be merge or"):
        documents.upsert(["text"], fields=fields)
    assert documents.everything() == []

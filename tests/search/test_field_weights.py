"""How often heading, title and metadata count in the words of a chunk, and how that is changed."""

import threading
from typing import Any

import psycopg
import pytest
from searching import answer, call

from conftest import Connect, Connection
from support import documents

pytestmark = pytest.mark.module("field_weights")

READ = """
select content, text_length, content_tsv::text, content_hash, embedding_model
  from public.knowledge_chunks where status = 'active' order by content
"""
OCCURRENCES = """
select coalesce(sum(cardinality(word.positions)), 0)
  from public.knowledge_chunks as chunk, unnest(chunk.content_tsv) as word
 where chunk.content = %s and chunk.status = 'active' and word.lexeme = %s
"""
SEARCH = "hybrid_search_knowledge_chunks"
EMBEDDING = {"embedding": [1, 0, 0], "embedding_model": "one"}
NAMES = ("alpha", "beta", "gamma")
CHUNKS = (
    {"content": "alpha", **EMBEDDING},
    {"content": "beta", "heading": "gravel", **EMBEDDING},
    {"content": "gamma", "heading": "kettle lid > gravel", **EMBEDDING},
)


def keep(connection: Connection, **fields: Any) -> None:
    call(connection, "set_knowledge_fields", **fields)


def upsert(connection: Connection, *chunks: dict[str, Any], **document: Any) -> None:
    given = {"title": "kettle lid", **document}
    documents.upsert(connection, given.pop("external_key", "one"), *(chunks or CHUNKS), **given)


def rewrite(connection: Connection, most: int = 1000) -> int:
    return int(answer(connection, "rewrite_knowledge_chunks", most=most))


def counts(connection: Connection, word: str) -> list[int]:
    """Return how often a word counts in alpha, beta and gamma."""
    asked = [(content, word) for content in NAMES]
    return [connection.execute(OCCURRENCES, one).fetchall()[0][0] for one in asked]


def found(connection: Connection, question: str, **arguments: Any) -> list[str]:
    rows = call(connection, SEARCH, query_text=question, **arguments)
    return sorted(row["content"] for row in rows)


@pytest.fixture
def committed(database: Connection) -> Connection:
    """The same chunks without embeddings, for tests with several connections."""
    upsert(database, *({**one, "embedding": None} for one in CHUNKS))
    return database


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    upsert(knowledge)
    return knowledge


@pytest.mark.parametrize(
    ("fields", "title", "heading"),
    [
        ({}, [2, 0, 2], [0, 2, 2]),
        ({"heading_weight": 1, "title_weight": 3}, [1, 3, 1], [0, 1, 1]),
        ({"heading_weight": 0}, [0, 0, 0], [0, 0, 0]),
    ],
    ids=["at first", "the title where the heading does not begin with it", "without the heading"],
)
def test_heading_and_title_count_as_often_as_their_weights(
    corpus: Connection, fields: dict[str, int], title: list[int], heading: list[int]
) -> None:
    if fields:
        keep(corpus, **fields)
    assert rewrite(corpus) == 0
    assert (counts(corpus, "kettl"), counts(corpus, "gravel")) == (title, heading)
    assert found(corpus, "gravel") == [
        name for name, count in zip(NAMES, heading, strict=True) if count
    ]
    stamps = corpus.execute("select distinct field_stamp is null from public.knowledge_chunks")
    assert stamps.fetchall() == [(not fields,)]


def test_the_default_values_given_by_name_change_nothing(corpus: Connection) -> None:
    before = corpus.execute(READ).fetchall()
    keep(corpus, heading_weight=2, title_weight=0, text_keys=[])
    assert rewrite(corpus, 0) == 0
    corpus.execute("update public.knowledge_chunks set content_tsv = null")
    assert corpus.execute(READ).fetchall() == before


def test_a_title_that_only_begins_like_the_heading_counts(knowledge: Connection) -> None:
    keep(knowledge, title_weight=1)
    upsert(knowledge, {"content": "alpha", "heading": "kettle lids"})
    assert counts(knowledge, "kettl")[0] == 3


def test_no_phrase_matches_across_fields(knowledge: Connection) -> None:
    keep(knowledge, title_weight=2, text_keys=["author", "tags"])
    metadata = {"author": "ada", "tags": ["pier", "harbour"]}
    upsert(knowledge, {"content": "alpha", "heading": "gravel"}, metadata=metadata)
    for across in ("gravel alpha", "alpha kettle", "lid kettle", "lid ada", "pier harbour"):
        assert found(knowledge, across, search_mode="phrase") == []
        assert found(knowledge, across) == ["alpha"]
    assert found(knowledge, "kettle lid", search_mode="phrase") == ["alpha"]


def test_metadata_texts_and_lists_of_texts_are_searched_once(knowledge: Connection) -> None:
    keep(knowledge, text_keys=["author", "tags", "year"])
    metadata = {"author": "ada", "tags": ["pier", 3, None], "year": 1843, "other": "harbour"}
    upsert(knowledge, {"content": "alpha"}, metadata=metadata)
    words = {"ada": 1, "pier": 1, "1843": 0, "3": 0, "harbour": 0}
    assert {word: counts(knowledge, word)[0] for word in words} == words


def test_a_name_of_a_key_is_no_sql_and_no_path(knowledge: Connection) -> None:
    hostile = {"a.b": "dotted", "$.c": "dollar", "'); drop table x; --": "sql", '"d"': "quoted"}
    keep(knowledge, text_keys=[*hostile])
    nested = {"a": {"b": "nested"}, "c": "path"}
    upsert(knowledge, {"content": "alpha"}, metadata=hostile | nested)
    words = {"dot": 1, "dollar": 1, "sql": 1, "quot": 1, "nest": 0, "path": 0}
    assert {word: counts(knowledge, word)[0] for word in words} == words


def test_a_collection_has_fields_of_its_own_over_those_of_all(knowledge: Connection) -> None:
    keep(knowledge, title_weight=1, text_keys=["author"])
    keep(knowledge, collection="own", title_weight=3)
    keep(knowledge, collection="bare", text_keys=[])
    for content, collection in zip(NAMES, ("other", "own", "bare"), strict=True):
        chunk = {"content": content, "heading": "gravel", "metadata": {"author": "ada"}}
        upsert(knowledge, chunk, external_key=content, collection=collection)
    assert (counts(knowledge, "kettl"), counts(knowledge, "ada")) == ([1, 3, 1], [1, 1, 0])


def test_a_chunk_that_moves_to_another_collection_has_its_fields(corpus: Connection) -> None:
    keep(corpus, collection="other", heading_weight=5)
    corpus.execute("update public.knowledge_documents set collection = 'other'")
    assert counts(corpus, "gravel") == [0, 5, 5]
    assert rewrite(corpus, 0) == 0


def test_a_changed_title_rewrites_the_words_and_keeps_embeddings_of_other_headings(
    corpus: Connection,
) -> None:
    keep(corpus, title_weight=1)
    rewrite(corpus)
    corpus.execute("update public.knowledge_documents set title = 'saucer'")
    assert (counts(corpus, "saucer"), counts(corpus, "kettl")) == ([2, 1, 2], [0, 0, 0])
    assert [row[-1] for row in corpus.execute(READ)] == [None, "one", None]


def test_changed_metadata_rewrites_the_words_only_where_it_is_searched(corpus: Connection) -> None:
    keep(corpus, text_keys=["author"])
    corpus.execute("""update public.knowledge_documents set metadata = '{"author": "ada"}'""")
    assert counts(corpus, "ada") == [1, 1, 1]
    page = """update public.knowledge_chunks set metadata = metadata || '{"page": "seven"}'"""
    corpus.execute(page)
    assert (counts(corpus, "ada"), counts(corpus, "seven")) == ([1, 1, 1], [0, 0, 0])


def test_a_restored_chunk_has_the_title_and_fields_of_today(corpus: Connection) -> None:
    corpus.execute("update public.knowledge_chunks set status = 'archived'")
    keep(corpus, title_weight=1)
    corpus.execute("update public.knowledge_documents set title = 'saucer'")
    corpus.execute("update public.knowledge_chunks set status = 'active'")
    assert counts(corpus, "saucer") == [1, 1, 1]
    assert rewrite(corpus, 0) == 0


def test_rewriting_goes_in_batches_and_keeps_hashes_and_embeddings(corpus: Connection) -> None:
    before = corpus.execute(READ).fetchall()
    keep(corpus, heading_weight=1)
    assert [rewrite(corpus, most) for most in (0, 1, 1, 0, 5, 5)] == [3, 2, 1, 1, 0, 0]
    after = corpus.execute(READ).fetchall()
    assert [row[-2:] for row in after] == [row[-2:] for row in before]
    call(corpus, "reset_knowledge_settings")
    assert rewrite(corpus, 0) == 3
    rewrite(corpus)
    assert [row[1] for row in corpus.execute(READ)] == [row[1] for row in before]


def test_a_batch_leaves_what_another_transaction_has_locked(
    committed: Connection, connect: Connect
) -> None:
    keep(committed, heading_weight=1)
    other = connect()
    with other.transaction():
        other.execute("select from public.knowledge_chunks where content = 'beta' for update")
        committed.execute("set lock_timeout = '5s'")
        assert rewrite(committed) == 1
    assert rewrite(committed) == 0


def test_a_writer_that_began_before_the_change_is_found_by_the_rewriting(
    committed: Connection, connect: Connect
) -> None:
    other = connect()
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with other.transaction():
        other.execute("select from public.knowledge_settings")
        keep(committed, heading_weight=1)
        assert rewrite(committed) == 0
        insert = "insert into public.knowledge_chunks (content, heading) values ('delta', 'gravel')"
        other.execute(insert)
    assert committed.execute(OCCURRENCES, ["delta", "gravel"]).fetchone() == (2,)
    assert [rewrite(committed, most) for most in (0, 1)] == [1, 0]
    assert committed.execute(OCCURRENCES, ["delta", "gravel"]).fetchone() == (1,)


def test_searches_and_writes_go_on_while_chunks_are_rewritten(
    committed: Connection, connect: Connect
) -> None:
    keep(committed, title_weight=1)
    other = connect()
    chunks = ({"content": "alpha"}, {"content": "beta", "heading": "gravel"})

    def write() -> None:
        for number in range(20):
            upsert(other, *chunks, title=f"saucer{number}")

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        rewrite(committed, 1)
        assert found(committed, "alpha gravel") in (["alpha", "beta"], ["alpha", "beta", "gamma"])
    writer.join()
    while rewrite(committed):
        pass
    assert counts(committed, "saucer19") == [2, 1, 0]


def test_a_word_of_the_title_alone_is_matched_and_the_snippet_shows_the_beginning(
    knowledge: Connection,
) -> None:
    keep(knowledge, title_weight=1)
    upsert(knowledge, {"content": "alpha beta", "heading": "gravel"})
    (row,) = call(knowledge, SEARCH, query_text="kettle", snippet=True)
    assert (row["matched_terms"], row["snippet"]) == (["kettle"], "alpha beta")


def test_stored_fields_leave_the_fusion_and_the_weights_as_they_were(corpus: Connection) -> None:
    settings = {"fusion": "auto", "vector_weight": 3, "measured_on": "9 questions"}
    call(corpus, "set_knowledge_settings", **settings)
    keep(corpus, title_weight=1)
    keep(corpus, collection="knowledge", heading_weight=1)
    listed = {row["collection"]: row for row in call(corpus, "list_knowledge_settings")}
    own, others = listed["knowledge"], listed[""]
    assert (own["vector_weight"], own["heading_weight"], own["title_weight"]) == (3, 1, None)
    assert (others["fusion"], others["title_weight"]) == ("auto", 1)
    assert others["changes"] == ["the weights of heading, title and metadata are others"]
    call(corpus, "set_knowledge_settings", fusion="rrf")
    assert call(corpus, "list_knowledge_settings")[0]["title_weight"] == 1

"""Writes in a session that began with empty tables: they read a few rows of large ones, too."""

import pytest
from stored import Documents, embedded, embeddings

from conftest import Connection

OTHER_ROWS = 600


@pytest.fixture
def documents(database: Connection) -> Documents:
    return Documents(database)


def rows_read(documents: Documents) -> dict[str, int]:
    """Return how many rows and index entries scans have read of each table."""
    documents.rows("select pg_stat_force_next_flush()")
    return dict(
        documents.rows(
            "select relname, seq_tup_read + (select coalesce(sum(idx_tup_read), 0)"
            "         from pg_stat_user_indexes as index where index.relid = stat.relid)::bigint"
            "  from pg_stat_user_tables as stat"
            " where relname in ('knowledge_chunks', 'knowledge_documents', 'knowledge_words')"
        )
    )


def add_rows(documents: Documents, name: str = "other") -> None:
    """Store documents with chunks, each with a word of its own, which an ANALYZE has not seen."""
    documents.rows(
        "with document as ("
        "  insert into public.knowledge_documents (external_key)"
        "  select concat_ws(' ', %s::text, n) from generate_series(1, %s) as n"
        "  returning id, external_key"
        ") insert into public.knowledge_chunks (document_id, chunk_index, content)"
        " select id, 0, translate(md5(external_key), '0123456789', 'ghijklmnop') from document",
        name,
        OTHER_ROWS,
    )


def test_a_write_reads_its_own_rows_only(documents: Documents, modules: tuple[str, ...]) -> None:
    # A plan for many rows at an empty table prefers to read the whole table.
    documents.upsert([f"Feed cat {number}." for number in range(200)], "first")
    for number in range(8):  # other plans are kept after a few calls
        documents.upsert(["Feed the cat.", f"Row {number}."], f"early {number}")
        documents.upsert(["Feed the dog."], f"early {number}")
    add_rows(documents)
    before = rows_read(documents)
    assert documents.counts(["Water the plants.", "Rotate keys."], "new") == (2, 0, 0, 0)
    assert documents.counts(["Rotate keys.", "Milk cows."], "new", title="x") == (0, 2, 0, 0)
    after = rows_read(documents)
    # Before the first ANALYZE, a transaction that writes texts reads 100 rows for the mean length.
    written = {"knowledge_chunks", "knowledge_documents"}
    if "words" in modules:
        written.add("knowledge_words")
    assert {name for name in after if after[name] - before[name] < OTHER_ROWS} == written


def test_a_load_before_the_first_analyze_reads_the_mean_length_once(documents: Documents) -> None:
    add_rows(documents)
    before = rows_read(documents)["knowledge_chunks"]
    add_rows(documents, "later")
    assert rows_read(documents)["knowledge_chunks"] - before == 100


WAITING = {"content": "The same.", "embedding_model": "m"}


@pytest.mark.parametrize("same", [10, 300])
def test_a_text_that_many_chunks_wait_to_embed_is_stored_as_fast(
    documents: Documents, same: int
) -> None:
    documents.upsert([WAITING] * same, "waiting")
    before = rows_read(documents)["knowledge_chunks"]
    documents.upsert([WAITING], "one more")
    assert rows_read(documents)["knowledge_chunks"] - before < 300


def test_an_embedding_is_found_among_chunks_that_wait(documents: Documents) -> None:
    documents.upsert([WAITING] * 20, "waiting")
    documents.upsert([embedded("The same.", 1)], "embedded")
    assert embeddings(documents.upsert([WAITING], "one more")) == (1, 0)


def test_a_write_that_renews_the_statistics_takes_a_moment(documents: Documents) -> None:
    documents.rows(
        "insert into public.knowledge_chunks (content)"
        " select string_agg('w' || m, ' ') from generate_series(1, 8000) as m group by m % 100"
    )
    documents.upsert(["Feed the cat."], "first")
    documents.rows("analyze public.knowledge_chunks")
    documents.rows("set statement_timeout = '8s'")
    documents.upsert(["Feed the dog."], "second")  # a quadratic refresh takes over 10 s
    listed = "select count(*) > 5000 from public.knowledge_lexeme_statistics"
    assert documents.rows(listed) == [(True,)]
    documents.rows("analyze public.knowledge_chunks")
    documents.upsert(["Feed the cow."], "third")

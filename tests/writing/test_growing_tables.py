"""Writes in a session that began with empty tables: they read a few rows of large ones, too."""

import pytest
from stored import counts, embedded, embeddings, upsert

from conftest import Connection

OTHER_ROWS = 600


def rows_read(connection: Connection) -> dict[str, int]:
    """Return how many rows and index entries scans have read of each table."""
    connection.execute("select pg_stat_force_next_flush()")
    return dict(
        connection.execute(
            "select relname, seq_tup_read + (select coalesce(sum(idx_tup_read), 0)"
            "         from pg_stat_user_indexes as index where index.relid = stat.relid)::bigint"
            "  from pg_stat_user_tables as stat"
            " where relname in ('knowledge_chunks', 'knowledge_documents', 'knowledge_words')"
        ).fetchall()
    )


def add_rows(connection: Connection, name: str = "other") -> None:
    """Store documents with chunks, each with a word of its own, which an ANALYZE has not seen."""
    connection.execute(
        "with document as ("
        "  insert into public.knowledge_documents (external_key)"
        "  select concat_ws(' ', %s::text, n) from generate_series(1, %s) as n"
        "  returning id, external_key"
        ") insert into public.knowledge_chunks (document_id, chunk_index, content)"
        " select id, 0, translate(md5(external_key), '0123456789', 'ghijklmnop') from document",
        [name, OTHER_ROWS],
    )


def test_a_write_reads_its_own_rows_only(database: Connection, modules: tuple[str, ...]) -> None:
    # A plan for many rows at an empty table prefers to read the whole table.
    upsert(database, [f"Feed cat {number}." for number in range(200)], "first")
    for number in range(8):  # other plans are kept after a few calls
        upsert(database, ["Feed the cat.", f"Row {number}."], f"early {number}")
        upsert(database, ["Feed the dog."], f"early {number}")
    add_rows(database)
    before = rows_read(database)
    assert counts(upsert(database, ["Water the plants.", "Rotate keys."], "new")) == (2, 0, 0, 0)
    stored = upsert(database, ["Rotate keys.", "Milk cows."], "new", title="x")
    assert counts(stored) == (0, 2, 0, 0)
    after = rows_read(database)
    # Before the first ANALYZE, a transaction that writes texts reads 100 rows for the mean length.
    written = {"knowledge_chunks", "knowledge_documents"}
    if "words" in modules:
        written.add("knowledge_words")
    assert {name for name in after if after[name] - before[name] < OTHER_ROWS} == written


def test_a_load_before_the_first_analyze_reads_the_mean_length_once(database: Connection) -> None:
    add_rows(database)
    before = rows_read(database)["knowledge_chunks"]
    add_rows(database, "later")
    assert rows_read(database)["knowledge_chunks"] - before == 100


@pytest.mark.parametrize("same", [10, 300])
def test_a_text_that_many_chunks_wait_to_embed_is_stored_as_fast(
    database: Connection, same: int
) -> None:
    waiting = [{"content": "The same.", "embedding_model": "m"}] * same
    upsert(database, waiting, "waiting")
    before = rows_read(database)["knowledge_chunks"]
    upsert(database, waiting[:1], "one more")
    assert rows_read(database)["knowledge_chunks"] - before < 300


def test_an_embedding_is_found_among_chunks_that_wait(database: Connection) -> None:
    upsert(database, [{"content": "The same.", "embedding_model": "m"}] * 20, "waiting")
    upsert(database, [embedded("The same.", 1)], "embedded")
    stored = upsert(database, [{"content": "The same.", "embedding_model": "m"}], "one more")
    assert embeddings(stored) == (1, 0)


def test_a_write_that_renews_the_statistics_takes_a_moment(database: Connection) -> None:
    database.execute(
        "insert into public.knowledge_chunks (content)"
        " select string_agg('w' || m, ' ') from generate_series(1, 8000) as m group by m % 100"
    )
    upsert(database, ["Feed the cat."], "first")
    database.execute("analyze public.knowledge_chunks")
    database.execute("set statement_timeout = '8s'")
    upsert(database, ["Feed the dog."], "second")  # a quadratic refresh takes over 10 s
    listed = "select count(*) > 5000 from public.knowledge_lexeme_statistics"
    assert database.execute(listed).fetchall() == [(True,)]
    database.execute("analyze public.knowledge_chunks")
    upsert(database, ["Feed the cow."], "third")

"""The plans that the search's settings ask for, on every major version of Postgres here.

A plan inside a function cannot be explained without an extension, so the statistics of the indexes
say which of them a search has read.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from conftest import Connection
from second_brain.database import migrations
from second_brain.database.embedded import installed_majors
from tools.migrations import Databases, throw_away_server

CHUNKS = 4_000
DIMENSIONS = 16
VECTOR_INDEX, TEXT_INDEX = "knowledge_chunks_embedding", "knowledge_chunks_content_tsv"
METADATA_INDEX, TYPE_INDEX = "knowledge_chunks_metadata", "knowledge_chunks_knowledge_type"

# A tenth are notes, one in 400 has a ticket, every row has some of 2,000 words.
FILL = """
insert into public.knowledge_chunks (content, embedding, knowledge_type, metadata)
select (
         select string_agg('word' || (random() * random() * 2000)::integer, ' ')
           from generate_series(1, 20)
          where row.number > 0
       ),
       (
         select array_agg(random() - 0.5)::extensions.vector
           from generate_series(1, %(dimensions)s)
          where row.number > 0
       ),
       case when row.number %% 10 = 0 then 'note' else 'document' end,
       case when row.number %% 400 = 0 then '{"ticket": true}' else '{}' end::jsonb
  from generate_series(1, %(chunks)s) as row (number)
"""
QUESTION: dict[str, Any] = {
    "query_embedding": str([(place * 7 % 11) - 5 for place in range(DIMENSIONS)]),
    "query_text": "word3 word17 word250 word1200",
    "match_threshold": -1,
}


@pytest.fixture(
    scope="module",
    params=[18, pytest.param(17, marks=pytest.mark.slow), pytest.param(16, marks=pytest.mark.slow)],
)
def corpus(request: pytest.FixtureRequest, modules: tuple[str, ...]) -> Iterator[Connection]:
    """A corpus with statistics, on a server of each major version."""
    if request.param not in installed_majors():
        pytest.skip(f"PostgreSQL {request.param} is not installed")
    with throw_away_server(request.param) as server:
        dsn = Databases(server).empty("plans")
        migrations.apply(dsn, dimensions=DIMENSIONS, modules=modules)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("select setseed(0.5)")
            connection.execute(FILL, {"chunks": CHUNKS, "dimensions": DIMENSIONS})
            connection.execute("vacuum analyze public.knowledge_chunks")
            connection.execute("select public.refresh_knowledge_statistics()")
            yield connection


def scans(connection: Connection) -> dict[str, int]:
    connection.execute("select pg_stat_force_next_flush()")
    connection.execute("select pg_stat_clear_snapshot()")
    rows = connection.execute(
        "select indexrelname, idx_scan from pg_stat_user_indexes where relname = 'knowledge_chunks'"
        " union all"
        " select 'table', seq_scan from pg_stat_user_tables where relname = 'knowledge_chunks'"
    ).fetchall()
    return dict(rows)


def read_by_a_search(connection: Connection, **arguments: Any) -> set[str]:
    """Search with a cached plan, as a pooled connection does, and name what the search reads."""
    given = {**QUESTION, **arguments}
    call = ", ".join(
        f"{name} => %({name})s" + {"query_embedding": "::extensions.vector"}.get(name, "")
        for name in given
    )
    statement = f"select count(*) from public.hybrid_search_knowledge_chunks({call})".encode()
    for _ in range(2):
        connection.execute(statement, given)
    before = scans(connection)
    (rows,) = connection.execute(statement, given).fetchone() or (0,)
    assert rows == 10
    after = scans(connection)
    # The rows of the page, and of the sample, are fetched by their ids, the chunks of a hit's
    # document are counted, and the first end of a row is looked up.
    return {name for name in after if after[name] > before[name]} - {
        "knowledge_chunks_pkey",
        "knowledge_chunks_document",
        "knowledge_chunks_valid_from",
        "knowledge_chunks_valid_until",
    }


def test_a_search_reads_one_index_for_each_leg(corpus: Connection) -> None:
    assert read_by_a_search(corpus) - {"knowledge_chunks_language"} == {VECTOR_INDEX, TEXT_INDEX}


def test_a_wide_filter_is_checked_during_the_two_index_scans(corpus: Connection) -> None:
    read = read_by_a_search(corpus, filter_type="document")
    assert {VECTOR_INDEX, TEXT_INDEX} <= read
    assert not {TYPE_INDEX, "table"} & read


def test_a_narrow_filter_is_found_by_its_own_index(corpus: Connection) -> None:
    read = read_by_a_search(corpus, filters='{"ticket": true}')
    assert METADATA_INDEX in read
    assert not {VECTOR_INDEX, "table"} & read


def test_the_text_leg_alone_reads_no_vector_index(corpus: Connection) -> None:
    read = read_by_a_search(corpus, vector_weight=0)
    assert read - {"knowledge_chunks_language"} == {TEXT_INDEX}


def test_the_vector_leg_alone_reads_no_text_index(corpus: Connection) -> None:
    read = read_by_a_search(corpus, text_weight=0)
    assert read - {"knowledge_chunks_language"} == {VECTOR_INDEX}

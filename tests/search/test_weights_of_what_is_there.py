"""A word weighs by the chunks that have it now, also after many were deleted."""

from typing import LiteralString

import psycopg
import pytest
from searching import Row, search

from conftest import Connection

ANALYZE = "analyze public.knowledge_chunks"
REFRESH = "select public.refresh_knowledge_statistics()"
INVOICES = (
    "insert into public.knowledge_chunks (collection, content)"
    " select 'bills', format('invoice number %s was paid', n) from generate_series(1, 1800) as n"
)
DELETE = "delete from public.knowledge_chunks where collection = 'bills'"


def fill(connection: Connection, animals: int) -> None:
    """Make invoice a common word, walrus a rarer one, and copy the statistics."""
    connection.execute(INVOICES)
    add_animals(connection, animals)
    connection.execute(ANALYZE)
    connection.execute(REFRESH)


def add_animals(connection: Connection, animals: int) -> None:
    connection.execute(
        "insert into public.knowledge_chunks (content)"
        " select format('the walrus %%s swims', n) from generate_series(1, %s) as n"
        " union all select 'an invoice for fish'",
        [animals],
    )


def first(connection: Connection) -> Row:
    return search(connection, query_text="invoice walrus", match_count=1)[0]


def renewed(connection: Connection) -> float:
    """Return the score of the first hit after the statistics were copied anew."""
    connection.execute("vacuum analyze public.knowledge_chunks")
    connection.execute(REFRESH)
    return float(first(connection)["text_score"])


CHANGES: dict[str, tuple[LiteralString, ...]] = {
    "delete, analyze": (DELETE, ANALYZE),
    "delete": (DELETE,),
    "delete, vacuum": (DELETE, "vacuum public.knowledge_chunks"),
    "delete, vacuum full": (DELETE, "vacuum full public.knowledge_chunks"),
    "delete in parts, analyze": (
        DELETE + " and content < 'invoice number 2'",
        ANALYZE,
        DELETE,
        ANALYZE,
    ),
    "supersede, analyze": (
        "update public.knowledge_chunks set status = 'superseded' where collection = 'bills'",
        ANALYZE,
    ),
}


@pytest.mark.parametrize(
    "change",
    [one if "analyze" in one else pytest.param(one, marks=pytest.mark.slow) for one in CHANGES],
)
def test_a_corpus_that_has_become_small_is_counted(database: Connection, change: str) -> None:
    fill(database, 300)
    assert first(database)["content"] != "an invoice for fish"
    for statement in CHANGES[change]:
        database.execute(statement)
    hit = first(database)
    assert hit["content"] == "an invoice for fish"
    database.execute(DELETE)
    assert hit["text_score"] == pytest.approx(renewed(database), rel=1e-3)


@pytest.mark.parametrize("animals", [300, 1200])
def test_a_truncated_table_has_no_weights(database: Connection, animals: int) -> None:
    fill(database, 300)
    database.execute("truncate public.knowledge_chunks")
    assert database.execute("table public.knowledge_corpus_statistics").fetchall() == []
    assert database.execute("table public.knowledge_lexeme_statistics").fetchall() == []
    add_animals(database, animals)
    assert first(database)["content"] == "an invoice for fish"


@pytest.mark.parametrize("animals", [300, 900])
def test_a_restored_copy_of_another_corpus_does_not_weigh_a_small_one(
    database: Connection, animals: int
) -> None:
    # A dump restores the rows of these tables too, into a table that was never analysed.
    add_animals(database, animals)
    database.execute(
        "insert into public.knowledge_corpus_statistics"
        " (document_count, mean_length, cosine_spread, least_frequency, sample, analysed_rows)"
        " values (3301, 5, 0.13, 0.01, '{}', 3301)"
    )
    database.execute(
        "insert into public.knowledge_lexeme_statistics values ('invoic', 0.9), ('walrus', 0.1)"
    )
    assert first(database)["content"] == "an invoice for fish"


def test_one_transaction_of_everything_ends_with_the_weights_of_what_is_left(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        fill(connection, 300)
        connection.execute(DELETE)
        connection.execute(ANALYZE)
        assert first(connection)["content"] == "an invoice for fish"


GROWN = (
    "insert into public.knowledge_chunks (content)"
    " select format('walrus swims %s', n) from generate_series(1, 4000) as n"
)


@pytest.mark.parametrize(
    "statements",
    [
        (DELETE, ANALYZE),
        pytest.param((DELETE, "vacuum public.knowledge_chunks"), marks=pytest.mark.slow),
        pytest.param(
            (DELETE, "vacuum full public.knowledge_chunks", ANALYZE), marks=pytest.mark.slow
        ),
        pytest.param((GROWN,), marks=pytest.mark.slow),
        (GROWN, ANALYZE),
    ],
)
def test_a_larger_corpus_is_weighed_anew_when_the_planner_knows(
    database: Connection, statements: tuple[LiteralString, ...]
) -> None:
    fill(database, 1200)
    assert first(database)["content"] != "an invoice for fish"
    for statement in statements:
        database.execute(statement)
    hit = first(database)
    assert hit["content"] == "an invoice for fish"
    assert hit["text_score"] == pytest.approx(renewed(database), rel=0.1)


def test_a_few_changes_keep_the_copy(database: Connection) -> None:
    fill(database, 1200)
    before = first(database)
    database.execute(
        "delete from public.knowledge_chunks where id in"
        " (select id from public.knowledge_chunks where collection = 'bills' limit 300)"
    )
    database.execute(ANALYZE)
    assert first(database)["text_score"] == before["text_score"]

"""Where a list of hits ends: by its pools or by its rows, how pages cut it, how many rows match."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from searching import store

from conftest import Connection
from second_brain.errors import InvalidInputError
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.results import Results

ROWS, WITH_ZEBRA = 2600, 70


@pytest.fixture(scope="module")
def savanna(shared: Connection) -> Iterator[Connection]:
    """2,600 chunks in 26 documents, the first 70 with the word zebra."""
    with shared.transaction(force_rollback=True):
        shared.execute(
            "insert into public.knowledge_documents (id, external_key)"
            " select lpad(to_hex(n), 32, '0')::uuid, n::text from generate_series(1, 26) as n"
        )
        shared.execute(
            "insert into public.knowledge_chunks (content, embedding, document_id, chunk_index)"
            " select case when n < %s then 'zebra ' else 'lion ' end || n,"
            "        format('[1,%%s,0]', n / 1000.0)::extensions.vector,"
            "        lpad(to_hex(1 + n / 100), 32, '0')::uuid, n"
            "   from generate_series(0, %s - 1) as n",
            [WITH_ZEBRA, ROWS],
        )
        yield shared


@pytest.fixture
def provider(savanna: Connection) -> PostgresProvider:
    return PostgresProvider(savanna)


def test_a_page_past_the_pool_says_that_the_pool_ended_the_list(provider: PostgresProvider) -> None:
    hits, details = provider.hybrid_search([1, 0, 0], None, match_offset=60)
    assert (hits, details["total_count"], details["pool_ended"]) == ([], 50, True)
    assert "pool_size" in details["remedy"]
    assert "search_pages()" in details["remedy"]
    hits, details = provider.hybrid_search([1, 0, 0], None, match_offset=60, pool_size=200)
    assert (len(hits), details["total_count"]) == (5, 200)
    assert "pool_ended" not in details


def test_the_last_page_of_the_pool_says_so(provider: PostgresProvider) -> None:
    assert "pool_ended" not in provider.hybrid_search([1, 0, 0], None, match_offset=44)[1]
    assert provider.hybrid_search([1, 0, 0], None, match_offset=45)[1]["pool_ended"] is True
    # Of 26 documents the pool has one.
    _, details = provider.hybrid_search([1, 0, 0], None, one_per_document=True)
    assert (details["total_count"], details["pool_ended"]) == (1, True)


def test_a_list_that_has_every_row_is_not_ended_by_a_pool(provider: PostgresProvider) -> None:
    for offset in (0, 60, 80):
        _, details = provider.hybrid_search(None, "zebra", match_offset=offset, pool_size=100)
        assert details["total_count"] == WITH_ZEBRA
        assert "pool_ended" not in details
    _, details = provider.hybrid_search(None, "unicorn", match_offset=10)
    assert details["total_count"] is None
    assert "pool_ended" not in details


def test_the_largest_pool_names_another_remedy(provider: PostgresProvider) -> None:
    _, details = provider.hybrid_search([1, 0, 0], None, 100, pool_size=1000, match_offset=950)
    assert details["pool_ended"] is True
    assert "filters" in details["remedy"]


@pytest.mark.module("batch")
def test_every_hit_of_a_batch_says_whether_its_pool_ended(provider: PostgresProvider) -> None:
    (vector, text), _ = provider.hybrid_search_batch(
        [{"query_embedding": [1, 0, 0]}, {"query_text": "zebra", "pool_size": 100}]
    )
    assert {hit.metadata["pool_ended"] for hit in vector} == {True}
    assert {hit.metadata["pool_ended"] for hit in text} == {False}


def ids(pages: list[Results]) -> list[str]:
    return [hit.id for hits, _ in pages for hit in hits]


@pytest.mark.parametrize("size", [100, 300, 1000])
def test_pages_have_every_hit_of_the_largest_pool_once(
    provider: PostgresProvider, size: int
) -> None:
    pages = list(provider.search_pages([1, 0, 0], None, top_k=size))
    assert [len(hits) for hits, _ in pages[:-1]] == [size] * (len(pages) - 1)
    assert len(ids(pages)) == len(set(ids(pages))) == 1000
    whole, _ = provider.find([1, 0, 0], None, top_k=1000, pool_size=1000)
    assert ids(pages) == [hit.id for hit in whole]
    assert [details.get("pool_ended", False) for _, details in pages] == [
        *[False] * (len(pages) - 1),
        True,
    ]


def test_pages_go_on_where_no_page_begins(provider: PostgresProvider) -> None:
    # Both legs fill their pools with different rows: the list is longer than 1,000 + 1,000 / 2.
    pages = list(provider.search_pages([1, 5, 0], "lion", top_k=400, fusion="rrf"))
    total = pages[0][1]["total_count"]
    assert total is not None
    assert 1400 < total == len(ids(pages)) == len(set(ids(pages)))


def test_pages_of_a_loop_are_those_of_a_thread(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        store(connection, *({"content": f"zebra {number}"} for number in range(7)))

    async def pages() -> list[list[str]]:
        found = AsyncPostgresProvider(dsn).search_pages(None, "zebra", top_k=3)
        return [[hit.content for hit in hits] async for hits, _ in found]

    threaded = PostgresProvider(dsn).search_pages(None, "zebra", top_k=3)
    assert asyncio.run(pages()) == [[hit.content for hit in hits] for hits, _ in threaded]


def test_pages_of_nothing_are_none_and_a_refusal_is_raised(provider: PostgresProvider) -> None:
    assert list(provider.search_pages(None, "unicorn")) == []
    with pytest.raises(InvalidInputError, match="search_mode"):
        next(provider.search_pages(None, "zebra", search_mode="nosuch"))


@pytest.mark.parametrize(
    ("arguments", "total"),
    [
        ({"query_embedding": [1, 0, 0]}, ROWS),
        ({"query_text": "zebra"}, WITH_ZEBRA),
        ({"query_embedding": [1, 0, 0], "query_text": "zebra"}, ROWS),
        # At most 45 degrees, that is n / 1000 <= 1.
        ({"query_embedding": [1, 0, 0], "threshold": 0.70710677}, 1001),
        ({"query_embedding": [1, 0, 0], "one_per_document": True}, 26),
        ({"query_embedding": [1, 0, 0], "filters": {"document_id": UUID(int=2)}}, 100),
        ({"query_embedding": [1, 0, 0], "query_text": "zebra", "vector_weight": 0}, WITH_ZEBRA),
        ({"query_text": "zebra", "formulations": [{"query_text": "lion"}]}, ROWS),
        ({"query_text": "zebra", "match_offset": 900}, WITH_ZEBRA),
        ({"query_text": "unicorn"}, 0),
    ],
)
def test_the_exact_total_counts_rows_beyond_the_pool(
    provider: PostgresProvider, arguments: dict[str, Any], total: int
) -> None:
    given = {"query_embedding": None, "query_text": None, **arguments}
    _, details = provider.find(**given, exact_total=True)
    assert details["exact_total"] == total
    assert "exact_total" not in provider.find(**given)[1]

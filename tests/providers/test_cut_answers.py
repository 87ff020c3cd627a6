"""Answers that PostgREST cuts at the project's Max rows: they are fetched in parts, or said so."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from supabase_gateway import HYBRID_ROW, SIDES, Answer, Gateway, Real, Recorded, Rest, gateway, rest

from corpora import store_document

__all__ = ["gateway", "rest"]  # fixtures

MOST_ROWS = 100


def hits(count: int, query_index: int = 0) -> list[dict[str, Any]]:
    row = {**HYBRID_ROW, "query_index": query_index, "total_count": count}
    return [{**row, "id": f"{query_index}-{number}"} for number in range(count)]


@pytest.fixture
def cut(rest: Rest, request: pytest.FixtureRequest) -> Iterator[Rest]:
    """A project whose Max rows is below what is asked for, with 160 chunks."""
    rest.gateway.most_rows = MOST_ROWS
    if isinstance(rest, Recorded):
        yield rest
        return
    assert isinstance(rest, Real)
    owner = request.getfixturevalue("dsn")
    admin = request.getfixturevalue("server").admin_dsn()
    store_document(
        owner, "many", {f"zebra {number}": [1, number / 100, 0] for number in range(160)}
    )
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(
            sql.SQL("alter role authenticator in database {} set pgrst.db_max_rows = {}").format(
                sql.Identifier(str(conninfo_to_dict(owner)["dbname"])), sql.Literal(str(MOST_ROWS))
            )
        )
    yield rest


@pytest.mark.parametrize(
    "ask",
    [
        lambda provider: provider.hybrid_search(None, "zebra", top_k=150),
        lambda provider: provider.fulltext_search("zebra", top_k=150),
    ],
    ids=["hybrid", "a leg alone"],
)
def test_a_search_returns_all_rows_that_it_is_asked_for(
    cut: Rest, ask: Callable[[Any], Any]
) -> None:
    cut.given(Answer(body=[{**row, "rank": 1.0} for row in hits(150)]))
    found, details = ask(cut.provider())
    assert len({hit.id for hit in found}) == details["raw_count"] == 150
    assert "truncated" not in details
    assert cut.gateway.offsets == [0, MOST_ROWS]


def test_a_batch_returns_every_list_whole(cut: Rest) -> None:
    cut.given(Answer(body=[*hits(60), *hits(60, 1), *hits(40, 2)]))
    answers, details = cut.provider().hybrid_search_batch(
        [{"query_text": "zebra", "top_k": most} for most in (60, 60, 40)]
    )
    assert [len({hit.id for hit in answer}) for answer in answers] == [60, 60, 40]
    assert details["raw_count"] == 160
    assert "truncated" not in details


def test_the_number_of_rows_is_asked_for_only_where_an_answer_may_be_cut(cut: Rest) -> None:
    cut.given(Answer(body=hits(150)))
    found, _ = cut.provider().hybrid_search(None, "zebra", top_k=MOST_ROWS)
    assert (len(found), cut.gateway.offsets) == (MOST_ROWS, [0])
    cut.provider().hybrid_search(None, "zebra", top_k=MOST_ROWS + 1)
    assert cut.gateway.counted == [False, True, True]


@SIDES
def test_a_short_answer_that_is_cut_is_said(gateway: Gateway, side: Any) -> None:
    gateway.most_rows = 10
    gateway.answer = Answer(body=hits(150))
    found, details = side(
        gateway, lambda provider: provider.hybrid_search(None, "zebra", top_k=20, match_offset=5)
    )
    assert len(found) == 10
    assert details["truncated"] is True
    assert "Max rows" in details["remedy"]


@SIDES
@pytest.mark.parametrize(("later", "is_batch"), [(140, False), (0, True)], ids=["one", "batch"])
def test_rows_that_change_between_the_parts_are_said(
    gateway: Gateway, side: Any, later: int, is_batch: bool
) -> None:
    gateway.most_rows = MOST_ROWS

    class Offsets(list[int]):
        def append(self, offset: int) -> None:
            super().append(offset)
            gateway.answer = Answer(body=hits(later if offset else 150))

    gateway.offsets = Offsets()
    query: Any = {"query_text": "zebra", "top_k": 150}

    def ask(provider: Any) -> Any:
        if is_batch:
            return provider.hybrid_search_batch([query])
        return provider.hybrid_search(None, **query)

    found, details = side(gateway, ask)
    assert len(found[0] if is_batch else found) == max(later, MOST_ROWS)
    assert details["truncated"] is True
    assert "Max rows" in details["remedy"]

"""Answers that PostgREST cuts at the project's Max rows: they are fetched in parts, or said so."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from supabase_gateway import (
    HYBRID_ROW,
    SIDES,
    Answer,
    Gateway,
    Real,
    Recorded,
    Rest,
    gateway,
    rest,
)

from corpora import store_document

__all__ = ["gateway", "rest"]  # fixtures

MOST_ROWS = 100


def hits(count: int, query_index: int = 0) -> list[dict[str, Any]]:
    return [
        {
            **HYBRID_ROW,
            "id": f"{query_index}-{number}",
            "query_index": query_index,
            "total_count": count,
        }
        for number in range(count)
    ]


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


def test_a_search_returns_all_rows_that_it_is_asked_for(cut: Rest) -> None:
    cut.given(Answer(body=hits(150)))
    found, details = cut.provider().hybrid_search(None, "zebra", top_k=150)
    assert len({hit.id for hit in found}) == details["raw_count"] == 150
    assert "truncated" not in details
    assert cut.gateway.offsets == [0, MOST_ROWS]


def test_a_batch_returns_every_list_whole(cut: Rest) -> None:
    cut.given(Answer(body=[*hits(60), *hits(60, 1), *hits(40, 2)]))
    answers, details = cut.provider().hybrid_search_batch(
        [{"query_text": "zebra", "top_k": most} for most in (60, 60, 40)]
    )
    assert [len(answer) for answer in answers] == [60, 60, 40]
    assert [len({hit.id for hit in answer}) for answer in answers] == [60, 60, 40]
    assert details["raw_count"] == 160
    assert "truncated" not in details


def test_a_leg_alone_is_whole_too(cut: Rest) -> None:
    cut.given(Answer(body=[{**row, "rank": 1.0} for row in hits(150)]))
    found, _ = cut.provider().fulltext_search("zebra", top_k=150)
    assert len({hit.id for hit in found}) == 150


def test_an_answer_that_is_not_cut_is_one_request(cut: Rest) -> None:
    cut.given(Answer(body=hits(MOST_ROWS)))
    found, _ = cut.provider().hybrid_search(None, "zebra", top_k=MOST_ROWS)
    assert len(found) == MOST_ROWS
    assert cut.gateway.offsets == [0]


def test_the_number_of_rows_is_asked_for_only_where_an_answer_may_be_cut(cut: Rest) -> None:
    cut.given(Answer(body=hits(150)))
    cut.provider().hybrid_search(None, "zebra", top_k=MOST_ROWS)
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


def asked(provider: Any) -> Any:
    return provider.hybrid_search(None, "zebra", top_k=150)


@SIDES
def test_rows_that_change_between_the_parts_are_said(gateway: Gateway, side: Any) -> None:
    gateway.most_rows = MOST_ROWS
    gateway.answer = Answer(body=hits(150))
    begun = gateway.offsets.append

    class Offsets(list[int]):
        def append(self, offset: int) -> None:
            begun(offset)
            super().append(offset)
            if offset:
                gateway.answer = replace(gateway.answer, body=hits(140))

    gateway.offsets = Offsets()
    found, details = side(gateway, asked)
    assert len(found) == 140
    assert details["truncated"] is True
    assert "Max rows" in details["remedy"]


@SIDES
def test_a_batch_that_changes_between_the_parts_is_said(gateway: Gateway, side: Any) -> None:
    gateway.most_rows = MOST_ROWS

    class Offsets(list[int]):
        def append(self, offset: int) -> None:
            super().append(offset)
            gateway.answer = Answer(body=[] if offset else hits(150))

    gateway.offsets = Offsets()
    _, details = side(
        gateway,
        lambda provider: provider.hybrid_search_batch([{"query_text": "zebra", "top_k": 150}]),
    )
    assert details["truncated"] is True

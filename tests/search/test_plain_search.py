"""The plain search has statements of its own; any other search takes the second way.

Both ways give the same answers, and only arguments that are named take the plain one: a search with
an argument that restricts rows must never return all active rows.
"""

import random
import re
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from searching import NORTH, NORTH_EAST, UP, Row, chunk, store, store_document
from sql_trees import RPC, body, function, parameters

from conftest import Connection

ME = "00000000-0000-0000-0000-000000000001"
WORDS = ("camera", "power", "cut", "invoice", "N-cadherin", "p53", "recorder", "café", "DS-7604")
# One text of each kind that the reader of plain words must leave to the other one, or read as it.
TEXTS = (
    "camera", "the power cut", "power or invoice", "is it a power or an invoice for a recorder?",
    "power -cut", "camera power cut invoice recorder alpha -beta", '"power cut" camera',
    "N-cadherin and p53", "DS-7604", "café", "cafe", "recordr", "don't cut", "1,000 cameras",
    "C++ (i.e. C#) at 10%", "the of and", "...", "a/b . - c", "POWER Power power", "x_y", "o'clock",
)  # fmt: skip


@pytest.fixture(scope="module")
def rows(shared: Connection) -> Connection:
    """Rows of two owners, groups, collections, types and dates, each visible to some."""
    drawn = random.Random(67)
    document = store_document(shared, chunk(900), title="Manual")
    store(
        shared,
        *(
            {
                "content": " ".join(drawn.choices(WORDS, k=drawn.randint(1, 9))),
                "heading": drawn.choice([None, "Power"]),
                "embedding": drawn.choice([NORTH, NORTH_EAST, UP, None]),
                "document_id": drawn.choice([None, document]),
                "chunk_index": number,
                "owner_id": drawn.choice([None, ME]),
                "visibility": drawn.choice(["public", "private"]),
                "allowed_groups": drawn.choice([None, ["board"]]),
                "collection": drawn.choice(["knowledge", "memory"]),
                "knowledge_type": drawn.choice(["note", "task"]),
                "document_date": drawn.choice([None, "2026-01-31"]),
                "metadata": {"team": drawn.choice(["search", "sales"])},
                "status": drawn.choice(["active", "active", "active", "archived"]),
            }
            for number in range(120)
        ),
    )
    return shared


def plain(connection: Connection, **arguments: Any) -> list[Row]:
    given = ", ".join(f"{name} => %({name})s" for name in arguments)
    return [
        row
        for (row,) in connection.execute(
            f"select to_jsonb(hit) from public.{RPC}({given}) as hit".encode(), arguments
        ).fetchall()
    ]


def second(connection: Connection, **arguments: Any) -> list[Row]:
    answer = connection.execute(
        "select to_jsonb(hit) from knowledge_internal.search("
        "  knowledge_internal.given_arguments(%s::jsonb)) as hit",
        [Jsonb(arguments)],
    )
    return [row for (row,) in answer.fetchall()]


def close(hits: list[Row]) -> list[Row]:
    return [
        {name: pytest.approx(one, rel=1e-9) if isinstance(one, float) else one for name, one in
         hit.items()}
        for hit in hits
    ]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("fusion", [None, "auto", "relative_score"])
def test_both_ways_give_the_same_answer(rows: Connection, text: str, fusion: str | None) -> None:
    for extra in ({}, {"query_embedding": str(NORTH)}, {"match_offset": 2, "pool_size": 7}):
        asked = {"query_text": text, "fusion": fusion, **extra}
        assert plain(rows, **asked) == close(second(rows, **asked))


# An ordinary value of each argument beside those that every plain search may have.
RESTRICTING = {
    "filter_type": "note",
    "filters": Jsonb({"team": "search"}),
    "date_from": "2026-01-01",
    "date_to": "2026-12-31",
    "collections": ["memory"],
    "viewer_id": ME,
    "viewer_groups": ["board"],
    "public_only": True,
    "required_filters": Jsonb({"team": "search"}),
    "like_ids": [chunk(1)],
    "max_per_document": 1,
    "min_confidence": 0.9,
    "one_per_document": True,
}
COLUMNS = """
select id from public.knowledge_chunks where status = 'active' and case %s
  when 'filter_type' then knowledge_type = 'note'
  when 'date_from' then document_date is not null when 'date_to' then document_date is not null
  when 'collections' then collection = 'memory'
  when 'viewer_id' then owner_id = %s or visibility = 'public'
  when 'viewer_groups' then visibility = 'public' or allowed_groups && '{board}'
  when 'public_only' then visibility = 'public'
  when 'filters' then metadata ->> 'team' = 'search'
  when 'required_filters' then metadata ->> 'team' = 'search'
  when 'like_ids' then id <> '00000000-0000-0000-0000-000000000001' else true end
"""


@pytest.mark.module("like")
@pytest.mark.parametrize("argument", RESTRICTING)
def test_an_argument_alone_hides_what_it_hides(rows: Connection, argument: str) -> None:
    asked = {"query_text": "camera power invoice", "query_embedding": str(NORTH)}
    allowed = {str(one) for (one,) in rows.execute(COLUMNS, [argument, ME]).fetchall()}
    hits = plain(rows, **asked, match_count=200, **{argument: RESTRICTING[argument]})
    assert hits
    assert {hit["id"] for hit in hits} <= allowed


@pytest.mark.parametrize("argument", ["public_only", "one_per_document", "snippet", "match_count"])
def test_null_is_refused_and_never_every_row(rows: Connection, argument: str) -> None:
    with pytest.raises(Exception, match=argument):
        plain(rows, query_text="camera", **{argument: None})


def test_an_empty_list_is_no_plain_search(rows: Connection) -> None:
    empties: list[Row] = [{"viewer_groups": []}, {"like_ids": []}, {"filters": Jsonb([])}]
    for empty in empties:
        asked = {"query_text": "camera", "match_count": 200, **empty}
        given = {name: one.obj if isinstance(one, Jsonb) else one for name, one in asked.items()}
        assert plain(rows, **asked) == close(second(rows, **given))
    everybody = plain(rows, query_text="camera", match_count=200)
    nobody = plain(rows, query_text="camera", match_count=200, viewer_groups=[])
    assert len(nobody) < len(everybody)


def test_the_early_test_names_every_argument() -> None:
    """An argument that is added later takes the second way until somebody names it here."""
    definition = function(RPC)
    (test,) = re.findall(r"is_plain boolean := (.*?);", body(definition), re.DOTALL)
    missing = {
        name for name in parameters(definition, False) if not re.search(rf"\b{name}\b", test)
    }
    assert missing == {"as_of"}  # both ways read it

"""How many chunks have no embedding yet: the count, against the rows that a viewer may see."""

from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb
from searching import answer, call, store

from conftest import Connect, Connection
from support.properties import tried

pytestmark = pytest.mark.module("embedding_queue")

COUNT = "count_pending_knowledge_embeddings"
MY_COUNT = "count_my_pending_knowledge_embeddings"
ME, YOU = UUID(int=1), UUID(int=2)

ROW = st.fixed_dictionaries(
    {
        "embedding": st.none() | st.just([1, 0, 0]),
        "status": st.sampled_from(["active", "active", "superseded"]),
        "collection": st.sampled_from(["a", "b"]),
        "visibility": st.sampled_from(["private", "public"]),
        "owner_id": st.none() | st.sampled_from([ME, YOU]),
        "allowed_groups": st.none() | st.sampled_from([["staff"], ["board", "staff"]]),
        "metadata": st.sampled_from([{}, {"team": "x"}]),
        "knowledge_type": st.sampled_from(["note", "task"]),
        "document_date": st.none() | st.just("2026-01-01"),
    }
)
ASKED = st.fixed_dictionaries(
    {},
    optional={
        "viewer_id": st.sampled_from([ME, UUID(int=3)]),
        "viewer_groups": st.sampled_from([[], ["staff"], ["board"]]),
        "public_only": st.just(True),
        "filter_type": st.just("note"),
        "collections": st.sampled_from([["a"], ["a", "c"]]),
        "date_from": st.just("2026-01-01"),
        "filters": st.sampled_from(
            [{"team": "x"}, [{"field": "collection", "op": "ne", "value": "a"}]]
        ),
    },
)


def is_counted(row: dict[str, Any], asked: dict[str, Any]) -> bool:
    viewer, groups = asked.get("viewer_id"), asked.get("viewer_groups")
    filters = asked.get("filters")
    is_seen = (
        row["visibility"] == "public"
        or (viewer is None and groups is None)
        or (viewer is not None and row["owner_id"] == viewer)
        or not set(groups or ()).isdisjoint(row["allowed_groups"] or ())
    )
    return all(
        (
            row["embedding"] is None and row["status"] == "active" and is_seen,
            "public_only" not in asked or row["visibility"] == "public",
            "filter_type" not in asked or row["knowledge_type"] == "note",
            "collections" not in asked or row["collection"] in asked["collections"],
            "date_from" not in asked or row["document_date"] is not None,
            not isinstance(filters, dict) or row["metadata"] == {"team": "x"},
            not isinstance(filters, list) or row["collection"] != "a",
        )
    )


@given(rows=st.lists(ROW, max_size=8), asked=ASKED)
@tried(40)
def test_the_count_is_that_of_the_rows_that_the_viewer_may_see(
    knowledge: Connection, rows: list[dict[str, Any]], asked: dict[str, Any]
) -> None:
    sent = {name: Jsonb(value) if name == "filters" else value for name, value in asked.items()}
    with knowledge.transaction(force_rollback=True):
        store(knowledge, *rows)
        counted = answer(knowledge, COUNT, **sent)
    assert counted == sum(is_counted(row, asked) for row in rows)


def test_a_user_counts_own_public_and_group_chunks(dsn: str, connect: Connect) -> None:
    owner = connect()
    owner.execute(
        "create or replace function public.knowledge_viewer_groups() returns text[]"
        " language sql stable set search_path = '' as $$ select array['staff'] $$"
    )
    store(
        owner,
        {"owner_id": ME},
        {"visibility": "public"},
        {"allowed_groups": ["staff"]},
        {"owner_id": YOU},
        {"allowed_groups": ["board"]},
    )
    me = connect("authenticated", uid=ME)
    assert call(me, MY_COUNT) == [{MY_COUNT: 3}]
    assert call(me, MY_COUNT, public_only=True) == [{MY_COUNT: 1}]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        call(connect("authenticated"), MY_COUNT)


def test_more_than_1000_are_counted_as_1000(knowledge: Connection) -> None:
    knowledge.execute(
        "insert into public.knowledge_chunks (content, visibility)"
        " select 'text ' || n, case when n > 900 then 'public' else 'private' end"
        "  from generate_series(1, 1001) as n"
    )
    assert call(knowledge, COUNT) == [{COUNT: 1000}]
    assert call(knowledge, COUNT, public_only=True) == [{COUNT: 101}]

"""How many rows match: the function that counts, against the search itself."""

from typing import Any
from uuid import UUID

from filtering import one
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb
from searching import answer, search, store

from conftest import Connection
from support.properties import tried

COUNT = "count_matching_knowledge_chunks"

WORDS = st.sampled_from(["zebra", "lion", "grass", "plain"])
ROW = st.fixed_dictionaries(
    {
        "content": st.lists(WORDS, min_size=1, max_size=3).map(" ".join),
        "embedding": st.none() | st.tuples(*[st.sampled_from([-1, 0.5, 1])] * 3).map(list),
        "collection": st.sampled_from(["a", "b"]),
        "visibility": st.sampled_from(["private", "public"]),
        "owner_id": st.none() | st.sampled_from([UUID(int=1), UUID(int=2)]),
        "metadata": st.sampled_from([{}, {"team": "x"}, {"team": "y"}]),
        "knowledge_type": st.sampled_from(["note", "task"]),
    }
)
FILTERS: list[Any] = [
    {"team": "x"},
    one("owner_id", "exists"),
    one("metadata.team", "ne", "x"),
]
QUERY = st.fixed_dictionaries(
    {
        "query_text": st.sampled_from(["zebra", "lion grass", "zebra -grass", '"lion plain"']),
        "query_embedding": st.none() | st.just([1.0, 0.5, 0.5]),
    },
    optional={
        "min_confidence": st.sampled_from([0.05, 0.3, 0.9]),
        "match_threshold": st.sampled_from([-1, 0.5, 0.9]),
        "viewer_id": st.sampled_from([UUID(int=1), UUID(int=3)]),
        "public_only": st.just(True),
        "filter_type": st.just("note"),
        "collections": st.sampled_from([["a"], ["a", "b"], ["", "a"]]),
        "filters": st.sampled_from(FILTERS).map(Jsonb),
        "search_mode": st.sampled_from(["websearch", "simple"]),
        "embedding_from_text": st.just(True),
        "formulations": st.just([{"query_text": "plain"}]).map(Jsonb),
    },
)


@given(rows=st.lists(ROW, max_size=12), query=QUERY)
@tried(25)
def test_the_exact_total_is_the_length_of_a_list_that_no_pool_ends(
    knowledge: Connection, rows: list[dict[str, Any]], query: dict[str, Any]
) -> None:
    with knowledge.transaction(force_rollback=True):
        store(knowledge, *rows)
        hits = search(knowledge, **query, match_count=1000)
        counted = answer(knowledge, COUNT, **query)
        assert not any(hit["pool_ended"] for hit in hits)
        assert counted == len(hits)

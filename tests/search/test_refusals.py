"""What SQL refuses: the arguments, and how the message begins. The code is 22023 each time."""

import json
import math
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb
from searching import NORTH, call, chunk, refused

from conftest import Connection
from homes import in_its_module
from second_brain.services.arguments import FUSIONS

Refused = tuple[dict[str, Any], str]

SEARCH = "hybrid_search_knowledge_chunks"
BATCH = "hybrid_search_knowledge_chunks_batch"
PENDING, COUNT = "count_pending_knowledge_embeddings", "count_matching_knowledge_chunks"
TEXT_LEG, READ = "search_knowledge_chunks_fulltext", "read_my_knowledge_document"
SETTINGS, FIELDS = "set_knowledge_settings", "set_knowledge_fields"
FACETS, LISTED = "facet_knowledge_chunks", "list_my_knowledge_documents"
OF_USER, OF_SERVICE = {"document": UUID(int=9)}, "list_visible_knowledge_documents"
NEEDED: dict[str, dict[str, Any]] = {
    SEARCH: {"query_embedding": NORTH, "query_text": "cat"},
    "match_knowledge_chunks": {"query_embedding": NORTH},
    TEXT_LEG: {"query_text": "cat"},
    COUNT: {"query_text": "cat"},
    READ: OF_USER,
    "read_knowledge_document": OF_USER,
}
GROUPS = (["staff", None], [""], ["x" * 201], ["staff"] * 1001, [["staff"]])


def each(argument: str, *values: Any, said: str | None = None) -> list[Refused]:
    return [({argument: value}, said or argument) for value in values]


FUSION = f"fusion must be one of {', '.join(FUSIONS)}, not"
REFUSED: dict[str, list[Refused]] = {
    SEARCH: [
        *each("match_count", 0, -1, 1001, None),
        *each("pool_size", 0, -5, 1001, None),
        *each("match_threshold", -1.01, 1.01, math.nan, math.inf, None),
        *each("vector_weight", -0.1, math.nan, math.inf, None),
        *each("text_weight", -0.1, math.nan, math.inf, None),
        *each("rrf_k", 0, -60, math.nan, math.inf, None),
        *each("search_mode", "", "fuzzier", "WEBSEARCH", None),
        *each("filter_type", "", "recipe", "Note"),
        *each("fusion", "", "AUTO", "rrf ", "borda", "null", "relative-score", said=FUSION),
        *each("on_bad_embedding", "", "ignore", None),
        *each("max_per_document", 0, 1001),
        *each("min_confidence", -0.1, 1.1, math.nan),
        *each("snippets", 0, 4, None),
        *each("merge_duplicates", None),
        *each("prefix_last", None),
        *each("viewer_groups", *GROUPS, said="viewer_groups must be at most 1000"),
        ({"query_embedding": None, "query_text": " "}, "query_embedding and query_text"),
        ({"query_embedding": None, "query_text": None}, "query_embedding and query_text"),
        ({"vector_weight": 0, "text_weight": 0}, "vector_weight and text_weight"),
        *[
            (
                {"query_embedding": [1] * size, "vector_weight": 0},
                f"query_embedding has {size} dimensions, the stored embeddings have 3",
            )
            for size in (1, 2, 4, 1024)
        ],
        # The length of the last two overflows or underflows where pgvector computes: in float4.
        *each("query_embedding", [0, 0, 0], [0, 1e-30, 0], [1e30, 0, 0]),
    ],
    "match_knowledge_chunks": [
        *each("query_embedding", None, [1, 2]),
        *each("match_count", 0, None),
        *each("match_threshold", 2),
        *each("filter_type", "x"),
        *each("public_only", None),
    ],
    TEXT_LEG: [
        *each("query_text", None, " \n"),
        *each("search_mode", "x"),
        *each("match_count", 1001),
        *each("filter_type", "x"),
        *each("public_only", None),
    ],
    COUNT: [
        *[
            ({argument: value}, f"search.{argument}: ")
            for argument, value in (
                ("match_count", "many"),
                ("date_from", "soon"),
                ("viewer_id", "me"),
                ("collections", "one"),
                ("snippet", "perhaps"),
                ("match_count", 1e12),
                ("query_embedding", {"a": 1}),
            )
        ],
        # A null argument is not its default.
        *each("match_count", None, said="match_count must be"),
        *each("viewer_groups", *GROUPS, said="viewer_groups must be at most 1000"),
    ],
    # Even if nothing is pending.
    PENDING: [
        *each("filter_type", "poem"),
        *each("filters", [{"field": "nowhere", "op": "eq", "value": 1}]),
        *each("collections", []),
        *each("viewer_groups", [None]),
        *each("public_only", None),
    ],
    FACETS: [
        *each("facets", ["metadata" + ".a" * 21], ["language", None]),
        *each("facets", [], None, ["content"], ["owner_id"], ["metadata."], ["language"] * 21),
        *each("facet_limit", 0, 1001),
        *each("search_mode", "fuzzy"),
    ],
    SETTINGS: [
        *each("collection", None, "x" * 201),
        *each("fusion", "stored"),
        *each("vector_weight", -1, None),
        *each("text_weight", math.nan),
        *each("embedding_model", ""),
        *each("dimensions", 4),
        *each("measured_on", ""),
        *each("bm25_k1", 11.0, said="bm25_k1 must be between"),
        *each("bm25_b", 1.1, -0.1, said="bm25_b must be between"),
    ],
    FIELDS: [
        *each("collection", "x" * 201),
        *each("heading_weight", -1),
        *each("title_weight", 6),
        *each("text_keys", [f"key{number}" for number in range(11)], ["author", None], [""]),
    ],
    BATCH: each("queries", [], [{"query_text": "cat"}] * 51, {}),
    "rewrite_knowledge_chunks": each("most", -1, 100_001, None),
    LISTED: each("page_size", 0, 201, None) + each("include_public", None),
    READ: each("document", None) + each("chunk_count", 501) + each("chunk_offset", -1),
    "delete_my_knowledge_document": each("document", None),
    "read_knowledge_document": each("chunk_count", 0, 501) + each("chunk_offset", -1),
    OF_SERVICE: [
        *each("page_size", 0, 201),
        *each("viewer_groups", [""]),
        *each("public_only", None),
    ],
}


def check_refusals(connection: Connection, function: str, rows: list[Refused]) -> None:
    """Call with each value; the message begins as said, and names a short value."""
    if "_my_" in function:
        claims = json.dumps({"sub": str(UUID(int=1)), "role": "authenticated"})
        connection.execute("select set_config('request.jwt.claims', %s, true)", [claims])
    for given, said in rows:
        arguments = NEEDED.get(function, {}) | given
        if isinstance(arguments.get("filters"), list):
            arguments["filters"] = Jsonb(arguments["filters"])
        message = refused(connection, function, **arguments)
        assert message.startswith(said), (given, message)
        assert len(message) < 1000
        value = given.get(said, [])
        if function == SEARCH and not isinstance(value, list):
            named = "null" if value is None else str(value).replace("inf", "Infinity")
            assert named.lower().removesuffix(".0") in message.lower()


@pytest.mark.parametrize("function", [in_its_module(one) for one in REFUSED])
def test_an_argument_out_of_bounds_is_refused_by_name(knowledge: Connection, function: str) -> None:
    check_refusals(knowledge, function, REFUSED[function])


AT_A_BOUND: dict[str, list[dict[str, Any]]] = {
    SEARCH: [
        {
            "match_count": 1,
            "pool_size": 1,
            "match_threshold": -1,
            "min_confidence": 0,
            "snippets": 1,
        },
        {"match_count": 1000, "pool_size": 1000, "match_threshold": 1, "min_confidence": 1},
        {"snippets": 3, "max_per_document": 1, "match_offset": 1000, "neighbor_window": 5},
        {"max_per_document": 1000, "query_text": "x" * 4096, "viewer_groups": ["x" * 200] * 1000},
    ],
    FACETS: [{"facets": ["metadata" + ".a" * 20], "facet_limit": one} for one in (1, 1000)],
    SETTINGS: [
        {"collection": "x" * 200, "bm25_k1": 10.0, "bm25_b": 1.0},
        {"bm25_k1": 0.0, "bm25_b": 0.0, "vector_weight": 0},
    ],
    FIELDS: [{"heading_weight": 5, "title_weight": 5, "text_keys": list("abcdefghij")}],
    BATCH: [{"queries": [{"query_text": "cat"}] * 50}],
    OF_SERVICE: [{"page_size": one} for one in (1, 200)],
    "read_knowledge_document": [{"chunk_count": one} for one in (1, 500)],
}


@pytest.mark.parametrize("function", [in_its_module(one) for one in AT_A_BOUND])
def test_an_argument_at_its_bound_is_taken(knowledge: Connection, function: str) -> None:
    for given in AT_A_BOUND[function]:
        call(knowledge, function, **NEEDED.get(function, {}) | given)


def test_a_refused_text_is_cut_in_the_message(knowledge: Connection) -> None:
    message = refused(knowledge, SEARCH, query_text="cat", search_mode="x" * 10_000)
    assert len(message) < 300


FILTERED = {"filters": [], "factor": 2}
NUMBER = {"field": "metadata.likes", "modifier": "sqrt", "weight": 1}
DECAY = {"field": "document_date", "decay": "exp", "origin": "now", "scale": 7}
NO_FORM = " must be an object with filters and factor"
FACTOR = ".factor must be a number between 0 and 1000000, not "
OF_NUMBER = ".field must be one of chunk_index, metadata.<key>"
WRONG_BOOSTS: list[tuple[Any, str]] = [
    *[(wrong, NO_FORM) for wrong in (3, {}, {"field": "document_date"})],
    ({**FILTERED, "weight": 2}, ' must have only the keys filters, factor, not {"weight": 2}'),
    ({"filters": []}, f"{FACTOR}missing"),
    *[({**FILTERED, "factor": one}, FACTOR + json.dumps(one)) for one in ("2", -1, 1000001)],
    ({**FILTERED, "filters": None}, ".filters must be conditions, not null"),
    ({**FILTERED, "filters": 7}, ".filters must be a JSON array of conditions or an object"),
    ({**FILTERED, "filters": [{"field": "nope"}]}, ".filters[0].op is missing"),
    ({**NUMBER, "modifier": "square"}, ".modifier must be one of log1p, sqrt, linear, not"),
    ({**NUMBER, "weight": 1e7}, ".weight must be a number between -1000000 and 1000000, not"),
    *[
        ({**NUMBER, "field": one}, OF_NUMBER)
        for one in ("document_date", "metadata", "metadata..a", None)
    ],
    ({**DECAY, "decay": None}, ".decay must be one of gauss, exp, linear, not null"),
    *[
        ({**DECAY, "origin": one}, '.origin must be "now", an ISO date such as 2026-01-31 or a')
        for one in ("soon", None)
    ],
    ({**DECAY, "origin": 7}, f"{OF_NUMBER}, not document"),
    ({**DECAY, "field": "chunk_index"}, ".field must be one of created_at, document_date, upd"),
    ({**DECAY, "scale": 0}, ".scale must be a number between 1e-06 and 1e+100, not 0"),
    ({**DECAY, "offset": -1}, ".offset must be a number between 0 and 1e+100, not -1"),
    ({**DECAY, "decay_to": 1}, ".decay_to must be a number between 0.001 and 0.999, not 1"),
]


@pytest.mark.module("arrange")
def test_a_wrong_boost_order_or_diversity_is_named_with_what_is_allowed(
    knowledge: Connection,
) -> None:
    order = (
        "order_by must be one of chunk_index, created_at, document_date, updated_at,"
        " metadata.<key>, and asc or desc after it, not "
    )
    # It is refused before it is read.
    long = "order_by must be at most 1,000 characters long, not a "
    most = "boosts must be an array of at most 10 objects, not "
    check_refusals(
        knowledge,
        SEARCH,
        [
            *[
                ({"boosts": Jsonb([FILTERED, DECAY, wrong])}, f"boosts[2]{said}")
                for wrong, said in WRONG_BOOSTS
            ],
            *each("boosts", *map(Jsonb, ({}, "x", [FILTERED] * 11)), said=most),
            *each("order_by", "a" + " " * 1_000_000 + "x", said=long),
            *each("order_by", f"{'x' * 1000}", said=order),
            *each("order_by", "metadata" + ".a" * 21, said=order),
            *[
                ({"order_by": wrong}, order + wrong)
                for wrong in ("", "title", "metadata", "metadata.", "document_date up", "1")
            ],
            *each("diversity", -0.1, 1.1, math.nan, None),
        ],
    )
    call(knowledge, SEARCH, query_text="cat", order_by="metadata" + ".a" * 20)


@pytest.mark.module("like")
@pytest.mark.module("visitors")
def test_like_ids_are_bounded(knowledge: Connection) -> None:
    most = "like_ids must be at most 20 ids of chunks or documents, not "
    wrong: tuple[Any, ...] = ([chunk(1)] * 21, [None], [[chunk(1)], [chunk(2)]])
    check_refusals(knowledge, SEARCH, each("like_ids", *wrong, said=most))
    nothing: dict[str, Any] = {"like_ids": [], "query_text": None, "query_embedding": None}
    check_refusals(knowledge, SEARCH, [(nothing, "query_embedding and query_text")])
    public = "search_public_knowledge_chunks"
    said = refused(knowledge, public, like_ids=[chunk(1)] * 6, query_text="cat")
    assert said == "like_ids must be at most 5 ids for visitors, not 6"

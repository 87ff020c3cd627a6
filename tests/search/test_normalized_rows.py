"""How a row of the search becomes a result, whatever the row is."""

from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mocked_client import METADATA, ROW, client_with
from sql_trees import function, parameters

from second_brain.retrieval.answer import SearchResult, result
from second_brain.services.results import HitMetadata, MemorySearchResult, Method
from second_brain.services.searches import hits
from second_brain.services.supabase import SupabaseProvider


@pytest.mark.parametrize(
    ("score", "confidence"),
    [
        (0.0325, 0.0325),
        (0, 0.0),
        (1.7, 1.0),
        (-0.2, 0.0),
        ("0.5", 0.5),
        ("NaN", 0.0),
        ("Infinity", 1.0),
        (None, 0.0),
        ("much", 0.0),
        ([1], 0.0),
        (True, 0.0),
    ],
)
def test_confidence_is_in_0_to_1(score: object, confidence: float) -> None:
    older = {name: value for name, value in ROW.items() if name != "confidence"}
    for row in ({**ROW, "confidence": score}, {**older, "rrf_score": score}):
        (result,), _ = SupabaseProvider(client=client_with([row])).hybrid_search([0.1], "x")
        assert result.confidence == confidence


def test_search_takes_the_similarity_as_confidence() -> None:
    client = client_with([{**ROW, "rrf_score": 0.9, "similarity": 0.4}])
    (result,), details = SupabaseProvider(client=client).search([0.1])
    assert result.confidence == 0.4
    assert details["mode"] == "vector"


@pytest.mark.parametrize(
    ("rank", "confidence"),
    [(3.0, 0.75), (0, 0.0), (-1.0, 0.0), ("Infinity", 1.0), ("NaN", 0.0), (None, 0.0)],
)
def test_fulltext_search_compares_ranks_with_the_best(rank: object, confidence: float) -> None:
    client = client_with([{**ROW, "rank": 4.0}, {**ROW, "rank": rank}])
    (best, other), details = SupabaseProvider(client=client).fulltext_search("x")
    assert (best.confidence, other.confidence) == (1, confidence)
    alone = client_with([{**ROW, "rank": -1.0}])
    assert SupabaseProvider(client=alone).fulltext_search("x")[0][0].confidence == 0
    assert details["mode"] == "fulltext"


def test_reserved_keys_win_over_the_rows_own() -> None:
    lies = dict.fromkeys(ROW, "a lie") | {"real_provider": False, "mine": 1}
    row = {**ROW, "metadata": lies, "text_rank": None}
    (result,), _ = SupabaseProvider(client=client_with([row])).hybrid_search([0.1], "x")
    (honest,), _ = SupabaseProvider(
        client=client_with([{**ROW, "metadata": {}, "text_rank": None}])
    ).hybrid_search([0.1], "x")
    metadata = dict(result.metadata)
    assert metadata["mine"] == 1
    assert {key: metadata[key] for key in honest.metadata} == honest.metadata


@pytest.mark.parametrize("row", [{}, None, 7, "row", [ROW], {"id": "", "metadata": "no"}])
def test_an_odd_row_is_normalized(row: object) -> None:
    results, details = SupabaseProvider(client=client_with([ROW, row])).hybrid_search([0.1], "x")
    assert details["raw_count"] == 2
    assert results[1] == MemorySearchResult(
        id="supa-hybrid-1", content="", source="supabase", confidence=0.0, metadata=METADATA
    )


def test_a_missing_id_is_named_by_mode_and_position() -> None:
    provider = SupabaseProvider(client=client_with([{}]))
    assert provider.search([0.1])[0][0].id == "supa-vector-0"
    assert provider.fulltext_search("x")[0][0].id == "supa-fulltext-0"


@pytest.mark.parametrize(
    ("column", "value", "normalized"),
    [
        ("knowledge_type", "recipe", "recipe"),
        ("knowledge_type", None, "document"),
        ("knowledge_type", 5, "document"),
        ("source_origin", "fax", "fax"),
        ("source_origin", "", "manual"),
        ("chunk_index", "x", 0),
        ("chunk_index", "NaN", 0),
        ("chunk_index", None, 0),
        ("similarity", "NaN", None),
        ("text_rank", None, None),
        ("text_score", None, None),
        ("vector_rank", "Infinity", None),
        ("matched_terms", "keys", []),
        ("matched_terms", None, []),
        ("total_count", "many", None),
        ("total_count", [1], None),
        ("answer_confidence", "NaN", None),
        ("document_date", date(2026, 1, 31), "2026-01-31"),
        ("snippet", None, None),
    ],
)
def test_an_odd_column_is_normalized(column: str, value: object, normalized: object) -> None:
    client = client_with([{**ROW, column: value}])
    (result,), details = SupabaseProvider(client=client).hybrid_search([0.1], "x")
    assert dict(result.metadata)[column] == normalized
    assert dict(details)["total_count"] == (normalized if column == "total_count" else 1)


def test_the_rows_own_metadata_does_not_pass_for_a_snippet() -> None:
    row = {**ROW, "snippet": None, "metadata": {"snippet": "<script>", "context": "private"}}
    (result,), _ = SupabaseProvider(client=client_with([row])).hybrid_search([0.1], "x")
    assert result.metadata["snippet"] is None
    assert result.metadata["context"] == ROW["context"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(
    rows=st.lists(st.dictionaries(st.sampled_from(sorted(ROW)), json_values) | json_values),
    method=st.sampled_from(["hybrid", "vector", "fulltext"]),
    top_k=st.integers(1, 5),
)
def test_no_row_is_fatal(rows: list[Any], method: Method, top_k: int) -> None:
    results = hits(rows, method=method, source="supabase", limit=top_k)
    assert len(results) == min(len(rows), top_k)
    for hit in results:
        assert 0 <= hit.confidence <= 1
        assert isinstance(hit.id, str)
        assert hit.metadata["real_provider"] is True


def test_a_hit_has_each_column_of_the_search() -> None:
    columns = parameters(function("hybrid_search_knowledge_chunks_batch"), True)
    of_the_list = {"query_index", "total_count", "pool_ended", "notes", "answer_confidence"}
    own_of_result = {"rank", "rerank_score", "original_rank", "valid_from", "valid_until"}
    assert SearchResult.model_fields.keys() - own_of_result == columns.keys() - of_the_list
    said = HitMetadata.__annotations__.keys() - {"is_chunk", "real_provider"}
    of_a_hit = {"id", "content", "metadata", "confidence", "query_index", "notes"}
    assert said == columns.keys() - of_a_hit
    (hit,) = hits([{}], method="hybrid", source="postgres", limit=1)
    assert said - hit.metadata.keys() == {"title", "source_url", "pool_ended"}


def test_a_result_of_the_service_is_the_same_hit() -> None:
    row: dict[str, Any] = {"id": "a", "metadata": {"rank": 1, "title": "own"}, "title": "T"}
    row |= {"chunk_index": None, "document_date": "infinity", "text_score": 0.5, "heading": 7}
    (hit,) = hits([row], method="hybrid", source="postgres", limit=1)
    one = result(hit, 1)
    assert (one.id, one.title, one.chunk_index, one.text_score) == ("a", "T", None, 0.5)
    assert (one.metadata, one.document_date, one.heading) == ({"rank": 1}, None, "7")
    assert result(MemorySearchResult("b", "text", "postgres", 0.5), 1).chunk_index == 0

"""The structure of the SQL, read by a parser, and the client over a mocked supabase client.

The structure tests come first, the client's after them. No test reads a comment.
"""

import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from mocked_client import ROW, SECRET, client_with, failing_client, sent
from pglast import ast
from pglast.enums import (
    JoinType,
)
from pglast.stream import RawStream
from postgrest.exceptions import APIError
from sql_trees import (
    LEGS,
    PUBLIC_FUNCTIONS,
    ROWS_IN_SCOPE,
    RPC,
    SHARED_BY_THE_LEGS,
    Function,
    Query,
    body,
    columns_read,
    conjuncts,
    ctes,
    definitions,
    derived_from,
    dotted,
    function,
    leg_statements,
    lineage,
    nodes,
    operators,
    options,
    outputs,
    parameters,
    parsed,
    per_leg,
    plpgsql,
    privileges,
    result_columns,
    retrieval,
    statements,
    tables,
)

from second_brain.services.results import MemorySearchResult
from second_brain.services.supabase import SupabaseProvider


def test_migration_file_exists() -> None:
    created = [
        dotted(one.funcname) for file, one in definitions() if file == "009_hybrid_search.sql"
    ]
    assert f"public.{RPC}" in created


def test_rpc_function_name() -> None:
    names = [dotted(definition.funcname) for _, definition in definitions()]
    assert f"public.{RPC}" in names
    # PostgREST answers 300 where two signatures fit.
    assert [name for name in names if name.endswith(RPC)] == [f"public.{RPC}"]
    assert [one.sval for one in options(function(RPC), "language")] == ["plpgsql"]
    assert [one.sval for one in options(function(RPC), "volatility")] == ["stable"]


@pytest.mark.parametrize(
    ("weight", "rank"), [("vector_weight", "vector_rank"), ("text_weight", "text_rank")]
)
def test_rrf_formula_present(weight: str, rank: str) -> None:
    assert parameters(function(RPC), False)["rrf_k"] == ("double precision", "60")

    def is_share(node: Any) -> bool:
        # weight / (rrf_k + rank)
        divisor = dict(operators(node.rexpr)).get("+")
        return (
            columns_read(node.lexpr) == {weight}
            and divisor is not None
            and columns_read(divisor) == {"rrf_k", rank}
        )

    # A leg that missed the row adds 0, not null.
    shares = [
        node
        for node in nodes(retrieval(), ast.CoalesceExpr)
        if any(sign == "/" and is_share(share) for sign, share in operators(node))
    ]
    assert len(shares) == 1
    assert [RawStream()(one) for one in shares[0].args[1:]] == ["0"]
    sums = [node for sign, node in operators(retrieval()) if sign == "+"]
    assert any(shares[0] in (node.lexpr, node.rexpr) for node in sums)


def test_vector_cte_present() -> None:
    assert {"id", "vector_rank", "similarity"} <= outputs(ctes()["vector_results"])
    distances = [
        node for sign, node in operators(leg_statements("vector_results")) if sign == "<=>"
    ]
    # By the index, and then in full.
    assert {frozenset(columns_read(node)) for node in distances} == {
        frozenset({"indexed_embedding", "asked_embedding"}),
        frozenset({"embedding", "asked_embedding"}),
    }
    assert all(sign != "<=>" for sign, _ in operators(leg_statements("text_results")))


def test_text_cte_present() -> None:
    assert {"id", "text_rank", "text_score"} <= outputs(ctes()["text_results"])
    matches = [node for sign, node in operators(leg_statements("text_results")) if sign == "@@"]
    assert matches
    assert all("content_tsv" in columns_read(node.lexpr) for node in matches)
    own = [one for name in LEGS["vector_results"] for one in statements(name)]
    assert all(sign != "@@" for sign, _ in operators(tuple(own)))


def test_the_legs_are_made_of_the_functions_that_these_tests_read() -> None:
    def called(name: str) -> set[str]:
        return set(re.findall(r"knowledge_internal\.(\w+_rows|exact_scores)\(", text(name)))

    def text(name: str) -> str:
        return body(function(name, "knowledge_internal"))

    assert "knowledge_internal.ranked_lists(plan)" in body(function(RPC))
    assert "knowledge_internal.ranked_list(formulation, collection, plan)" in text("ranked_lists")
    legs = {name for names in LEGS.values() for name in names}
    assert called("ranked_list") == {*legs, SHARED_BY_THE_LEGS}
    assert called("ranked_list") >= set().union(*map(called, legs))


def test_combined_cte_present() -> None:
    (join,) = ctes()["combined"].fromClause
    assert join.jointype == JoinType.JOIN_FULL
    assert (join.larg.relname, join.rarg.relname) == ("vector_results", "text_results")
    assert {"id", "vector_rank", "text_rank", "similarity", "text_score"} <= outputs(
        ctes()["combined"]
    )


def test_scored_cte_present() -> None:
    assert "combined" in tables(lineage("scored"))
    assert "rrf_score" in outputs(ctes()["scored"])
    (page,) = tables(retrieval().fromClause) & ctes().keys()
    assert "scored" in tables(lineage(page))


def test_rrf_score_column_returned() -> None:
    assert result_columns()["rrf_score"] == "double precision"


def test_vector_rank_column_returned() -> None:
    assert result_columns()["vector_rank"] == "bigint"


def test_text_rank_column_returned() -> None:
    assert result_columns()["text_rank"] == "bigint"


@per_leg
def test_active_status_filter(leg: str) -> None:
    reading = [
        query
        for query in nodes(leg_statements(leg), ast.SelectStmt)
        if any(
            isinstance(source, ast.RangeVar)
            and source.relname in {"searchable_chunks", "knowledge_chunks"}
            for source in query.fromClause or ()
        )
    ]
    found_here = [query for query in reading if not is_by_id(query)]
    assert len(found_here) == 2
    for query in found_here:
        conditions = [RawStream()(one) for one in conjuncts(query.whereClause)]
        assert ROWS_IN_SCOPE in conditions


def is_by_id(query: Query) -> bool:
    """Say whether a query looks up rows that another one found."""
    return RawStream()(query.whereClause).endswith(".id = listed.id")


def test_the_rows_in_scope_are_active() -> None:
    scope = plpgsql(function("row_scope", "knowledge_internal"))
    assigned = [
        (place, tree["expr"]["PLpgSQL_expr"]["query"])
        for place, (kind, tree) in enumerate(scope)
        if kind == "stmt_assign"
    ]
    made = [query for _, query in assigned if re.match(r"(visible|matching) :=", query)]
    # Each begins with the one before.
    assert [query.split()[0] for query in made] == ["visible", "matching"]
    assert all(re.search(r"concat_ws\(\s*' and ', visible,", query) for query in made)
    assert f"visible text := '{ROWS_IN_SCOPE.replace(chr(39), chr(39) * 2)}';" in body(
        function("row_scope", "knowledge_internal")
    )


def test_security_definer_set() -> None:
    assert [one.boolval for one in options(function(RPC), "security")] == [True]


def test_grant_to_service_role() -> None:
    statements = parsed()["009_hybrid_search.sql"]
    assert privileges(statements, f"public.{RPC}", granted=True) == {"service_role"}


def test_configurable_weights() -> None:
    taken = parameters(function(RPC), False)
    for weight in ("vector_weight", "text_weight"):
        assert taken[weight] == ("double precision", "1.0")
        assert weight in columns_read(lineage("scored"))
        planned = body(function("plan_search", "knowledge_internal"))
        assert f"settled.{weight}" in planned
        assert f"plan.{weight}" in planned


def limited(root: Any) -> list[Query]:
    """Queries whose rows a limit cuts; what only counts rows has no columns."""
    return [query for query in nodes(root, ast.SelectStmt) if query.limitCount and query.targetList]


@per_leg
def test_pool_size_parameter(leg: str) -> None:
    assert parameters(function(RPC), False)["pool_size"] == ("integer", "50")
    pool = derived_from("pool_size")
    limits = [query.limitCount for query in limited(leg_statements(leg))]
    assert limits
    # A field of the plan is computed from the pool, as the plan is. The parameters of rated_rows
    # and exact_scores are such fields.
    sources = [
        {dotted(one.fields).split(".")[0] for one in nodes(limit, ast.ColumnRef)}
        for limit in limits
    ]
    assert all(source & {*pool, "most_rows", "pool"} for source in sources)
    called = body(function("ranked_list", "knowledge_internal"))
    assert "found.near_ids, asked_embedding, plan.compared_exactly" in called
    assert "list.text_ids, plan.pool," in called


def test_match_threshold_parameter() -> None:
    assert parameters(function(RPC), False)["match_threshold"] == ("double precision", "0.0")
    # The vector leg's rows end before the first one below it.
    loops = [
        tree
        for kind, tree in plpgsql(function("ranked_list", "knowledge_internal"))
        if kind == "stmt_while"
    ]
    (condition,) = (tree["cond"]["PLpgSQL_expr"]["query"] for tree in loops)
    assert condition == "near.similarities[vector_rows] < plan.match_threshold"
    assert body(function("ranked_list", "knowledge_internal")).count("match_threshold") == 1
    for leg in LEGS:
        assert "match_threshold" not in columns_read(leg_statements(leg))


def test_the_first_arguments_keep_their_order_and_defaults() -> None:
    taken = list(parameters(function(RPC), False).items())
    assert taken[:9] == [
        ("query_embedding", ("extensions.vector", "NULL")),
        ("query_text", ("text", "NULL")),
        ("match_count", ("integer", "10")),
        ("match_threshold", ("double precision", "0.0")),
        ("vector_weight", ("double precision", "1.0")),
        ("text_weight", ("double precision", "1.0")),
        ("filter_type", ("text", "NULL")),
        ("search_mode", ("text", "'websearch'")),
        ("pool_size", ("integer", "50")),
    ]
    assert all(default is not None for _, (_, default) in taken)


def test_the_first_result_columns_keep_their_order() -> None:
    assert list(result_columns().items()) == [
        ("id", "uuid"),
        ("content", "text"),
        ("knowledge_type", "text"),
        ("document_id", "uuid"),
        ("chunk_index", "integer"),
        ("source_origin", "text"),
        ("metadata", "jsonb"),
        ("rrf_score", "double precision"),
        ("vector_rank", "bigint"),
        ("text_rank", "bigint"),
        ("similarity", "double precision"),
        ("text_score", "double precision"),
        ("match_type", "text"),
        ("matched_terms", "text[]"),
        ("title", "text"),
        ("source_url", "text"),
        ("collection", "text"),
        ("document_date", "date"),
        ("snippet", "text"),
        ("context", "text"),
        ("total_count", "bigint"),
        ("pool_ended", "boolean"),
        ("heading", "text"),
        ("sensitivity", "text"),
        ("collections", "text[]"),
        ("document_chunks", "integer"),
        ("external_key", "text"),
        ("source_row", "jsonb"),
        ("confidence", "double precision"),
        ("notes", "jsonb"),
    ]


@pytest.mark.parametrize("mode", ["websearch", "simple", "phrase"])
def test_every_search_mode_is_known(mode: str) -> None:
    assert f"'{mode}'" in body(function("check_search_arguments", "knowledge_internal"))


def test_a_limit_stands_over_an_order_that_is_total() -> None:
    of_the_legs = [query for leg in LEGS for query in limited(leg_statements(leg))]
    assert len(of_the_legs) >= 5
    for query in of_the_legs:
        keys = [key.node for key in query.sortClause or ()]
        by_index = len(keys) == 1 and any(sign == "<=>" for sign, _ in operators(keys[0]))
        assert by_index or columns_read(keys[-1]) == {"id"}, RawStream()(query)


def test_a_page_is_cut_from_places_that_are_total() -> None:
    (page,) = limited(retrieval())
    assert [columns_read(key.node) for key in page.sortClause] == [{"unit_place"}]
    (numbered,) = (
        call.over
        for call in nodes(ctes()["ordered"], ast.FuncCall)
        if dotted(call.funcname) == "row_number"
    )
    assert columns_read(numbered.orderClause[-1].node) == {"id"}


def test_the_index_scan_stands_alone() -> None:
    scans = [
        query
        for query in limited(leg_statements("vector_results"))
        if isinstance(query.sortClause[0].node, ast.A_Expr)
        and dotted(query.sortClause[0].node.name).endswith("<=>")
    ]
    assert len(scans) == 1
    assert not list(nodes(scans[0], ast.WindowDef))
    assert "match_threshold" not in columns_read(scans[0])


def test_every_function_pins_its_search_path() -> None:
    # Where pg_temp is not named it comes first, and a caller's temporary type stands in for uuid.
    def path(definition: Function) -> list[str]:
        paths = [one for one in options(definition, "set") if one.name == "search_path"]
        return [value.val.sval for path in paths for value in path.args]

    pinned = ["pg_catalog", "pg_temp"]
    assert [dotted(one.funcname) for _, one in definitions() if path(one) != pinned] == []


def test_a_public_function_is_revoked_and_granted_in_its_own_file() -> None:
    assert PUBLIC_FUNCTIONS
    for file_name, name in PUBLIC_FUNCTIONS:
        statements = parsed()[file_name]
        revoked = privileges(statements, name, granted=False)
        assert revoked >= {"public", "anon", "authenticated"}, name
        may_call = {"authenticated"} if "_my_" in name else {"service_role"}
        if name == "public.search_public_knowledge_chunks":
            may_call = set()
        assert privileges(statements, name, granted=True) == may_call, name


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPABASE_URL", raising=False)
    monkeypatch.delenv("SUPABASE_KEY", raising=False)


def test_hybrid_search_returns_tuple() -> None:
    answer = SupabaseProvider(client=client_with([ROW])).hybrid_search([0.1, 0.2], "rotate keys")
    assert isinstance(answer, tuple)
    results, details = answer
    assert [type(result) for result in results] == [MemorySearchResult]
    assert details == {
        "provider": "supabase",
        "mode": "hybrid",
        "real_provider": True,
        "raw_count": 1,
        "total_count": 1,
    }


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"supabase_url": "https://x.supabase.co"},
        {"supabase_key": SECRET, "supabase_url": " "},
    ],
)
def test_hybrid_search_no_client_returns_empty(config: dict[str, str] | None) -> None:
    provider = SupabaseProvider(config=config)
    assert provider._load_client() is None
    results, details = provider.hybrid_search([0.1], "anything")
    assert results == []
    assert details["fallback_reason"] == "client_unavailable"
    assert details["real_provider"] is False
    assert details["raw_count"] == 0
    assert "SUPABASE_URL" in details["remedy"]


def test_hybrid_search_calls_correct_rpc() -> None:
    client = client_with([])
    SupabaseProvider(client=client).hybrid_search([0.1, 0.2], "rotate keys")
    assert client.rpc.call_args.args[0] == "hybrid_search_knowledge_chunks"
    assert sent(client) == {
        "query_embedding": [0.1, 0.2],
        "query_text": "rotate keys",
        "match_count": 5,
        "match_threshold": 0.0,
        "vector_weight": 1.0,
        "text_weight": 1.0,
        "filter_type": None,
        "search_mode": "websearch",
        "pool_size": 50,
    }


def test_search_calls_correct_rpc() -> None:
    client = client_with([])
    SupabaseProvider(client=client).search([1, 0], 7, 0.25, "note")
    assert client.rpc.call_args.args[0] == "match_knowledge_chunks"
    assert sent(client) == {
        "query_embedding": [1, 0],
        "match_count": 7,
        "match_threshold": 0.25,
        "filter_type": "note",
    }


def test_fulltext_search_calls_correct_rpc() -> None:
    client = client_with([])
    SupabaseProvider(client=client).fulltext_search("rotate", 7, "phrase", "note")
    assert client.rpc.call_args.args[0] == "search_knowledge_chunks_fulltext"
    assert sent(client) == {
        "query_text": "rotate",
        "match_count": 7,
        "search_mode": "phrase",
        "filter_type": "note",
    }


def test_hybrid_search_passes_weights() -> None:
    client = client_with([])
    SupabaseProvider(client=client).hybrid_search(
        None,
        None,
        top_k=3,
        threshold=-0.5,
        vector_weight=0.25,
        text_weight=4,
        filter_type="decision",
        search_mode="simple",
        pool_size=200,
        rrf_k=10,
    )
    assert sent(client) == {
        "query_embedding": None,
        "query_text": None,
        "match_count": 3,
        "match_threshold": -0.5,
        "vector_weight": 0.25,
        "text_weight": 4,
        "filter_type": "decision",
        "search_mode": "simple",
        "pool_size": 200,
        "rrf_k": 10,
    }


@pytest.mark.parametrize(
    "embedding",
    [
        [0.5, 0.25],
        (0.5, 0.25),
        np.array([0.5, 0.25], dtype=np.float32),
        [np.float32(0.5), np.float64(0.25)],
    ],
    ids=["list", "tuple", "array", "list of numpy numbers"],
)
def test_an_embedding_is_sent_as_a_json_list(embedding: Any) -> None:
    client = client_with([])
    provider = SupabaseProvider(client=client)
    provider.hybrid_search(embedding, "x", top_k=np.int64(3))  # type: ignore[arg-type]
    assert json.dumps(sent(client)["query_embedding"]) == "[0.5, 0.25]"
    assert json.dumps(sent(client)["match_count"]) == "3"


def test_hybrid_search_includes_rank_metadata() -> None:
    (result,), _ = SupabaseProvider(client=client_with([ROW])).hybrid_search([0.1], "x")
    assert result == MemorySearchResult(
        id=ROW["id"],
        content=ROW["content"],
        source="supabase",
        confidence=0.0325,
        metadata={
            "team": "platform",  # type: ignore[typeddict-unknown-key]
            "title": "Keys",
            "source_url": "https://example.org/keys",
            "knowledge_type": "playbook",
            "document_id": ROW["document_id"],
            "chunk_index": 3,
            "source_origin": "notion",
            "vector_rank": 1,
            "text_rank": 2,
            "rrf_score": 0.0325,
            "similarity": 0.82,
            "text_score": 7.5,
            "match_type": "both",
            "matched_terms": ["rotate", "keys"],
            "collection": "memory",
            "collections": [],
            "heading": None,
            "sensitivity": None,
            "external_key": None,
            "source_row": None,
            "is_chunk": True,
            "document_chunks": None,
            "document_date": "2026-01-31",
            "snippet": "How to <mark>rotate</mark> the signing <mark>keys</mark>.",
            "context": "Before.\n[CHUNK BOUNDARY]\nHow to rotate the signing keys.",
            "total_count": 1,
            "real_provider": True,
        },
    )


@pytest.mark.parametrize(
    ("error", "kind", "code", "remedy"),
    [
        (RuntimeError("boom"), "error", None, "doctor"),
        (
            APIError({"code": "PGRST202", "message": "Could not find the function"}),
            "migration_missing",
            "PGRST202",
            "supabase db push",
        ),
        (
            APIError({"code": "42501", "message": "permission denied for function"}),
            "permission_denied",
            "42501",
            "service role",
        ),
        (
            APIError({"code": "22000", "message": "different vector dimensions 3 and 4"}),
            "dimension_mismatch",
            "22000",
            "model",
        ),
        (
            APIError({"code": "57014", "message": "canceling statement"}),
            "timeout",
            "57014",
            "statement_timeout",
        ),
    ],
)
def test_hybrid_search_exception_returns_fallback(
    caplog: pytest.LogCaptureFixture, error: Exception, kind: str, code: str | None, remedy: str
) -> None:
    with caplog.at_level(logging.WARNING):
        results, details = SupabaseProvider(client=failing_client(error)).hybrid_search(
            [0.1], "the private question"
        )
    assert results == []
    assert remedy in details.pop("remedy")
    assert details.pop("error_message")
    assert details == {
        "provider": "supabase",
        "mode": "hybrid",
        "real_provider": False,
        "raw_count": 0,
        "total_count": None,
        "fallback_reason": "provider_error",
        "error_type": type(error).__name__,
        "error_kind": kind,
        "code": code,
    }
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert type(error).__name__ in record.getMessage()
    assert "private question" not in record.getMessage()


@pytest.mark.parametrize("method", ["search", "fulltext_search"])
def test_the_other_searches_fall_back_alike(method: str) -> None:
    provider = SupabaseProvider(client=failing_client(RuntimeError("boom")))
    results, details = getattr(provider, method)("[0.1]")
    assert (results, details["fallback_reason"]) == ([], "provider_error")


@pytest.mark.parametrize("answer", [{"id": 1}, "<html>", 5])
def test_an_answer_that_is_no_rows_is_no_empty_result(answer: object) -> None:
    _, details = SupabaseProvider(client=client_with(answer)).hybrid_search([0.1], "x")
    assert details["error_kind"] == "unexpected_answer"


def test_an_interrupt_is_not_swallowed() -> None:
    provider = SupabaseProvider(client=failing_client(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        provider.hybrid_search([0.1], "x")


def test_a_message_names_no_credentials(caplog: pytest.LogCaptureFixture) -> None:
    url = "https://abcdefgh.supabase.co"
    key = "a-key-of-no-known-form"
    error = RuntimeError(f"{key} was refused by {url}/rest/v1, password=hunter2, {SECRET} " * 20)
    provider = SupabaseProvider({"supabase_url": url, "supabase_key": key})
    provider._client = failing_client(error)
    _, details = provider.hybrid_search([0.1], "x")
    for secret in (url, "abcdefgh", key, "hunter2", SECRET):
        assert secret not in str(details)
        assert secret not in caplog.text
        assert secret not in repr(provider)
    assert len(details["error_message"]) <= 300


@pytest.mark.parametrize(("top_k", "expected"), [(1, 1), (3, 3), (5, 4)])
def test_hybrid_search_respects_top_k(top_k: int, expected: int) -> None:
    rows = [{**ROW, "id": str(number)} for number in range(4)]
    client = client_with(rows)
    results, details = SupabaseProvider(client=client).hybrid_search([0.1], "x", top_k=top_k)
    assert [result.id for result in results] == [str(number) for number in range(expected)]
    assert details["raw_count"] == 4
    assert sent(client)["match_count"] == top_k


@pytest.mark.usefixtures("no_credentials")
def test_the_environment_is_read_when_the_client_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with SupabaseProvider({"supabase_key": SECRET}) as provider:
        assert provider._load_client() is None
        monkeypatch.setenv("SUPABASE_URL", "https://abcdefgh.supabase.co")
        monkeypatch.setenv("SUPABASE_KEY", "the configuration wins over this")
        client = provider._load_client()
        assert client is not None
        assert client.supabase_key == SECRET
        assert provider._load_client() is client


def test_many_threads_make_one_client() -> None:
    config = {"supabase_url": "http://127.0.0.1:1", "supabase_key": SECRET}
    with SupabaseProvider(config) as provider, ThreadPoolExecutor(8) as threads:
        clients = list(threads.map(lambda _: provider._load_client(), range(16)))
        assert len({id(client) for client in clients}) == 1


@pytest.mark.parametrize("url", ["abcdefgh.supabase.co", "http://[bad", "postgres://u:p@h/db"])
def test_a_url_that_is_none_is_a_configuration_error(url: str) -> None:
    provider = SupabaseProvider({"supabase_url": url, "supabase_key": SECRET})
    _, details = provider.hybrid_search([0.1], "x")
    assert details["error_kind"] == "configuration"
    assert "SUPABASE_URL" in details["remedy"]

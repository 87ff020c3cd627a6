"""The structure of the SQL, read by a parser. No test reads a comment."""

import re
from typing import Any

import pytest
from pglast import ast
from pglast.enums import JoinType
from pglast.stream import RawStream
from sql_trees import (
    LEGS,
    PUBLIC_FUNCTIONS,
    ROWS_IN_SCOPE,
    RPC,
    SEARCH,
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
    shown,
    statements,
    tables,
)


def test_migration_file_exists() -> None:
    created = [
        dotted(one.funcname) for file, one in definitions() if file == "010_hybrid_search.sql"
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
    # The shares of the legs are added in each list, and summed over the lists.
    shown = {target.name: RawStream()(target.val) for target in ctes()["scored"].targetList}
    assert shown["rrf_score"] == "sum(share.of_vector + share.of_text)"
    assert shown[weight.replace("weight", "share")] == f"sum(share.of_{weight.split('_')[0]})"


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

    assert "knowledge_internal.rank_all(plan)" in body(function(*SEARCH))
    assert "knowledge_internal.rank_legs(" in text("rank_all")
    legs = {name for names in LEGS.values() for name in names} - {"rank_legs"}
    # A module may find rows of the text leg; in core there are none.
    assert called("rank_legs") | called("candidate_rows") == {
        *legs,
        SHARED_BY_THE_LEGS,
        "native_rows",
    }
    assert called("rank_legs") >= set().union(*map(called, legs - {"candidate_rows"}))


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
    assert tables(retrieval().fromClause) == {"scored"}


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
    assert len(reading) == 2
    for query in reading:
        conditions = [RawStream()(one) for one in conjuncts(query.whereClause)]
        assert ROWS_IN_SCOPE in conditions


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
    statements = parsed()["010_hybrid_search.sql"]
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
    # Parameters, which are fields of the plan. These are computed from the pool, as the plan is.
    sources = {one for limit in limits for one in columns_read(limit)}
    assert sources <= {"most", "most_near", "most_worded", "compared_exactly", "pool"}
    assert "plan" in pool
    called = "".join(
        body(function(name, "knowledge_internal")) for name in ("rank_legs", "candidate_rows")
    )
    assert "collection, plan.scope, reading.index_rows" in called
    assert "plan.scope, reading.compared_by_bits, reading.scored_exactly" in called
    assert "plan.scope, (plan.reading).scored_exactly, (plan.reading).is_filtered" in called
    assert "found.near_ids, asked_embedding, reading.compared_exactly" in called
    assert "list.text_ids, plan.pool," in called


def test_match_threshold_parameter() -> None:
    assert parameters(function(RPC), False)["match_threshold"] == ("double precision", "0.0")
    # The vector leg's rows end before the first one below it.
    loops = [
        tree
        for kind, tree in plpgsql(function("rank_legs", "knowledge_internal"))
        if kind == "stmt_while"
    ]
    (condition,) = (tree["cond"]["PLpgSQL_expr"]["query"] for tree in loops)
    assert condition == "near.similarities[vector_rows] < plan.match_threshold"
    assert body(function("rank_legs", "knowledge_internal")).count("match_threshold") == 1
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
    assert list(result_columns().items())[:31] == [
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
        ("answer_confidence", "double precision"),
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
    assert "rows := rows[given.match_offset + 1:given.match_offset + given.match_count];" in body(
        function(*SEARCH)
    )
    assert [columns_read(key.node) for key in shown().sortClause] == [{"place"}]
    (listed,) = (call for call in nodes(retrieval(), ast.FuncCall) if call.agg_order)
    assert "id" in columns_read(listed.agg_order[-1].node)


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
        # A cluster is prepared by its owner.
        if "_public_" in name or name == "public.prepare_knowledge_cluster":
            may_call = set()
        assert privileges(statements, name, granted=True) == may_call, name

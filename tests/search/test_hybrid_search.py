"""The structure of the SQL, read by a parser. No test reads a comment."""

import re
from typing import Any

from pglast import ast
from pglast.stream import RawStream
from sql_trees import (
    LEGS,
    ROWS_IN_SCOPE,
    SEARCH,
    SHARED_BY_THE_LEGS,
    Query,
    body,
    columns_read,
    conjuncts,
    dotted,
    function,
    leg_statements,
    nodes,
    operators,
    per_leg,
)


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


def limited(root: Any) -> list[Query]:
    """Queries whose rows a limit cuts; what only counts rows has no columns."""
    return [query for query in nodes(root, ast.SelectStmt) if query.limitCount and query.targetList]


def test_a_limit_stands_over_an_order_that_is_total() -> None:
    of_the_legs = [query for leg in LEGS for query in limited(leg_statements(leg))]
    assert len(of_the_legs) >= 5
    for query in of_the_legs:
        keys = [key.node for key in query.sortClause or ()]
        by_index = len(keys) == 1 and any(sign == "<=>" for sign, _ in operators(keys[0]))
        assert by_index or columns_read(keys[-1]) == {"id"}, RawStream()(query)


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

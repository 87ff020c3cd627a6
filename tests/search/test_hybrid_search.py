"""The structure of the SQL, read by a parser, and the client over a mocked supabase client.

The structure tests come first, the client's after them.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import cache
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pglast import ast, parse_plpgsql, parse_sql
from pglast.enums import (
    BoolExprType,
    FunctionParameterMode,
    GrantTargetType,
    JoinType,
    ObjectType,
)
from pglast.parser import scan
from pglast.stream import RawStream
from postgrest.exceptions import APIError

from second_brain.database import migrations
from second_brain.database.migrations import Migration
from second_brain.services.results import MemorySearchResult, Method, normalize_rows
from second_brain.services.supabase import SupabaseProvider

# The structure of the SQL. What a function's body holds is parsed too: no test reads a comment.

RPC = "hybrid_search_knowledge_chunks"
# pglast's types say that any part of a node may be missing.
Function = Any
Query = Any


def nodes(root: Any, *types: type[ast.Node]) -> Iterator[Any]:
    """Walk a syntax tree, root included, down to nodes of these types."""
    if isinstance(root, tuple):
        for item in root:
            yield from nodes(item, *types)
    elif isinstance(root, ast.Node):
        if isinstance(root, types):
            yield root
        for slot in root:
            yield from nodes(getattr(root, slot), *types)


def dotted(names: Any) -> str:
    return ".".join(getattr(name, "sval", "*") for name in names)


def columns_read(root: Any) -> set[str]:
    """Names of the columns and variables in an expression, without their qualifiers."""
    return {dotted(node.fields).split(".")[-1] for node in nodes(root, ast.ColumnRef)}


def constants(root: Any) -> set[str]:
    return {text.sval for node in nodes(root, ast.A_Const) for text in nodes(node.val, ast.String)}


def operators(root: Any) -> Iterator[tuple[str, Any]]:
    for node in nodes(root, ast.A_Expr):
        yield dotted(node.name).split(".")[-1], node


@cache
def parsed() -> dict[str, tuple[Any, ...]]:
    """Each migration's statements by its file name."""
    return {
        one.file_name: tuple(raw.stmt for raw in parse_sql(one.sql)) for one in migrations.find()
    }


def definitions() -> list[tuple[str, Function]]:
    return [
        (file_name, statement)
        for file_name, statements in parsed().items()
        for statement in statements
        if isinstance(statement, ast.CreateFunctionStmt)
    ]


def function(name: str, schema: str = "public") -> Function:
    """Find the latest definition of a function."""
    *_, (_, latest) = (
        one for one in definitions() if dotted(one[1].funcname) == f"{schema}.{name}"
    )
    return latest


def options(definition: Function, name: str) -> list[Any]:
    return [option.arg for option in definition.options if option.defname == name]


def parameters(definition: Function, of_the_result: bool) -> dict[str, tuple[str, str | None]]:
    """Types and defaults by name, in order."""
    return {
        one.name: (RawStream()(one.argType), one.defexpr and RawStream()(one.defexpr))
        for one in definition.parameters or ()
        if (one.mode == FunctionParameterMode.FUNC_PARAM_TABLE) is of_the_result
    }


def body(definition: Function) -> str:
    # A do block keeps its text among its arguments.
    parts = getattr(definition, "options", None) or definition.args
    (text,) = (one for part in parts if part.defname == "as" for one in nodes(part, ast.String))
    return cast(str, text.sval)


def plpgsql(definition: Function) -> list[tuple[str, Any]]:
    """List the statements of a plpgsql body: their kinds, each with its own tree."""
    # The parser has no catalog: types from other schemas stand in its way.
    text = RawStream()(definition)
    text = re.sub(r"\bextensions\.(vector|sparsevec)\b", "text", text)
    text = re.sub(r"(?m)^(  \w+ (?:constant )?)knowledge_internal\.\w+\[\]", r"\1text[]", text)
    text = re.sub(r"(?m)^(  \w+ (?:constant )?)knowledge_internal\.\w+(?=;| :=)", r"\1record", text)
    text = re.sub(r"\bSETOF public\.\w+", "SETOF record", text, flags=re.IGNORECASE)

    def walk(tree: Any) -> Iterator[tuple[str, Any]]:
        for key, value in tree.items() if isinstance(tree, dict) else ():
            if key.startswith("PLpgSQL_"):
                yield key.removeprefix("PLpgSQL_"), value
            yield from walk(value)
        for item in tree if isinstance(tree, list) else ():
            yield from walk(item)

    return list(walk(parse_plpgsql(text)))


@cache
def retrieval() -> Query:
    """Return the query whose rows the RPC returns: the only one with CTEs.

    The other one calls common_search, which repeats parts of this one.
    """
    queries = [
        parse_sql(tree["query"]["PLpgSQL_expr"]["query"])[0].stmt
        for kind, tree in plpgsql(function(RPC))
        if kind == "stmt_return_query"
    ]
    (query,) = (one for one in queries if isinstance(one, ast.SelectStmt) and one.withClause)
    return query


def ctes() -> dict[str, Query]:
    return {cte.ctename: cte.ctequery for cte in retrieval().withClause.ctes}


def tables(root: Any) -> set[str]:
    return {node.relname for node in nodes(root, ast.RangeVar)}


def drawn_rows() -> Query:
    """Return the query of drawn_rows, the function by which the text leg finds its rows."""
    (query,) = re.findall(
        r"ids := array\((.+?)\n      \);",
        body(function("drawn_rows", "knowledge_internal")),
        re.DOTALL,
    )
    return parse_sql(query)[0].stmt


def lineage(name: str) -> tuple[Query, ...]:
    """Return a CTE with every CTE that it reads, directly or not, and the query of drawn_rows."""
    known = ctes()
    reached, ahead = {name}, [name]
    while ahead:
        new = (tables(known[ahead.pop()]) & known.keys()) - reached
        reached |= new
        ahead += new
    read = tuple(known[one] for one in known if one in reached)
    called = {dotted(call.funcname) for call in nodes(read, ast.FuncCall)}
    return (*read, drawn_rows()) if "knowledge_internal.drawn_rows" in called else read


def outputs(query: Query) -> set[str]:
    return {target.name or dotted(target.val.fields).split(".")[-1] for target in query.targetList}


def conjuncts(condition: Any) -> list[Any]:
    """Split a condition at its top-level ANDs."""
    if isinstance(condition, ast.BoolExpr) and condition.boolop == BoolExprType.AND_EXPR:
        return [part for arg in condition.args or () for part in conjuncts(arg)]
    return [condition]


def result_columns() -> dict[str, str]:
    """Types of the RPC's result by name, in order: the attributes of the type that it returns."""
    (returned,) = function(RPC).returnType.names[-1:]
    created: list[Any] = [
        statement
        for statement in parsed()["009_hybrid_search.sql"]
        if isinstance(statement, ast.CompositeTypeStmt)
    ]
    (composite,) = (one for one in created if one.typevar.relname == returned.sval)
    return {one.colname: RawStream()(one.typeName) for one in composite.coldeflist}


def derived_from(parameter: str) -> set[str]:
    """Return a parameter with the variables of the RPC that are computed from it."""
    names = {parameter}
    for kind, tree in plpgsql(function(RPC)):
        if kind == "stmt_assign":
            variable, expression = tree["expr"]["PLpgSQL_expr"]["query"].split(":=", 1)
            if columns_read(parse_sql(f"select {expression}")[0].stmt) & names:
                names.add(variable.strip())
    return names


def privileges(statements: Iterable[Any], name: str, granted: bool) -> set[str]:
    """Roles that these statements grant a function to, or revoke it from."""
    return {
        role.rolename or "public"
        for statement in nodes(tuple(statements), ast.GrantStmt)
        if statement.is_grant is granted
        if statement.objtype == ObjectType.OBJECT_FUNCTION
        if statement.targtype == GrantTargetType.ACL_TARGET_OBJECT
        if name in {dotted(target.objname) for target in statement.objects}
        for role in statement.grantees
    }


def words(sql: str) -> Iterator[str]:
    """Tokens in lower case, those inside of dollar quotes too, without comments."""
    for token in scan(sql):
        text = sql[token.start : token.end + 1]
        quoted = re.fullmatch(r"(\$\w*\$)(.*)\1", text, re.DOTALL)
        if quoted:
            yield from words(quoted[2])
        elif "COMMENT" not in token.name:
            yield text.lower()


PUBLIC_FUNCTIONS = sorted(
    {
        (file_name, dotted(definition.funcname))
        for file_name, definition in definitions()
        if dotted(definition.funcname).startswith("public.")
    }
)
per_public_function = pytest.mark.parametrize(("file_name", "name"), PUBLIC_FUNCTIONS)
per_function = pytest.mark.parametrize(
    "definition",
    [definition for _, definition in definitions()],
    ids=[dotted(definition.funcname) for _, definition in definitions()],
)
per_leg = pytest.mark.parametrize("leg", ["vector_results", "text_results"])


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
    distances = [node for sign, node in operators(lineage("vector_results")) if sign == "<=>"]
    assert distances
    # By the index, and then in full.
    assert {frozenset(columns_read(node)) for node in distances} == {
        frozenset({"indexed_embedding", "direction"}),
        frozenset({"embedding"}),
    }
    assert all(sign != "<=>" for sign, _ in operators(lineage("text_results")))


def test_text_cte_present() -> None:
    assert {"id", "text_rank", "text_score"} <= outputs(ctes()["text_results"])
    matches = [node for sign, node in operators(lineage("text_results")) if sign == "@@"]
    assert matches
    assert all("content_tsv" in columns_read(node.lexpr) for node in matches)
    assert all(sign != "@@" for sign, _ in operators(lineage("vector_results")))


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
        for query in nodes(lineage(leg), ast.SelectStmt)
        if any(
            isinstance(source, ast.RangeVar) and source.relname == "searchable_chunks"
            for source in query.fromClause or ()
        )
    ]
    assert reading
    for query in reading:
        conditions = [RawStream()(one) for one in conjuncts(query.whereClause)]
        assert "chunk.status = 'active'" in conditions


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


def limited(root: Any) -> list[Query]:
    """Queries whose rows a limit cuts; what only counts rows has no columns."""
    return [query for query in nodes(root, ast.SelectStmt) if query.limitCount and query.targetList]


@per_leg
def test_pool_size_parameter(leg: str) -> None:
    assert parameters(function(RPC), False)["pool_size"] == ("integer", "50")
    pool = derived_from("pool_size")
    limits = [query.limitCount for query in limited(lineage(leg))]
    assert limits
    # A field of the plan is computed from the pool, as the plan is.
    sources = [
        {dotted(one.fields).split(".")[0] for one in nodes(limit, ast.ColumnRef)}
        for limit in limits
    ]
    assert all(source & pool for source in sources)


def test_match_threshold_parameter() -> None:
    assert parameters(function(RPC), False)["match_threshold"] == ("double precision", "0.0")
    bounds = [
        condition
        for query in nodes(lineage("vector_results"), ast.SelectStmt)
        for condition in conjuncts(query.whereClause)
        if "match_threshold" in columns_read(condition)
    ]
    assert bounds
    assert [dotted(bound.name) for bound in bounds] == [">="] * len(bounds)
    assert "match_threshold" not in columns_read(lineage("text_results"))


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
    allowed = [
        tree["default_val"]["PLpgSQL_expr"]["query"]
        for kind, tree in plpgsql(function("check_search_arguments", "knowledge_internal"))
        if kind == "var" and tree["refname"] == "search_modes"
    ]
    assert mode in constants(parse_sql(f"select {allowed[0]}")[0].stmt)


def test_a_limit_stands_over_an_order_that_is_total() -> None:
    assert len(limited(retrieval())) >= 3
    for query in limited(retrieval()):
        keys = [key.node for key in query.sortClause or ()]
        by_index = len(keys) == 1 and any(sign == "<=>" for sign, _ in operators(keys[0]))
        assert by_index or columns_read(keys[-1]) == {"id"}, RawStream()(query)


def test_the_index_scan_stands_alone() -> None:
    scans = [
        query
        for query in limited(lineage("vector_results"))
        if isinstance(query.sortClause[0].node, ast.A_Expr)
        and dotted(query.sortClause[0].node.name).endswith("<=>")
    ]
    assert len(scans) == 1
    assert not list(nodes(scans[0], ast.WindowDef))
    assert "match_threshold" not in columns_read(scans[0])


@per_function
def test_every_function_pins_its_search_path(definition: Function) -> None:
    # Where pg_temp is not named it comes first, and a caller's temporary type stands in for uuid.
    paths = [one for one in options(definition, "set") if one.name == "search_path"]
    schemas = [value.val.sval for path in paths for value in path.args]
    assert schemas == ["pg_catalog", "pg_temp"]


@per_function
def test_a_function_states_its_properties_in_one_order(definition: Function) -> None:
    stated = [option.defname for option in definition.options if option.defname != "parallel"]
    expected = ["language", "volatility", "security", "set"]
    if definition.returnType and dotted(definition.returnType.names) == "trigger":
        expected.remove("volatility")
    assert stated[: len(expected)] == expected
    assert set(stated) <= {*expected, "as"}


@per_public_function
def test_a_public_function_is_revoked_and_granted_in_its_own_file(
    file_name: str, name: str
) -> None:
    statements = parsed()[file_name]
    assert privileges(statements, name, granted=False) >= {"public", "anon", "authenticated"}
    may_call = {"authenticated"} if "_my_" in name else {"service_role"}
    if name == "public.search_public_knowledge_chunks":
        may_call = set()
    assert privileges(statements, name, granted=True) == may_call


@pytest.mark.parametrize("file_name", sorted({file_name for file_name, _ in PUBLIC_FUNCTIONS}))
def test_a_file_with_public_functions_ends_by_telling_postgrest(file_name: str) -> None:
    last = parsed()[file_name][-1]
    assert RawStream()(last) == "NOTIFY pgrst, 'reload schema'"


@pytest.mark.parametrize(
    ("file_name", "name"), sorted((file, dotted(one.funcname)) for file, one in definitions())
)
def test_a_function_is_commented_in_its_own_file(file_name: str, name: str) -> None:
    commented = {
        dotted(one.object.objname)
        for one in nodes(parsed()[file_name], ast.CommentStmt)
        if one.objtype == ObjectType.OBJECT_FUNCTION and one.comment
    }
    assert name in commented


def test_one_place_names_the_dimension() -> None:
    sized = [
        (file_name, one.typmods[0].val.ival)
        for file_name, statements in parsed().items()
        for one in nodes(statements, ast.TypeName)
        if dotted(one.names).split(".")[-1] in {"vector", "halfvec"} and one.typmods
    ]
    assert sized == [("003_chunks.sql", 1024)]
    text = " ".join(word for one in migrations.find() for word in words(one.sql))
    assert re.findall(r"\b(?:vector|halfvec) \( (\d+) \)", text) == ["1024"]


@pytest.mark.parametrize("one", migrations.find(), ids=lambda one: one.file_name)
def test_a_file_starts_with_its_name_and_purpose(one: Migration) -> None:
    first, second, *_ = one.sql.splitlines()
    assert re.fullmatch(rf"-- {one.version}_{one.name}: \S.*\.", first)
    assert second.startswith("-- ")


NAMED_AT_RUN_TIME = {
    f"knowledge_internal.{name}"
    for name in (
        "adopted_rows",
        "carry_over_changes",
        "lock_source_rows",
        "adoption_keys",
        "adoption_left_over",
        "pending_next_chunks",
        "write_next_embeddings",
        "unwritten_texts",
        "physical_table",
        "has_matching_chunk",
        "compared_rows",
    )
}


@pytest.mark.parametrize(
    "definition",
    [
        statement
        for statements in parsed().values()
        for statement in statements
        if isinstance(statement, ast.CreateFunctionStmt | ast.DoStmt)
    ],
    ids=lambda one: dotted(one.funcname) if isinstance(one, ast.CreateFunctionStmt) else "do",
)
def test_no_sql_is_put_together_at_run_time(definition: Function) -> None:
    made_of = {"execute", "query_to_xml", "query_to_xml_and_xmlschema", "query_to_xmlschema"}
    name = dotted(definition.funcname) if isinstance(definition, ast.CreateFunctionStmt) else "do"
    if not made_of & set(words(body(definition))):
        return
    # The vector index's type needs its dimensions spelled out; no search comes by it.
    if "knowledge_internal.indexed_embedding" in body(definition):
        return
    # A project's table, and columns that exist only during a re-embedding, have no static SQL.
    # Their names are quoted by %I or come as a regclass; values are parameters of `using`. Two
    # functions leave out the conditions of absent filters (present_conditions).
    assert name in NAMED_AT_RUN_TIME
    assert "%L" not in body(definition)
    assert "using" in words(body(definition)) or name.endswith("carry_over_changes")


@per_function
def test_query_text_is_never_parsed_as_a_tsquery(definition: Function) -> None:
    assert "to_tsquery" not in set(words(body(definition)))


# The client, over a mock that stands for supabase-py; `test_supabase_http.py` has the real one.

ROW: dict[str, Any] = {
    "id": "6f0e4a52-3c0e-4a57-9f9b-0d8f1f7f0001",
    "content": "How to rotate the signing keys.",
    "knowledge_type": "playbook",
    "document_id": "6f0e4a52-3c0e-4a57-9f9b-0d8f1f7f0002",
    "chunk_index": 3,
    "source_origin": "notion",
    "metadata": {"team": "platform"},
    "rrf_score": 0.0325,
    "vector_rank": 1,
    "text_rank": 2,
    "similarity": 0.82,
    "text_score": 7.5,
    "match_type": "both",
    "matched_terms": ["rotate", "keys"],
    "title": "Keys",
    "source_url": "https://example.org/keys",
    "collection": "memory",
    "document_date": "2026-01-31",
    "snippet": "How to <mark>rotate</mark> the signing <mark>keys</mark>.",
    "context": "Before.\n[CHUNK BOUNDARY]\nHow to rotate the signing keys.",
    "total_count": 12,
}
SECRET = "sb_secret_hunter2hunter2"


def client_with(rows: object) -> MagicMock:
    client = MagicMock(name="supabase client")
    client.rpc.return_value.execute.return_value.data = rows
    client.rpc.return_value.execute.return_value.count = None
    return client


def failing_client(error: BaseException) -> MagicMock:
    client = MagicMock(name="supabase client")
    client.rpc.return_value.execute.side_effect = error
    return client


def sent(client: MagicMock) -> dict[str, Any]:
    client.rpc.assert_called_once()
    client.rpc.return_value.execute.assert_called_once_with()
    arguments = client.rpc.call_args.args[1]
    assert isinstance(arguments, dict)
    return arguments


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
        "total_count": 12,
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
def test_fulltext_search_saturates_the_rank(rank: object, confidence: float) -> None:
    client = client_with([{**ROW, "rank": rank}])
    (result,), details = SupabaseProvider(client=client).fulltext_search("x")
    assert result.confidence == confidence
    assert details["mode"] == "fulltext"


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
            "total_count": 12,
            "real_provider": True,
        },
    )


def test_a_leg_that_missed_the_row_leaves_its_rank_empty() -> None:
    row = {**ROW, "text_rank": None, "text_score": None, "match_type": "vector"}
    (result,), _ = SupabaseProvider(client=client_with([row])).hybrid_search([0.1], "x")
    assert result.metadata["text_rank"] is None
    assert result.metadata["text_score"] is None


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
        id="supa-hybrid-1",
        content="",
        source="supabase",
        confidence=0.0,
        metadata={
            "knowledge_type": "document",
            "document_id": None,
            "chunk_index": 0,
            "source_origin": "manual",
            "vector_rank": None,
            "text_rank": None,
            "rrf_score": None,
            "similarity": None,
            "text_score": None,
            "match_type": None,
            "matched_terms": [],
            "collections": [],
            "heading": None,
            "sensitivity": None,
            "external_key": None,
            "source_row": None,
            "is_chunk": True,
            "document_chunks": None,
            "collection": None,
            "document_date": None,
            "snippet": None,
            "context": None,
            "total_count": None,
            "real_provider": True,
        },
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
        ("vector_rank", "Infinity", None),
        ("matched_terms", "keys", []),
        ("matched_terms", None, []),
        ("total_count", "many", None),
        ("document_date", date(2026, 1, 31), "2026-01-31"),
        ("snippet", None, None),
    ],
)
def test_an_odd_column_is_normalized(column: str, value: object, normalized: object) -> None:
    client = client_with([{**ROW, column: value}])
    (result,), _ = SupabaseProvider(client=client).hybrid_search([0.1], "x")
    assert dict(result.metadata)[column] == normalized


def test_the_rows_own_metadata_does_not_pass_for_a_snippet() -> None:
    row = {**ROW, "snippet": None, "metadata": {"snippet": "<script>", "context": "private"}}
    (result,), _ = SupabaseProvider(client=client_with([row])).hybrid_search([0.1], "x")
    assert result.metadata["snippet"] is None
    assert result.metadata["context"] == ROW["context"]


@pytest.mark.parametrize("total", ["many", None, [1]])
def test_an_odd_total_is_none(total: object) -> None:
    client = client_with([{**ROW, "total_count": total}])
    assert SupabaseProvider(client=client).hybrid_search([0.1], "x")[1]["total_count"] is None


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
    results = normalize_rows(rows, method=method, source="supabase", limit=top_k)
    assert len(results) == min(len(rows), top_k)
    for result in results:
        assert 0 <= result.confidence <= 1
        assert isinstance(result.id, str)
        assert result.metadata["real_provider"] is True


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

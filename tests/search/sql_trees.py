"""The SQL of the migrations as syntax trees. What a function's body holds is parsed too."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import pytest
from pglast import ast, parse_plpgsql, parse_sql
from pglast.enums import BoolExprType, FunctionParameterMode
from pglast.parser import scan
from pglast.stream import RawStream

from second_brain.database import migrations

RPC = "hybrid_search_knowledge_chunks"
SEARCH = ("search", "knowledge_internal")
"""The function that searches for the RPC."""
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
    """Find the first definition of a function: core's, where a module replaces it."""
    return next(one for _, one in definitions() if dotted(one.funcname) == f"{schema}.{name}")


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
    if getattr(definition, "sql_body", None):  # return <expression>
        return RawStream()(definition.sql_body)
    # A do block keeps its text among its arguments.
    parts = getattr(definition, "options", None) or definition.args
    (text,) = (one for part in parts if part.defname == "as" for one in nodes(part, ast.String))
    return cast(str, text.sval)


def plpgsql(definition: Function) -> list[tuple[str, Any]]:
    """List the statements of a plpgsql body: their kinds, each with its own tree."""
    # The parser has no catalog: types from other schemas stand in its way.
    text = RawStream()(definition)
    text = re.sub(r"\bextensions\.(vector|sparsevec)\b", "text", text)
    text = re.sub(r"\bknowledge_internal\.\w+\[\]", "text[]", text)
    text = re.sub(r"(?m)^(  \w+ (?:constant )?)knowledge_internal\.\w+(?=;| :=)", r"\1record", text)
    # A parameter may not be a record.
    text = re.sub(r"\b(\w+ )knowledge_internal\.\w+(?=,|\))", r"\1text", text)
    text = re.sub(r"(?i)\breturns knowledge_internal\.\w+", "RETURNS text", text)
    text = re.sub(r"\bSETOF public\.\w+", "SETOF record", text, flags=re.IGNORECASE)

    def walk(tree: Any) -> Iterator[tuple[str, Any]]:
        for key, value in tree.items() if isinstance(tree, dict) else ():
            if key.startswith("PLpgSQL_"):
                yield key.removeprefix("PLpgSQL_"), value
            yield from walk(value)
        for item in tree if isinstance(tree, list) else ():
            yield from walk(item)

    return list(walk(parse_plpgsql(text)))


def retrieval() -> Query:
    """Return the only query of the search that fuses the legs."""
    (query,) = (
        query
        for kind, tree in plpgsql(function(*SEARCH))
        if kind == "stmt_execsql"
        for query in [tree["sqlstmt"]["PLpgSQL_expr"]["query"]]
        if "full outer join" in query
    )
    return parse_sql(query)[0].stmt


def ctes() -> dict[str, Query]:
    return {cte.ctename: cte.ctequery for cte in retrieval().withClause.ctes}


def tables(root: Any) -> set[str]:
    return {node.relname for node in nodes(root, ast.RangeVar)}


# The functions by whose statements each leg finds and rates its rows; compared_rows serves both.
LEGS = {
    "vector_results": ("nearest_rows", "rank_legs"),
    "text_results": ("candidate_rows", "worded_rows", "exact_scores"),
}
SHARED_BY_THE_LEGS = "compared_rows"
ROWS_IN_SCOPE = "chunk.status = 'active'"


def spelled(text: Any) -> str:
    """Return the statement that an expression makes, with every condition that it can have."""
    if isinstance(text, ast.A_Const):
        (constant,) = constants(text)
        return constant
    if isinstance(text, ast.A_Expr):
        assert dotted(text.name) == "||"
        return spelled(text.lexpr) + spelled(text.rexpr)
    if isinstance(text, ast.CaseExpr):
        first, *_ = nodes(text.args, ast.CaseWhen)
        return spelled(first.result)
    assert RawStream()(text).endswith(".matching")
    return ROWS_IN_SCOPE


@cache
def statements(name: str) -> tuple[Query, ...]:
    """Return the statements of a function: its queries, and those that it makes from text."""
    found = []
    for kind, tree in plpgsql(function(name, "knowledge_internal")):
        if kind == "stmt_execsql":
            found.append(tree["sqlstmt"]["PLpgSQL_expr"]["query"])
        made_of = tree.get("dynquery" if kind == "stmt_return_query" else "query")
        if kind in {"stmt_dynexecute", "stmt_return_query"} and made_of:
            made: Any = parse_sql("select " + made_of["PLpgSQL_expr"]["query"])[0].stmt
            values = [one["PLpgSQL_expr"]["query"] for one in tree["params"]]
            text = spelled(made.targetList[0].val)
            for number in range(len(values), 0, -1):
                text = text.replace(f"${number}", f"({values[number - 1]})")
            found.append(text)
    return tuple(parse_sql(query)[0].stmt for query in found)


def leg_statements(leg: str) -> tuple[Query, ...]:
    return tuple(one for name in (*LEGS[leg], SHARED_BY_THE_LEGS) for one in statements(name))


def conjuncts(condition: Any) -> list[Any]:
    """Split a condition at its top-level ANDs."""
    if isinstance(condition, ast.BoolExpr) and condition.boolop == BoolExprType.AND_EXPR:
        return [part for arg in condition.args or () for part in conjuncts(arg)]
    return [condition]


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
        # What a module replaces keeps core's grants and comment.
        if dotted(definition.funcname).startswith("public.") and not definition.replace
    }
)
per_leg = pytest.mark.parametrize("leg", ["vector_results", "text_results"])

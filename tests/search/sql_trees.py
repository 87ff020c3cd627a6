"""The SQL of the migrations as syntax trees. What a function's body holds is parsed too."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

from pglast import ast, parse_sql
from pglast.enums import FunctionParameterMode
from pglast.parser import scan
from pglast.stream import RawStream

from second_brain.database import migrations

RPC = "hybrid_search_knowledge_chunks"
# pglast's types say that any part of a node may be missing.
Function = Any


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

"""Write the SQL that repeats the arguments of the search: `python -m tools.variants [--check]`.

PostgREST calls a function by the names of its arguments, so each variant of the search has the list
in its own signature. The list has one home, hybrid_search_knowledge_chunks in
`supabase/schemas/09_hybrid_search.sql`; `tools/variants.sql` says what is made of it. The condition
for a row to match has its home there, too, and is copied to the function that counts these rows.
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pglast import ast, parse_sql
from pglast.enums import BoolExprType, FunctionParameterMode
from pglast.stream import RawStream

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "supabase" / "schemas" / "09_hybrid_search.sql"
TEMPLATE = ROOT / "tools" / "variants.sql"
WRITTEN = ROOT / "supabase" / "schemas" / "11_search_arguments.sql"
SEARCH = "hybrid_search_knowledge_chunks"

_COPY = re.compile(r'@copy "(.+?)" before "(.+?)"(?: with "(.+)" as "(.+)")?$')
_CONDITIONS = re.compile(r'@conditions "(.+?)" before "(.+?)"$')
_WHERE = re.compile(r'( +)@where "(.+?)" before "(.+?)"$')
# What the conditions are about, in a statement whose parameters are in this order.
_PARAMETERS = {"wanted": "($1)", "plan": "($2)", "viewer_id": "$3", "viewer_groups": "$4"}
_SELECTION = re.compile(r" +-- (except|only) (\w+(?:, \w+)*)$")


@dataclass(frozen=True)
class Argument:
    """An argument of the search as SQL writes it."""

    name: str
    type: str
    default: str


def arguments(sql: str) -> list[Argument]:
    """Read the arguments of the search, in order, from the file that creates it."""
    # pglast's types say that any part of a node may be missing.
    statements: list[Any] = [raw.stmt for raw in parse_sql(sql)]
    functions: list[Any] = [one for one in statements if isinstance(one, ast.CreateFunctionStmt)]
    (search,) = (one for one in functions if one.funcname[-1].sval == SEARCH)
    return [
        Argument(one.name, _written(one.argType), _written(one.defexpr))
        for one in search.parameters
        if one.mode != FunctionParameterMode.FUNC_PARAM_TABLE
    ]


def _written(node: Any) -> str:
    # Keywords in lower case, and no other words.
    return re.sub(r"'[^']*'|\b[A-Z]+\b", _lowered, RawStream()(node))


def _lowered(word: re.Match[str]) -> str:
    return word[0] if word[0].startswith("'") else word[0].lower()


def copied(sql: str, first: str, end: str) -> list[str]:
    """Return the lines from the one that begins with `first` to before the one with `end`."""
    lines = sql.splitlines()
    (begun,) = (place for place, line in enumerate(lines) if line.startswith(first))
    (ended,) = (place for place, line in enumerate(lines) if line.startswith(end))
    return lines[begun:ended]


def conditions(lines: list[str]) -> list[str]:
    """Return the arguments of a `concat_ws` with the conditions of the CTEs in the lines.

    Each is a text of SQL; of `wanted.x is null or ...` it is null where wanted.x is.
    """
    written = []
    for one in _conditions(lines):
        absent, *others = one.args if _is(one, BoolExprType.OR_EXPR) else (None, one)
        text = " or ".join(map(_written, others))
        for name, parameter in _PARAMETERS.items():
            text = re.sub(rf"\b{name}\b", parameter, text)
        text = f"({text})" if len(others) > 1 else text
        if absent is None:
            written += _literal(text, "    ", ",")
        else:
            written.append(f"    case when not ({_written(absent)}) then")
            written += [*_literal(text, "      "), "    end,"]
    return [*written[:-1], written[-1].removesuffix(",")]


def where(lines: list[str], indent: str) -> list[str]:
    """Return the conditions of the CTEs in the lines, each after `and`, for a filtered search.

    They are wrapped at spaces, so their literals have none.
    """
    written = []
    for one in _conditions(lines):
        text = _written(one)
        text = f"({text})" if _is(one, BoolExprType.OR_EXPR) else text
        written += textwrap.wrap(
            f"and {text}",
            width=100,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return written


def _conditions(lines: list[str]) -> Iterator[Any]:
    """Yield the conditions of the CTEs in the lines."""
    ctes = "\n".join(lines).rstrip().removesuffix(",")
    query: Any = parse_sql(f"with {ctes} select")[0].stmt
    for cte in query.withClause.ctes:
        yield from _parts(cte.ctequery.whereClause)


def _is(node: Any, operation: BoolExprType) -> bool:
    return isinstance(node, ast.BoolExpr) and node.boolop == operation


def _parts(condition: Any) -> Iterator[Any]:
    """Yield what must hold, and of `not plan.is_filtered or ...` what must hold then."""
    if _is(condition, BoolExprType.AND_EXPR):
        for part in condition.args:
            yield from _parts(part)
    elif _is(condition, BoolExprType.OR_EXPR) and _is(condition.args[0], BoolExprType.NOT_EXPR):
        yield from _parts(condition.args[1])
    else:
        yield condition


def _literal(text: str, indent: str, end: str = "") -> list[str]:
    """Return the lines of a literal, which SQL puts together."""
    words = textwrap.wrap(text.replace("'", "''"), 84 - len(indent), break_long_words=False)
    return [
        f"{indent}'{line}{' ' if place < len(words) else ''}'{end if place == len(words) else ''}"
        for place, line in enumerate(words, start=1)
    ]


def fill(template: str, of: list[Argument], sql: str = "") -> str:
    """Repeat each line that has @name for every argument, and copy lines of the search's `sql`.

    `with "A" as "B"` at the end of a copy writes B for A in the lines.
    `-- except NAME, NAME` at its end leaves arguments out, and `-- only NAME, NAME` all others.
    Before a line that closes a parenthesis the last repetition has no comma. `@conditions` writes
    the conditions of copied CTEs as texts, and `@where` as the end of a `where` clause.
    """
    filled: list[str] = []
    lines = template.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        copy = _COPY.match(line)
        if copy is not None:
            filled += (
                one.replace(copy[3], copy[4]) if copy[3] else one
                for one in copied(sql, copy[1], copy[2])
            )
            continue
        listed = _CONDITIONS.match(line)
        if listed is not None:
            filled += conditions(copied(sql, listed[1], listed[2]))
            continue
        clause = _WHERE.match(line)
        if clause is not None:
            filled += where(copied(sql, clause[2], clause[3]), clause[1])
            continue
        if "@name" not in line:
            filled.append(line)
            continue
        selection = _SELECTION.search(line)
        repeated = [
            _SELECTION.sub("", line)
            .replace("@name", one.name)
            .replace("@type", one.type)
            .replace("@default", one.default)
            for one in of
            if selection is None
            or (one.name in selection[2].split(", ")) is (selection[1] == "only")
        ]
        if following.lstrip().startswith(")"):
            repeated[-1] = repeated[-1].removesuffix(",")
        filled += repeated
    return "\n".join(filled) + "\n"


def main() -> int:
    """Write the file, or say whether it is current."""
    sql = SOURCE.read_text("utf-8")
    text = fill(TEMPLATE.read_text("utf-8"), arguments(sql), sql)
    if "--check" not in sys.argv[1:]:
        WRITTEN.write_text(text, "utf-8")
    elif not WRITTEN.exists() or WRITTEN.read_text("utf-8") != text:
        sys.stderr.write(f"{WRITTEN.relative_to(ROOT)} is not current, run: make variants\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

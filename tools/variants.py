"""Write the SQL that repeats the arguments of the search: `python -m tools.variants [--check]`.

PostgREST calls a function by the names of its arguments, so each variant of the search has the list
in its own signature. The list has one home, hybrid_search_knowledge_chunks in
`supabase/schemas/09_hybrid_search.sql`; `tools/variants.sql` says what is made of it. The condition
for a row to match has its home there, too, and is copied to the function that counts these rows.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pglast import ast, parse_sql
from pglast.enums import FunctionParameterMode
from pglast.stream import RawStream

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "supabase" / "schemas" / "09_hybrid_search.sql"
TEMPLATE = ROOT / "tools" / "variants.sql"
WRITTEN = ROOT / "supabase" / "schemas" / "11_search_arguments.sql"
SEARCH = "hybrid_search_knowledge_chunks"

_COPY = re.compile(r'@copy "(.+?)" before "(.+?)"(?: with "(.+)" as "(.+)")?$')
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
    text = RawStream()(node)
    return text.lower() if text in {"NULL", "TRUE", "FALSE"} else text


def copied(sql: str, first: str, end: str) -> list[str]:
    """Return the lines from the one that begins with `first` to before the one with `end`."""
    lines = sql.splitlines()
    (begun,) = (place for place, line in enumerate(lines) if line.startswith(first))
    (ended,) = (place for place, line in enumerate(lines) if line.startswith(end))
    return lines[begun:ended]


def fill(template: str, of: list[Argument], sql: str = "") -> str:
    """Repeat each line that has @name for every argument, and copy lines of the search's `sql`.

    `with "A" as "B"` at the end of a copy writes B for A in the lines.
    `-- except NAME, NAME` at its end leaves arguments out, and `-- only NAME, NAME` all others.
    Before a line that closes a parenthesis the last repetition has no comma.
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

"""Write the lists of the SQL where Python reads them; `make baseline` calls it.

TypeScript has them in contract.ts, which tools/contract.py makes from Python's.
"""

from collections.abc import Iterable
from pathlib import Path

import psycopg

FILE = Path(__file__).parents[1] / "backend" / "src" / "second_brain" / "lists.py"
HEAD = '''"""The lists that the SQL has. Written by tools/lists.py: make baseline."""

from collections.abc import Mapping
from typing import Literal

'''


def text(connection: psycopg.Connection) -> str:
    """Return the module for an installed database."""
    fusions, columns = connection.execute(
        "select knowledge_internal.fusions(),"
        " array(select jsonb_object_keys(knowledge_internal.filter_columns()) order by 1)"
    ).fetchall()[0]
    takes, kinds = dict[str, str](), dict[str, list[str]]()
    for op, of_kinds, value in connection.execute(
        "select op, kinds, takes from knowledge_internal.filter_operators() where kinds <> '{}'"
    ).fetchall():
        takes[op] = f'"{op}": "{value}"'
        kinds.setdefault(op, []).extend(of_kinds)
    listed = (
        f'"{op}": ({", ".join(map(_name, all_))}{"," if len(all_) == 1 else ""})'
        for op, all_ in kinds.items()
    )
    parts = [
        f"Fusion = Literal[{_lines(map(_name, fusions))}]\n"
        '"""How both legs are fused; a search that names none uses that stored for the corpus, '
        'else\n`rrf`."""\n',
        f"COLUMNS = ({_lines(map(_name, columns))})\n"
        '"""The fields that a condition of a filter can name beside metadata."""\n',
        f"Operator = Literal[{_lines(map(_name, takes))}]\n"
        '"""How a condition compares: `KINDS` has the fields that take each."""\n',
        f"TAKES: Mapping[Operator, str] = {{{_lines(takes.values())}}}\n"
        '"""What the value of a condition is."""\n',
        f"KINDS: Mapping[Operator, tuple[str, ...]] = {{{_lines(listed)}}}\n"
        '"""The kinds of fields; json is a key of metadata, metadata the whole, words the text."""'
        "\n",
    ]
    return HEAD + "\n".join(parts)


def _name(name: str) -> str:
    return f'"{name}"'


def _lines(elements: Iterable[str]) -> str:
    return "\n" + "".join(f"    {one},\n" for one in elements)


def write(dsn: str) -> None:
    """Write the module for an installed database."""
    with psycopg.connect(dsn) as connection:
        FILE.write_text(text(connection), "utf-8")

"""What the SQL lists, fusions and operators of filters, is the same everywhere.

Python's lists are written from the SQL; TypeScript's and the tools of models are written from
Python's, which tests/supabase/test_frontend.py compares.
"""

import re
from collections import Counter
from pathlib import Path

from conftest import Connection
from second_brain.lists import KINDS, TAKES
from second_brain.services.arguments import FUSIONS
from tools import lists

DOCS = Path(__file__).parents[2] / "docs"
# The columns of the table in docs/filters.md, by the kinds that a yes stands for.
COLUMNS = ({"text", "uuid"}, {"integer", "date", "timestamp"}, {"json"})


def test_python_has_the_lists_of_the_sql(database: Connection) -> None:
    assert lists.FILE.read_text("utf-8") == lists.text(database)


def test_an_operator_has_one_row_for_each_kind(database: Connection) -> None:
    rows = database.execute(
        "select op, kind from knowledge_internal.filter_operators(), unnest(kinds) as kind"
    ).fetchall()
    assert max(Counter(rows).values()) == 1


def test_the_page_of_filters_has_every_operator_with_its_kinds() -> None:
    page = (DOCS / "filters.md").read_text("utf-8").partition("## Operators\n")[2]
    written: dict[str, list[str]] = {}
    for line in re.findall(r"^\| (`.*) \|$", page.partition("\n## ")[0], re.MULTILINE):
        ops, _, *cells = line.split(" | ")[:5]
        written |= dict.fromkeys(re.findall(r"`(\w+)`", ops), cells)
    sentence = re.search(r"\n\n(.*) are for \[`text`\]", page)
    assert sentence is not None
    of_text = re.findall(r"`(\w+)`", sentence[1])
    assert of_text == [op for op, kinds in KINDS.items() if kinds == ("words",)]
    assert {*written} == TAKES.keys() - {*of_text}
    for op, taking in KINDS.items():
        cells = [
            "yes" if kinds <= {*taking} else ", ".join(sorted(kinds & {*taking})) or "no"
            for kinds in COLUMNS
        ]
        assert written.get(op, cells) == cells, op


def test_the_page_of_ranking_has_a_row_for_each_fusion() -> None:
    page = (DOCS / "ranking.md").read_text("utf-8").partition("## Fusion\n")[2]
    table = page.partition("\n#")[0]
    assert {*re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)} == {*FUSIONS}

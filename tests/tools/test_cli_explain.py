"""What `second-brain search` tells of a search: `--explain` and `--estimate`."""

import json
import re

import pytest
from test_cli_knowledge import zoo

from command_line import Run
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn

__all__ = ["zoo"]  # a fixture

pytestmark = pytest.mark.module("insight")


def test_an_explanation_reads_by_itself(zoo: Run) -> None:
    done = zoo(
        "search", "zebra quagga", "--mode", "text", "--explain", "--include-memory", "--limit", "2"
    )
    assert (done.code, done.err.count("\n")) == (0, 1)
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0] == "vector leg not run"
    assert re.fullmatch(r"text leg .*; 4 rows for a pool of 50 in each list, [0-9.]+ ms", lines[1])
    assert lines[2].startswith("fewer rows than the pool: fewer rows")
    assert lines[3] == "4 candidates of 5 chunks, 4 words on average"
    assert re.fullmatch(r"fusion auto, weights: vector 1\.000, text 1\.000", lines[4])
    assert re.fullmatch(r"whole call [0-9.]+ ms", lines[5])
    # Before them, the lists of memory and of all others.
    start = lines.index("lexeme documents weight candidates")
    table, hits = lines[start : start + 3], lines[start + 4 :]
    assert table[0] == "lexeme documents weight candidates"
    assert re.fullmatch(r"quagga 0 [0-9.]+ used", table[1])
    assert re.fullmatch(r"zebra 4 [0-9.]+ used", table[2])
    assert hits[0] == "# title and chunk vector cosine text BM25 score matched"
    assert re.fullmatch(r"1 \w+, chunk \d - - [12] [0-9.]+ 1\.0150 zebra", hits[1])
    assert len(hits) == 3
    assert max(map(len, done.out.splitlines())) <= 100


def test_the_candidates_grow_with_the_hits_as_in_the_service(zoo: Run) -> None:
    asked = ("search", "zebra", "--mode", "text", "--explain")
    assert "for a pool of 120" in zoo(*asked, "--limit", "40").out
    assert "for a pool of 80" in zoo(*asked, "--pool-size", "80").out


def test_an_explanation_tells_of_both_legs(brain: Run) -> None:
    brain("ingest", "docs")
    done = brain("search", "yellow bananas", "--explain", "--include-memory")
    assert re.search(r"^vector leg +compared: few rows; 3 rows for a pool of 50", done.out)
    assert re.search(r"^1 +Fruit, chunk 0 +1 +0\.\d{3} +1 +\d\.\d{3} +[1-9]\.\d{4}", done.out, re.M)


@pytest.mark.parametrize(
    ("question", "told"),
    [("unicorn", "text leg .* 0 rows for a pool of 50"), ('"---"', "text leg +not run")],
)
def test_an_explanation_of_nothing_says_so(zoo: Run, question: str, told: str) -> None:
    done = zoo("search", question, "--mode", "text", "--explain")
    assert done.code == 0, done.err
    assert "Nothing found. " in done.out
    assert re.search(told, done.out, re.MULTILINE)


def test_an_estimate_has_a_line_for_each_leg_and_no_hits(zoo: Run) -> None:
    options = ["zebra", "--mode", "text", "--estimate", "--include-memory"]
    done = zoo("search", *options)
    assert done.code == 0, done.err
    time, rows, vector, text = done.out.splitlines()
    assert re.fullmatch(r"about \d+\.\d ms in the database", time)
    assert re.fullmatch(r"about \d+ of \d+ chunks pass the filters", rows)
    assert vector == "vector leg: not run"
    assert re.fullmatch(r"text leg: all rows, about \d+ rows?, \d+\.\d ms", text)
    told = json.loads(zoo("search", *options, "--json").out)
    assert told["estimate"]["vector"] == {"strategy": "not run", "rows": 0, "milliseconds": None}


def test_an_explanation_of_several_collections_has_all_lists(zoo: Run) -> None:
    options = ["--collection", "archive", "--collection", "knowledge", "--mode", "text"]
    lines = [
        " ".join(line.split())
        for line in zoo("search", "zebra", "--explain", *options).out.splitlines()
    ]
    assert "4 rows for a pool of 50 in each list" in lines[1]
    assert lines[4] == "fusion auto, weights: vector 1.000, text 1.000"
    assert lines[7] == "collection vector leg text leg vector weight text weight"
    listed = {line.split()[0]: line for line in lines[8:10]}
    assert listed["archive"].startswith("archive 0, not run 1, ")
    assert listed["knowledge"].startswith("knowledge 0, not run 3, ")
    told = json.loads(zoo("search", "zebra", "--explain", "--json", *options).out)
    assert told["question"] == "zebra"
    assert len(told["explanation"]["hits"]) == 4

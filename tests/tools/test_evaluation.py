"""eval and tune on the folder of a collection, and stored settings, as typed."""

import json
import math
import re
import secrets
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from fruit import HOSTILE, fruit
from psycopg import sql
from psycopg.conninfo import make_conninfo

from command_line import Done, Run
from conftest import Server

__all__ = ["fruit"]  # a fixture


@pytest.fixture
def on_server(run: Run, fruit: Path, server: Server) -> Iterator[Run]:
    """Run a command on the fruit, in a scratch database of the run's server; none may stay."""

    def run_command(group: str, command: str, *arguments: str) -> Done:
        return run(
            *(group, command, "fruit", "--dsn", server.admin_dsn()),
            *("--doc-embeddings", "docs.npy", "--query-embeddings", "queries.npy"),
            *arguments,
        )

    with psycopg.connect(server.admin_dsn(), autocommit=True) as connection:
        # Another worker's scratch database would be taken for one that stayed.
        connection.execute("select pg_advisory_lock(hashtext('evaluation tests'))")
        yield run_command
        assert scratch_databases(server) == []


def scratch_databases(server: Server) -> list[Any]:
    with psycopg.connect(server.admin_dsn(), autocommit=True) as connection:
        return connection.execute(
            "select datname from pg_database where datname like 'second_brain_evaluation_%'"
        ).fetchall()


def legs(done: Done) -> dict[str, dict[str, float]]:
    assert done.code == 0, done.err
    found: dict[str, dict[str, float]] = json.loads(done.out)["modes"]
    return found


def test_eval_measures_each_leg_and_hybrid(on_server: Run) -> None:
    done = on_server("corpus", "eval", "--json")
    found = legs(done)
    second = 1 / math.log2(3)
    assert found["vector"]["nDCG@10"] == pytest.approx((second + 1) / 2)
    assert found["vector"]["MRR@10"] == 0.75
    assert found["text"]["nDCG@10"] == 0.5
    assert found["hybrid"]["nDCG@10"] == found["hybrid"]["Recall@100"] == 1
    assert [found[leg]["empty_answers"] for leg in found] == [0, 1, 0]
    assert all(0 < found[leg]["p50_ms"] <= found[leg]["p95_ms"] for leg in found)
    report = json.loads(done.out)
    assert (report["reference"], report["dimensions"]) == ("hybrid", 3)
    gain = report["modes"]["text"]["gain"]
    assert (gain["mean"], gain["p_value"], gain["significant"]) == (-0.5, 1, False)
    found_by = {"both": 1, "vector": 1, "text": 0, "neither": 0}
    assert report["relevant_found_by"]["first_10"] == found_by
    asked = {"query": "q2", "question": "automobile", "vector": 1, "text": 0, "hybrid": 1}
    assert report["per_query"][1] == asked


@pytest.mark.slow
def test_eval_passes_the_arguments_of_hybrid_on(on_server: Run) -> None:
    found = legs(on_server("corpus", "eval", "--json", "--weights", "0", "1", "--pool-size", "3"))
    assert found["hybrid"]["nDCG@10"] == found["text"]["nDCG@10"] == 0.5
    assert found["vector"]["Recall@100"] == 1
    found = legs(on_server("corpus", "eval", "--json", "--search-mode", "phrase"))
    assert found["text"]["empty_answers"] == 2


def test_eval_prints_a_table_and_what_the_gain_is_worth(
    on_server: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It stands for a model that is not here.
    monkeypatch.setattr(
        "second_brain.evaluation.commands.evaluation.load_reranker",
        lambda _name: lambda _query, texts: [float("grow" in text) for text in texts],
    )
    done = on_server("corpus", "eval", "--max-queries", "1", "--reranker", "ours")
    assert done.code == 0, done.err
    assert "rerank against hybrid: " in done.out
    assert "3 documents, 1 queries" in done.out
    assert "hybrid against vector: +" in done.out
    assert "not significant" in done.out
    assert "Loading 3 documents" in done.err


def test_the_gate_fails_below_a_floor_or_the_baseline_and_refuses_another_corpus(
    on_server: Run, fruit: Path
) -> None:
    stored = fruit.parent / "before.json"
    stored.write_text(on_server("corpus", "eval", "--json").out)
    gate = ("corpus", "eval", "--baseline", str(stored))
    done = on_server(*gate, "--fail-under", "nDCG@10=1", "--tolerance", "0")
    assert (done.code, "fell" in done.out) == (0, False), done.err
    # The text leg alone does not find q2.
    worse = ("--weights", "0", "1")
    done = on_server(*gate, *worse, "--tolerance", ".4", "--fail-under", "MRR@10=.6")
    assert done.code == 1
    assert re.search(r"automobile +1.000 +0.000", done.out)
    assert "Failed: nDCG@10 is 0.500, 0.500 below the baseline's 1.000" in done.out
    assert "Failed: MRR@10 is 0.500, below 0.6" in done.out
    done = on_server(*gate, *worse, "--tolerance", ".5", "--json")
    assert (done.code, "automobile" in done.err) == (0, True)
    assert json.loads(done.out)["fingerprint"]
    done = on_server(*gate, "--fail-under", "MAP=.6")
    assert (done.code, "measures: nDCG@10, Recall@100" in done.err) == (2, True)
    with (fruit / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "pears", "title": "", "text": "They are green."}\n')
    np.save(fruit.parent / "docs.npy", np.eye(4, 3, dtype=np.float16))
    done = on_server(*gate)
    assert (done.code, "is of another corpus" in done.err) == (1, True)


@pytest.mark.slow
def test_eval_starts_a_server_of_its_own_and_embeds_by_itself(
    run: Run, fruit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest's folders are closed to the account that the server runs as under root.
    with tempfile.TemporaryDirectory(prefix="second-brain-test-") as scratch:
        Path(scratch).chmod(0o755)
        monkeypatch.setattr("tempfile.tempdir", scratch)
        found = legs(run("corpus", "eval", "fruit", "--json"))
        assert list(Path(scratch).iterdir()) == []
    assert found["text"]["nDCG@10"] == 0.5
    assert found["vector"]["Recall@100"] == 1


def test_a_role_that_may_not_make_a_database_is_told_what_to_do(
    run: Run, fruit: Path, server: Server
) -> None:
    role = f"second_brain_evaluator_{secrets.token_hex(4)}"
    with psycopg.connect(server.admin_dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("create role {} login password 'x'").format(sql.Identifier(role)))
        try:
            dsn = make_conninfo(server.admin, user=role, password="x")
            done = run("corpus", "eval", "fruit", "--dsn", dsn)
        finally:
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
    assert done.code == 1
    assert "may not create a scratch database" in done.err
    assert "omit --dsn" in done.err


@pytest.mark.parametrize(
    ("command", "options", "code", "told"),
    [
        ("eval", ("--reranker", "nonsense"), 1, "unknown reranker 'nonsense'"),
        ("eval", ("--doc-embeddings", "docs.npy"), 2, "or neither"),
        ("eval", ("--html", "missing/report.html"), 2, "--html"),
        ("tune", ("--collection", "fruit"), 2, "--collection needs --apply"),
        ("tune", ("--target", "postgresql:///x"), 2, "--target needs --apply"),
        ("eval", ("--tolerance", "0"), 2, "--tolerance needs --baseline"),
        ("eval", ("--max-chunks", "9"), 2, "--max-chunks needs --compare-embedder"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(
    run: Run, fruit: Path, command: str, options: tuple[str, ...], code: int, told: str
) -> None:
    done = run("corpus", command, "fruit", *options)
    assert (done.code, told in done.err, "Loading" in done.err) == (code, True, False)


def test_without_the_extra_the_error_names_it(
    run: Run, fruit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    done = run("corpus", "eval", "fruit")
    assert done.code == 1
    assert "second-brain[evaluation]" in done.err


class Page(HTMLParser):
    """What a report holds: its tags, attributes and text; every tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, list[str]] = {}
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_the_report_loads_nothing_and_escapes_what_it_shows(on_server: Run, tmp_path: Path) -> None:
    # Alone, so that it is among the worst and its hits are explained.
    done = on_server("corpus", "eval", "--html", "report.html", "--weights", "1", "0")
    assert done.code == 0, done.err
    text = (tmp_path / "report.html").read_text("utf-8")
    page = Page(text)
    assert not page.tags & {"script", "img", "link", "iframe", "object", "use", "a"}
    assert not page.attributes.keys() & {"src", "href", "srcset"}
    assert not [name for name in page.attributes if name.startswith("on")]
    assert not [outside for outside in ("http", "//", "@import", "url(") if outside in text.lower()]
    # The query, a hit's title, and a bar's tooltip.
    assert page.text.count(HOSTILE) >= 3


def test_settings_are_set_shown_and_reset(run: Run, dsn: str) -> None:
    given = ("--dsn", dsn)
    assert "Nothing is stored" in run("corpus", "settings", "show", *given).out
    done = run("corpus", "settings", "set", "--fusion", "rrf", "--vector-weight", "0.5", *given)
    assert done.code == 0, done.err
    run("corpus", "settings", "set", "--collection", "memory", "--text-weight", "2", *given)
    assert run("corpus", "settings", "show", *given).out.splitlines() == [
        "all other collections: fusion rrf, vector weight 0.5, text weight 1",
        "collection 'memory': fusion not stored, vector weight 1, text weight 2",
    ]
    assert run("corpus", "settings", "reset", "--collection", "memory", *given).out == "Removed.\n"
    again = run("corpus", "settings", "reset", "--collection", "memory", *given)
    assert again.out == "There are no such settings.\n"
    refused = run("corpus", "settings", "set", "--vector-weight", "0", "--text-weight", "0", *given)
    assert refused.code == 1
    assert "both 0" in refused.err

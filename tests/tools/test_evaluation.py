"""eval and tune on the folder of a collection, and stored settings, as typed."""

import json
import math
import secrets
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fruit import HOSTILE, fruit
from psycopg import sql
from psycopg.conninfo import make_conninfo

from command_line import Done, Run
from conftest import Server
from second_brain.evaluation.tuning import Tuning
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter

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
    assert report["relevant_found_by"]["first_10"] == {
        "both": 1,
        "vector": 1,
        "text": 0,
        "neither": 0,
    }
    assert report["per_query"][1] == {
        "query": "q2",
        "question": "automobile",
        "vector": 1,
        "text": 0,
        "hybrid": 1,
    }


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


@pytest.mark.slow
def test_eval_measures_reranking_beside_the_others(
    on_server: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[str, Sequence[str]]] = []

    def shortest_last(query: str, texts: Sequence[str]) -> list[float]:
        calls.append((query, texts))
        return [-1.0 if text == "They need fuel." else 0.0 for text in texts]

    # It stands for a model that is not here.
    commands = "second_brain.evaluation.commands.evaluation"
    monkeypatch.setattr(f"{commands}.load_reranker", lambda _name: shortest_last)
    done = on_server(
        "corpus", "eval", "--json", "--reranker", "ours", "--html", str(tmp_path / "page.html")
    )
    found = legs(done)
    assert list(found) == ["vector", "text", "hybrid", "rerank"]
    # It puts the only relevant document of q2 behind the two others.
    assert found["rerank"]["nDCG@10"] == pytest.approx((1 + 1 / math.log2(4)) / 2)
    assert found["rerank"]["Recall@100"] == 1
    assert 0 < found["rerank"]["p50_ms"] <= found["rerank"]["p95_ms"]
    told = json.loads(done.out)
    assert told["reranker"] == "ours"
    assert told["modes"]["rerank"]["gain"]["mean"] == pytest.approx((1 / math.log2(4) - 1) / 2)
    assert told["per_query"][1]["rerank"] == pytest.approx(1 / math.log2(4))
    # The first query twice, because it loads the model too.
    assert [query for query, _ in calls] == [calls[0][0], calls[0][0], "automobile"]
    assert "ordered by ours" in (tmp_path / "page.html").read_text("utf-8")


def test_an_unknown_reranker_is_refused_before_anything_runs(run: Run, fruit: Path) -> None:
    done = run("corpus", "eval", "fruit", "--reranker", "nonsense")
    assert done.code == 1
    assert "unknown reranker 'nonsense'" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--weights", "0", "0"], "vector_weight and text_weight are both 0"),
        (["--fusion", "nonsense"], "fusion must be one of"),
    ],
)
def test_an_argument_that_the_search_refuses_is_named_and_nothing_stays(
    on_server: Run, options: list[str], told: str
) -> None:
    done = on_server("corpus", "eval", *options)
    assert (done.code, told in done.err) == (1, True)


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


def test_one_kind_of_embeddings_needs_the_other(run: Run, fruit: Path) -> None:
    done = run("corpus", "eval", "fruit", "--doc-embeddings", "docs.npy")
    assert done.code == 2
    assert "or neither" in done.err


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
        """Note an opening tag."""
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that closes itself."""
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost tag."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collect text."""
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


@pytest.mark.slow
def test_the_report_draws_every_figure(on_server: Run, tmp_path: Path) -> None:
    assert on_server("corpus", "eval", "--html", "report.html").code == 0
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    # Gains against each leg, and the latency of each search.
    assert len(page.attributes["aria-label"]) == 2 + 3
    assert "hybrid against text: +0.500 nDCG@10" in page.text
    assert "q2: +1.000 (text 0.000, hybrid 1.000)\nautomobile" in page.text
    assert "50 %" in page.text


def test_a_report_into_a_missing_folder_is_refused_before_anything_runs(
    run: Run, fruit: Path
) -> None:
    done = run("corpus", "eval", "fruit", "--html", "missing/report.html")
    assert done.code == 2
    assert "Loading" not in done.err


@pytest.mark.slow
def test_tune_recommends_and_stores_nothing_that_is_not_better(on_server: Run, dsn: str) -> None:
    done = on_server("corpus", "tune", "--apply", "--target", dsn)
    assert done.code == 0, done.err
    assert "Not stored: the defaults are the best." in done.out
    assert "2 of 20 judged questions: a fit to so few gains nothing" in done.out


@pytest.mark.slow
def test_tune_reports_its_grid_and_the_legs(on_server: Run) -> None:
    done = on_server("corpus", "tune", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["in_use"] == 1
    assert found["best"] == {"arguments": {}, "nDCG@10": 1}
    assert (found["gain"], found["is_better"], found["has_enough"]) == (0, False, False)
    assert (found["gains"], found["loses"]) == ([], [])
    # The other leg decides between equal hits, and answers the question without known words.
    assert found["vector"] == found["text"] == 1
    assert found["grid"][0] == {"arguments": {}, "nDCG@10": 1}
    assert len(found["grid"]) == 12


def test_tune_stores_what_is_better_and_searches_change(
    on_server: Run, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = CorpusSettings(fusion="relative_score", vector_weight=0.4, text_weight=1.6)
    # Two queries are too few.
    monkeypatch.setattr(Tuning, "storable", property(lambda _: best))
    with psycopg.connect(dsn, autocommit=True) as connection:
        KnowledgeWriter(connection).set_settings(
            CorpusSettings(collection="fruit", embedding_model="one")
        )
        done = on_server("corpus", "tune", "--apply", "--collection", "fruit", "--target", dsn)
        assert done.code == 0, done.err
        assert "Stored for collection 'fruit': fusion relative_score" in done.out
        connection.execute(
            "insert into public.knowledge_chunks (content, collection, embedding)"
            " values ('apple', 'fruit', '[1,0,0]')"
        )
        provider = PostgresProvider(connection)
        hits, _ = provider.find([1, 0, 0], "apple", collections=["fruit"])
        assert hits[0].metadata["rrf_score"] == pytest.approx(2)
        # A fusion that the caller gives is the caller's alone.
        hits, _ = provider.find([1, 0, 0], "apple", collections=["fruit"], fusion="rrf")
        assert hits[0].metadata["rrf_score"] == pytest.approx(2 / 61)
        (stored,) = KnowledgeWriter(connection).settings()
        assert stored.arguments() == best.arguments() | {
            "collection": "fruit",
            "embedding_model": "one",
        }
        assert stored.changes[0] == "the corpus had 0 chunks and has 1"


def test_a_collection_without_apply_is_refused(run: Run, fruit: Path) -> None:
    done = run("corpus", "tune", "fruit", "--collection", "fruit")
    assert done.code == 2
    assert "--collection needs --apply" in done.err


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

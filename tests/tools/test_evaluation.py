"""Evaluation: collections, measures, the significance test, and eval and tune as typed."""

import gzip
import json
import math
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import make_conninfo

from conftest import Server
from second_brain.cli import main
from second_brain.evaluation import collection as collections
from second_brain.evaluation.collection import CollectionError, Query, Questions
from second_brain.evaluation.metrics import PERMUTATIONS, compare, judge
from second_brain.evaluation.runs import DEFAULT, Settings
from second_brain.evaluation.tuning import Tuning, choose, grid
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter

HOSTILE = "<img src=x onerror=alert(1)>\"'&<script>alert(2)</script>"


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `second-brain` in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["second-brain", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return run_command


@pytest.fixture
def fruit(tmp_path: Path) -> Path:
    """A collection where text answers q1, vector q2, hybrid both, and nothing is relevant to q3.

    q1's word is in bananas alone while its embedding is as near to apples, which come first; q2's
    word is in no document.
    """
    folder = tmp_path / "fruit"
    folder.mkdir()
    write_lines(
        folder / "corpus.jsonl",
        [
            {"_id": "apples", "title": "Apples", "text": "They grow on trees."},
            {"_id": "bananas", "title": HOSTILE, "text": "Long and yellow."},
            {"_id": "cars", "title": "", "text": "They need fuel."},
        ],
    )
    write_lines(
        folder / "queries.jsonl",
        [
            {"_id": "q1", "text": f"yellow {HOSTILE}"},
            {"_id": "q2", "text": "automobile"},
            {"_id": "q3", "text": "nothing"},
        ],
    )
    (folder / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq1\tbananas\t1\nq1\tapples\t0\nq2\tcars\t2\nq3\tcars\t0\n"
    )
    np.save(tmp_path / "docs.npy", np.eye(3, dtype=np.float16))
    np.save(tmp_path / "queries.npy", np.array([[0.7, 0.7, 0], [0, 0, 1], [1, 0, 0]], np.float16))
    return folder


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


def write_lines(file: Path, items: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(item) + "\n" for item in items))


def legs(done: Done) -> dict[str, dict[str, float]]:
    assert done.code == 0, done.err
    found: dict[str, dict[str, float]] = json.loads(done.out)["modes"]
    return found


def test_measures_are_those_computed_by_hand() -> None:
    values = judge({"q": {"a": 3, "b": 1, "c": 0}}, {"q": ["c", "b", "a"]})
    gained, ideal = 1 / math.log2(3) + 3 / math.log2(4), 3 + 1 / math.log2(3)
    assert values["nDCG@10"]["q"] == pytest.approx(gained / ideal)
    assert values["MRR@10"]["q"] == 0.5
    assert values["Recall@100"]["q"] == 1


def test_measures_end_at_their_depth() -> None:
    fillers = [f"x{rank}" for rank in range(200)]
    at = {"r10": 9, "r11": 10, "r100": 99, "r101": 100}
    values = judge(
        {query: {"a": 1} for query in at},
        {query: [*fillers[:place], "a", *fillers[place:]] for query, place in at.items()},
    )
    assert values["MRR@10"] == {"r10": 0.1, "r11": 0, "r100": 0, "r101": 0}
    assert values["nDCG@10"]["r10"] == pytest.approx(1 / math.log2(11))
    assert values["nDCG@10"]["r11"] == 0
    assert values["Recall@100"] == {"r10": 1, "r11": 1, "r100": 1, "r101": 0}


def test_documents_are_judged_in_the_order_returned_whatever_their_ids() -> None:
    assert judge({"q": {"a": 1}}, {"q": ["z", "a"]})["MRR@10"]["q"] == 0.5
    assert judge({"q": {"z": 1}}, {"q": ["a", "z"]})["MRR@10"]["q"] == 0.5


def test_a_query_without_an_answer_counts_as_nothing_found() -> None:
    values = judge({"answered": {"a": 1}, "empty": {"a": 1}}, {"answered": ["a"], "empty": []})
    assert values["nDCG@10"] == {"answered": 1, "empty": 0}


def test_a_relevant_document_that_the_corpus_lacks_counts_against_recall() -> None:
    assert judge({"q": {"a": 1, "lost": 1}}, {"q": ["a"]})["Recall@100"]["q"] == 0.5


def differences(values: list[float]) -> tuple[dict[str, float], dict[str, float]]:
    return (
        {str(place): value for place, value in enumerate(values)},
        {str(place): 0.0 for place in range(len(values))},
    )


def test_identical_runs_have_a_p_value_of_1() -> None:
    run = {str(query): query / 50 for query in range(50)}
    found = compare(run, dict(run))
    assert (found.mean, found.p_value, found.significant) == (0, 1, False)


def test_three_equal_signs_happen_by_chance_in_two_of_eight_cases() -> None:
    found = compare(*differences([0.1, 0.2, 0.3]))
    assert found.mean == pytest.approx(0.2)
    assert (found.p_value, found.permutations, found.exact) == (0.25, 8, True)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
def test_a_small_test_looks_at_every_assignment_of_signs(values: list[int]) -> None:
    sums = [
        abs(sum(sign * value for sign, value in zip(signs, values, strict=True)))
        for signs in product((1, -1), repeat=len(values))
    ]
    expected = sum(one >= abs(sum(values)) for one in sums) / len(sums)
    assert compare(*differences([value / 10 for value in values])).p_value == expected


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_the_test_is_symmetric(values: list[float]) -> None:
    ours, theirs = differences(values)
    there, back = compare(ours, theirs, permutations=200), compare(theirs, ours, permutations=200)
    assert there.mean == -back.mean
    assert there.p_value == back.p_value


def test_sampling_comes_near_to_enumerating() -> None:
    values = [0.3, -0.1, 0.2, 0.25, -0.3, 0.1, 0.4, -0.2, 0.15, 0.05, 0.35, -0.05, 0.1, -0.15, 0.2]
    enumerated = compare(*differences(values), permutations=2**15)
    sampled = compare(*differences(values), seed=1)
    assert (enumerated.exact, sampled.exact) == (True, False)
    assert sampled.permutations == PERMUTATIONS >= 10_000
    assert sampled.p_value == pytest.approx(enumerated.p_value, abs=0.015)


def test_a_sampled_p_value_is_never_0_and_the_same_for_the_same_seed() -> None:
    ours, theirs = differences([0.1] * 60)
    found = compare(ours, theirs, seed=7)
    assert found.p_value == 1 / (PERMUTATIONS + 1)
    assert compare(ours, theirs, seed=7) == found


def test_runs_over_other_queries_are_not_compared() -> None:
    with pytest.raises(ValueError, match="same queries"):
        compare({"a": 1.0}, {"b": 1.0})


def test_a_collection_is_read_from_plain_and_compressed_files(fruit: Path) -> None:
    plain = collections.load(fruit)
    for name in ("corpus.jsonl", "queries.jsonl"):
        with gzip.open(fruit / f"{name}.gz", "wb") as file:
            file.write((fruit / name).read_bytes())
        (fruit / name).unlink()
    (fruit / "qrels").mkdir()
    (fruit / "qrels.tsv").rename(fruit / "qrels" / "test.tsv")
    assert collections.load(fruit) == plain
    assert [document.id for document in plain.documents] == ["apples", "bananas", "cars"]
    assert plain.documents[2].title == ""


def test_queries_without_a_relevant_document_are_left_out_and_told_of(fruit: Path) -> None:
    loaded = collections.load(fruit)
    assert [(query.id, query.row) for query in loaded.queries] == [("q1", 0), ("q2", 1)]
    assert loaded.relevant("q1") == {"bananas": 1}
    assert loaded.queries_in_file == 3
    assert loaded.remarks == ("1 of 3 queries left out: they have no relevant document",)


def test_judgments_of_what_is_not_there_are_told_of(fruit: Path) -> None:
    with (fruit / "qrels.tsv").open("a") as file:
        file.write("q9\tcars\t1\nq2\tplanes\t1\n")
    loaded = collections.load(fruit)
    assert loaded.relevant("q2") == {"cars": 2, "planes": 1}
    assert "judgments of 1 unknown queries left out, such as 'q9'" in loaded.remarks
    assert any("'planes'" in remark for remark in loaded.remarks)


def test_a_sample_of_queries_keeps_their_rows_and_is_the_same_for_the_same_seed() -> None:
    queries = [Query(f"q{row}", "text", row) for row in range(100)]
    whole = Questions("c", queries, {query.id: {"d": 1} for query in queries}, 0)
    drawn = whole.sample(10, seed=3)
    assert drawn == whole.sample(10, seed=3) != whole.sample(10, seed=4)
    assert {query.id for query in drawn.queries} == drawn.qrels.keys()
    assert all(query.id == f"q{query.row}" for query in drawn.queries)
    assert len(drawn.queries) == 10
    assert whole.sample(100, seed=3) is whole


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("corpus.jsonl", "", "corpus.jsonl is empty"),
        ("corpus.jsonl", "{'_id': 1}\n", "corpus.jsonl, line 1: not JSON"),
        ("corpus.jsonl", "[]\n", "line 1: an object is expected, not list"),
        ("corpus.jsonl", '{"text": "x"}\n', "line 1: there is no _id"),
        ("corpus.jsonl", '{"_id": "a"}\n', "line 1: text must be a text, it is missing"),
        ("corpus.jsonl", '{"_id": "a", "text": 5}\n', "line 1: text must be a text, it is int"),
        ("corpus.jsonl", '{"_id": "a", "text": "\\u0000"}\n', "line 1: text has a NUL"),
        ("corpus.jsonl", '{"_id": "a", "text": "\\ud800"}\n', "half a surrogate pair"),
        ("corpus.jsonl", '{"_id": "a", "text": ""}\n' * 2, "line 2: the _id 'a' occurs"),
        ("queries.jsonl", '{"_id": "q1", "text": " "}\n', "line 1: the query's text is empty"),
        ("qrels.tsv", "q1 0 bananas 1\n", "line 1: the header must be query-id, corpus-id, score"),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\nq1\tcars\n", "line 2: three fields"),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\nq1\tcars\tyes\n", "line 2: the score 'yes'"),
        (
            "qrels.tsv",
            "query-id\tcorpus-id\tscore\nq1\tcars\t1\nq1\tcars\t0\n",
            "line 3: 'cars' has two scores for query 'q1'",
        ),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\n", "judges no document relevant"),
    ],
)
def test_a_malformed_file_is_refused_by_name_and_line(
    fruit: Path, name: str, text: str, said: str
) -> None:
    (fruit / name).write_text(text)
    with pytest.raises(CollectionError) as refused:
        collections.load(fruit)
    assert said in str(refused.value)
    assert name in str(refused.value)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels.tsv"])
def test_a_missing_file_is_named(fruit: Path, name: str) -> None:
    (fruit / name).unlink()
    with pytest.raises(CollectionError, match=name):
        collections.load(fruit)


def test_a_broken_archive_is_refused(fruit: Path) -> None:
    (fruit / "corpus.jsonl").unlink()
    (fruit / "corpus.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(CollectionError, match=r"corpus.jsonl.gz cannot be read"):
        collections.load(fruit)


@pytest.mark.parametrize(
    ("documents", "queries", "said"),
    [
        (
            np.zeros((2, 3), np.float16),
            np.zeros((3, 3)),
            "2 rows, but the collection has 3 documents",
        ),
        (np.zeros((3, 3)), np.zeros((2, 3)), "2 rows, but the collection has 3 queries"),
        (np.zeros((3, 3)), np.zeros((3, 4)), "3 dimensions"),
        (np.zeros((3, 16_001)), np.zeros((3, 16_001)), "16001 dimensions"),
        (np.zeros(3), np.zeros((3, 3)), "two-dimensional array of floats, it is float64 (3,)"),
        (np.zeros((3, 3), int), np.zeros((3, 3)), "it is int64"),
        (np.full((3, 3), np.nan), np.zeros((3, 3)), "not finite"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(
    fruit: Path, documents: Any, queries: Any, said: str
) -> None:
    np.save(fruit / "d.npy", documents)
    np.save(fruit / "q.npy", queries)
    with pytest.raises(CollectionError) as refused:
        collections.read_vectors(collections.load(fruit), fruit / "d.npy", fruit / "q.npy")
    assert said in str(refused.value)


def test_a_pickle_is_not_opened(fruit: Path) -> None:
    np.save(fruit / "d.npy", np.array([{"a": 1}], object))
    with pytest.raises(CollectionError, match="cannot be read as an array"):
        collections.read_vectors(collections.load(fruit), fruit / "d.npy", fruit / "d.npy")


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


def test_eval_passes_the_arguments_of_hybrid_on(on_server: Run) -> None:
    found = legs(on_server("corpus", "eval", "--json", "--weights", "1", "0", "--pool-size", "3"))
    assert found["hybrid"]["nDCG@10"] == found["vector"]["nDCG@10"] < 1
    found = legs(on_server("corpus", "eval", "--json", "--weights", "0", "1"))
    assert found["hybrid"]["nDCG@10"] == found["text"]["nDCG@10"] == 0.5
    assert found["vector"]["Recall@100"] == 1
    found = legs(on_server("corpus", "eval", "--json", "--search-mode", "phrase"))
    assert found["text"]["empty_answers"] == 2


def test_eval_fuses_as_told(on_server: Run) -> None:
    assert legs(on_server("corpus", "eval", "--json", "--fusion", "rrf"))["hybrid"]["nDCG@10"] == 1
    refused = on_server("corpus", "eval", "--fusion", "nonsense")
    assert refused.code == 1
    assert "fusion must be one of" in refused.err


def test_eval_prints_a_table_and_what_the_gain_is_worth(on_server: Run) -> None:
    done = on_server("corpus", "eval", "--max-queries", "1")
    assert done.code == 0, done.err
    assert "3 documents, 1 queries" in done.out
    assert "hybrid against vector: +" in done.out
    assert "not significant" in done.out
    assert "Loading 3 documents" in done.err


def test_eval_measures_reranking_beside_the_others(
    on_server: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[str, Sequence[str]]] = []

    def shortest_last(query: str, texts: Sequence[str]) -> list[float]:
        calls.append((query, texts))
        return [-1.0 if text == "They need fuel." else 0.0 for text in texts]

    # It stands for a model that is not here.
    monkeypatch.setattr("second_brain.cli.evaluation.load_reranker", lambda _name: shortest_last)
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
    table = on_server("corpus", "eval", "--reranker", "ours").out
    assert "rerank against hybrid: -" in table


def test_an_unknown_reranker_is_refused_before_anything_runs(run: Run, fruit: Path) -> None:
    done = run("corpus", "eval", "fruit", "--reranker", "nonsense")
    assert done.code == 1
    assert "unknown reranker 'nonsense'" in done.err


def test_an_argument_that_the_search_refuses_is_named_and_nothing_stays(on_server: Run) -> None:
    done = on_server("corpus", "eval", "--weights", "0", "0")
    assert done.code == 1
    assert "vector_weight and text_weight are both 0" in done.err


def test_eval_starts_a_server_of_its_own_and_embeds_by_itself(
    run: Run, fruit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir(mode=0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    # pytest's folders are closed to the account that the server runs as under root.
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    found = legs(run("corpus", "eval", "fruit", "--json"))
    assert found["text"]["nDCG@10"] == 0.5
    assert found["vector"]["Recall@100"] == 1
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_role_that_may_not_make_a_database_is_told_what_to_do(
    run: Run, fruit: Path, server: Server
) -> None:
    role = f"second_brain_evaluator_{secrets.token_hex(4)}"
    with psycopg.connect(server.admin_dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("create role {} login password 'x'").format(sql.Identifier(role)))
        try:
            done = run(
                "corpus",
                "eval",
                "fruit",
                "--dsn",
                make_conninfo(server.admin, user=role, password="x"),
            )
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


def test_tune_recommends_and_says_that_hybrid_does_not_beat_a_leg(on_server: Run) -> None:
    done = on_server("corpus", "tune")
    assert done.code == 0, done.err
    # Two queries can show nothing: every p-value is 1.
    assert "Hybrid is not significantly better than the vector leg alone" in done.out
    assert "Hybrid is not significantly better than the text leg alone" in done.out
    assert "Recommended: the default arguments" in done.out


def test_tune_reports_its_grid_its_folds_and_the_legs(on_server: Run) -> None:
    done = on_server("corpus", "tune", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["legs"]["text"] == 0.5
    assert found["default"] == found["tuned_cross_validated"] == 1
    assert found["legs_not_beaten"] == ["vector", "text"]
    assert found["recommended"] == {}
    assert found["grid"][0] == {"arguments": {}, "nDCG@10": 1}
    assert {"vector_weight": 0.2, "text_weight": 0.8, "pool_size": 50}.items() <= (
        found["grid"][1]["arguments"].items()
    )
    assert {one["arguments"].get("pool_size") for one in found["grid"]} == {None, 50, 200}
    assert len(found["folds"]) == 2


def tuned(queries: int, values: dict[Settings, Callable[[int], float]], vector: float) -> Tuning:
    ids = [f"q{number}" for number in range(queries)]
    collection = Questions("c", [Query(id_, "", row) for row, id_ in enumerate(ids)], {}, 0)
    return choose(
        collection,
        {
            settings: {id_: value(row) for row, id_ in enumerate(ids)}
            for settings, value in values.items()
        },
        {"vector": dict.fromkeys(ids, vector), "text": dict.fromkeys(ids, 0.1)},
    )


def test_a_setting_that_is_better_throughout_is_chosen_in_every_fold() -> None:
    better = Settings(rrf_k=10)
    found = tuned(20, {DEFAULT: lambda _: 0.5, better: lambda _: 0.6}, vector=0.6)
    assert found.recommended == found.best == better
    assert set(found.chosen) == {better}
    assert found.validated == pytest.approx(0.6)
    assert found.gains["default"].significant
    # As good as the vector leg alone is not better than it.
    assert found.not_beaten == ("vector",)


def test_a_setting_that_is_best_only_where_it_was_chosen_is_not_recommended() -> None:
    lucky = Settings(rrf_k=10)
    found = tuned(
        2, {DEFAULT: lambda _: 0.5, lucky: lambda query: 1.0 if query == 0 else 0.45}, vector=0.2
    )
    assert found.best == lucky
    assert found.validated == pytest.approx((0.5 + 0.45) / 2)
    assert found.recommended == DEFAULT


def test_what_is_significantly_better_can_be_stored_with_weights_that_add_up_to_2() -> None:
    better = Settings(fusion="auto", vector_weight=0.35, text_weight=0.65)
    found = tuned(20, {DEFAULT: lambda _: 0.5, better: lambda _: 0.6}, vector=0.2)
    assert found.storable == CorpusSettings(fusion="auto", vector_weight=0.7, text_weight=1.3)


def test_what_is_not_significantly_better_is_not_stored() -> None:
    better = Settings(fusion="rrf")
    found = tuned(3, {DEFAULT: lambda _: 0.5, better: lambda _: 0.6}, vector=0.2)
    assert found.recommended == better
    assert not found.gains["default"].significant
    assert found.storable is None


def test_only_what_a_database_stores_is_tried_for_it() -> None:
    tried = grid(storable=True)
    assert {(one.rrf_k, one.pool_size) for one in tried} == {(None, None)}
    assert {one.fusion for one in tried} == {None, "rrf", "relative_score", "auto"}


def test_tune_stores_nothing_that_is_not_better(on_server: Run, dsn: str) -> None:
    done = on_server("corpus", "tune", "--apply", "--target", dsn)
    assert done.code == 0, done.err
    assert "Not stored: the defaults are the best." in done.out


def test_tune_stores_what_is_better_and_searches_change(
    on_server: Run, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = CorpusSettings(fusion="relative_score", vector_weight=0.4, text_weight=1.6)
    # Two queries cannot show a significant gain.
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


def test_the_defaults_win_a_tie() -> None:
    found = tuned(10, {DEFAULT: lambda _: 0.5, Settings(rrf_k=10): lambda _: 0.5}, vector=0.2)
    assert found.best == found.recommended == DEFAULT

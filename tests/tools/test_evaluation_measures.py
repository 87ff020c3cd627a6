"""Evaluation without a database: collections, measures, the significance test, tuned settings."""

import gzip
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fruit import fruit
from hypothesis import given
from hypothesis import strategies as st

from second_brain.evaluation import collection as collections
from second_brain.evaluation.collection import CollectionError, Query, Questions
from second_brain.evaluation.commands.output import print_tuning
from second_brain.evaluation.metrics import PERMUTATIONS, compare, judge
from second_brain.evaluation.runs import DEFAULT, Settings
from second_brain.evaluation.tuning import GRID, TEXT, VECTOR, Tuning, choose
from second_brain.services.corpus_settings import CorpusSettings

__all__ = ["fruit"]  # a fixture


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
    ours = {str(place): value for place, value in enumerate(values)}
    return ours, dict.fromkeys(ours, 0.0)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
def test_a_small_test_looks_at_every_assignment_of_signs(values: list[int]) -> None:
    sums = [
        abs(sum(sign * value for sign, value in zip(signs, values, strict=True)))
        for signs in product((1, -1), repeat=len(values))
    ]
    expected = sum(one >= abs(sum(values)) for one in sums) / len(sums)
    assert compare(*differences([value / 10 for value in values])).p_value == expected


def test_sampling_comes_near_to_enumerating() -> None:
    values = [0.3, -0.1, 0.2, 0.25, -0.3, 0.1, 0.4, -0.2, 0.15, 0.05, 0.35, -0.05, 0.1, -0.15, 0.2]
    enumerated = compare(*differences(values), permutations=2**15)
    sampled = compare(*differences(values), seed=1)
    assert (enumerated.exact, sampled.exact) == (True, False)
    assert sampled.permutations == PERMUTATIONS >= 10_000
    assert sampled.p_value == pytest.approx(enumerated.p_value, abs=0.015)


def test_more_questions_than_a_float_has_powers_of_2_are_sampled() -> None:
    found = compare(*differences([0.1, -0.1] * 550), permutations=100)
    assert (found.exact, found.permutations) == (False, 100)


def test_a_sampled_p_value_is_never_0_and_the_same_for_the_same_seed() -> None:
    ours, theirs = differences([0.1] * 60)
    found = compare(ours, theirs, seed=7)
    assert found.p_value == 1 / (PERMUTATIONS + 1)
    assert compare(ours, theirs, seed=7) == found


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
        ("corpus.jsonl", "{'_id': 1}\n", "corpus.jsonl, line 1: not JSON"),
        ("corpus.jsonl", '{"text": "x"}\n', "line 1: there is no _id"),
        ("corpus.jsonl", '{"_id": "a"}\n', "line 1: text must be a text, it is missing"),
        ("corpus.jsonl", '{"_id": "a", "text": "\\u0000"}\n', "line 1: text has a NUL"),
        ("corpus.jsonl", '{"_id": "a", "text": ""}\n' * 2, "line 2: the _id 'a' occurs"),
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


@pytest.mark.parametrize("name", ["corpus.jsonl", "qrels.tsv"])
def test_a_missing_file_is_named(fruit: Path, name: str) -> None:
    (fruit / name).unlink()
    with pytest.raises(CollectionError, match=name):
        collections.load(fruit)


@pytest.mark.parametrize(
    ("documents", "queries", "said"),
    [
        (np.zeros((2, 3), np.float16), np.zeros((3, 3)), "2 rows, but the collection has 3 doc"),
        (np.zeros((3, 3)), np.zeros((3, 4)), "3 dimensions"),
        (np.zeros(3), np.zeros((3, 3)), "two-dimensional array of floats, it is float64 (3,)"),
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


BETTER = Settings("auto", 0.3, 0.7)


def tuned(queries: int, values: dict[Settings, Callable[[int], float]]) -> Tuning:
    ids = [f"q{number}" for number in range(queries)]
    collection = Questions("c", [Query(id_, "", row) for row, id_ in enumerate(ids)], {}, 0)
    return choose(
        collection,
        {
            settings: {id_: value(row) for row, id_ in enumerate(ids)}
            for settings, value in values.items()
        },
    )


def test_a_gain_above_its_standard_error_is_stored_with_weights_that_add_up_to_2() -> None:
    # Differences of 0.2 and 0: the mean is 0.1, the error sqrt(20 * 0.01 / 19 / 20).
    found = tuned(20, {DEFAULT: lambda _: 0.5, BETTER: lambda row: 0.5 + 0.2 * (row % 2)})
    assert found.gain == pytest.approx(0.1)
    assert found.error == pytest.approx(math.sqrt(0.01 / 19))
    assert found.storable == CorpusSettings(fusion="auto", vector_weight=0.6, text_weight=1.4)
    gained, lost = found.moved(3)
    changes = {query.id: round(change, 9) for query, change in gained}
    assert (changes, lost) == ({"q1": 0.2, "q3": 0.2, "q5": 0.2}, [])


def test_a_gain_within_its_standard_error_is_not_stored(capsys: pytest.CaptureFixture[str]) -> None:
    legs: dict[Settings, Callable[[int], float]] = dict.fromkeys((VECTOR, TEXT), lambda _: 0.1)
    once = {DEFAULT: lambda _: 0.5, BETTER: lambda row: 0.9 if row == 0 else 0.485}
    found = tuned(20, once | legs)
    assert found.best == BETTER
    assert 0 < found.gain < found.error
    assert found.storable is None
    assert found.forced is not None
    gained, lost = found.moved(30)
    assert (len(gained), len(lost)) == (1, 19)
    print_tuning(found, "the settings in use")
    said = capsys.readouterr().out
    assert "not above its standard error: keep the settings in use" in said
    assert "a fit to so few" not in said


@pytest.mark.parametrize(("queries", "is_stored"), [(19, False), (20, True)])
def test_a_fit_to_fewer_than_twenty_questions_is_stored_only_by_force(
    queries: int, is_stored: bool
) -> None:
    found = tuned(queries, {DEFAULT: lambda _: 0.5, BETTER: lambda _: 0.6})
    assert found.is_better
    assert (found.has_enough, found.storable is not None) == (is_stored, is_stored)
    assert found.forced is not None


def test_the_settings_in_use_win_a_tie_and_then_the_more_equal_weights() -> None:
    found = tuned(20, {one: lambda _: 0.5 for one in GRID})
    assert found.best == DEFAULT
    assert (found.forced, found.storable) == (None, None)
    found = tuned(20, {one: lambda _: 0.6 for one in GRID} | {DEFAULT: lambda _: 0.5})
    assert found.best == Settings("auto", 0.5, 0.5)

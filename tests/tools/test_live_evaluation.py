"""eval, tune and judgments generate on the judgments of a database, as typed, without a folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
import pytest

from command_line import Run
from conftest import Connection
from judged import (
    DIMENSIONS,
    WORDS,
    best_hit,
    embedder,
    fill,
    judge_enough,
    judged,
    use_the_worse_leg,
)
from second_brain.evaluation.judgments import grades
from second_brain.services.arguments import FUSIONS
from second_brain.services.judgments import Judgment
from second_brain.services.write import KnowledgeWriter


@pytest.fixture
def dimensions() -> int:
    """Those of the judged corpus."""
    return DIMENSIONS


@pytest.fixture
def writer(database: Connection) -> KnowledgeWriter:
    """The judged corpus."""
    return fill(database)


@pytest.fixture
def brain(run: Run, monkeypatch: pytest.MonkeyPatch, dsn: str, writer: KnowledgeWriter) -> Run:
    """Run `second-brain` on this corpus; the model of its questions is one document off."""
    monkeypatch.setenv("SECOND_BRAIN_DSN", dsn)
    models = {"given": embedder("given", 1), "better": embedder("better", 0)}
    for part in ("evaluation", "questions"):
        module = f"second_brain.evaluation.commands.{part}"
        monkeypatch.setattr(f"{module}.configured_embedder", models.__getitem__)
    monkeypatch.setenv("SECOND_BRAIN_EMBEDDER", "given")
    return run


def modes(brain: Run, *options: str) -> dict[str, Any]:
    done = brain("corpus", "eval", "--collection", "first", "--json", *options)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_eval_searches_the_corpus_with_its_stored_embeddings_and_settings(
    brain: Run, writer: KnowledgeWriter
) -> None:
    use_the_worse_leg(writer)
    report = modes(brain)
    found = report["modes"]
    assert list(found) == ["vector", "text", *FUSIONS, "stored"]
    # The right document is the second one of the vector leg, and of the stored settings.
    second = pytest.approx(1 / np.log2(3))
    assert found["vector"]["nDCG@10"] == found["stored"]["nDCG@10"] == second
    assert found["text"]["nDCG@10"] == found["rrf"]["nDCG@10"] == 1
    assert found["stored"]["MRR@10"] == 0.5
    assert report["reference"] == "stored"
    gain = found["text"]["gain"]
    # All eight questions gain: 2 of the 2 ** 8 assignments of signs are as extreme.
    assert (gain["p_value"], gain["significant"], gain["exact"]) == (2 / 256, True, True)
    assert (report["documents"], report["queries"]) == (8, 8)
    assert all(0 < one["p50_ms"] <= one["p95_ms"] for one in found.values())


def test_hits_that_nobody_judged_are_counted(brain: Run, writer: KnowledgeWriter) -> None:
    found = modes(brain, "--compare", "vector", "text")["modes"]
    # The vector leg shows two of eight documents with a similarity above 0, and six with 0.
    assert found["vector"]["judged@10"] == pytest.approx(1 / 8)
    assert found["text"]["judged@10"] == 1
    # Only what was judged counts in a condensed list.
    assert found["vector"]["nDCG@10 condensed"] == 1 > found["vector"]["nDCG@10"]
    shown = brain("corpus", "eval", "--collection", "first").out
    assert "12%" in shown


def test_two_settings_are_compared(brain: Run) -> None:
    heavy = '{"fusion": "rrf", "vector_weight": 100}'
    report = modes(brain, "--compare", "rrf", heavy)
    assert list(report["modes"]) == ["rrf", heavy]
    assert report["modes"][heavy]["gain"]["mean"] == pytest.approx(1 / np.log2(3) - 1)
    done = brain("corpus", "eval", "--collection", "first", "--compare", "rrf", heavy)
    assert "significant loss" in done.out
    assert "loses most against rrf:\n  -0.369  apples" in done.out
    refused = brain("corpus", "eval", "--compare", "rrf", '{"weight": 2}')
    assert refused.code == 1
    assert "vector_weight" in refused.err


@pytest.mark.slow
def test_the_report_of_a_corpus_has_each_mode_and_explains_the_losses(
    brain: Run, writer: KnowledgeWriter, tmp_path: Path
) -> None:
    use_the_worse_leg(writer)
    modes(brain, "--html", "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    for mode in ("vector", "text", *FUSIONS, "stored"):
        assert f'data-mode="{mode}"' in page
        assert f"Latency of {mode} in milliseconds" in page
    assert "Where stored loses most" in page
    # The second hit for each of the eight questions.
    assert page.count("<details>") == 8


@pytest.mark.slow
def test_hits_of_the_settings_in_use_are_reranked(
    brain: Run, writer: KnowledgeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def has_question(query: str, texts: Sequence[str]) -> list[float]:
        calls.append(query)
        return [float(query in text) for text in texts]

    # It stands for a model that is not here.
    monkeypatch.setattr(
        "second_brain.evaluation.commands.evaluation.load_reranker", lambda _name: has_question
    )
    use_the_worse_leg(writer)
    report = modes(brain, "--reranker", "ours")
    found = report["modes"]
    assert list(found)[-2:] == ["stored", "rerank"]
    assert found["stored"]["nDCG@10"] == pytest.approx(1 / np.log2(3))
    assert found["rerank"]["nDCG@10"] == 1
    assert (report["reference"], report["reranker"]) == ("stored", "ours")
    # The first question twice: the model is loaded before a time is taken.
    assert len(calls) == 1 + report["queries"]
    given = ("corpus", "eval", "--collection", "first", "--reranker", "ours")
    shown = brain(*given, "--compare", "vector", "text")
    assert "rerank: the first 50 hits of vector, ordered by ours" in shown.out
    assert "rerank against vector: +0.369" in shown.out
    refused = brain("corpus", "eval", "--reranker", "ours", "--compare-embedder", "better")
    assert refused.code == 2
    assert "--reranker" in refused.err


def test_another_embedding_model_is_compared_before_the_switch(brain: Run) -> None:
    given = ("corpus", "eval", "--collection", "first", "--compare-embedder", "better")
    report = json.loads(brain(*given, "--json").out)
    assert report["models"]["given"]["nDCG@10"] == pytest.approx(1 / np.log2(3))
    assert report["models"]["better"]["nDCG@10"] == 1
    assert report["gain"]["significant"]
    assert (report["chunks"], report["embedded_chunks"]) == (8, 8)
    assert "better against given: +0.369" in brain(*given).out
    refused = brain(*given, "--max-chunks", "7")
    assert refused.code == 1
    assert "8 chunks, and --max-chunks is 7" in refused.err


@pytest.mark.slow
def test_tune_stores_what_is_better_and_a_search_changes(
    brain: Run, writer: KnowledgeWriter, database: Connection
) -> None:
    use_the_worse_leg(writer)
    judge_enough(writer)
    assert best_hit(database) == "bananas"
    done = brain("corpus", "tune", "--collection", "first", "--apply")
    assert done.code == 0, done.err
    assert "Best against the settings in use: +0.369 nDCG@10, standard error 0.000" in done.out
    assert "best gains most against the settings in use:\n  +0.369  " in done.out
    assert "Stored for collection 'first'" in done.out
    assert best_hit(database) == "apples"
    (stored,) = writer.settings()
    assert stored.embedding_model == "given"
    again = brain("corpus", "tune", "--collection", "first", "--apply")
    assert "Not stored: the settings in use are the best." in again.out


def test_tune_takes_the_judgments_of_a_file(
    brain: Run, writer: KnowledgeWriter, tmp_path: Path
) -> None:
    use_the_worse_leg(writer)
    writer.delete_judgments(collection="first")
    asked = [(before, word) for before in ("", "the ", "of the ") for word in WORDS]
    lines = "".join(f"{before}{word}\t{word}\n" for before, word in asked)
    (tmp_path / "questions.tsv").write_text(lines)
    given = ("corpus", "tune", "questions.tsv", "--collection", "first")
    assert "Stored for collection 'first'" in brain(*given, "--apply").out
    assert writer.settings()[0].text_weight >= 1
    assert writer.judgments() == []
    chunk = "00000000-0000-0000-0000-000000000001"
    (tmp_path / "questions.tsv").write_text(f"question,chunk\napples,{chunk}\n")
    refused = brain(*given)
    assert refused.code == 1
    assert "judgments import questions.tsv" in refused.err


def test_a_gain_of_few_questions_is_stored_only_by_force(
    brain: Run, writer: KnowledgeWriter
) -> None:
    use_the_worse_leg(writer)
    writer.delete_judgments(collection="first")
    writer.set_judgments(judged("first", count=5))
    given = ("corpus", "tune", "--collection", "first", "--apply")
    refused = brain(*given)
    assert "5 of 20 judged questions: a fit to so few gains nothing" in refused.out
    assert "Not stored: too few questions." in refused.out
    assert writer.settings()[0].text_weight == 0.01
    assert "Stored for collection 'first'" in brain(*given, "--force").out
    assert writer.settings()[0].text_weight != 0.01


def test_questions_are_those_of_the_collection(brain: Run) -> None:
    done = brain("corpus", "eval", "--collection", "copies")
    assert done.code == 1
    assert "'first' (8)" in done.err
    assert brain("corpus", "eval").code == 1


def test_options_of_a_test_collection_need_its_folder(brain: Run, tmp_path: Path) -> None:
    for option in (("--qrels", "qrels.tsv"), ("--language", "german")):
        done = brain("corpus", "eval", *option)
        assert (done.code, "give its folder" in done.err) == (2, True)
    done = brain("corpus", "tune", str(tmp_path), "--questions", "all")
    assert (done.code, "give no folder" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("english", "{} was with them and they were with the {}"),
        ("german", "{} war mit ihnen und sie waren mit dem {}"),
    ],
)
def test_no_question_is_made_of_stop_words(
    brain: Run, writer: KnowledgeWriter, language: str, text: str
) -> None:
    for place in range(5):
        writer.upsert_document(
            {"external_key": f"doc{place}", "collection": "texts", "language": language},
            [{"content": text.format(f"only{place}", f"alone{place}")}],
        )
    done = brain("corpus", "judgments", "generate", "--collection", "texts")
    assert (done.code, "has no chunk from which" in done.err) == (1, True)


def test_generated_questions_are_repeatable_and_reported_apart(
    brain: Run, writer: KnowledgeWriter
) -> None:
    for place in range(6):
        writer.upsert_document(
            {"external_key": f"doc{place}", "collection": "texts"},
            [{"content": f"{WORDS[place]} and {WORDS[place + 1]} with {WORDS[place + 2]}"}],
        )
    given = ("corpus", "judgments", "generate", "--count", "4", "--collection", "texts")
    assert "4 generated questions stored" in brain(*given).out
    made = writer.judgments("texts")
    assert len({one.document_key for one in made}) == len({one.question for one in made}) == 4
    for one in made:
        assert one.is_generated
        place = int(str(one.document_key)[3:])
        # Words of one document alone would give it away.
        assert set(one.question.split()) <= set(WORDS[place : place + 3])
    brain(*given)
    assert [one.question for one in writer.judgments("texts")] == [one.question for one in made]

    asked = ("corpus", "eval", "--collection", "texts", "--compare", "text", "rrf", "--json")
    generated = json.loads(brain(*asked).out)
    assert generated["queries"] == 4
    assert any("made from words" in remark for remark in generated["remarks"])
    writer.set_judgments([Judgment(question="cars", document_key="doc1", collection="texts")])
    alone = json.loads(brain(*asked).out)
    assert alone["queries"] == 1
    assert "4 generated questions left out" in alone["remarks"]
    assert json.loads(brain(*asked, "--questions", "all").out)["queries"] == 5

    assert brain("corpus", "judgments", "delete", "--generated").out == "4 judgments deleted.\n"
    assert [one.question for one in writer.judgments("texts")] == ["cars"]


def test_a_withdrawn_judgment_is_that_of_its_user_alone(
    writer: KnowledgeWriter, database: Connection
) -> None:
    mine = Judgment(question="doors?", document_key="doors")
    theirs = mine.model_copy(update={"judged_by": UUID(int=1)})
    writer.set_judgments([mine, theirs])
    writer.withdraw_judgments([mine])
    assert [str(one.judged_by)[-1] for one in writer.judgments("")] == ["1"]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"grade must be .*missing"):
        database.execute(
            "select public.set_knowledge_judgments(%s::jsonb)",
            ['[{"question": "?", "document_key": "cars"}]'],
        )


def test_a_document_has_the_best_grade_of_its_chunks_and_the_mean_of_its_judges() -> None:
    chunk = "00000000-0000-0000-0000-00000000000"
    given = [(1, "1", 0), (2, "1", 0), (1, "2", 2), (2, "2", 1)]
    judgments = [
        Judgment.model_validate(
            {"question": "q", "document_key": "d", "chunk_id": chunk + place, "grade": grade}
            | {"judged_by": f"{chunk}{judge}"}
        )
        for judge, place, grade in given
    ]
    # 1.5 is rounded up.
    assert grades(judgments) == {"q": {"d": 2}}
    assert grades(judgments[:2]) == {"q": {"d": 0}}

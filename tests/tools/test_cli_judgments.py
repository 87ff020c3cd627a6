"""The commands about judgments, and search --why-not, as typed, on a real database."""

import json
from pathlib import Path

import pytest

from command_line import Run
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn


@pytest.fixture
def brain(brain: Run) -> Run:
    """Run `second-brain` on this test's database, with three documents in it."""
    brain("ingest", "docs")
    return brain


def test_a_start_file_becomes_a_collection_to_measure(brain: Run, tmp_path: Path) -> None:
    keys = [json.loads(line) for line in _exported_corpus(brain, tmp_path)]
    fruit = next(one["_id"] for one in keys if "Bananas" in one["text"])
    (tmp_path / "questions.tsv").write_text(f"which fruit is yellow?\t{fruit}\n")
    assert brain("corpus", "judgments", "import", "questions.tsv").out == "1 judgment stored.\n"
    done = brain("corpus", "judgments", "export", "judged")
    assert done.out == "1 judgment written to judged.\n"
    qrels = (tmp_path / "judged" / "qrels" / "test.tsv").read_text().splitlines()
    assert qrels[1:] == [f"q1\t{fruit}\t2"]
    brain("corpus", "judgments", "export", "judged.csv")
    assert "which fruit is yellow?" in (tmp_path / "judged.csv").read_text()


def _exported_corpus(brain: Run, folder: Path) -> list[str]:
    assert brain("corpus", "judgments", "export", "all").code == 0
    return (folder / "all" / "corpus.jsonl").read_text().splitlines()


def test_search_says_why_a_document_is_not_found(brain: Run, tmp_path: Path) -> None:
    corpus = [json.loads(line) for line in _exported_corpus(brain, tmp_path)]
    cars = next(one["_id"] for one in corpus if "automobile" in one["text"])
    asked = ("search", "automobile -engine", "--mode", "text", "--why-not", cars)
    lines = brain(*asked).out.splitlines()
    assert lines[0].endswith(": not found")
    assert "excluded words (query_text): it has what is excluded: -engine" in lines
    assert lines[-1] == "  Ask without the excluded words."
    assert json.loads(brain(*asked, "--json").out)["causes"][0]["parts"] == ["-engine"]

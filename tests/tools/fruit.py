"""A collection of three documents whose right answers can be seen by reading."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HOSTILE = "<img src=x onerror=alert(1)>\"'&<script>alert(2)</script>"


@pytest.fixture
def fruit(tmp_path: Path) -> Path:
    """A collection where text answers q1, vector q2, hybrid both, and nothing is relevant to q3.

    q1's word is in bananas alone while its embedding is as near to apples, which come first; q2's
    word is in no document.
    """
    folder = tmp_path / "fruit"
    folder.mkdir()
    documents = (
        ("apples", "Apples", "They grow on trees."),
        ("bananas", HOSTILE, "Long and yellow."),
        ("cars", "", "They need fuel."),
    )
    queries = {"q1": f"yellow {HOSTILE}", "q2": "automobile", "q3": "nothing"}
    texts = [dict(zip(("_id", "title", "text"), one, strict=True)) for one in documents]
    write_lines(folder / "corpus.jsonl", texts)
    asked = [{"_id": id_, "text": text} for id_, text in queries.items()]
    write_lines(folder / "queries.jsonl", asked)
    (folder / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq1\tbananas\t1\nq1\tapples\t0\nq2\tcars\t2\nq3\tcars\t0\n"
    )
    np.save(tmp_path / "docs.npy", np.eye(3, dtype=np.float16))
    np.save(tmp_path / "queries.npy", np.array([[0.7, 0.7, 0], [0, 0, 1], [1, 0, 0]], np.float16))
    return folder


def write_lines(file: Path, items: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(item) + "\n" for item in items))

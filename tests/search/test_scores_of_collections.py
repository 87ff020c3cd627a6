"""Under score fusions a score counts alike in the lists of all collections."""

import pytest
from searching import numbers, search, store

from conftest import Connection

QUESTION = "how much does a resident parking permit cost"


@pytest.mark.parametrize("fusion", ["auto", "relative_score"])
def test_a_collection_without_a_match_is_not_lifted(knowledge: Connection, fusion: str) -> None:
    motions = [
        {
            "collection": "m",
            "content": f"motion {number} about a parking lot",
            "embedding": [1 + number / 50, 0.2, number / 100],
        }
        for number in range(40)
    ]
    said = [
        {"collection": "t", "content": f"{QUESTION}, asked speaker {number}"} for number in range(3)
    ]
    store(knowledge, *motions, *said)
    asked = {"query_embedding": [1, 0.2, 0], "query_text": QUESTION, "match_count": 5}
    together = numbers(search(knowledge, **asked, fusion=fusion))
    assert 41 in together[:2]
    named = search(knowledge, **asked, fusion=fusion, collections=["m", "t"])
    assert numbers(named)[:4] == together[:4]


def test_by_rank_each_collection_keeps_its_ranks(knowledge: Connection) -> None:
    store(
        knowledge,
        {"collection": "m", "content": "a parking lot with many other words"},
        {"collection": "t", "content": QUESTION},
    )
    rows = search(knowledge, query_text=QUESTION, fusion="rrf", collections=["m", "t"])
    assert [row["text_rank"] for row in rows] == [1, 1]

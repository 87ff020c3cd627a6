"""A question that mentions an identifier is not one that asks for it."""

from typing import Any

import pytest
from searching import search, store

from conftest import Connection

ROWS: list[dict[str, Any]] = [
    {
        "content": "To restore a deleted mailbox, open the admin centre and press Restore.",
        "embedding": [1, 0, 0],
    },
    {"content": "Contact: write to pat.doe@corp.example", "embedding": [0, 1, 0]},
    {"content": "build 3.11.2 was uploaded", "embedding": [0, 1, 0]},
    {"content": "call os.path.join of the library", "embedding": [0, 1, 0]},
    {"content": "the form INC0012345 is empty", "embedding": [0, 1, 0]},
    {"content": "the setting max_worker_count is a number", "embedding": [0, 1, 0]},
]
IDENTIFIERS = {
    "pat.doe@corp.example": 2,
    "3.11.2": 3,
    "os.path.join": 4,
    "INC0012345": 5,
    "max_worker_count": 6,
}
PROSE = (
    "Hi, my colleague's mailbox was deleted by mistake last Friday, how can I restore it?"
    " Regards {}",
    "Since {} we cannot restore a deleted mailbox in the admin centre any more",
    "Is there a way to restore a deleted mailbox with {}?",
    "restore a deleted mailbox in the centre {}",
    "{}: cannot restore my deleted mailbox",
)


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    store(knowledge, *ROWS)
    return knowledge


@pytest.mark.parametrize("fusion", ["auto", "relative_score", "rrf"])
@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_in_prose_it_is_a_rare_word(corpus: Connection, identifier: str, fusion: str) -> None:
    for prose in PROSE:
        text = prose.format(identifier)
        rows = search(corpus, query_embedding=[1, 0.1, 0], query_text=text, fusion=fusion)
        assert rows[0]["id"].int == 1, text
        assert rows[0]["answer_confidence"] > 0.5


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_it_is_asked_for_in_few_words_quoted_or_alone(corpus: Connection, identifier: str) -> None:
    for text in (
        identifier,
        f"what is {identifier}?",
        f"how do I use {identifier} for it",
        f"{identifier} deleted the mailbox with an error",
        f"restore deleted mailbox {identifier}",
        PROSE[1].format(f'"{identifier}"'),
    ):
        rows = search(corpus, query_embedding=[1, 0.1, 0], query_text=text, fusion="auto")
        assert rows[0]["id"].int == IDENTIFIERS[identifier], text

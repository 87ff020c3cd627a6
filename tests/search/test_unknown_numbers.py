"""The confidence of an answer counts what no chunk has of an identifier or a compound."""

import pytest
from searching import numbers, search, store

from conftest import Connection

CORPUS = (
    "Order PO-88213 was shipped",
    "Room 29 is closed",
    "Ticket INC0012345 is solved",
    "Version 2.4.1 fixes four crashes, 2 of them rare",
    "CVE-2022-22963 was mended in 2022",
    "Flight LH 454 is late",
    "call getUserName to get the user",
    "the KB5001330 update",
)
LOW, HIGH = 0.35, 0.8


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    store(knowledge, *CORPUS, *(f"filler {number} about gardens" for number in range(300, 500)))
    return knowledge


def test_it_is_low_where_the_corpus_has_another_one(corpus: Connection) -> None:
    for text in (
        "PO-88214",
        "INC0012346",
        "7f29c1",
        "v2.4.2",
        "2.4.2",
        "CVE-2022-22965",
        "LH455",
        "getUserEmail",
        "KB5001331",
        "zebra-order",
        "room 31",
        "room 31 closed",
        "error 0x8007 of getUserName",
    ):
        rows = search(corpus, query_text=text)
        assert all(row["answer_confidence"] < LOW for row in rows), text
        assert search(corpus, query_text=text, min_confidence=0.5) == [], text


IDENTIFIERS = (
    ("order", "PO-88213", "PO-88214"),
    ("ticket", "INC0012345", "INC0012346"),
    ("room", "29", "31"),
    ("flight", "LH454", "LH455"),
    ("bus line", "M41", "M42"),
    ("vulnerability", "CVE-2021-44228", "CVE-2022-22965"),
    ("error", "0x80070005", "0x80070006"),
    ("function", "getUserName", "getUserEmail"),
    ("part", "DET-MPC-2L", "DET-MPC-3L"),
)


@pytest.mark.parametrize(
    "question", ["{} {}", "what is the status of {} {}?", "was {} {} handled?", "who handled {} {}"]
)
def test_a_sentence_about_another_one_is_not_answered(knowledge: Connection, question: str) -> None:
    store(
        knowledge,
        *(f"{kind} {there} was handled by the team upstairs" for kind, there, _ in IDENTIFIERS),
        *(f"the {kind} is described in the manual" for kind, _, _ in IDENTIFIERS),
        *(f"filler words of garden {number}" for number in range(300, 360)),
    )
    for kind, there, absent in IDENTIFIERS:
        for name, is_there in ((there, True), (absent, False)):
            row = search(knowledge, query_text=question.format(kind, name))[0]
            assert (row["answer_confidence"] > 0.5) is is_there, name


def test_it_is_high_in_every_spelling_of_what_is_there(corpus: Connection) -> None:
    for text, number in (
        ("PO88213", 1),
        ("PO 88213", 1),
        ("INC-0012345", 3),
        ("v2.4.1", 4),
        ("LH454", 6),
        ("LH-454", 6),
        ("get user name", 7),
        ("KB 5001330", 8),
    ):
        rows = search(corpus, query_text=text)
        assert rows[0]["id"].int == number, text
        assert rows[0]["answer_confidence"] > HIGH, text


def test_a_known_piece_does_not_weigh_as_the_unknown_word(knowledge: Connection) -> None:
    store(knowledge, "Room 29", "The VPN fails with error 809", "gardens")
    rows = search(knowledge, query_text="aGVsbG8gd29ybGQ= " * 40 + "vpn error 809")
    assert numbers(rows)[0] == 2

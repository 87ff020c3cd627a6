"""From questions to better settings in a real browser: judge by keyboard, tune, apply, search."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest
from windows import headless, needs_chromium, served, window

from conftest import Server, copy_of
from judged import (
    COLLECTION,
    DIMENSIONS,
    WORDS,
    embedder,
    fill,
    judge_enough,
    use_the_worse_leg,
)
from second_brain.services.write import KnowledgeWriter

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = needs_chromium

ASKED = WORDS[:3]


@pytest.fixture
def corpus_dsn(server: Server) -> Iterator[str]:
    """The owner's DSN of a database of this test's own."""
    yield from copy_of(server, server.template(DIMENSIONS))


@pytest.fixture
def writer(corpus_dsn: str) -> Iterator[KnowledgeWriter]:
    """A corpus with bad settings and no judgment."""
    with psycopg.connect(corpus_dsn, autocommit=True) as connection:
        writer = fill(connection)
        writer.delete_judgments(collection=COLLECTION)
        use_the_worse_leg(writer)
        yield writer


@pytest.fixture
def page(corpus_dsn: str) -> Iterator["Page"]:
    """A window at a workbench on the corpus."""
    with (
        served(corpus_dsn, embedder=embedder()) as address,
        headless() as browser,
        window(browser, address) as opened,
    ):
        yield opened


def first_hit(page: "Page") -> str:
    page.goto(f"/?q=apples&collections={COLLECTION}")
    return str(page.locator('[data-list="hybrid"] .excerpt').first.text_content()).split()[0]


def test_judged_by_keyboard_tuned_applied_and_the_search_changes(
    page: "Page", writer: KnowledgeWriter
) -> None:
    from playwright.sync_api import expect

    assert first_hit(page) == "bananas"

    page.goto(f"/judge?collection={COLLECTION}")
    page.get_by_label("Questions, one in each line").fill("\n".join(ASKED))
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("link", name="Judge the first one").click()
    for place, word in enumerate(ASKED):
        page.wait_for_url(f"**/judge?q={word}*")
        # The first chunk that is not judged has the focus; j goes on to the right one.
        contents = [
            text.split()[0] for text in page.locator(".candidate .content").all_inner_texts()
        ]
        for _ in range(contents.index(word)):
            page.keyboard.press("j")
        page.keyboard.press("3")
        page.keyboard.press("u")
        expect(page.locator("#announcement")).to_have_text("Undone")
        expect(page.locator("#marked")).to_have_text("0")
        assert len(writer.judgments(COLLECTION)) == place
        page.keyboard.press("1")
        expect(page.locator("#marked")).to_have_text("1")
        page.keyboard.press("n")
    page.wait_for_url("**/judge?collection=*")
    stored = writer.judgments(COLLECTION)
    assert [(one.question, one.document_key, one.grade) for one in stored] == [
        (word, word, 2) for word in ASKED
    ]

    judge_enough(writer)
    page.goto(f"/judge?collection={COLLECTION}")
    expect(page.locator("[data-judged]")).to_have_text("24 questions judged, 30 are better")
    page.get_by_role("button", name="Find better settings").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#tuned")
    page.get_by_role("button", name="Store these settings").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**stored=1*")
    assert first_hit(page) == "apples"

    page.set_viewport_size({"width": 400, "height": 800})
    for path in (f"/measure?collection={COLLECTION}", "/judge?q=apples", "/judge"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400

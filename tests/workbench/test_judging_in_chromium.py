"""From questions to better settings in a real browser: judge by keyboard, tune, apply, search."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest
import uvicorn

from conftest import Server, copy_of
from judged import COLLECTION, DIMENSIONS, WORDS, embedder, fill, judge_enough, use_the_worse_leg
from second_brain.services.write import KnowledgeWriter
from second_brain.workbench.app import create_app

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = os.environ.get("CHROMIUM_BIN") or shutil.which("chromium") or shutil.which("chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH or in CHROMIUM_BIN")

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
    """A window at a workbench, served as the command serves it; its console must stay empty."""
    playwright = pytest.importorskip("playwright.sync_api")
    app = create_app(corpus_dsn, embedder=embedder())
    complaints: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening, playwright.sync_playwright() as one:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        # Chromium has no sandbox for root.
        browser = one.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(
            base_url=f"http://127.0.0.1:{listening.getsockname()[1]}",
            viewport={"width": 1280, "height": 900},
        ).new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        browser.close()
        server.should_exit = True
        thread.join()
    assert complaints == []


def first_hit(page: "Page") -> str:
    page.goto(f"/?q=apples&collections={COLLECTION}")
    return str(page.locator('[data-list="hybrid"] .excerpt').first.text_content()).split()[0]


def test_judged_by_keyboard_and_tuned_a_search_changes(
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

"""The workbench in a real browser: keyboard, narrow window, console, and from judging to tuning."""

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import uvicorn

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
from opened_workbench import SCRIPT
from second_brain.models import load_embedder
from second_brain.services.write import KnowledgeWriter
from second_brain.workbench.app import create_app

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

CHROMIUM = os.environ.get("CHROMIUM_BIN") or shutil.which("chromium") or shutil.which("chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH or in CHROMIUM_BIN")


@contextmanager
def served(dsn: str, **options: Any) -> Iterator[str]:
    """Serve a workbench as the command does; yield its address."""
    app = create_app(dsn, **options)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        # Chromium has no sandbox for root.
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def window(browser: "Browser", address: str) -> Iterator["Page"]:
    """Open a wide window, whose console must stay empty."""
    complaints: list[str] = []
    context = browser.new_context(base_url=address, viewport={"width": 1360, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def note_dialog(dialog: "Dialog") -> None:
        complaints.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", note_dialog)
    yield page
    context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def address(library_dsn: str) -> Iterator[str]:
    """The address of a workbench on the library."""
    model = load_embedder("wordllama")
    with served(library_dsn, embedder=model, embedder_name="wordllama") as address:
        yield address


@pytest.fixture
def page(chromium: "Browser", address: str) -> Iterator["Page"]:
    with window(chromium, address) as opened:
        yield opened


def _wait_until(page: "Page", condition: str) -> None:
    """Wait for a condition; the content policy forbids wait_for_function()."""
    page.evaluate(
        f"async () => {{ while (!({condition})) await new Promise(requestAnimationFrame); }}"
    )


def test_a_question_is_asked_and_read_with_the_keyboard_alone(page: "Page") -> None:
    page.goto("/")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("which key opens a door?")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=which+key*")
    page.wait_for_selector("#links path", state="attached")
    focused = "document.activeElement.dataset"
    page.locator("body").press("j")
    assert page.evaluate(f"{focused}.list") == "hybrid"
    first = page.evaluate(f"{focused}.hit")
    page.keyboard.press("j")
    assert page.evaluate(f"{focused}.hit") != first
    page.keyboard.press("k")
    page.keyboard.press("h")
    assert page.evaluate(f"[{focused}.list, {focused}.hit]") == ["vector", first]
    page.keyboard.press("Enter")
    assert page.locator('[data-list="vector"] details').first.get_attribute("open") is not None
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    page.keyboard.press("w")
    page.wait_for_url("**/why-not?q=which*key=*")
    page.wait_for_selector("text=Found, at place 1")


def test_lines_join_the_places_of_a_hit_and_follow_the_window(page: "Page") -> None:
    page.goto("/?q=which+key+opens+a+door%3F")
    ends = """[...document.querySelectorAll("#links path.text")].map((line) => {
      const box = document.getElementById("lists").getBoundingClientRect();
      const at = line.getPointAtLength(line.getTotalLength());
      const hit = document.querySelector(
        `[data-list="text"][data-hit="${line.dataset.link}"]`).getBoundingClientRect();
      return Math.abs(at.x + box.left - hit.left) < 2 && at.y + box.top >= hit.top
        && at.y + box.top <= hit.bottom;
    })"""
    page.wait_for_selector("#links path", state="attached")
    both = page.evaluate(
        """[...document.querySelectorAll('[data-list="text"]')].map((one) => one.dataset.hit)"""
    )
    assert page.evaluate(ends) == [True] * len(both)
    page.set_viewport_size({"width": 1100, "height": 900})
    _wait_until(page, f"{ends}.every((fits) => fits)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_needs_no_sideways_scrolling(
    chromium: "Browser", address: str, scheme: str
) -> None:
    context = chromium.new_context(
        base_url=address,
        viewport={"width": 400, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    for path in (
        "/",
        "/?q=zebra&types=document",
        "/why-not?q=zebra&key=cars.md",
        "/corpus",
        "/documents",
        "/document?key=cars.md",
        "/settings",
        "/nowhere",
    ):
        page.goto(path, wait_until="networkidle")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 400, path
        text, behind = page.evaluate(
            "[getComputedStyle(document.body).color, "
            "getComputedStyle(document.documentElement).backgroundColor]"
        )
        assert _contrast(text, behind) >= 4.5, path
    context.close()


def test_scripts_in_the_corpus_do_not_run(page: "Page") -> None:
    # The fixture fails on an alert and on a violation of the policy.
    page.goto("/?q=zebra", wait_until="networkidle")
    page.locator('[data-list="text"] summary').first.click()
    page.locator("#explanation > summary").click()
    page.wait_for_selector("#explanation table")
    page.locator("#more > summary").click()
    assert SCRIPT in page.inner_text("#search")
    assert SCRIPT in page.inner_text("#lists")


def test_the_parts_of_the_corpus_page_are_loaded_and_lead_on(page: "Page") -> None:
    page.goto("/corpus", wait_until="networkidle")
    assert SCRIPT in page.inner_text("main")
    assert page.locator("main [aria-busy]").count() == 0
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.querySelector('h2').innerText") == "Documents"
    page.keyboard.press("/")
    page.keyboard.type("a key of iron")
    page.keyboard.press("Enter")
    page.wait_for_url("**/corpus/map?q=a+key+of+iron**")
    page.get_by_role("link", name="Doors", exact=True).last.click()
    page.wait_for_url("**/chunk/*")
    assert "Every door of the house" in page.inner_text("article")


def test_only_what_differs_from_its_default_is_in_the_address(page: "Page") -> None:
    page.goto("/")
    page.fill('[name="q"]', "zebra")
    page.fill('[name="limit"]', "3")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=zebra&limit=3")
    page.select_option('[name="fusion"]', "rrf")
    page.wait_for_url("**/?q=zebra&fusion=rrf&limit=3")


def test_groups_of_conditions_are_built_by_clicks_and_read_back(page: "Page") -> None:
    page.goto("/?q=zebra")
    page.locator("#more > summary").click()
    builder = page.locator("#builder")
    builder.locator("summary").click()
    builder.get_by_role("button", name="Add a group").click()
    group = builder.locator(".group")
    group.locator("[data-kind]").select_option("not")
    group.get_by_role("button", name="Add a condition").click()
    for place, (field, op, value) in enumerate(
        (("external_key", "in", "a.md, cars.md"), ("document_date", "is_not_null", ""))
    ):
        row = group.locator(".condition").nth(place)
        row.locator("[data-field]").fill(field)
        row.locator("[data-op]").select_option(op)
        if value:
            row.locator("[data-value]").fill(value)
    wanted = [
        {"field": "external_key", "op": "in", "value": ["a.md", "cars.md"]},
        {"field": "document_date", "op": "is_not_null"},
    ]
    written = page.get_by_role("textbox", name="More filters, in JSON")
    assert json.loads(written.input_value()) == [{"not": {"any": wanted}}]
    page.get_by_role("searchbox", name="Question").press("Enter")
    page.wait_for_url("**filters=**")
    assert json.loads(written.input_value()) == [{"not": {"any": wanted}}]
    assert builder.locator(".condition").count() == 2
    builder.locator(".condition [data-remove]").first.evaluate("one => one.click()")
    assert json.loads(written.input_value()) == [{"not": {"any": wanted[1:]}}]


def test_the_call_is_copied(page: "Page") -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/?q=zebra")
    page.get_by_role("button", name="Copy SQL").click()
    _wait_until(page, "document.getElementById('announcement').textContent === 'Copied'")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("#as-sql").text_content()


def _contrast(one: str, other: str) -> float:
    """Return the contrast of two colours by WCAG 2.2, from 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


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
def judging(chromium: "Browser", corpus_dsn: str) -> Iterator["Page"]:
    """A window at a workbench on the corpus."""
    with (
        served(corpus_dsn, embedder=embedder()) as address,
        window(chromium, address) as opened,
    ):
        yield opened


def first_hit(page: "Page") -> str:
    page.goto(f"/?q=apples&collections={COLLECTION}")
    return str(page.locator('[data-list="hybrid"] .excerpt').first.text_content()).split()[0]


def test_judged_by_keyboard_tuned_applied_and_the_search_changes(
    judging: "Page", writer: KnowledgeWriter
) -> None:
    from playwright.sync_api import expect

    page = judging

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

"""The workbench in a real browser: keyboard, narrow window, lines, console."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from windows import headless, needs_chromium, served, window

from opened_workbench import SCRIPT
from second_brain.models import load_embedder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def address(library_dsn: str) -> Iterator[str]:
    """The address of a workbench on the library."""
    model = load_embedder("wordllama")
    with served(library_dsn, embedder=model, embedder_name="wordllama") as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    with headless() as browser:
        yield browser


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

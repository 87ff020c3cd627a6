"""The pages Search and Why not: lists, shares, state in the address, copied calls, causes."""

import json
import re
import shutil
import subprocess
import sys
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import psycopg
import pytest
from bs4 import BeautifulSoup, Tag
from starlette.datastructures import QueryParams
from starlette.testclient import TestClient

from corpora import store_document
from opened_workbench import OWNER, SCRIPT, browser_of, page_of
from second_brain.database import migrations
from second_brain.filters import OPERATORS
from second_brain.models import CallableEmbedder
from second_brain.services.arguments import FUSIONS
from second_brain.services.results import REMEDIES
from second_brain.workbench.pages.why_not import TITLES
from second_brain.workbench.question import Question, read_question

QUESTION = "which key opens the door of a house?"
OTHER = OWNER[:-1] + "2"
SHOWN = f"\"'>{SCRIPT}"
"""The title of the last document."""


def _page(browser: TestClient, **asked: Any) -> BeautifulSoup:
    return page_of(browser, "/", **asked)


def _keys(page: BeautifulSoup, leg: str) -> list[str]:
    return [hit.get_text() for hit in page.select(f'[data-list="{leg}"] summary code')]


def _first(page: Tag, selector: str) -> Tag:
    found = page.select_one(selector)
    assert found is not None, selector
    return found


def _text(page: Tag, selector: str) -> str:
    return _first(page, selector).get_text()


def test_each_leg_has_its_list_and_the_fused_one_stands_beside_it(library: TestClient) -> None:
    page = _page(library, q=QUESTION)
    assert {_keys(page, leg)[0] for leg in ("hybrid", "text", "vector")} == {"doors.md"}
    # The text leg finds only what has a word of the question; the vector leg ranks everything.
    assert "cars.md" in _keys(page, "vector")
    assert "cars.md" not in _keys(page, "text")
    first = _first(page, '[data-list="hybrid"]')
    assert _text(first, ".ranks").split() == ["v", "1", "t", "1"]
    assert [mark.get_text() for mark in first.select("mark")] == ["door", "house", "key"]


def test_hits_off_the_subject_are_called_so(library: TestClient) -> None:
    off = _page(library, q="tulips and violets bloom beside a door", legs="text")
    assert "off the subject" in _text(off, ".note")
    assert "off the subject" not in _page(library, q=QUESTION).get_text()


@pytest.mark.parametrize("fusion", FUSIONS)
def test_the_bar_of_a_hit_adds_up_to_its_score(library: TestClient, fusion: str) -> None:
    page = _page(library, q=QUESTION, fusion=fusion, vector_weight=2)
    shares = {}
    for hit in page.select('[data-list="hybrid"]'):
        widths = {str(one["class"][0]): float(str(one["width"])) for one in hit.select("rect")}
        vector, text = (one.get_text(strip=True)[2:] for one in hit.select(".rank"))
        # The last of a leg scaled to 0..1 has a score of 0, and so no parts.
        if sum(widths.values()) > 0:
            shares[vector, text] = widths["part-vector"] / sum(widths.values())
        # A leg that did not find the hit has no colour.
        assert ("part-vector" in widths) <= (vector != "-")
        assert ("part-text" in widths) <= (text != "-")
    assert ("1", "1") in shares
    only_vector = [share for (_, text), share in shares.items() if text == "-"]
    assert set(only_vector) == {1}
    if fusion == "rrf":
        for (vector, text), share in shares.items():
            if text != "-":
                by_vector, by_text = 2 / (60 + int(vector)), 1 / (60 + int(text))
                assert share == pytest.approx(by_vector / (by_vector + by_text), abs=0.01)


def test_what_auto_assumes_for_a_leg_without_the_hit_is_grey(library: TestClient) -> None:
    # The text leg alone finds keys.md, whose similarity is below the threshold.
    page = _page(library, q=QUESTION, fusion="auto", threshold=0.3)
    hit = page.select('[data-list="hybrid"]')[1]
    assert _text(hit, ".ranks").split() == ["v", "-", "t", "2"]
    assert [one["class"] for one in hit.select("rect")] == [["part-assumed"], ["part-text"]]
    label = str(_first(hit, ".share")["aria-label"])
    assert re.fullmatch(r"Of the score: \d+ % assumed for vector, \d+ % from text", label), label


def test_the_first_page_offers_questions_that_find_their_documents(library: TestClient) -> None:
    links = _page(library).select(".examples a")
    # The title without a space comes after the one that has some; at most six are offered.
    titles = {link.get_text() for link in links}
    assert titles == {"Keys", "Doors", "Fruit", "Cars", "Budget", SHOWN}
    for link in links:
        found = page_of(library, str(link["href"])).select('[data-list="hybrid"] h3')
        assert link.get_text() in [title.get_text() for title in found]


@pytest.mark.parametrize(
    ("asked", "hidden"),
    [
        ({"viewer": OTHER}, "Budget"),
        ({"groups": "staff"}, "Budget"),
        ({"public": "1"}, "Budget"),
        ({"collections": "knowledge"}, SHOWN),
    ],
)
def test_the_questions_offered_to_a_viewer_name_no_hidden_document(
    library: TestClient, asked: dict[str, str], hidden: str
) -> None:
    offered = [link.get_text() for link in _page(library, **asked).select("main a")]
    assert ("Doors" in offered, hidden in offered) == (True, False)


@pytest.mark.parametrize(
    ("legs", "question"), [("hybrid", ""), ("vector", "the"), ("text", "zebra")]
)
def test_more_like_this_needs_no_embedder(library_dsn: str, legs: str, question: str) -> None:
    with browser_of(library_dsn, embedder_name="none") as browser:
        link = _first(_page(browser, q="key", legs="text"), '[data-list="text"] a[href*=like_ids]')
        (like,) = re.findall(r"like_ids=([\w-]+)", str(link["href"]))
        page = _page(browser, q=question, legs=legs, like_ids=like)
        if legs != "text":
            assert _keys(page, "vector")


def test_an_empty_corpus_says_so(shared_dsn: str) -> None:
    with browser_of(shared_dsn) as browser:
        assert "Nothing is stored yet" in _text(_page(browser), ".welcome")


def test_corpus_text_never_becomes_html(library: TestClient) -> None:
    pages = [
        "/",
        "/?q=zebra",
        "/?" + urlencode({"q": SCRIPT, "viewer": SCRIPT, "filters": SCRIPT, "collections": SCRIPT}),
        "/search/filters?" + urlencode({"collections": f"wild{SCRIPT}"}),
        "/?" + urlencode({"q": f"zebra {SCRIPT}"}),
        "/why-not/answer?" + urlencode({"q": "automobile", "key": f'"><{SCRIPT}'}),
        "/why-not/answer?" + urlencode({"q": "automobile", "key": SCRIPT}),
        "/why-not?" + urlencode({"q": f"zebra {SCRIPT}", "key": SCRIPT, "types": SCRIPT}),
    ]
    ours = {f"/static/{name}.js" for name in ("workbench", "search", "filters")}
    for path in pages:
        text = library.get(path).text
        assert "&lt;script" in text, path
        elements = BeautifulSoup(text, "html.parser").find_all(True)
        assert {one.get("src") for one in elements if one.name == "script"} <= ours, path
        names = [name for one in elements for name in (one.name, *one.attrs)]
        assert not [name for name in names if name == "img" or name.startswith("on")], path


def test_a_mark_in_the_text_is_not_a_mark_of_the_search(library: TestClient) -> None:
    hit = _first(_page(library, q="zebra"), '[data-list="text"] .excerpt')
    assert "<mark>zebra</mark>" in hit.get_text()
    assert [mark.get_text() for mark in hit.select("mark")] == ["zebra", "zebra"]


def test_the_address_holds_the_state() -> None:
    given = Question(
        query="a & b",
        mode="text",
        fusion="rrf",
        limit=3,
        vector_weight=0.25,
        types=("note", "decision"),
        filters='{"team": "x"}',
        viewer_id=UUID(OWNER),
        viewer_groups=("a", "b"),
        public_only=True,
        recency_half_life=30.0,
        order_by="document_date asc",
    )
    read, problems = read_question(QueryParams(given.address("/").partition("?")[2]))
    assert (read, problems) == (given, [])
    assert Question().address("/") == "/"


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"pool": "many"}, "pool must be a whole number"),
        ({"filters": "{"}, "filters is not JSON"),
        ({"filters": '{"knowledge_type": "x"}'}, "knowledge_type"),
        ({"limit": "0"}, "limit must be greater than or equal to 1"),
    ],
)
def test_a_wrong_value_is_named_beside_the_form(
    library: TestClient, asked: dict[str, str], named: str
) -> None:
    page = page_of(library, "/", 400, q="key", **asked)
    assert named in page.get_text()
    assert _first(page, '[name="q"]')["value"] == "key"


def test_search_as_shows_what_that_viewer_may_see(library: TestClient) -> None:
    for asked, is_shown in (({}, True), ({"viewer": OWNER}, True), ({"viewer": OTHER}, False)):
        keys = _keys(_page(library, q="automobile budget", **asked), "hybrid")
        assert ("budget.md" in keys) is is_shown, asked


def test_filters_are_offered_with_their_counts(library: TestClient) -> None:
    page = page_of(library, "/search/filters", types=["decision", "x"])
    types = {
        str(box["value"]): box.parent.get_text(" ", strip=True)
        for box in page.select('[name="types"]')
        if box.parent is not None
    }
    assert types == {"document": "document 5", "decision": "decision 1", "x": "x"}
    chosen = [str(one["value"]) for one in page.select("[checked]")]
    assert chosen == ["decision", "x"]
    page = _page(library, q="automobile", types="decision")
    assert _keys(page, "hybrid") == ["budget.md"]


ASKED = {
    "q": 'o\'neil\\ "key" \u00fc',
    "vector_weight": "0.5",
    "types": ["document", "note"],
    "filters": '{"metadata.a\'b": "c\\\\d"}',
    "collections": ["knowledge", "it's"],
    "date_to": "2030-01-01",
    "viewer": OWNER,
    "groups": "a,b'c",
    "half_life": "30",
    "documents": "1",
    "limit": "4",
}


@pytest.mark.parametrize("asked", [{"q": QUESTION}, {"q": QUESTION, "legs": "text"}, ASKED])
def test_the_copied_calls_find_the_same(
    library: TestClient, library_dsn: str, asked: dict[str, object]
) -> None:
    page = _page(library, **asked)
    shown = _keys(page, "hybrid") or _keys(page, "text")
    with psycopg.connect(library_dsn) as connection:
        statement = _text(page, "#as-sql").encode()
        by_sql = [row[5] for row in connection.execute(statement)]
    program = _text(page, "#as-python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={"SECOND_BRAIN_DSN": library_dsn, "PATH": "", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    by_python = [line.split()[1] for line in done.stdout.splitlines() if line]
    assert by_sql == shown
    assert by_python == shown


def test_another_embedder_is_told_and_text_hits_give_the_embedding(
    library_dsn: str, three_words: CallableEmbedder
) -> None:
    with browser_of(library_dsn, embedder=three_words) as browser:
        page = _page(browser, q="automobile")
        assert (
            "(256 dimensions), and the question would be with three words (3 dim" in page.get_text()
        )
        assert "cars.md" in _keys(page, "text")
        assert "Its best text hits give it one." in page.get_text()
    with browser_of(library_dsn) as browser:
        page = _page(browser, q="automobile")
        assert "without an embedder" in page.get_text()
        assert "cars.md" in _keys(page, "text")
        hybrid = _keys(page, "hybrid")
        assert len(hybrid) > len(_keys(page, "text"))
        with psycopg.connect(library_dsn) as connection:
            statement = _text(page, "#as-sql").encode()
            assert [row[5] for row in connection.execute(statement)] == hybrid


def test_more_like_a_hit_is_one_click_away(library: TestClient) -> None:
    page = _page(library, q=QUESTION)
    hit = _first(page, '[data-list="hybrid"]')
    (more,) = (link for link in hit.select("a") if link.get_text() == "More like this")
    page = page_of(library, str(more["href"]))
    assert "doors.md" not in _keys(page, "hybrid")
    box = _first(page, 'input[name="like_ids"][checked]')
    (back,) = (link for link in page.select(".note a") if link.get_text() == "Leave it out")
    assert "like_ids" not in back["href"]
    assert f"like_ids => '{{{box['value']}}}'" in _text(page, "#as-sql")
    # Without a question, what is related.
    alone = _page(library, like_ids=box["value"])
    assert _keys(alone, "vector")
    assert "doors.md" not in _keys(alone, "hybrid")
    wrong = library.get("/?like_ids=x")
    assert "like_ids must be a UUID, not" in wrong.text


def test_a_search_without_a_hit_says_why(library: TestClient) -> None:
    page = _page(library, q="zebra", filters='{"nowhere": "at all"}')
    assert not _keys(page, "hybrid")
    assert "metadata.nowhere" in " ".join(note.get_text() for note in page.select(".note"))
    assert not [one for one in _page(library, q="zebra").select(".note") if "No " in one.get_text()]


def test_texts_of_the_corpus_have_their_own_direction(library: TestClient) -> None:
    page = _page(library, q="zebra")
    texts = page.select('input[type="search"], .hit h3, .hit .excerpt, .hit .content')
    assert len(texts) > 3
    assert {one.get("dir") for one in texts} == {"auto"}
    (document,) = {str(one["href"]) for one in page.select(".hit a[href^='/document/']")[:1]}
    shown = page_of(library, document)
    assert {one.get("dir") for one in shown.select("h1, .chunk .content")} == {"auto"}


BUILT = """
const run = { document: undefined };
const vm = require("node:vm");
vm.createContext(run);
const source = require("node:fs").readFileSync(0, "utf8");
vm.runInContext(source + ";Object.assign(globalThis, { listed, read, write })", run);
const [given, columns] = process.argv.slice(1).map(JSON.parse);
const built = run.listed(given, columns).map((one) => run.write(run.read(one, columns)));
console.log(JSON.stringify(built));
"""
ENGLISH = {"field": "language", "op": "eq", "value": "english"}
HOUSE = {"field": "text", "op": "has_any_word", "value": ["house"]}


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js on PATH")
@pytest.mark.parametrize(
    "given",
    [
        {"knowledge_type": "decision", "language": "english"},
        [{"any": [{"knowledge_type": "decision"}, {"not": HOUSE}]}],
        {"not": {"any": [HOUSE, {"room": "hall"}]}, "language": "english"},
        [{"not": {"knowledge_type": "decision", "language": "english"}}],
        [{"all": [ENGLISH, {"all": [HOUSE, {"field": "owner_id", "op": "is_null"}]}]}],
    ],
)
def test_the_builder_keeps_the_meaning_of_a_filter(
    library: TestClient, given: dict[str, object] | list[object]
) -> None:
    page = _page(library)
    offered = {one["value"] for one in page.find_all("option", attrs={"data-takes": True})}
    assert offered == {*OPERATORS}
    columns = json.dumps([one["value"] for one in page.select("#builder-fields option")])
    node = ["node", "-e", BUILT, json.dumps(given), columns]
    script = library.get("/static/filters.js").text
    done = subprocess.run(node, input=script, capture_output=True, text=True, check=True)
    built = json.loads(done.stdout)
    assert all(len(one) == 1 or "field" in one for one in built)
    found, wanted = (
        _keys(_page(library, legs="vector", q=QUESTION, filters=json.dumps(one)), "vector")
        for one in (built, given)
    )
    assert found == wanted


@pytest.mark.parametrize(
    ("question", "asked", "key", "cause", "remedy"),
    [
        (
            *("automobile", {"types": "decision"}, "cars.md"),
            *("A filter leaves it out", "Leave out this filter"),
        ),
        (
            *("automobile -engine", {"legs": "text"}, "cars.md"),
            *("It has a word that the question excludes", "Ask without"),
        ),
        (
            *("bananas", {"legs": "text"}, "cars.md"),
            *("It has no word of the question", "Ask with a word"),
        ),
        ("bananas", {}, "nowhere.md", "Not in the database", "Check the name"),
    ],
)
def test_why_not_names_a_cause_with_its_remedy(
    library: TestClient, question: str, asked: dict[str, Any], key: str, cause: str, remedy: str
) -> None:
    page = page_of(library, "/why-not/answer", q=question, key=key, **asked)
    (named,) = (one for one in page.select(".causes li") if cause in one.get_text())
    assert remedy in named.get_text()


def test_every_cause_has_a_title_and_a_remedy() -> None:
    assert TITLES.keys() == REMEDIES.keys()


def test_why_not_says_of_a_document_on_the_page_that_it_is_found(library: TestClient) -> None:
    page = page_of(library, "/why-not/answer", q="which fruit is yellow?", key="fruit.md")
    assert "Found, at place 1" in page.get_text()
    assert page.select(".causes") == []


def test_one_click_leads_from_the_search_to_why_not_with_its_state(library: TestClient) -> None:
    def hidden(page: Tag) -> dict[str, str]:
        fields = page.select('[type="hidden"]')
        return {str(one["name"]): str(one.get("value")) for one in fields}

    page = _page(library, q="automobile", types="decision", pool=20)
    why = page_of(library, str(_first(page, "[data-why]")["href"]))
    assert "/why-not/answer?q=automobile&amp;pool=20&amp;types=decision&amp;key=" in str(why)
    assert hidden(why) == {"types": "decision", "pool": "20"}
    form = _first(page, 'form[action="/why-not"]')
    assert hidden(form) == {"q": "automobile", "types": "decision", "pool": "20"}


def test_a_page_that_needs_a_module_names_it(plain_dsn: str, three_words: CallableEmbedder) -> None:
    # Over core alone.
    migrations.apply(plain_dsn, dimensions=3)
    store_document(plain_dsn, "a", {"Bread.": [1, 0, 0]}, three_words.model)
    with browser_of(plain_dsn, embedder=three_words) as browser:
        for address in ("/search/filters?q=bread&types=note", "/corpus/checks"):
            assert browser.get(address).status_code == 200, address
        for address in ("/?q=bread", "/corpus", "/documents", "/judge", "/measure"):
            failed = browser.get(address)
            assert failed.status_code == 500, address
            assert "second-brain migrate --with insight" in failed.text, address
        settings = browser.get("/settings")
        assert settings.status_code == 200
        assert "schema public, core alone" in settings.text
        assert "second-brain migrate --with words" in settings.text
        synonym = {"change": "store_synonym", "term": "bill", "synonym": "invoice"}
        refused = browser.post("/settings", data={**synonym, "confirmed": "1"})
        assert refused.status_code == 500
        assert "second-brain migrate --with words" in refused.text

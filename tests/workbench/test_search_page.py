"""The page Search over six documents: lists, shares, state in the address, copied calls."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import urlencode
from uuid import UUID

import psycopg
import pytest
from bs4 import BeautifulSoup, Tag
from starlette.datastructures import QueryParams
from starlette.testclient import TestClient

from opened_workbench import OWNER, SCRIPT, browser_of
from second_brain.filters import OPERATORS
from second_brain.models import CallableEmbedder
from second_brain.workbench.question import Question, read_question

QUESTION = "which key opens the door of a house?"
SHOWN = f"\"'>{SCRIPT}"
"""The title of the last document."""


def _page(browser: TestClient, **asked: object) -> BeautifulSoup:
    answer = browser.get("/?" + urlencode(asked, doseq=True))
    assert answer.status_code == 200, answer.text
    return BeautifulSoup(answer.text, "html.parser")


def _keys(page: BeautifulSoup, leg: str) -> list[str]:
    hits = page.select(f'[data-list="{leg}"] summary code')
    return [hit.get_text() for hit in hits]


def _first(page: Tag, selector: str) -> Tag:
    found = page.select_one(selector)
    assert found is not None, selector
    return found


def _text(page: Tag, selector: str) -> str:
    return _first(page, selector).get_text()


def test_each_leg_has_its_list_and_the_fused_one_stands_beside_it(library: TestClient) -> None:
    page = _page(library, q=QUESTION)
    assert _keys(page, "hybrid")[0] == "doors.md"
    assert _keys(page, "text")[0] == "doors.md"
    assert _keys(page, "vector")[0] == "doors.md"
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


@pytest.mark.parametrize("fusion", ["rrf", "relative_score", "auto"])
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
    assert {link.get_text() for link in links} == {
        "Keys",
        "Doors",
        "Fruit",
        "Cars",
        "Budget",
        SHOWN,
    }
    for link in links:
        answer = library.get(str(link["href"]))
        titles = BeautifulSoup(answer.text, "html.parser").select('[data-list="hybrid"] h3')
        assert link.get_text() in [title.get_text() for title in titles]


def test_the_questions_offered_to_a_viewer_name_no_private_document(library: TestClient) -> None:
    for asked in ({"viewer": OWNER[:-1] + "2"}, {"groups": "staff"}, {"public": "1"}):
        offered = [link.get_text() for link in _page(library, **asked).select(".examples a")]
        assert "Doors" in offered, asked
        assert "Budget" not in offered, asked
    offered = [link.get_text() for link in _page(library, collections="knowledge").select("main a")]
    assert "Doors" in offered
    assert SHOWN not in offered


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
    for path in pages:
        text = library.get(path).text
        assert "&lt;script" in text, path
        found = _Elements(text)
        assert found.scripts <= {
            f"/static/{name}.js" for name in ("workbench", "search", "filters")
        }, path
        assert found.handlers == [], path
        assert "img" not in found.names, path


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
    answer = library.get("/?" + urlencode({"q": "key", **asked}))
    assert answer.status_code == 400
    assert named in BeautifulSoup(answer.text, "html.parser").get_text()
    assert 'value="key"' in answer.text


def test_search_as_shows_what_that_viewer_may_see(library: TestClient) -> None:
    other = OWNER[:-1] + "2"
    assert "budget.md" in _keys(_page(library, q="automobile budget"), "hybrid")
    assert "budget.md" in _keys(_page(library, q="automobile budget", viewer=OWNER), "hybrid")
    assert "budget.md" not in _keys(_page(library, q="automobile budget", viewer=other), "hybrid")


def test_filters_are_offered_with_their_counts(library: TestClient) -> None:
    page = BeautifulSoup(library.get("/search/filters?types=decision&types=x").text, "html.parser")
    types = {
        str(box["value"]): box.parent.get_text(" ", strip=True)
        for box in page.select('[name="types"]')
        if box.parent is not None
    }
    assert types == {"document": "document 5", "decision": "decision 1", "x": "x"}
    chosen = [str(one["value"]) for one in page.select("[checked]")]
    assert chosen == ["decision", "x"]
    found = _keys(_page(library, q="automobile", types="decision"), "hybrid")
    assert found == ["budget.md"]


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


class _Elements(HTMLParser):
    """What a browser would make of a page: elements, sources of scripts, event handlers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.scripts: set[str | None] = set()
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        if tag == "script":
            self.scripts.add(dict(attrs).get("src"))
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_more_like_a_hit_is_one_click_away(library: TestClient) -> None:
    page = _page(library, q=QUESTION)
    hit = _first(page, '[data-list="hybrid"]')
    (more,) = (link for link in hit.select("a") if link.get_text() == "More like this")
    answer = library.get(str(more["href"]))
    assert answer.status_code == 200
    page = BeautifulSoup(answer.text, "html.parser")
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
    shown = BeautifulSoup(library.get(document).text, "html.parser")
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

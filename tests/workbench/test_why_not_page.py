"""The page Why not: ranks, and each cause with what to do."""

from urllib.parse import urlencode

import pytest
from bs4 import BeautifulSoup
from starlette.testclient import TestClient

from second_brain.services.results import REMEDIES
from second_brain.workbench.pages.why_not import TITLES


def _page(browser: TestClient, **asked: object) -> BeautifulSoup:
    answer = browser.get("/why-not/answer?" + urlencode(asked, doseq=True))
    assert answer.status_code == 200, answer.text
    return BeautifulSoup(answer.text, "html.parser")


@pytest.mark.parametrize(
    ("asked", "key", "cause", "remedy"),
    [
        (
            {"q": "automobile", "types": "decision"},
            "cars.md",
            "A filter leaves it out",
            "Leave out this filter",
        ),
        (
            {"q": "automobile -engine", "legs": "text"},
            "cars.md",
            "It has a word that the question excludes",
            "Ask without",
        ),
        (
            {"q": "bananas", "legs": "text"},
            "cars.md",
            "It has no word of the question",
            "Ask with a word",
        ),
        ({"q": "bananas"}, "nowhere.md", "Not in the database", "Check the name"),
    ],
)
def test_a_cause_is_named_with_its_remedy(
    library: TestClient, asked: dict[str, object], key: str, cause: str, remedy: str
) -> None:
    page = _page(library, **asked, key=key)
    named = [one for one in page.select(".causes li") if cause in one.get_text()]
    assert len(named) == 1
    assert remedy in named[0].get_text()


def test_every_cause_has_a_title_and_a_remedy() -> None:
    assert TITLES.keys() == REMEDIES.keys()


def test_a_document_on_the_page_is_said_to_be_found(library: TestClient) -> None:
    page = _page(library, q="which fruit is yellow?", key="fruit.md")
    assert "Found, at place 1" in page.get_text()
    assert page.select(".causes") == []


def test_one_click_leads_here_from_the_search_with_its_state(library: TestClient) -> None:
    text = library.get("/?q=automobile&types=decision&pool=20").text
    page = BeautifulSoup(text, "html.parser")
    link = page.select_one("[data-why]")
    assert link is not None
    why = library.get(str(link["href"])).text
    assert "/why-not/answer?q=automobile&amp;pool=20&amp;types=decision&amp;key=" in why
    hidden = {
        str(one["name"]): str(one["value"])
        for one in BeautifulSoup(why, "html.parser").select('[type="hidden"]')
    }
    assert hidden == {"types": "decision", "pool": "20"}
    form = page.select_one('form[action="/why-not"]')
    assert form is not None
    fields = {str(one["name"]): str(one.get("value")) for one in form.select('[type="hidden"]')}
    assert fields == {"q": "automobile", "types": "decision", "pool": "20"}

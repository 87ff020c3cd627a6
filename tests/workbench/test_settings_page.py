"""The page Settings: stored settings and synonyms, each changed after a confirmation."""

from collections.abc import Iterator

import pytest
from bs4 import BeautifulSoup
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from conftest import Connection
from opened_workbench import SCRIPT, browser_of, page_of
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.write import KnowledgeWriter

SETTINGS = {"change": "store_settings", "collection": "notes", "fusion": "relative_score"}
SETTINGS |= {"vector_weight": "0.5", "text_weight": "2"}
SYNONYM = {"change": "store_synonym", "collection": "", "term": "bill", "synonym": "invoice"}
SYNONYM |= {"weight": "0.5"}
SYNONYMS = "select collection, term, synonym, is_two_way, weight from public.knowledge_synonyms"


@pytest.fixture
def corpus(shared: Connection) -> Connection:
    """The owner's connection; nothing is stored of what the page changes."""
    shared.execute("truncate public.knowledge_settings, public.knowledge_synonyms")
    return shared


def _stored(connection: Connection) -> list[tuple[object, ...]]:
    settings = (
        "select collection, fusion, vector_weight, text_weight from public.knowledge_settings"
    )
    return [*connection.execute(settings), *connection.execute(SYNONYMS)]


def _confirm(browser: TestClient, form: dict[str, str]) -> BeautifulSoup:
    """Send a form, and then the form that asks for a confirmation; return the page after it."""
    asked = browser.post("/settings", data=form)
    assert asked.status_code == 200, asked.text
    fields = BeautifulSoup(asked.text, "html.parser").select("main [name]")
    answer = browser.post("/settings", data={str(one["name"]): str(one["value"]) for one in fields})
    assert answer.status_code == 200, answer.text
    assert answer.url.path == "/settings"
    return BeautifulSoup(answer.text, "html.parser")


def _removal(page: BeautifulSoup, card: str) -> dict[str, str]:
    fields = page.select(f"{card} table [name]")
    return {str(one["name"]): str(one["value"]) for one in fields}


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (SETTINGS, "the collection notes: fusion relative_score, vector weight 0.5, text weight 2"),
        (SYNONYM, "A search for bill then also finds invoice, with 0.5 of its weight"),
    ],
)
def test_nothing_changes_before_the_confirmation_which_says_what_will(
    workbench: TestClient, corpus: Connection, form: dict[str, str], said: str
) -> None:
    asked = workbench.post("/settings", data=form)
    assert asked.status_code == 200
    assert said in BeautifulSoup(asked.text, "html.parser").get_text()
    assert _stored(corpus) == []


@pytest.mark.module("field_weights")
def test_settings_are_stored_and_removed_and_keep_the_name_of_the_model(
    workbench: TestClient, corpus: Connection
) -> None:
    writer = KnowledgeWriter(corpus)
    writer.set_settings(CorpusSettings(collection="notes", embedding_model="three words"))
    writer.set_fields(CorpusSettings(collection="notes", title_weight=2))
    page = _confirm(workbench, SETTINGS)
    assert "The change is stored" in page.get_text()
    assert "title 2" in page.get_text()
    (stored,) = writer.settings()
    wanted = {"collection": "notes", "fusion": "relative_score", "embedding_model": "three words"}
    weights = {"vector_weight": 0.5, "text_weight": 2.0, "bm25_k1": None, "bm25_b": None}
    assert stored.arguments() == wanted | weights
    page = _confirm(workbench, _removal(page, "#fusion"))
    assert "Nothing is stored" in page.get_text()
    assert writer.settings() == []


def test_synonyms_are_stored_replaced_and_removed(
    workbench: TestClient, corpus: Connection
) -> None:
    corpus.execute(
        "insert into public.knowledge_synonyms (term, synonym) values ('other', 'another')"
    )
    other = ("", "other", "another", True, 0.8)
    _confirm(workbench, {**SYNONYM, "is_two_way": "1"})
    page = _confirm(workbench, SYNONYM)
    assert [*corpus.execute(SYNONYMS)] == [other, ("", "bill", "invoice", False, 0.5)]
    first, second = page.select("#synonyms tbody tr")
    assert "bill" in first.get_text()
    assert "another" in second.get_text()
    second.decompose()
    _confirm(workbench, _removal(page, "#synonyms"))
    assert [*corpus.execute(SYNONYMS)] == [other]


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({**SYNONYM, "term": "two words"}, "term must be one word of 2 to 60 letters"),
        ({**SYNONYM, "synonym": "Bill"}, "term and synonym are the same word"),
        ({**SYNONYM, "weight": "much"}, "weight must be a number"),
        ({**SETTINGS, "fusion": SCRIPT}, "fusion must be one of rrf, relative_score, auto"),
        ({**SETTINGS, "vector_weight": "0", "text_weight": "0"}, "are both 0"),
        ({"change": SCRIPT}, "change must be one of store_settings"),
    ],
)
def test_a_wrong_value_is_refused_before_the_confirmation(
    workbench: TestClient, corpus: Connection, form: dict[str, str], named: str
) -> None:
    refused = workbench.post("/settings", data=form)
    assert refused.status_code == 400
    assert named in BeautifulSoup(refused.text, "html.parser").get_text()
    assert SCRIPT not in refused.text
    assert _stored(corpus) == []


@pytest.mark.parametrize("form", [SETTINGS, SYNONYM])
def test_a_form_of_another_site_changes_nothing(
    workbench: TestClient, corpus: Connection, form: dict[str, str]
) -> None:
    headers = {"origin": "http://evil.example"}
    answer = workbench.post("/settings", data={**form, "confirmed": "1"}, headers=headers)
    assert answer.status_code == 403
    assert _stored(corpus) == []


@pytest.fixture
def reader(shared_dsn: str, corpus: Connection) -> Iterator[TestClient]:
    """A browser at a workbench whose connection only reads, over a stored synonym."""
    corpus.execute("insert into public.knowledge_synonyms (term, synonym) values ('car', 'auto')")
    dsn = make_conninfo(shared_dsn, options="-c default_transaction_read_only=on")
    with browser_of(dsn) as browser:
        yield browser


def test_a_connection_that_only_reads_shows_the_settings_and_refuses_changes(
    reader: TestClient, corpus: Connection
) -> None:
    page = page_of(reader, "/settings")
    assert "This connection only reads" in page.get_text()
    assert "car" in page.get_text()
    assert page.select("form") == page.select("dialog form")
    before = _stored(corpus)
    for form in (SETTINGS, SYNONYM):
        for confirmed in ({}, {"confirmed": "1"}):
            refused = reader.post("/settings", data={**form, **confirmed})
            assert "this connection only reads, so nothing is stored" in refused.text
    assert _stored(corpus) == before

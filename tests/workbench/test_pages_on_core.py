"""The workbench over core alone: the search works, and other pages name their module."""

from corpora import store_document
from opened_workbench import browser_of
from second_brain.database import migrations
from second_brain.models import CallableEmbedder


def test_a_page_that_needs_a_module_names_it(plain_dsn: str, three_words: CallableEmbedder) -> None:
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

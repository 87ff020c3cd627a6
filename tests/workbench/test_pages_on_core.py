"""The workbench over core alone: the search works, and other pages name their module."""

import psycopg

from opened_workbench import browser_of
from second_brain.database import migrations
from second_brain.models import CallableEmbedder
from second_brain.services.write import KnowledgeWriter


def test_a_page_that_needs_a_module_names_it(plain_dsn: str, three_words: CallableEmbedder) -> None:
    migrations.apply(plain_dsn, dimensions=3)
    chunk = {"content": "Bread.", "embedding": [1, 0, 0], "embedding_model": three_words.model}
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        KnowledgeWriter(connection).upsert_document({"external_key": "a"}, [chunk])
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

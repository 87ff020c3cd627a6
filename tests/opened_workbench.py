"""Fixtures: workbenches over databases that the tests of a module share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from conftest import Server, copy_of
from second_brain.models import CallableEmbedder
from second_brain.services.write import KnowledgeWriter

if TYPE_CHECKING:
    from bs4 import BeautifulSoup
    from starlette.testclient import TestClient

ADDRESS = "http://127.0.0.1:8787"
WORDS = ("bread", "oven", "river")
OWNER = "00000000-0000-0000-0000-000000000001"
SCRIPT = "<script>alert('x')</script>"
WILD = f'<img src=x onerror=alert(1)> {SCRIPT} zebra & "quotes" <mark>zebra</mark>'

_LIBRARY: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("keys.md", "Keys", "Rotate the service role key every month.", {}),
    ("doors.md", "Doors", "Every door of the house has a key of iron.", {}),
    ("fruit.md", "Fruit", "Bananas are yellow and long.", {}),
    ("cars.md", "Cars", "An automobile has four wheels and an engine.", {}),
    (
        *("budget.md", "Budget", "The budget for automobiles is secret."),
        {
            "owner_id": OWNER,
            "visibility": "private",
            "knowledge_type": "decision",
            "document_date": "2026-01-15",
        },
    ),
    (
        *(f'"><{SCRIPT}', f"\"'>{SCRIPT}", WILD),
        {"collection": f"wild{SCRIPT}", "metadata": {SCRIPT: SCRIPT}},
    ),
)


@pytest.fixture
def three_words() -> CallableEmbedder:
    """Embed a text by how often it has each of three words, and a little of each."""

    def count(texts: list[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.array([[text.lower().count(word) + 0.01 for word in WORDS] for text in texts])

    return CallableEmbedder(count, "three words", len(WORDS))


@pytest.fixture
def workbench(shared_dsn: str, three_words: CallableEmbedder) -> Iterator["TestClient"]:
    """A browser without scripts, at a workbench on the shared database."""
    with browser_of(shared_dsn, embedder=three_words) as opened:
        yield opened


@pytest.fixture(scope="module")
def library_dsn(server: Server) -> Iterator[str]:
    """The owner's DSN of a database with six documents, embedded by WordLlama."""
    from second_brain.models import load_embedder

    embedder = load_embedder("wordllama")
    for dsn in copy_of(server, server.template(embedder.dimensions)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            writer = KnowledgeWriter(connection)
            for key, title, content, fields in _LIBRARY:
                chunk = {
                    "content": content,
                    "embedding": embedder.embed([content])[0],
                    "embedding_model": embedder.model,
                }
                given = {"external_key": key, "title": title, "visibility": "public", **fields}
                writer.upsert_document(given, [chunk])
            # As `migrate` does in a new install.
            connection.execute("select public.set_knowledge_settings(fusion => 'auto')")
        yield dsn


@pytest.fixture(scope="module")
def library(library_dsn: str) -> Iterator["TestClient"]:
    """A browser without scripts, at a workbench on the library."""
    from second_brain.models import load_embedder

    embedder = load_embedder("wordllama")
    with browser_of(library_dsn, embedder=embedder, embedder_name="wordllama") as opened:
        yield opened


@contextmanager
def browser_of(dsn: str, **options: Any) -> Iterator["TestClient"]:
    """Open a workbench in a browser without scripts, which answers a failure with a page."""
    # Not at the top: this module is imported for every run of tests.
    from starlette.testclient import TestClient

    from second_brain.workbench.app import create_app

    app = create_app(dsn, **options)
    headers = {"origin": ADDRESS}
    with TestClient(app, base_url=ADDRESS, headers=headers, raise_server_exceptions=False) as one:
        yield one


def page_of(browser: "TestClient", path: str, status: int = 200, **asked: Any) -> "BeautifulSoup":
    """Open an address, which must be answered with a status; return the page."""
    from bs4 import BeautifulSoup

    answer = browser.get(path, params=asked or None)
    assert answer.status_code == status, answer.text
    return BeautifulSoup(answer.text, "html.parser")


@contextmanager
def closed(server: Server, dsn: str) -> Iterator[None]:
    """Let nobody connect to a database, and end the workbench's connections to it."""
    name = str(conninfo_to_dict(dsn)["dbname"])
    allow = sql.SQL("alter database {} with allow_connections {}")
    with psycopg.connect(server.admin_dsn(), autocommit=True) as admin:
        admin.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
        try:
            admin.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                " where datname = %s and application_name = 'second-brain workbench'",
                [name],
            )
            yield
        finally:
            admin.execute(allow.format(sql.Identifier(name), sql.SQL("true")))

"""Fixtures: a workbench over a database that the tests of a module share, without a browser."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from second_brain.models import CallableEmbedder

if TYPE_CHECKING:
    from starlette.testclient import TestClient

ADDRESS = "http://127.0.0.1:8787"
WORDS = ("bread", "oven", "river")


@pytest.fixture
def three_words() -> CallableEmbedder:
    """Embed a text by how often it has each of three words, and a little of each."""

    def count(texts: list[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.array([[text.lower().count(word) + 0.01 for word in WORDS] for text in texts])

    return CallableEmbedder(count, "three words", len(WORDS))


@pytest.fixture
def workbench(shared_dsn: str, three_words: CallableEmbedder) -> Iterator["TestClient"]:
    """A browser without scripts, at a workbench on the shared database."""
    # Not at the top: this module is imported for every run of tests.
    from starlette.testclient import TestClient

    from second_brain.workbench.app import create_app

    app = create_app(shared_dsn, embedder=three_words)
    headers = {"origin": ADDRESS}
    with TestClient(app, base_url=ADDRESS, headers=headers, raise_server_exceptions=False) as one:
        yield one

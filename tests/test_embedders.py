"""The embedder that comes with the package, on its real weights."""

import logging
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from second_brain.embedders import Embedder, load_embedder
from second_brain.errors import ConfigurationError


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder("wordllama")


def test_vectors_are_float32_of_the_size_that_the_embedder_says(embedder: Embedder) -> None:
    vectors = embedder.embed(["one", "two words", "and three more"])
    assert vectors.shape == (3, embedder.dimensions)
    assert vectors.dtype == np.float32


def test_nothing_to_embed_gives_no_rows(embedder: Embedder) -> None:
    assert embedder.embed([]).shape == (0, embedder.dimensions)


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=5))
def test_every_text_has_a_unit_vector(embedder: Embedder, texts: list[str]) -> None:
    norms = np.linalg.norm(embedder.embed(texts), axis=1)
    np.testing.assert_allclose(norms, 1, rtol=1e-5)


def test_an_empty_text_has_a_zero_vector_and_not_nan(embedder: Embedder) -> None:
    assert embedder.embed(["", "word"])[0].tolist() == [0.0] * embedder.dimensions


def test_the_vector_of_a_text_does_not_depend_on_its_neighbours(embedder: Embedder) -> None:
    alone = embedder.embed(["a short text"])[0]
    beside = embedder.embed(["a much longer text " * 50, "a short text"])[1]
    np.testing.assert_allclose(alone, beside, rtol=1e-5, atol=1e-7)


def test_texts_of_one_meaning_are_nearer_than_others(embedder: Embedder) -> None:
    car, automobile, banana = embedder.embed(
        ["repair the car", "fix an automobile", "a ripe banana"]
    )
    assert car @ automobile > car @ banana


def test_loading_leaves_the_logging_of_the_application_alone() -> None:
    # In a process of its own: wordllama sets logging up when it is first imported.
    program = (
        "import logging; from second_brain.embedders import load_embedder;"
        "load_embedder('wordllama'); root = logging.getLogger(); print(root.level, root.handlers)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{logging.WARNING} []"


def test_an_unknown_embedder_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="nonsense") as caught:
        load_embedder("nonsense")
    assert "wordllama" in (caught.value.remedy or "")

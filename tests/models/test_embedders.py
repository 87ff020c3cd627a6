"""Embedders by their names, and those made from a function."""

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from hosted_models import KEY

from second_brain.errors import ConfigurationError, MissingExtraError, UnexpectedAnswerError
from second_brain.models import CallableEmbedder, OpenAIEmbedder, VoyageEmbedder, load_embedder


@pytest.mark.parametrize(
    "name", ["nonsense", "openai", "openai:", "elsewhere:model", "wordllama:x", ""]
)
def test_a_name_without_a_known_provider_and_a_model_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown embedder '{name}'") as caught:
        load_embedder(name)
    assert "wordllama" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("name", "model", "dimensions"),
    [
        ("openai:text-embedding-3-small", "text-embedding-3-small", 1536),
        ("openai:text-embedding-3-large@1024", "text-embedding-3-large", 1024),
        ("voyage:voyage-4-large", "voyage-4-large", 1024),
        ("voyage:voyage-4-lite@256", "voyage-4-lite", 256),
    ],
)
def test_a_name_says_provider_model_and_dimensions(
    monkeypatch: pytest.MonkeyPatch, name: str, model: str, dimensions: int
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("VOYAGE_API_KEY", KEY)
    kind = OpenAIEmbedder if name.startswith("openai") else VoyageEmbedder
    opened: Any = load_embedder(name)
    with opened as embedder:
        assert (type(embedder), embedder.model, embedder.dimensions) == (kind, model, dimensions)


@pytest.mark.parametrize(
    ("name", "variable"),
    [("openai:text-embedding-3-small", "OPENAI_API_KEY"), ("voyage:voyage-4", "VOYAGE_API_KEY")],
)
def test_the_environment_is_asked_for_the_key_when_an_embedder_is_made(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigurationError) as caught:
        load_embedder(name)
    assert variable in (caught.value.remedy or "")
    monkeypatch.setenv(variable, "two\nlines")
    with pytest.raises(ConfigurationError, match="that an HTTP header cannot contain") as caught:
        load_embedder(name)
    assert "lines" not in str(caught.value)


def test_any_function_is_an_embedder_of_unit_vectors_and_gets_no_blank_texts() -> None:
    given_texts: list[str] = []

    def function(texts: list[str]) -> list[list[float]]:
        given_texts.extend(texts)
        return [[3.0, 4.0] for _ in texts]

    embedder = CallableEmbedder(function, "mine", 2)
    vectors = embedder.embed([" ", "word", ""])
    np.testing.assert_allclose(vectors, np.array([[0, 0], [0.6, 0.8], [0, 0]]), rtol=1e-6)
    assert given_texts == ["word"]
    assert (embedder.model, embedder.dimensions) == ("mine", 2)


async def awaited(texts: list[str]) -> list[list[float]]:
    return [[1.0, 0.0] for _ in texts]


class Awaited:
    """An object whose `__call__` is a coroutine function."""

    async def __call__(self, texts: list[str]) -> list[list[float]]:
        return await awaited(texts)


@pytest.mark.parametrize("function", [awaited, Awaited(), partial(awaited)])
def test_a_coroutine_function_is_refused_as_embedder(function: Any) -> None:
    with pytest.raises(ConfigurationError, match="coroutine function") as refused:
        CallableEmbedder(function, "mine", 2)
    assert "AsyncRetrievalService" in refused.value.remedy


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (([[1.0]], "mine", 2), "function"),
        ((len, None, 2), "model"),
        ((len, "mine", "2"), "dimensions"),
    ],
)
def test_an_argument_of_another_type_is_named(arguments: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be"):
        CallableEmbedder(*arguments)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0]], "mine"),
        ([1.0, 2.0], "mine"),
        (None, "mine"),
        ([["a", "b"]] * 2, "mine"),
        ([[1.0, float("nan")]] * 2, "NaN or infinity"),
        ([[1.0, float("inf")]] * 2, "NaN or infinity"),
    ],
)
def test_what_is_not_a_finite_vector_for_each_text_is_refused(vectors: Any, message: str) -> None:
    with pytest.raises(UnexpectedAnswerError, match=message):
        CallableEmbedder(lambda _: vectors, "mine", 2).embed(["a", "b"])


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("sentence-transformers:any", "sentence_transformers"),
        ("wordllama", "wordllama"),
        ("cohere:embed-v4.0", "cohere"),
        ("google:gemini-embedding-001", "google.genai"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CO_API_KEY", KEY)
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        load_embedder(name)
    assert f"second-brain[{name.split(':')[0]}]" in (caught.value.remedy or "")

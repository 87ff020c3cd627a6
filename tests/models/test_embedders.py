"""Embedders by their names, and those made from a function."""

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

from second_brain.errors import ConfigurationError, MissingExtraError, UnexpectedAnswerError
from second_brain.models import CallableEmbedder, OpenAIEmbedder, VoyageEmbedder, load_embedder

KEY = "a-secret-of-the-account"


def test_an_unknown_embedder_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="nonsense") as caught:
        load_embedder("nonsense")
    assert "wordllama" in (caught.value.remedy or "")


@pytest.mark.parametrize("name", ["openai", "openai:", "elsewhere:model", "wordllama:x", ""])
def test_a_name_without_a_known_provider_and_a_model_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown embedder"):
        load_embedder(name)


def test_a_name_says_provider_model_and_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("VOYAGE_API_KEY", KEY)
    named = {
        "openai:text-embedding-3-small": ("text-embedding-3-small", 1536),
        "openai:text-embedding-3-large@1024": ("text-embedding-3-large", 1024),
        "voyage:voyage-4-large": ("voyage-4-large", 1024),
        "voyage:voyage-4-lite@256": ("voyage-4-lite", 256),
    }
    for name, expected in named.items():
        embedder = load_embedder(name)
        assert (embedder.model, embedder.dimensions) == expected
        assert isinstance(embedder, OpenAIEmbedder | VoyageEmbedder)
        embedder.close()


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
    with pytest.raises(
        ConfigurationError, match="characters that an HTTP header cannot contain"
    ) as caught:
        load_embedder(name)
    assert "lines" not in str(caught.value)


def test_any_function_is_an_embedder_of_unit_vectors() -> None:
    embedder = CallableEmbedder(lambda texts: [[3.0, 4.0] for _ in texts], "mine", 2)
    np.testing.assert_allclose(embedder.embed(["a", "b"]), [[0.6, 0.8], [0.6, 0.8]], rtol=1e-6)
    assert (embedder.model, embedder.dimensions) == ("mine", 2)


async def awaited(texts: list[str]) -> list[list[float]]:
    return [[1.0, 0.0] for _ in texts]


class Awaited:
    """An object whose `__call__` is a coroutine function."""

    async def __call__(self, texts: list[str]) -> list[list[float]]:
        """Embed as `awaited` does."""
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


def test_a_blank_text_is_not_given_to_the_function_and_has_a_zero_row() -> None:
    given_texts: list[str] = []

    def function(texts: list[str]) -> list[list[float]]:
        given_texts.extend(texts)
        return [[1.0, 0.0] for _ in texts]

    vectors = CallableEmbedder(function, "mine", 2).embed([" ", "word", ""])
    assert given_texts == ["word"]
    assert vectors.tolist() == [[0, 0], [1, 0], [0, 0]]


@pytest.mark.parametrize("given_vectors", [[[1.0, 2.0]], [1.0, 2.0], None, [["a", "b"]] * 2])
def test_another_number_of_texts_or_dimensions_is_refused(given_vectors: Any) -> None:
    with pytest.raises(UnexpectedAnswerError, match="mine"):
        CallableEmbedder(lambda _: given_vectors, "mine", 2).embed(["a", "b"])


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_is_refused(number: float) -> None:
    with pytest.raises(UnexpectedAnswerError, match="NaN or infinity"):
        CallableEmbedder(lambda _: [[1.0, number]], "mine", 2).embed(["a"])


@pytest.mark.parametrize(
    ("name", "module"),
    [("sentence-transformers:any", "sentence_transformers"), ("wordllama", "wordllama")],
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        load_embedder(name)
    assert f"second-brain[{name.split(':')[0]}]" in (caught.value.remedy or "")

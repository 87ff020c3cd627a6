"""Servers with OpenAI's API: OpenAI itself, and what others do differently.

A local server stands in for them. The differences are those of vLLM, Text Embeddings Inference,
Ollama and LM Studio.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import Connection
from provider_server import Answer, ProviderServer, Request, as_openai, provider_server
from second_brain.cli import main
from second_brain.errors import AuthenticationError, ConfigurationError, InvalidInputError
from second_brain.models import (
    CachedEmbedder,
    MemoryCache,
    OpenAIEmbedder,
    Prompts,
    TextTooLongError,
    load_embedder,
)
from second_brain.models.providers import OPENAI

KEY = "a-secret-of-the-account"


@pytest.fixture
def api() -> Iterator[ProviderServer]:
    """A server that embeds each text by its length, in four dimensions."""
    with provider_server() as served:
        served.answer = lambda request: as_openai(
            [[len(text), 1, 0, 2] for text in request.body["input"]],
            request.body.get("encoding_format"),
        )
        yield served


def lengths(vectors: np.ndarray) -> list[int]:
    """Return the lengths of the texts that these vectors encode."""
    return [round(float(vector[0] / vector[1])) for vector in vectors]


def test_openai_sends_base64_and_gets_the_key_of_the_environment(
    api: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    # As if the address were OpenAI's.
    monkeypatch.setattr(OpenAIEmbedder, "provider", replace(OPENAI, base_url=api.url))
    with OpenAIEmbedder("any", dimensions=4) as embedder:
        assert lengths(embedder.embed(["one", "seven"] * 50)) == [3, 5] * 50
    (request,) = api.requests
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["encoding_format"] == "base64"


def test_another_server_needs_no_key_and_does_not_get_that_of_openai(
    api: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with OpenAIEmbedder("any", base_url=f"{api.url}/v1") as embedder:
        assert lengths(embedder.embed(["one"])) == [3]
    assert KEY not in str([request.headers for request in api.requests])
    assert "authorization" not in api.requests[0].headers
    with OpenAIEmbedder("any", base_url=api.url, api_key="its-own") as embedder:
        embedder.embed(["one"])
    assert api.requests[-1].headers["authorization"] == "Bearer its-own"


def test_a_server_that_refuses_encoding_format_is_not_sent_one(api: ProviderServer) -> None:
    accepted = api.answer

    def strict(request: Request) -> Answer | None:
        unknown = set(request.body) - {"model", "input"}
        return Answer({"detail": f"extra fields {unknown}"}, 422) if unknown else accepted(request)

    api.answer = strict
    with OpenAIEmbedder("any", base_url=api.url) as embedder:
        assert lengths(embedder.embed(["one", "seven"])) == [3, 5]


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_vectors_are_read_in_either_encoding(api: ProviderServer, encoding: str) -> None:
    api.answer = lambda _: as_openai([[3, 1, 0, 2]], encoding)
    with OpenAIEmbedder("any", base_url=api.url) as embedder:
        assert lengths(embedder.embed(["one"])) == [3]


def test_vectors_are_cut_if_the_server_ignores_dimensions(api: ProviderServer) -> None:
    with OpenAIEmbedder("any", dimensions=2, base_url=api.url) as embedder:
        (vector,) = embedder.embed(["seven"])
    assert api.bodies()[0]["dimensions"] == 2
    np.testing.assert_allclose(vector, np.array([5, 1]) / np.sqrt(26), rtol=1e-6)


def test_a_model_that_cannot_shorten_its_vectors_is_named_by_the_server(
    api: ProviderServer,
) -> None:
    message = 'Model "any" does not support matryoshka representation'
    api.answer = lambda _: Answer({"error": {"message": message}}, 400)
    with (
        OpenAIEmbedder("any", dimensions=2, base_url=api.url) as embedder,
        pytest.raises(InvalidInputError, match="matryoshka") as caught,
    ):
        embedder.embed(["one"])
    assert "Give dimensions that the model has, or none" in (caught.value.remedy or "")


def test_a_server_gets_few_texts_at_once_and_fewer_if_it_refuses_them(api: ProviderServer) -> None:
    accepted = api.answer

    def small(request: Request) -> Answer | None:
        count = len(request.body["input"])
        if count > 8:
            return Answer({"error": f"batch size {count} > maximum allowed batch size 8"}, 422)
        return accepted(request)

    with OpenAIEmbedder("any", dimensions=4, base_url=api.url) as embedder:
        embedder.embed(["one"] * 40)
        assert [len(body["input"]) for body in api.bodies()] == [32, 8]
        api.answer = small
        assert lengths(embedder.embed(["one"] * 10)) == [3] * 10
    assert [len(body["input"]) for body in api.bodies()[2:]] == [10, 5, 5]


def test_a_text_that_is_too_long_for_a_server_is_named(api: ProviderServer) -> None:
    message = "Input validation error: `inputs` must have less than 512 tokens. Given: 900"
    accepted = api.answer

    def answer(request: Request) -> Answer | None:
        if "long" in request.body["input"]:
            return Answer({"error": message}, 413)
        return accepted(request)

    api.answer = answer
    with (
        OpenAIEmbedder("any", dimensions=4, base_url=api.url) as embedder,
        pytest.raises(TextTooLongError, match=r"texts\[1\] is too long for any"),
    ):
        embedder.embed(["one", "long"])


def test_errors_name_the_server_and_not_openai(api: ProviderServer) -> None:
    host = api.url.removeprefix("http://")
    with OpenAIEmbedder("any", dimensions=4, base_url=api.url) as embedder:
        api.answer = lambda _: Answer({"error": "no such model: any"}, 404)
        with pytest.raises(ConfigurationError, match=f"{host} returned status 404: no such model"):
            embedder.embed(["one"])
        api.answer = lambda _: Answer({"error": "give a token"}, 401)
        with pytest.raises(AuthenticationError, match=f"{host} rejected the key"):
            embedder.embed(["one"])


@pytest.mark.parametrize(
    ("model", "document", "query"),
    [
        ("nomic-embed-text:v1.5", "search_document: one", "search_query: one"),
        ("intfloat/multilingual-e5-small", "passage: one", "query: one"),
        (
            "BAAI/bge-small-en-v1.5",
            "one",
            "Represent this sentence for searching relevant passages: one",
        ),
        ("BAAI/bge-m3", "one", "one"),
    ],
)
def test_texts_have_the_prompts_of_the_models_card(
    api: ProviderServer, model: str, document: str, query: str
) -> None:
    with OpenAIEmbedder(model, dimensions=4, base_url=api.url) as embedder:
        embedder.embed(["one", " "])
        embedder.embed_query("one")
    assert [body["input"] for body in api.bodies()] == [[document], [query]]


def test_prompts_can_be_set(api: ProviderServer) -> None:
    prompts = Prompts(query="q: ", document="d: ")
    with OpenAIEmbedder("bge-m3", dimensions=4, base_url=api.url, prompts=prompts) as embedder:
        embedder.embed(["one"])
        embedder.embed_queries(["one", "two"])
    assert [body["input"] for body in api.bodies()] == [["d: one"], ["q: one", "q: two"]]


def test_a_cache_does_not_mix_embeddings_of_other_prompts(api: ProviderServer) -> None:
    cache = MemoryCache()
    for prompts in (Prompts(), Prompts(document="d: "), Prompts(document="d: ")):
        with OpenAIEmbedder("any", dimensions=4, base_url=api.url, prompts=prompts) as embedder:
            CachedEmbedder(embedder, cache).embed(["one"])
    assert [body["input"] for body in api.bodies()] == [["one"], ["d: one"]]


def test_a_name_and_an_address_load_an_embedder_of_the_server(api: ProviderServer) -> None:
    embedder = load_embedder("openai:any@2", address=api.url)
    assert isinstance(embedder, OpenAIEmbedder)
    with embedder:
        assert embedder.embed(["one"]).shape == (1, 2)
    with pytest.raises(ConfigurationError, match="has no address"):
        load_embedder("cohere:embed-v4.0", address=api.url)


def test_the_command_line_ingests_and_searches_with_a_hosted_model(
    api: ProviderServer,
    dsn: str,
    database: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api.answer = lambda request: as_openai(
        [[float("car" in text), float("banana" in text), 0.1] for text in request.body["input"]],
        request.body.get("encoding_format"),
    )
    (tmp_path / "car.md").write_text("The car has wheels.")
    (tmp_path / "fruit.md").write_text("The banana is yellow.")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECOND_BRAIN_DSN", dsn)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(
            sys,
            "argv",
            ["second-brain", *arguments, "--embedder", "openai:text-embedding-3-small@3"],
        )
        with pytest.raises(SystemExit) as done:
            main()
        assert done.value.code == 0
        return capsys.readouterr().out

    run("ingest", "car.md", "fruit.md")
    (hit, _) = json.loads(run("search", "cars", "--mode", "vector", "--json"))["results"]
    assert hit["metadata"]["path"] == "car.md"
    stored = database.execute("select distinct embedding_model from public.knowledge_chunks")
    assert stored.fetchall() == [("text-embedding-3-small",)]
    assert [body["dimensions"] for body in api.bodies()] == [3] * len(api.requests)

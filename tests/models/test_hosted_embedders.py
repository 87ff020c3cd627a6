"""Embedders with hosted models: each provider's requests, and what all do when a call fails.

A local server replaces the paid APIs; the client code is the real one.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from provider_server import (
    Answer,
    ProviderServer,
    Request,
    as_embeddings,
    provider_server,
    texts_of,
)
from second_brain import errors
from second_brain.models import (
    CohereEmbedder,
    GoogleEmbedder,
    OpenAIEmbedder,
    QuotaExceededError,
    RateLimit,
    TextTooLongError,
    VoyageEmbedder,
    embed_queries,
    embed_query,
)
from waiting import until

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
        served.answer = lambda request: as_embeddings(request, numbers(texts_of(request)))
        yield served


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that were requested, in seconds; no test sleeps."""
    waited: list[float] = []
    monkeypatch.setattr("second_brain.models.hosted.sleep", waited.append)
    return waited


Hosted = CohereEmbedder | GoogleEmbedder | OpenAIEmbedder | VoyageEmbedder
Make = Callable[..., Hosted]

# OpenAI's requests go out as Voyage's do; `test_openai_servers` has what is its own.
KINDS: dict[str, type[Hosted]] = {
    "voyage": VoyageEmbedder,
    "cohere": CohereEmbedder,
    "google": GoogleEmbedder,
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, api: ProviderServer, waits: list[float]) -> Iterator[Make]:
    """Make the embedder of a provider, with three dimensions, which is closed at the end."""
    made: list[Hosted] = []

    def make_one(**options: Any) -> Hosted:
        # A model that is not known by name has any dimensions.
        given = {"model": "small", "api_key": KEY, "base_url": api.url, "dimensions": 3, **options}
        made.append(KINDS[request.param](**given))
        return made[-1]

    yield make_one
    for one in made:
        one.close()


def test_texts_go_out_in_batches_and_come_back_in_order(make: Make, api: ProviderServer) -> None:
    texts = [f"text {number}" for number in range(1, 12)]
    assert told(make(batch_size=4).embed(texts)) == list(range(1, 12))
    assert [len(texts_of(request)) for request in api.requests] == [4, 4, 3]


def test_a_batch_has_at_most_so_many_tokens(make: Make, api: ProviderServer) -> None:
    texts = ["x" * 300 + f" {number}" for number in range(1, 6)]
    assert told(make(batch_tokens=210).embed(texts)) == [1, 2, 3, 4, 5]
    assert [len(texts_of(request)) for request in api.requests] == [2, 2, 1]


def test_blank_texts_are_not_sent(make: Make, api: ProviderServer) -> None:
    vectors = make().embed(["", "text 5", " \n"])
    assert texts_of(api.requests[0]) == ["text 5"]
    assert vectors.any(axis=1).tolist() == [False, True, False]
    assert make().embed([]).shape == (0, 3)
    assert len(api.requests) == 1


def test_model_key_and_dimensions_are_sent(make: Make, api: ProviderServer) -> None:
    make().embed(["text 5"])
    (request,) = api.requests
    assert f"Bearer {KEY}" == request.headers.get("authorization") or (
        request.headers["x-goog-api-key"] == KEY
    )
    assert "small" in request.path or request.body["model"] == "small"
    sent = request.body["requests"][0] if "requests" in request.body else request.body
    names = {"dimensions", "output_dimension", "outputDimensionality"}
    assert [sent[name] for name in names & set(sent)] == [3]


def test_the_size_of_an_unknown_model_is_found_once_and_never_asked_for(
    make: Make, api: ProviderServer
) -> None:
    api.answer = lambda request: as_embeddings(request, [[1, 2, 2]] * len(texts_of(request)))
    embedder = make(dimensions=None)
    assert (embedder.dimensions, embedder.dimensions, len(api.requests)) == (3, 3, 1)
    assert embedder.embed(["text 5"]).shape == (1, 3)
    assert "dimension" not in str(api.bodies()).lower()


@pytest.mark.parametrize(
    ("kind", "role", "document", "query"),
    [
        (VoyageEmbedder, "input_type", "document", "query"),
        (CohereEmbedder, "input_type", "search_document", "search_query"),
        (GoogleEmbedder, "taskType", "RETRIEVAL_DOCUMENT", "RETRIEVAL_QUERY"),
    ],
)
def test_documents_and_queries_are_marked(
    api: ProviderServer, kind: type[Hosted], role: str, document: str, query: str
) -> None:
    with kind("small", dimensions=3, api_key=KEY, base_url=api.url) as embedder:
        assert told(embedder.embed(["text 1"])) == [1]
        assert told(np.array([embed_query(embedder, "text 2")])) == [2]
        assert told(embed_queries(embedder, ["text 3", "text 4"])) == [3, 4]
    sent = [body["requests"][0] if "requests" in body else body for body in api.bodies()]
    assert [one[role] for one in sent] == [document, query, query]
    assert [len(texts_of(request)) for request in api.requests] == [1, 1, 2]


def test_a_client_of_the_callers_own_is_used_and_left_open(api: ProviderServer) -> None:
    import openai

    with openai.OpenAI(api_key=KEY, base_url=f"{api.url}/own") as client:
        with OpenAIEmbedder("small", dimensions=3, client=client) as embedder:
            assert told(embedder.embed(["text 1"])) == [1]
        assert api.requests[0].path == "/own/embeddings"
        assert not client.is_closed()
        api.answer = lambda _: Answer({"error": {"message": f"Incorrect key: {KEY}"}}, 401)
        with pytest.raises(errors.AuthenticationError) as caught:
            embedder.embed(["text 1"])
        assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (VoyageEmbedder, {"client": object()}),
        (GoogleEmbedder, {"truncate": True}),
        (OpenAIEmbedder, {"truncate": True}),
    ],
)
def test_an_option_that_a_provider_does_not_have_is_refused(
    kind: type[Hosted], option: dict[str, Any]
) -> None:
    with pytest.raises(errors.ConfigurationError, match=f"has no {next(iter(option))}"):
        kind(api_key=KEY, **option)


@pytest.mark.parametrize(
    ("kind", "model", "dimensions", "sizes"),
    [
        (OpenAIEmbedder, "text-embedding-3-small", 1537, "1 to 1536"),
        (VoyageEmbedder, "voyage-4-lite", 300, "256, 512, 1024, 2048"),
    ],
)
def test_dimensions_that_a_model_does_not_have_are_refused(
    kind: type[Hosted], model: str, dimensions: int, sizes: str
) -> None:
    with pytest.raises(errors.ConfigurationError, match=f"{dimensions} dimensions") as caught:
        kind(model, dimensions=dimensions, api_key=KEY)
    assert f"Its sizes are {sizes}." in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("kind", "most"), [(VoyageEmbedder, 1000), (CohereEmbedder, 96), (GoogleEmbedder, 100)]
)
def test_a_request_has_at_most_the_texts_that_the_provider_accepts(
    api: ProviderServer, kind: type[Hosted], most: int
) -> None:
    with kind("small", dimensions=3, api_key=KEY, base_url=api.url) as embedder:
        embedder.embed(["text 1"] * (most + 1))
    assert [len(texts_of(request)) for request in api.requests] == [most, 1]


def test_truncated_vectors_of_google_are_unit_vectors(api: ProviderServer) -> None:
    api.answer = lambda request: as_embeddings(request, [[0.3] * 128] * len(texts_of(request)))
    with GoogleEmbedder(dimensions=128, api_key=KEY, base_url=api.url) as embedder:
        assert np.linalg.norm(embedder.embed(["text"])[0]) == pytest.approx(1)


def test_gemini_embedding_2_is_asked_by_prompts(api: ProviderServer) -> None:
    with GoogleEmbedder("gemini-embedding-2", dimensions=128, api_key=KEY, base_url=api.url) as one:
        api.answer = lambda request: as_embeddings(request, [[1.0] * 128] * len(texts_of(request)))
        one.embed(["a", "b"])
        one.embed_query("c")
    assert [texts_of(request) for request in api.requests] == [
        ["title: none | text: a", "title: none | text: b"],
        ["task: search result | query: c"],
    ]
    assert "taskType" not in str(api.bodies())


@pytest.mark.parametrize(("truncate", "sent"), [(True, "END"), (False, "NONE")])
def test_cohere_cuts_long_texts_only_if_asked(
    api: ProviderServer, truncate: bool, sent: str
) -> None:
    with CohereEmbedder(
        "small", dimensions=3, truncate=truncate, api_key=KEY, base_url=api.url
    ) as embedder:
        embedder.embed(["text 5"])
    (body,) = api.bodies()
    assert (body["truncate"], body["embedding_types"]) == (sent, ["float"])


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [(CohereEmbedder, "cohere", "cohere"), (GoogleEmbedder, "google.genai", "google")],
)
def test_a_missing_package_is_named_with_its_extra(
    kind: type[Hosted], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(errors.MissingExtraError) as caught:
        kind(api_key=KEY)
    assert f"second-brain[{extra}]" in (caught.value.remedy or "")


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
    with pytest.raises(errors.UnavailableError) as caught:
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
    with pytest.raises(errors.UnavailableError, match="cannot be reached"):
        make(base_url=unused_url, retries=2).embed(["text 5"])
    assert len(waits) == 2


@pytest.mark.parametrize("url", ["localhost:8000", "https://localhost:port"])
def test_an_invalid_address_is_a_configuration_error(make: Make, url: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="not a URL"):
        make(base_url=url)


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
        with pytest.raises(errors.ClientTimeoutError):
            make(timeout=0.05, retries=1).embed(["text 5"])
        until(lambda: len(api.requests) >= 2)
        assert len(api.requests) == 2
    finally:
        is_over.set()


@pytest.mark.parametrize("status", [401, 403])
def test_the_error_for_a_refused_key_does_not_contain_it(
    make: Make, api: ProviderServer, waits: list[float], status: int
) -> None:
    api.answer = lambda _: Answer({"error": {"message": f"Incorrect key: {KEY}"}}, status)
    with pytest.raises(errors.AuthenticationError) as caught:
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
        if len(texts_of(request)) > 2:
            return Answer(body, 400)
        return accepted(request)

    api.answer = answer
    texts = [f"text {number}" for number in range(1, 8)]
    assert told(make().embed(texts)) == list(range(1, 8))


def test_a_text_that_is_too_long_is_named(make: Make, api: ProviderServer) -> None:
    accepted = api.answer

    def answer(request: Request) -> Answer | None:
        if any(len(text) > 99 for text in texts_of(request)):
            return Answer(TOO_LONG[0], 400)
        return accepted(request)

    api.answer = answer
    with pytest.raises(TextTooLongError, match=r"texts\[2\] is too long for small"):
        make().embed(["text 1", "text 2", "long " * 50, "text 3"])


def test_a_text_that_is_not_unicode_is_named(make: Make, api: ProviderServer) -> None:
    with pytest.raises(errors.InvalidInputError, match=r"texts\[1\]"):
        make().embed(["text 1", "\ud800"])
    assert api.requests == []


def test_an_unknown_model_is_a_configuration_error(make: Make, api: ProviderServer) -> None:
    api.answer = lambda _: Answer({"error": {"message": "The model small does not exist"}}, 404)
    with pytest.raises(errors.ConfigurationError, match="small does not exist"):
        make().embed(["text 5"])


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"<html>a proxy</html>"),
        Answer(b"not gzip", headers={"Content-Encoding": "gzip"}),
        Answer({"data": None, "embeddings": None}),
        [[1, 2, 3], [1, 2, 3]],
        [[1, 2]],
        [[1, 2, float("nan")]],
    ],
    ids=str,
)
def test_an_answer_of_another_form_is_refused(
    make: Make, api: ProviderServer, waits: list[float], answer: Any
) -> None:
    is_whole = isinstance(answer, Answer)
    api.answer = lambda request: answer if is_whole else as_embeddings(request, answer)
    with pytest.raises(errors.UnexpectedAnswerError):
        make().embed(["text 5"])
    assert waits == []


@pytest.mark.parametrize(
    "one",
    [
        {"embedding": [1, 2, 3]},
        {"index": 1, "embedding": [1, 2, 3]},
        {"index": 0, "embedding": None},
    ],
    ids=str,
)
def test_a_vector_without_its_number_is_refused(api: ProviderServer, one: Any) -> None:
    api.answer = lambda _: Answer({"data": [one]})
    with (
        VoyageEmbedder("small", dimensions=3, api_key=KEY, base_url=api.url) as embedder,
        pytest.raises(errors.UnexpectedAnswerError),
    ):
        embedder.embed(["text 5"])


def test_threads_share_an_embedder(make: Make, api: ProviderServer) -> None:
    embedder = make(dimensions=None, batch_size=2)

    def ask(thread: int) -> list[int]:
        texts = [f"text {number}" for number in range(thread * 10 + 1, thread * 10 + 6)]
        return told(embedder.embed(texts))

    # The first word, by which the size is found, has no number.
    answer, api.answer = api.answer, lambda request: as_embeddings(request, [[1, 1, 1]])
    assert embedder.dimensions == 3
    api.answer = answer
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert answers == [list(range(one * 10 + 1, one * 10 + 6)) for one in range(8)]


def test_calls_wait_for_the_limit(make: Make, waits: list[float]) -> None:
    embedder = make(batch_size=1, rate_limit=RateLimit(requests_per_minute=2, clock=lambda: 0.0))
    embedder.embed(["text 1", "text 2", "text 3"])
    assert waits == [60]

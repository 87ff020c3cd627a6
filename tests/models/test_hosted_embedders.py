"""Embedders with hosted models: each provider's requests, and what all do when a call fails.

A local server replaces the paid APIs; the client code is the real one.
"""

import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import numpy as np
import pytest
from hosted_models import KEY, opened, refuse, waits
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from provider_server import Answer, ProviderServer, as_embeddings, provider_server, texts_of
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

__all__ = ["opened", "waits"]  # fixtures


def told(vectors: NDArray[np.float32]) -> list[int]:
    """Return the numbers that these vectors encode by their directions."""
    return [round(float(vector[0] / vector[1])) for vector in vectors]


@pytest.fixture
def api() -> Iterator[ProviderServer]:
    """The API of a provider, which embeds "text 7" by its number."""
    with provider_server() as served:
        served.answer = lambda request: as_embeddings(
            request, [[float(text.split()[-1]), 1.0, 0.0] for text in texts_of(request)]
        )
        yield served


def always(api: ProviderServer, vector: Sequence[float]) -> None:
    """Embed every text as this vector from now on."""
    api.answer = lambda request: as_embeddings(request, [vector] * len(texts_of(request)))


Hosted = CohereEmbedder | GoogleEmbedder | OpenAIEmbedder | VoyageEmbedder
Make = Callable[..., Hosted]

# OpenAI's requests go out as Voyage's do; `test_openai_servers` has what is its own.
KINDS = {"voyage": VoyageEmbedder, "cohere": CohereEmbedder, "google": GoogleEmbedder}
# A model that is not known by name has any dimensions.
SMALL: dict[str, Any] = {"dimensions": 3, "api_key": KEY}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, opened: Callable[..., Any]) -> Make:
    """Make the embedder of a provider, with three dimensions."""
    return lambda **options: opened(KINDS[request.param], **SMALL | options)


@pytest.mark.parametrize(
    ("options", "texts", "sizes"),
    [
        ({"batch_size": 4}, [f"text {number}" for number in range(1, 12)], [4, 4, 3]),
        ({"batch_tokens": 210}, ["x" * 300 + f" {number}" for number in range(1, 6)], [2, 2, 1]),
    ],
    ids=["texts", "tokens"],
)
def test_texts_go_out_in_batches_of_texts_and_tokens_and_come_back_in_order(
    make: Make, api: ProviderServer, options: dict[str, int], texts: list[str], sizes: list[int]
) -> None:
    assert told(make(**options).embed(texts)) == [*range(1, len(texts) + 1)]
    assert [len(texts_of(request)) for request in api.requests] == sizes


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
    always(api, [1, 2, 2])
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
    opened: Make, api: ProviderServer, kind: type[Hosted], role: str, document: str, query: str
) -> None:
    embedder = opened(kind, **SMALL)
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
    ("kind", "options", "message", "remedy"),
    [
        (VoyageEmbedder, {"client": object()}, "has no client", ""),
        (GoogleEmbedder, {"truncate": True}, "has no truncate", ""),
        (OpenAIEmbedder, {"truncate": True}, "has no truncate", ""),
        (OpenAIEmbedder, {"dimensions": 1537}, "1537 dimensions", "Its sizes are 1 to 1536."),
        (VoyageEmbedder, {"dimensions": 300}, "300 dimensions", "are 256, 512, 1024, 2048."),
    ],
)
def test_options_and_dimensions_that_a_model_does_not_have_are_refused(
    kind: type[Hosted], options: dict[str, Any], message: str, remedy: str
) -> None:
    with pytest.raises(errors.ConfigurationError, match=message) as caught:
        kind(api_key=KEY, **options)
    assert remedy in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("kind", "most"), [(VoyageEmbedder, 1000), (CohereEmbedder, 96), (GoogleEmbedder, 100)]
)
def test_a_request_has_at_most_the_texts_that_the_provider_accepts(
    opened: Make, api: ProviderServer, kind: type[Hosted], most: int
) -> None:
    opened(kind, **SMALL).embed(["text 1"] * (most + 1))
    assert [len(texts_of(request)) for request in api.requests] == [most, 1]


def test_truncated_vectors_of_google_are_unit_vectors(opened: Make, api: ProviderServer) -> None:
    always(api, [0.3] * 128)
    (vector,) = opened(GoogleEmbedder, dimensions=128, api_key=KEY).embed(["text"])
    assert np.linalg.norm(vector) == pytest.approx(1)


def test_gemini_embedding_2_is_asked_by_prompts(opened: Make, api: ProviderServer) -> None:
    always(api, [1.0] * 128)
    embedder = opened(GoogleEmbedder, "gemini-embedding-2", dimensions=128, api_key=KEY)
    embedder.embed(["a", "b"])
    embed_query(embedder, "c")
    assert [texts_of(request) for request in api.requests] == [
        ["title: none | text: a", "title: none | text: b"],
        ["task: search result | query: c"],
    ]
    assert "taskType" not in str(api.bodies())


@pytest.mark.parametrize(("truncate", "sent"), [(True, "END"), (False, "NONE")])
def test_cohere_cuts_long_texts_only_if_asked(
    opened: Make, api: ProviderServer, truncate: bool, sent: str
) -> None:
    opened(CohereEmbedder, truncate=truncate, **SMALL).embed(["text 5"])
    (body,) = api.bodies()
    assert (body["truncate"], body["embedding_types"]) == (sent, ["float"])


TOMORROW = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)


@pytest.mark.parametrize(
    ("answer", "least", "most"),
    [
        (Answer({"error": {"message": "slow"}}, 429, {"Retry-After": "7"}), 7, 8),
        (Answer({}, 503, {"Retry-After": TOMORROW}), 80_000, 86_401),
        (None, 0, 1),
    ],
    ids=["seconds", "a date", "a broken connection"],
)
def test_a_busy_provider_is_called_again_after_the_wait_that_it_names(
    make: Make,
    api: ProviderServer,
    waits: list[float],
    answer: Answer | None,
    least: float,
    most: float,
) -> None:
    api.before.append(answer)
    assert told(make(longest_wait=1e5).embed(["text 5"])) == [5]
    (wait,) = waits
    assert least < wait < most


def test_waits_grow_and_end(make: Make, api: ProviderServer, waits: list[float]) -> None:
    api.answer = lambda _: Answer({}, 500)
    with pytest.raises(errors.UnavailableError) as caught:
        make(retries=4, longest_wait=3).embed(["text 5"])
    assert (caught.value.code, len(api.requests)) == ("500", 5)
    for wait, longest in zip(waits, [0.5, 1, 2, 3], strict=True):
        assert longest / 2 <= wait <= longest


def test_an_address_where_nobody_answers_is_unavailable(make: Make, waits: list[float]) -> None:
    with provider_server() as served:
        unused = served.url
    with pytest.raises(errors.UnavailableError, match="cannot be reached"):
        make(base_url=unused, retries=2).embed(["text 5"])
    assert len(waits) == 2


@pytest.mark.parametrize("url", ["localhost:8000", "https://localhost:port"])
def test_an_invalid_address_is_a_configuration_error(make: Make, url: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="not a URL"):
        make(base_url=url)


def test_a_missing_answer_is_a_timeout(make: Make, api: ProviderServer) -> None:
    is_over = threading.Event()

    def never(_: object) -> None:
        is_over.wait()

    api.answer = never
    try:
        with pytest.raises(errors.ClientTimeoutError):
            make(timeout=0.05, retries=1).embed(["text 5"])
        until(lambda: len(api.requests) >= 2)
        assert len(api.requests) == 2
    finally:
        is_over.set()


BAD_KEY = {"error": {"message": f"Incorrect key: {KEY}"}}
NO_CREDIT = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
NO_MODEL = {"error": {"message": "The model small does not exist"}}


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (Answer(BAD_KEY, 401), errors.AuthenticationError, "status 401"),
        (Answer(BAD_KEY, 403), errors.AuthenticationError, "status 403"),
        (Answer(NO_CREDIT, 429), QuotaExceededError, "exceeded your quota"),
        (Answer({"detail": "slow"}, 429, {"Retry-After": "61"}), QuotaExceededError, "slow"),
        (Answer(NO_MODEL, 404), errors.ConfigurationError, "small does not exist"),
    ],
    ids=["no key", "a forbidden key", "no credit", "a wait above longest_wait", "no such model"],
)
def test_what_another_call_would_not_change_is_an_error_at_once_without_the_key(
    make: Make,
    api: ProviderServer,
    waits: list[float],
    answer: Answer,
    error: type[errors.SecondBrainError],
    message: str,
) -> None:
    api.answer = lambda _: answer
    with pytest.raises(error, match=message) as caught:
        make(longest_wait=60).embed(["text 5"])
    assert (caught.value.code, waits, len(api.requests)) == (str(answer.status), [], 1)
    assert KEY not in "".join(traceback.format_exception(caught.value))


TOO_LONG = [
    {"error": {"message": "This model's maximum context length is 8192 tokens, however …"}},
    {"error": {"message": "Requested 300500 tokens, max 300000 tokens per request"}},
    {"detail": "The max allowed tokens per submitted batch is 120000. Your batch has 150000."},
]


@pytest.mark.parametrize("body", TOO_LONG)
def test_a_batch_with_more_tokens_than_estimated_is_halved(
    make: Make, api: ProviderServer, body: Any
) -> None:
    refuse(api, Answer(body, 400), lambda texts: len(texts) > 2)
    texts = [f"text {number}" for number in range(1, 8)]
    assert told(make().embed(texts)) == list(range(1, 8))


def test_a_text_that_is_too_long_is_named(make: Make, api: ProviderServer) -> None:
    refuse(api, Answer(TOO_LONG[0], 400), lambda texts: any(len(text) > 99 for text in texts))
    with pytest.raises(TextTooLongError, match=r"texts\[2\] is too long for small"):
        make().embed(["text 1", "text 2", "long " * 50, "text 3"])


def test_a_text_that_is_not_unicode_is_named(make: Make, api: ProviderServer) -> None:
    with pytest.raises(errors.InvalidInputError, match=r"texts\[1\]"):
        make().embed(["text 1", "\ud800"])
    assert api.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"<html>a proxy</html>"),
        Answer(b"not gzip", headers={"Content-Encoding": "gzip"}),
        Answer({"data": None, "embeddings": None}),
        # A vector without its number, with another one, and a number without a vector.
        *(
            Answer({"data": [one]})
            for one in (
                {"embedding": [1, 2, 3]},
                {"index": 1, "embedding": [1, 2, 3]},
                {"index": 0, "embedding": None},
            )
        ),
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


def test_threads_share_an_embedder(make: Make, api: ProviderServer) -> None:
    embedder = make(dimensions=None, batch_size=2)

    def ask(thread: int) -> list[int]:
        texts = [f"text {number}" for number in range(thread * 10 + 1, thread * 10 + 6)]
        return told(embedder.embed(texts))

    # The first word, by which the size is found, has no number.
    answer = api.answer
    always(api, [1, 1, 1])
    assert embedder.dimensions == 3
    api.answer = answer
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert answers == [list(range(one * 10 + 1, one * 10 + 6)) for one in range(8)]


def test_calls_wait_for_the_limit(make: Make, waits: list[float]) -> None:
    embedder = make(batch_size=1, rate_limit=RateLimit(requests_per_minute=2, clock=lambda: 0.0))
    embedder.embed(["text 1", "text 2", "text 3"])
    assert waits == [60]


@settings(max_examples=200)
@given(calls=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 150)), min_size=1, max_size=20))
def test_no_minute_has_more_requests_or_tokens_than_the_limit(calls: list[tuple[int, int]]) -> None:
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

"""Rerankers: a cross-encoder that is loaded as a real one is, and hosted ones over HTTP.

A local server replaces the paid APIs; the client code is the real one.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hosted_models import KEY, opened, waits
from tiny_models import needs_models, save_tiny_bert

from provider_server import Answer, ProviderServer, provider_server
from second_brain import errors
from second_brain.models.hosted import RateLimit
from second_brain.models.rerankers import (
    CachedReranker,
    CohereReranker,
    CrossEncoderReranker,
    JinaReranker,
    VoyageReranker,
    load_reranker,
    rerank_scores,
)

__all__ = ["opened", "waits"]  # fixtures


def lengths(query: str, texts: Sequence[str]) -> list[int]:
    return [len(query) + len(text) for text in texts]


def test_any_function_is_a_reranker() -> None:
    assert rerank_scores(lengths, "q", ["a", "bcd"]) == [2.0, 4.0]


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        ([1.0], "1 scores for 2 texts"),
        ([1.0, float("nan")], "NaN"),
        ([1.0, None], "not numbers"),
        (None, "not numbers"),
    ],
)
def test_scores_are_finite_numbers_one_for_each_text(scores: Any, told: str) -> None:
    with pytest.raises(errors.UnexpectedAnswerError, match=told):
        rerank_scores(lambda _query, _texts: scores, "q", ["a", "b"])


@pytest.fixture
def api() -> Iterator[ProviderServer]:
    """The API of a provider, which scores a text by its length in hundredths, best first."""
    with provider_server() as served:

        def answer(request: Any) -> Answer:
            scores = [len(text) / 100 for text in request.body["documents"]]
            results = [{"index": one, "relevance_score": s} for one, s in enumerate(scores)]
            results.sort(key=lambda result: -result["relevance_score"])
            name = "data" if request.body["model"] == "voyage" else "results"
            return Answer({name: results})

        served.answer = answer
        yield served


NAN = float("nan")
Hosted = CohereReranker | JinaReranker | VoyageReranker
Make = Callable[..., Hosted]

KINDS = {"cohere": CohereReranker, "jina": JinaReranker, "voyage": VoyageReranker}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, opened: Callable[..., Any]) -> Make:
    """Make the reranker of a provider."""
    name = request.param
    return lambda **options: opened(KINDS[name], name, api_key=KEY, **options)


def test_scores_come_back_in_the_order_of_the_texts(make: Make, api: ProviderServer) -> None:
    texts = ["four", "a", "the longest", "two"]
    assert rerank_scores(make(), "which?", texts) == [0.04, 0.01, 0.11, 0.03]
    (request,) = api.requests
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.path == ("/v2/rerank" if request.body["model"] == "cohere" else "/rerank")
    assert request.body == {**request.body, "query": "which?", "documents": texts}


def test_no_texts_need_no_request(make: Make, api: ProviderServer) -> None:
    assert make()("q", []) == []
    assert api.requests == []


@pytest.mark.parametrize(
    ("variable", "reranker"),
    [
        ("CO_API_KEY", CohereReranker),
        ("COHERE_API_KEY", CohereReranker),
        ("JINA_API_KEY", JinaReranker),
        ("VOYAGE_API_KEY", VoyageReranker),
    ],
)
def test_the_environment_is_asked_for_the_key_when_a_reranker_is_made(
    monkeypatch: pytest.MonkeyPatch, api: ProviderServer, variable: str, reranker: type[Hosted]
) -> None:
    for name in ("CO_API_KEY", "COHERE_API_KEY", variable):
        monkeypatch.delenv(name, raising=False)
    # As if the address were the provider's.
    monkeypatch.setattr(reranker, "provider", replace(reranker.provider, base_url=api.url))
    with pytest.raises(errors.ConfigurationError) as caught:
        reranker()
    assert variable in (caught.value.remedy or "")
    monkeypatch.setenv(variable, KEY)
    with reranker("voyage" if reranker is VoyageReranker else "any") as made:
        made("q", ["a"])
    assert api.requests[-1].headers["authorization"] == f"Bearer {KEY}"


def test_another_server_with_jinas_api_needs_no_key(
    monkeypatch: pytest.MonkeyPatch, api: ProviderServer
) -> None:
    monkeypatch.setenv("JINA_API_KEY", KEY)
    with JinaReranker("BAAI/bge-reranker-v2-m3", base_url=f"{api.url}/v1") as reranker:
        assert reranker("q", ["a", "bc"]) == [0.01, 0.02]
    (request,) = api.requests
    assert request.path == "/v1/rerank"
    assert "authorization" not in request.headers


def test_a_busy_provider_is_retried(make: Make, api: ProviderServer, waits: list[float]) -> None:
    api.before.extend([Answer({}, 429, {"Retry-After": "3"}), None, Answer({}, 503)])
    assert make(retries=3)("q", ["a"]) == [0.01]
    assert len(waits) == 3
    assert 3 < waits[0] < 4


def test_calls_wait_for_the_limit(make: Make, waits: list[float]) -> None:
    reranker = make(rate_limit=RateLimit(requests_per_minute=1, clock=lambda: 0.0))
    assert [reranker("q", ["a"]) for _ in range(2)] == [[0.01], [0.01]]
    assert waits == [60]


@pytest.mark.parametrize(
    "results",
    [None, [], [(0, 0.5)], [(0, 0.5), (0, 0.5)], [(0, 0.5), (2, 0.5)], [(0, 0.5), (1, NAN)]],
)
def test_an_answer_of_another_form_is_refused(
    make: Make, api: ProviderServer, results: Any
) -> None:
    given = results and [{"index": one, "relevance_score": score} for one, score in results]
    api.answer = lambda _: Answer({"results": given, "data": given})
    with pytest.raises(errors.UnexpectedAnswerError):
        make()("q", ["a", "b"])


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(errors.MissingExtraError) as caught:
        CrossEncoderReranker()
    assert "second-brain[rerank]" in (caught.value.remedy or "")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for an installed sentence-transformers, which is over 1 GB."""
    package = ModuleType("sentence_transformers")
    package.__spec__ = ModuleSpec("sentence_transformers", None)
    monkeypatch.setitem(sys.modules, "sentence_transformers", package)
    monkeypatch.setattr("socket.socket.connect", _no_network)


def _no_network(*_: object) -> None:
    raise AssertionError("the network was used")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("model", ["nobody/no-such-model", "not a model", "folder"])
def test_missing_weights_are_refused_when_the_reranker_is_made(tmp_path: Path, model: str) -> None:
    if model == "folder":
        model = str(tmp_path)
    with pytest.raises(
        errors.ConfigurationError, match=r"weights of .* are not on this machine"
    ) as caught:
        CrossEncoderReranker(model)
    assert f"hf download {model}" in caught.value.remedy


@pytest.mark.usefixtures("installed")
def test_weights_in_a_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert CrossEncoderReranker(str(tmp_path))("q", []) == []


@needs_models
def test_a_cross_encoder_scores_each_text_whatever_stands_beside_it(tmp_path: Path) -> None:
    reranker = CrossEncoderReranker(save_tiny_bert(tmp_path / "tiny", labels=1), batch_size=2)
    texts = ["the key", "yellow banana", "", "rotate the service role key " * 20, "car"]
    scores = rerank_scores(reranker, "rotate the key", texts)
    assert len(set(scores)) == len(texts)
    alone = [rerank_scores(reranker, "rotate the key", [text])[0] for text in texts]
    assert scores == pytest.approx(alone, abs=1e-5)


@needs_models
def test_a_long_text_is_cut_to_what_the_model_reads(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path / "tiny", labels=1)
    long = "banana " * 3000
    assert len(set(CrossEncoderReranker(folder)("key", [long, long + "engine"]))) == 1
    # Three special tokens, one of the query, four of the text.
    short = CrossEncoderReranker(folder, max_length=8)
    kept, cut, other = short("key", ["car " * 4, "car " * 4 + "banana", "car " * 3 + "banana"])
    assert kept == pytest.approx(cut, abs=1e-6)
    assert kept != pytest.approx(other, abs=1e-6)


@needs_models
def test_a_model_is_loaded_on_first_use_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sentence_transformers

    loaded: list[str] = []

    class Counted(sentence_transformers.CrossEncoder):  # type: ignore[misc]
        def __init__(self, name: str, **options: Any) -> None:
            loaded.append(name)
            super().__init__(name, **options)

    monkeypatch.setattr(sentence_transformers, "CrossEncoder", Counted)
    folder = save_tiny_bert(tmp_path / "tiny", labels=1)
    reranker = CrossEncoderReranker(folder)
    assert loaded == []
    texts = ["the key", "banana " * 50]
    with ThreadPoolExecutor(4) as threads:
        scores = list(threads.map(lambda _: reranker("key", texts), range(8)))
    assert loaded == [folder]
    assert all(one == pytest.approx(scores[0], abs=1e-5) for one in scores)


@needs_models
def test_a_model_with_several_outputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UnexpectedAnswerError, match="not numbers"):
        CrossEncoderReranker(save_tiny_bert(tmp_path / "tiny", labels=2))("key", ["a"])


@needs_models
def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(errors.ConfigurationError, match="cannot load"):
        CrossEncoderReranker(str(tmp_path))("key", ["a"])


def test_a_cached_reranker_calls_its_model_once_for_a_question_and_a_text() -> None:
    calls: list[tuple[str, list[str]]] = []

    def counted(query: str, texts: Sequence[str]) -> list[int]:
        calls.append((query, list(texts)))
        return lengths(query, texts)

    reranker = CachedReranker(counted)
    assert reranker("q", ["a", "bcd", "a"]) == [2, 4, 2]
    assert reranker("q", ["bcd", "ef"]) == [4, 3]
    assert reranker("q", ["a", "ef"]) == [2, 3]
    assert reranker("qq", ["a"]) == [3]
    assert calls == [("q", ["a", "bcd"]), ("q", ["ef"]), ("qq", ["a"])]


def test_an_unusable_score_is_not_kept() -> None:
    answers = iter([[float("nan")], [1.0]])
    reranker = CachedReranker(lambda _query, _texts: next(answers))
    with pytest.raises(errors.UnexpectedAnswerError):
        reranker("q", ["a"])
    assert reranker("q", ["a"]) == [1.0]


@pytest.mark.parametrize("name", ["nonsense", "cohere:"])
def test_an_unknown_reranker_is_refused_with_the_names(name: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="unknown reranker"):
        load_reranker(name)


def test_a_reranker_is_loaded_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CO_API_KEY", KEY)
    monkeypatch.setenv("JINA_API_KEY", KEY)
    assert isinstance(load_reranker("jina:jina-reranker-v3"), JinaReranker)
    assert isinstance(load_reranker("cohere"), CohereReranker)
    assert isinstance(load_reranker("cohere:rerank-v4"), CohereReranker)

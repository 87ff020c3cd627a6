"""The settings of the retrieval service: their values, their bounds and the effect of each."""

import logging
import os
import re
from collections.abc import Callable, Sequence
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest

from corpora import store_document
from second_brain.errors import ConfigurationError
from second_brain.models import CallableEmbedder
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.service import RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.retrieval.telemetry import JsonFormatter
from second_brain.services.postgres import PostgresProvider
from second_brain.services.query_log import LoggedQuery
from second_brain.services.results import EmbeddingModel, Results
from support.databases import query

EMBEDDINGS = [[1.0, number / 20, number / 50] for number in range(40)]
BY_HAND = CallableEmbedder(lambda texts: [[1.0, 0.5, 0.0]] * len(texts), "by-hand", 3)
PAGE = Path(__file__).parents[2] / "docs" / "service.md"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower() in SearchSettings.model_fields or name.lower().startswith("search_"):
            monkeypatch.delenv(name)


def test_settings_are_read_when_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SearchSettings()
    monkeypatch.setenv("SEARCH_DEFAULT_MODE", "bm25")
    monkeypatch.setenv("SEARCH_DEFAULT_LIMIT", "7")
    monkeypatch.setenv("USE_RERANKING", "true")
    monkeypatch.setenv("TEXT_WEIGHT", "")  # as a compose file leaves what is not set
    read = SearchSettings()
    assert (read.search_default_mode, read.search_default_limit) == ("text", 7)
    assert read.use_reranking
    assert read.text_weight == 1.0
    assert (before.search_default_mode, before.search_default_limit) == ("hybrid", 10)
    assert SearchSettings(search_default_limit=3).search_default_limit == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SEARCH_DEFAULT_MODE", "semantic"),
        ("USE_HYBRID_SEARCH", "perhaps"),
        ("SEARCH_DEFAULT_LIMIT", "0"),
        ("SIMILARITY_THRESHOLD", "nan"),
        ("TEXT_WEIGHT", "inf"),
        ("CROSSENCODER_MODEL", " "),
    ],
)
def test_a_setting_out_of_bounds_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=f"^{name}: ") as refused:
        SearchSettings()
    assert "docs/service.md" in refused.value.remedy


def test_two_names_of_one_setting_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_TEXT_WEIGHT", "0.25")
    monkeypatch.setenv("SEARCH_BM25_WEIGHT", "0.5")
    with pytest.raises(ConfigurationError, match=r"^SEARCH_TEXT_WEIGHT and SEARCH_BM25_WEIGHT "):
        SearchSettings()


def test_an_unknown_variable_is_told_with_the_nearest_known_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SEARCH_BM25_WEIGTH", "private value")
    monkeypatch.setenv("SEARCH_CACHE_TTL", "60")
    monkeypatch.setenv("SEARCH_DEFAULT_LIMIT", "7")
    SearchSettings()
    (reported,) = caplog.messages
    assert reported == (
        "ignored environment variables: "
        "SEARCH_BM25_WEIGTH (the nearest setting is SEARCH_BM25_WEIGHT), "
        "SEARCH_CACHE_TTL (the nearest setting is SEARCH_CACHE_TTL_SECONDS)"
    )


def test_one_leg_must_count() -> None:
    with pytest.raises(ConfigurationError, match="must not both be 0"):
        SearchSettings(vector_weight=0, text_weight=0)


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, "hybrid"),
        ({"use_hybrid_search": False}, "vector"),
        ({"use_reranking": True}, "rerank"),
        ({"use_reranking": True, "use_hybrid_search": False}, "rerank"),
        ({"use_reranking": True, "search_default_mode": "text"}, "text"),
        ({"use_hybrid_search": False, "search_default_mode": "rerank"}, "rerank"),
    ],
)
def test_the_switches_change_a_default_of_hybrid(given: dict[str, Any], mode: str) -> None:
    assert SearchSettings(**given).default_mode == mode


class Watched(PostgresProvider):
    """The real provider, which records its arguments."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.asked: list[dict[str, Any]] = []
        self.lookups = self.counts = 0

    def find(self, *question: Any, **options: Any) -> Results:
        self.asked.append(options)
        return super().find(*question, **options)

    def embedding_models(self, *, timeout: float | None = None) -> list[EmbeddingModel]:
        self.lookups += 1
        return super().embedding_models(timeout=timeout)

    def count_pending_embeddings(self, **options: Any) -> int:
        """Count the pending chunks, and count the calls."""
        self.counts += 1
        return super().count_pending_embeddings(**options)


class Trial:
    """A service with some settings over a real corpus, and what can be seen of it."""

    def __init__(self, dsn: str, given: dict[str, Any]) -> None:
        self.provider = Watched(dsn)
        self.passages: list[int] = []
        self.service = RetrievalService(
            self.provider, BY_HAND, self._score, SearchSettings(**given)
        )

    def _score(self, question: str, passages: Sequence[str]) -> list[float]:
        self.passages.append(len(passages))
        return [0.0] * len(passages)

    def search(self, **options: Any) -> SearchResponse:
        return self.service.search("zebra", **options)

    def asked(self, name: str, **options: Any) -> Any:
        """Search, and return what the provider was given under a name."""
        self.search(**options)
        return self.provider.asked[-1][name]

    def best_score(self, **options: Any) -> float:
        """Search, and return the fused score of the first result."""
        return self.search(**options).results[0].rrf_score or 0.0

    def with_another_model(self) -> str:
        """Search with an embedder that is not the corpus's; return the mode, or the error."""
        other = CallableEmbedder(lambda texts: [[1.0, 0.0, 0.0]] * len(texts), "other", 3)
        service = RetrievalService(self.provider, other, settings=self.service.settings)
        try:
            return service.search("zebra").mode_used
        except ConfigurationError as error:
            return error.kind

    def reranked(self, limit: int) -> int:
        """Search with the reranker, and return how many passages it was given."""
        self.search(mode="rerank", limit=limit)
        return self.passages[-1]


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    texts = {
        f"A zebra, told of for the {number}. time." + " Grass." * number: embedding
        for number, embedding in enumerate(EMBEDDINGS)
    }
    store_document(shared_dsn, "zebras", texts)
    return shared_dsn


def cross_encoder(trial: Trial) -> Any:
    """Return the model and the length of the reranker that the service makes when it has none."""
    with patch("second_brain.retrieval.embedding.CrossEncoderReranker") as made:
        service: Any = RetrievalService(trial.provider, BY_HAND, None, trial.service.settings)
        service._reranker("question", ["text"])
    (name,), options = made.call_args
    return name, options["max_length"]


def logged_question(trial: Trial) -> str | None:
    log, records = logging.getLogger("second_brain.search"), BufferingHandler(capacity=10)
    level = log.level
    log.addHandler(records)
    log.setLevel(logging.INFO)
    try:
        trial.search()
    finally:
        log.removeHandler(records)
        log.setLevel(level)
    return getattr(records.buffer[-1], "query", None)


def writes_json(trial: Trial) -> bool:
    package = logging.getLogger("second_brain")
    trial.search()
    own = [one for one in package.handlers if isinstance(one.formatter, JsonFormatter)]
    for one in own:
        package.removeHandler(one)
    package.setLevel(logging.NOTSET)
    package.propagate = True
    return bool(own)


def query_log_lines(trial: Trial) -> int:
    """Return how many lines the log has after two searches, two days after another one."""
    dsn = cast(str, trial.provider._database)
    query(dsn, "truncate public.knowledge_query_log")
    old = LoggedQuery(question="zebra", mode="text", total_ms=1.0, seconds_ago=2 * 86400)
    trial.provider.record_queries([old])
    trial.search()
    trial.search()
    trial.service.flush_query_log()
    return len(query(dsn, "select 1 from public.knowledge_query_log"))


CACHE = {"search_cache_enabled": True}
LOG = {"query_log": "all"}
RRF = {"search_fusion": "rrf"}

Look = Callable[[Trial], Any]


def used(at: Trial) -> Any:
    return at.search().mode_used


def again_cached(at: Trial) -> Any:
    return (at.search(), at.search())[1].cached


def similar_to_the_question(threshold: float) -> int:
    of = [np.dot([1, 0.5, 0], one) / np.linalg.norm(one) for one in EMBEDDINGS]
    return sum(one / np.linalg.norm([1, 0.5, 0]) >= threshold for one in of)


# For each setting: what else is set, its other value, what is looked at, and what is seen without
# and with it.
EFFECTS: dict[str, tuple[dict[str, Any], Any, Look, Any, Any]] = {
    "search_default_mode": ({}, "text", used, "hybrid", "text"),
    "use_hybrid_search": ({}, False, used, "hybrid", "vector"),
    "use_reranking": ({}, True, used, "hybrid", "rerank"),
    "search_default_limit": ({}, 4, lambda at: len(at.search().results), 10, 4),
    "vector_match_count": ({}, 4, lambda at: len(at.search(mode="vector").results), 10, 4),
    "max_hybrid_search_results": (
        *({}, 20, lambda at: (at.search(limit=30).limit, at.reranked(10))),
        *((30, 40), (20, 20)),
    ),
    "hybrid_candidate_count": (
        *({}, 12, lambda at: at.search(mode="vector", limit=3).total_count),
        *(40, 12),
    ),
    "overfetch_multiplier": (
        *({"hybrid_candidate_count": 1}, 7, lambda at: at.asked("pool_size", limit=5)),
        *(15, 35),
    ),
    "reranking_candidate_multiplier": ({}, 2, lambda at: at.reranked(5), 25, 10),
    "similarity_threshold": (
        *({}, 0.98, lambda at: at.search(mode="vector", limit=100).total_count),
        *(40, similar_to_the_question(0.98)),
    ),
    "vector_weight": (RRF, 3.0, lambda at: at.asked("vector_weight"), 1.0, 3.0),
    "text_weight": (RRF, 3.0, lambda at: at.asked("text_weight"), 1.0, 3.0),
    "search_fusion": ({}, "auto", lambda at: at.best_score() > 0.1, False, True),
    "rrf_constant": (
        *(RRF, 1.0, lambda at: round(at.best_score(mode="text"), 6)),
        *(round(1 / 61, 6), 0.5),
    ),
    "crossencoder_model": (
        *({}, "cross-encoder/other", lambda at: cross_encoder(at)[0]),
        *("cross-encoder/ms-marco-MiniLM-L6-v2", "cross-encoder/other"),
    ),
    "crossencoder_max_length": ({}, 128, lambda at: cross_encoder(at)[1], 512, 128),
    # How often the model is called for the same question.
    "rerank_cache_max_entries": (
        *({}, 0, lambda at: (at.reranked(5), at.reranked(5), len(at.passages))[-1]),
        *(1, 2),
    ),
    "search_include_memory": (
        *({}, True, lambda at: at.search().applied_filters["left_out"]),
        *(["memory", "history"], ["history"]),
    ),
    "search_on_bad_embedding": ({}, "text", Trial.with_another_model, "configuration", "text"),
    "search_timeout_seconds": (
        *({}, 600, lambda at: at.asked("timeout", mode="text") > 30),
        *(False, True),
    ),
    "search_model_check_seconds": (
        *({}, 0, lambda at: (at.search(), at.search(), at.provider.lookups)[-1]),
        *(1, 2),
    ),
    "search_pending_check_seconds": (
        *({}, 0, lambda at: (at.search(), at.search(), at.provider.counts)[-1]),
        *(1, 2),
    ),
    "search_cache_enabled": ({}, True, again_cached, False, True),
    "search_cache_ttl_seconds": (CACHE, 1e-9, again_cached, True, False),
    "search_cache_max_entries": (
        *(CACHE, 1, lambda at: (at.search(), at.search(limit=1), at.search())[2].cached),
        *(True, False),
    ),
    "search_log_queries": ({}, True, logged_question, None, "zebra"),
    "search_log_json": ({}, True, writes_json, False, True),
    "query_log": ({}, "without_viewer", query_log_lines, 1, 3),
    "query_log_max_rows": (LOG, 1, query_log_lines, 3, 1),
    "query_log_max_days": (LOG, 1, query_log_lines, 3, 2),
}


@pytest.mark.parametrize("name", SearchSettings.model_fields)
def test_every_setting_has_its_effect(corpus: str, name: str) -> None:
    beside, other, look, without, with_it = EFFECTS[name]
    assert look(Trial(corpus, beside)) == without
    assert look(Trial(corpus, {**beside, name: other})) == with_it


def test_a_weight_of_nothing_leaves_the_other_leg_alone_whole(corpus: str) -> None:
    trial = Trial(corpus, {"vector_weight": 0})
    assert {one.match_type for one in trial.search().results} == {"text"}
    assert {one.match_type for one in trial.search(mode="vector").results} == {"vector"}


def test_what_is_reranked_comes_from_the_vector_leg_without_hybrid_search(corpus: str) -> None:
    trial = Trial(corpus, {"use_hybrid_search": False})
    response = trial.search(mode="rerank")
    assert response.mode_used == "rerank"
    assert {one.match_type for one in response.results} == {"vector"}


def bounds(name: str) -> str:
    """Say a setting's bounds as the page does."""
    properties = SearchSettings.model_json_schema()["properties"][name]
    said = next((one for one in properties.get("anyOf", []) if one["type"] != "null"), properties)
    if "enum" in said:
        return ", ".join(f"`{value}`" for value in said["enum"])
    if said["type"] == "boolean":
        return "`true`, `false`"
    if "minimum" in said and "maximum" in said:
        return f"{said['minimum']:g} to {said['maximum']:,g}".replace("1e+06", "1,000,000")
    if "minimum" in said:
        return f"at least {said['minimum']:g}"
    if "exclusiveMinimum" in said:
        return f"above {said['exclusiveMinimum']:g}"
    return "text"


def test_the_table_in_the_docs_lists_the_settings_of_the_class() -> None:
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| ([^|]*) \| ([^|]*) \| [^|]+ \|$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    documented = {name: (default.strip("` "), bound) for name, default, bound in rows}
    expected = {
        name.upper(): (
            str(field.default).lower()
            if isinstance(field.default, bool)
            else f"{field.default:g}"
            if isinstance(field.default, float | int)
            else "as stored"
            if name == "search_fusion"
            else str(field.default),
            bounds(name),
        )
        for name, field in SearchSettings.model_fields.items()
    }
    assert documented == expected

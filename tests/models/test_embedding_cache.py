"""The cache of embeddings, in memory and in a file."""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from second_brain.errors import ConfigurationError, UnavailableError, UnexpectedAnswerError
from second_brain.models import (
    CachedEmbedder,
    CallableEmbedder,
    EmbeddingCache,
    MemoryCache,
    SqliteCache,
    embed_query,
)
from second_brain.models.cached import CacheKey


class Counting:
    """An embedder that embeds queries differently, and counts what it is asked for."""

    dimensions = 2

    def __init__(self, model: str = "counting") -> None:
        self.model = model
        self.documents: Counter[str] = Counter()
        self.queries: Counter[str] = Counter()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.documents.update(texts)
        vectors = [[len(text), 1.0] for text in texts]
        return CallableEmbedder(lambda _: vectors, "", 2).embed(texts)

    def embed_query(self, text: str) -> NDArray[np.float32]:
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

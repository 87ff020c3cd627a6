"""Documents move to a database that is added, while searches and writes go on."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import psycopg
import pytest
from shards import NAMES, Corpus, databases, documents, empty

from conftest import Connection, Server
from second_brain.distributed.sharded import ShardedProvider
from second_brain.distributed.sharded_write import Moved, ShardedWriter, move_documents, place
from second_brain.errors import InvalidInputError
from second_brain.services.postgres import PostgresProvider

pytestmark = pytest.mark.module("shards")

BEFORE = NAMES[:3]
COUNT = 40
PATIENCE = 60.0


@pytest.fixture(scope="module")
def four(server: Server) -> Iterator[Corpus]:
    with databases(server, *NAMES) as made:
        yield made


@pytest.fixture
def corpus(four: Corpus) -> Corpus:
    """Four databases, of which three have all documents."""
    empty(four)
    writer = ShardedWriter({name: four.shards[name] for name in BEFORE})
    for document, chunks in documents(COUNT):
        writer.upsert_document(document, [{**chunks[0], "content": "amber river"}])
    return four


def places(corpus: Corpus) -> Counter[tuple[str, str]]:
    return Counter(
        (key, name)
        for name, shard in corpus.shards.items()
        for (key,) in shard.execute("select external_key from public.knowledge_documents")
    )


def after_move(key: str) -> tuple[str, str]:
    return (key, place(key, NAMES))


ALL_IN_PLACE = Counter(after_move(f"doc-{number}") for number in range(COUNT))
MOVING = sum(
    place(f"doc-{number}", BEFORE) != place(f"doc-{number}", NAMES) for number in range(40)
)


def keys_found(provider: ShardedProvider) -> list[str]:
    hits, details = provider.find(None, "amber", top_k=1000)
    assert "missing_shards" not in details
    return [hit.metadata["external_key"] or "" for hit in hits]


def test_a_further_database_takes_only_its_share() -> None:
    keys = [f"key-{number}" for number in range(3000)]
    moved = [key for key in keys if place(key, NAMES) != place(key, BEFORE)]
    assert {place(key, NAMES) for key in moved} == set(NAMES[3:])
    assert 650 < len(moved) < 850
    # Another version of this package must find them again.
    assert [place(key, NAMES) for key in keys[:6]] == [
        place(key, tuple(reversed(NAMES))) for key in keys[:6]
    ]
    assert [place(key, ("a", "b")) for key in ("doc-1", "doc-2", "doc-3")] == ["a", "b", "b"]


def test_a_search_that_a_move_overtakes_finds_each_document_once(corpus: Corpus) -> None:
    new_has_answered, all_is_copied = Event(), Event()

    class New(PostgresProvider):
        async def _send(
            self, function: str, arguments: dict[str, Any], timeout: float | None
        ) -> object:
            answer = await super()._send(function, arguments, timeout)
            if function == "knowledge_candidates":
                new_has_answered.set()
            return answer

    class Old(PostgresProvider):
        async def _send(
            self, function: str, arguments: dict[str, Any], timeout: float | None
        ) -> object:
            if function == "knowledge_candidates":
                assert all_is_copied.wait(PATIENCE)
            return await super()._send(function, arguments, timeout)

    expected = sorted(f"doc-{number}" for number in range(COUNT))
    shards = {name: (Old if name in BEFORE else New)(pool) for name, pool in corpus.pools.items()}
    with ShardedProvider(shards, timeout=None) as provider, ThreadPoolExecutor(1) as threads:
        search = threads.submit(keys_found, provider)

        def look(seconds: float) -> None:
            # The new database answered before the copy, the others answer after it.
            all_is_copied.set()
            assert sorted(search.result(PATIENCE)) == expected
            # Now two databases have what moves.
            assert places(corpus).total() == COUNT + MOVING
            assert sorted(keys_found(provider)) == expected
            raise InterruptedError

        try:
            assert new_has_answered.wait(PATIENCE)
            with pytest.raises(InterruptedError):
                move_documents(corpus.shards, grace=PATIENCE, sleep=look)
        finally:
            all_is_copied.set()
        assert move_documents(corpus.shards, grace=0).moved == MOVING > 3
        assert places(corpus) == ALL_IN_PLACE
        assert sorted(keys_found(provider)) == expected
    assert move_documents(corpus.shards, grace=0).moved == 0


def test_a_document_that_moves_after_it_was_found_is_still_shown(corpus: Corpus) -> None:
    class Moving(PostgresProvider):
        async def _send(
            self, function: str, arguments: dict[str, Any], timeout: float | None
        ) -> object:
            if function == "fuse_knowledge_candidates":
                assert move_documents(corpus.shards, grace=0).moved in (0, MOVING)
            return await super()._send(function, arguments, timeout)

    shards = {name: Moving(pool) for name, pool in corpus.pools.items()}
    with ShardedProvider(shards) as provider:
        assert sorted(keys_found(provider)) == sorted(f"doc-{number}" for number in range(COUNT))
    assert places(corpus) == ALL_IN_PLACE


def test_what_changes_or_goes_meanwhile_is_moved_as_it_is_then(corpus: Corpus) -> None:
    changed, gone = [
        f"doc-{number}"
        for number in range(COUNT)
        if place(f"doc-{number}", BEFORE) != place(f"doc-{number}", NAMES)
    ][:2]
    writer = ShardedWriter(corpus.shards, before=BEFORE)
    pauses: list[float] = []

    def write(seconds: float) -> None:
        if not pauses:
            writer.upsert_document({"external_key": changed}, [{"content": "amber quartz"}])
            assert writer.delete_document(gone) == 1
            assert (changed, place(changed, BEFORE)) in places(corpus)
        pauses.append(seconds)
        time.sleep(seconds)

    move_documents(corpus.shards, grace=0.5, sleep=write)
    assert len(pauses) >= 2
    assert places(corpus) == ALL_IN_PLACE - Counter([after_move(gone)])
    stored = corpus.shards[NAMES[3]].execute(
        "select chunk.content from public.knowledge_chunks as chunk"
        " join public.knowledge_documents as document on document.id = chunk.document_id"
        " where external_key = %s and status = 'active'",
        [changed],
    )
    assert stored.fetchall() == [("amber quartz",)]


def test_a_search_shows_the_document_that_was_written_last(corpus: Corpus) -> None:
    changed = next(
        f"doc-{number}"
        for number in range(COUNT)
        if place(f"doc-{number}", BEFORE) != place(f"doc-{number}", NAMES)
    )
    writer = ShardedWriter(corpus.shards, before=BEFORE)
    found: list[tuple[str, str]] = []

    def look(seconds: float) -> None:
        writer.upsert_document({"external_key": changed}, [{"content": "amber quartz"}])
        with corpus.provider() as provider:
            hits, _ = provider.find(None, "amber", top_k=1000)
        found.extend(
            (hit.id, hit.content) for hit in hits if hit.metadata["external_key"] == changed
        )
        raise InterruptedError

    with pytest.raises(InterruptedError):
        move_documents(corpus.shards, grace=0.5, sleep=look)
    assert [content for _, content in found] == ["amber quartz"]


def test_a_move_that_was_stopped_goes_on(corpus: Corpus) -> None:
    def stop(seconds: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        move_documents(corpus.shards, grace=0.5, sleep=stop)
    assert places(corpus).total() > COUNT
    reported: list[Moved] = []
    moved = move_documents(corpus.shards, grace=0.2, notify=reported.append)
    assert (moved.moved, places(corpus)) == (MOVING, ALL_IN_PLACE)
    assert reported


def test_a_database_can_be_removed(corpus: Corpus) -> None:
    move_documents(corpus.shards, onto=BEFORE[:2], grace=0.1)
    assert {name for _, name in places(corpus)} == set(BEFORE[:2])
    assert places(corpus).total() == COUNT


def test_an_owner_is_deleted_everywhere(corpus: Corpus) -> None:
    writer = ShardedWriter(corpus.shards, before=BEFORE)
    owners = {str(document["owner_id"]) for document, _ in documents(COUNT)}
    assert sum(writer.delete_owner(owner).documents_deleted for owner in owners) == COUNT
    assert places(corpus).total() == 0


def without_autocommit(shards: Mapping[str, Connection]) -> dict[str, Connection]:
    with psycopg.connect(shards["north"].info.dsn, password=shards["north"].info.password) as north:
        return {**shards, "north": north}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda shards: ShardedWriter({}), "shards"),
        (lambda shards: ShardedWriter(shards, before=["centre"]), "before .* centre"),
        (lambda shards: ShardedWriter(shards).upsert_document({}, []), "external_key"),
        (lambda shards: move_documents(without_autocommit(shards)), "north .* autocommit"),
    ],
)
def test_bad_arguments_are_named(
    corpus: Corpus, make: Callable[[Mapping[str, Connection]], object], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        make(corpus.shards)

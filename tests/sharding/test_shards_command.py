"""The command shards: the statistics of the databases, and their documents."""

from collections.abc import Iterator

import pytest
from shards import Corpus, databases, empty, fill

from command_line import Run
from conftest import Server

pytestmark = pytest.mark.module("shards")

NAMES = ("east", "west")
GIVEN = ("--shard", "east=EAST_URL", "--shard", "west=WEST_URL")


@pytest.fixture(scope="module")
def two(server: Server) -> Iterator[Corpus]:
    with databases(server, *NAMES) as made:
        yield made


@pytest.fixture
def corpus(two: Corpus, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    empty(two)
    for shard in two.shards.values():
        shard.execute("select public.set_knowledge_statistics()")
    fill(two, 30)
    for name, pool in two.pools.items():
        monkeypatch.setenv(f"{name.upper()}_URL", str(pool.conninfo))
    return two


def test_refresh_sets_the_same_statistics_and_check_says_so(corpus: Corpus, run: Run) -> None:
    before = run("server", "shards", "check", *GIVEN)
    assert (before.code, "shards refresh" in before.out) == (1, True)
    chunks = [
        shard.execute("select count(*) from public.knowledge_chunks").fetchall()[0][0]
        for shard in corpus.shards.values()
    ]
    assert [
        int(line.split("│")[2]) for line in before.out.splitlines() if "its own" in line
    ] == chunks
    refreshed = run("server", "shards", "refresh", *GIVEN)
    assert (refreshed.code, "Set in 2 databases" in refreshed.out) == (0, True)
    assert run("server", "shards", "check", *GIVEN).code == 0
    fill(corpus, 60)
    for shard in corpus.shards.values():
        shard.execute("analyze public.knowledge_chunks")
        shard.execute("select public.refresh_knowledge_statistics()")
    grown = run("server", "shards", "check", *GIVEN)
    assert (grown.code, "chunks now" in grown.out) == (1, True)


def test_move_puts_documents_into_their_places(corpus: Corpus, run: Run) -> None:
    moved = run("server", "shards", "move", *GIVEN, "--onto", "west", "--grace", "0")
    assert (moved.code, moved.out.startswith("Moved ")) == (0, True)
    counts = [
        shard.execute("select count(*) from public.knowledge_documents").fetchall()[0][0]
        for shard in corpus.shards.values()
    ]
    assert counts == [0, 30]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--shard", "east"), "--shard number 1"),
        (("--shard", "east=EAST_URL", "--shard", "east=WEST_URL"), "--shard number 2"),
        (("--shard", "east=postgresql://me:secret@host/db"), "--shard number 1"),
        ((*GIVEN, "--onto", "north"), "--onto north"),
    ],
)
def test_wrong_names_are_refused_without_a_secret(
    corpus: Corpus, run: Run, given: tuple[str, ...], said: str
) -> None:
    done = run("server", "shards", "move", *given)
    assert done.code == 1
    assert said in done.err
    assert "secret" not in done.out + done.err

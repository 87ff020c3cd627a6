"""Changing the model of a table in use: without downtime, and from wherever a run stopped."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray
from psycopg.types.json import Jsonb
from reembedded import (
    ACTIVE,
    CHUNKS,
    DOCUMENTS,
    END_SESSIONS,
    NEW,
    OLD,
    SEARCH,
    Hashed,
    assert_switched,
    catalog,
    literal,
    texts_of,
    upsert,
)
from typer.testing import CliRunner

from conftest import Connect, Server, copy_of
from second_brain.cli.commands import app
from second_brain.database import vector_index
from second_brain.database.maintenance import Progress
from second_brain.embedding_queue import reembedding
from second_brain.errors import ConfigurationError, InvalidInputError, UnexpectedAnswerError
from second_brain.services.install import Database

pytestmark = pytest.mark.module("embedding_queue")


@pytest.fixture(scope="module")
def template(server: Server) -> Iterator[str]:
    """A database with documents of the old model, to be copied."""
    for dsn in copy_of(server, server.template(OLD)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number in range(DOCUMENTS):
                upsert(connection, f"document {number}", texts_of(number), Hashed("old", OLD))
            # Leaves a superseded chunk.
            upsert(connection, "document 0", texts_of(0)[:-1], Hashed("old", OLD))
            connection.execute("insert into public.knowledge_chunks (content) values ('by text')")
            connection.execute("analyze public.knowledge_chunks")
        yield str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])


@pytest.fixture
def dsn(server: Server, template: str) -> Iterator[str]:
    """A database of this test's own with those documents."""
    yield from copy_of(server, template)


@pytest.mark.large
def test_every_chunk_is_embedded_anew_and_nothing_else_changes(dsn: str, connect: Connect) -> None:
    before = catalog(dsn)
    connection = connect()
    times = "select id, updated_at, created_at from public.knowledge_chunks order by id"
    updated = connection.execute(times).fetchall()
    embedder = Hashed("new", NEW)
    report = reembedding.start(dsn, embedder, batch_size=7)
    assert report == reembedding.Report(embedded=ACTIVE, without_direction=0)
    assert_switched(dsn, before)
    assert connection.execute(times).fetchall() == updated
    # Equal texts once.
    assert len(embedder.texts) == len(set(embedder.texts)) == ACTIVE - (DOCUMENTS - 1) + 1


@pytest.mark.large
def test_a_session_with_plans_from_before_the_switch_goes_on(dsn: str, connect: Connect) -> None:
    session = connect()
    old, new = Hashed("old", OLD), Hashed("new", NEW)
    questions = [literal(one.embed(["a question"])[0]) for one in (old, new)]
    upsert(session, "mine", ["one"], old)
    assert len(session.execute(SEARCH, [questions[0]]).fetchall()) == ACTIVE
    reembedding.start(dsn, new)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"have {NEW}"):
        session.execute(SEARCH, [questions[0]])
    upsert(session, "mine", ["one", "two"], new)
    assert len(session.execute(SEARCH, [questions[1]]).fetchall()) == ACTIVE + 2


def test_documents_go_on_as_before(dsn: str, connect: Connect) -> None:
    reembedding.start(dsn, Hashed("new", NEW))
    connection = connect()
    (hashes,) = connection.execute(
        "select array_agg(content_hash) from public.knowledge_chunks where status = 'active'"
    ).fetchone() or ([],)
    for model, missing in (("new", 0), ("old", len(set(hashes)))):
        assert connection.execute(
            "select cardinality(public.missing_knowledge_embeddings(%s, %s))", [hashes, model]
        ).fetchone() == (missing,)
    chunks = [
        {"heading": "Title", "content": text, "embedding_model": "new"}
        for text in ["in every document", "passage 1 0", "not known"]
    ]
    counts = connection.execute(
        "select embeddings_reused, embeddings_missing"
        "  from public.upsert_knowledge_document(%s, %s)",
        [Jsonb({"external_key": "another", "title": "Title"}), Jsonb(chunks)],
    ).fetchone()
    assert counts == (2, 1)


def test_texts_without_a_direction_stay_without_an_embedding(dsn: str, connect: Connect) -> None:
    report = reembedding.start(dsn, Hashed("new", NEW, silent="in every document"))
    assert (report.embedded, report.without_direction) == (ACTIVE - DOCUMENTS + 1, 1)
    found = connect().execute(
        "select distinct content, embedding_model, embedding_bits from public.knowledge_chunks"
        " where status = 'active' and embedding is null"
    )
    assert found.fetchall() == [("in every document", None, None)]


def test_vectors_that_are_not_finite_are_refused_by_the_models_name(dsn: str) -> None:
    class Broken(Hashed):
        def _vector(self, text: str) -> NDArray[np.float32]:
            return np.full(self.dimensions, np.nan, np.float32)

    with pytest.raises(UnexpectedAnswerError, match="broken returned a vector that contains NaN"):
        reembedding.start(dsn, Broken("broken", NEW))
    assert reembedding.cancel(dsn)


class Interruption(Exception):  # noqa: N818
    """What ends a run."""


def interrupted_at(place: int) -> Callable[[Progress], None]:
    told = 0

    def on_progress(progress: Progress) -> None:
        nonlocal told
        # The watching thread's are not always the same.
        if ": building" not in progress.step and ": waiting" not in progress.step:
            told += 1
            if told == place:
                raise Interruption(progress.step)

    return on_progress


def test_a_new_run_continues_after_an_interruption_at_any_step(
    server: Server, template: str
) -> None:
    steps: list[str] = []
    for place in range(1, 50):
        for dsn in copy_of(server, template):
            before = catalog(dsn)
            try:
                reembedding.start(
                    dsn, Hashed("new", NEW), batch_size=30, on_progress=interrupted_at(place)
                )
            except Interruption as step:
                steps.append(str(step))
            else:
                assert_switched(dsn, before)
                assert len(steps) == place - 1
                assert [step for step in steps if not step.startswith("embedding")] == [
                    "adding the columns",
                    "validating the new embeddings",
                    "indexing the queue",
                    "indexing the queue",
                    "building the vector index",
                    "switching to the new embeddings",
                    "analysing the table",
                    "dropping the old index",
                    "dropping the old columns",
                ]
                return
            reembedding.start(dsn, Hashed("new", NEW), batch_size=30)
            assert_switched(dsn, before)
    pytest.fail("it has no end")


CHILD = """
import sys
import numpy as np
sys.path[:0] = sys.argv[2:]
from reembedded import NEW, Hashed
from second_brain.embedding_queue import reembedding

print("begun", flush=True)
class Slow(Hashed):
    def embed(self, texts):
        if self.texts:
            print("embedding", flush=True)
            sys.stdin.read()
        return super().embed(texts)
reembedding.start(sys.argv[1], Slow("new", NEW), batch_size=10)
"""


def test_a_killed_process_loses_no_batch(dsn: str, connect: Connect) -> None:
    before = catalog(dsn)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, dsn, *map(str, Path(__file__).parents[:2])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "embedding\n"]
        os.kill(process.pid, signal.SIGKILL)
    connection = connect()
    now = reembedding.state(Database(connection))
    assert now == reembedding.State("embedding", OLD, "new")
    done, chunks = reembedding.count(Database(connection))
    assert 0 < done < chunks == ACTIVE
    # The server ends the session once it sees that nobody is there.
    connection.execute(END_SESSIONS)
    report = reembedding.start(dsn, Hashed("new", NEW))
    assert report.embedded == ACTIVE - done
    assert_switched(dsn, before)


def test_a_lost_connection_while_switching_leaves_the_old_model(dsn: str, connect: Connect) -> None:
    before = catalog(dsn)
    killer = connect()

    def on_progress(progress: Progress) -> None:
        if progress.step == "switching to the new embeddings":
            killer.execute(END_SESSIONS)

    with pytest.raises(psycopg.OperationalError):
        reembedding.start(dsn, Hashed("new", NEW), on_progress=on_progress)
    query = Hashed("old", OLD).embed(["a question"])[0]
    assert len(connect().execute(SEARCH, [literal(query)]).fetchall()) == ACTIVE - 1
    reembedding.start(dsn, Hashed("new", NEW))
    assert_switched(dsn, before)


@contextmanager
def running(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run these all along; what failed is raised at the end."""
    failures: list[BaseException] = []
    over = threading.Event()

    def run(work: Callable[[threading.Event], None]) -> None:
        try:
            work(over)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []


@pytest.mark.large
def test_searches_and_writes_go_on_and_lose_nothing(dsn: str) -> None:
    before = catalog(dsn)
    written = 0
    searches = {"old": 0, "new": 0}
    fixed = {f"passage {number} {part}" for number in range(5, 9) for part in range(CHUNKS - 1)}

    def write(over: threading.Event) -> None:
        nonlocal written
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.is_set():
                # The service writes with the old model until the column has the new size.
                (size,) = connection.execute(
                    "select dimensions from public.knowledge_embedding_models() limit 1"
                ).fetchone() or (OLD,)
                embedder = Hashed("old", OLD) if size == OLD else Hashed("new", NEW)
                texts = [f"written {written} {part}" for part in range(3)]
                try:
                    upsert(connection, f"document {written % 3}", texts, embedder)
                except psycopg.DataError:
                    assert embedder.model == "old"
                else:
                    written += 1

    def search(over: threading.Event) -> None:
        embedders = {"old": Hashed("old", OLD), "new": Hashed("new", NEW)}
        queries = {name: one.embed(["a question"])[0] for name, one in embedders.items()}
        model = "old"
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.is_set():
                try:
                    found = connection.execute(
                        "select content, vector_rank from public.hybrid_search_knowledge_chunks("
                        " query_embedding => %s::extensions.vector, match_count => 500,"
                        " match_threshold => -1)",
                        [literal(queries[model])],
                    ).fetchall()
                except psycopg.DataError:
                    # Refused by its size: the service takes the other embedder.
                    assert model == "old"
                    model = "new"
                    continue
                searches[model] += 1
                assert fixed <= {content for content, _ in found}

    with running(write, search, search):
        reembedding.start(dsn, Hashed("new", NEW), batch_size=5)
        while searches["new"] < 5:
            threading.Event().wait(0.01)
    assert min(written, *searches.values()) > 3
    assert_switched(dsn, before)


def test_a_text_that_changes_meanwhile_is_embedded_again(dsn: str, connect: Connect) -> None:
    before = catalog(dsn)
    writer = connect("service_role")
    changed: list[str] = []

    def on_progress(progress: Progress) -> None:
        if progress.step == "validating the new embeddings":
            rows = writer.execute(
                "update public.knowledge_chunks set content = content || ' changed'"
                " where content like 'passage 3 %' returning id::text"
            )
            changed.extend(row[0] for row in rows.fetchall())

    embedder = Hashed("new", NEW)
    reembedding.start(dsn, embedder, on_progress=on_progress)
    assert len(changed) == CHUNKS - 1
    assert sum(text.endswith(" changed") for text in embedder.texts) == CHUNKS - 1
    assert_switched(dsn, before)


def test_chunks_that_never_stop_coming_are_embedded_in_the_switch(
    dsn: str, connect: Connect
) -> None:
    before = catalog(dsn)
    writer = connect()
    switches = 0

    def on_progress(progress: Progress) -> None:
        nonlocal switches
        if progress.step == "switching to the new embeddings":
            switches += 1
            upsert(writer, f"late {switches}", [f"late {switches}"], Hashed("old", OLD))

    reembedding.start(dsn, Hashed("new", NEW), on_progress=on_progress)
    assert switches == 6
    assert_switched(dsn, before)


def test_a_row_that_a_writer_holds_is_waited_for_and_not_blocked(
    dsn: str, connect: Connect
) -> None:
    before = catalog(dsn)
    with psycopg.connect(dsn) as writer:
        rounds = 0

        class Held(Hashed):
            def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                """Embed while a writer has changed a chunk and not committed."""
                if not self.texts:
                    writer.execute(
                        "update public.knowledge_chunks set metadata = '{\"held\": true}'"
                        " where content = 'passage 4 0'"
                    )
                return super().embed(texts)

        def on_progress(progress: Progress) -> None:
            nonlocal rounds
            rounds += progress.step.startswith("embedding")
            if rounds == 3:
                writer.commit()

        reembedding.start(dsn, Held("new", NEW), on_progress=on_progress)
    assert rounds >= 3
    assert_switched(dsn, before)


def test_the_old_embeddings_can_be_kept_until_finish(dsn: str, connect: Connect) -> None:
    before = catalog(dsn)
    report = reembedding.start(dsn, Hashed("new", NEW), keep_old=True)
    assert report.old_is_kept
    connection = connect()
    assert reembedding.state(Database(connection)) == reembedding.State("switched", NEW, "new")
    assert connection.execute(
        "select count(embedding_old) from public.knowledge_chunks where status = 'active'"
    ).fetchone() == (ACTIVE - 1,)
    with pytest.raises(ConfigurationError, match="already in use"):
        reembedding.cancel(dsn)
    with pytest.raises(ConfigurationError, match="uses new, not newer") as refused:
        reembedding.start(dsn, Hashed("newer", NEW))
    assert "reembed finish" in (refused.value.remedy or "")
    assert reembedding.finish(dsn)
    assert_switched(dsn, before)
    assert not reembedding.finish(dsn)


def test_a_view_on_the_old_column_is_named_and_kept(dsn: str, connect: Connect) -> None:
    before = catalog(dsn)
    connection = connect()
    connection.execute("create view public.mine as select embedding from public.knowledge_chunks")
    with pytest.raises(ConfigurationError, match="view mine depends on column embedding_old"):
        reembedding.start(dsn, Hashed("new", NEW))
    connection.execute("drop view public.mine")
    reembedding.start(dsn, Hashed("new", NEW))
    assert_switched(dsn, before)


@pytest.mark.parametrize("place", [2, 5])
def test_cancelling_leaves_everything_as_it_was(dsn: str, place: int) -> None:
    before = catalog(dsn)
    with pytest.raises(Interruption):
        reembedding.start(dsn, Hashed("new", NEW), on_progress=interrupted_at(place))
    assert catalog(dsn) != before
    with pytest.raises(ConfigurationError, match="not in use yet"):
        reembedding.finish(dsn)
    with pytest.raises(ConfigurationError, match="uses new, not other") as refused:
        reembedding.start(dsn, Hashed("other", NEW))
    assert "reembed cancel" in (refused.value.remedy or "")
    with pytest.raises(Interruption):
        reembedding.cancel(dsn, on_progress=interrupted_at(3))
    assert reembedding.cancel(dsn)
    assert catalog(dsn) == before
    assert not reembedding.cancel(dsn)


def test_what_another_model_wrote_after_the_switch_is_embedded_in_place(
    dsn: str, connect: Connect
) -> None:
    before = catalog(dsn)
    embedder = Hashed("new", OLD)
    reembedding.start(dsn, embedder)
    upsert(connect(), "late", ["late"], Hashed("old", OLD))
    report = reembedding.start(dsn, embedder)
    assert report.embedded == 1
    assert catalog(dsn) == before
    assert connect().execute(
        "select distinct embedding_model from public.knowledge_chunks where status = 'active'"
    ).fetchall() == [("new",)]


@pytest.mark.parametrize(
    ("before", "dimensions", "expected"),
    [
        (vector_index.IndexSettings("vector", 8, 40), NEW, ("vector", 8, 40)),
        # More than an index of type vector takes.
        (vector_index.IndexSettings("vector", 8, 40), 4200, ("halfvec", 8, 40)),
    ],
)
def test_the_index_is_like_the_one_before(
    dsn: str,
    connect: Connect,
    before: vector_index.IndexSettings,
    dimensions: int,
    expected: tuple[object, ...],
) -> None:
    vector_index.build(dsn, before)
    reembedding.start(dsn, Hashed("new", dimensions))
    index = vector_index.show(Database(connect()))[0]
    assert (index.kind, index.m, index.ef_construction, index.is_valid) == (*expected, True)


@pytest.mark.parametrize("dimensions", [0, 16_001])
def test_dimensions_that_pgvector_does_not_store_are_refused(dsn: str, dimensions: int) -> None:
    before = catalog(dsn)
    with pytest.raises(InvalidInputError, match=f"{dimensions} dimensions"):
        reembedding.start(dsn, Hashed("new", dimensions))
    assert catalog(dsn) == before


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_change_the_model_to_a_real_one(dsn: str) -> None:
    assert "6 dimensions" in command("corpus", "reembed", "status", "--dsn", dsn)
    changed = command(
        "corpus", "reembed", "start", "--embedder", "wordllama", "--keep-old", "--dsn", dsn
    )
    assert f"{ACTIVE} chunks embedded; wordllama-l2-256 is now in use" in changed
    assert "building the vector index" in changed
    assert "old embeddings still exist" in command("corpus", "reembed", "status", "--dsn", dsn)
    assert "Dropped the old" in command("corpus", "reembed", "finish", "--dsn", dsn)
    assert "nothing to cancel" in command("corpus", "reembed", "cancel", "--dsn", dsn)
    assert "256 dimensions" in command("corpus", "reembed", "status", "--dsn", dsn)

"""Changing the model of a table in use: without downtime, and from wherever a run stopped."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray
from reembedded import (
    ACTIVE,
    CHUNKS,
    DOCUMENTS,
    END_SESSIONS,
    NEW,
    OLD,
    SEARCH,
    Catalog,
    Hashed,
    assert_switched,
    catalog,
    literal,
    texts_of,
    upsert,
)
from typer.testing import CliRunner

from conftest import Connection, Server, copy_of
from second_brain.cli.commands import app
from second_brain.database import vector_index
from second_brain.database.maintenance import Progress
from second_brain.embedding_queue import reembedding
from second_brain.errors import ConfigurationError, InvalidInputError, UnexpectedAnswerError
from second_brain.services.install import Database
from support.documents import upsert as store

pytestmark = pytest.mark.module("embedding_queue")

SWITCHING = "switching to the new embeddings"


@pytest.fixture(scope="module")
def template(server: Server) -> Iterator[str]:
    """A database with documents of the old model, to be copied."""
    for dsn in copy_of(server, server.template(OLD)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number in range(DOCUMENTS):
                upsert(connection, f"document {number}", texts_of(number), old())
            # Leaves a superseded chunk.
            upsert(connection, "document 0", texts_of(0)[:-1], old())
            connection.execute("insert into public.knowledge_chunks (content) values ('by text')")
            connection.execute("analyze public.knowledge_chunks")
        yield str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])


@pytest.fixture
def dsn(server: Server, template: str) -> Iterator[str]:
    yield from copy_of(server, template)


@pytest.fixture
def before(dsn: str) -> Catalog:
    return catalog(dsn)


def old() -> Hashed:
    return Hashed("old", OLD)


def new() -> Hashed:
    return Hashed("new", NEW)


def question(embedder: Hashed) -> list[str]:
    return [literal(embedder.embed(["a question"])[0])]


@pytest.mark.large
def test_every_chunk_is_embedded_anew_and_nothing_else_changes(
    dsn: str, before: Catalog, database: Connection
) -> None:
    times = "select id, updated_at, created_at from public.knowledge_chunks order by id"
    updated = database.execute(times).fetchall()
    embedder = new()
    report = reembedding.start(dsn, embedder, batch_size=7)
    assert report == reembedding.Report(embedded=ACTIVE, without_direction=0)
    assert_switched(dsn, before)
    assert database.execute(times).fetchall() == updated
    # Equal texts once.
    assert len(embedder.texts) == len(set(embedder.texts)) == ACTIVE - (DOCUMENTS - 1) + 1


@pytest.mark.large
def test_a_session_with_plans_from_before_the_switch_goes_on(
    dsn: str, database: Connection
) -> None:
    upsert(database, "mine", ["one"], old())
    assert len(database.execute(SEARCH, question(old())).fetchall()) == ACTIVE
    reembedding.start(dsn, new())
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"have {NEW}"):
        database.execute(SEARCH, question(old()))
    upsert(database, "mine", ["one", "two"], new())
    assert len(database.execute(SEARCH, question(new())).fetchall()) == ACTIVE + 2


def test_documents_go_on_as_before(dsn: str, database: Connection) -> None:
    reembedding.start(dsn, new())
    missing = """
        select cardinality(public.missing_knowledge_embeddings(array_agg(content_hash), %s)),
               count(distinct content_hash)
          from public.knowledge_chunks where status = 'active'
    """
    ((of_new, _),) = database.execute(missing, ["new"]).fetchall()
    ((of_old, texts),) = database.execute(missing, ["old"]).fetchall()
    assert (of_new, of_old) == (0, texts)
    known = [{"content": text, "embedding_model": "new"} for text in texts_of(1)]
    store(database, "another", *known, {**known[0], "content": "not known"}, title="Title")
    found = database.execute(
        "select content from public.knowledge_chunks where embedding is null and status = 'active'"
    )
    assert found.fetchall() == [("not known",)]


def test_texts_without_a_direction_stay_without_an_embedding(
    dsn: str, database: Connection
) -> None:
    report = reembedding.start(dsn, Hashed("new", NEW, silent="in every document"))
    assert (report.embedded, report.without_direction) == (ACTIVE - DOCUMENTS + 1, 1)
    found = database.execute(
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
    steps = 0

    def on_progress(progress: Progress) -> None:
        nonlocal steps
        # The watching thread's are not always the same.
        if ": building" not in progress.step and ": waiting" not in progress.step:
            steps += 1
            if steps == place:
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
                reembedding.start(dsn, new(), batch_size=30, on_progress=interrupted_at(place))
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
                    SWITCHING,
                    "analysing the table",
                    "dropping the old index",
                    "dropping the old columns",
                ]
                return
            reembedding.start(dsn, new(), batch_size=30)
            assert_switched(dsn, before)
    pytest.fail("it has no end")


CHILD = """
import sys
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


def test_a_killed_process_loses_no_batch(dsn: str, before: Catalog, database: Connection) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, dsn, *map(str, Path(__file__).parents[:2])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "embedding\n"]
        os.kill(process.pid, signal.SIGKILL)
    now = reembedding.state(Database(database))
    assert now == reembedding.State("embedding", OLD, "new")
    done, chunks = reembedding.count(Database(database))
    assert 0 < done < chunks == ACTIVE
    # The server ends the session once it sees that nobody is there.
    database.execute(END_SESSIONS)
    assert reembedding.start(dsn, new()).embedded == ACTIVE - done
    assert_switched(dsn, before)


def test_a_lost_connection_while_switching_leaves_the_old_model(
    dsn: str, before: Catalog, database: Connection
) -> None:
    def on_progress(progress: Progress) -> None:
        if progress.step == SWITCHING:
            database.execute(END_SESSIONS)

    with pytest.raises(psycopg.OperationalError):
        reembedding.start(dsn, new(), on_progress=on_progress)
    assert len(database.execute(SEARCH, question(old())).fetchall()) == ACTIVE - 1
    reembedding.start(dsn, new())
    assert_switched(dsn, before)


@contextmanager
def running(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run these all along; what failed is raised at the end."""
    over = threading.Event()
    with ThreadPoolExecutor(len(works)) as threads:
        runs = [threads.submit(work, over) for work in works]
        try:
            yield
        finally:
            over.set()
        for run in runs:
            run.result()


@pytest.mark.large
def test_searches_and_writes_go_on_and_lose_nothing(dsn: str, before: Catalog) -> None:
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
                embedder = old() if size == OLD else new()
                texts = [f"written {written} {part}" for part in range(3)]
                try:
                    upsert(connection, f"document {written % 3}", texts, embedder)
                except psycopg.DataError:
                    assert embedder.model == "old"
                else:
                    written += 1

    def search(over: threading.Event) -> None:
        questions = {"old": question(old()), "new": question(new())}
        model = "old"
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.is_set():
                try:
                    found = connection.execute(
                        "select content from public.hybrid_search_knowledge_chunks("
                        " query_embedding => %s::extensions.vector, match_count => 500,"
                        " match_threshold => -1)",
                        questions[model],
                    ).fetchall()
                except psycopg.DataError:
                    # Refused by its size: the service takes the other embedder.
                    assert model == "old"
                    model = "new"
                    continue
                searches[model] += 1
                assert fixed <= {content for (content,) in found}

    with running(write, search, search):
        reembedding.start(dsn, new(), batch_size=5)
        while searches["new"] < 5:
            threading.Event().wait(0.01)
    assert min(written, *searches.values()) > 3
    assert_switched(dsn, before)


def test_a_text_that_changes_meanwhile_is_embedded_again(
    dsn: str, before: Catalog, service_role: Connection
) -> None:
    changed = 0

    def on_progress(progress: Progress) -> None:
        nonlocal changed
        if progress.step == "validating the new embeddings":
            changed += service_role.execute(
                "update public.knowledge_chunks set content = content || ' changed'"
                " where content like 'passage 3 %'"
            ).rowcount

    embedder = new()
    reembedding.start(dsn, embedder, on_progress=on_progress)
    assert changed == sum(text.endswith(" changed") for text in embedder.texts) == CHUNKS - 1
    assert_switched(dsn, before)


def test_chunks_that_never_stop_coming_are_embedded_in_the_switch(
    dsn: str, before: Catalog, database: Connection
) -> None:
    switches = 0

    def on_progress(progress: Progress) -> None:
        nonlocal switches
        if progress.step == SWITCHING:
            switches += 1
            upsert(database, f"late {switches}", [f"late {switches}"], old())

    reembedding.start(dsn, new(), on_progress=on_progress)
    assert switches == 6
    assert_switched(dsn, before)


def test_a_row_that_a_writer_holds_is_waited_for_and_not_blocked(dsn: str, before: Catalog) -> None:
    rounds = 0
    with psycopg.connect(dsn) as writer:

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


def test_the_old_embeddings_can_be_kept_until_finish(
    dsn: str, before: Catalog, database: Connection
) -> None:
    assert reembedding.start(dsn, new(), keep_old=True).old_is_kept
    assert reembedding.state(Database(database)) == reembedding.State("switched", NEW, "new")
    assert database.execute(
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


def test_a_view_on_the_old_column_is_named_and_kept(
    dsn: str, before: Catalog, database: Connection
) -> None:
    database.execute("create view public.mine as select embedding from public.knowledge_chunks")
    with pytest.raises(ConfigurationError, match="view mine depends on column embedding_old"):
        reembedding.start(dsn, new())
    database.execute("drop view public.mine")
    reembedding.start(dsn, new())
    assert_switched(dsn, before)


@pytest.mark.parametrize("place", [2, 5])
def test_cancelling_leaves_everything_as_it_was(dsn: str, before: Catalog, place: int) -> None:
    with pytest.raises(Interruption):
        reembedding.start(dsn, new(), on_progress=interrupted_at(place))
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
    dsn: str, before: Catalog, database: Connection
) -> None:
    embedder = Hashed("new", OLD)
    reembedding.start(dsn, embedder)
    upsert(database, "late", ["late"], old())
    assert reembedding.start(dsn, embedder).embedded == 1
    assert catalog(dsn) == before
    assert database.execute(
        "select distinct embedding_model from public.knowledge_chunks where status = 'active'"
    ).fetchall() == [("new",)]


# More dimensions than an index of type vector takes make it one of type halfvec.
@pytest.mark.parametrize(("dimensions", "kind"), [(NEW, "vector"), (4200, "halfvec")])
def test_the_index_is_like_the_one_before(
    dsn: str, database: Connection, dimensions: int, kind: str
) -> None:
    vector_index.build(dsn, vector_index.IndexSettings("vector", 8, 40))
    reembedding.start(dsn, Hashed("new", dimensions))
    index = vector_index.show(Database(database))[0]
    assert (index.kind, index.m, index.ef_construction, index.is_valid) == (kind, 8, 40, True)


@pytest.mark.parametrize("dimensions", [0, 16_001])
def test_dimensions_that_pgvector_does_not_store_are_refused(
    dsn: str, before: Catalog, dimensions: int
) -> None:
    with pytest.raises(InvalidInputError, match=f"{dimensions} dimensions"):
        reembedding.start(dsn, Hashed("new", dimensions))
    assert catalog(dsn) == before


def test_the_commands_change_the_model_to_a_real_one(dsn: str) -> None:
    def reembed(*arguments: str) -> str:
        line = ["corpus", "reembed", *arguments, "--dsn", dsn]
        result = CliRunner().invoke(app, line, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert "6 dimensions" in reembed("status")
    changed = reembed("start", "--embedder", "wordllama", "--keep-old")
    assert f"{ACTIVE} chunks embedded; wordllama-l2-256 is now in use" in changed
    assert "building the vector index" in changed
    assert "old embeddings still exist" in reembed("status")
    assert "Dropped the old" in reembed("finish")
    assert "nothing to cancel" in reembed("cancel")
    assert "256 dimensions" in reembed("status")

"""Building, switching and dropping the vector index while searches go on."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

from conftest import Connect, Connection, Server, copy_of
from second_brain.database import maintenance, vector_index
from second_brain.database.maintenance import Progress
from second_brain.database.vector_index import IndexSettings
from second_brain.errors import (
    ConfigurationError,
    ConflictError,
    InvalidInputError,
    PermissionDeniedError,
)
from second_brain.services.install import Database

CHUNKS = 1200
QUERY = str([1.0, -1.0, 0.5, 0.0, 0.0, 0.25, -0.5, 1.0])
FILL = """
insert into public.knowledge_chunks (
  content, content_hash, content_tsv, text_length, collection, embedding, embedding_model
)
select 'passage ' || number,
       public.knowledge_content_hash(null, 'passage ' || number),
       to_tsvector('english', 'passage ' || number),
       2,
       'knowledge',
       made.embedding::extensions.vector,
       'old'
  from generate_series(1, %(chunks)s) as number
 cross join lateral (
         select array_agg(
                  -- Sixty clusters.
                  sin(number %% 60 * 7919 + place * place) + 0.3 * sin(number * 104729 + place)
                  order by place
                ) as embedding
           from generate_series(1, %(dimensions)s) as place
       ) as made
"""
EXPLAIN = "select public.explain_hybrid_search(%s)"


@pytest.fixture
def dimensions() -> int:
    """Eight, unless a test says otherwise."""
    return 8


def fill(dsn: str, dimensions: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        # Nothing here is about the text, and the index is built once.
        connection.execute("alter table public.knowledge_chunks disable trigger user")
        ((index,),) = connection.execute(
            "select pg_get_indexdef('public.knowledge_chunks_embedding'::regclass)"
        ).fetchall()
        connection.execute("drop index public.knowledge_chunks_embedding")
        connection.execute(FILL.encode(), {"chunks": CHUNKS, "dimensions": dimensions})
        connection.execute(index)
        connection.execute("alter table public.knowledge_chunks enable trigger user")
        connection.execute("analyze public.knowledge_chunks")


@pytest.fixture(scope="module")
def template(server: Server) -> Iterator[str]:
    """A filled database of eight dimensions, to be copied."""
    for dsn in copy_of(server, server.template(8)):
        fill(dsn, 8)
        yield str(conninfo_to_dict(dsn)["dbname"])


@pytest.fixture
def dsn(server: Server, dimensions: int, template: str) -> Iterator[str]:
    """A database of this test's own; with eight dimensions its searches use the index."""
    yield from copy_of(server, template if dimensions == 8 else server.template(dimensions))


def show(dsn: str) -> dict[str, tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return {
            one.name: (one.kind, one.m, one.ef_construction, one.is_valid)
            for one in vector_index.show(Database(connection))
        }


def explained(connection: Connection, query: str = QUERY) -> tuple[str, list[str]]:
    ((reported,),) = connection.execute(EXPLAIN, [Jsonb({"query_embedding": query})]).fetchall()
    return reported["vector"]["strategy"], [hit["id"] for hit in reported["hits"]]


def is_indexed(connection: Connection, query: str = QUERY) -> bool:
    """Say whether the plan of the vector leg reads a vector index, as `strategy` cannot."""
    with connection.transaction():
        connection.execute("set local enable_sort = off")
        connection.execute("set local enable_seqscan = off")
        plan = connection.execute(
            "explain select id from knowledge_internal.searchable_chunks"
            " where status = 'active' and embedding is not null"
            " order by indexed_embedding operator(extensions.<=>)"
            "   extensions.l2_normalize(extensions.subvector(%s::extensions.vector, 1, 4000))"
            " limit 100",
            [query],
        ).fetchall()
    return any("Index Scan using knowledge_chunks_embedding" in line for (line,) in plan)


def nearest(connection: Connection, query: str = QUERY) -> list[str]:
    rows = connection.execute(
        "select id::text from (select id, embedding from public.knowledge_chunks offset 0) as chunk"
        " order by embedding operator(extensions.<=>) %s::extensions.vector, id limit 10",
        [query],
    )
    return [row[0] for row in rows]


@contextmanager
def searching(dsn: str, query: str = QUERY) -> Iterator[list[tuple[str, list[str]]]]:
    """Search from two sessions all along; what failed is raised at the end."""
    answers: list[tuple[str, list[str]]] = []
    failures: list[BaseException] = []
    over = threading.Event()

    def search() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                while not over.is_set():
                    strategy, hits = explained(connection, query)
                    indexed = strategy if is_indexed(connection, query) else "no index"
                    answers.append((indexed, hits))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []


DEFAULT = {
    "knowledge_chunks_embedding": ("halfvec", 16, 64, True),
    "knowledge_chunks_content_tsv": ("text", None, None, True),
}


@pytest.mark.module("insight")
def test_searches_use_an_index_all_the_while_another_is_built(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        expected = nearest(connection)
        # Has its plan from before the switch.
        assert explained(connection) == ("index", expected)
        with searching(dsn) as answers:
            for settings in (
                IndexSettings("vector", 8, 32),
                IndexSettings("halfvec", 24, 100),
                IndexSettings("vector"),
            ):
                seen = len(answers)
                vector_index.build(dsn, settings)
                assert len(answers) > seen
                found = show(dsn)["knowledge_chunks_embedding"]
                assert found == (settings.kind, settings.m, settings.ef_construction, True)
                assert explained(connection) == ("index", expected)
        assert {strategy for strategy, _ in answers} == {"index"}
        assert {tuple(hits) for _, hits in answers} == {tuple(expected)}
    assert len(show(dsn)) == 2


@pytest.mark.module("insight")
def test_building_the_kind_in_use_waits_for_no_search(dsn: str) -> None:
    steps: list[str] = []
    with psycopg.connect(dsn) as reader:

        def on_progress(progress: Progress) -> None:
            steps.append(progress.step)
            if progress.step == "switching to the new index":
                explained(reader)
            if progress.step == "dropping the old index":
                reader.rollback()

        vector_index.build(dsn, IndexSettings(m=8), on_progress=on_progress)
    assert steps[-2:] == ["switching to the new index", "dropping the old index"]


@pytest.mark.module("insight")
def test_a_long_search_delays_the_switch_of_kinds_and_is_not_disturbed(dsn: str) -> None:
    steps: list[str] = []
    with psycopg.connect(dsn) as reader:

        def on_progress(progress: Progress) -> None:
            steps.append(progress.step)
            if progress.step == "switching to the new index":
                explained(reader)
            if progress.step.startswith("waiting for a long"):
                assert explained(reader)[0] == "index"
                reader.rollback()

        vector_index.build(dsn, IndexSettings("vector"), on_progress=on_progress)
    assert any(step.startswith("waiting for a long") for step in steps)
    assert show(dsn)["knowledge_chunks_embedding"] == ("vector", 16, 64, True)


class Interruption(Exception):  # noqa: N818
    """What ends a run."""


def interrupted_at(place: int) -> Callable[[Progress], None]:
    steps: list[str] = []

    def on_progress(progress: Progress) -> None:
        # The watching thread's are not always the same.
        if ": " not in progress.step:
            steps.append(progress.step)
            if len(steps) == place:
                raise Interruption

    return on_progress


@pytest.mark.module("insight")
def test_a_new_run_continues_after_an_interruption_at_any_step(dsn: str) -> None:
    kinds: list[vector_index.Kind] = ["vector", "halfvec"] * 5
    place = 0
    for place, kind in enumerate(kinds, start=1):
        settings = IndexSettings(kind, m=4 + place)
        try:
            vector_index.build(dsn, settings, on_progress=interrupted_at(place))
        except Interruption:
            with psycopg.connect(dsn, autocommit=True) as connection:
                assert explained(connection)[0] == "index"
            vector_index.build(dsn, settings)
            assert show(dsn) == {
                **DEFAULT,
                "knowledge_chunks_embedding": (kind, 4 + place, 64, True),
            }
        else:
            break
    assert place == 4


def test_a_finished_index_is_not_built_again_after_an_interruption(dsn: str) -> None:
    settings = IndexSettings(m=8)
    with pytest.raises(Interruption):
        vector_index.build(dsn, settings, on_progress=interrupted_at(2))
    assert show(dsn)["knowledge_chunks_embedding_building"] == ("halfvec", 8, 64, True)
    steps: list[str] = []
    vector_index.build(dsn, settings, on_progress=lambda progress: steps.append(progress.step))
    assert steps == ["switching to the new index", "dropping the old index"]


def test_an_index_that_a_killed_build_left_is_built_anew(dsn: str, connect: Connect) -> None:
    killer = connect()
    with psycopg.connect(dsn) as writer:
        writer.execute("update public.knowledge_chunks set metadata = '{}' where false")

        def on_progress(progress: Progress) -> None:
            # It waits for the writer.
            if "waiting for writers" in progress.step:
                killer.execute(
                    "select pg_terminate_backend(pid) from pg_stat_progress_create_index"
                    " where datname = current_database()"
                )

        with pytest.raises(psycopg.OperationalError):
            vector_index.build(dsn, IndexSettings("vector"), on_progress=on_progress)
    assert show(dsn)["knowledge_chunks_embedding_building"][-1] is False
    assert show(dsn)["knowledge_chunks_embedding"] == ("halfvec", 16, 64, True)
    vector_index.build(dsn, IndexSettings("vector"))
    assert show(dsn) == {**DEFAULT, "knowledge_chunks_embedding": ("vector", 16, 64, True)}


def test_a_time_limit_that_cancels_the_build_names_the_pooler(dsn: str) -> None:
    with psycopg.connect(dsn) as writer, psycopg.connect(dsn, autocommit=True) as canceller:
        writer.execute("update public.knowledge_chunks set metadata = '{}' where false")

        def on_progress(progress: Progress) -> None:
            if "waiting for writers" in progress.step:
                canceller.execute(
                    "select pg_cancel_backend(pid) from pg_stat_progress_create_index"
                    " where datname = current_database()"
                )

        with pytest.raises(ConfigurationError, match="cancelled") as refused:
            vector_index.build(dsn, IndexSettings("vector"), on_progress=on_progress)
    assert "5432, not 6543" in (refused.value.remedy or "")


def test_a_second_run_at_the_same_time_is_refused(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "HOLDER_PATIENCE", 0.1)
    with maintenance.session(dsn) as first:
        with pytest.raises(
            ConflictError, match=f"process {first.connection.info.backend_pid}"
        ) as refused:
            vector_index.build(dsn)
        assert f"pg_terminate_backend({first.connection.info.backend_pid})" in (
            refused.value.remedy or ""
        )
        with pytest.raises(ConflictError):
            vector_index.drop(dsn)
    vector_index.build(dsn)


def test_a_run_waits_for_one_that_has_just_ended(
    dsn: str, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_met_the_first = threading.Event()
    monkeypatch.setattr(maintenance, "HOLDER_PATIENCE", 60.0)
    monkeypatch.setattr(maintenance, "pause", lambda seconds: has_met_the_first.set())
    with ThreadPoolExecutor(1) as threads:
        with maintenance.session(dsn):
            second = threads.submit(vector_index.drop, dsn)
            assert has_met_the_first.wait(60)
        second.result(60)
    stored = database.execute("select to_regclass('public.knowledge_chunks_embedding')")
    assert stored.fetchone() == (None,)


def test_the_time_limits_of_the_role_do_not_hold(dsn: str, database: Connection) -> None:
    for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        database.execute(
            sql.SQL("alter database {} set {} = '10ms'").format(
                sql.Identifier(database.info.dbname), sql.Identifier(setting)
            )
        )
    built = vector_index.build(dsn, IndexSettings("vector"))
    assert [one.kind for one in built] == ["vector", "text"]


def test_memory_that_postgres_cannot_read_is_refused(dsn: str) -> None:
    with pytest.raises(InvalidInputError, match=r"memory: .*much") as refused:
        vector_index.build(dsn, IndexSettings(memory="much"))
    assert "2GB" in (refused.value.remedy or "")


@pytest.mark.parametrize("dimensions", [2001])
def test_a_vector_index_above_2000_dimensions_is_refused(dsn: str) -> None:
    with pytest.raises(InvalidInputError, match=r"2000 dimensions, .* have 2001") as refused:
        vector_index.build(dsn, IndexSettings("vector"))
    assert "halfvec" in (refused.value.remedy or "")
    assert show(dsn) == DEFAULT


def test_only_the_owner_may_build(server: Server, dsn: str) -> None:
    admin = server.admin_dsn(str(conninfo_to_dict(dsn)["dbname"]))
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("drop role if exists stranger")
        connection.execute("create role stranger login password 'stranger'")
    with pytest.raises(PermissionDeniedError, match="only postgres, the owner") as refused:
        vector_index.build(make_conninfo(dsn, user="stranger", password="stranger"))
    assert refused.value.remedy == "Connect as postgres."


@pytest.mark.module("insight")
def test_what_a_superuser_builds_is_the_owners(server: Server, dsn: str, connect: Connect) -> None:
    admin = server.admin_dsn(str(conninfo_to_dict(dsn)["dbname"]))
    vector_index.build(admin, IndexSettings("vector"))
    owners = connect().execute(
        "select distinct relowner::regrole::text from pg_class"
        " where relname in ('searchable_chunks', 'knowledge_chunks_embedding')"
    )
    assert owners.fetchall() == [("postgres",)]
    assert explained(connect("service_role"))[0] == "index"


DEFINITIONS = """
select indexrelid::regclass::text, pg_get_indexdef(indexrelid)
  from pg_index
 where indrelid = 'public.knowledge_chunks'::regclass
 order by 1
"""


@pytest.mark.module("insight")
def test_dropping_and_building_gives_what_the_migrations_made(dsn: str, connect: Connect) -> None:
    connection = connect()
    before = connection.execute(DEFINITIONS.encode()).fetchall()
    expected = explained(connection)[1]
    vector_index.drop(dsn)
    assert show(dsn) == {}
    assert not is_indexed(connection)
    assert explained(connection)[1] == expected
    connection.execute("delete from public.knowledge_corpus_statistics")
    vector_index.build(dsn)
    assert is_indexed(connection)
    assert connection.execute(DEFINITIONS.encode()).fetchall() == before
    assert explained(connection) == ("index", expected)
    counted = "select document_count from public.knowledge_corpus_statistics"
    assert connection.execute(counted).fetchall() == [(CHUNKS,)]


@pytest.mark.parametrize(
    ("cache", "memory", "least", "most"),
    [
        ("", None, 1024, 1024),
        ("-c effective_cache_size=1GB", None, 1025, 1500),
        ("-c effective_cache_size=2048kB", None, 1024, 1024),
        ("-c effective_cache_size=1GB", "3MB", 3072, 3072),
    ],
)
def test_a_build_takes_the_memory_that_the_graph_needs_and_the_cache_has(
    dsn: str, cache: str, memory: str | None, least: int, most: int
) -> None:
    options = f"-c maintenance_work_mem=1MB {cache}"
    with maintenance.session(make_conninfo(dsn, options=options)) as database:
        vector_index.set_resources(database, IndexSettings(memory=memory))
        shown = "select pg_size_bytes(current_setting('maintenance_work_mem')) / 1024"
        (kilobytes,) = database.execute(shown).fetchone() or (0,)
        assert least <= kilobytes <= most


@pytest.mark.module("insight")
def test_building_brings_back_a_view_that_is_gone(dsn: str, connect: Connect) -> None:
    connection = connect()
    before = explained(connection)
    connection.execute("drop view knowledge_internal.searchable_chunks")
    vector_index.build(dsn)
    assert explained(connection) == before


@pytest.mark.module("insight")
def test_superseded_chunks_do_not_make_a_corpus_large(dsn: str, connect: Connect) -> None:
    connection = connect()
    assert explained(connection)[0] == "index"
    connection.execute(
        "update public.knowledge_chunks set status = 'superseded' where content like '%7%'"
    )
    connection.execute("analyze public.knowledge_chunks")
    assert explained(connection)[0] == "compared: few rows"


@pytest.mark.module("insight")
def test_dropping_while_searches_run_loses_no_result(dsn: str) -> None:
    with searching(dsn) as answers:
        vector_index.drop(dsn)
        vector_index.build(dsn)
    assert len({tuple(hits) for _, hits in answers}) == 1


@pytest.mark.slow
@pytest.mark.module("insight")
@pytest.mark.parametrize("dimensions", [4096])
def test_long_embeddings_are_found_through_the_index_and_compared_in_full(
    dsn: str, connect: Connect, dimensions: int
) -> None:
    fill(dsn, dimensions)
    connection = connect()
    ((query,),) = connection.execute(
        "select embedding::text from public.knowledge_chunks where content = 'passage 77'"
    ).fetchall()
    assert is_indexed(connection, query)
    assert explained(connection, query) == ("index", nearest(connection, query))
    with connection.transaction(force_rollback=True):
        # Those that only the dimensions past the 4,000th distinguish.
        connection.execute(
            "insert into public.knowledge_chunks (content, embedding)"
            " select 'twin ' || number, (embedding::real[])[:%(dimensions)s - 1]"
            "          || (array[number / 100.0]::real[])"
            "   from public.knowledge_chunks, generate_series(1, 5) as number"
            "  where content = 'passage 77'",
            {"dimensions": dimensions},
        )
        strategy, hits = explained(connection, query)
        assert (strategy, hits) == ("index", nearest(connection, query))

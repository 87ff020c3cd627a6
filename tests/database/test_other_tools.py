"""Installs beside other tools: dumps, projects, roles, encodings, connections, poolers."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from command_line import Run
from conftest import Server
from opened_workbench import browser_of
from pooler import pooled
from second_brain.adoption import carrying
from second_brain.database import condition, doctor, maintenance, migrations, uninstall
from second_brain.database.history import recorded
from second_brain.errors import ConfigurationError, SearchTimeoutError, of_command
from second_brain.redaction import safe_message
from second_brain.services.connections import address, libpq
from second_brain.services.write import KnowledgeWriter
from support.databases import admin_dsn, examine, query

UPSERT = """
select public.upsert_knowledge_document('{"external_key": "%s"}', '[{"content": "%s"}]')
"""


def findings(dsn: str, check: str) -> list[doctor.Finding]:
    return [one for one in examine(dsn) if one.check == check]


@pytest.mark.parametrize("modules", [(), ("facets",), ("facets", "words")])
def test_an_install_without_a_history_is_recognised_and_recorded(
    plain_dsn: str, modules: tuple[str, ...]
) -> None:
    applied = migrations.apply(plain_dsn, dimensions=3, modules=modules)
    query(plain_dsn, "drop schema supabase_migrations cascade")
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        (obstacle,) = migrations.find_obstacles(connection)
    assert "has no history" in obstacle.what
    assert "migrate --record" in obstacle.remedy
    assert "drop" not in obstacle.remedy
    assert "uninstall" not in obstacle.remedy
    (finding,) = findings(plain_dsn, "migrations")
    assert (finding.status, finding.remedy) == ("error", obstacle.remedy)
    with pytest.raises(migrations.ObstacleError, match="has no history"):
        migrations.apply(plain_dsn, dimensions=3)
    named = [(one.version, one.name) for one in condition.record(plain_dsn)]
    assert named == [(one.version, one.name) for one in applied]
    assert migrations.apply(plain_dsn, dimensions=3, modules=modules) == []
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        assert [(one.version, one.name) for one in recorded(connection)] == named
    with pytest.raises(ConfigurationError, match="no install without a history"):
        condition.record(plain_dsn)


def test_the_timestamps_of_init_are_not_of_the_future(tmp_path: Path) -> None:
    for modules in ((), ("facets",), ("words", "insight")):
        written = migrations.init(tmp_path, 3, modules=modules)
        now = f"{datetime.now(UTC):%Y%m%d%H%M%S}"
        versions = [file.name.partition("_")[0] for file in written]
        assert versions == sorted(versions)
        # Those of a second call in the same second follow the first ones.
        assert modules or versions[-1] < now
    assert len({file.name[:14] for file in tmp_path.iterdir()}) == len(list(tmp_path.iterdir()))


def test_fetched_migrations_are_those_of_migrate(plain_dsn: str, tmp_path: Path) -> None:
    migrations.apply(plain_dsn, dimensions=3, modules=("facets",))
    with psycopg.connect(plain_dsn) as connection:
        for one in recorded(connection):
            (tmp_path / f"{one.version}_{one.name}.sql").write_text(one.sql)
    assert migrations.init(tmp_path, 3, modules=("facets",)) == []
    (added,) = migrations.init(tmp_path, 3, modules=("facets", "words"))
    assert "words" in added.name


@pytest.mark.parametrize("schema", ["public", "knowledge_de"])
def test_declared_files_insert_no_rows(tmp_path: Path, schema: str) -> None:
    files = migrations.declare(tmp_path, 3, schema=schema, modules=tuple(migrations.modules()))
    assert len(files) > 10
    for file in files:
        outside = re.sub(r"\$(\w*)\$.*?\$\1\$", "", file.read_text(), flags=re.DOTALL)
        assert not re.search(r"^\s*(insert|update|delete|copy)\b", outside, re.MULTILINE), file.name


def test_a_module_is_added_as_the_owner_of_the_install(plain_dsn: str, server: Server) -> None:
    migrations.apply(plain_dsn, dimensions=3, modules=())
    owner = str(conninfo_to_dict(plain_dsn)["user"])
    role = f"deploys_{abs(hash(plain_dsn))}"
    history = "all tables in schema supabase_migrations"
    query(server.admin_dsn(), f"create role {role} login password 'x'")
    other = make_conninfo(plain_dsn, user=role, password="x")
    try:
        usage = f"grant usage on schema supabase_migrations to {role}"
        query(plain_dsn, usage, f"grant select on {history} to {role}")
        with pytest.raises(migrations.ObstacleError, match=f"belongs to {owner}"):
            migrations.apply(other, dimensions=3, modules=("words", "facets"))
        query(server.admin_dsn(), f"grant {owner} to {role}")
        query(plain_dsn, f"grant all on {history} to {role}")
        migrations.apply(other, dimensions=3, modules=("words",))
        query(
            plain_dsn,
            UPSERT % ("a", "keys"),
            "select * from public.hybrid_search_knowledge_chunks(query_text => 'keys')",
        )
        assert [one.status for one in findings(plain_dsn, "owners")] == ["ok"]
    finally:
        query(admin_dsn(server, plain_dsn), f"drop owned by {role}", f"drop role {role}")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_another_encoding_is_an_obstacle(server: Server, plain_dsn: str, encoding: str) -> None:
    name = f"encoded_{encoding.lower()}"
    create = f"create database {name} template template0 encoding '{encoding}' locale 'C'"
    query(server.admin_dsn(), create)
    try:
        target = make_conninfo(server.admin_dsn(), dbname=name)
        with pytest.raises(migrations.ObstacleError, match=f"{encoding}, UTF8 is needed"):
            migrations.apply(target, dimensions=3)
        (finding,) = examine(target)
        assert f"{encoding}, UTF8 is needed" in finding.message
        assert query(target, "select to_regnamespace('supabase_migrations')") == [(None,)]
    finally:
        query(server.admin_dsn(), f"drop database {name} with (force)")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("postgresql://u:p@h/d?pgbouncer=true&connection_limit=1", "postgresql://u:p@h/d"),
        ("postgres://u@h/d?sslmode=require&pgbouncer=true", "postgresql://u@h/d?sslmode=require"),
        ("postgresql+psycopg://u@h/d?connection_limit=1", "postgresql://u@h/d"),
        ("postgresql+asyncpg://u@h/d?schema=public", "postgresql://u@h/d"),
        ("postgresql://u:a?pgbouncer=b@h/d", "postgresql://u:a?pgbouncer=b@h/d"),
        ("host=h dbname=d", "host=h dbname=d"),
        ("mysql://u@h/d?pgbouncer=true", "mysql://u@h/d?pgbouncer=true"),
    ],
)
def test_connection_strings_of_other_tools_are_understood(given: str, meant: str) -> None:
    assert libpq(given) == meant


@pytest.mark.parametrize("parameter", ["schema=app", "sslmod=require", "foo=1", "charset=utf8"])
def test_an_unknown_parameter_is_named_and_not_dropped(parameter: str) -> None:
    name = parameter.partition("=")[0]
    with pytest.raises(ConfigurationError, match=f"libpq does not know: {name}"):
        address(f"postgresql://ana:rosebud@h/d?{parameter}")
    assert address(f"postgresql://ana:rose?{parameter}@h/d").host == "h"


@pytest.mark.parametrize("secret", ["p", "ss", "pas"])
def test_a_short_secret_does_not_garble_a_message(secret: str) -> None:
    text = "the host, port or database seems to contain a part of the password"
    assert safe_message(text, secrets=[secret]) == text
    named = "document.external_key: bytes has no JSON form"
    assert safe_message(named, secrets=[secret]) == named
    assert "rosebud" not in safe_message("rosebud in it", secrets=[secret, "rosebud"])


@pytest.mark.module("words")
def test_words_are_written_where_all_tables_are_published(dsn: str, server: Server) -> None:
    query(admin_dsn(server, dsn), "create publication everything for all tables")
    query(
        dsn,
        *(UPSERT % (key, "one two") for key in "ab"),
        "analyze public.knowledge_chunks",
        "select public.delete_knowledge_document('a')",
        UPSERT % ("c", "one two"),
        "select public.delete_knowledge_document('b')",
    )


STATE = """
select pid, array[current_setting('default_transaction_read_only'),
  current_setting('statement_timeout'), current_setting('lock_timeout'), current_user::text,
  current_setting('idle_in_transaction_session_timeout'), current_setting('search_path'),
  (select count(*) from pg_locks where locktype = 'advisory' and pid = mine.pid)::text]
  from (select pg_backend_pid() as pid) as mine
"""


@pytest.fixture(
    params=[(True, 3), (True, 2), (False, 3), (False, 2)],
    ids=["in turns", "two in turns", "last one first", "last one of two first"],
)
def pooled_dsn(shared_dsn: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Stand in for the database of a test: a pooler in front of the shared one."""
    takes_turns, size = request.param
    with pooled(shared_dsn, tmp_path, takes_turns=takes_turns, size=size) as address:
        states(address, size)  # so that all connections are open
        yield address


def states(dsn: str, size: int = 2) -> dict[int, list[str]]:
    """Return the state of connections of the pool, from transactions that hold so many."""
    clients = [psycopg.connect(dsn, prepare_threshold=None) for _ in range(size)]
    try:
        rows = [one.cursor(row_factory=tuple_row).execute(STATE).fetchone() for one in clients]
        return {row[0]: row[1] for row in rows if row}
    finally:
        for client in clients:
            # Else the pooler closes the connection to the server, too.
            client.rollback()
            client.close()


def _pages(dsn: str) -> None:
    with browser_of(dsn, embedder_name="none") as browser:
        for page in ("/", "/?q=keys", "/corpus", "/corpus/checks", "/documents", "/settings"):
            assert browser.get(page).status_code in (200, 404), page


def _doctor(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
        doctor.examine(connection)


def _index(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="transaction pooler"), maintenance.session(dsn):
        pass


def _migrate(dsn: str) -> None:
    assert migrations.apply(dsn) == []


@pytest.mark.parametrize("use", [_pages, _doctor, _index, _migrate])
def test_a_tool_leaves_the_connections_of_a_pool_as_they_were(
    pooled_dsn: str, use: Callable[[str], None], request: pytest.FixtureRequest
) -> None:
    _, size = request.node.callspec.params["pooled_dsn"]
    before = states(pooled_dsn, size)
    use(pooled_dsn)
    assert states(pooled_dsn, size) == before
    with psycopg.connect(pooled_dsn, autocommit=True, prepare_threshold=None) as writer:
        for _ in range(6):
            writer.execute("create temporary table t (id int) on commit drop")


def test_maintenance_works_on_a_direct_connection(shared_dsn: str) -> None:
    with maintenance.session(shared_dsn) as database:
        row = database.execute("select current_setting('statement_timeout')").fetchone()
        assert row == ("0",)


@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        ("set role anon; select from public.knowledge_chunks", "owner of the tables"),
        ("set statement_timeout = 1; select pg_sleep(9)", "statement_timeout of this role"),
        ("set default_transaction_read_only = on; create table t ()", "enlarge the disk"),
    ],
)
def test_an_error_of_a_command_has_a_remedy_of_commands(
    shared_dsn: str, statement: str, remedy: str
) -> None:
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        connection.execute(statement.partition("; ")[0].encode())
        with pytest.raises(psycopg.Error) as raised:
            connection.execute(statement.partition("; ")[2].encode())
    assert remedy in of_command(raised.value).remedy


def test_a_write_that_takes_too_long_has_a_remedy_of_writes(dsn: str) -> None:
    query(dsn, UPSERT % ("a", "one"))
    with psycopg.connect(dsn, autocommit=True) as holder, holder.transaction():
        holder.execute("select from public.knowledge_documents for update")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("set statement_timeout = '300ms'")
            with pytest.raises(SearchTimeoutError) as raised:
                KnowledgeWriter(connection).upsert_document(
                    {"external_key": "a"}, [{"content": "two"}]
                )
    assert "pool_size" not in raised.value.remedy
    assert "statement_timeout" in raised.value.remedy


@pytest.mark.module("adoption")
def test_no_timeout_ends_a_backfill_whose_rows_are_there(
    dsn: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    query(dsn, "create table public.notes (id int primary key, body text)")
    query(dsn, "insert into public.notes values (1, 'A brass bell.')")
    checks = "do $$ begin assert current_setting('statement_timeout') = '0'; end $$"
    monkeypatch.setattr(carrying, "_STATISTICS", (*carrying._STATISTICS, checks))
    target = make_conninfo(dsn, options="-c statement_timeout=60s")
    done = run("adopt", "public.notes", "--content", "body", "--apply", "--dsn", target)
    assert done.code == 0, done.err
    done = run("adopt", "--backfill", "notes", "--dsn", target)
    assert done.code == 0, done.err


def test_a_removal_waits_for_searches_and_repeats_after_a_deadlock(
    plain_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrations.apply(plain_dsn, dimensions=3, modules=("facets",))
    planned = uninstall.plan
    failures = [psycopg.errors.DeadlockDetected("deadlock detected")]

    def plan(*given: Any, **named: Any) -> uninstall.Uninstall:
        if failures:
            raise failures.pop()
        return planned(*given, **named)

    monkeypatch.setattr(uninstall, "plan", plan)
    removed = uninstall.apply(plain_dsn, module="facets")
    # A search locks the chunks first, too.
    lock = "lock table public.knowledge_chunks in access exclusive mode"
    assert removed.statements[0] == lock
    assert uninstall.apply(plain_dsn).statements[0] == lock

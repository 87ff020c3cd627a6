"""No tool leaves anything behind on the connections that a transaction pooler shares."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import tuple_row

from opened_workbench import browser_of
from pooler import pooled
from second_brain.database import doctor, maintenance, migrations
from second_brain.errors import ConfigurationError

STATE = """
select pid, array[current_setting('default_transaction_read_only'),
  current_setting('statement_timeout'), current_setting('lock_timeout'), current_user::text,
  current_setting('idle_in_transaction_session_timeout'), current_setting('search_path'),
  (select count(*) from pg_locks where locktype = 'advisory' and pid = mine.pid)::text]
  from (select pg_backend_pid() as pid) as mine
"""


@pytest.fixture(params=[True, False], ids=["in turns", "last one first"])
def dsn(shared_dsn: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Stand in for the database of a test: a pooler in front of the shared one."""
    with pooled(shared_dsn, tmp_path, takes_turns=request.param) as address:
        yield address


def states(dsn: str) -> dict[int, list[str]]:
    """Return the state of each connection of the pool, from transactions that hold them all."""
    clients = [psycopg.connect(dsn, prepare_threshold=None) for _ in range(3)]
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
    dsn: str, use: Callable[[str], None]
) -> None:
    before = states(dsn)
    use(dsn)
    assert states(dsn) == before
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as writer:
        for _ in range(6):
            writer.execute("create temporary table t (id int) on commit drop")


def test_maintenance_works_on_a_direct_connection(shared_dsn: str) -> None:
    with maintenance.session(shared_dsn) as database:
        row = database.execute("select current_setting('statement_timeout')").fetchone()
        assert row == ("0",)

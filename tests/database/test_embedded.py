"""The embedded server: creation, start and stop, and recovery after failures."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from second_brain.database import embedded_machine
from second_brain.database.embedded import (
    EmbeddedPostgres,
    EmbeddedServerError,
    apply_prelude,
    installed_majors,
)
from tools import throw_away

# The disk has nothing to lose here: what is killed is a process, never the machine.
SETTINGS = {"fsync": "off"}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as another account")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the server's account can enter; at the end its servers are stopped."""
    yield from _place()


def _place() -> Iterator[Path]:
    folder = throw_away.folder()
    yield folder
    for state in list(folder.rglob("server.json")):
        EmbeddedPostgres(state.parent).remove()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def major(pytestconfig: pytest.Config) -> int:
    """The major version of this run."""
    chosen: int = pytestconfig.getoption("--postgres-major")
    return chosen


@pytest.fixture(scope="module")
def stopped(major: int) -> Iterator[Path]:
    """The folder of a stopped server with one row in `public.kept`."""
    for folder in _place():
        with EmbeddedPostgres(folder / "postgres", major, SETTINGS) as made:
            ask(made, "create table public.kept as select 42 as answer")
        yield made.directory


@pytest.fixture
def local(place: Path, stopped: Path) -> EmbeddedPostgres:
    """A running server of this test's own, a copy of `stopped`."""
    subprocess.run(["cp", "-a", str(stopped), str(place)], check=True)
    copy = EmbeddedPostgres(place / "postgres", settings=SETTINGS)
    copy.start()
    return copy


def ask(local: EmbeddedPostgres, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(local.dsn(), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def keeps_its_data(local: EmbeddedPostgres) -> bool:
    return ask(local, "select answer from public.kept") == [(42,)]


def process(local: EmbeddedPostgres) -> psutil.Process:
    lock_file = local.log.parent / "postmaster.pid"
    return psutil.Process(int(lock_file.read_text().splitlines()[0]))


def kill(local: EmbeddedPostgres) -> None:
    postmaster = process(local)
    sessions = postmaster.children()
    postmaster.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs([postmaster, *sessions], timeout=30)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


def test_a_new_server_is_a_unicode_database_of_the_major_asked_for(
    local: EmbeddedPostgres, major: int
) -> None:
    assert local.status == "running"
    assert local.major == major
    facts = ask(
        local,
        "select current_setting('server_version_num')::int / 10000,"
        " current_setting('server_encoding'), lower('ÄPFEL'), to_tsvector('simple', 'ÄPFEL')::text",
    )
    assert facts == [(major, "UTF8", "äpfel", "'äpfel':1")]
    # The owner is not a superuser.
    assert ask(local, "select current_user, current_setting('is_superuser')") == [
        ("postgres", "off")
    ]
    with psycopg.connect(local.admin_dsn()) as connection:
        assert connection.info.parameter_status("is_superuser") == "on"
    assert ask(local, "show listen_addresses") == [("127.0.0.1",)]
    for dsn in (local.dsn(), local.admin_dsn()):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(dsn, password="guess")
    assert stat.S_IMODE((local.directory / "server.json").stat().st_mode) == 0o600
    assert str(conninfo_to_dict(local.dsn())["password"]) not in local.log.read_text()
    # To start it once more has no effect.
    before = process(local).pid
    EmbeddedPostgres(local.directory).start()
    assert process(local).pid == before


def test_it_keeps_running_after_the_process_that_started_it(place: Path, major: int) -> None:
    script = (
        "import sys; from second_brain.database.embedded import EmbeddedPostgres;"
        "EmbeddedPostgres(sys.argv[1], int(sys.argv[2])).start()"
    )
    subprocess.run([sys.executable, "-c", script, str(place / "postgres"), str(major)], check=True)
    found = EmbeddedPostgres(place / "postgres")
    assert found.status == "running"
    assert ask(found, "select 1") == [(1,)]


def test_two_parallel_starts_create_one_server(place: Path, major: int) -> None:
    servers = [EmbeddedPostgres(place / "postgres", major, SETTINGS) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(EmbeddedPostgres.start, servers))
    assert servers[0].dsn() == servers[1].dsn()
    assert ask(servers[0], "select 1") == [(1,)]


def test_stopping_keeps_data_port_and_password(local: EmbeddedPostgres) -> None:
    before = local.dsn()
    local.stop()
    assert local.status == "stopped"
    local.stop()
    again = EmbeddedPostgres(local.directory)
    again.start()
    assert again.dsn() == before
    assert keeps_its_data(again)


def test_it_moves_to_another_port_when_its_own_is_taken(local: EmbeddedPostgres) -> None:
    port = int(str(conninfo_to_dict(local.dsn())["port"]))
    local.stop()
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        local.start()
        assert int(str(conninfo_to_dict(local.dsn())["port"])) != port
        assert keeps_its_data(EmbeddedPostgres(local.directory))


def test_a_killed_server_is_stopped_and_starts_again(local: EmbeddedPostgres) -> None:
    kill(local)
    assert local.status == "stopped"
    local.start()
    assert keeps_its_data(local)


def refusal(server: EmbeddedPostgres) -> str:
    try:
        psycopg.connect(server.dsn()).close()
    except psycopg.OperationalError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_starting_a_server_that_recovers_from_a_crash_waits_for_it(local: EmbeddedPostgres) -> None:
    with psycopg.connect(local.dsn()) as killed, psycopg.connect(local.dsn()) as hanging:
        # The server ends all sessions before it recovers, and kills a stopped one after 5 seconds.
        os.kill(hanging.info.backend_pid, signal.SIGSTOP)
        os.kill(killed.info.backend_pid, signal.SIGKILL)
        assert any("recovery mode" in refusal(local) for _ in range(10_000))
        local.start()
        assert keeps_its_data(local)


def test_a_lock_file_with_the_number_of_another_process_is_stale(local: EmbeddedPostgres) -> None:
    kill(local)
    lock_file = local.log.parent / "postmaster.pid"
    # A process of the server's own account: Postgres by itself would take it for a live server.
    account: dict[str, Any] = {"user": lock_file.stat().st_uid} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "60"], **account) as bystander:
        try:
            lines = lock_file.read_text().splitlines()
            lock_file.write_text("\n".join([str(bystander.pid), *lines[1:]]) + "\n")
            assert local.status == "stopped"
            local.start()
            assert keeps_its_data(local)
        finally:
            bystander.kill()


def test_a_folder_may_be_moved_stopped_or_running(local: EmbeddedPostgres) -> None:
    moved = EmbeddedPostgres(local.directory.rename(local.directory.with_name("moved")))
    assert moved.status == "running"
    assert keeps_its_data(moved)
    moved.stop()
    again = EmbeddedPostgres(moved.directory.rename(local.directory.with_name("again")))
    again.start()
    assert keeps_its_data(again)


def test_a_copied_folder_is_not_the_running_server(local: EmbeddedPostgres) -> None:
    copy = shutil.copytree(local.directory, local.directory.with_name("copy"))
    assert EmbeddedPostgres(copy).status == "stopped"
    (copy / "server.json").unlink()
    assert local.status == "running"


def test_another_major_than_the_data_have_is_refused(local: EmbeddedPostgres, major: int) -> None:
    other = 16 if major != 16 else 18
    with pytest.raises(EmbeddedServerError, match=f"is PostgreSQL {major}, not {other}"):
        EmbeddedPostgres(local.directory, other).start()


def test_a_major_without_binaries_is_refused_with_those_there_are(place: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="PostgreSQL 9") as refused:
        EmbeddedPostgres(place / "postgres", 9).start()
    assert refused.value.remedy == "Choose 18, 17 or 16."
    assert installed_majors() == sorted(installed_majors(), reverse=True)


def test_data_without_their_password_are_not_overwritten(local: EmbeddedPostgres) -> None:
    local.stop()
    state = local.directory / "server.json"
    state.rename(state.with_suffix(".kept"))
    with pytest.raises(EmbeddedServerError, match="password is missing"):
        local.start()
    state.with_suffix(".kept").rename(state)
    local.start()
    assert keeps_its_data(local)


def test_an_interrupted_creation_starts_again(place: Path, major: int) -> None:
    half = place / "postgres" / "data.partial"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18")
    server = EmbeddedPostgres(place / "postgres", major, SETTINGS)
    assert server.status == "absent"
    server.start()
    assert ask(server, "select 1") == [(1,)]
    assert not half.exists()


def test_a_failed_start_shows_the_end_of_the_log(local: EmbeddedPostgres) -> None:
    local.stop()
    broken = EmbeddedPostgres(local.directory, settings={"shared_buffers": "many"})
    with pytest.raises(EmbeddedServerError, match="shared_buffers") as failed:
        broken.start()
    assert failed.value.remedy is not None
    assert str(local.log) in failed.value.remedy


def test_removing_leaves_nothing(local: EmbeddedPostgres) -> None:
    local.remove()
    assert local.status == "absent"
    assert not local.directory.exists()
    with pytest.raises(EmbeddedServerError, match="no embedded database"):
        local.dsn()


def test_the_owner_can_run_the_prelude_where_roles_and_settings_exist(
    local: EmbeddedPostgres,
) -> None:
    settings = "select setrole, setconfig from pg_db_role_setting order by setrole"
    before = ask(local, settings)
    with psycopg.connect(local.dsn(), autocommit=True) as owner:
        apply_prelude(owner)
    assert ask(local, settings) == before


def test_the_prelude_keeps_the_settings_of_a_role(local: EmbeddedPostgres) -> None:
    with psycopg.connect(local.admin_dsn(), autocommit=True) as connection:
        connection.execute("alter role anon set statement_timeout = '1s'")
        apply_prelude(connection)
        kept = connection.execute(
            "select setconfig from pg_db_role_setting where setrole = 'anon'::regrole"
        ).fetchall()
        connection.execute("alter role anon set statement_timeout = '3s'")
    assert kept == [(["statement_timeout=1s"],)]


def test_the_prelude_makes_what_the_migrations_and_the_advisors_look_for(
    database: Any, connect: Any
) -> None:
    roles = database.execute(
        "select rolname, rolsuper, rolbypassrls, rolcanlogin from pg_roles"
        " where rolname in ('anon', 'authenticated', 'service_role', 'authenticator')"
        " order by rolname"
    ).fetchall()
    assert roles == [
        ("anon", False, False, False),
        ("authenticated", False, False, False),
        ("authenticator", False, False, True),
        ("service_role", False, True, False),
    ]
    # A new function in public is everybody's, by name, as on Supabase.
    database.execute("create function public.new() returns int language sql as 'select 1'")
    for role in ("anon", "authenticated", "service_role"):
        held = database.execute(
            "select has_schema_privilege(%s, 'extensions', 'usage'), exists (select from pg_proc,"
            " aclexplode(proacl) where proname = 'new' and grantee = %s::regrole)",
            [role, role],
        ).fetchone()
        assert held == (True, True), role
    # The owner writes tables that refer to the users, as the migrations of a project do.
    with connect() as owner:
        owner.execute("create table public.mine (user_id uuid references auth.users)")
        owner.execute("insert into auth.users values (gen_random_uuid(), 'a@example.org')")


def test_auth_uid_reads_the_claims_that_postgrest_sets(connect: Any) -> None:
    uid = "00000000-0000-0000-0000-000000000007"
    found = connect("authenticated", uid=uid).execute("select auth.uid()::text, auth.role()")
    assert found.fetchone() == (uid, "authenticated")
    assert connect("anon").execute("select auth.uid()").fetchone() == (None,)
    assert connect().execute("select auth.uid()").fetchone() == (None,)


@needs_root
def test_as_root_it_runs_as_an_account_with_no_rights(local: EmbeddedPostgres) -> None:
    running = process(local)
    assert running.username() == "second-brain"
    assert running.gids().effective != 0
    groups = Path(f"/proc/{running.pid}/status")
    if groups.exists():
        listed = [line for line in groups.read_text().splitlines() if line.startswith("Groups:")]
        assert "0" not in listed[0].split()[1:]


@needs_root
def test_data_go_elsewhere_when_the_account_cannot_reach_the_folder(
    place: Path, major: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_machine, "ROOT_STATE", place / "elsewhere")
    private = place / "private"
    private.mkdir(mode=0o700)
    server = EmbeddedPostgres(private / "postgres", major, SETTINGS)
    server.start()
    assert ask(EmbeddedPostgres(private / "postgres"), "select 1") == [(1,)]
    assert server.log.is_relative_to(place / "elsewhere")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    server.remove()
    assert not server.directory.exists()
    assert list((place / "elsewhere").iterdir()) == []


@needs_root
def test_binaries_that_the_account_cannot_reach_are_copied_once(
    place: Path, major: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = embedded_machine.binaries(major).parents[1]
    private = place / "private"
    private.mkdir(mode=0o700)
    installed = embedded_machine.binaries(major).parent.name
    shutil.copytree(package / installed, private / package.name / installed, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, private / libraries.name, symlinks=True)
    monkeypatch.setattr(
        embedded_machine, "binaries", lambda _: private / package.name / installed / "bin"
    )
    monkeypatch.setattr(embedded_machine, "ROOT_STATE", place / "elsewhere")
    server = EmbeddedPostgres(place / "postgres", major, SETTINGS)
    server.start()
    assert ask(server, "select 1") == [(1,)]
    assert str(place / "elsewhere") in process(server).cmdline()[0]
    server.stop()
    server.start()
    assert len(list((place / "elsewhere" / "binaries").iterdir())) == 1

"""Many tenants: where each one is, connections, and a database that fails."""

import json
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tenanted import NOWHERE, add, databases, directory, keys, run, tenants

from command_line import Run
from conftest import Server
from second_brain.database import migrations
from second_brain.distributed.tenant_directory import (
    FileDirectory,
    Place,
    TableDirectory,
    TenantDirectory,
    UnknownTenantError,
    directory_of,
)
from second_brain.distributed.tenants import Tenants
from second_brain.errors import (
    ConfigurationError,
    InvalidInputError,
    SecondBrainError,
    UnavailableError,
)
from second_brain.services.write import KnowledgeWriter
from waiting import until

__all__ = ["databases", "directory", "run", "tenants"]  # fixtures


def test_a_file_says_where_tenants_are_and_is_changed_in_place(directory: FileDirectory) -> None:
    path = directory._path
    directory.set("acme", Place("eu", "acme"))
    directory.set("globex", Place("us"))
    directory.set("acme", Place("us", "acme"))
    assert directory.tenants() == {"acme": Place("us", "acme"), "globex": Place("us")}
    assert path.read_text().startswith("# ours\n")
    with pytest.raises(UnknownTenantError, match="no tenant 'initech'"):
        directory.find("initech")
    other = path.with_suffix(".json")
    other.write_text('{"tenants": {"acme": "eu/acme"}}')
    as_json = FileDirectory(other)
    as_json.set("acme", Place("us"))
    assert FileDirectory(other).find("acme") == Place("us")


def test_a_file_has_no_connection_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(f'[databases]\neu = "{NOWHERE}"\n')
    with pytest.raises(ConfigurationError) as refused:
        directory_of(path)
    assert "hunter2" not in str(refused.value)
    monkeypatch.delenv("EU_MISSING", raising=False)
    path.write_text('[databases]\neu = "EU_MISSING"\n')
    with pytest.raises(ConfigurationError, match=r"\$EU_MISSING, .* database eu, is not set"):
        directory_of(path)


def test_a_table_says_where_tenants_are(
    databases: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text('directory = "eu"\n[databases]\neu = "EU"\n')
    monkeypatch.setenv("EU", databases["eu"])
    table, _ = directory_of(path)
    assert isinstance(table, TableDirectory)
    table.set("acme", Place("us", "acme"))
    table.close()
    with closing(TableDirectory(databases["eu"])) as other:
        assert other.find("acme") == Place("us", "acme")
    with psycopg.connect(databases["eu"]) as connection:
        connection.execute("set role service_role")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select from second_brain_directory.tenants")


def test_a_table_is_asked_over_connections_that_are_kept(databases: dict[str, str]) -> None:
    dsn = make_conninfo(databases["eu"], application_name="directory")
    with (
        closing(TableDirectory(dsn, cached_for=0)) as table,
        psycopg.connect(databases["eu"], autocommit=True) as connection,
    ):
        table.create()
        table.set("acme", Place("us"))
        listed = "select pid from pg_stat_activity where application_name = 'directory'"
        backends = set()
        for _ in range(3):
            assert table.find("acme") == Place("us")
            backends |= set(connection.execute(listed).fetchall())
        assert len(backends) == 1
        connection.execute("select pg_terminate_backend(%s, 5000)", backends.pop())
        assert table.find("acme") == Place("us")
    with (
        closing(TableDirectory(NOWHERE)) as nowhere,
        pytest.raises(UnavailableError, match="directory of tenants") as failure,
    ):
        nowhere.find("acme")
    assert "hunter2" not in str(failure.value)


def test_a_function_says_where_tenants_are_and_is_remembered() -> None:
    asked: list[str] = []

    def find(tenant: str) -> Place | None:
        asked.append(tenant)
        return Place("eu", tenant)

    directory = TenantDirectory(find, cached_for=60)
    assert directory.find("acme") == directory.find("acme") == Place("eu", "acme")
    assert asked == ["acme"]
    directory.forget("acme")
    directory.find("acme")
    assert asked == ["acme", "acme"]


def test_a_place_that_is_known_holds_while_the_directory_fails() -> None:
    answers = iter([Place("eu")])
    directory = TenantDirectory(lambda tenant: next(answers), cached_for=0)
    assert directory.find("acme") == directory.find("acme") == Place("eu")
    directory.forget("acme")
    with pytest.raises(StopIteration):
        directory.find("acme")


@pytest.mark.parametrize("text", ["eu/acme; drop", "eu/pg_catalog", "/acme", "", "eu u"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        Place.read(text)


def test_each_tenant_finds_its_own_rows(
    tenants: Tenants,
    directory: FileDirectory,
    databases: dict[str, str],
    modules: tuple[str, ...],
) -> None:
    migrations.apply(databases["eu"], dimensions=5, schema="acme", modules=modules)
    where = {"acme": "eu/acme", "globex": "eu", "initech": "us"}
    for tenant, text in where.items():
        directory.set(tenant, Place.read(text))
        add(tenants, tenant, f"{tenant}/1", "anchor")
    for tenant in where:
        assert keys(tenants, tenant, "anchor") == [f"{tenant}/1"]


def test_all_pools_together_keep_to_the_limit(server: Server, databases: dict[str, str]) -> None:
    # Three names: for the pools they are three databases.
    named = {
        name: make_conninfo(databases["eu"], application_name="limited")
        for name in ("one", "two", "three")
    }
    directory = TenantDirectory(lambda tenant: Place(tenant))
    most = 0
    # A server may list a connection that the client has closed: only those of this process count.
    listed = "select client_port from pg_stat_activity where application_name = 'limited'"
    this_process = psutil.Process()
    with (
        Tenants(directory, named, max_connections=4, per_database=2, wait=20) as tenants,
        psycopg.connect(server.admin_dsn(), autocommit=True) as admin,
    ):
        failures: list[Exception] = []

        def search(name: str) -> None:
            try:
                for _ in range(15):
                    tenants.for_tenant(name).find(None, "anchor")
            except SecondBrainError as error:
                failures.append(error)

        threads = [threading.Thread(target=search, args=[name]) for name in [*named] * 3]
        for one in threads:
            one.start()
        while any(one.is_alive() for one in threads):
            ports = {port for (port,) in admin.execute(listed)}
            own = {one.laddr.port for one in this_process.net_connections("tcp")}
            most = max(most, len(ports & own))
            assert len(tenants.open_databases) <= 2
        assert failures == []
        assert 2 <= most <= 4


def test_a_database_that_fails_does_not_slow_the_tenants_of_others(
    databases: dict[str, str],
) -> None:
    with socket.socket() as silent:
        # It accepts connections and never answers, as a server behind a broken network.
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        broken = make_conninfo(NOWHERE, port=str(silent.getsockname()[1]))
        directory = TenantDirectory(
            lambda tenant: Place("broken" if tenant == "globex" else "eu"), cached_for=60
        )
        with Tenants(directory, {**databases, "broken": broken}, wait=2.0) as tenants:
            tenants.for_tenant("acme").find(None, "anchor")
            is_over = threading.Event()
            refused: list[str] = []

            def keep_asking() -> None:
                while not is_over.is_set():
                    with pytest.raises(UnavailableError) as failure:
                        tenants.for_tenant("globex").find(None, "anchor")
                    refused.append(str(failure.value))

            asking = [threading.Thread(target=keep_asking) for _ in range(4)]
            for one in asking:
                one.start()
            found_meanwhile = 0
            # Enough to tell: the first of each thread waits for the connection.
            while len(refused) < 100:
                tenants.for_tenant("acme").find(None, "anchor")
                found_meanwhile += not refused
                time.sleep(0.01)
            is_over.set()
            for one in asking:
                one.join()
    assert found_meanwhile > 3
    # Most calls are refused without an attempt to connect.
    assert sum("could not be reached a moment ago" in text for text in refused) > 90
    assert not any("hunter2" in text for text in refused)


def test_a_database_that_is_busy_is_not_taken_for_one_that_fails(
    databases: dict[str, str],
) -> None:
    directory = TenantDirectory({"acme": Place("eu")}.get)
    with Tenants(directory, databases, per_database=1, wait=0.5) as tenants:
        errors: list[str] = []

        def search() -> None:
            try:
                tenants.for_tenant("acme", retries=0).find(None, "anchor")
            except UnavailableError as error:
                errors.append(str(error))

        # One has the connection, four may wait for it.
        searching = [threading.Thread(target=search) for _ in range(8)]

        def work(writer: KnowledgeWriter) -> None:
            for one in searching:
                one.start()
            until(lambda: errors)
            search()
            for one in searching:
                one.join()

        tenants.write("acme", work)
        assert len(errors) == 1 + len(searching)
        assert not any("moment ago" in text for text in errors)
        assert keys(tenants, "acme", "anchor") == []


def test_a_call_that_waits_does_not_hide_that_the_database_fails() -> None:
    directory = TenantDirectory({"acme": Place("broken")}.get)
    with Tenants(directory, {"broken": NOWHERE}, wait=0.5) as tenants:

        def search() -> None:
            with pytest.raises(UnavailableError):
                tenants.for_tenant("acme", retries=0).find(None, "anchor")

        first, second = (threading.Thread(target=search) for _ in range(2))
        first.start()
        time.sleep(0.25)
        second.start()
        first.join()
        with pytest.raises(UnavailableError, match="moment ago"):
            tenants.for_tenant("acme", retries=0).find(None, "anchor")
        second.join()


@pytest.mark.parametrize("error", [ValueError("mine"), httpx.ConnectError("no model")], ids=repr)
def test_an_error_of_the_callers_function_is_not_one_of_the_database(
    databases: dict[str, str], error: Exception
) -> None:
    def work(writer: KnowledgeWriter) -> None:
        raise error

    with Tenants(TenantDirectory({"acme": Place("eu")}.get), databases) as tenants:
        with pytest.raises(type(error), match=str(error)):
            tenants.write("acme", work)
        assert keys(tenants, "acme", "anchor") == []


def test_commands_for_all_tenants_go_on_after_a_failure(run: Run) -> None:
    for tenant, where in (("acme", "eu"), ("dunder", "dead"), ("globex", "us/globex")):
        assert run("server", "tenants", "add", tenant, where).code == 0
    assert "--prelude, which needs a superuser" in run("migrate", "--all", "--prelude").err
    migrated = run("migrate", "--all", "--dimensions", "3")
    assert migrated.code == 1
    lines = [line.split() for line in migrated.out.splitlines()]
    assert [line[:4] for line in lines[1:]] == [
        ["dead", "public", "dunder", "error"],
        ["eu", "public", "acme", "ok"],
        ["us", "globex", "globex", "ok"],
    ]
    assert "3 installs, 1 with an error." in migrated.err
    assert "dead: no connection to database 'nowhere' at host 127.0.0.1" in migrated.err
    assert "hunter2" not in migrated.out + migrated.err
    examined = run("doctor", "--all", "--json")
    assert examined.code == 1
    reported = [(one["database"], one["is_good"]) for one in json.loads(examined.out)]
    assert reported == [("dead", False), ("eu", True), ("us", True)]

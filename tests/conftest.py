"""Fixtures over a real Postgres: one throw-away server per run, one database per test.

A database is a copy of a template that has the prelude and the migrations. The server is embedded
(`--postgres-major`), a container (`--postgres-image`) or any that TEST_DATABASE_URL names, as a
superuser. Under xdist the controller owns the server and the workers share it.
"""

import argparse
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, LiteralString, cast

import hypothesis
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from other_schema import Rendering
from second_brain.database import migrations, naming
from second_brain.database.embedded import EmbeddedPostgres, apply_prelude
from tools import throw_away

# Options, fixture and summary of tests/chaos; the fixtures of tests/workbench and of commands.
pytest_plugins = ("trials", "opened_workbench", "command_line", "pooler")

Connection = psycopg.Connection[tuple[Any, ...]]
Connect = Callable[..., Connection]

# Haystack sends telemetry about each pipeline by default.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"

_running = pytest.StashKey["_Running"]()
# Of this process, by DSN and by name: most tests have a database made and dropped.
_admins: dict[str, Connection] = {}
_templates: set[str] = set()
_rendering = pytest.StashKey[Rendering]()


def _modules(given: str) -> tuple[str, ...]:
    named = () if given == "none" else tuple(sorted(set(given.split(","))))
    if unknown := set(named) - set(migrations.modules()):
        raise argparse.ArgumentTypeError(
            f"no module {', '.join(sorted(unknown))}; there are {', '.join(migrations.modules())}"
        )
    return named


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres-major",
        type=int,
        default=int(os.environ.get("POSTGRES_MAJOR", "18")),
        help="major version of the embedded server: 18 (default), 17 or 16",
    )
    parser.addoption(
        "--postgres-image",
        default=os.environ.get("POSTGRES_IMAGE"),
        help="run on a container of this image instead, such as supabase/postgres:TAG",
    )
    parser.addoption(
        "--install-schema",
        help="run on an install in this schema, beside one of another size in schema public",
    )
    parser.addoption(
        "--small-corpus-limit",
        type=int,
        help="search a corpus of more chunks than this as a large one; 0 for every corpus",
    )
    parser.addoption(
        "--modules",
        type=_modules,
        default=migrations.modules(),
        help="install these modules only, such as words,facets; none for core alone",
    )
    parser.addoption(
        "--no-shrinking",
        action="store_true",
        help="report the first example that fails a property, and look for no smaller one",
    )


def pytest_configure(config: pytest.Config) -> None:
    # The suite draws the same examples in each run, so that it fails only where something has
    # changed; the slow run draws new ones.
    is_slow = config.option.markexpr == "slow"
    hypothesis.settings.register_profile(
        "suite",
        derandomize=not is_slow,
        phases=[
            phase
            for phase in hypothesis.Phase
            if phase.name != "shrink" or not config.getoption("--no-shrinking")
        ],
        # How fast examples are drawn and checked depends on the load of the machine.
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("suite")
    schema = config.getoption("--install-schema")
    if schema:
        config.stash[_rendering] = Rendering(schema)
        config.stash[_rendering].start()


def missing_modules(config: pytest.Config, wanted: Iterable[str]) -> list[str]:
    installed = config.getoption("--modules")
    return [one for one in wanted if one not in installed]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_whole = config.getoption("--modules") == migrations.modules()
    if is_whole and config.getoption("--small-corpus-limit") is None:
        return
    # What needs no database ends as it does in a run without these options. `rest` may need one.
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for one in items:
        fixtures = one.fixturenames if isinstance(one, pytest.Function) else ["server"]
        (kept if {"server", "rest"} & {*fixtures} else left_out).append(one)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # Before the fixtures, which can need the module too.
    wanted = [name for mark in item.iter_markers("module") for name in mark.args]
    if missing := missing_modules(item.config, wanted):
        pytest.skip(f"--modules leaves out {', '.join(missing)}")


@dataclass(frozen=True)
class Server:
    """A server of the run, by the DSNs of its superuser and of the owner, `postgres`."""

    admin: str
    owner: str
    rendering: Rendering | None = None
    small_corpus: int | None = None
    modules: tuple[str, ...] = ()

    def admin_dsn(self, database: str = "postgres") -> str:
        return make_conninfo(self.admin, dbname=database)

    def owner_dsn(self, database: str = "postgres") -> str:
        return make_conninfo(self.owner, dbname=database)

    def _as_admin(self, statement: LiteralString, *names: str) -> None:
        connection = _admins.get(self.admin)
        if connection is None or connection.closed:
            connection = _admins[self.admin] = psycopg.connect(self.admin_dsn(), autocommit=True)
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def create_database(self, name: str, template: str) -> None:
        """Copy a database that nobody is connected to."""
        self._as_admin(
            "create database {} template {} owner postgres strategy file_copy", name, template
        )

    def drop_database(self, name: str) -> None:
        """Drop a database, ending its connections."""
        self._as_admin("drop database if exists {} with (force)", name)

    def template(self, dimensions: int | None) -> str:
        """Name a database with the prelude and, given dimensions, the migrations; make it once."""
        # A name has at most 63 bytes.
        modules = hashlib.sha256(",".join(self.modules).encode()).hexdigest()[:8]
        parts = (dimensions or "empty", self.small_corpus, modules)
        name = "_".join(["second_brain_template", *map(str, parts)]).lower()
        if name in _templates:
            return name
        with psycopg.connect(self.admin_dsn(), autocommit=True) as connection:
            # Workers share the server: the first one makes it, the others wait.
            connection.execute("select pg_advisory_lock(hashtext('second_brain tests'))")
            exists = connection.execute("select from pg_database where datname = %s", [name])
            if exists.fetchone() is None:
                making = f"{name}_{secrets.token_hex(4)}"
                self.create_database(making, "template1")
                with psycopg.connect(self.admin_dsn(making), autocommit=True) as admin:
                    apply_prelude(admin)
                if dimensions is not None:
                    self._migrate(making, dimensions)
                    self._limit_small_corpora(making)
                self._as_admin("alter database {} rename to {}", making, name)
        _templates.add(name)
        return name

    def _migrate(self, database: str, dimensions: int) -> None:
        dsn = self.owner_dsn(database)
        if self.rendering is None:
            migrations.apply(dsn, dimensions=dimensions, modules=self.modules)
            return
        with self.rendering.switched_off():
            for schema, size in (
                (naming.SCHEMA, dimensions + 1),
                (self.rendering.schema, dimensions),
            ):
                migrations.apply(dsn, dimensions=size, schema=schema, modules=self.modules)

    def _limit_small_corpora(self, database: str) -> None:
        if self.small_corpus is not None:
            statement = sql.SQL(
                "create or replace function knowledge_internal.small_corpus_limit() returns integer"
                " language sql immutable set search_path = pg_catalog, pg_temp as 'select {}'"
            )
            with psycopg.connect(self.owner_dsn(database)) as owner:
                owner.execute(statement.format(sql.Literal(self.small_corpus)))


class _Running:
    """The server of this run, however it came to be, and how to end it."""

    def __init__(self, config: pytest.Config) -> None:
        self.stop: Callable[[], None]
        given = os.environ.get("TEST_DATABASE_URL")
        image = config.getoption("--postgres-image")
        if given:
            self._use(given, password=None)
            self.stop = self._drop_templates
        elif image:
            self._start_container(image)
        else:
            self._start_embedded(config.getoption("--postgres-major"))

    def _start_embedded(self, major: int) -> None:
        place = throw_away.folder()
        embedded = EmbeddedPostgres(place / "postgres", major, throw_away.SETTINGS)

        def stop() -> None:
            embedded.remove()
            place.rmdir()

        self.stop = stop
        try:
            embedded.start()
        except BaseException:
            stop()
            raise
        self.server = Server(embedded.admin_dsn(), embedded.dsn())

    def _start_container(self, image: str) -> None:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.waiting_utils import wait_for_logs

        password = secrets.token_urlsafe(12)
        container = DockerContainer(image).with_env("POSTGRES_PASSWORD", password)
        container.with_exposed_ports(5432).start()
        self.stop = container.stop
        try:
            # Once while it initialises, once for good.
            wait_for_logs(container, r"(?s)(ready to accept connections.*){2}", timeout=120)
            self._use(
                make_conninfo(
                    host=container.get_container_host_ip(),
                    port=str(container.get_exposed_port(5432)),
                    user="supabase_admin",
                    password=password,
                    dbname="postgres",
                ),
                password=password,
            )
        except BaseException:
            self.stop()
            raise

    def _use(self, admin: str, password: str | None) -> None:
        with psycopg.connect(admin, autocommit=True) as connection:
            apply_prelude(connection)
            roles = connection.execute(
                "select rolsuper from pg_roles where rolname in (current_user, 'postgres')"
                " order by rolname = 'postgres'"
            ).fetchall()
            if roles != [(True,), (False,)]:
                raise pytest.UsageError(
                    "TEST_DATABASE_URL must be a superuser's (on Supabase's image: supabase_admin),"
                    " on a server where the role postgres is not one"
                )
            if password is None:
                password = cast(str, conninfo_to_dict(admin).get("password", "postgres"))
                connection.execute(
                    sql.SQL("alter role postgres password {}").format(sql.Literal(password))
                )
        self.server = Server(admin, make_conninfo(admin, user="postgres", password=password))

    def _drop_templates(self) -> None:
        with psycopg.connect(self.server.admin_dsn(), autocommit=True) as connection:
            left = connection.execute(
                r"select datname from pg_database where datname ~ '^second_brain_te(mplate|st)_'"
            ).fetchall()
        for (name,) in left:
            self.server.drop_database(name)


def _server(config: pytest.Config) -> Server:
    shared = getattr(config, "workerinput", {}).get("second_brain_server")
    if shared is not None:
        found = Server(**json.loads(shared))
    else:
        if _running not in config.stash:
            config.stash[_running] = _Running(config)
        found = config.stash[_running].server
    return replace(
        found,
        rendering=config.stash.get(_rendering, None),
        small_corpus=config.getoption("--small-corpus-limit"),
        modules=config.getoption("--modules"),
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    server = _server(node.config)
    node.workerinput["second_brain_server"] = json.dumps(
        {"admin": server.admin, "owner": server.owner}
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    while _admins:
        _admins.popitem()[1].close()
    if _running in config.stash:
        config.stash[_running].stop()
        del config.stash[_running]
    if _rendering in config.stash:
        config.stash[_rendering].stop()


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Server:
    return _server(pytestconfig)


@pytest.fixture(scope="session")
def modules(server: Server) -> tuple[str, ...]:
    """The modules that the databases of this run have."""
    return server.modules


@pytest.fixture
def dimensions() -> int:
    """The embedding size of this test's database; override it by parametrising `dimensions`."""
    return 3


@pytest.fixture
def dsn(server: Server, dimensions: int) -> Iterator[str]:
    """The owner's DSN of a database of this test's own, with prelude and migrations."""
    yield from copy_of(server, server.template(dimensions))


@pytest.fixture
def plain_dsn(server: Server) -> Iterator[str]:
    """The owner's DSN of a database of this test's own, with the prelude and no migration."""
    yield from copy_of(server, server.template(None))


@pytest.fixture(scope="module")
def shared_dsn(server: Server) -> Iterator[str]:
    """The owner's DSN of a database that the tests of a module share."""
    yield from copy_of(server, server.template(3))


EMPTY_THE_OTHERS = """
do $$
declare
  emptied text;
begin
  for emptied in
    select relname from pg_class
     where relnamespace = 'public'::regnamespace and relkind = 'r'
       and relname ~ '_(settings|weights|words|synonyms|claims|judgments|query_log)$'
  loop
    execute format('delete from public.%I', emptied);
  end loop;
end
$$
"""


@pytest.fixture
def emptied_dsn(shared_dsn: str) -> str:
    """The shared database without a row: quicker than a database of the test's own."""
    with psycopg.connect(shared_dsn) as connection:
        connection.execute(
            "truncate public.knowledge_sources, public.knowledge_documents, public.knowledge_chunks"
        )
        connection.execute(EMPTY_THE_OTHERS)
    return shared_dsn


@pytest.fixture(scope="module")
def shared(shared_dsn: str) -> Iterator[Connection]:
    """The owner's connection to the shared database."""
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def knowledge(shared: Connection) -> Iterator[Connection]:
    """The shared connection in a transaction that this test's end rolls back."""
    with shared.transaction(force_rollback=True):
        shared.execute("set local statement_timeout = '20s'")
        yield shared


def copy_of(server: Server, template: str) -> Iterator[str]:
    """Yield the owner's DSN of a new copy of a template; drop it afterwards."""
    name = f"second_brain_test_{secrets.token_hex(6)}"
    server.create_database(name, template)
    try:
        yield server.owner_dsn(name)
    finally:
        server.drop_database(name)


def connections(dsn: str) -> Iterator[Connect]:
    """Yield what opens connections to a database, closed afterwards.

    `connect()` is the owner's; `connect("service_role")` and `connect("authenticated", uid=...)`
    act as that role, with the claims that PostgREST would set. All autocommit.
    """
    opened: list[Connection] = []

    def open_connection(
        role: Literal["anon", "authenticated", "service_role"] | None = None, *, uid: object = None
    ) -> Connection:
        connection = psycopg.connect(dsn, autocommit=True)
        opened.append(connection)
        if role is not None:
            claims = {"role": role} if uid is None else {"role": role, "sub": str(uid)}
            connection.execute(
                "select set_config('request.jwt.claims', %s, false)", [json.dumps(claims)]
            )
            connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        return connection

    yield open_connection
    for connection in opened:
        connection.close()


@pytest.fixture
def connect(dsn: str) -> Iterator[Connect]:
    """Open connections to this test's database, closed at its end; see `connections`."""
    yield from connections(dsn)


@pytest.fixture(scope="module")
def shared_connect(shared_dsn: str) -> Iterator[Connect]:
    """Open connections to the shared database, closed at the module's end; see `connections`."""
    yield from connections(shared_dsn)


@pytest.fixture(scope="module")
def shared_service(shared_connect: Connect) -> Connection:
    """The shared database's connection that acts as service_role.

    Its plans are kept for the module: a session's first search takes 30 ms of CPU time for them.
    """
    return shared_connect("service_role")


@pytest.fixture
def database(connect: Connect) -> Connection:
    """An autocommit connection of the database's owner, who is not a superuser."""
    return connect()


@pytest.fixture
def service_role(connect: Connect) -> Connection:
    """An autocommit connection that acts as service_role."""
    return connect("service_role")

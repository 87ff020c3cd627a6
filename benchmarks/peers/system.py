"""What a system under measurement is given, and what it answers with."""

import importlib.metadata
import importlib.util
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from pgvector.psycopg import register_vector
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks import scratch
from benchmarks.corpus import Corpus, Query
from benchmarks.memory import process_cpu
from second_brain.database import migrations

POOL = 50
RRF_K = 60
# What hybrid_search_knowledge_chunks sets for a pool of 50.
EF_SEARCH = 200


class Client(ABC):
    """A separate connection to a loaded system, for one thread.

    `cannot` lists what is not offered: `text` or `vector` (such a leg alone), `filter`, `phrase`
    (its words are sought instead).
    """

    name: ClassVar[str]
    text_leg: ClassVar[str]
    cannot: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def search(self, query: Query, count: int) -> list[int]:
        """Return the ids of the best rows, best first."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def cpu(self) -> float | None:
        """Return the milliseconds of CPU time that its searches have taken so far, if known."""
        return None


class System(ABC):
    """A store of the corpus, and the kind of client that searches it.

    `key` begins the name of its kept folder,
    `steps` are the seconds of what loading took, the versions of the distributions in `packages`
    are recorded.
    """

    name: ClassVar[str]
    key: ClassVar[str]
    client: ClassVar[type[Client]]
    modules: ClassVar[tuple[str, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    majors: ClassVar[frozenset[int]] = frozenset({16, 17, 18})
    install: ClassVar[str] = ""

    @classmethod
    def missing(cls, major: int) -> str | None:
        """Return what to do before this system can run, or None when it can."""
        # In order: looking for a module of a package that is not there fails.
        for module in cls.modules:
            if importlib.util.find_spec(module) is None:
                return cls.install
        if major not in cls.majors:
            return f"--major {' or '.join(map(str, sorted(cls.majors)))}"
        return None

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step of loading."""
        begin = time.perf_counter()
        yield
        self.steps[name] = self.steps.get(name, 0.0) + time.perf_counter() - begin

    @abstractmethod
    def running(
        self, major: int, dimensions: int, keep: Path | None
    ) -> AbstractContextManager[None]:
        """Run the system for a while: an empty one, or what the folder keeps."""

    @abstractmethod
    def load(self, corpus: Corpus) -> None:
        """Store the corpus and build what the searches need, in steps."""

    @abstractmethod
    def holds(self, corpus: Corpus) -> bool:
        """Return whether the corpus and its indexes already exist."""

    @classmethod
    def made_by(cls) -> str:
        """Return what a kept load must have been made by, for a system that changes."""
        return ""

    def renew(self) -> None:  # noqa: B027 - the default is right for the peers
        """Remove what an aborted measurement has left in a kept load."""

    @abstractmethod
    def connect(self) -> Client:
        """Open a client with a connection of its own."""

    @abstractmethod
    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the table (TOAST included), and of its indexes."""

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that it needs."""
        return {name: importlib.metadata.version(name) for name in self.packages}


class PostgresClient(Client):
    """A client over psycopg; embeddings are sent in pgvector's binary form."""

    settings: ClassVar[dict[str, str]] = {}

    def __init__(self, dsn: str) -> None:
        self.connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)
        register_vector(self.connection)
        for name, value in self.settings.items():
            self.connection.execute("select set_config(%s, %s, false)", [name, value])

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def cpu(self) -> float | None:
        """Return the CPU time of the server's process for this connection, in milliseconds.

        Without parallel workers, which are other processes.
        """
        return process_cpu(self.connection.info.backend_pid)


_SERVING = """
select pid from pg_stat_activity
 where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""


class StoreClient(Client):
    """A client of a package that opens its own connections to the database."""

    def __init__(self, dsn: str) -> None:
        self._watching = psycopg.connect(dsn, autocommit=True)

    def close(self) -> None:
        """Close the connection that watches the others."""
        self._watching.close()

    def cpu(self) -> float | None:
        """Return the CPU time of the server's processes for all other connections."""
        serving = self._watching.execute(_SERVING).fetchall()
        return sum(process_cpu(process) or 0.0 for (process,) in serving)


class PostgresSystem(System):
    """A system in a Postgres server of its own; the loader is the database's owner."""

    extension: ClassVar[str | None] = None
    # Of the SQL, beside those that need no extension.
    sql_modules: ClassVar[tuple[str, ...]] = ()
    table: ClassVar[str]
    # Columns of a row's number, as text, and of its passage.
    number: ClassVar = "id"
    passage: ClassVar = "content"

    connection: psycopg.Connection[Any]
    dsn: str

    @contextmanager
    def running(self, major: int, dimensions: int, keep: Path | None) -> Iterator[None]:
        """Run a server with pgvector, the migrations, and the system's extension."""
        chosen = (*migrations.modules(), *self.sql_modules)
        with scratch.database(dimensions, major, self.extension, keep, chosen) as connection:
            self.connection = connection
            self.dsn = make_conninfo(connection.info.dsn, password=connection.info.password)
            register_vector(connection)
            yield

    def holds(self, corpus: Corpus) -> bool:
        """Compare the number of rows and the last passage; look for the vector index."""
        built = self.connection.execute(
            "select exists ("
            "  select from pg_index as one"
            "    join pg_class as index on index.oid = one.indexrelid"
            "    join pg_am as method on method.oid = index.relam"
            "   where one.indrelid = to_regclass(%s) and one.indisvalid and method.amname = 'hnsw'"
            ")",
            [self.table],
        ).fetchone()
        if built != (True,):
            return False
        last = len(corpus.texts) - 1
        statement = (
            f"select count(*), max({self.passage}) filter (where {self.number}::text = %s)"
            f" from {self.table}"
        )
        found = self.connection.execute(statement.encode(), [str(last)]).fetchone()
        texts = (corpus.texts[last], corpus.full_text(last))
        return found is not None and found in [(last + 1, text) for text in texts]

    def run(self, steps: dict[str, str]) -> None:
        """Run a statement for each step."""
        for name, statement in steps.items():
            with self.step(name):
                self.connection.execute(statement.encode())

    def connect(self) -> Client:
        """Open a client; it takes the connection string."""
        assert issubclass(self.client, PostgresClient)
        return self.client(self.dsn)

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the table (TOAST included), and of its indexes."""
        found = self.connection.execute(
            "select pg_table_size(%(table)s), pg_indexes_size(%(table)s)", {"table": self.table}
        ).fetchone()
        assert found is not None
        return found[0], found[1]

    def versions(self) -> dict[str, str]:
        """Return the versions of the server, its extensions and the packages."""
        found = self.connection.execute(
            "select 'PostgreSQL', current_setting('server_version')"
            " union all"
            " select extname, extversion from pg_extension where extname <> 'plpgsql'"
        ).fetchall()
        return {**dict(found), **super().versions()}

    def copy(self, corpus: Corpus) -> None:
        """Copy the corpus into the columns id, knowledge_type, content, embedding."""
        statement = sql.SQL(
            "copy {} (id, knowledge_type, content, embedding) from stdin (format binary)"
        ).format(sql.Identifier(self.table))
        with self.step("copy"), self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(["int8", "text", "text", "vector"])
            for row, embedding in enumerate(corpus.embeddings):
                copy.write_row((row, corpus.types[row], corpus.full_text(row), embedding))

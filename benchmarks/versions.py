"""Two versions of the SQL on the same rows: databases of one server.

`corpus` is loaded once; each version gets a copy of it, in which all but tables and indexes is
dropped and made again by the version's migrations. A version whose tables, indexes or triggers
differ is loaded from the rows of `corpus` instead.
"""

import hashlib
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from pgvector.psycopg import register_vector
from psycopg import sql
from psycopg.types.json import Jsonb

from benchmarks import scratch
from benchmarks.corpus import EmbeddingSpace, Library
from benchmarks.loading import said
from benchmarks.workload import CORPUS_SEED
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres, apply_prelude

Connection = psycopg.Connection[Any]

ROOT = Path(__file__).parents[1]
# Autovacuum would run ANALYZE with another sample in one of the copies.
SETTINGS = {**scratch.SETTINGS, "autovacuum": "off"}

# Objects of the migrations other than tables and indexes. Triggers and policies are dropped with
# their functions.
STRIP = """
do $$
declare
  made record;
begin
  drop schema knowledge_internal cascade;
  drop schema supabase_migrations cascade;
  for made in
    select format('drop policy %I on %s', policy.polname, policy.polrelid::regclass) as statement
      from pg_policy as policy
     where policy.polrelid in (
             select oid from pg_class where relnamespace = 'public'::regnamespace
           )
  loop
    execute made.statement;
  end loop;
  for made in
    select function.oid
      from pg_proc as function
     where function.pronamespace = 'public'::regnamespace
       and function.proowner = current_user::regrole
  loop
    -- Dropping one can drop another that returns its type.
    if exists (select from pg_proc where oid = made.oid) then
      execute format('drop routine %s cascade', made.oid::regprocedure);
    end if;
  end loop;
  for made in
    select class.oid,
           case class.relkind when 'v' then 'view' when 'c' then 'type' end as kind
      from pg_class as class
     where class.relnamespace = 'public'::regnamespace
       and class.relowner = current_user::regrole
       and class.relkind in ('v', 'c')
  loop
    if exists (select from pg_class where oid = made.oid) then
      execute format('drop %s %s cascade', made.kind, made.oid::regclass);
    end if;
  end loop;
end
$$
"""
# Constraints are left out: no search reads them.
OBJECTS = """
select format('%s.%s %s', class.oid::regclass, attribute.attname, concat_ws(' ',
         row_number() over (partition by class.oid order by attribute.attnum),
         format_type(attribute.atttypid, attribute.atttypmod),
         attribute.attnotnull, attribute.attstorage,
         coalesce(attribute.attstattarget, -1), attribute.attgenerated, class.reloptions
       )) as line
  from pg_class as class
  join pg_attribute as attribute on attribute.attrelid = class.oid
 where class.relnamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)
   and class.relkind in ('r', 'p')
   and attribute.attnum > 0
   and not attribute.attisdropped
 union all
select pg_get_indexdef(index.indexrelid)
  from pg_index as index
  join pg_class as class on class.oid = index.indrelid
 where class.relnamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)
   and index.indisvalid
 union all
select pg_get_functiondef(function.oid)
  from pg_proc as function
 where function.pronamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)
   and function.proowner = current_user::regrole
   and function.prokind in ('f', 'p')
"""
VIEWS = """
select format(
         'create view %s with (%s) as %s', class.oid::regclass,
         array_to_string(coalesce(class.reloptions, array['security_invoker=false']), ', '),
         pg_get_viewdef(class.oid)
       )
  from pg_class as class
 where class.relnamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)
   and class.relowner = current_user::regrole
   and class.relkind = 'v'
 order by class.oid
"""
COLUMNS = """
select attribute.attname
  from pg_attribute as attribute
 where attribute.attrelid = to_regclass(%s)
   and attribute.attnum > 0
   and not attribute.attisdropped
   and attribute.attgenerated = ''
 order by attribute.attnum
"""
TRIGGERS = """
select trigger.tgname, trigger.tgfoid::regproc::text
  from pg_trigger as trigger
 where trigger.tgrelid = 'public.knowledge_chunks'::regclass
   and not trigger.tgisinternal
   and trigger.tgtype & 7 = 7 -- before insert, for each row
"""
REWRITTEN = """
select md5(string_agg(
         (jsonb_strip_nulls(to_jsonb(chunk)) - 'created_at' - 'updated_at')::text,
         ' ' order by chunk.id
       )) as digest
  from pg_temp.rewritten as chunk
"""
REWRITTEN_ROWS = 200
COPIED_STATISTICS = ("public.knowledge_corpus_statistics", "public.knowledge_lexeme_statistics")

DOCUMENT_CHUNKS = 10
# Of the documents an eighth is a task, and a tenth of each year.
TYPES, YEARS = (*["note"] * 7, "task"), range(2016, 2026)
COLUMNS_OF = {
    "public.knowledge_documents": (
        *("id", "external_key", "title", "source_url", "knowledge_type", "metadata"),
    ),
    "public.knowledge_chunks": (
        *("document_id", "chunk_index", "heading", "content", "embedding", "embedding_model"),
    ),
}
NOT_TEXT = {
    "id": "uuid",
    "document_id": "uuid",
    "chunk_index": "int4",
    "embedding": "vector",
    "metadata": "jsonb",
}


class DifferentVersionError(Exception):
    """A version cannot use the rows of another version; the text has the reason."""


@dataclass(frozen=True)
class Version:
    """The migrations of a revision or a directory, and a digest of their text."""

    name: str
    directory: Path
    digest: str

    @classmethod
    def open(cls, given: str, stack: ExitStack) -> "Version":
        """Find the directory, or write out the revision's files for as long as the stack is open.

        Raises SystemExit when it is neither.
        """
        directory = Path(given)
        if not directory.is_dir():
            parent = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            written = subprocess.run(
                ["git", "-C", str(ROOT), "archive", "--format=tar", given, "migrations"],
                capture_output=True,
                check=False,
            )
            if written.returncode != 0:
                why = written.stderr.decode(errors="replace").strip()
                raise SystemExit(f"{given} is neither a directory nor a git revision: {why}")
            subprocess.run(["tar", "-x", "-C", str(parent)], input=written.stdout, check=True)
            directory = parent
        if (directory / "migrations").is_dir():
            directory = directory / "migrations"
        found = chosen(directory)
        if not found:
            raise SystemExit(f"there are no migrations in {directory}")
        text = "".join(f"{one.file_name}\n{one.sql}\n" for one in found)
        return cls(given, directory, hashlib.sha256(text.encode()).hexdigest())

    def apply(self, dsn: str, dimensions: int) -> None:
        """Apply the migrations to a new database."""
        modules = migrations.modules(self.directory)
        migrations.apply(dsn, dimensions=dimensions, directory=self.directory, modules=modules)


def chosen(directory: Path) -> list[migrations.Migration]:
    """List the migrations of a directory without modules that need an extension."""
    return migrations.select(migrations.find(directory), migrations.modules(directory))


@dataclass(frozen=True)
class Store:
    """The databases of one size on a server."""

    server: EmbeddedPostgres
    library: Library
    space: EmbeddingSpace
    chunks: int

    @property
    def corpus(self) -> str:
        """The database that the copies are made from."""
        return f"corpus_{self.chunks}"

    def load(self, version: Version) -> None:
        """Load the corpus with the migrations of a version, unless an earlier run has."""
        texts = json.dumps(self.library.modules)
        wanted = {
            "seed": CORPUS_SEED,
            "dimensions": self.space.dimensions,
            "chunks": self.chunks,
            "python": platform.python_version(),
            "texts": hashlib.sha256(texts.encode()).hexdigest(),
        }
        if self._note(self.corpus) == wanted:
            return
        begin = time.perf_counter()
        self._create(self.corpus)
        dsn = self.server.dsn(self.corpus)
        version.apply(dsn, self.space.dimensions)
        with psycopg.connect(dsn, autocommit=True) as connection:
            load(connection, self.library, self.space, self.chunks)
        self._write_note(self.corpus, wanted)
        said(f"loaded {self.chunks:,} chunks in {time.perf_counter() - begin:.0f} s")

    def copy(self, role: str, version: Version) -> str:
        """Return the DSN of a copy of the corpus with a version's SQL; an earlier run's is kept."""
        name = f"{role}_{self.chunks}"
        dsn = self.server.dsn(name)
        wanted = {
            "migrations": version.digest,
            "corpus": self._note(self.corpus),
            "maker": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        }
        if self._note(name) == wanted:
            return dsn
        begin = time.perf_counter()
        how = "copied"
        try:
            self._create(name, template=self.corpus)
            install(dsn, version, self.space.dimensions)
            self._check_objects(dsn, version)
            self._copy_statistics(dsn)
            self._check_triggers(dsn)
        except DifferentVersionError as exc:
            said(
                f"{role}, {version.name}: {exc}. Its rows are loaded again, so its vector index is"
                " another graph: a few answers and scores can differ for this reason alone."
            )
            how = "loaded"
            self._create(name)
            version.apply(dsn, self.space.dimensions)
            self._load_rows(dsn)
            self._copy_statistics(dsn)
        self._write_note(name, wanted)
        said(f"{role}, {version.name}: {how} in {time.perf_counter() - begin:.0f} s")
        return dsn

    def _check_objects(self, dsn: str, version: Version) -> None:
        fresh = f"fresh_{self.chunks}"
        self._create(fresh)
        fresh_dsn = self.server.dsn(fresh)
        version.apply(fresh_dsn, self.space.dimensions)
        expected, present = (set(column(one, OBJECTS)) for one in (fresh_dsn, dsn))
        views = column(fresh_dsn, VIEWS)
        self._drop(fresh)
        if expected != present:
            differing = sorted(expected ^ present)[0].splitlines()[0]
            raise DifferentVersionError(f"tables, indexes or functions differ: {differing}")
        # A migration may make a view only where it has just made an index.
        missing = [view for view in views if view not in column(dsn, VIEWS)]
        with psycopg.connect(dsn, autocommit=True) as connection:
            for view in missing:
                connection.execute(view.encode())

    def _check_triggers(self, dsn: str) -> None:
        try:
            digests = {rewritten(one) for one in (dsn, self.server.dsn(self.corpus))}
        except psycopg.Error as exc:
            raise DifferentVersionError(f"its triggers cannot be compared: {exc}") from exc
        if len(digests) > 1:
            raise DifferentVersionError("its triggers compute other columns of a chunk")

    def _load_rows(self, dsn: str) -> None:
        """Load the same input as the writers of the corpus, in the same order."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            with scratch.filled_at_once(connection):
                for table, columns in COLUMNS_OF.items():
                    self._copy_rows(connection, table, dict.fromkeys(["id", *columns]))
            connection.execute("vacuum analyze")

    def _copy_statistics(self, dsn: str) -> None:
        """Copy the sampled figures of the corpus, because every new sample differs."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("select public.refresh_knowledge_statistics()")
            for table in COPIED_STATISTICS:
                own = column(dsn, COLUMNS, [table])
                if own and own == column(self.server.dsn(self.corpus), COLUMNS, [table]):
                    connection.execute(sql.SQL("delete from {}").format(qualified(table)))
                    self._copy_rows(connection, table, own)
                    connection.execute(sql.SQL("vacuum analyze {}").format(qualified(table)))
                else:
                    said(f"{table} differs from that of the corpus: scores can differ a little")

    def _copy_rows(self, connection: Connection, table: str, columns: Iterable[str]) -> None:
        source = self.server.dsn(self.corpus)
        chosen = sql.SQL(", ").join(map(sql.Identifier, columns))
        read = sql.SQL("copy (select {} from {} order by ctid) to stdout (format binary)")
        write = sql.SQL("copy {} ({}) from stdin (format binary)")
        with (
            psycopg.connect(source) as other,
            other.cursor().copy(read.format(chosen, qualified(table))) as rows,
            connection.cursor().copy(write.format(qualified(table), chosen)) as copy,
        ):
            for block in rows:
                copy.write(block)

    def _create(self, name: str, template: str = "template1") -> None:
        self._drop(name)
        with psycopg.connect(self.server.admin_dsn(), autocommit=True) as admin:
            admin.execute(
                sql.SQL("create database {} template {} owner postgres strategy file_copy").format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )
        with psycopg.connect(self.server.admin_dsn(name), autocommit=True) as admin:
            apply_prelude(admin)

    def _drop(self, name: str) -> None:
        with psycopg.connect(self.server.admin_dsn(), autocommit=True) as admin:
            drop = sql.SQL("drop database if exists {} with (force)")
            admin.execute(drop.format(sql.Identifier(name)))

    def _note(self, name: str) -> Any:
        with psycopg.connect(self.server.admin_dsn(), autocommit=True) as admin:
            found = admin.execute(
                "select shobj_description(oid, 'pg_database') from pg_database where datname = %s",
                [name],
            ).fetchone()
        return json.loads(found[0]) if found and found[0] else None

    def _write_note(self, name: str, note: Mapping[str, Any]) -> None:
        with psycopg.connect(self.server.admin_dsn(), autocommit=True) as admin:
            admin.execute(
                sql.SQL("comment on database {} is {}").format(
                    sql.Identifier(name), sql.Literal(json.dumps(note))
                )
            )


def load(connection: Connection, library: Library, space: EmbeddingSpace, chunks: int) -> None:
    """Store documents of ten chunks, with types and metadata."""
    register_vector(connection)
    random = Random(CORPUS_SEED)
    topics = [random.randrange(space.topics) for _ in range(-(-chunks // DOCUMENT_CHUNKS))]
    of_chunks = [topics[row // DOCUMENT_CHUNKS] for row in range(chunks)]
    titles = [library.about(topic)[0] for topic in topics]
    documents = (
        (
            UUID(int=place + 1),
            f"document:{place}",
            title,
            f"https://example.org/{place}",
            random.choice(TYPES),
            Jsonb({"year": random.choice(YEARS), "team": f"team-{place % 20}"}),
        )
        for place, title in enumerate(titles)
    )
    passages = (
        (
            UUID(int=row // DOCUMENT_CHUNKS + 1),
            row % DOCUMENT_CHUNKS,
            titles[row // DOCUMENT_CHUNKS],
            library.passage(random, of_chunks[row]),
            embedding,
            "clustered",
        )
        for row, embedding in enumerate(space.draw(of_chunks, CORPUS_SEED))
    )
    with scratch.filled_at_once(connection):
        for (table, columns), rows in zip(COLUMNS_OF.items(), (documents, passages), strict=True):
            statement = sql.SQL("copy {} ({}) from stdin (format binary)").format(
                qualified(table), sql.SQL(", ").join(map(sql.Identifier, columns))
            )
            with connection.cursor().copy(statement) as copy:
                copy.set_types([NOT_TEXT.get(name, "text") for name in columns])
                for values in rows:
                    copy.write_row(values)
    connection.execute("vacuum analyze public.knowledge_documents, public.knowledge_chunks")
    connection.execute("select public.refresh_knowledge_statistics()")


def qualified(table: str) -> sql.Identifier:
    """Return schema.table as an identifier."""
    return sql.Identifier(*table.split("."))


def column(dsn: str, statement: LiteralString, arguments: Sequence[Any] = ()) -> list[Any]:
    """Return the first column of a statement's rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [row[0] for row in connection.execute(statement, arguments or None).fetchall()]


def install(dsn: str, version: Version, dimensions: int) -> None:
    """Replace all objects except tables and indexes by those of a version's migrations.

    Raises DifferentVersionError when a migration does not apply to these tables.
    """
    already_there = (
        psycopg.errors.DuplicateTable,
        psycopg.errors.DuplicateColumn,
        psycopg.errors.DuplicateObject,
        psycopg.errors.UniqueViolation,  # rows of a lookup table
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(STRIP)
        for migration in migrations.render(chosen(version.directory), dimensions):
            # `set local` in a file ends with the file, as in migrations.apply.
            with connection.transaction():
                for _, statement in migrations.statements(migration.sql):
                    try:
                        with connection.transaction():
                            connection.execute(statement.encode())
                    except already_there:
                        pass
                    except psycopg.Error as exc:
                        raise DifferentVersionError(f"{migration.file_name}: {exc}") from exc


def rewritten(dsn: str) -> str:
    """Return a digest of some chunks as the triggers of the database write them.

    A column that is null counts as one that is not there.
    """
    with psycopg.connect(dsn) as connection:
        connection.execute("create temporary table rewritten (like public.knowledge_chunks)")
        for name, function in connection.execute(TRIGGERS).fetchall():
            connection.execute(
                sql.SQL(
                    "create trigger {} before insert on pg_temp.rewritten"
                    " for each row execute function {}()"
                ).format(sql.Identifier(name), sql.SQL(function))
            )
        columns = sql.SQL(", ").join(
            map(sql.Identifier, column(dsn, COLUMNS, ["public.knowledge_chunks"]))
        )
        connection.execute(
            sql.SQL(
                "insert into pg_temp.rewritten ({}) select {} from public.knowledge_chunks"
                " order by id limit {}"
            ).format(columns, columns, REWRITTEN_ROWS)
        )
        found = connection.execute(REWRITTEN).fetchone()
        connection.rollback()
    assert found is not None
    return str(found[0])

"""The speed and the answers of one version of the SQL beside another's, measured in turns.

A version is the folder migrations/ of a git revision or of a directory. One embedded server holds
three databases for each size: `corpus`, which the first run loads, and a copy of it for each
version. A copy has the rows, the vector index and the statistics of `corpus`, byte for byte; only
functions, views, types, triggers and policies are dropped and made again by the version's
migrations. So the versions differ in nothing but their SQL. This needs a version with the same
tables and indexes as `corpus`, whose triggers compute the same columns; both are checked. A version
that differs is loaded from the rows of `corpus` through its own triggers instead. That takes
minutes, its vector index is another graph, and a line on standard error says so.

The corpus and the questions are those of benchmarks/features.py. Kinds: `natural` is a question
with text and embedding; `filtered` adds filter_type (12 % of the rows), `metadata` a condition on
metadata (10 %); `text_only` and `vector_only` leave out the embedding or the text. The arguments in
FIXED are passed, so that another default changes nothing; one that a version does not have is left
out for both.

Each round opens a new connection to each copy, warms it up, and asks every question of every kind
on both, first one and then the other in alternation. A question's time is the median of its rounds.
ratio is p50 of `after` divided by p50 of `before`; its 95 % interval is from a bootstrap over
questions and rounds, in which the two times of a question and round stay together. Same ids: the
questions with the same ids in the same order. Same scores: those whose scores differ by at most
1e-9, too. The exit code is 1 when an interval does not end below --limit.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from benchmarks import features, scratch
from benchmarks.corpus import EmbeddingSpace
from benchmarks.features import Connection, Library, Question, Row, milliseconds
from benchmarks.loading import said
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres, apply_prelude

ROOT = Path(__file__).parents[1]
# ANALYZE would draw another sample in one of the copies.
SETTINGS = {**scratch.SETTINGS, "autovacuum": "off"}
SPACE_SEED, QUERY_SEED = 5, 6
WARM_UP = 10  # calls on a new connection: PL/pgSQL settles on a plan after five
RESAMPLES = 2000
CLOSE = 1e-9
SCORES = ("rrf_score", "similarity", "text_score")
KINDS = ("natural", "filtered", "metadata", "text_only", "vector_only")
FIXED: Row = {
    "match_count": features.MATCH_COUNT,
    "match_threshold": 0.0,
    "vector_weight": 1.0,
    "text_weight": 1.0,
    "search_mode": "websearch",
    "pool_size": 50,
    "rrf_k": 60.0,
}
Times = NDArray[np.float64]

ARGUMENTS = """
select unnest(function.proargnames[:function.pronargs]) as name
  from pg_proc as function
 where function.oid = 'public.hybrid_search_knowledge_chunks'::regproc
"""
# What the migrations make beside tables and indexes. Triggers and policies go with their functions.
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
         (to_jsonb(chunk) - 'created_at' - 'updated_at')::text, ' ' order by chunk.id
       )) as digest
  from pg_temp.rewritten as chunk
"""
REWRITTEN_ROWS = 200
COPIED_STATISTICS = ("corpus_statistics", "lexeme_statistics")


class DifferentTablesError(Exception):
    """A version cannot take over the rows of another; the text says why."""


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
        found = migrations.find(directory)
        if not found:
            raise SystemExit(f"there are no migrations in {directory}")
        text = "".join(f"{one.file_name}\n{one.sql}\n" for one in found)
        return cls(given, directory, hashlib.sha256(text.encode()).hexdigest())


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
        migrations.apply(dsn, dimensions=self.space.dimensions, directory=version.directory)
        with psycopg.connect(dsn, autocommit=True) as connection:
            features.load(connection, self.library, self.space, self.chunks)
        self._write_note(self.corpus, wanted)
        said(f"loaded {self.chunks:,} chunks in {time.perf_counter() - begin:.0f} s")

    def copy(self, role: str, version: Version) -> str:
        """Return the DSN of a copy of the corpus with a version's SQL; an earlier run's is kept."""
        name = f"{role}_{self.chunks}"
        dsn = self.server.dsn(name)
        wanted = {"migrations": version.digest, "corpus": self._note(self.corpus)}
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
        except DifferentTablesError as exc:
            said(
                f"{role}, {version.name}: {exc}. Its rows are loaded anew, so its vector index is"
                " another graph: a few answers can differ for this reason alone."
            )
            how = "loaded"
            self._create(name)
            migrations.apply(dsn, dimensions=self.space.dimensions, directory=version.directory)
            self._load_rows(dsn)
            self._copy_statistics(dsn)
        self._write_note(name, wanted)
        said(f"{role}, {version.name}: {how} in {time.perf_counter() - begin:.0f} s")
        return dsn

    def _check_objects(self, dsn: str, version: Version) -> None:
        fresh = f"fresh_{self.chunks}"
        self._create(fresh)
        fresh_dsn = self.server.dsn(fresh)
        migrations.apply(fresh_dsn, dimensions=self.space.dimensions, directory=version.directory)
        expected, present = (set(column(one, OBJECTS)) for one in (fresh_dsn, dsn))
        views = column(fresh_dsn, VIEWS)
        self._drop(fresh)
        if expected != present:
            differing = sorted(expected ^ present)[0].splitlines()[0]
            raise DifferentTablesError(f"tables or indexes differ: {differing}")
        # A migration may make a view only where it has just made an index.
        missing = [view for view in views if view not in column(dsn, VIEWS)]
        with psycopg.connect(dsn, autocommit=True) as connection:
            for view in missing:
                connection.execute(view.encode())

    def _check_triggers(self, dsn: str) -> None:
        try:
            digests = {rewritten(one) for one in (dsn, self.server.dsn(self.corpus))}
        except psycopg.Error as exc:
            raise DifferentTablesError(f"its triggers cannot be compared: {exc}") from exc
        if len(digests) > 1:
            raise DifferentTablesError("its triggers compute other columns of a chunk")

    def _load_rows(self, dsn: str) -> None:
        """Load what the writers of the corpus gave, in the same order."""
        tables = {
            "public.knowledge_sources": None,
            "public.knowledge_documents": None,
            "public.knowledge_chunks": ("id", *features.CHUNK_COLUMNS),
        }
        with psycopg.connect(dsn, autocommit=True) as connection:
            with features.filled_at_once(connection):
                for table, columns in tables.items():
                    self._copy_rows(connection, table, columns)
            connection.execute("vacuum analyze")
            connection.execute("select public.refresh_knowledge_statistics()")

    def _copy_statistics(self, dsn: str) -> None:
        """Give a copy the sampled figures of the corpus: every sample is another."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("select public.refresh_knowledge_statistics()")
            for name in COPIED_STATISTICS:
                table = f"knowledge_internal.{name}"
                own = column(dsn, COLUMNS, [table])
                if own and own == column(self.server.dsn(self.corpus), COLUMNS, [table]):
                    connection.execute(sql.SQL("delete from {}").format(qualified(table)))
                    self._copy_rows(connection, table, None)
                else:
                    said(f"{table} differs from that of the corpus: scores can differ a little")

    def _copy_rows(self, connection: Connection, table: str, columns: Sequence[str] | None) -> None:
        source = self.server.dsn(self.corpus)
        chosen = sql.SQL(", ").join(
            map(sql.Identifier, columns or column(source, COLUMNS, [table]))
        )
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


def qualified(table: str) -> sql.Identifier:
    """Return schema.table as an identifier."""
    return sql.Identifier(*table.split("."))


def column(dsn: str, statement: LiteralString, arguments: Sequence[Any] = ()) -> list[Any]:
    """Return the first column of a statement's rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [row[0] for row in connection.execute(statement, arguments or None).fetchall()]


def install(dsn: str, version: Version, dimensions: int) -> None:
    """Replace all but tables and indexes by what the migrations of a version make.

    Raises DifferentTablesError when a migration does not apply to these tables.
    """
    already_there = (
        psycopg.errors.DuplicateTable,
        psycopg.errors.DuplicateColumn,
        psycopg.errors.DuplicateObject,
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(STRIP)
        for migration in migrations.render(migrations.find(version.directory), dimensions):
            # As in a real migration, settings of a file end with it.
            with connection.transaction():
                for _, statement in migrations.statements(migration.sql):
                    try:
                        with connection.transaction():
                            connection.execute(statement.encode())
                    except already_there:
                        pass
                    except psycopg.Error as exc:
                        raise DifferentTablesError(f"{migration.file_name}: {exc}") from exc


def rewritten(dsn: str) -> str:
    """Return a digest of some chunks as the triggers of the database write them."""
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


def calls(questions: Sequence[Question], kind: str, arguments: Row) -> list[tuple[Any, Row]]:
    """Return the statement and the arguments of each question of a kind."""
    made = []
    for question in questions:
        given: Row = {
            "query_embedding": question.embedding,
            "query_text": question.text,
            **arguments,
        }
        if kind == "filtered":
            given["filter_type"] = "task"
        elif kind == "metadata":
            given["filters"] = Jsonb([features.condition("metadata.year", "eq", 2019)])
        elif kind == "text_only":
            del given["query_embedding"]
        elif kind == "vector_only":
            del given["query_text"]
        statement = sql.SQL("select * from public.hybrid_search_knowledge_chunks({})").format(
            sql.SQL(", ").join(
                sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name))
                for name in given
            )
        )
        made.append((statement.as_string(), given))
    return made


def answer(connection: Connection, call: tuple[Any, Row]) -> list[Row]:
    """Make a call and return its rows."""
    return connection.execute(*call, prepare=False).fetchall()


def compare(before: Sequence[Row], after: Sequence[Row]) -> tuple[bool, bool]:
    """Tell whether two answers have the same ids in the same order, and the same scores too."""
    if [row["id"] for row in before] != [row["id"] for row in after]:
        return False, False
    close = all(
        one[name] == other[name]
        or (None not in (one[name], other[name]) and abs(one[name] - other[name]) <= CLOSE)
        for one, other in zip(before, after, strict=True)
        for name in SCORES
    )
    return True, close


def measure(
    dsns: tuple[str, str], kinds: Mapping[str, list[tuple[Any, Row]]], rounds: int
) -> tuple[dict[str, Times], dict[str, list[tuple[bool, bool]]]]:
    """Return for each kind the milliseconds by version, round and question, and what is the same.

    A first round, which is not measured, brings the pages into memory and compares the answers.
    """
    times = {kind: np.zeros((2, rounds, len(asked))) for kind, asked in kinds.items()}
    same: dict[str, list[tuple[bool, bool]]] = {}
    for one in range(-1, rounds):
        with ExitStack() as stack:
            opened: dict[int, Connection] = {}
            for which in turns(one):
                connection = psycopg.connect(dsns[which], autocommit=True, row_factory=dict_row)
                opened[which] = stack.enter_context(connection)
            for kind, asked in kinds.items():
                if one < 0:
                    same[kind] = [
                        compare(answer(opened[0], call), answer(opened[1], call)) for call in asked
                    ]
                    continue
                for number in range(WARM_UP):
                    for which in turns(number):
                        answer(opened[which], asked[number % len(asked)])
                for number, call in enumerate(asked):
                    for which in turns(one + number):
                        connection = opened[which]
                        times[kind][which, one, number] = milliseconds(
                            lambda _, to=connection, what=call: answer(to, what), number
                        )
    return times, same


def turns(number: int) -> tuple[int, int]:
    """Return the order of the versions: another one each time."""
    return (1, 0) if number % 2 else (0, 1)


def ratio_of(times: Times) -> float:
    """Return p50 of the second version divided by p50 of the first."""
    before, after = np.median(np.median(times, axis=1), axis=1)
    return float(after / before)


def interval(times: Times, seed: int = 1) -> tuple[float, float]:
    """Return the 95 % interval of ratio_of, from a percentile bootstrap.

    Rounds are drawn as well as questions: connections differ from each other, too.
    """
    random = np.random.default_rng(seed)
    _, rounds, questions = times.shape
    ratios = [
        ratio_of(
            times[:, random.integers(rounds, size=rounds)][
                :, :, random.integers(questions, size=questions)
            ]
        )
        for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


@contextmanager
def running(keep: Path | None, major: int) -> Iterator[EmbeddedPostgres]:
    """Run the server in the folder, or in one that is gone afterwards.

    Raises SystemExit when the server of the folder runs already.
    """
    with ExitStack() as stack:
        if keep is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            place = keep
            place.mkdir(parents=True, exist_ok=True)
        # As root the server runs as another account, which has to pass through.
        place.chmod(0o711)
        server = EmbeddedPostgres(place / f"postgres-{major}", major, SETTINGS)
        if server.status == "running":
            raise SystemExit(f"the server in {server.directory} runs: somebody else uses it")
        with server:
            yield server
        if keep is None:
            server.remove()


def main() -> None:
    """Print a row for each size and kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, metavar="REVISION_OR_DIRECTORY")
    parser.add_argument("--after", default=str(ROOT / "migrations"), help="default: this checkout")
    parser.add_argument("--chunks", type=int, nargs="+", default=[10_000, 200_000])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS[:2] + KINDS[3:4])
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--major", type=int, default=18, choices=(18, 17, 16))
    parser.add_argument("--fusion", default="auto")
    parser.add_argument("--limit", type=float, default=1.05, help="what an interval ends below")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="of the loaded server")
    options = parser.parse_args()

    library = Library.read()
    space = EmbeddingSpace(options.dimensions, seed=SPACE_SEED)
    questions = library.questions(space, options.questions, seed=QUERY_SEED)
    print(
        "| chunks | kind | before p50 | p95 | after p50 | p95 | ratio | 95 % interval"
        f" | below {options.limit} | same ids | same scores |\n" + "|---" * 11 + "|",
        flush=True,
    )
    kept = True
    with ExitStack() as stack:
        versions = [Version.open(given, stack) for given in (options.before, options.after)]
        server = stack.enter_context(running(options.keep, options.major))
        for chunks in options.chunks:
            store = Store(server, library, space, chunks)
            store.load(versions[0])
            before, after = (
                store.copy(role, version)
                for role, version in zip(("before", "after"), versions, strict=True)
            )
            common = set(column(before, ARGUMENTS)) & set(column(after, ARGUMENTS))
            wanted = {**FIXED, "fusion": options.fusion}
            if missing := sorted(set(wanted) - common):
                said(f"not passed, because a version does not have it: {', '.join(missing)}")
            arguments = {name: value for name, value in wanted.items() if name in common}
            kinds = {kind: calls(questions, kind, arguments) for kind in options.kinds}
            times, same = measure((before, after), kinds, options.rounds)
            for kind in kinds:
                low, high = interval(times[kind])
                kept = kept and high < options.limit
                medians = np.median(times[kind], axis=1)
                ids, scores = (sum(both) for both in zip(*same[kind], strict=True))
                cells = [
                    f"{chunks:,}",
                    kind,
                    *(f"{np.percentile(one, p):.2f}" for one in medians for p in (50, 95)),
                    f"{ratio_of(times[kind]):.3f}",
                    f"{low:.3f} to {high:.3f}",
                    "yes" if high < options.limit else "no",
                    f"{ids}/{len(questions)}",
                    f"{scores}/{len(questions)}",
                ]
                print(f"| {' | '.join(cells)} |", flush=True)
    if not kept:
        sys.exit(1)


if __name__ == "__main__":
    main()

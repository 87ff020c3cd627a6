"""Writing the path to the state: `python -m tools.migrations --help`.

`supabase/schemas/` is the state of the database, which people edit; `migrations/` is the path that
leads there. Both are built on a throw-away server. The Supabase CLI's pg-delta writes the
difference, and a comparison of the two catalogues (`second_brain.database.catalogue`) finds what
pg-delta does not see.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from second_brain import sql_modules
from second_brain.database import catalogue, migrations
from second_brain.database.catalogue import Catalogue, Difference, Manifest
from second_brain.database.embedded import EmbeddedPostgres, apply_prelude, installed_majors
from second_brain.errors import ConfigurationError, SecondBrainError
from tools import lists, sql_objects, throw_away

ROOT = Path(__file__).parents[1]
HAND_WRITTEN = "-- Written by hand: what a difference of two databases does not show."

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NUMBERED = re.compile(r"(\d+)_(.*)")
# The owner has every right already, and is not called postgres everywhere.
_OWNERS_GRANT = re.compile(r'(GRANT|REVOKE)\b.*\b(TO|FROM) "postgres"', re.DOTALL)
# A project has its own: a migration that changes it would undo that.
_ON_PROJECTS_FUNCTION = re.compile(
    r"function " + re.escape(catalogue.REPLACED_BY_PROJECT.partition(" ")[2]), re.IGNORECASE
)
_EVERY_PRIVILEGE = re.compile(
    r"GRANT DELETE, INSERT, (MAINTAIN, )?REFERENCES, SELECT, TRIGGER, TRUNCATE, UPDATE ON"
)
_CREATE = re.compile(
    r"""create (?:or replace )?(?P<kind>function|trigger|policy) (?P<name>(?:"?\w+"?\.)?"?\w+"?)""",
    re.IGNORECASE,
)
_DIMENSION = re.compile(r"\bextensions\.(?:vector|halfvec)\(\d+\)")
_STORAGE = {"p": "plain", "e": "external", "m": "main", "x": "extended"}
_ON_A_TABLE = ("column", "constraint", "trigger", "policy", "rule", "table")

_TABLES = """
select format('%I.%I', namespace.nspname, class.relname),
       array(
         select attribute.attname
           from pg_catalog.pg_attribute as attribute
           left join pg_catalog.pg_attrdef as standard
             on standard.adrelid = attribute.attrelid and standard.adnum = attribute.attnum
          where attribute.attrelid = class.oid
            and attribute.attnum > 0
            and not attribute.attisdropped
            and attribute.attidentity = ''
            and attribute.attgenerated = ''
            and coalesce(pg_get_expr(standard.adbin, standard.adrelid), '') !~ '\\('
          order by attribute.attnum
       )
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where namespace.nspname in ('public', 'knowledge_internal')
   and class.relkind in ('r', 'p')
 order by 1
"""
_ROWS = "select {columns} from {table} order by {columns}"


@dataclass(frozen=True)
class Checkout:
    """Where state, path, manifest and the list of frozen files are, under a root."""

    root: Path = ROOT

    @property
    def state(self) -> Path:
        """The folder that people edit."""
        return self.root / "supabase" / "schemas"

    @property
    def path(self) -> Path:
        """The folder of the migrations."""
        return self.root / "migrations"

    @property
    def manifest(self) -> Path:
        """What `doctor` compares a database with."""
        package = self.root / "backend" / "src" / "second_brain" / "database"
        return package / catalogue.MANIFEST

    @property
    def objects(self) -> Path:
        """What clients and errors need to know of the SQL."""
        return self.manifest.parents[1] / sql_modules.OBJECTS

    @property
    def released(self) -> Path:
        """The digests of the released files; absent before the first release."""
        return self.root / "tools" / "released.sha256"


@dataclass(frozen=True)
class Databases:
    """Makes databases with the prelude on an embedded server."""

    server: EmbeddedPostgres

    def empty(self, name: str) -> str:
        """Make an empty database, or make it anew, and return its owner's DSN."""
        with psycopg.connect(self.server.admin_dsn(), autocommit=True) as connection:
            identifier = sql.Identifier(name)
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(identifier)
            )
            connection.execute(sql.SQL("create database {} owner postgres").format(identifier))
        with psycopg.connect(self.server.admin_dsn(name), autocommit=True) as connection:
            apply_prelude(connection)
        return self.server.dsn(name)

    def build(self, name: str, directory: Path, modules: Collection[str] | None = None) -> str:
        """Make a database from the SQL files of a folder and return its owner's DSN.

        From all files, or from those of core and of these modules, in the order of their numbers.
        """
        dsn = self.empty(name)
        known = migrations.modules(directory)
        chosen = None if modules is None else [one for one in modules if one in known]
        migrations.apply(dsn, directory=directory, modules=chosen)
        return dsn

    def build_in_turn(self, name: str, directory: Path, modules: Collection[str]) -> str:
        """Make a database from the files of core, and then from those of these modules."""
        dsn = self.build(name, directory, ())
        migrations.apply(dsn, directory=directory, modules=modules)
        return dsn

    def copy(self, name: str, template: str) -> str:
        """Make a database as a copy of another one, or make it anew, and return its owner's DSN."""
        with psycopg.connect(self.server.admin_dsn(), autocommit=True) as connection:
            copied = sql.Identifier(name)
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(copied))
            connection.execute(
                sql.SQL("create database {} template {} owner postgres").format(
                    copied, sql.Identifier(template)
                )
            )
        return self.server.dsn(name)


@contextmanager
def throw_away_server(major: int | None = None) -> Iterator[EmbeddedPostgres]:
    """Run an embedded server in a temporary folder: the oldest version here, unless one is given.

    What the oldest version takes, the newer ones take too.
    """
    place = throw_away.folder()
    server = EmbeddedPostgres(
        place / "postgres", major or min(installed_majors()), throw_away.SETTINGS
    )
    try:
        with server:
            yield server
    finally:
        server.remove()
        place.rmdir()


def supabase_cli() -> str | None:
    """Find the Supabase CLI: SUPABASE_CLI, node_modules/.bin, PATH; None where it is absent."""
    installed = ROOT / "node_modules" / ".bin" / "supabase"
    return os.environ.get("SUPABASE_CLI") or (
        str(installed) if installed.exists() else shutil.which("supabase")
    )


def pg_delta(old: str, new: str) -> str:
    """Return the SQL that leads from one database to another, according to the Supabase CLI."""
    program = supabase_cli()
    if program is None:
        raise ConfigurationError("the Supabase CLI is absent", remedy="Run `make cli`.")
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "difference.sql"
        done = subprocess.run(  # noqa: S603
            [
                *(program, "db", "diff", "--use-pg-delta", "--from", old, "--to", new),
                *("--output", str(file), "--workdir", home),
            ],
            # A home of its own: it must not find a login or leave settings behind.
            env={**os.environ, "HOME": home, "SUPABASE_TELEMETRY_DISABLED": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:
            raise ConfigurationError(
                f"supabase db diff failed: {(done.stderr or done.stdout).strip()}",
                remedy="Correct what it says; `make cli` installs the version that is known.",
            )
        return file.read_text("utf-8").strip() if file.exists() else ""


def read(dsn: str) -> Catalogue:
    """Read the definition of a database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return catalogue.read(connection)


def rows(dsn: str) -> dict[str, dict[str, Any]]:
    """Read the rows that a fresh build has, by the statement that inserts each.

    Columns that the database fills in (keys, times) are left out.
    """
    found = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table, columns in connection.execute(_TABLES).fetchall():
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            query = sql.SQL(_ROWS).format(columns=names, table=sql.SQL(table))
            for values in connection.execute(query).fetchall() if columns else []:
                literals = sql.SQL(", ").join(map(sql.Literal, values))
                statement = sql.SQL(
                    "insert into {} ({}) values ({}) on conflict do nothing"
                ).format(sql.SQL(table), names, literals)
                found[statement.as_string(connection)] = {
                    "delete": sql.SQL("delete from {} where ({}) is not distinct from ({})")
                    .format(sql.SQL(table), names, literals)
                    .as_string(connection)
                }
    return found


def differences(path: str, state: str) -> list[str]:
    """Describe how the database of the path is not that of the state, rows included."""
    told = [str(one) for one in catalogue.compare(read(state), read(path))]
    there, wanted = rows(path), rows(state)
    told += [f"row missing: {one}" for one in wanted if one not in there]
    told += [f"row left over: {one}" for one in there if one not in wanted]
    return told


def write_baseline(checkout: Checkout, databases: Databases) -> list[Path]:
    """Write the path anew from the state, file by file, and the manifest.

    Raises ConfigurationError once a migration is frozen.
    """
    if frozen(checkout):
        raise ConfigurationError(
            "migrations are released: the path is no longer rewritten",
            remedy="Edit supabase/schemas/ and run `make migration NAME=what_it_does`.",
        )
    wanted = {}
    for file in sorted(checkout.state.rglob("*.sql"), key=lambda file: file.name):
        match = _NUMBERED.fullmatch(file.stem)
        if match is None:
            raise ConfigurationError(
                f"{file} has no number", remedy="Name it as the others: NN_subject.sql."
            )
        name = f"{int(match[1]):03}_{match[2]}"
        source = file.read_text("utf-8")
        one = migrations.Migration(match[1], match[2], source)
        # `supabase db push` takes the files of the folder: core, as `init` without modules writes.
        place = f"{one.module}/{name}.sql" if one.module else f"{name}.sql"
        wanted[place] = _from_state(file.relative_to(checkout.state).as_posix(), name, source)
    for orphan in [*checkout.path.rglob("*.sql")]:
        if orphan.relative_to(checkout.path).as_posix() not in wanted:
            orphan.unlink()
            if orphan.parent != checkout.path and not any(orphan.parent.iterdir()):
                orphan.parent.rmdir()
    written = []
    for place, text in wanted.items():
        target = checkout.path / place
        target.parent.mkdir(exist_ok=True)
        if not target.exists() or target.read_text("utf-8") != text:
            target.write_text(text, "utf-8")
            written.append(target)
    write_manifest(checkout, databases)
    return written


def _from_state(source: str, name: str, text: str) -> str:
    """Return the text with a line at the end of its header that says where to edit it."""
    lines = text.splitlines(keepends=True)
    header = next((at for at, line in enumerate(lines) if not line.startswith("--")), len(lines))
    if header and (named := re.match(r"-- \w+:", lines[0])):
        lines[0] = f"-- {name}:" + lines[0][named.end() :]
    note = f"-- Written from supabase/schemas/{source} by `make baseline`: edit that file.\n"
    return "".join([*lines[:header], note, *lines[header:]])


def manifest(checkout: Checkout, databases: Databases) -> Manifest:
    """Build core, and core with each module, and return what `doctor` compares with."""
    core = catalogue.portable(read(databases.build("core", checkout.state, ())))
    modules = {}
    for module in (
        *migrations.modules(checkout.state),
        *migrations.needing_extensions(checkout.state),
    ):
        dsn = databases.copy("with_module", "core")
        migrations.apply(dsn, directory=checkout.state, modules=[module])
        modules[module] = catalogue.added(core, catalogue.portable(read(dsn)))
    return Manifest(core, modules)


def write_manifest(checkout: Checkout, databases: Databases) -> None:
    """Write the manifest of the state, and what clients need of it."""
    written = manifest(checkout, databases)
    checkout.manifest.write_text(written.dump() + "\n", "utf-8")
    checkout.objects.write_text(sql_objects.dump(written) + "\n", "utf-8")


@dataclass(frozen=True)
class Written:
    """What `write_migration` did: the files, none without a difference, and what is left to do."""

    files: Sequence[Path]
    left: Sequence[str]


def write_migration(
    checkout: Checkout, databases: Databases, name: str, purpose: str | None = None
) -> Written:
    """Write the next migrations from the differences between path and state, and the manifest.

    A migration is of core or of one module, so each of them that differs has its own file. What
    pg-delta does not write is written after the mark of the hand-written part, as far as it is
    known how. `left` describes what still differs once the files are applied. Raises
    ConfigurationError for a name that is no file name, and MigrationError when a file does not
    apply; it is kept then.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"NAME must be lower-case letters, digits and underscores, not {name!r}",
            remedy="Say what it does: make migration NAME=add_search_prefix",
        )
    write_manifest(checkout, databases)
    files: list[Path] = []
    left: list[str] = []
    for module in (None, *migrations.modules(checkout.state)):
        about = purpose or name.replace("_", " ")
        written = _write_part(checkout, databases, module, name, about, left)
        files += written.files
        left += written.left
    return Written(files, left)


def _write_part(
    checkout: Checkout,
    databases: Databases,
    module: str | None,
    name: str,
    purpose: str,
    known: Collection[str],
) -> Written:
    """Write the migration of core, or of a module: what core with the module still lacks.

    `known` is what the migration of core has left.
    """
    modules = () if module is None else (module,)
    state = databases.build("state", checkout.state, modules)
    # In the order of the numbers, as an install that has the module: core's new migration may have
    # replaced a function that the module replaces too.
    path = databases.build("path", checkout.path, modules)
    before, wanted = read(path), read(state)
    generated = pg_delta(path, state)
    statements, withheld = _portable_statements(generated, _sources(checkout, module))
    # pg-delta sets check_function_bodies before a function, which may be one that is not taken.
    changes = [one for one in (*statements, *withheld) if not one.lower().startswith("set ")]
    if not changes and set(differences(path, state)) <= set(known):
        return Written([], [])
    number = 1 + max((int(one.version) for one in migrations.find(checkout.path)), default=0)
    stem = "_".join([f"{number:03}", name, *modules])
    file = checkout.path.joinpath(*modules) / f"{stem}.sql"
    file.parent.mkdir(exist_ok=True)
    header = _header(stem, purpose, module, before, wanted)
    first = "\n\n".join([header, *statements]) + "\n"
    file.write_text(first, "utf-8")
    migrations.apply(path, directory=checkout.path, modules=modules)
    by_hand = _by_hand(path, state, known)
    if by_hand or withheld:
        comments = [_commented(one) for one in withheld]
        file.write_text("\n\n".join([first.rstrip(), HAND_WRITTEN, *comments, *by_hand]) + "\n")
    with file.open("a") as end:
        end.write("\nnotify pgrst, 'reload schema';\n")
    path = databases.build("path", checkout.path, modules)
    left = differences(path, state)
    if remaining := pg_delta(path, state):
        left.append(f"according to pg-delta:\n{remaining}")
    later = databases.build_in_turn("path", checkout.path, modules)
    left += [one for one in differences(later, state) if one not in left]
    return Written([file], [one for one in left if one not in known])


def _portable_statements(
    generated: str, sources: Mapping[tuple[str, str], str]
) -> tuple[list[str], list[str]]:
    """Return the statements to take, and those that only fit the default dimension.

    A function, a trigger and a policy are written as in the state: that is what people review, and
    a long condition that Postgres prints is not always what it was parsed from.
    """
    taken: list[str] = []
    withheld: list[str] = []
    for _, statement in migrations.statements(generated):
        if _OWNERS_GRANT.fullmatch(statement) or _ON_PROJECTS_FUNCTION.search(
            statement.replace('"', "")
        ):
            continue
        if made := _CREATE.match(statement):
            statement = sources.get(_key(made), statement)
        statement = _EVERY_PRIVILEGE.sub("GRANT ALL ON", statement)
        (withheld if _DIMENSION.search(statement) else taken).append(f"{statement};")
    return taken, withheld


def _sources(checkout: Checkout, module: str | None) -> dict[tuple[str, str], str]:
    """Find the statements of the state that create a function, a trigger or a policy.

    What both core and the module create is as in the module.
    """
    found: dict[tuple[str, str], dict[str | None, list[str]]] = {}
    begins_line = re.compile(f"^{_CREATE.pattern}", re.IGNORECASE | re.MULTILINE)
    for one in migrations.find(checkout.state):
        for _, statement in migrations.statements(one.sql) if one.module in (None, module) else ():
            if made := begins_line.search(statement):
                # Without the comments before it. What exists is replaced.
                text = statement[made.start() :]
                text = re.sub("^create function", "create or replace function", text)
                found.setdefault(_key(made), {}).setdefault(one.module, []).append(text)
    last = {key: list(texts.values())[-1] for key, texts in found.items()}
    return {key: texts[0] for key, texts in last.items() if len(texts) == 1}


def _key(made: re.Match[str]) -> tuple[str, str]:
    return made["kind"].lower(), made["name"].replace('"', "")


def _commented(statement: str) -> str:
    lines = "\n".join(f"-- {line}".rstrip() for line in statement.splitlines())
    return f"-- Not for every dimension; write it so that it reads the column's:\n{lines}"


def _header(
    name: str, purpose: str, module: str | None, before: Catalogue, after: Catalogue
) -> str:
    found = catalogue.compare(after, before)
    words = {"missing": "Adds", "different": "Changes", "left over": "Drops"}
    told = [f"-- {name}: {purpose}."]
    if module is not None:
        told.append(f"-- Module: {module}.")
    for change, word in words.items():
        named = [f"{one.kind} {_without_arguments(one)}" for one in found if one.change == change]
        told += _wrapped(word, sorted(set(named)))
    tables = sorted(
        {
            table
            for one in found
            if (table := _table(one, before, after)) and f"table {table}" in before
        }
    )
    if tables:
        told += _wrapped("Locks, until it commits", [f"table {table}" for table in tables])
    else:
        told.append("-- Locks no table that exists.")
    return "\n".join(told)


def _without_arguments(difference: Difference) -> str:
    return difference.name.partition("(")[0]


def _wrapped(word: str, names: Sequence[str]) -> Iterator[str]:
    if not names:
        return
    line = f"-- {word}:"
    for at, name in enumerate(names):
        part = f" {name}{',' if at + 1 < len(names) else '.'}"
        if len(line) + len(part) > 100:
            yield line
            line = "--  "
        line += part
    yield line


def _table(difference: Difference, before: Catalogue, after: Catalogue) -> str | None:
    if difference.kind == "index":
        definition = after.get(difference.object) or before[difference.object]
        return str(definition["table"])
    if difference.kind in _ON_A_TABLE:
        return ".".join(difference.name.split(".")[:2])
    return None


def _by_hand(path: str, state: str, known: Collection[str]) -> list[str]:
    """Write what still leads from one database to the other, as far as it is known how."""
    statements = []
    for one in catalogue.compare(read(state), read(path)):
        if str(one) in known:
            continue
        statements += _settings(one) or [f"-- To do: {one}".replace("\n", "\n--   ")]
    there, wanted = rows(path), rows(state)
    statements += [f"{there[one]['delete']};" for one in there if one not in wanted]
    statements += [f"{one};" for one in wanted if one not in there]
    return statements


def _settings(difference: Difference) -> list[str]:
    properties = {key: wanted for key, (wanted, _) in difference.properties.items()}
    if difference.change != "different":
        return []
    if difference.kind == "column" and properties.keys() <= {"storage", "statistics"}:
        table, _, column = difference.name.rpartition(".")
        alter = f"alter table {table} alter column {column}"
        statements = []
        if "storage" in properties:
            statements.append(f"{alter} set storage {_STORAGE[properties['storage']]};")
        if "statistics" in properties:
            target = properties["statistics"]
            statements.append(f"{alter} set statistics {-1 if target is None else target};")
        return statements
    if difference.kind == "table" and properties.keys() <= {"options", "toast_options"}:
        statements = []
        for key, prefix in (("options", ""), ("toast_options", "toast.")):
            wanted, found = (
                dict(option.split("=", 1) for option in options or [])
                for options in difference.properties.get(key, ([], []))
            )
            reset = ", ".join(prefix + name for name in found if name not in wanted)
            put = ", ".join(f"{prefix}{name} = {value}" for name, value in wanted.items())
            if reset:
                statements.append(f"alter table {difference.name} reset ({reset});")
            if put:
                statements.append(f"alter table {difference.name} set ({put});")
        return statements
    return []


def frozen(checkout: Checkout) -> dict[str, str]:
    """Read the digests of the released files; none before the first release."""
    if not checkout.released.exists():
        return {}
    lines = checkout.released.read_text("utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines if line)}


def freeze(checkout: Checkout) -> list[str]:
    """Record the digest of every migration and return the names that are new in the list.

    Raises ConfigurationError when a file that was released before has changed.
    """
    if changed := changed_since_release(checkout):
        raise ConfigurationError(
            f"released migrations have changed: {', '.join(changed)}",
            remedy="Restore them; a change is a new file, by `make migration`.",
        )
    known = frozen(checkout)
    files = {
        file.relative_to(checkout.path).as_posix(): file
        for file in sorted(checkout.path.rglob("*.sql"), key=lambda file: file.name)
    }
    text = "".join(f"{_digest(file)}  {name}\n" for name, file in files.items())
    checkout.released.write_text(text, "utf-8")
    return [name for name in files if name not in known]


def changed_since_release(checkout: Checkout) -> list[str]:
    """List the released migrations that are no longer there or no longer the same."""
    return [
        name
        for name, digest in frozen(checkout).items()
        if not (checkout.path / name).exists() or _digest(checkout.path / name) != digest
    ]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; 1 when something is left to do."""
    parser = argparse.ArgumentParser(prog="python -m tools.migrations", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("baseline", help="write the path anew from the state, before 0.1.0")
    new = commands.add_parser("new", help="write the next migrations from the differences")
    new.add_argument("name", help="what it does, such as add_search_prefix")
    new.add_argument("--purpose", help="the sentence of its first line")
    commands.add_parser("check", help="compare path and state on every version of Postgres here")
    commands.add_parser("freeze", help="record the digests of the released migrations")
    given = parser.parse_args(arguments)
    checkout = Checkout()
    try:
        if given.command == "freeze":
            for name in freeze(checkout):
                print(f"Frozen: {name}")
            return 0
        if given.command == "check":
            return _check(checkout)
        with throw_away_server() as server:
            if given.command == "baseline":
                for file in write_baseline(checkout, Databases(server)):
                    print(f"Wrote {file.relative_to(checkout.root)}")
                left = 0
            else:
                left = _new(checkout, Databases(server), given.name, given.purpose)
            lists.write(server.dsn("core"))
            return left
    except SecondBrainError as exc:
        print(f"{exc}\n{exc.remedy}", file=sys.stderr)
        return 1


def _new(checkout: Checkout, databases: Databases, name: str, purpose: str | None) -> int:
    done = write_migration(checkout, databases, name, purpose)
    if not done.files:
        print("No difference: nothing is written.")
        return 0
    for file in done.files:
        print(f"Wrote {file.relative_to(checkout.root)}")
    if not done.left:
        print("The path leads to the state.")
        return 0
    print("The path does not lead to the state yet:", *done.left, sep="\n\n")
    return 1


def _check(checkout: Checkout) -> int:
    found = 0
    for major in sorted(installed_majors()):
        with throw_away_server(major) as server:
            databases = Databases(server)
            path = databases.build("path", checkout.path)
            state = databases.build("state", checkout.state)
            begun = time.monotonic()
            left = differences(path, state)
            for module in migrations.modules(checkout.state):
                alone = databases.build("alone", checkout.state, [module])
                later = databases.build_in_turn("later", checkout.path, [module])
                left += [f"{module} on core: {one}" for one in differences(later, alone)]
            compared = time.monotonic()
            if remaining := pg_delta(path, state):
                left.append(f"according to pg-delta:\n{remaining}")
            ended = time.monotonic()
        print(
            f"PostgreSQL {major}: {len(left)} differences; catalogues {compared - begun:.2f} s,"
            f" pg-delta {ended - compared:.2f} s",
            *left,
            sep="\n",
        )
        found += len(left)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""The SQL migrations: find, render, apply, and write them into a Supabase project.

`apply` records the same history as `supabase db push`, so both work on one database. `rendering`
has the files for other schemas and dimensions, `condition` says what is there already.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import scalar_row

from second_brain.database import condition, naming, obstacles, pgvector
from second_brain.database.history import (
    CREATE_HISTORY,
    RECORD,
    handed_out_name,
    has_history,
    is_handed_out,
)
from second_brain.database.history import forget as forget
from second_brain.database.history import installed_modules as installed_modules
from second_brain.database.history import pending as pending
from second_brain.database.history import recorded as recorded
from second_brain.database.history import require as require
from second_brain.database.migration_errors import MigrationError as MigrationError
from second_brain.database.migration_errors import ObstacleError as ObstacleError
from second_brain.database.migration_errors import failure
from second_brain.database.obstacles import Obstacle
from second_brain.database.packaged import MODULE
from second_brain.database.packaged import Migration as Migration
from second_brain.database.packaged import chosen as chosen
from second_brain.database.packaged import find as find
from second_brain.database.packaged import find_state as find_state
from second_brain.database.packaged import modules as modules
from second_brain.database.packaged import needing_extensions as needing_extensions
from second_brain.database.packaged import select as select
from second_brain.database.rendering import MAX_DIMENSIONS as MAX_DIMENSIONS
from second_brain.database.rendering import render as render
from second_brain.database.statements import statements as statements
from second_brain.errors import ConfigurationError
from second_brain.services.arguments import Fusion
from second_brain.services.connections import connect

_LOCK = "select pg_advisory_xact_lock(hashtext('second_brain migrations'))"
_READ_DIMENSIONS = """
select attribute.atttypmod
  from pg_catalog.pg_attribute as attribute
 where attribute.attrelid = to_regclass(%s)
   and attribute.attname = 'embedding'
   and not attribute.attisdropped
"""
# Whose tables the install has, if they are of another role, and whether this one may act as it.
_OTHER_OWNER = """
select owner.rolname, pg_has_role(current_user, owner.oid, 'member')
  from pg_catalog.pg_class as class
  join pg_catalog.pg_roles as owner on owner.oid = class.relowner
 where class.oid = to_regclass(%s)
   and owner.rolname <> current_user
"""
# In a file from `init`, which may name another schema for pgvector.
_RENDERED_DIMENSION = re.compile(r"\b(\w+)\.vector\((\d+)\)")
FUSION: Fusion = "auto"
"""The fusion that the commands store in a new install, for searches that name none."""

# Supabase's declarative files hold no rows; the migrations insert them.
_INSERTS = re.compile(r"^insert into [^;]*;\n+", re.MULTILINE)
_DECLARED = "-- Written by `second-brain init --declarative`, which replaces this file.\n"
_QUOTE = "$second_brain$"
_ONE_FILE = """\
-- second-brain for Supabase's SQL editor: core, and these modules: {modules}.
-- Schema {schema}, embeddings of {dimensions} dimensions. It is one transaction.

begin;
"""
_CHECK_ONE_FILE = """\
do $$
begin
  if to_regnamespace('{internals}') is not null then
    raise exception 'second-brain is installed in schema {schema}; nothing was changed'
      using errcode = 'duplicate_schema',
            hint = 'To add modules or a newer version, run `second-brain migrate --with MODULES`, '
                   'or `second-brain init` and `supabase db push`. To install it anew, run '
                   '`second-brain server uninstall` first.';
  end if;
end
$$;

-- The history of the Supabase CLI.
"""
_APPLY_ONE_FILE = """\
create function pg_temp.apply_migration(place integer, name text, statements text) returns void
language plpgsql as $$
begin
  execute statements;
  insert into supabase_migrations.schema_migrations (version, name, statements)
  values (
    to_char(now() at time zone 'utc' - place * interval '1 second', 'YYYYMMDDHH24MISS'),
    name,
    array[btrim(statements, e'\\n')]
  );
end
$$;
"""
_END_ONE_FILE = """\
drop function pg_temp.apply_migration(integer, text, text);

commit;
"""


def stored_dimensions(
    connection: "psycopg.Connection[Any]", schema: str = naming.SCHEMA
) -> int | None:
    """Return the dimension of the embedding column, None if the table does not exist."""
    with connection.cursor(row_factory=scalar_row) as cursor:
        found = cursor.execute(_READ_DIMENSIONS, [f"{schema}.knowledge_chunks"]).fetchone()
    return int(found) if found is not None else None


def apply(
    dsn: str,
    *,
    dimensions: int | None = None,
    directory: Path | None = None,
    schema: str = naming.SCHEMA,
    modules: Collection[str] | None = None,
    fusion: Fusion | None = None,
    progress: Callable[[Migration], None] | None = None,
) -> list[Migration]:
    """Apply the migrations that the install in `schema` does not have yet, and return them.

    These are the migrations of core, of the modules that are installed, and of `modules`. Without
    `modules`, all migrations of a directory are applied.

    Each file runs in a new session, in one transaction with its row in the history: a file that
    fails is rolled back, the files before it stay applied. The history is
    `supabase_migrations.schema_migrations`, or `supabase_migrations.second_brain_<schema>` for
    another schema than public. An advisory lock makes parallel runs wait for each other. Without
    `dimensions` an install keeps its dimension, and a new one gets 1024, as in the files. A new
    install stores `fusion` for searches that name none; None stores nothing, which means rrf.
    `progress` is called before each file.

    Raises MigrationError with the file and the line, ConfigurationError when the database has
    embeddings of another dimension, and InvalidInputError for an invalid schema name.
    """
    naming.check_schema(schema)
    with connect(dsn) as connection:
        found = find(directory)
        if directory is None or modules is not None:
            found = select(found, modules or (), installed_modules(connection, schema))
        stored = stored_dimensions(connection, schema)
        vector = pgvector.installed(connection)
    if stored is not None and dimensions not in (None, stored):
        raise ConfigurationError(
            f"the database has embeddings of {stored} dimensions, not {dimensions}",
            remedy=f"Use --dimensions {stored}; `second-brain corpus reembed start` changes the "
            "model.",
        )
    vector_schema = naming.EXTENSIONS if vector is None else vector.schema
    size = stored if dimensions is None else dimensions
    migrations = render(found, size, schema, vector_schema, fusion)
    applied: list[Migration] = []
    while migration := _apply_next(
        dsn,
        migrations,
        schema,
        None if applied else found,
        progress,
        is_packaged=directory is None,
    ):
        applied.append(migration)
    return applied


def find_obstacles(
    connection: "psycopg.Connection[Any]",
    schema: str = naming.SCHEMA,
    *,
    modules: Collection[str] = (),
) -> list[Obstacle]:
    """List what prevents `apply` in this database; it only reads."""
    naming.check_schema(schema)
    chosen = select(find(), modules, installed_modules(connection, schema))
    return _obstacles(connection, chosen, schema)


def _obstacles(
    connection: "psycopg.Connection[Any]",
    migrations: Sequence[Migration],
    schema: str,
    *,
    is_packaged: bool = True,
) -> list[Obstacle]:
    there = condition.examine(connection, schema, None if is_packaged else migrations)
    if there.state not in ("none", "whole", "newer"):
        return [Obstacle(there.what, there.remedy)]
    try:
        missing = pending(connection, migrations, schema)
    except MigrationError as error:
        return [Obstacle(str(error), error.remedy)]
    if (owner := connection.execute(_OTHER_OWNER, [f"{schema}.knowledge_chunks"]).fetchone()) and (
        not owner[1]
    ):
        return [
            Obstacle(
                f"the install in schema {schema} belongs to {owner[0]}, and this role may not act "
                "as it",
                f"Connect as {owner[0]}.",
            )
        ]
    versions = {one.version for one in missing}
    applied = [one.sql for one in migrations if one.version not in versions]
    return obstacles.find(connection, [one.sql for one in missing], applied, schema)


def init(
    into: Path,
    dimensions: int,
    *,
    schema: str = naming.SCHEMA,
    vector_schema: str | None = None,
    modules: Collection[str] = (),
    fusion: Fusion | None = None,
) -> list[Path]:
    """Write the migrations into a Supabase project's folder and return the files written.

    These are the migrations of core, of `modules`, and of the modules that have a file there.
    The file names have timestamps later than all existing files, and the schema if it is not
    public, so that one project can have several installs. A file of an earlier call is found by its
    name and not written again. `vector_schema` is the schema that has pgvector; the default is that
    of existing files, else `extensions`. The files of a new install store `fusion` for searches
    that name none. Raises ConfigurationError when existing files have another dimension, and
    InvalidInputError for an invalid schema name.
    """
    packaged = select(find(), modules, written_modules(into, schema))
    present = find(into) if into.is_dir() else []
    ours = {handed_out_name(migration, schema) for migration in packaged}
    for one in present:
        for _, stored in _RENDERED_DIMENSION.findall(one.sql) if one.name in ours else ():
            if int(stored) != dimensions:
                raise ConfigurationError(
                    f"{into / one.file_name} has embeddings of {stored} dimensions, "
                    f"not {dimensions}",
                    remedy=(
                        f"Use --dimensions {stored}; or, if these were never pushed, delete them "
                        "and run this again."
                    ),
                )
    vector_schema = vector_schema or written_vector_schema(into, schema)
    migrations = render(packaged, dimensions, schema, vector_schema, fusion)
    # `supabase migration fetch` writes those of `migrate` under their own versions.
    fetched = {(one.version, one.name) for one in packaged} if schema == naming.SCHEMA else set()
    names = {
        handed_out_name(one, schema) if (one.version, one.name) in fetched else one.name
        for one in present
    }
    unwritten = [one for one in migrations if handed_out_name(one, schema) not in names]
    moments = _moments_after([one.version for one in present], len(unwritten))
    written = []
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(
            f"{into} cannot be made: {exc.strerror}",
            remedy="Give --into a folder that exists or can be made, such as supabase/migrations.",
        ) from exc
    for migration in unwritten:
        file = into / f"{next(moments)}_{handed_out_name(migration, schema)}.sql"
        file.write_text(migration.sql, "utf-8")
        written.append(file)
    return written


def next_version(into: Path) -> str:
    """Return a timestamp that sorts after all migrations in a project's folder."""
    present = find(into) if into.is_dir() else []
    return next(_moments_after([one.version for one in present]))


def written_vector_schema(into: Path, schema: str = naming.SCHEMA) -> str:
    """Return the schema of pgvector in the files that `init` wrote; `extensions` without files."""
    for one in find(into) if into.is_dir() else ():
        written = _RENDERED_DIMENSION.search(one.sql) if is_handed_out(one.name, schema) else None
        if written is not None:
            return written[1]
    return naming.EXTENSIONS


def written_modules(into: Path, schema: str = naming.SCHEMA) -> tuple[str, ...]:
    """Name the modules of the files that `init` wrote into a folder, of migrations or the state."""
    found = [MODULE.search(one.read_text("utf-8")) for one in _written(into, schema)]
    return tuple(dict.fromkeys(one[1] for one in found if one))


def _written(into: Path, schema: str) -> list[Path]:
    """List the files that `init` wrote into a folder: their names begin with a time, or do not."""
    prefix = re.escape(naming.handed_out_name(schema, ""))
    ours = re.compile(rf"(?:\d+_)?{prefix}\d+_\w+\.sql")
    files = sorted(into.iterdir()) if into.is_dir() else []
    return [one for one in files if ours.fullmatch(one.name)]


def one_file(
    dimensions: int,
    *,
    schema: str = naming.SCHEMA,
    vector_schema: str = naming.EXTENSIONS,
    modules: Collection[str] = (),
    fusion: Fusion | None = None,
) -> str:
    """Return core and `modules` as one file for Supabase's SQL editor, which is one transaction.

    The migrations are recorded in the history of the Supabase CLI, under the names of `init`. Where
    the install exists, the file changes nothing and raises one error. It stores `fusion` for
    searches that name none. Raises the errors of `init`.
    """
    chosen = render(select(find(), modules), dimensions, schema, vector_schema, fusion)
    names = ", ".join(dict.fromkeys(one.module for one in chosen if one.module)) or "none"
    parts = [
        _ONE_FILE.format(schema=schema, dimensions=dimensions, modules=names),
        _CHECK_ONE_FILE.format(schema=schema, internals=naming.internals(schema)),
        *(f"{create.format(history='schema_migrations')};\n" for create in CREATE_HISTORY),
        _APPLY_ONE_FILE,
    ]
    for place, one in enumerate(chosen):
        parts.append(
            f"select pg_temp.apply_migration({len(chosen) - place}, "
            f"'{handed_out_name(one, schema)}', {_QUOTE}\n"
            f"{one.sql.strip()}\n{_QUOTE});\n"
        )
    return "\n".join([*parts, _END_ONE_FILE])


def declare(
    into: Path,
    dimensions: int,
    *,
    schema: str = naming.SCHEMA,
    vector_schema: str = naming.EXTENSIONS,
    modules: Collection[str] = (),
) -> list[Path]:
    """Write the state into a project's folder of declarative schemas; return the changed files.

    It is the state of core, of `modules`, and of the modules that are declared there already.
    Each subject is a file with the name of its migration, without a timestamp. This package owns
    these files: it overwrites them, and deletes files of subjects that no longer exist. Raises the
    errors of `init`.
    """
    chosen = select(find_state(), modules, written_modules(into, schema))
    texts = {
        f"{naming.handed_out_name(schema, f'{one.version}_{one.name}')}.sql": _DECLARED
        + _INSERTS.sub("", one.sql)
        for one in render(chosen, dimensions, schema, vector_schema)
    }
    into.mkdir(parents=True, exist_ok=True)
    changed = []
    for file in sorted({*_written(into, schema), *(into / name for name in texts)}):
        text = texts.get(file.name)
        if text is None:
            file.unlink()
        elif not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")
        else:
            continue
        changed.append(file)
    return changed


def _apply_next(
    dsn: str,
    migrations: Sequence[Migration],
    schema: str,
    checked: Sequence[Migration] | None,
    progress: Callable[[Migration], None] | None,
    *,
    is_packaged: bool,
) -> Migration | None:
    """Apply the next migration; first look for obstacles to those in `checked`, if given."""
    history = sql.Identifier(naming.history(schema))
    with connect(dsn) as connection:
        connection.execute(_LOCK)
        if checked is not None and (
            found := _obstacles(connection, checked, schema, is_packaged=is_packaged)
        ):
            raise ObstacleError(found)
        missing = pending(connection, migrations, schema)
        if not missing:
            return None
        owner = connection.execute(_OTHER_OWNER, [f"{schema}.knowledge_chunks"]).fetchone()
        migration = missing[0]
        if progress is not None:
            progress(migration)
        if not has_history(connection, schema):
            for create in CREATE_HISTORY:
                connection.execute(sql.SQL(create).format(history=history))
        # A module reads all chunks. Supabase ends a statement of this role after two minutes.
        connection.execute("set local statement_timeout = 0")
        executed = []
        if owner is not None:
            # Objects of two owners could not read each other.
            connection.execute(sql.SQL("set local role {}").format(sql.Identifier(owner[0])))
        for begin, statement in statements(migration.sql):
            try:
                connection.execute(statement.encode())
            except psycopg.Error as exc:
                raise failure(migration, begin, statement, exc) from exc
            executed.append(statement)
        connection.execute("reset role")
        record = sql.SQL(RECORD).format(history=history)
        connection.execute(record, (migration.version, migration.name, executed))
        return migration


def _moments_after(versions: Sequence[str], count: int = 1) -> Iterator[str]:
    """Yield that many timestamps, the last one of the second before this one, if they can be.

    Another tool would take a timestamp of the future for a migration of its own.
    """
    moment = datetime.now(UTC) - timedelta(seconds=count)
    # Supabase sorts versions as text.
    last = max(versions, default="")
    if last >= f"{moment:%Y%m%d%H%M%S}":
        try:
            # Of fewer digits, strptime reads a moment whose timestamp sorts before them.
            whole = last if len(last) == 14 else ""
            moment = datetime.strptime(whole, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
            moment += timedelta(seconds=1)
        except (ValueError, OverflowError) as exc:
            raise ConfigurationError(
                f"no timestamp sorts after the migration with version {last}",
                remedy="Rename that migration to a timestamp (YYYYMMDDHHMMSS).",
            ) from exc
    while True:
        yield f"{moment:%Y%m%d%H%M%S}"
        moment += timedelta(seconds=1)

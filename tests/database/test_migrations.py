"""Finding, rendering, applying and writing migrations, against a real database."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from command_line import Run, runner
from second_brain.database import doctor, migrations
from second_brain.database.migrations import Migration, MigrationError
from second_brain.errors import ConfigurationError, InvalidInputError
from support.databases import admin_dsn, query

Write = Callable[..., Path]

COLUMN = "create table public.things (embedding extensions.vector(1024));"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write files into a folder of migrations and return the folder."""

    def write_files(folder: str = "migrations", **texts: str) -> Path:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        for name, text in texts.items():
            (place / f"{name.lstrip('_')}.sql").write_text(text)
        return place

    return write_files


@pytest.fixture
def run_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Run:
    """Run `second-brain` in the test's own folder."""
    return runner(monkeypatch, capsys, tmp_path)


def history(dsn: str) -> list[tuple[Any, ...]]:
    return query(
        dsn,
        "select version, name, statements from supabase_migrations.schema_migrations order by 1",
    )


def test_files_that_the_supabase_cli_would_not_take_are_left_out(write: Write) -> None:
    folder = write(_001_one="select 1;", readme="select 1;", _002_two="select 2;")
    (folder / "003_notes.txt").write_text("no")
    assert [one.file_name for one in migrations.find(folder)] == ["001_one.sql", "002_two.sql"]


@pytest.mark.parametrize(("places", "count"), [("select 1;", 0), (COLUMN + COLUMN, 2)])
def test_rendering_refuses_any_other_number_of_places(places: str, count: int) -> None:
    with pytest.raises(ConfigurationError, match=f"it occurs {count} times"):
        migrations.render([Migration("001", "tables", places)], 384)


@pytest.mark.parametrize("dimensions", [-1, 0, 16_001])
def test_a_dimension_that_pgvector_lacks_is_refused_with_the_remedy(dimensions: int) -> None:
    with pytest.raises(
        ConfigurationError, match=f"dimensions is {dimensions}, .*1 to 16000"
    ) as refused:
        migrations.render(migrations.find(), dimensions)
    assert refused.value.remedy is not None
    assert "output_dimension" in refused.value.remedy


@pytest.mark.parametrize("dimensions", [1, 16_000])
def test_the_smallest_and_the_greatest_dimension_apply(plain_dsn: str, dimensions: int) -> None:
    migrations.apply(plain_dsn, dimensions=dimensions)
    with psycopg.connect(plain_dsn) as connection:
        assert migrations.stored_dimensions(connection) == dimensions


def test_applying_again_does_nothing_and_keeps_the_dimension(dsn: str) -> None:
    before = history(dsn)
    assert migrations.apply(dsn) == []
    assert migrations.apply(dsn, dimensions=3) == []
    assert history(dsn) == before


def test_another_dimension_than_the_database_has_is_refused(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="3 dimensions, not 4") as refused:
        migrations.apply(dsn, dimensions=4)
    assert refused.value.remedy is not None
    assert "--dimensions 3" in refused.value.remedy


def test_every_file_runs_in_a_new_session(plain_dsn: str, write: Write) -> None:
    note = "insert into public.sessions values (pg_backend_pid(), pg_current_xact_id());"
    folder = write(
        _001_table="create table public.sessions (pid int, transaction xid8);" + note + note,
        _002_more=note,
    )
    migrations.apply(plain_dsn, directory=folder)
    count = "select count(distinct pid), count(distinct transaction), count(*) from public.sessions"
    assert query(plain_dsn, count) == [(2, 2, 3)]


def test_a_failing_file_leaves_nothing_behind_and_those_before_it_stay(
    plain_dsn: str, write: Write
) -> None:
    folder = write(
        _001_good="create table public.good ();",
        _002_bad="create table public.half ();\n\n-- a comment\nselect 1 / 0;\n",
        _003_never="create table public.never ();",
    )
    with pytest.raises(MigrationError, match=r"002_bad\.sql, line 4: division by zero") as failed:
        migrations.apply(plain_dsn, directory=folder)
    assert failed.value.code == "22012"
    tables = query(plain_dsn, "select tablename from pg_tables where schemaname = 'public'")
    assert tables == [("good",)]
    assert [version for version, _, _ in history(plain_dsn)] == ["001"]

    write(_002_bad="create table public.half ();")
    applied = migrations.apply(plain_dsn, directory=folder)
    assert [one.version for one in applied] == ["002", "003"]


def test_runs_at_the_same_time_apply_every_file_once(plain_dsn: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: migrations.apply(plain_dsn, dimensions=3), range(4)))
    applied = sorted(one.version for run in runs for one in run)
    assert applied == [one.version for one in migrations.find() if one.module is None]
    assert [version for version, _, _ in history(plain_dsn)] == applied


def test_a_version_that_belongs_to_another_migration_is_refused(
    plain_dsn: str, write: Write
) -> None:
    migrations.apply(plain_dsn, directory=write(_001_profiles="select 1;"))
    with pytest.raises(MigrationError, match="001 belongs to another migration, 'profiles'"):
        migrations.apply(plain_dsn, dimensions=3)


# Of a file that is there with another text, and of one that has another name now.
@pytest.mark.parametrize(
    "recorded",
    [
        "statements = array['create function knowledge_internal.other() ...']",
        "name = 'other'",
        "version = '20260101000000', name = 'second_brain_004_other'",
    ],
)
def test_an_install_of_an_earlier_checkout_is_told_that_it_has_no_upgrade(
    dsn: str, recorded: str
) -> None:
    update = "update supabase_migrations.schema_migrations set"
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert migrations.find_obstacles(connection) == []
        connection.execute(f"{update} {recorded} where version = '004'".encode())
        (found,) = migrations.find_obstacles(connection)
        (finding,) = [one for one in doctor.examine(connection) if one.status == "error"]
    assert re.search(r"earlier checkout: \w*004_\w+ differ", found.what)
    assert "server uninstall" in found.remedy
    assert (finding.message, finding.remedy) == (found.what, found.remedy)
    with pytest.raises(migrations.ObstacleError, match="of an earlier checkout"):
        migrations.apply(dsn)


def test_a_newer_install_is_not_one_of_an_earlier_checkout(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into supabase_migrations.schema_migrations (version, name, statements)"
            " values ('20260101000000', 'second_brain_901_added', array['select 1'])"
        )
        assert migrations.find_obstacles(connection) == []


def test_a_gap_in_the_history_is_refused(dsn: str) -> None:
    query(dsn, "delete from supabase_migrations.schema_migrations where version = '002'")
    with pytest.raises(MigrationError, match="lacks 002_") as refused:
        migrations.apply(dsn)
    assert "migrate --record" in refused.value.remedy


@pytest.mark.parametrize(
    ("change", "refusal", "hint"),
    [
        (
            "update pg_extension set extversion = '0.7.4'",
            r"pgvector is 0\.7\.4.*0\.8",
            "alter extension vector update",
        ),
        (
            "alter extension vector set schema public",
            "in schema public",
            "init --vector-schema public",
        ),
    ],
    ids=["older", "in another schema"],
)
def test_the_files_refuse_a_pgvector_that_they_do_not_fit(
    plain_dsn: str, server: Any, change: str, refusal: str, hint: str
) -> None:
    query(admin_dsn(server, plain_dsn), change)
    # As `supabase db push` runs it, without looking for obstacles first.
    with pytest.raises(psycopg.Error, match=refusal) as refused:
        query(plain_dsn, migrations.find()[0].sql)
    assert hint in (refused.value.diag.message_hint or "")


def test_init_writes_the_migrations_at_the_dimension_in_their_order(tmp_path: Path) -> None:
    into = tmp_path / "supabase" / "migrations"
    written = migrations.init(into, 384, modules=migrations.modules())
    assert sorted(written) == written == sorted(into.iterdir())
    found = migrations.find(into)
    assert [one.sql for one in found] == [
        one.sql for one in migrations.render(migrations.find(), 384) if one.needs is None
    ]
    assert all(len(one.version) == 14 for one in found)


STORED = "select collection, fusion from public.knowledge_settings"


def test_a_new_install_stores_the_fusion_that_is_given_and_none_without_one(
    plain_dsn: str, dsn: str
) -> None:
    migrations.apply(plain_dsn, dimensions=3, fusion="auto")
    assert query(plain_dsn, STORED) == [("", "auto")]
    # An install that is there keeps what it stores.
    migrations.apply(plain_dsn, fusion="rrf", modules=migrations.modules())
    assert query(plain_dsn, STORED) == [("", "auto")]
    migrations.apply(dsn, fusion="auto")
    assert query(dsn, STORED) == []


def test_a_fusion_that_does_not_exist_is_refused_before_anything_is_applied(plain_dsn: str) -> None:
    with pytest.raises(InvalidInputError, match="fusion must be one of rrf, relative_score, auto"):
        migrations.apply(plain_dsn, dimensions=3, fusion=cast(Any, "best'"))
    assert query(plain_dsn, "select to_regnamespace('knowledge_internal')::text") == [(None,)]


@pytest.mark.parametrize(("given", "stored"), [((), [("", "auto")]), (("none",), [])])
def test_init_writes_the_fusion_of_a_new_install(
    run_here: Run, plain_dsn: str, tmp_path: Path, given: tuple[str, ...], stored: list[Any]
) -> None:
    options = [part for fusion in given for part in ("--fusion", fusion)]
    assert run_here("init", "--dimensions", "3", *options).code == 0
    migrations.apply(plain_dsn, directory=tmp_path / "supabase" / "migrations")
    assert query(plain_dsn, STORED) == stored
    one = run_here("init", "--dimensions", "3", "--one-file", *options).out
    assert ("values ('', 'auto')" in one) == bool(stored)


def test_migrate_stores_auto_in_a_new_install_alone(
    run_here: Run, plain_dsn: str, dsn: str
) -> None:
    assert run_here("migrate", "--dimensions", "3", "--dsn", plain_dsn).code == 0
    assert query(plain_dsn, STORED) == [("", "auto")]
    assert run_here("migrate", "--dsn", dsn).code == 0
    assert query(dsn, STORED) == []


@pytest.mark.parametrize("version", ["001", "20230101000000", "20991231235959"])
def test_what_init_writes_sorts_after_what_is_there(write: Write, version: str) -> None:
    into = write(**{f"_{version}_profiles": "select 1;"})
    written = migrations.init(into, 384)
    assert migrations.find(into)[0].name == "profiles"
    assert len({one.version for one in migrations.find(into)}) == len(written) + 1


def test_init_refuses_when_no_timestamp_sorts_after_what_is_there(write: Write) -> None:
    with pytest.raises(ConfigurationError, match="version 9001"):
        migrations.init(write(_9001_over="select 1;"), 384)


def test_init_writes_only_what_is_not_there_yet(tmp_path: Path) -> None:
    written = migrations.init(tmp_path, 384)
    edited = written[0].read_text() + "\n-- edited by its owner\n"
    written[0].write_text(edited)
    written[-1].unlink()
    again = migrations.init(tmp_path, 384)
    assert [file.name.split("_", 1)[1] for file in again] == [written[-1].name.split("_", 1)[1]]
    assert written[0].read_text() == edited
    assert migrations.init(tmp_path, 384) == []


def test_init_refuses_another_dimension_than_the_files_have(tmp_path: Path) -> None:
    before = migrations.init(tmp_path, 384)
    with pytest.raises(ConfigurationError, match="384 dimensions, not 768"):
        migrations.init(tmp_path, 768)
    assert sorted(tmp_path.iterdir()) == before


def test_a_project_may_have_a_vector_column_of_its_own(write: Write) -> None:
    into = write(_20230101000000_mine="create table mine (v extensions.vector(1536));")
    assert migrations.init(into, 384)
    assert migrations.init(into, 384) == []


def test_what_init_wrote_and_a_project_applied_is_not_applied_again(
    plain_dsn: str, tmp_path: Path
) -> None:
    migrations.init(tmp_path, 5)
    migrations.apply(plain_dsn, directory=tmp_path)
    assert migrations.apply(plain_dsn) == []
    with pytest.raises(ConfigurationError, match="5 dimensions, not 6"):
        migrations.apply(plain_dsn, dimensions=6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" ;; \n", []),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("select 1;\n-- last words", ["select 1", "-- last words"]),
        ("-- one; two\nselect 1", ["-- one; two\nselect 1"]),
        ("/* a; /* b; */ c; */ select 1; x", ["/* a; /* b; */ c; */ select 1", "x"]),
        ("select ';'';', \"a;b\"; x", ["select ';'';', \"a;b\"", "x"]),
        (r"select E'\';', 'a\'; x", [r"select E'\';', 'a\'", "x"]),
        ("do $$ a; $x$ b; $x$ $$; x", ["do $$ a; $x$ b; $x$ $$", "x"]),
        ("do $x$ $$ ; $x$; x", ["do $x$ $$ ; $x$", "x"]),
        ("select a$b$ from c$b$; x", ["select a$b$ from c$b$", "x"]),
        ("select $1; select $2;", ["select $1", "select $2"]),
        ("create rule r as on insert to t do (a; b); x", None),
        ("create function f() language sql begin atomic select 1; select 2; end; x", None),
    ],
)
def test_sql_is_cut_at_the_semicolons_that_end_a_statement(
    text: str, expected: list[str] | None
) -> None:
    wanted = expected if expected is not None else [text[:-3], "x"]
    found = list(migrations.statements(text))
    assert [statement for _, statement in found] == wanted
    assert all(text.startswith(statement, begin) for begin, statement in found)

"""Core and modules: what is installed, added later, checked and removed again."""

from pathlib import Path
from typing import Any

import psycopg
import pytest

from corpora import store_document
from second_brain.database import migrations, naming, uninstall
from second_brain.database.migrations import MigrationError
from second_brain.errors import (
    InvalidInputError,
    MigrationMissingError,
)
from second_brain.sql_modules import MODULES, module_of
from support.databases import examine, objects, query

SCHEMA = "knowledge_de"
CORE = [one.file_name for one in migrations.find() if one.module is None]


def files(module: str) -> list[str]:
    return [one.file_name for one in migrations.find() if one.module == module]


def installed(dsn: str, schema: str = "public") -> tuple[str, ...]:
    with psycopg.connect(dsn) as connection:
        return migrations.installed_modules(connection, schema)


def test_each_module_has_its_purpose() -> None:
    assert tuple(MODULES) == (*migrations.modules(), *migrations.needing_extensions())
    assert [one.module for one in migrations.find_state()] == [
        one.module for one in migrations.find()
    ]


def test_a_list_of_modules_is_read_in_their_order() -> None:
    assert migrations.chosen(None) == ()
    assert migrations.chosen("adoption, facets") == ("facets", "adoption")
    assert migrations.chosen("all") == migrations.modules()


def test_an_unknown_module_is_refused_with_the_list() -> None:
    with pytest.raises(InvalidInputError, match="no module 'facet'") as refused:
        migrations.chosen("facet,words")
    assert refused.value.remedy is not None
    assert f"\n  facets: {MODULES['facets']}" in refused.value.remedy
    with pytest.raises(InvalidInputError, match="no module 'facet'"):
        migrations.select(migrations.find(), ["facet"])


def test_a_module_that_needs_one_table_is_refused_beside_citus() -> None:
    found = migrations.find()
    for added, present in ((["words", "citus", "facets"], []), (["words"], ["citus"])):
        with pytest.raises(InvalidInputError, match="module citus cannot be with words,"):
            migrations.select(found, added, present)
    both = migrations.select(found, ["facets"], ["citus"])
    assert {one.module for one in both} == {None, "facets", "citus"}


def test_a_module_is_added_later_and_stays(plain_dsn: str) -> None:
    applied = migrations.apply(plain_dsn, dimensions=3)
    assert [one.file_name for one in applied] == CORE
    assert installed(plain_dsn) == ()
    applied = migrations.apply(plain_dsn, modules=["facets"])
    assert [one.file_name for one in applied] == files("facets")
    assert installed(plain_dsn) == ("facets",)
    applied = migrations.apply(plain_dsn, modules=["words"])
    assert [one.file_name for one in applied] == files("words")
    assert installed(plain_dsn) == ("words", "facets")
    assert migrations.apply(plain_dsn) == []


def test_words_are_read_while_chunks_are_written(plain_dsn: str) -> None:
    migrations.apply(plain_dsn, dimensions=3)
    query(
        plain_dsn,
        "insert into public.knowledge_chunks (content) select 'apple' || chr(97 + n % 9)"
        " from generate_series(1, 50) as n; select 1",
    )
    text = next(one.sql for one in migrations.find() if one.module == "words")
    reading, triggers = text.split("\ncreate trigger add_words", 1)
    with psycopg.connect(plain_dsn) as migration:
        migration.execute(reading.encode())
        read = migration.execute("select count(*) from public.knowledge_words").fetchone()
        assert read == (9,)
        query(
            plain_dsn,
            "set lock_timeout = '2s'; insert into public.knowledge_chunks (content)"
            " values ('zebra banana'), ('banana applea'); update public.knowledge_chunks"
            " set content = 'walrus' where content = 'appleb'; select 1",
        )
        migration.execute(f"create trigger add_words{triggers}".encode())
    found = query(plain_dsn, "select word from public.knowledge_words where word ~ '^[zbw]'")
    assert sorted(found) == [("banana",), ("walrus",), ("zebra",)]


def test_a_gap_within_a_module_is_refused(plain_dsn: str) -> None:
    migrations.apply(plain_dsn, dimensions=3, modules=["insight"])
    first = migrations.select(migrations.find(), ["insight"])[len(CORE)]
    delete = "delete from supabase_migrations.schema_migrations where version ="
    query(plain_dsn, f"{delete} '{first.version}'")
    with pytest.raises(MigrationError, match=f"lacks {first.file_name}"):
        migrations.apply(plain_dsn)


def test_a_later_migration_of_core_does_not_wait_for_one_of_a_module(
    plain_dsn: str, tmp_path: Path
) -> None:
    texts = {
        "001_core": "-- core",
        "002_one": "-- one\n-- Module: one.",
        "003_more": "-- more",
        "004_two": "-- two\n-- More.\n-- Module: two.",
        "005_one": "-- one again\n-- Module: one.",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.sql").write_text(f"{text}\nselect 1;\n")

    def apply(*modules: str) -> list[str]:
        applied = migrations.apply(plain_dsn, directory=tmp_path, modules=modules)
        return [one.version for one in applied]

    assert apply() == ["001", "003"]
    assert apply("two") == ["004"]
    assert apply("one", "two") == ["002", "005"]


def test_init_writes_core_and_the_chosen_modules(tmp_path: Path) -> None:
    names = [path.name[15:] for path in migrations.init(tmp_path, 3, modules=["facets"])]
    assert names == [f"second_brain_{one}" for one in [*CORE, *files("facets")]]
    assert migrations.init(tmp_path, 3) == []
    before = sorted(tmp_path.iterdir())
    (added,) = migrations.init(tmp_path, 3, modules=["words", "facets"])
    assert added.name.endswith(f"_second_brain_{files('words')[0]}")
    assert sorted(tmp_path.iterdir()) == [*before, added]
    assert migrations.written_modules(tmp_path) == ("facets", "words")
    assert migrations.written_modules(tmp_path, SCHEMA) == ()


def test_modules_that_are_declared_stay_declared(tmp_path: Path) -> None:
    core = migrations.declare(tmp_path, 3)
    assert len(core) == len(CORE)
    (facets,) = migrations.declare(tmp_path, 3, modules=["facets"])
    assert facets.name == "second_brain_21_facets.sql"
    assert migrations.declare(tmp_path, 3) == []
    facets.write_text(facets.read_text() + "-- edited\n")
    assert migrations.declare(tmp_path, 3) == [facets]


def test_what_init_wrote_is_known_as_installed(plain_dsn: str, tmp_path: Path) -> None:
    migrations.init(tmp_path, 3, modules=["facets"])
    migrations.init(tmp_path, 3, schema=SCHEMA, modules=["words"])
    migrations.apply(plain_dsn, directory=tmp_path)
    assert installed(plain_dsn) == ("facets",)
    assert installed(plain_dsn, SCHEMA) == ("words",)
    assert migrations.apply(plain_dsn) == migrations.apply(plain_dsn, schema=SCHEMA) == []


def write(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        texts = {"The zebra eats grass.": [1, 0, 0], "A quagga is a zebra.": [0, 1, 0]}
        store_document(connection, "a", texts, title="Animals")
        connection.execute("analyze public.knowledge_chunks")
        connection.execute("select public.refresh_knowledge_statistics()")


def documents(dsn: str) -> list[tuple[Any, ...]]:
    """Return documents, chunks and the hits of a search; columns of a module are null."""
    search = "hybrid_search_knowledge_chunks('[1,0,0]', 'zebra grass')"
    rows: list[tuple[Any, ...]] = []
    for table in ("knowledge_documents", "knowledge_chunks"):
        select = "select jsonb_strip_nulls(to_jsonb(one)) from public."
        rows += query(dsn, f"{select}{table} as one order by id")
    return rows + query(dsn, f"select to_jsonb(one) from public.{search} as one")


@pytest.mark.slow
@pytest.mark.parametrize("module", migrations.modules())
def test_a_module_alone_is_in_order_and_removed_leaves_core_as_it_was(
    plain_dsn: str, module: str
) -> None:
    migrations.apply(plain_dsn, dimensions=3)
    write(plain_dsn)
    before, found = objects(plain_dsn), documents(plain_dsn)
    migrations.apply(plain_dsn, modules=[module])
    assert documents(plain_dsn) == found
    findings = examine(plain_dsn)
    assert {one.status for one in findings} == {"ok"}
    (listed,) = (one.message for one in findings if one.check == "modules")
    assert listed.startswith(f"{module}; not installed: ")
    uninstall.apply(plain_dsn, module=module)
    assert objects(plain_dsn) == before
    assert documents(plain_dsn) == found
    assert installed(plain_dsn) == ()
    applied = migrations.apply(plain_dsn, modules=[module])
    assert [one.file_name for one in applied] == files(module)


@pytest.mark.slow
def test_the_modules_of_another_schema_are_removed_in_turn(plain_dsn: str) -> None:
    migrations.apply(plain_dsn, dimensions=3, schema=SCHEMA)
    before = objects(plain_dsn, SCHEMA)
    migrations.apply(plain_dsn, schema=SCHEMA, modules=migrations.modules())
    for module in migrations.modules():
        uninstall.apply(plain_dsn, SCHEMA, module=module)
    assert objects(plain_dsn, SCHEMA) == before
    assert installed(plain_dsn, SCHEMA) == ()
    assert {one.status for one in examine(plain_dsn, SCHEMA)} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize("module", migrations.modules())
def test_a_removed_module_leaves_the_others_as_they_were(dsn: str, module: str) -> None:
    write(dsn)
    found = documents(dsn)
    script = plan(dsn, module).script
    assert "cascade" not in script
    query(dsn, script)
    assert {one.status for one in examine(dsn)} == {"ok"}
    assert installed(dsn) == tuple(one for one in migrations.modules() if one != module)
    assert documents(dsn) == found


def plan(dsn: str, module: str) -> uninstall.Uninstall:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return uninstall.plan(connection, module=module)


def test_the_removal_of_a_module_names_what_is_lost(dsn: str) -> None:
    write(dsn)
    query(dsn, "create index mine on public.knowledge_judgments (judged_at)")
    removal = plan(dsn, "insight")
    assert removal.rows["public.knowledge_judgments"] == 0
    assert "public.knowledge_documents" not in removal.rows
    assert "--   0 rows of public.knowledge_judgments" in removal.script
    assert removal.attached == ("index public.mine",)
    assert "*_second_brain_028_judgments.sql" in removal.files


def test_the_history_of_init_loses_the_module_alone(plain_dsn: str, tmp_path: Path) -> None:
    migrations.init(tmp_path, 3, modules=["facets", "words"])
    migrations.apply(plain_dsn, directory=tmp_path)
    uninstall.apply(plain_dsn, module="facets")
    names = query(plain_dsn, "select name from supabase_migrations.schema_migrations order by 1")
    kept = [one for one in migrations.find() if one.module in (None, "words")]
    assert names == [(f"second_brain_{one.version}_{one.name}",) for one in kept]


def test_a_module_that_is_not_installed_cannot_be_removed(plain_dsn: str) -> None:
    migrations.apply(plain_dsn, dimensions=3, modules=["facets"])
    with pytest.raises(MigrationMissingError, match="words is not installed") as refused:
        plan(plain_dsn, "words")
    assert refused.value.remedy == "Installed are: facets."


def test_a_foreign_object_that_needs_a_module_stops_its_removal(dsn: str) -> None:
    query(dsn, "create view public.mine as select * from public.knowledge_judgments")
    with pytest.raises(uninstall.ForeignDependentsError) as refused:
        plan(dsn, "insight")
    assert refused.value.dependents == ("view public.mine",)


def test_the_functions_of_an_absent_module_are_not_taken_for_foreign_ones(plain_dsn: str) -> None:
    migrations.apply(plain_dsn, dimensions=3)
    query(
        plain_dsn,
        "create function public.facet_knowledge_chunks() returns integer language sql return 1",
    )
    uninstall.apply(plain_dsn)
    assert "function public.facet_knowledge_chunks()" in objects(plain_dsn)


@pytest.mark.parametrize("schema", ["public", SCHEMA])
def test_one_file_installs_once_and_is_recorded(plain_dsn: str, schema: str) -> None:
    text = migrations.one_file(3, schema=schema, modules=["facets", "words"])
    query(plain_dsn, text)
    assert installed(plain_dsn, schema) == ("words", "facets")
    assert migrations.apply(plain_dsn, schema=schema) == []
    assert {one.status for one in examine(plain_dsn, schema)} == {"ok"}
    before = query(plain_dsn, "select * from supabase_migrations.schema_migrations order by 1")
    with pytest.raises(psycopg.Error, match=f"schema {schema}; nothing was changed") as refused:
        query(plain_dsn, text)
    assert "second-brain migrate --with" in (refused.value.diag.message_hint or "")
    after = query(plain_dsn, "select * from supabase_migrations.schema_migrations order by 1")
    assert after == before
    uninstall.apply(plain_dsn, schema)
    query(plain_dsn, text)


def test_one_file_changes_nothing_where_it_fails(plain_dsn: str) -> None:
    query(plain_dsn, "create table public.knowledge_chunks ()")
    before = objects(plain_dsn)
    with pytest.raises(psycopg.Error, match="already exists"):
        query(plain_dsn, migrations.one_file(3))
    assert objects(plain_dsn) == before
    assert query(plain_dsn, "select to_regnamespace('supabase_migrations')") == [(None,)]


def test_one_file_has_the_same_objects_as_migrate(plain_dsn: str, dsn: str) -> None:
    query(plain_dsn, migrations.one_file(3, modules=migrations.modules()))
    assert objects(plain_dsn) == objects(dsn)


def test_what_a_module_has_is_known_by_name() -> None:
    core = naming.created_names(one.sql for one in migrations.find() if one.module is None)
    known = {
        name: one.module
        for one in migrations.find()
        for kind, name in naming.created([one.sql])
        if one.module is not None and name not in core and kind in ("function", "table", "type")
    }
    assert known["facet_knowledge_chunks"] == "facets"
    assert known["knowledge_judgments"] == "insight"
    assert {name: module_of(name) for name in known} == known
    assert {module_of(name) for name in core} == {None}

"""Each state of a database has one name and one remedy, which leads to a whole install again."""

import re
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest

from command_line import Run
from conftest import Server
from second_brain.database import condition, doctor, migrations, uninstall
from second_brain.database.packaged import Migration
from second_brain.errors import ConfigurationError, MigrationMissingError
from support.databases import admin_dsn, examine, query

INSTALL, INTERNALS = "acme", "acme_internal"
TEXTS = ("A quartz clock.", "An iron anchor.", "The harbour at night.")
HISTORY = f"supabase_migrations.second_brain_{INSTALL}"
LOST = f"drop table {HISTORY}"
CHUNKS = f"{INSTALL}.knowledge_chunks"
ROOT = Path(__file__).parents[2]
STORE = """
select {}.upsert_knowledge_document(
         jsonb_build_object('external_key', left(content, 9)),
         jsonb_build_array(
           jsonb_build_object('content', content, 'embedding', '[1, 2, 3]', 'embedding_model', 'm')
         )
       )
  from unnest(%s::text[]) as listed (content)
"""
# The state, what is said of it, and what leads there from a whole install with core and words.
STATES: dict[str, tuple[condition.State, str, str]] = {
    "a restored dump": ("without history", "has no history", LOST),
    "an index for filters dropped": (
        *("without history", "has no history"),
        f"{LOST}; drop index {CHUNKS}_source_origin",
    ),
    "a bulk load": ("without history", "has no history", f"{LOST}; drop index {CHUNKS}_embedding"),
    "a function dropped": (
        *("without history", "has no history"),
        f"{LOST}; drop function {INSTALL}.upsert_knowledge_document cascade",
    ),
    "many functions dropped": (
        *("without history", "has no history"),
        f"{LOST}; drop schema {INTERNALS} cascade",
    ),
    "a table dropped": (
        *("without history", "has no history"),
        f"{LOST}; drop table {INSTALL}.knowledge_words cascade",
    ),
    "a module forgotten": (
        *("without history", "lacks 020_words.sql"),
        f"delete from {HISTORY} where name = 'words'",
    ),
    "a gap": (
        "without history",
        "lacks 003_corpus.sql",
        f"delete from {HISTORY} where version = '003'",
    ),
    "internal schema dropped": (
        *("damaged", f"lacks schema {INTERNALS}"),
        f"drop schema {INTERNALS} cascade",
    ),
    "column dropped": (
        *("damaged", "content_tsv"),
        f"alter table {CHUNKS} drop column content_tsv cascade",
    ),
    "search dropped": (
        *("damaged", "hybrid_search_knowledge_chunks"),
        f"drop function {INSTALL}.hybrid_search_knowledge_chunks",
    ),
    "table moved": (
        *("damaged", "old.knowledge_chunks has its columns"),
        f"create schema old; alter table {CHUNKS} set schema old",
    ),
    "table renamed": (
        *("damaged", "chunks_before has its columns"),
        f"alter table {CHUNKS} rename to chunks_before",
    ),
    "reset by a tool": (
        *("reset", "the tables of the install in schema acme are gone"),
        f"drop schema {INSTALL} cascade; create schema {INSTALL};"
        f" grant usage on schema {INSTALL} to anon, authenticated, service_role",
    ),
    "reset of both schemas": (
        *("reset", "the tables of the install in schema acme are gone"),
        f"drop schema {INSTALL} cascade; drop schema {INTERNALS} cascade",
    ),
    "both schemas renamed": (
        *("renamed", "name the schemas acme and acme_internal"),
        f"alter schema {INSTALL} rename to a2; alter schema {INTERNALS} rename to a2_internal",
    ),
    "the schema renamed": (
        *("renamed", "name the schemas acme and acme_internal"),
        f'alter schema {INSTALL} rename to "A 2"',
    ),
    "the schema renamed and made again": (
        *("renamed", "name the schemas acme and acme_internal"),
        f"alter schema {INSTALL} rename to a2; create schema {INSTALL}",
    ),
    "the internal schema renamed": (
        *("renamed", "name the schemas acme and acme_internal"),
        f"alter schema {INTERNALS} rename to a2",
    ),
}


def whole(dsn: str) -> None:
    migrations.apply(
        dsn, dimensions=3, schema=INSTALL, modules=("words",), fusion=migrations.FUSION
    )
    with psycopg.connect(dsn) as connection:
        connection.execute(STORE.format(INSTALL).encode(), [list(TEXTS)])


def answers(dsn: str, schema: str = INSTALL) -> list[tuple[str, ...]]:
    search = f"{schema}.hybrid_search_knowledge_chunks('[1, 2, 3]', 'the qartz clock')"
    return query(dsn, f"select content, match_type, rrf_score from {search} order by content")


def state(dsn: str, schema: str = INSTALL) -> condition.Condition:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return condition.examine(connection, schema)


def follow(remedy: str, run: Run, dsn: str) -> None:
    """Do what a remedy says: its commands, or its SQL."""
    commands = re.findall(r"`second-brain ([^`]*)`", remedy)
    for command in commands:
        arguments = command.split()
        arguments += ["--yes"] if "uninstall" in command else []
        arguments += ["--dimensions", "3"] if arguments[0] == "migrate" else []
        done = run(*arguments, "--dsn", dsn)
        assert done.code == 0, done.err
    if not commands:
        query(dsn, remedy.rpartition("run: ")[2])


def wrong(dsn: str, schema: str = INSTALL) -> list[doctor.Finding]:
    return [one for one in examine(dsn, schema) if one.status in ("error", "warning")]


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_named_and_its_remedy_makes_it_whole(
    plain_dsn: str, run: Run, name: str
) -> None:
    expected, message, damage = STATES[name]
    whole(plain_dsn)
    before = answers(plain_dsn)
    assert state(plain_dsn).state == "whole"
    query(plain_dsn, damage)
    found = state(plain_dsn)
    assert (found.state, message in found.what) == (expected, True), found.what
    # All commands that meet it say the same.
    if expected != "reset":
        assert not re.search(r"\bdrop\b|uninstall", found.remedy)
    (error,) = [one for one in examine(plain_dsn, INSTALL) if one.check == "migrations"]
    if expected != "damaged" or "columns" in message:
        assert (error.message, error.remedy) == (found.what, found.remedy)
    with pytest.raises(migrations.ObstacleError) as refused:
        migrations.apply(plain_dsn, schema=INSTALL)
    assert [(one.what, one.remedy) for one in refused.value.obstacles] == [
        (found.what, found.remedy)
    ]
    if expected != "without history":
        with pytest.raises(ConfigurationError):
            condition.record(plain_dsn, INSTALL)
    if expected == "renamed":
        with (
            psycopg.connect(plain_dsn) as connection,
            pytest.raises(ConfigurationError, match="re"),
        ):
            uninstall.plan(connection, INSTALL)
    for _ in range(2):
        follow(found.remedy, run, plain_dsn)
        found = state(plain_dsn)
        if found.state == "whole":
            break
    assert found.state == "whole", found.what
    if expected == "reset":
        assert [one.module for one in found.there if one.module] == ["words"]
        with psycopg.connect(plain_dsn) as connection:
            connection.execute(STORE.format(INSTALL).encode(), [list(TEXTS)])
    if left := wrong(plain_dsn):
        follow(left[0].remedy or "", run, plain_dsn)
    assert answers(plain_dsn) == before
    assert wrong(plain_dsn) == []


def test_an_install_that_was_asked_for_by_its_new_name_is_renamed_too(plain_dsn: str) -> None:
    whole(plain_dsn)
    query(plain_dsn, STATES["both schemas renamed"][2])
    assert state(plain_dsn, "a2").remedy == state(plain_dsn).remedy
    assert state(plain_dsn, "other").state == "none"


def test_a_dump_of_one_release_is_recorded_up_to_its_last_file(plain_dsn: str) -> None:
    whole(plain_dsn)
    query(plain_dsn, LOST)
    search = next(one for one in migrations.find() if one.name == "hybrid_search").sql
    body = re.search(r"create function knowledge_internal\.\w+\(.*?\$\$;", search, re.DOTALL)
    assert body is not None
    replaced = body[0].replace("create function", "create or replace function")
    for text in (
        "create table public.knowledge_next (id int);",
        replaced.replace("begin\n", "begin\n  -- The next version.\n", 1),
    ):
        newer = [*migrations.find(), Migration("061", "next", text)]
        with psycopg.connect(plain_dsn) as connection:
            found = condition.examine(connection, INSTALL, newer)
        assert found.state == "without history"
        assert [one.name for one in found.there][-1] == "words"
        assert "next" not in [one.name for one in found.there]


@pytest.mark.parametrize(
    "made",
    [
        "create table public.knowledge_chunks (id bigint, content text)",
        "create table public.knowledge_types (name text, created_at timestamptz)",
        "create schema knowledge_internal",
    ],
)
def test_what_a_project_has_under_our_names_is_not_an_install(plain_dsn: str, made: str) -> None:
    query(plain_dsn, made)
    assert state(plain_dsn, "public").state == "none"
    with psycopg.connect(plain_dsn) as connection, pytest.raises(MigrationMissingError):
        uninstall.plan(connection)


def test_what_a_project_has_made_after_a_reset_is_not_removed(plain_dsn: str) -> None:
    whole(plain_dsn)
    query(plain_dsn, STATES["reset by a tool"][2])
    query(plain_dsn, "create table acme.knowledge_sources (mine int)")
    uninstall.apply(plain_dsn, INSTALL)
    assert query(plain_dsn, "select * from acme.knowledge_sources") == []


def test_a_missing_table_of_embeddings_is_made_in_their_size(plain_dsn: str, run: Run) -> None:
    whole(plain_dsn)
    query(plain_dsn, f"drop table {CHUNKS} cascade")
    repair = ("migrate", "--repair", "--schema", INSTALL, "--dsn", plain_dsn)
    assert "--dimensions N" in run(*repair).err
    assert run(*repair, "--dimensions", "3").code == 0
    assert state(plain_dsn).state == "whole"
    assert query(plain_dsn, f"select count(*) from {INSTALL}.knowledge_documents") == [(3,)]
    with psycopg.connect(plain_dsn) as connection:
        connection.execute(STORE.format(INSTALL).encode(), [list(TEXTS)])
    assert len(answers(plain_dsn)) == 3


def test_a_repair_heals_what_it_may_and_names_the_rest(
    plain_dsn: str, server: Server, run: Run
) -> None:
    whole(plain_dsn)
    query(
        admin_dsn(server, plain_dsn),
        f"alter function {INSTALL}.hybrid_search_knowledge_chunks owner to current_user",
        f"drop function {INSTALL}.upsert_knowledge_document",
    )
    done = run("migrate", "--repair", "--schema", INSTALL, "--dsn", plain_dsn)
    assert done.code == 1
    assert "hybrid_search_knowledge_chunks" in done.err
    assert [one.check for one in wrong(plain_dsn) if one.status == "error"] == ["owners"]


OLD = "d129da69f25c4c83ff75b214ddb6f08befcad01f"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The migrations of a checkout before the first release, of core and some modules."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "old"
    folder.mkdir()
    listed = subprocess.run(
        [git, "ls-tree", "-r", "--name-only", OLD, "migrations"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip(f"this clone lacks revision {OLD[:8]}: {listed.stderr.strip()}")
    for name in listed.stdout.split():
        if "native" not in name and "shards" not in name:
            text = subprocess.run(
                [git, "show", f"{OLD}:{name}"], cwd=ROOT, capture_output=True, check=True
            ).stdout
            (folder / Path(name).name).write_bytes(text)
    return folder


def of_an_earlier_checkout(dsn: str, old: Path) -> None:
    migrations.apply(dsn, dimensions=3, directory=old)
    with psycopg.connect(dsn) as connection:
        connection.execute(STORE.format("public").encode(), [list(TEXTS)])
        connection.execute(
            "insert into public.knowledge_chunks (content, embedding, embedding_model)"
            " values ('Without a document.', '[3, 2, 1]', 'm')"
        )
        connection.execute("insert into public.knowledge_types values ('recipe')")
        connection.execute("select public.set_knowledge_settings('', 'auto', 0.4)")


@pytest.mark.parametrize("has_history", [True, False])
def test_an_install_of_an_earlier_checkout_is_moved_by_the_commands_of_its_remedy(
    plain_dsn: str, old: Path, run: Run, has_history: bool
) -> None:
    of_an_earlier_checkout(plain_dsn, old)
    query(
        plain_dsn,
        "create table public.notes (id int primary key, body text)",
        "insert into public.notes values (1, 'A brass bell.')",
    )
    if not has_history:
        query(plain_dsn, "drop schema supabase_migrations cascade")
    found = state(plain_dsn, "public")
    assert found.state == "other version"
    with pytest.raises(migrations.ObstacleError, match="schema public"):
        migrations.apply(plain_dsn)
    with pytest.raises(ConfigurationError):
        condition.record(plain_dsn)
    install, copy, remove = re.findall(r"`(second-brain [^`]*)`", found.remedy)
    for command in (f"{install} --with all", copy, copy):
        follow(f"`{command.replace('NEW', 'next')}`", run, plain_dsn)
    done = run(
        *("adopt", "public.notes", "--schema", "next", "--content", "body", "--apply"),
        *("--dsn", plain_dsn),
    )
    assert done.code == 0, done.err
    assert run("adopt", "--backfill", "notes", "--schema", "next", "--dsn", plain_dsn).code == 0
    before = query(plain_dsn, "select content from public.knowledge_chunks order by 1")
    follow(f"`{remove}`", run, plain_dsn)
    after = query(
        plain_dsn, "select content from next.knowledge_chunks where content is not null order by 1"
    )
    assert set(before) <= set(after)
    assert answers(plain_dsn, "next")[0][0] == "A quartz clock."
    settings = "select vector_weight from next.knowledge_settings where collection = ''"
    assert query(plain_dsn, settings) == [(0.4,)]
    assert ("recipe",) in query(plain_dsn, "select name from next.knowledge_types")
    assert state(plain_dsn, "public").state == "none"
    assert query(plain_dsn, "select count(*) from public.notes") == [(1,)]
    assert not [one for one in examine(plain_dsn, "next") if one.status == "error"]
    # And back, into the schema that clients name.
    for command in (
        "second-brain migrate --with all",
        "second-brain server copy --from next --schema public",
        "second-brain server uninstall --schema next --apply",
    ):
        follow(f"`{command}`", run, plain_dsn)
    assert answers(plain_dsn, "public")[0][0] == "A quartz clock."
    assert not [one for one in examine(plain_dsn) if one.status == "error"]

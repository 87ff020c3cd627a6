"""A managed Postgres: its owner may create roles and is no superuser. And a seed of data alone."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from command_line import Run
from pages import blocks
from second_brain.database import condition, migrations
from second_brain.database.embedded import EmbeddedPostgres, installed_majors, program
from support.databases import examine, query
from tools import migrations as tool

STORE = """
select public.upsert_knowledge_document(
         '{"external_key": "a"}',
         '[{"content": "A quartz clock.", "embedding": [1, 2, 3], "embedding_model": "m"}]'
       )
"""
SEARCH = """
select content, rrf_score, match_type
  from public.hybrid_search_knowledge_chunks('[1, 2, 3]', 'qartz clock')
"""
API = "anon, authenticated, service_role, authenticator"
PAGE = Path(__file__).parents[2] / "docs" / "install.md"


@pytest.fixture(scope="module")
def managed() -> Iterator[EmbeddedPostgres]:
    """A server without the roles of Supabase, with an owner who may create roles."""
    with tool.throw_away_server(max(installed_majors())) as server:
        query(
            server.admin_dsn(),
            "drop schema auth cascade",
            f"drop owned by {API}",
            f"drop role {API}",
            "create role boss login createrole password 'x'",
        )
        yield server


def database(server: EmbeddedPostgres, name: str) -> str:
    query(server.admin_dsn(), f"create database {name} owner boss")
    # Managed servers trust the extension, so that its owner may create it.
    query(
        server.admin_dsn(name),
        "create schema extensions authorization boss",
        "create extension vector schema extensions",
    )
    return make_conninfo(server.admin_dsn(name), user="boss", password="x")


def condition_of(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        return condition.examine(connection).state


def dump(server: EmbeddedPostgres, dsn: str, *options: str) -> bytes:
    command = [str(program(server.major, "pg_dump")), *options, f"--dbname={dsn}"]
    return subprocess.run(command, capture_output=True, check=True).stdout


def test_an_owner_with_createrole_installs_searches_dumps_and_restores(
    managed: EmbeddedPostgres, run: Run
) -> None:
    dsn = database(managed, "managed")
    done = run("migrate", "--dimensions", "3", "--dsn", dsn)
    assert done.code == 1
    assert "--prelude" in done.err
    arguments = ("migrate", "--prelude", "--dimensions", "3", "--with", "all", "--dsn", dsn)
    done = run(*arguments)
    assert (done.code, "not permitted" in done.err) == (0, False), done.err
    assert "Nothing to apply" in run(*arguments).out
    query(dsn, STORE, "analyze", "select public.refresh_knowledge_statistics()")
    assert len(query(dsn, SEARCH)) == 1
    problems = [one for one in examine(dsn) if one.status != "ok"]
    assert [(one.status, one.check) for one in problems] == [("info", "roles")]
    assert "no bypassrls" in problems[0].message

    again = database(managed, "restored")
    assert run("migrate", "--prelude", "--dimensions", "3", "--dsn", again).code == 0
    assert condition_of(again) == "whole"
    query(again, "drop schema public, knowledge_internal, supabase_migrations cascade")
    query(again, "create schema public", "grant usage on schema public to public")
    left_out = ("--exclude-schema=extensions", "--exclude-schema=auth", "--extension=plpgsql")
    text = dump(managed, dsn, "--no-owner", *left_out)
    psql = [str(program(managed.major, "psql")), "-qXv", "ON_ERROR_STOP=1", again]
    text = text.replace(b"CREATE SCHEMA public;", b"")
    restored = subprocess.run(psql, input=text, capture_output=True, check=False)
    assert restored.returncode == 0, restored.stderr
    query(again, "analyze")
    assert query(again, SEARCH) == query(dsn, SEARCH)
    assert not [one for one in examine(again) if one.status in ("error", "warning")]


def test_what_the_owner_may_not_do_is_printed(managed: EmbeddedPostgres, run: Run) -> None:
    query(managed.admin_dsn(), "create role guest login password 'x'")
    query(managed.admin_dsn(), "create database guests owner guest")
    dsn = make_conninfo(managed.admin_dsn("guests"), user="guest", password="x")
    done = run("migrate", "--prelude", "--dimensions", "3", "--dsn", dsn)
    assert done.code == 1
    assert "for an administrator: create extension if not exists vector" in done.err
    assert "permission denied to create extension" in done.err
    assert condition_of(dsn) == "none"


def test_a_dump_of_the_data_is_a_seed_without_the_tables_that_the_page_names(
    dsn: str, plain_dsn: str
) -> None:
    with psycopg.connect(dsn) as connection:
        major = connection.info.server_version // 10000
    if major not in installed_majors():
        pytest.skip(f"pg_dump of PostgreSQL {major} is not installed")
    query(dsn, STORE)
    before = query(dsn, SEARCH)
    migrations.apply(plain_dsn, dimensions=3, modules=migrations.modules())
    (command,) = (one.code for one in blocks(PAGE.read_text()) if "--data-only" in one.code)
    excluded = re.findall(r"public\.\w+", command)
    done = subprocess.run(
        [
            *(str(program(major, "pg_dump")), "--data-only", "--inserts", "--schema=public"),
            *(f"--exclude-table={one}" for one in excluded),
            f"--dbname={dsn}",
        ],
        capture_output=True,
        check=True,
    )
    psql = [str(program(major, "psql")), "-qXv", "ON_ERROR_STOP=1", plain_dsn]
    restored = subprocess.run(psql, input=done.stdout, capture_output=True, check=False)
    assert restored.returncode == 0, restored.stderr
    assert query(plain_dsn, SEARCH) == before
    assert not [one for one in examine(plain_dsn) if one.status == "error"]

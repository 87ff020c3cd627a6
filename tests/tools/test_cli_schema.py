"""The commands on an install in another schema, beside an empty one in public."""

import json
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from command_line import Run, hits, write_docs
from conftest import Server
from second_brain.database import migrations

SCHEMA = "knowledge_de"


@pytest.fixture
def run(run: Run, plain_dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command on a database with an install of three dimensions in schema public."""
    migrations.apply(plain_dsn, dimensions=3)
    monkeypatch.setenv("SECOND_BRAIN_DSN", plain_dsn)
    write_docs(tmp_path / "docs")
    return run


@pytest.mark.slow
def test_every_command_takes_the_schema(
    run: Run, plain_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--schema", SCHEMA]
    missing = run("search", "bananas", *options)
    assert missing.code == 1
    assert f"no knowledge tables in schema {SCHEMA}" in missing.err
    assert f"migrate --dimensions 256 --schema {SCHEMA}" in missing.err
    with monkeypatch.context() as environment:
        environment.setenv("SECOND_BRAIN_SCHEMA", SCHEMA)
        assert run("search", "bananas") == missing

    assert "Applied" in run("migrate", "--with", "all", *options).out
    assert run("migrate", *options).out.startswith("Nothing to apply")
    assert run("ingest", "docs", *options).code == 0
    assert "3 unchanged" in run("ingest", "docs", *options).out
    found = hits(run("search", "yellow bananas", "--json", *options))
    assert found[0]["metadata"]["title"] == "Fruit"
    assert "fusion" in run("search", "yellow bananas", "--explain", *options).out
    assert "ms in the database" in run("search", "yellow", "--estimate", *options).out
    assert "knowledge_chunks_embedding" in run("corpus", "index", "show", *options).out
    assert "256 dimensions" in run("corpus", "reembed", "status", *options).out
    built = run("corpus", "index", "build", "--kind", "vector", *options)
    assert "knowledge_chunks_embedding" in built.out
    done = run("doctor", "--json", *options)
    assert done.code == 0, done.out
    assert "256 dimensions" in next(
        one["message"] for one in json.loads(done.out) if one["check"] == "embeddings"
    )
    key = "docs:fruit.md"
    deleted = run("corpus", "delete", key, *options)
    assert f"{key}: deleted" in deleted.out, deleted
    with psycopg.connect(plain_dsn) as connection:
        assert connection.execute("select count(*) from public.knowledge_chunks").fetchone() == (0,)

    written = run("server", "uninstall", *options)
    assert f"2 rows of {SCHEMA}.knowledge_documents" in written.out
    assert run("doctor", *options).code == 0
    removed = run("server", "uninstall", "--apply", "--yes", *options)
    assert removed.out == f"The install in schema {SCHEMA} is removed.\n"
    assert run("search", "bananas", *options).code == 1
    assert run("doctor").code == 0


def test_init_and_migrate_print_the_obstacles_and_write_nothing(
    run: Run, plain_dsn: str, tmp_path: Path
) -> None:
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        connection.execute(f"create schema {SCHEMA}")
        connection.execute(f"create table {SCHEMA}.knowledge_chunks ()")
        connection.execute(f"create table {SCHEMA}.knowledge_documents ()")
    options = ["--dimensions", "3", "--schema", SCHEMA]
    for command in (["migrate"], ["init", "--check", "--into", "written"]):
        refused = run(*command, *options)
        assert refused.code == 1
        assert refused.err.count("obstacle: ") == 2
        assert f"table {SCHEMA}.knowledge_chunks exists" in refused.err
        assert refused.err.endswith("Nothing was written.\n")
        assert not (tmp_path / "written").exists()
    other = ["--dimensions", "3", "--schema", "knowledge_fr"]
    assert run("init", "--check", "--into", "written", *other).code == 0
    core = [one for one in migrations.find() if one.module is None]
    assert len(list((tmp_path / "written").iterdir())) == len(core)


def test_init_finds_the_schema_of_pgvector(
    run: Run, plain_dsn: str, server: Server, tmp_path: Path
) -> None:
    admin = server.admin_dsn(str(conninfo_to_dict(plain_dsn)["dbname"]))
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("alter extension vector set schema public")
    options = ["--dimensions", "3", "--schema", SCHEMA, "--into", "written"]
    assert run("init", "--check", *options).code == 0
    text = "".join(file.read_text() for file in (tmp_path / "written").iterdir())
    assert "public.vector(3)" in text


def test_an_invalid_schema_is_refused_before_anything_is_read(run: Run) -> None:
    refused = run("search", "bananas", "--schema", "no such; name")
    assert refused.code == 1
    assert "schema must be a name that needs no quotes" in refused.err

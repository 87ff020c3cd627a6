"""The one file for the SQL editor in a project that uses the Supabase CLI later."""

from pathlib import Path

import psycopg
from test_supabase_cli import Cli, pytestmark, succeeded, supabase

from second_brain.database import migrations

__all__ = ["pytestmark", "supabase"]  # a fixture and the mark


def test_a_project_fetches_the_files_that_the_sql_editor_has_installed(
    supabase: Cli, plain_dsn: str, tmp_path: Path
) -> None:
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        connection.execute(migrations.one_file(384, modules=["facets"]).encode())
    own = tmp_path / "own" / "supabase" / "migrations"
    own.mkdir(parents=True)
    (own.parent / "config.toml").write_text('project_id = "own"\n')
    succeeded(supabase("migration", "fetch", project=tmp_path / "own"))
    assert migrations.written_modules(own) == ("facets",)
    assert migrations.init(own, 384) == []
    assert "up to date" in succeeded(supabase("db", "push", project=tmp_path / "own"))
    assert len(migrations.init(own, 384, modules=["own_documents"])) == 1
    succeeded(supabase("db", "push", project=tmp_path / "own"))
    with psycopg.connect(plain_dsn) as connection:
        assert migrations.installed_modules(connection) == ("facets", "own_documents")

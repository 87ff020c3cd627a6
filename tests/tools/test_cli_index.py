"""The command `corpus index`, as typed, on a real database."""

import psycopg
from typer.testing import CliRunner

from second_brain.cli.commands import app
from second_brain.database import vector_index
from second_brain.services.install import Database


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_show_build_and_drop(dsn: str) -> None:
    assert "halfvec" in command("corpus", "index", "show", "--dsn", dsn)
    built = command("corpus", "index", "build", "--kind", "vector", "--m", "8", "--dsn", dsn)
    assert "building the vector index" in built
    assert "vector" in built.splitlines()[-2]
    assert "index build" in command("corpus", "index", "drop", "--dsn", dsn)
    assert "No index" in command("corpus", "index", "show", "--dsn", dsn)


def test_missing_settings_come_from_the_current_index(dsn: str) -> None:
    def built(*options: str) -> tuple[str, int | None, int | None]:
        command("corpus", "index", "build", *options, "--dsn", dsn)
        with psycopg.connect(dsn) as connection:
            (one,) = [
                one
                for one in vector_index.show(Database(connection))
                if one.name == vector_index.VECTOR_INDEX
            ]
        return one.kind, one.m, one.ef_construction

    assert built("--kind", "vector", "--m", "8", "--ef-construction", "40") == ("vector", 8, 40)
    assert built() == ("vector", 8, 40)
    assert built("--m", "12") == ("vector", 12, 40)
    assert built("--kind", "halfvec") == ("halfvec", 12, 40)
    vector_index.drop(dsn)
    assert built() == ("halfvec", 16, 64)

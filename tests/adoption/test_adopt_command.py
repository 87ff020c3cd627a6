"""The command adopt: what it proposes, writes, refuses and reports."""

from pathlib import Path

import psycopg
import pytest
from adopted import GUIDE

from command_line import Run, runner


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    return runner(monkeypatch, capsys, tmp_path)


@pytest.fixture
def source(dsn: str) -> str:
    """The DSN of a database with a table of Supabase's guide and two rows."""
    with psycopg.connect(dsn) as connection:
        connection.execute(GUIDE.encode())
        connection.execute(
            "insert into public.documents (content, embedding)"
            " values ('Rotate the keys.', '[1,0,0]'), ('Water the plants.', null)"
        )
    return dsn


def test_a_table_is_adopted_by_a_migration(run: Run, source: str, tmp_path: Path) -> None:
    done = run("adopt", "public.documents", "--model", "m", "--dsn", source)
    assert done.code == 0, done.err
    assert "id: the primary key" in done.err
    (file,) = (tmp_path / "supabase" / "migrations").glob("*_adopt_documents.sql")
    with psycopg.connect(source) as connection:
        connection.execute(file.read_text().encode())
    done = run("adopt", "--backfill", "documents", "--dsn", source)
    assert "documents: 2 rows carried over." in done.out
    done = run("adopt", "--check", "--dsn", source)
    assert (done.code, "2 rows compared, 0 differences" in done.out) == (0, True)


def test_a_model_is_required_for_the_embeddings_of_the_table(run: Run, source: str) -> None:
    done = run("adopt", "public.documents", "--dsn", source)
    assert done.code == 1
    assert "--model is not given" in done.err
    assert run("adopt", "public.documents", "--embed", "--dsn", source).code == 0


def test_a_difference_is_an_exit_code_of_1_until_it_is_repaired(run: Run, source: str) -> None:
    assert run("adopt", "public.documents", "--model", "m", "--apply", "--dsn", source).code == 0
    done = run("adopt", "--check", "--dsn", source)
    assert done.code == 1
    assert "2 missing" in done.out
    assert run("adopt", "--check", "--repair", "--dsn", source).code == 0
    assert "0 differences" in run("adopt", "--check", "--dsn", source).out


def test_a_removed_adoption_is_gone(run: Run, source: str) -> None:
    assert run("adopt", "public.documents", "--model", "m", "--apply", "--dsn", source).code == 0
    assert run("adopt", "--backfill", "--dsn", source).code == 0
    done = run("adopt", "--remove", "documents", "--delete-documents", "--apply", "--dsn", source)
    assert done.code == 0
    with psycopg.connect(source) as connection:
        left = connection.execute("select count(*) from public.knowledge_documents").fetchone()
        assert left == (0,)
        connection.execute("insert into public.documents (content) values ('No trigger.')")
    assert "no table is adopted" in run("adopt", "--check", "--dsn", source).err

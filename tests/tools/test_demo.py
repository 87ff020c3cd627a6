"""The command demo, on the embedded Postgres that it starts."""

from pathlib import Path

import pytest

from command_line import Run
from second_brain.database.embedded import EmbeddedPostgres


@pytest.mark.slow
def test_the_demo_answers_five_questions_three_ways_and_can_be_repeated(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The demo is for this folder: a database that the environment names must not be touched.
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    server = EmbeddedPostgres(tmp_path / ".second-brain" / "postgres")
    try:
        first = run("demo")
        assert first.code == 0, first.err
        assert first.out.count("Question: ") == 5
        assert first.out.count(" vector ") == first.out.count(" hybrid ") == 5
        assert max(map(len, first.out.splitlines())) <= 100
        answers = dict(part.partition("\n")[::2] for part in first.out.split("Question: ")[1:])
        assert "functools" in answers["lru_cache"]
        assert "difflib" in answers["Obershelp"]
        again = run("demo")
        assert "added" not in again.out
        assert again.out.partition("Question")[2] == first.out.partition("Question")[2]
    finally:
        server.remove()

"""Running `second-brain` in this process, as typed, in a folder of a test's own."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from second_brain.cli import main
from second_brain.cli.configuration import KEYS
from second_brain.models.wordllama import WordLlamaEmbedder


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture(scope="session", autouse=True)
def weights_read_once() -> Iterator[None]:
    """Let the embedders of this process share WordLlama's weights; reading them takes 0.15 s."""
    read: dict[int, dict[str, object]] = {}
    real = WordLlamaEmbedder.__init__

    def shared(self: WordLlamaEmbedder, dimensions: int = 256) -> None:
        # A test without the extra has None for the package, and meets the real error.
        if dimensions not in read or sys.modules.get("wordllama") is None:
            real(self, dimensions)
            read[dimensions] = vars(self)
        self.__dict__ = dict(read[dimensions])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WordLlamaEmbedder, "__init__", shared)
        yield


def runner(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> Run:
    """Return a function that runs a command in `folder`, with no value in its environment.

    Only the schema stays, which `--install-schema` sets.
    """
    for key in KEYS:
        for variable in key.variables if key.name != "schema" else ():
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(folder)

    def run_command(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["second-brain", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return run_command


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `second-brain` in a folder of the test's own, with no value in its environment."""
    return runner(monkeypatch, capsys, tmp_path)


@pytest.fixture
def brain(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dsn: str) -> Run:
    """Run `second-brain` on this test's database, in a folder with three documents in `docs`."""
    monkeypatch.setenv("SECOND_BRAIN_DSN", dsn)
    write_docs(tmp_path / "docs")
    with psycopg.connect(dsn, autocommit=True) as connection:
        # As `migrate` does in a new install.
        connection.execute("select public.set_knowledge_settings(fusion => 'auto')")
    return run


def write_docs(docs: Path) -> Path:
    """Write three documents into a new folder, and return it."""
    docs.mkdir(parents=True)
    (docs / "keys.md").write_text("# Keys\n\nRotate the service role key every month.")
    (docs / "fruit.md").write_text("# Fruit\n\nBananas are yellow and long.")
    (docs / "cars.txt").write_text("An automobile has four wheels and an engine.")
    return docs


def hits(done: Done) -> list[dict[str, Any]]:
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = json.loads(done.out)["results"]
    return found

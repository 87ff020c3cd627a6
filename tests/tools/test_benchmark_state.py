"""A benchmark that was killed continues."""

import json
from pathlib import Path

import pytest

from benchmarks.loading import FIGURES, Journal, Keeping, locked
from benchmarks.peers.ours import SecondBrain
from benchmarks.peers.textsearch import TextSearch


def test_a_finished_step_is_not_repeated_by_the_next_run(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    killed = Journal(file, {"commit": "a"})
    killed.once("first", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        killed.once("second", interrupted)

    resumed = Journal(file, {"commit": "a"})

    assert resumed.once("first", interrupted) == 1
    assert resumed.once("second", lambda: 2) == 2


def test_steps_of_another_commit_are_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    Journal(file, {"commit": "a"}).once("first", lambda: 1)

    assert Journal(file, {"commit": "b"}).once("first", lambda: 2) == 2


def test_a_load_counts_only_when_it_is_complete_and_of_these_migrations(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path, {"chunks": 10})
    for kind in (SecondBrain, TextSearch):
        (tmp_path / f"{kind.key}-10").mkdir()
        assert keeping.loaded(kind, 10) is None
        write_figures(tmp_path / f"{kind.key}-10", made_by="")

    assert keeping.loaded(TextSearch, 10) is not None
    assert keeping.loaded(SecondBrain, 10) is None

    write_figures(tmp_path / f"{SecondBrain.key}-10", made_by=SecondBrain.made_by())
    assert keeping.loaded(SecondBrain, 10) is not None


def test_a_load_of_another_corpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{TextSearch.key}-10").mkdir()
    write_figures(tmp_path / f"{TextSearch.key}-10", made_by="")

    with pytest.raises(RuntimeError, match="loaded with another chunks"):
        Keeping(tmp_path, {"chunks": 20}).loaded(TextSearch, 10)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(SystemExit, match="another run uses"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def write_figures(place: Path, made_by: str) -> None:
    """Write the record of a complete load."""
    figures = {"fingerprint": {"chunks": 10}, "made_by": made_by}
    (place / FIGURES).write_text(json.dumps(figures), "utf-8")


def interrupted() -> int:
    raise KeyboardInterrupt

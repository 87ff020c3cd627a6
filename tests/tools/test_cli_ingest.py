"""The commands ingest and delete, as typed, on a real database."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from command_line import Run, hits
from conftest import Connection
from second_brain.models import WordLlamaEmbedder
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn


def test_a_folder_is_ingested_counted_and_found(brain: Run, tmp_path: Path) -> None:
    done = brain("ingest", "docs")
    assert done.code == 0
    assert done.out.splitlines() == [
        f"source docs ({tmp_path}/docs): 3 documents",
        "3 documents: 3 stored",
        "chunks: 3 added, 3 embedded",
    ]
    assert re.fullmatch(r"Database: \S+ at \S+, port \d+, from \$SECOND_BRAIN_DSN\n", done.err)
    best = hits(brain("search", "how often to rotate the key", "--json"))[0]
    assert (best["rank"], best["metadata"]["title"]) == (1, "Keys")
    assert best["metadata"]["match_type"] == "both"
    assert best["metadata"]["path"] == "keys.md"


def test_chunks_have_the_size_and_overlap_that_are_asked_for(brain: Run, tmp_path: Path) -> None:
    sentences = [f"Key number {number} opens the door." for number in range(20)]
    (tmp_path / "docs" / "many.md").write_text(" ".join(sentences))
    arguments = ("ingest", "docs/many.md", "--chunk-size", "50", "--overlap", "10", "--json")
    added = json.loads(brain(*arguments).out)["chunks"]["added"]
    assert added > 3
    stored = json.loads(brain("corpus", "show", "docs:many.md", "--json").out)["chunks"]
    # Each chunk but the first repeats one sentence.
    assert sum(one["content"].count("opens the door") for one in stored) == 20 + added - 1


def test_a_bad_file_and_a_page_of_a_private_address_fail_alone(brain: Run, tmp_path: Path) -> None:
    (tmp_path / "docs" / "bad.pdf").write_bytes(b"not a PDF")
    done = brain("ingest", "http://127.0.0.1:9/page", "docs")
    assert done.code == 1
    assert "failed: 127.0.0.1-9:/page: the host 127.0.0.1 has the private address" in done.err
    assert "\nfailed: docs:bad.pdf: " in done.err
    assert "5 documents: 2 failed, 3 stored" in done.out
    refused = brain("ingest", "http://127.0.0.1:9/page", "docs", "--source", "one")
    assert "--source names one" in refused.err


def test_prune_deletes_what_is_gone_from_the_folder(brain: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.md").write_text("elsewhere")
    brain("ingest", "docs", "elsewhere.md")
    (tmp_path / "docs" / "fruit.md").unlink()
    (tmp_path / "elsewhere.md").unlink()
    assert "to prune" not in brain("ingest", "docs").out
    assert brain("ingest", "docs", "--prune", "--yes").out.splitlines()[-2:] == [
        "to prune: docs:fruit.md",
        "pruned: docs:fruit.md, 1 chunk",
    ]
    left = hits(brain("search", "x", "--mode", "vector", "--json"))
    assert {hit["metadata"]["path"] for hit in left} == {"cars.txt", "keys.md", "elsewhere.md"}


def test_prune_asks_and_deletes_nothing_without_an_answer(
    brain: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: Connection
) -> None:
    brain("ingest", "docs")
    (tmp_path / "docs" / "fruit.md").unlink()
    done = brain("ingest", "docs", "--prune")
    assert (done.code, done.out) == (2, "")
    assert "--yes" in done.err
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    done = brain("ingest", "docs", "--prune")
    assert done.code == 1
    assert "Delete 1 document?" in done.err
    assert stored_keys(database) == ["docs:cars.txt", "docs:fruit.md", "docs:keys.md"]
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert "pruned: docs:fruit.md" in brain("ingest", "docs", "--prune").out


class Terminal(io.StringIO):
    """Answers as a user at a terminal would."""

    def isatty(self) -> bool:
        return True


def stored_keys(database: Connection) -> list[str]:
    query = "select external_key from public.knowledge_documents order by external_key"
    return [key for (key,) in database.execute(query)]


def test_options_set_fields_and_what_changes_is_printed(brain: Run, database: Connection) -> None:
    brain("ingest", "docs", "--collection", "vault", "--metadata", "team=platform")
    owner = "00000000-0000-0000-0000-000000000001"
    done = brain(
        *("ingest", "docs/keys.md", "--source", "docs", "--visibility", "public"),
        *("--owner", owner, "--metadata", "team=ops", "--metadata", 'tags=["a"]'),
    )
    assert done.out.splitlines()[1] == (
        "changed: docs:keys.md: visibility private -> public; owner_id null -> "
        f'{owner}; metadata.team platform -> ops; metadata.tags null -> ["a"]'
    )
    fields = "collection, visibility, owner_id::text, metadata"
    query = f"select {fields} from public.knowledge_documents where external_key = 'docs:keys.md'"
    metadata: dict[str, object] = {"path": "keys.md", "source_file": "keys.md"}
    metadata |= {"document_type": "md", "tags": ["a"], "team": "ops"}
    row = database.execute(query.encode()).fetchone()
    assert row == ("vault", "public", owner, metadata)


def test_groups_are_set_kept_and_removed(brain: Run, database: Connection) -> None:
    def ingest(*options: str) -> tuple[str, list[str] | None]:
        done = brain("ingest", "docs/keys.md", "--source", "docs", *options)
        query = "select allowed_groups from public.knowledge_documents"
        ((groups,),) = database.execute(query).fetchall()
        return done.out, groups

    ingest()
    groups = ("--allowed-groups", "staff", "--allowed-groups", "board")
    out, stored = ingest(*groups)
    assert stored == ["board", "staff"]
    assert 'docs:keys.md: allowed_groups null -> ["board", "staff"]' in out
    assert "unchanged" in ingest(*groups)[0]
    assert ingest()[1] == ["board", "staff"]
    assert ingest("--allowed-groups", "")[1] is None


def test_a_dry_run_tells_and_writes_nothing(
    brain: Run, tmp_path: Path, database: Connection
) -> None:
    brain("ingest", "docs/fruit.md", "docs/cars.txt", "--source", "docs")
    (tmp_path / "docs" / "cars.txt").unlink()
    done = brain("ingest", "docs", "--visibility", "public", "--prune", "--dry-run")
    assert done.out.splitlines()[1:] == [
        "changed: docs:fruit.md: visibility private -> public",
        "to store: docs:keys.md: 1 added, 1 embedded chunks",
        "dry run, nothing is written: 2 documents: 2 stored",
        "chunks: 1 added, 1 unchanged, 1 embedded",
        "to prune: docs:cars.txt",
    ]
    assert stored_keys(database) == ["docs:cars.txt", "docs:fruit.md"]


def test_files_of_other_types_are_counted_and_patterns_left_out(brain: Run, tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "Makefile", "x.draft.md"):
        (tmp_path / "docs" / name).write_text("x")
    lines = brain("ingest", "docs", "--exclude", "*.draft.md").out.splitlines()
    assert lines[1] == "3 documents: 3 stored"
    assert lines[3].startswith("skipped 3 files of other types: 2 .png, 1 no ending; supported: ")
    assert lines[4] == "excluded 1 file or folder"


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--metadata", "team"], 2, "KEY=VALUE"),
        (["--metadata", "path=x"], 2, "path"),
        (["--source", "a:b"], 2, "colon"),
        (["--language", "x" * 100], 1, "failed: docs:keys.md: "),
        (["--chunk-size", "50", "--overlap", "30"], 1, "overlap must be between 0 and 25"),
    ],
    ids=["no value", "a key of its own", "colon", "language", "overlap"],
)
def test_a_wrong_option_is_told(brain: Run, arguments: list[str], code: int, named: str) -> None:
    done = brain("ingest", "docs", *arguments)
    assert (done.code, done.out if code == 2 else "") == (code, "")
    assert named in done.err


@pytest.fixture
def at_fruit(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """Do these things when the second document, fruit.md, is to be embedded."""
    steps: list[Callable[[], None]] = []
    embed = WordLlamaEmbedder.embed

    def step_and_embed(self: WordLlamaEmbedder, texts: Sequence[str]) -> NDArray[np.float32]:
        if texts[0].startswith("Fruit"):
            for step in steps:
                step()
        return embed(self, texts)

    monkeypatch.setattr(WordLlamaEmbedder, "embed", step_and_embed)
    yield steps
    steps.clear()


TOLD = (
    "Stopped at docs:fruit.md, after 1 of 3 documents; these are stored. Run the same command "
    "again to go on: unchanged documents are skipped."
)


def test_an_interrupted_run_says_what_is_done_and_goes_on(
    brain: Run, at_fruit: list[Callable[[], None]], database: Connection
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    at_fruit.append(interrupt)
    done = brain("ingest", "docs/fruit.md")
    assert (done.code, "nothing to do" in done.out) == (130, False)
    done = brain("ingest", "docs")
    assert done.code == 130
    assert done.err.splitlines()[-1] == TOLD
    assert "1 document: 1 stored" in done.out
    assert stored_keys(database) == ["docs:cars.txt"]
    at_fruit.clear()
    assert "3 documents: 2 stored, 1 unchanged" in brain("ingest", "docs").out


def test_a_lost_connection_says_what_is_done(
    brain: Run, at_fruit: list[Callable[[], None]], database: Connection
) -> None:
    at_fruit.append(
        lambda: database.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        ).close()
    )
    done = brain("ingest", "docs")
    assert done.code == 1
    assert TOLD in done.err.splitlines()
    assert done.err.splitlines()[-1].startswith("error: ")
    assert stored_keys(database) == ["docs:cars.txt"]


def test_ingesting_much_analyses_the_table(
    brain: Run, tmp_path: Path, database: Connection
) -> None:
    for number in range(60):
        (tmp_path / "docs" / f"{number}.txt").write_text(f"file number {number}")
    brain("ingest", "docs")
    assert database.execute(
        "select reltuples from pg_class where oid = 'public.knowledge_chunks'::regclass"
    ).fetchone() == (63,)


def test_delete_removes_a_document_and_says_when_there_is_none(brain: Run) -> None:
    brain("ingest", "docs")
    done = brain("corpus", "delete", "docs:keys.md", "docs:none.md")
    assert done.code == 1
    assert done.out == "docs:keys.md: deleted, 1 chunk\n"
    assert done.err.splitlines()[1:] == ["docs:none.md: no such document; `search --json` has keys"]
    assert len(hits(brain("search", "x", "--mode", "vector", "--json"))) == 2

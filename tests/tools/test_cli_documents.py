"""The commands documents and show, and what leads to them, on a real database."""

import json
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from command_line import Run
from second_brain.services.write import KnowledgeWriter
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn


@pytest.fixture
def run(brain: Run, dsn: str) -> Run:
    """Run `second-brain` on three documents with embeddings, and one that waits for its own."""
    assert brain("ingest", "docs").code == 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        KnowledgeWriter(connection).upsert_document(
            {"external_key": "support:1", "title": "A \x1b[2J title", "collection": "support"},
            [
                {"content": "First \x1b]0;x\x07 line.\nSecond\u202e line."},
                {"content": "Another chunk."},
            ],
        )
    return brain


def listed(run: Run, *options: str) -> dict[str, Any]:
    done = run("corpus", "list", "--json", *options)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_documents_are_listed_with_sizes_and_states(run: Run) -> None:
    found = listed(run)
    assert [(one["external_key"], one["state"]) for one in found["documents"]] == [
        ("docs:cars.txt", "ready"),
        ("docs:fruit.md", "ready"),
        ("docs:keys.md", "ready"),
        ("support:1", "pending"),
    ]
    assert found["next"] is None
    table = run("corpus", "list").out
    assert "docs:fruit.md" in table
    assert "\x1b" not in table


def test_documents_are_filtered_and_paged(run: Run) -> None:
    first = listed(run, "--limit", "2")
    assert first["next"] == "docs:fruit.md"
    second = listed(run, "--limit", "2", "--after", first["next"])
    assert [one["external_key"] for one in second["documents"]] == ["docs:keys.md", "support:1"]
    assert second["next"] is None
    assert "--after docs:fruit.md" in run("corpus", "list", "--limit", "2").err
    for options in (["--state", "pending"], ["--collection", "support"], ["--named", "TITLE"]):
        assert [one["external_key"] for one in listed(run, *options)["documents"]] == ["support:1"]
    assert run("corpus", "list", "--named", "nothing").err.endswith("No such documents.\n")


def test_a_document_is_shown_with_its_chunks_and_why_they_wait(run: Run) -> None:
    done = run("corpus", "show", "support:1", "--json")
    found = json.loads(done.out)
    assert [one["state"] for one in found["chunks"]] == ["pending", "pending"]
    assert "it has no embedding" in found["chunks"][0]["reason"]
    for name in (found["document"]["id"], found["chunks"][1]["id"]):
        shown = run("corpus", "show", name)
        assert "Another chunk." in shown.out
    assert "First" not in run("corpus", "show", found["chunks"][1]["id"]).out
    page = run("corpus", "show", "support:1", "--limit", "1")
    assert "Another chunk." not in page.out
    assert "second-brain corpus show support:1 --limit 1 --offset 1" in page.err
    assert (
        "Another chunk." in run("corpus", "show", "support:1", "--limit", "1", "--offset", "1").out
    )


def test_stored_control_characters_are_shown_as_codes(run: Run) -> None:
    out = run("corpus", "show", "support:1").out
    assert "A \\x1b[2J title" in out
    assert "  First \\x1b]0;x\\x07 line.\n  Second\\u202e line.\n" in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)


def test_what_is_not_stored_is_said_with_the_remedy(run: Run) -> None:
    for name in ("nothing", str(uuid4())):
        done = run("corpus", "show", name)
        assert done.code == 1
        assert (
            f"nothing is stored under '{name}'. List the keys: second-brain corpus list" in done.err
        )


def test_a_search_leads_to_show(run: Run) -> None:
    done = run("search", "yellow bananas")
    told = "Read the first hit (module insight): second-brain corpus show docs:fruit.md\n"
    assert told in done.err
    assert "Bananas are yellow and long." in run("corpus", "show", "docs:fruit.md").out

"""Notes of a user over MCP: `remember` and `forget`."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from mcp.shared.exceptions import MCPError

from mcp_clients import (
    ANA,
    BEN,
    PREFERENCE,
    Assistant,
    Broken,
    Here,
    connected,
    over_stdio,
    unquoted,
)
from second_brain.errors import ConfigurationError
from second_brain.mcp_server import Scope

pytest_plugins = ("mcp_fixtures",)

NOTE = "Ana prefers answers in French."
ANAS = Scope(viewer_id=UUID(ANA), may_remember=True)


@pytest.fixture
def ana(here: Here) -> Iterator[Assistant]:
    with here(ANAS) as assistant:
        yield assistant


@pytest.fixture
def stored(corpus: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that sees the notes of Ana; they are deleted after the test."""
    with psycopg.connect(corpus, autocommit=True) as connection:
        yield connection
        connection.execute(
            "delete from public.knowledge_documents where collection = 'memory' and owner_id = %s",
            [ANA],
        )


def memories(assistant: Assistant, query: str = "answers in French") -> set[str]:
    found = assistant.ask("hybrid_search", query=query, include_memory=True, limit=50)
    return {
        unquoted(hit["content"])
        for hit in found.content["results"]
        if hit["collection"] == "memory"
    }


def test_a_note_is_private_to_its_viewer_and_found_on_request(
    ana: Assistant, here: Here, stored: psycopg.Connection[Any]
) -> None:
    answer = ana.ask("remember", note=f"  {NOTE}\n")
    assert answer.text == f"Stored the note. id: {answer.content['id']}"
    assert (answer.content["is_new"], answer.content["is_embedded"]) == (True, True)
    assert memories(ana) == {NOTE}
    assert NOTE not in ana.ask("hybrid_search", query=NOTE).contents()
    with here(Scope(viewer_id=UUID(BEN))) as ben, here(Scope(public_only=True)) as visitor:
        assert memories(ben) == {PREFERENCE}
        assert memories(visitor) == set()
        assert ben.ask("fetch", id=answer.content["id"]).is_error
    row = stored.execute(
        "select title, knowledge_type, owner_id::text, visibility, allowed_groups"
        "  from public.knowledge_documents where id = %s",
        [answer.content["id"]],
    ).fetchone()
    assert row == (NOTE, "note", ANA, "private", None)


@pytest.mark.slow
@pytest.mark.usefixtures("stored")
def test_the_command_stores_notes_of_its_viewer(corpus: str) -> None:
    with connected(over_stdio(corpus, "--viewer-id", ANA, "--remember")) as assistant:
        note = assistant.ask("remember", note=NOTE)
        assert memories(assistant) == {NOTE}
        assert not assistant.ask("forget", id=note.content["id"]).is_error
        assert memories(assistant) == set()


@pytest.mark.usefixtures("stored")
def test_the_same_note_is_one_document(ana: Assistant) -> None:
    first = ana.ask("remember", note=NOTE)
    again = ana.ask("remember", note=NOTE.replace(" ", "\n "))
    assert again.text.startswith("This note was stored before")
    assert again.content == {**first.content, "is_new": False}
    steps = ana.ask_with_progress("remember", note=NOTE)
    assert steps == [(0, 2, "Embedding"), (1, 2, "Storing")]


@pytest.mark.usefixtures("stored")
def test_a_note_is_found_by_its_words_when_the_model_fails(here: Here) -> None:
    with here(ANAS, model=Broken()) as assistant:
        answer = assistant.ask("remember", note=NOTE)
        assert answer.content["is_embedded"] is False
        assert "without an embedding: it is found by its words" in answer.text
        assert "sk-secret" not in answer.text
        assert memories(assistant, "French") == {NOTE}


@pytest.mark.usefixtures("stored")
def test_a_viewer_forgets_their_own_notes_and_nothing_else(
    ana: Assistant, assistant: Assistant
) -> None:
    note = ana.ask("remember", note=NOTE).content["id"]
    others = {
        str(one.title): one.uri.removeprefix("second-brain://document/")
        for one in assistant.resources().resources
        if one.title != NOTE
    }
    # Ben's memory, a document of Ana that is not a note, and a public document.
    for title in ("Mia", "Recorder", "API keys"):
        refused = ana.ask("forget", id=others[title])
        assert f"there is no note {others[title]} of this user" in refused.text
    assert ana.ask("forget", id=note).text == f"Deleted the note {note}."
    assert memories(ana) == set()
    assert ana.ask("forget", id=note).is_error
    assert set(others) == {str(one.title) for one in assistant.resources().resources}


@pytest.mark.usefixtures("stored")
def test_the_number_and_the_size_of_notes_are_bounded(
    ana: Assistant, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "at most 2000 characters" in ana.ask("remember", note="x" * 2001).text
    assert not ana.ask("remember", note="x" * 2000).is_error
    monkeypatch.setattr("second_brain.mcp_server.notes.MOST_NOTES", 1)
    refused = ana.ask("remember", note=NOTE)
    assert refused.text == (
        "The note is not stored: this user has 1 notes, which is the most. Delete one with forget "
        "first."
    )


def test_only_a_server_that_allows_it_has_the_tools(ana: Assistant, assistant: Assistant) -> None:
    assert set(ana.tools) - set(assistant.tools) == {"remember", "forget"}
    for name, is_destructive in (("remember", False), ("forget", True)):
        hints = ana.tools[name].annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.destructive_hint) == (False, is_destructive)
    with pytest.raises(MCPError, match="there is no tool 'remember'"):
        assistant.ask("remember", note=NOTE)


@pytest.mark.parametrize(
    "scope",
    [
        {},
        {"viewer_groups": ("growers",)},
        {"viewer_id": UUID(ANA), "public_only": True},
        {"viewer_id": UUID(ANA), "collections": ("knowledge",)},
    ],
    ids=["nobody", "a group", "public rows only", "another collection"],
)
def test_notes_that_nobody_could_find_again_are_refused(scope: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Scope(**scope, may_remember=True)

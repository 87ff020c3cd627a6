"""Documents over MCP: who sees them in `search`, `fetch` and resources; and a user's notes."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from mcp.shared.exceptions import MCPError

from mcp_clients import (
    ANA,
    BEN,
    KEYS,
    LEAKED,
    LONG,
    PREFERENCE,
    SOURCE,
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

URI = "second-brain://document/"
TITLES = {"API keys", "Recorder", "Mia", "A 1. heron", "Fruit"}


def documents(assistant: Assistant) -> dict[str, str]:
    """Return the ids of the documents that a server lists, by their titles."""
    listed = assistant.resources()
    assert listed.next_cursor is None
    return {str(one.title): one.uri.removeprefix(URI) for one in listed.resources}


def test_search_and_fetch_are_what_connectors_expect(assistant: Assistant) -> None:
    answer = assistant.ask("search", query="rotated service role keys")
    assert json.loads(answer.text) == answer.content
    (best, *_) = answer.content["results"]
    assert best.keys() == {"id", "title", "url"}
    assert (best["title"], best["url"]) == ("API keys", "https://example.org/keys")
    read = assistant.ask("fetch", id=best["id"])
    assert json.loads(read.text) == read.content
    metadata = read.content.pop("metadata")
    assert read.content == {**best, "text": f"{KEYS}\n\n{LEAKED}"}
    assert metadata["team"] == "platform"
    assert (metadata["external_key"], metadata["knowledge_type"]) == ("keys", "decision")
    assert "next_offset" not in metadata


@pytest.mark.parametrize(
    ("scope", "visible"),
    [
        ({}, TITLES),
        ({"viewer_id": UUID(ANA)}, {"API keys", "Recorder"}),
        ({"viewer_id": UUID(BEN)}, {"API keys", "Fruit", "Mia", "A 1. heron"}),
        ({"viewer_groups": ("growers",)}, {"API keys", "Fruit"}),
        (
            {"viewer_id": UUID(ANA), "viewer_groups": ("growers",)},
            {"API keys", "Recorder", "Fruit"},
        ),
        ({"viewer_groups": ("staff",)}, {"API keys"}),
        ({"viewer_groups": ()}, {"API keys"}),
        ({"viewer_groups": ("growers",), "public_only": True}, {"API keys"}),
        ({"viewer_id": UUID(BEN), "public_only": True}, {"API keys"}),
        ({"public_only": True}, {"API keys"}),
        ({"collections": ("tickets",)}, {"Recorder"}),
        ({"collections": ("knowledge",), "viewer_id": UUID(ANA)}, {"API keys"}),
        ({"collections": ("memory",), "viewer_id": UUID(BEN)}, {"Mia"}),
    ],
)
def test_a_server_shows_the_documents_of_its_scope_whatever_is_asked(
    assistant: Assistant, here: Here, scope: dict[str, Any], visible: set[str]
) -> None:
    with here(Scope(**scope)) as limited:
        assert documents(limited).keys() == visible
        for title, id_ in documents(assistant).items():
            answer = limited.ask("fetch", id=id_)
            assert answer.is_error is (title not in visible)
            if title in visible:
                assert limited.read(URI + id_).text
                continue
            # As for a document that does not exist.
            assert answer.text.startswith(f"Fetch failed: there is no document {id_}")
            with pytest.raises(MCPError, match=f"there is no resource '{URI}{id_}' here"):
                limited.read(URI + id_)
        if "collections" in scope:
            return

        def titles(tool: str, **arguments: Any) -> set[str]:
            asked = "keys, cameras, heron, kumquats, Mondays"
            found = limited.ask(tool, query=asked, **arguments).content["results"]
            return {" ".join(hit["title"].split()) for hit in found}

        everything = {"limit": 50, "include_memory": True}
        assert titles("hybrid_search", **everything) == visible
        assert titles("search_knowledge_base", match_count=50) == visible - {"Mia"}
        bens = [{"field": "owner_id", "op": "eq", "value": BEN}]
        others = {"API keys", "Recorder"}
        assert titles("hybrid_search", **everything, filters=bens) == visible - others


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"id": "keys"}, "id: Input should be a valid UUID"),
        ({"id": ANA}, f"there is no document {ANA} here. Search first"),
    ],
)
def test_a_document_that_cannot_be_read_is_refused(
    assistant: Assistant, arguments: dict[str, Any], complaint: str
) -> None:
    refused = assistant.ask("fetch", **arguments)
    assert refused.is_error
    assert refused.text.startswith(f"Fetch failed: {complaint}")


@pytest.mark.parametrize("tool", ["hybrid_search", "search_knowledge_base"])
def test_a_result_links_to_its_document(assistant: Assistant, tool: str) -> None:
    found = assistant.ask(tool, query="kumquats")
    assert [link.uri for link in found.links] == [
        f"{URI}{hit['document_id']}" for hit in found.content["results"]
    ]
    assert found.links[0].name == "Fruit"
    assert assistant.read(found.links[0].uri).text == LONG


def test_a_document_is_a_resource_of_the_template(assistant: Assistant) -> None:
    assert assistant.templates() == ["second-brain://document/{id}{?offset}"]
    read = assistant.read(URI + documents(assistant)["API keys"])
    assert (read.text, read.mime_type) == (f"{KEYS}\n\n{LEAKED}", "text/plain")


def test_a_long_document_is_read_in_parts(
    assistant: Assistant, monkeypatch: pytest.MonkeyPatch, here: Here
) -> None:
    id_ = documents(assistant)["API keys"]
    monkeypatch.setattr("second_brain.mcp_server.documents.DOCUMENT_BOUND", len(KEYS))
    following = f"{URI}{id_}?offset=1"
    with here(Scope()) as bounded:
        first = bounded.ask("fetch", id=id_).content
        second = bounded.ask("fetch", id=id_, offset=1).content
        resource, rest = bounded.read(URI + id_), bounded.read(following)
    assert (first["text"], first["metadata"]["next_offset"]) == (KEYS, 1)
    assert (second["text"], "next_offset" in second["metadata"]) == (LEAKED, False)
    assert resource.text == f"{KEYS}\n\n[The document continues: {following}]"
    assert (resource.meta or {})["second-brain/next"] == following
    assert (rest.text, rest.meta) == (LEAKED, None)


@pytest.mark.parametrize(
    "uri", [f"{URI}{SOURCE}", f"{URI}------------------------------------", "file:///etc/passwd"]
)
def test_another_uri_is_refused(assistant: Assistant, uri: str) -> None:
    with pytest.raises(MCPError, match="there is no resource "):
        assistant.read(uri)


def test_the_list_of_resources_has_pages(
    monkeypatch: pytest.MonkeyPatch, here: Here, assistant: Assistant
) -> None:
    monkeypatch.setattr("second_brain.mcp_server.documents.PAGE_SIZE", 2)
    with here(Scope()) as paged:
        page = paged.resources()
        seen = page.resources
        while page.next_cursor is not None:
            assert len(page.resources) == 2
            page = paged.resources(page.next_cursor)
            seen = [*seen, *page.resources]
        with pytest.raises(MCPError, match="cursor must be one that this server gave, not '%'"):
            paged.resources("%")
    assert seen == assistant.resources().resources


NOTE = "Ana prefers answers in French."
ANAS = Scope(viewer_id=UUID(ANA), may_remember=True)


@pytest.fixture
def notes(corpus: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that sees the notes of Ana; they are deleted after the test."""
    with psycopg.connect(corpus, autocommit=True) as connection:
        yield connection
        connection.execute(
            "delete from public.knowledge_documents where collection = 'memory' and owner_id = %s",
            [ANA],
        )


@pytest.fixture
def ana(here: Here, notes: psycopg.Connection[Any]) -> Iterator[Assistant]:
    with here(ANAS) as assistant:
        yield assistant


def memories(assistant: Assistant, query: str = "answers in French") -> set[str]:
    found = assistant.search(query, include_memory=True, limit=50).content["results"]
    return {unquoted(hit["content"]) for hit in found if hit["collection"] == "memory"}


def test_a_note_is_private_to_its_viewer_and_found_on_request(
    ana: Assistant, here: Here, notes: psycopg.Connection[Any]
) -> None:
    answer = ana.ask("remember", note=f"  {NOTE}\n")
    assert answer.text == f"Stored the note. id: {answer.content['id']}"
    assert (answer.content["is_new"], answer.content["is_embedded"]) == (True, True)
    assert memories(ana) == {NOTE}
    assert NOTE not in ana.search(NOTE).contents()
    with here(Scope(viewer_id=UUID(BEN))) as ben, here(Scope(public_only=True)) as visitor:
        assert (memories(ben), memories(visitor)) == ({PREFERENCE}, set())
        assert ben.ask("fetch", id=answer.content["id"]).is_error
    row = notes.execute(
        "select title, knowledge_type, owner_id::text, visibility, allowed_groups"
        "  from public.knowledge_documents where id = %s",
        [answer.content["id"]],
    ).fetchone()
    assert row == (NOTE, "note", ANA, "private", None)


@pytest.mark.slow
@pytest.mark.usefixtures("notes")
def test_the_command_stores_notes_of_its_viewer(corpus: str) -> None:
    with connected(over_stdio(corpus, "--viewer-id", ANA, "--remember")) as assistant:
        note = assistant.ask("remember", note=NOTE)
        assert memories(assistant) == {NOTE}
        assert not assistant.ask("forget", id=note.content["id"]).is_error
        assert memories(assistant) == set()


def test_the_same_note_is_one_document(ana: Assistant) -> None:
    first = ana.ask("remember", note=NOTE)
    again = ana.ask("remember", note=NOTE.replace(" ", "\n "))
    assert again.text.startswith("This note was stored before")
    assert again.content == {**first.content, "is_new": False}
    steps = ana.ask_with_progress("remember", note=NOTE)
    assert steps == [(0, 2, "Embedding"), (1, 2, "Storing")]


@pytest.mark.usefixtures("notes")
def test_a_note_is_found_by_its_words_when_the_model_fails(here: Here) -> None:
    with here(ANAS, model=Broken()) as assistant:
        answer = assistant.ask("remember", note=NOTE)
        assert answer.content["is_embedded"] is False
        assert "without an embedding: it is found by its words" in answer.text
        assert "sk-secret" not in answer.text
        assert memories(assistant, "French") == {NOTE}


def test_a_viewer_forgets_their_own_notes_and_nothing_else(
    ana: Assistant, assistant: Assistant
) -> None:
    others = documents(assistant)
    note = ana.ask("remember", note=NOTE).content["id"]
    # Ben's memory, a document of Ana that is not a note, and a public document.
    for title in ("Mia", "Recorder", "API keys"):
        refused = ana.ask("forget", id=others[title])
        assert f"there is no note {others[title]} of this user" in refused.text
    assert ana.ask("forget", id=note).text == f"Deleted the note {note}."
    assert memories(ana) == set()
    assert ana.ask("forget", id=note).is_error
    assert documents(assistant) == others


@pytest.mark.parametrize("owner", [ANA, BEN, None])
def test_a_viewer_does_not_forget_a_visible_document_that_is_no_note_of_theirs(
    ana: Assistant, notes: psycopg.Connection[Any], owner: str | None
) -> None:
    key = f"memory of {owner}"
    notes.execute(
        "insert into public.knowledge_documents"
        " (external_key, title, collection, visibility, owner_id)"
        " values (%s, 'Shared', 'memory', 'public', %s)",
        [key, owner],
    )
    notes.execute(
        "insert into public.knowledge_chunks (document_id, chunk_index, content, collection)"
        " select id, 0, 'Answers are short.', 'memory' from public.knowledge_documents"
        "  where external_key = %s",
        [key],
    )
    try:
        stored = notes.execute(
            "select id::text from public.knowledge_documents where external_key = %s", [key]
        ).fetchall()
        ((id_,),) = stored
        assert not ana.ask("fetch", id=id_).is_error
        assert f"there is no note {id_} of this user" in ana.ask("forget", id=id_).text
        assert not ana.ask("fetch", id=id_).is_error
    finally:
        notes.execute("delete from public.knowledge_documents where external_key = %s", [key])


def test_the_number_and_the_size_of_notes_are_bounded(
    ana: Assistant, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "at most 2000 characters" in ana.ask("remember", note="x" * 2001).text
    assert not ana.ask("remember", note="x" * 2000).is_error
    monkeypatch.setattr("second_brain.mcp_server.notes.MOST_NOTES", 1)
    assert ana.ask("remember", note=NOTE).text == (
        "The note is not stored: this user has 1 notes, which is the most. Delete one with forget "
        "first."
    )


def test_only_a_server_that_allows_it_has_the_tools(ana: Assistant, assistant: Assistant) -> None:
    assert ana.tools.keys() - assistant.tools.keys() == {"remember", "forget"}
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

"""Documents over MCP: the tools `search` and `fetch`, and resources."""

import json
from typing import Any
from uuid import UUID

import pytest
from mcp.shared.exceptions import MCPError

from mcp_clients import ANA, BEN, KEYS, LEAKED, LONG, SOURCE, Assistant, Here
from second_brain.mcp_server import Scope

pytest_plugins = ("mcp_fixtures",)


def found_ids(assistant: Assistant, query: str) -> dict[str, str]:
    """Return the ids of the documents that the tool `search` finds, by their titles."""
    answer = assistant.ask("search", query=query)
    assert json.loads(answer.text) == answer.content
    return {hit["title"]: hit["id"] for hit in answer.content["results"]}


def test_search_and_fetch_are_what_connectors_expect(assistant: Assistant) -> None:
    answer = assistant.ask("search", query="rotated service role keys")
    (best, *_) = answer.content["results"]
    assert set(best) == {"id", "title", "url"}
    assert (best["title"], best["url"]) == ("API keys", "https://example.org/keys")
    read = assistant.ask("fetch", id=best["id"])
    assert json.loads(read.text) == read.content
    metadata = read.content.pop("metadata")
    assert read.content == {**best, "text": f"{KEYS}\n\n{LEAKED}"}
    assert metadata["team"] == "platform"
    assert (metadata["external_key"], metadata["knowledge_type"]) == ("keys", "decision")
    assert "next_offset" not in metadata


def test_a_document_can_be_read_in_parts(
    assistant: Assistant, monkeypatch: pytest.MonkeyPatch, here: Here
) -> None:
    document = found_ids(assistant, "leaked keys")["API keys"]
    monkeypatch.setattr("second_brain.mcp_server.documents.DOCUMENT_BOUND", len(KEYS))
    with here(Scope()) as bounded:
        first = bounded.ask("fetch", id=document)
        assert (first.content["text"], first.content["metadata"]["next_offset"]) == (KEYS, 1)
        second = bounded.ask("fetch", id=document, offset=1)
    assert second.content["text"] == LEAKED
    assert "next_offset" not in second.content["metadata"]


def test_fetch_reads_only_what_the_server_shows(assistant: Assistant, here: Here) -> None:
    ids = found_ids(assistant, "keys, cameras and kumquats")
    memory = assistant.ask("hybrid_search", query="Mondays", include_memory=True, limit=1)
    ids["Mia"] = memory.content["results"][0]["document_id"]
    visible = {
        Scope(): {"API keys", "Recorder", "Fruit", "Mia"},
        Scope(viewer_id=UUID(ANA)): {"API keys", "Recorder"},
        Scope(viewer_id=UUID(BEN)): {"API keys", "Fruit", "Mia"},
        Scope(viewer_groups=("growers",)): {"API keys", "Fruit"},
        Scope(viewer_id=UUID(ANA), viewer_groups=("growers",)): {"API keys", "Recorder", "Fruit"},
        Scope(viewer_groups=()): {"API keys"},
        Scope(viewer_groups=("growers",), public_only=True): {"API keys"},
        Scope(public_only=True): {"API keys"},
        Scope(collections=("tickets",)): {"Recorder"},
        Scope(collections=("knowledge",), viewer_id=UUID(ANA)): {"API keys"},
    }
    for scope, titles in visible.items():
        with here(scope) as limited:
            answers = {
                title: limited.ask("fetch", id=ids[title])
                for title in ("API keys", "Recorder", "Fruit", "Mia")
            }
        assert {title for title, answer in answers.items() if not answer.is_error} == titles
        for title, answer in answers.items():
            if answer.is_error:
                # As for an id that does not exist.
                assert answer.text.startswith(f"Fetch failed: there is no document {ids[title]}")


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


TITLES = {"API keys", "Recorder", "Mia", "A 1. heron", "Fruit"}


@pytest.mark.parametrize("tool", ["hybrid_search", "search_knowledge_base"])
def test_a_result_links_to_its_document(assistant: Assistant, tool: str) -> None:
    found = assistant.ask(tool, query="kumquats")
    assert [link.uri for link in found.links] == [
        f"second-brain://document/{hit['document_id']}" for hit in found.content["results"]
    ]
    best = found.links[0]
    assert best.name == "Fruit"
    assert assistant.read(best.uri).text == LONG


def test_a_document_is_a_resource_of_the_template(assistant: Assistant) -> None:
    assert assistant.templates() == ["second-brain://document/{id}{?offset}"]
    document = found_ids(assistant, "leaked keys")["API keys"]
    read = assistant.read(f"second-brain://document/{document}")
    assert (read.text, read.mime_type) == (f"{KEYS}\n\n{LEAKED}", "text/plain")


def test_a_long_resource_names_its_next_part(
    assistant: Assistant, monkeypatch: pytest.MonkeyPatch, here: Here
) -> None:
    uri = f"second-brain://document/{found_ids(assistant, 'leaked keys')['API keys']}"
    monkeypatch.setattr("second_brain.mcp_server.documents.DOCUMENT_BOUND", len(KEYS))
    with here(Scope()) as bounded:
        first = bounded.read(uri)
        assert first.meta is not None
        following = first.meta["second-brain/next"]
        assert first.text == f"{KEYS}\n\n[The document continues: {following}]"
        second = bounded.read(following)
    assert (following, second.text, second.meta) == (f"{uri}?offset=1", LEAKED, None)


def test_resources_are_those_that_the_caller_may_see(assistant: Assistant, here: Here) -> None:
    uris = {str(one.title): one.uri for one in assistant.resources().resources}
    assert set(uris) == TITLES
    for scope, visible in {
        Scope(viewer_id=UUID(ANA)): {"API keys", "Recorder"},
        Scope(viewer_groups=("growers",)): {"API keys", "Fruit"},
        Scope(viewer_id=UUID(ANA), viewer_groups=("growers",)): {"API keys", "Recorder", "Fruit"},
        Scope(viewer_id=UUID(BEN), public_only=True): {"API keys"},
        Scope(viewer_id=UUID(BEN), collections=("memory",)): {"Mia"},
    }.items():
        with here(scope) as limited:
            listed = limited.resources()
            assert ({str(one.title) for one in listed.resources}, listed.next_cursor) == (
                visible,
                None,
            )
            for title, uri in uris.items():
                if title in visible:
                    assert limited.read(uri).text
                    continue
                # As for a document that does not exist.
                with pytest.raises(MCPError, match=f"there is no resource '{uri}' here"):
                    limited.read(uri)


@pytest.mark.parametrize(
    "uri",
    [
        f"second-brain://document/{SOURCE}",
        "second-brain://document/------------------------------------",
        "file:///etc/passwd",
    ],
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

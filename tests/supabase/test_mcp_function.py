"""The Edge Function `mcp`, run by Deno over a real database and called by MCP's own client."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import jwt
import psycopg
import pytest
from rest import Rest
from test_frontend import ANA, BEN, ROOT, deployed, project, signed, store

from conformance import REVISIONS, conformance, needs_runner
from conftest import Server
from mcp_clients import Answer, Assistant, connected, with_token
from mcp_users import KEY, OTHER_KEY
from second_brain.mcp_server.server import _TOOLS
from support.documents import upsert

FUNCTION = ROOT / "supabase" / "functions" / "mcp" / "index.ts"
DATES = """
update public.knowledge_documents
   set document_date = date '2026-01-01' + case external_key when 'pets' then 59 else 0 end
"""
AUDIENCE = {"aud": "authenticated"}
# The last is for servers without a token on a loopback address.
NOT_OFFERED = ("resources-list", "sep-2164-resource-not-found", "dns-rebinding-protection")
Running: TypeAlias = tuple[str, Rest]


@pytest.fixture(scope="module")
def running(server: Server) -> Iterator[Running]:
    with project(server) as (rest, owner):
        rest.keys["first"] = KEY
        store(owner, "note", ANA, "Prefers mondays.", 2, collection="memory")
        owner.execute(DATES)
        with deployed(FUNCTION, rest) as at:
            yield at, rest


def by_key(key: Any = KEY, kid: str = "first", algorithm: str = "ES256", **changed: Any) -> str:
    lasting = {"role": "authenticated", "sub": str(ANA), "exp": int(time.time()) + 600}
    return jwt.encode(
        {**lasting, **AUDIENCE, **changed}, key, algorithm=algorithm, headers={"kid": kid}
    )


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_user_finds_their_own_rows_with_either_kind_of_token(running: Running, mode: str) -> None:
    url, rest = running
    for token, titles in (
        (signed(ANA, **AUDIENCE), {"billing", "pets"}),
        (by_key(), {"billing", "pets"}),
        (signed(BEN, **AUDIENCE), {"salary"}),
    ):
        with connected(with_token(url, token, mode=mode)) as assistant:
            assert assistant.tools.keys() == _TOOLS.keys()
            found = assistant.ask("hybrid_search", query="invoice")
        assert {hit["title"] for hit in found.content["results"]} == titles
        assert found.content["results"][0]["match_type"] == "both"
        told = json.loads(found.text)["results"]
        assert [hit["id"] for hit in told] == [hit["id"] for hit in found.content["results"]]
    assert set(rest.called) == {"search_my_knowledge_chunks"}


def test_its_tools_are_those_of_the_server(running: Running) -> None:
    with connected(with_token(running[0], by_key())) as assistant:
        listed = assistant.tools
    for name, tool in _TOOLS.items():
        schema = tool.model_json_schema()
        assert listed[name].input_schema["properties"] == schema["properties"], name
        assert listed[name].input_schema.get("required") == schema.get("required"), name
        assert listed[name].title == tool.title
        assert (listed[name].description or "").startswith(tool.description)


@pytest.fixture
def assistant(running: Running) -> Iterator[Assistant]:
    with connected(with_token(running[0], by_key())) as one:
        yield one


def titles(answer: Answer) -> list[str]:
    assert not answer.is_error, answer.text
    return [hit["title"] for hit in answer.content["results"]]


def test_each_argument_has_its_effect(assistant: Assistant) -> None:
    def asked(**arguments: Any) -> list[str]:
        return titles(assistant.ask("hybrid_search", **{"query": "invoice", **arguments}))

    assert asked() == ["billing", "pets"]
    assert asked(limit=1) == ["billing"]
    assert asked(filters={"language": "xx"}) == []
    assert asked(filters={"nosuchkey": 1}) == []
    assert asked(filters={"no.such.key": 1}) == []
    assert asked(query="inv", prefix_last=True)[0] == "billing"
    assert asked(order_by="document_date desc") == ["pets", "billing"]
    assert asked(order_by="document_date asc") == ["billing", "pets"]
    assert asked(min_confidence=0.5) == ["billing"]
    assert asked(collections=["nowhere"]) == []
    assert asked(date_from="2026-02-01") == ["pets"]
    assert asked(date_to="2026-02-01") == ["billing"]
    assert asked(boosts=[{"filters": {"document_date": "2026-03-01"}, "factor": 9}])[0] == "pets"
    assert asked(diversity=0.5, merge_duplicates=True, max_per_document=2) == ["billing", "pets"]
    assert asked(expand_neighbors=True, order_by=None, like_ids=[]) == ["billing", "pets"]


def test_memories_are_found_only_on_request(assistant: Assistant) -> None:
    assert "note" not in titles(assistant.ask("hybrid_search", query="mondays"))
    for asked in ({"include_memory": True}, {"collections": ["memory"]}):
        assert "note" in titles(assistant.ask("hybrid_search", query="mondays", **asked))
    none = assistant.ask("hybrid_search", query="mondays", filters={"collection": "memory"})
    assert titles(none) == []


def test_more_like_a_result_is_found(assistant: Assistant) -> None:
    hits = assistant.ask("hybrid_search", query="invoice").content["results"]
    ids = {hit["title"]: hit["document_id"] for hit in hits}
    more = assistant.ask("hybrid_search", query="invoice", like_ids=[ids["billing"]])
    assert titles(more) == ["pets"]


def test_the_older_names_search_too(assistant: Assistant) -> None:
    found = assistant.ask("search", query="invoice").content["results"]
    assert [(hit["title"], hit["url"]) for hit in found] == [("billing", ""), ("pets", "")]

    def ranks(kind: str) -> list[tuple[object, ...]]:
        asked = {"query": "invoice", "search_type": kind}
        hits = assistant.ask("search_knowledge_base", **asked).content["results"]
        return [(hit["title"], hit["vector_rank"], hit["text_rank"]) for hit in hits]

    assert ranks("hybrid") == [("billing", 1, 1), ("pets", 2, None)]
    assert ranks("vector") == [("billing", 1, None), ("pets", 2, None)]
    assert ranks("text") == [("billing", None, 1)]
    other = assistant.ask("search_knowledge_base", query="invoice", source_id=str(BEN))
    assert titles(other) == []


def test_a_document_is_read_by_who_may_see_it(assistant: Assistant, running: Running) -> None:
    (hit, *_) = assistant.ask("hybrid_search", query="invoice").content["results"]
    read = assistant.ask("fetch", id=hit["document_id"])
    assert read.content["text"] == "An invoice is due after 14 days."
    assert read.content["title"] == "billing"
    assert read.content["metadata"]["external_key"] == "billing"
    assert json.loads(read.text) == read.content
    rest = assistant.ask("fetch", id=hit["document_id"], offset=1)
    assert (rest.content["text"], "next_offset" in rest.content["metadata"]) == ("", False)
    with connected(with_token(running[0], signed(BEN, **AUDIENCE))) as other:
        hidden = other.ask("fetch", id=hit["document_id"])
    assert hidden.is_error
    assert hidden.text == (
        f"Fetch failed: there is no document {hit['document_id']} here. "
        "Search first, and give the document_id of a result."
    )


def test_a_long_document_comes_in_parts(assistant: Assistant, running: Running) -> None:
    texts = ["a " * 30_000, "b " * 10_000, "c"]
    with psycopg.connect(running[1].dsn, autocommit=True) as owner:
        stored = str(upsert(owner, "long", *texts, title="long", owner_id=ANA))
        first = assistant.ask("fetch", id=stored).content
        offset = first["metadata"]["next_offset"]
        second = assistant.ask("fetch", id=stored, offset=offset).content
        owner.execute("select public.delete_knowledge_document('long')")
    assert (first["text"].strip(), offset) == (texts[0].strip(), 1)
    assert second["text"].endswith("c")
    assert "next_offset" not in second["metadata"]


WRONG = {
    **{"filters": [{"field": "no", "op": "eq"}], "limit": 51, "diversity": 2, "like_ids": ["x"]},
    **{"order_by": "nothing", "nosuch": 1},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_refusal_names_the_argument_and_the_remedy(assistant: Assistant, name: str) -> None:
    refused = assistant.ask("hybrid_search", **{"query": "a", name: WRONG[name]})
    assert refused.is_error
    assert refused.text.startswith("Search failed: ")
    assert name in refused.text
    assert refused.text.endswith(". Correct the argument that the message names."), refused.text


SEARCH_FAILED = "Search failed: the search failed. Try again; the function's log has the cause."
NOT_INSTALLED = (
    "it is of the module own_documents, which is not installed or too old. "
    "Install it: `second-brain migrate --with own_documents`"
)


@pytest.mark.parametrize(
    ("tool", "argument", "status", "message"),
    [("hybrid_search", "query", 503, SEARCH_FAILED), ("fetch", "id", 404, NOT_INSTALLED)],
)
def test_a_failure_names_its_remedy(
    assistant: Assistant, running: Running, tool: str, argument: str, status: int, message: str
) -> None:
    missing = "Could not find the function public.read_my_knowledge_document"
    code = "PGRST202" if status == 404 else "down"
    running[1].failure = (status, {"code": code, "message": missing})
    try:
        failed = assistant.ask(tool, **{argument: str(BEN)})
    finally:
        running[1].failure = None
    assert failed.is_error
    assert message in failed.text


def refused(url: str, token: str | None) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.post(url, json={}, headers=headers, timeout=60)


def test_a_token_that_is_not_a_signed_in_users_leads_to_the_sign_in(running: Running) -> None:
    url, rest = running
    mcp = f"http://127.0.0.1:{rest.server_port}/functions/v1/mcp"
    wrong = {
        "none": None,
        "no token": "sb_ana",
        "of a visitor": by_key(role="anon"),
        "of the service": by_key(role="service_role"),
        "for something else": by_key(aud="other"),
        "expired": by_key(exp=int(time.time()) - 60),
        "of another key": by_key(OTHER_KEY),
        "of an unknown key": by_key(OTHER_KEY, "second"),
        "of another secret": by_key("another secret of more than 32 bytes", "s", "HS256"),
    }
    for name, token in wrong.items():
        answer = refused(url, token)
        assert answer.status_code == 401, (name, answer.text)
        place = f'resource_metadata="{mcp}/.well-known/oauth-protected-resource"'
        assert place in answer.headers["www-authenticate"], name
    metadata = httpx.get(f"{url}mcp/.well-known/oauth-protected-resource").json()
    assert metadata == {
        "resource": mcp,
        "authorization_servers": [f"http://127.0.0.1:{rest.server_port}/auth/v1"],
        "bearer_methods_supported": ["header"],
    }


CHECKED = {
    "2026-07-28": {"server-stateless", "tools-list", "http-header-validation", "caching"},
    "2025-11-25": {"server-initialize", "ping", "tools-list"},
}


@needs_runner
@pytest.mark.parametrize("revision", REVISIONS)
def test_it_conforms(running: Running, revision: str, tmp_path: Path) -> None:
    preload = ROOT / "tests" / "supabase" / "signed_in.ts"
    with deployed(FUNCTION, running[1], preload, TOKEN=by_key()) as url:
        passed, failed = conformance(url, revision, tmp_path, NOT_OFFERED)
    assert failed == []
    assert passed.keys() == CHECKED[revision]

"""What a model may send to each tool: the query and the named arguments, never who asks."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pytest
from langchain_core.messages import ToolMessage
from mcp import Client
from rest import Rest
from test_frontend import ANA, ANON_KEY, BEN, ROOT, deployed, project, signed, store
from test_javascript_package import build, npm

import second_brain
from conftest import Server
from mcp_clients import Assistant, connected, with_token
from second_brain.errors import InvalidInputError
from second_brain.integrations import haystack, langchain, llama_index
from second_brain.mcp_server import Scope, create_server
from second_brain.models import CallableEmbedder
from second_brain.retrieval.tool_arguments import ANSWER_BOUND, DATA

Call: TypeAlias = Mapping[str, Any]

OF_ANA, OF_BEN = "An invoice is due after 14 days.", "The invoice of Ben's salary is secret."
QUERY = {"query": "invoice"}
WHO = {
    "viewer_id": str(BEN),
    "viewer_groups": ["team"],
    "public_only": False,
    "required_filters": [],
    "function": "search_my_knowledge_chunks",
    "options": {"viewer_id": None},
    "access": {"viewer_id": str(BEN)},
    "timeout": 1,
    "signal": {},
    "schema": "private",
    "embedding": [1.0],
    "query_embedding": "[1]",
    "ranked_lists": [],
    "constructor": {},
    "viewerId": str(BEN),
    "VIEWER_ID": str(BEN),
    "viewer_id ": str(BEN),
}
"""What says who asks, and other arguments of the functions below a tool."""


class Answered(NamedTuple):
    is_refused: bool
    text: str


class Place(NamedTuple):
    """A database with a document of Ana's and one of Ben's, and what stands for its project."""

    dsn: str
    rest: Rest


Tool: TypeAlias = Callable[[Place, Sequence[Call]], list[Answered]]


def axis(_: Sequence[str]) -> list[list[float]]:
    return [[1.0, *[0.0] * 383]]


EMBEDDER = CallableEmbedder(axis, model="gte-small", dimensions=384)
NAMED = ["limit", "collections", "date_from", "order_by", "filters", "min_confidence"]
TOOL_TAGS = "\U000e0041\U000e0042\u202e\u200b"
LONG = "archive " + "The heron waits for the fish in the reeds. " * 180
ENGLISH = [{"field": "language", "op": "eq", "value": "english"}]
BOUND = {"viewer_id": ANA, "required_filters": ENGLISH}


@pytest.fixture(scope="module")
def place(server: Server) -> Iterator[Place]:
    with project(server) as (rest, owner):
        owner.execute("truncate public.knowledge_documents, public.knowledge_chunks cascade")
        store(owner, "ana", ANA, OF_ANA, 0)
        store(owner, "ben", BEN, OF_BEN, 0)
        store(owner, "tagged", ANA, f"The ibis{TOOL_TAGS} sleeps.", 0)
        for number in range(20):
            store(owner, f"long {number}", ANA, f"{LONG} {number}", 1)
            store(owner, f"wide {number}", ANA, f"umlaut {'Äpfel und Öl, ' * 400} {number}", 1)
        yield Place(rest.dsn, rest)


def service_of(place: Place) -> second_brain.RetrievalService:
    return second_brain.RetrievalService(second_brain.PostgresProvider(place.dsn), EMBEDDER)


def of_langchain(place: Place, calls: Sequence[Call]) -> list[Answered]:
    tool = langchain.search_tool(service_of(place), arguments=NAMED, options=BOUND)
    assert DATA in tool.description

    def ask(sent: Call) -> Answered:
        call = {"name": "search", "args": dict(sent), "id": "1", "type": "tool_call"}
        message = tool.invoke(call)
        assert isinstance(message, ToolMessage)
        return Answered(message.status == "error", str(message.content))

    return list(map(ask, calls))


def of_llama_index(place: Place, calls: Sequence[Call]) -> list[Answered]:
    tool = llama_index.search_tool(service_of(place), arguments=NAMED, options=BOUND)
    assert DATA in str(tool.metadata.description)
    texts = [str(tool.call(**sent).content) for sent in calls]
    return [Answered(text.startswith("Search failed: "), text) for text in texts]


def of_haystack(place: Place, calls: Sequence[Call]) -> list[Answered]:
    tool = haystack.search_tool(service_of(place), arguments=NAMED, options=BOUND)
    assert DATA in tool.description
    texts = [str(tool.invoke(**sent)) for sent in calls]
    return [Answered(text.startswith("Search failed: "), text) for text in texts]


def by_assistant(assistant: Assistant, calls: Sequence[Call]) -> list[Answered]:
    found = [assistant.ask("hybrid_search", **sent) for sent in calls]
    return [Answered(one.is_error, one.text) for one in found]


def of_mcp(place: Place, calls: Sequence[Call]) -> list[Answered]:
    provider = second_brain.AsyncPostgresProvider(place.dsn)
    server = create_server(
        second_brain.AsyncRetrievalService(provider, EMBEDDER), provider, Scope(viewer_id=ANA)
    )
    with connected(Client(server)) as assistant:
        return by_assistant(assistant, calls)


def of_the_edge_function(place: Place, calls: Sequence[Call]) -> list[Answered]:
    function = ROOT / "supabase" / "functions" / "mcp" / "index.ts"
    ana = signed(ANA, aud="authenticated")
    with deployed(function, place.rest) as url, connected(with_token(url, ana)) as assistant:
        return by_assistant(assistant, calls)


def of_the_ai_sdk(place: Place, calls: Sequence[Call]) -> list[Answered]:
    build()
    named = [
        {"match_count" if name == "limit" else name: value for name, value in one.items()}
        for one in calls
    ]
    said = npm(
        *("exec", "--offline", "--", "node", "test/tool.js"),
        URL=f"http://127.0.0.1:{place.rest.server_port}",
        KEY=ANON_KEY,
        SERVICE_TOKEN=signed(ANA, role="service_role"),
        VIEWER=str(ANA),
        NAMED=json.dumps(["match_count", *NAMED[1:]]),
        CALLS=json.dumps(named),
    )
    return [Answered(**one) for one in json.loads(said)]


TOOLS = [
    of_langchain,
    of_llama_index,
    of_haystack,
    of_mcp,
    of_the_edge_function,
    of_the_ai_sdk,
]
NOTHING = ("", " ", "null", None)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_takes_its_arguments_and_refuses_by_name_what_says_who_asks(
    tool: Tool, place: Place
) -> None:
    right: list[Call] = [
        QUERY,
        {**QUERY, "limit": 1},
        {**QUERY, "limit": "1"},
        {**QUERY, "min_confidence": "0.0"},
        {**QUERY, "collections": ["knowledge"]},
        {**QUERY, "collections": '["knowledge"]'},
        {**QUERY, **dict.fromkeys(NAMED)},
        {**QUERY, "date_from": "2020-01-01", "filters": "[]"} | {"date_from": ""},
        *({**QUERY, name: nothing} for name in NAMED for nothing in NOTHING),
        *({**QUERY, "collections": nothing} for nothing in ([], [""], ["null"], [None])),
        {**QUERY, "filters": []},
    ]
    wrong: list[tuple[str, Call]] = [
        ("query", {"query": {"text": "invoice", "embedding": None}}),
        ("query", {"query": ["invoice"]}),
        ("query", {"query": 5}),
        ("query", {"query": ""}),
        ("query", {}),
        ("match_count limit", {**QUERY, "limit": "many"}),
        ("match_count limit", {**QUERY, "limit": 1.5}),
        ("match_count limit", {**QUERY, "limit": "1.5"}),
        ("match_count limit", {**QUERY, "limit": -1}),
        ("match_count limit", {**QUERY, "limit": 1_000}),
        ("match_count limit", {**QUERY, "limit": {"viewer_id": None}}),
        ("collections", {**QUERY, "collections": [["knowledge"]]}),
        ("collections", {**QUERY, "collections": {"viewer_id": None}}),
        ("date_from", {**QUERY, "date_from": "yesterday"}),
        ("date_from", {**QUERY, "date_from": "2026-02-30"}),
        ("min_confidence", {**QUERY, "min_confidence": "high"}),
        ("order_by", {**QUERY, "order_by": "rank"}),
        ("filters", {**QUERY, "filters": [{"field": "metadata.a", "op": "$in", "value": [1]}]}),
        ("filters", {**QUERY, "filters": "team = 'a'"}),
    ]
    wrong += [(name.strip(), {**QUERY, name: given}) for name in WHO for given in (WHO[name], None)]
    answers = tool(place, [*right, *(sent for _, sent in wrong)])
    for sent, answer in zip(right, answers, strict=False):
        assert not answer.is_refused, (sent, answer.text)
        assert OF_ANA in answer.text
        assert OF_BEN not in answer.text
    for (names, sent), answer in zip(wrong, answers[len(right) :], strict=True):
        assert answer.is_refused, sent
        assert any(name in answer.text for name in names.split()), answer.text
        assert re.search("Correct the argument|Give |Name |Use ", answer.text), answer.text
        assert OF_BEN not in answer.text


@pytest.mark.parametrize("tool", TOOLS)
def test_an_answer_has_a_bound_and_no_invisible_characters(tool: Tool, place: Place) -> None:
    words = ("archive", "umlaut", "ibis")
    *long, tagged = tool(place, [{"query": word, "limit": 20} for word in words])
    for answer in long:
        size = len(answer.text.encode())
        assert 1000 < size <= ANSWER_BOUND + 2000
        # The tools of MCP show excerpts, which all fit.
        assert ("further results do not fit" in answer.text) == (size > ANSWER_BOUND / 2)
    assert "ibis sleeps" in tagged.text
    assert not set(TOOL_TAGS) & set(tagged.text)


@pytest.mark.parametrize("tool", [of_langchain, of_llama_index, of_haystack])
def test_a_database_that_is_down_is_told_to_the_model(tool: Tool, place: Place) -> None:
    (answer,) = tool(place._replace(dsn="host=127.0.0.1 port=1 dbname=x user=x"), [QUERY])
    assert answer.is_refused
    assert "Try again shortly" in answer.text


def test_what_the_options_bind_is_not_offered_and_cannot_be_named(place: Place) -> None:
    service = second_brain.RetrievalService(second_brain.PostgresProvider(place.dsn), EMBEDDER)
    bound: dict[str, Any] = {"viewer_id": ANA, "limit": 1, "k": 60.0}
    for search_tool in (langchain.search_tool, llama_index.search_tool):
        metadata = search_tool(service, options=bound)
        schema: Any = (
            metadata.args_schema
            if hasattr(metadata, "args_schema")
            else metadata.metadata.fn_schema
        )
        assert set(schema.model_fields) == {"query", "offset", "date_from", "date_to"}
        for name in ("limit", "rrf_k", "viewer_id", "public_only", "query", "nothing"):
            with pytest.raises(InvalidInputError, match=name):
                search_tool(service, options=bound, arguments=[name])

"""What a model may send to each tool: the query and the named arguments, never who asks."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pytest
from langchain_core.messages import ToolMessage
from mcp import Client
from pydantic import ValidationError
from rest import Rest
from test_frontend import ANA, ANON_KEY, BEN, ROOT, deployed, project, signed, store
from test_javascript_package import build, npm

import second_brain
from conftest import Server
from mcp_clients import Assistant, connected, with_token
from second_brain.errors import InvalidInputError
from second_brain.integrations import langchain, llama_index
from second_brain.mcp_server import Scope, create_server
from second_brain.models import CallableEmbedder

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
BOUND = {"viewer_id": ANA, "filters": {"language": "english"}}


@pytest.fixture(scope="module")
def place(server: Server) -> Iterator[Place]:
    with project(server) as (rest, owner):
        owner.execute("truncate public.knowledge_documents, public.knowledge_chunks cascade")
        store(owner, "ana", ANA, OF_ANA, 0)
        store(owner, "ben", BEN, OF_BEN, 0)
        yield Place(rest.dsn, rest)


def of_langchain(place: Place, calls: Sequence[Call]) -> list[Answered]:
    service = second_brain.RetrievalService(second_brain.PostgresProvider(place.dsn), EMBEDDER)
    tool = langchain.search_tool(service, arguments=["limit", "collections"], options=BOUND)

    def ask(sent: Call) -> Answered:
        call = {"name": "search", "args": dict(sent), "id": "1", "type": "tool_call"}
        try:
            message = tool.invoke(call)
        except (InvalidInputError, ValidationError) as error:
            return Answered(True, str(error))
        assert isinstance(message, ToolMessage)
        return Answered(False, str(message.content))

    return list(map(ask, calls))


def of_llama_index(place: Place, calls: Sequence[Call]) -> list[Answered]:
    service = second_brain.RetrievalService(second_brain.PostgresProvider(place.dsn), EMBEDDER)
    tool = llama_index.search_tool(service, arguments=["limit", "collections"], options=BOUND)

    def ask(sent: Call) -> Answered:
        try:
            return Answered(False, str(tool.call(**sent).content))
        except InvalidInputError as error:
            return Answered(True, str(error))

    return list(map(ask, calls))


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
        CALLS=json.dumps(named),
    )
    return [Answered(**one) for one in json.loads(said)]


@pytest.mark.parametrize(
    "tool", [of_langchain, of_llama_index, of_mcp, of_the_edge_function, of_the_ai_sdk]
)
def test_a_tool_takes_its_arguments_and_refuses_by_name_what_says_who_asks(
    tool: Tool, place: Place
) -> None:
    right: list[Call] = [
        QUERY,
        {**QUERY, "limit": 1},
        {**QUERY, "limit": None, "collections": None},
        {**QUERY, "collections": ["knowledge"]},
        {**QUERY, "collections": '["knowledge"]'},
    ]
    wrong: list[tuple[str, Call]] = [
        ("query", {"query": {"text": "invoice", "embedding": None}}),
        ("query", {"query": ["invoice"]}),
        ("query", {"query": 5}),
        ("match_count limit", {**QUERY, "limit": "many"}),
        ("match_count limit", {**QUERY, "limit": 1.5}),
        ("match_count limit", {**QUERY, "limit": -1}),
        ("match_count limit", {**QUERY, "limit": 1_000}),
        ("match_count limit", {**QUERY, "limit": {"viewer_id": None}}),
        ("collections", {**QUERY, "collections": [["knowledge"]]}),
        ("collections", {**QUERY, "collections": {"viewer_id": None}}),
    ]
    wrong += [(name.strip(), {**QUERY, name: given}) for name in WHO for given in (WHO[name], None)]
    answers = tool(place, [*right, *(sent for _, sent in wrong)])
    for answer in answers[: len(right)]:
        assert not answer.is_refused, answer.text
        assert OF_ANA in answer.text
        assert OF_BEN not in answer.text
    for (names, sent), answer in zip(wrong, answers[len(right) :], strict=True):
        assert answer.is_refused, sent
        assert any(name in answer.text for name in names.split()), answer.text
        assert OF_BEN not in answer.text


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

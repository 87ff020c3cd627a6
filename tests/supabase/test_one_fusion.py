"""A search that names no fusion uses the one stored for its corpus, whoever asks."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import jwt
import pytest
from mcp import Client
from rest import answering

from command_line import Run, runner
from conftest import Connection, Server
from judged import COLLECTION, DIMENSIONS, embedder, fill, judge_enough, use_the_worse_leg
from mcp_clients import connected
from opened_workbench import browser_of
from postgrest_server import JWT_SECRET
from second_brain.integrations.langchain import SecondBrainRetriever
from second_brain.mcp_server import create_server
from second_brain.mcp_server.scope import Scope
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import KnowledgeWriter

QUESTION = "apples"
SERVICE_KEY = jwt.encode({"role": "service_role"}, JWT_SECRET, algorithm="HS256")
SQL = """
select external_key
  from public.hybrid_search_knowledge_chunks(%s::extensions.vector, %s, collections => %s)
 limit 1
"""

Callers = dict[str, Callable[[], str | None]]


@pytest.fixture
def dimensions() -> int:
    return DIMENSIONS


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, dsn: str
) -> Run:
    command = runner(monkeypatch, capsys, tmp_path)
    for name in ("cli.search.question", "evaluation.commands.questions.configured"):
        monkeypatch.setattr(f"second_brain.{name}_embedder", lambda _: embedder())
    monkeypatch.setenv("SECOND_BRAIN_DSN", dsn)
    return command


@pytest.fixture
def callers(database: Connection, server: Server, dsn: str, run: Run) -> Iterator[Callers]:
    fill(database)
    vector = embedder().embed([QUESTION])[0]
    collections = [COLLECTION]

    def first(provider: PostgresProvider | SupabaseProvider) -> str:
        hits, _ = provider.find(vector, QUESTION, collections=collections)
        return str(hits[0].metadata["external_key"])

    def in_sql() -> str:
        given = [vector.tolist(), QUESTION, collections]
        ((key,),) = database.execute(SQL, given).fetchall()
        return str(key)

    def on_the_command_line() -> str:
        done = run("search", QUESTION, "--collection", COLLECTION, "--json")
        return str(json.loads(done.out)["results"][0]["metadata"]["external_key"])

    def in_the_workbench() -> str:
        page = workbench.get("/", params={"q": QUESTION, "collections": COLLECTION}).text
        (fused,) = re.findall(r'data-list="hybrid" aria-label="[^"]*, place 1: ([^"]*)"', page)
        return str(fused)

    with ExitStack() as stack:
        rest = stack.enter_context(answering(server, dsn, SERVICE_KEY))
        url = f"http://127.0.0.1:{rest.server_port}"
        supabase = SupabaseProvider({"supabase_url": url, "supabase_key": SERVICE_KEY})
        stack.callback(supabase.close)
        provider = PostgresProvider(dsn)
        service = RetrievalService(provider, embedder())
        on_a_loop = AsyncPostgresProvider(dsn)
        mcp = create_server(
            AsyncRetrievalService(on_a_loop, embedder()), on_a_loop, Scope((COLLECTION,))
        )
        assistant = stack.enter_context(connected(Client(mcp)))
        workbench = stack.enter_context(browser_of(dsn, embedder=embedder()))
        retriever = SecondBrainRetriever(service=service, options={"collections": collections})
        yield {
            "SQL": in_sql,
            "REST": lambda: first(supabase),
            "provider": lambda: first(provider),
            "service": lambda: (
                service.search(QUESTION, collections=collections).results[0].external_key
            ),
            "command line": on_the_command_line,
            "MCP": lambda: str(
                assistant.ask("hybrid_search", query=QUESTION).content["results"][0]["content"]
            ).split()[1],
            "LangChain": lambda: str(retriever.invoke(QUESTION)[0].metadata["external_key"]),
            "workbench": in_the_workbench,
        }


def answers(callers: Callers) -> dict[str, str | None]:
    return {name: ask() for name, ask in callers.items()}


@pytest.mark.slow
def test_what_tune_stores_reaches_every_caller(
    callers: Callers, run: Run, database: Connection
) -> None:
    writer = KnowledgeWriter(database)
    use_the_worse_leg(writer)
    judge_enough(writer)
    assert answers(callers) == dict.fromkeys(callers, "bananas")
    done = run("corpus", "tune", "--collection", COLLECTION, "--apply")
    assert done.code == 0, done.err
    assert "measured on 24 questions of first" in done.out
    assert answers(callers) == dict.fromkeys(callers, "apples")

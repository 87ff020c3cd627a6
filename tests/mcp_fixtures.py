"""Fixtures of the MCP tests: a corpus, a client over stdio, and servers in this process."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import psycopg
import pytest
from mcp import Client

from conftest import Server, copy_of
from mcp_clients import DOCUMENTS, SOURCE, Assistant, Here, connected, over_stdio
from second_brain.mcp_server import Scope, create_server
from second_brain.models import WordLlamaEmbedder
from second_brain.retrieval.service import AsyncRetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.postgres import AsyncPostgresProvider
from second_brain.services.write import AsyncKnowledgeWriter, KnowledgeWriter


@pytest.fixture(scope="session")
def embedder() -> WordLlamaEmbedder:
    return WordLlamaEmbedder()


@pytest.fixture(scope="session")
def corpus(server: Server, embedder: WordLlamaEmbedder) -> Iterator[str]:
    """The DSN of a migrated database with the documents above, embedded."""
    for dsn in copy_of(server, server.template(embedder.dimensions)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            # As `migrate` does in a new install.
            connection.execute("select public.set_knowledge_settings(fusion => 'auto')")
            connection.execute(
                "insert into public.knowledge_sources (id, name, origin) values (%s, %s, 'web')",
                [SOURCE, "wiki"],
            )
            for document, texts in DOCUMENTS:
                chunks = [
                    {"content": text, "embedding": vector, "embedding_model": embedder.model}
                    for text, vector in zip(texts, embedder.embed(texts), strict=True)
                ]
                KnowledgeWriter(connection).upsert_document(document, chunks)
        yield dsn


@pytest.fixture(scope="session")
def assistant(corpus: str) -> Iterator[Assistant]:
    """A client of the real process over stdio, which all tests of the run share."""
    with connected(over_stdio(corpus)) as connection:
        yield connection


@pytest.fixture
def here(corpus: str, embedder: WordLlamaEmbedder) -> Here:
    """Connect to a server in this process, of some scope, embedder and settings."""

    def connect(
        scope: Scope, *, model: Any = embedder, reranker: Any = None, **settings: Any
    ) -> AbstractContextManager[Assistant]:
        provider = AsyncPostgresProvider(corpus)
        service = AsyncRetrievalService(provider, model, reranker, SearchSettings(**settings))
        return connected(Client(create_server(service, provider, scope, writers=writer)))

    @asynccontextmanager
    async def writer() -> AsyncIterator[AsyncKnowledgeWriter]:
        async with await psycopg.AsyncConnection.connect(corpus, autocommit=True) as connection:
            yield AsyncKnowledgeWriter(connection)

    return connect


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port

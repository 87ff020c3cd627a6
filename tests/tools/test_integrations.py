"""The LangChain and LlamaIndex retrievers, with the frameworks themselves, on a real database."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psycopg
import pytest
from langchain_core.documents import Document
from langchain_core.language_models.fake import FakeListLLM
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode, NodeWithScore
from numpy.typing import NDArray
from pydantic import ValidationError

from corpora import store_document
from second_brain.errors import InvalidInputError, UnavailableError
from second_brain.integrations import langchain, llama_index
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider

KEYS = "Service role keys are rotated every 90 days."
LEAKED = "A leaked key is revoked first."
INVOICE = "An invoice is cancelled by a credit note."
NOWHERE = "postgresql://postgres@127.0.0.1:1/postgres"


class AxisEmbedder:
    """Embeds by hand: keys point one way, everything else another."""

    model = "by-hand"
    dimensions = 3

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        axes = [[0, 0, 1] if "key" in text.lower() else [1, 0, 0] for text in texts]
        return np.array(axes, np.float32)


EMBEDDER = AxisEmbedder()
SETTINGS = SearchSettings()


@pytest.fixture
def filled(emptied_dsn: str) -> str:
    """The DSN of a database with two documents."""
    with psycopg.connect(emptied_dsn, autocommit=True) as connection:
        documents: list[tuple[dict[str, Any], list[str]]] = [
            (
                {
                    "key": "keys",
                    "title": "API keys",
                    "source_url": "https://example.org/keys",
                    "metadata": {"team": "platform"},
                },
                [KEYS, LEAKED],
            ),
            ({"key": "invoices", "title": "Invoices"}, [INVOICE]),
        ]
        for document, texts in documents:
            chunks = dict(zip(texts, EMBEDDER.embed(texts).tolist(), strict=True))
            store_document(connection, model=EMBEDDER.model, texts=chunks, **document)
        connection.execute("select public.set_knowledge_settings(fusion => 'auto')")
    return emptied_dsn


def service(dsn: str) -> RetrievalService:
    return RetrievalService(PostgresProvider(dsn), EMBEDDER, settings=SETTINGS)


def async_service(dsn: str) -> AsyncRetrievalService:
    return AsyncRetrievalService(AsyncPostgresProvider(dsn), EMBEDDER, settings=SETTINGS)


def documents(dsn: str, how: str, **options: Any) -> list[Document]:
    """Retrieve with LangChain: now, awaited, or awaited with only a service that blocks."""
    if how == "invoke":
        retriever = langchain.SecondBrainRetriever(service=service(dsn), options=options)
        return retriever.invoke("rotated keys")
    if how == "ainvoke":
        retriever = langchain.SecondBrainRetriever(
            async_service=async_service(dsn), options=options
        )
    else:
        retriever = langchain.SecondBrainRetriever(service=service(dsn), options=options)
    return asyncio.run(retriever.ainvoke("rotated keys"))


def nodes(dsn: str, how: str, **options: Any) -> list[NodeWithScore]:
    """Retrieve with LlamaIndex, in the same ways."""
    if how == "invoke":
        return llama_index.SecondBrainRetriever(service(dsn), options=options).retrieve(
            "rotated keys"
        )
    if how == "ainvoke":
        retriever = llama_index.SecondBrainRetriever(
            async_service=async_service(dsn), options=options
        )
    else:
        retriever = llama_index.SecondBrainRetriever(service(dsn), options=options)
    return asyncio.run(retriever.aretrieve("rotated keys"))


WAYS = pytest.mark.parametrize("how", ["invoke", "ainvoke", "ainvoke in a thread"])


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("has_async", [False, True])
def test_langchain_s_own_arguments_are_options_of_one_search(
    filled: str, how: str, has_async: bool
) -> None:
    retriever = langchain.SecondBrainRetriever(
        service=service(filled),
        async_service=async_service(filled) if has_async else None,
        options={"limit": 2, "mode": "text"},
    )
    found = (
        retriever.invoke("rotated keys", limit=1)
        if how == "invoke"
        else asyncio.run(retriever.ainvoke("rotated keys", limit=1))
    )
    assert [document.metadata["vector_rank"] for document in found] == [None]


def test_a_retriever_without_a_service_or_with_an_unknown_argument_is_refused(filled: str) -> None:
    unknown: dict[str, Any] = {"service": service(filled), "search_kwargs": {"k": 1}}
    for arguments in ({}, unknown):
        with pytest.raises(ValidationError, match=r"service|search_kwargs"):
            langchain.SecondBrainRetriever(**arguments)
    with pytest.raises(TypeError, match="async_service"):
        llama_index.SecondBrainRetriever()


@WAYS
def test_langchain_gets_documents_with_id_text_and_metadata(filled: str, how: str) -> None:
    best, second = documents(filled, how, limit=2)
    assert (best.page_content, second.page_content) == (KEYS, LEAKED)
    expected = service(filled).search("rotated keys", limit=1).results[0]
    assert best.id == expected.id
    wanted = {
        "title": "API keys",
        "team": "platform",
        "source_url": "https://example.org/keys",
        "document_id": expected.document_id,
        "rank": 1,
        "score": expected.score,
        "match_type": "both",
        "degraded": None,
    }
    assert wanted.items() <= best.metadata.items()


@WAYS
def test_llama_index_gets_nodes_with_scores(filled: str, how: str) -> None:
    best, second = nodes(filled, how, limit=2)
    expected = service(filled).search("rotated keys", limit=1).results[0]
    assert (best.text, second.text) == (KEYS, LEAKED)
    assert (best.node_id, best.score) == (expected.id, expected.score)
    assert best.node.source_node is not None
    assert best.node.source_node.node_id == expected.document_id
    assert best.metadata["team"] == "platform"


def test_a_model_reads_of_a_node_where_it_is_from_and_no_scores(filled: str) -> None:
    (best,) = nodes(filled, "invoke", limit=1)
    shown = best.node.get_content(MetadataMode.LLM)
    assert "title: API keys" in shown
    assert KEYS in shown
    assert "rrf_score" not in shown
    assert "document_date" not in shown  # it has none
    assert best.node.get_content(MetadataMode.EMBED) == KEYS


@pytest.mark.parametrize("retrieve", [documents, nodes])
def test_options_are_those_of_the_search(
    filled: str, retrieve: Callable[..., Sequence[Document | NodeWithScore]]
) -> None:
    assert len(retrieve(filled, "invoke")) == 3
    assert len(retrieve(filled, "invoke", min_similarity=0.5)) == 2
    assert retrieve(filled, "invoke", filters={"team": "nobody"}) == []
    with pytest.raises(InvalidInputError, match="limit"):
        retrieve(filled, "invoke", limit=0)


@pytest.mark.parametrize("retrieve", [documents, nodes])
@WAYS
def test_a_failure_is_raised_and_no_empty_list(
    retrieve: Callable[..., Sequence[object]], how: str
) -> None:
    with pytest.raises(UnavailableError):
        retrieve(NOWHERE, how)


class BrokenEmbedder(AxisEmbedder):
    """The same model, whose service is down."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise ConnectionError("no answer")


def test_a_hit_says_what_the_search_had_to_do_without(filled: str) -> None:
    degraded = RetrievalService(PostgresProvider(filled), BrokenEmbedder(), settings=SETTINGS)
    (document, *_) = langchain.SecondBrainRetriever(service=degraded).invoke("rotated keys")
    (node, *_) = llama_index.SecondBrainRetriever(degraded).retrieve("rotated keys")
    assert (document.page_content, document.metadata["degraded"]) == (KEYS, "embed")
    assert (node.text, node.metadata["degraded"]) == (KEYS, "embed")


def test_neighbours_that_were_asked_for_are_the_text(filled: str) -> None:
    whole = f"{KEYS}\n[CHUNK BOUNDARY]\n{LEAKED}"
    (document,) = documents(filled, "invoke", limit=1, expand_neighbors=1)
    (node,) = nodes(filled, "invoke", limit=1, expand_neighbors=1)
    assert (document.page_content, node.text) == (whole, whole)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["invoke", "ainvoke"])
def test_the_retriever_is_part_of_a_chain(filled: str, method: str) -> None:
    def joined(found: list[Document]) -> str:
        return " ".join(document.page_content for document in found)

    seen: list[str] = []

    def kept(prompt: Any) -> Any:
        seen.append(prompt.to_string())
        return prompt

    retriever = langchain.SecondBrainRetriever(
        service=service(filled), async_service=async_service(filled), options={"limit": 2}
    )
    chain: Runnable[str, str] = (
        {"context": retriever | joined, "question": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("{context} Question: {question}")
        | RunnableLambda(kept)
        | FakeListLLM(responses=["Every 90 days."])
        | StrOutputParser()
    )
    question = "How often are keys rotated?"
    asked = chain.invoke(question) if method == "invoke" else asyncio.run(chain.ainvoke(question))
    assert asked == "Every 90 days."
    assert seen == [f"Human: {KEYS} {LEAKED} Question: {question}"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["query", "aquery"])
def test_the_retriever_feeds_a_query_engine(filled: str, method: str) -> None:
    engine = RetrieverQueryEngine.from_args(
        llama_index.SecondBrainRetriever(
            service(filled), async_service=async_service(filled), options={"limit": 1}
        ),
        llm=MockLLM(),
    )
    question = "How often are keys rotated?"
    response = engine.query(question) if method == "query" else asyncio.run(engine.aquery(question))
    # The stand-in for a model answers with what it was asked.
    assert KEYS in str(response)
    assert question in str(response)
    assert [node.text for node in response.source_nodes] == [KEYS]

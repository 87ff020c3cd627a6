"""The LangChain and LlamaIndex retrievers, with the frameworks themselves, on a real database."""

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import psycopg
import pytest
from axis import INVOICE, KEYS, LEAKED
from langchain_core.documents import Document
from langchain_core.language_models.fake import FakeListLLM
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode
from numpy.typing import NDArray
from pydantic import ValidationError

from corpora import store_document
from second_brain.errors import InvalidInputError, UnavailableError
from second_brain.integrations import langchain, llama_index
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider

NOWHERE = "postgresql://postgres@127.0.0.1:1/postgres"
ASKED = "rotated keys"


class AxisEmbedder:
    """Embeds by hand: keys point one way, everything else another."""

    model = "by-hand"
    dimensions = 3

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        axes = [[0, 0, 1] if "key" in text.lower() else [1, 0, 0] for text in texts]
        return np.array(axes, np.float32)


class BrokenEmbedder(AxisEmbedder):
    """The same model, whose service is down."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise ConnectionError("no answer")


EMBEDDER = AxisEmbedder()
SETTINGS = SearchSettings()


@pytest.fixture
def filled(emptied_dsn: str) -> str:
    """The DSN of a database with two documents."""
    keys = {"title": "API keys", "source_url": "https://example.org/keys"}
    with psycopg.connect(emptied_dsn, autocommit=True) as connection:
        for texts, document in (
            ([KEYS, LEAKED], {"key": "keys", "metadata": {"team": "platform"}, **keys}),
            ([INVOICE], {"key": "invoices", "title": "Invoices"}),
        ):
            chunks = dict(zip(texts, EMBEDDER.embed(texts).tolist(), strict=True))
            store_document(connection, model=EMBEDDER.model, texts=chunks, **document)
        connection.execute("select public.set_knowledge_settings(fusion => 'auto')")
    return emptied_dsn


def service(dsn: str, embedder: AxisEmbedder = EMBEDDER) -> RetrievalService:
    return RetrievalService(PostgresProvider(dsn), embedder, settings=SETTINGS)


def async_service(dsn: str) -> AsyncRetrievalService:
    return AsyncRetrievalService(AsyncPostgresProvider(dsn), EMBEDDER, settings=SETTINGS)


class Found(NamedTuple):
    """What a framework has of a hit."""

    id: str | None
    text: str
    document: str
    score: float | None
    metadata: dict[str, Any]


def retrieved(
    framework: str, dsn: str, how: str = "now", *, model: AxisEmbedder = EMBEDDER, **options: Any
) -> list[Found]:
    """Retrieve now, awaited, or awaited with only a service that blocks."""
    given: dict[str, Any] = {"service": service(dsn, model)}
    if how == "awaited":
        given = {"async_service": async_service(dsn)}
    if framework == "LangChain":
        chain = langchain.SecondBrainRetriever(**given, options=options)
        documents = chain.invoke(ASKED) if how == "now" else asyncio.run(chain.ainvoke(ASKED))
        return [
            Found(
                one.id,
                one.page_content,
                one.metadata["document_id"],
                one.metadata["score"],
                one.metadata,
            )
            for one in documents
        ]
    index = llama_index.SecondBrainRetriever(**given, options=options)
    nodes = index.retrieve(ASKED) if how == "now" else asyncio.run(index.aretrieve(ASKED))
    return [
        Found(one.node_id, one.text, str(one.node.ref_doc_id), one.score, one.metadata)
        for one in nodes
    ]


FRAMEWORKS = pytest.mark.parametrize("framework", ["LangChain", "LlamaIndex"])
WAYS = pytest.mark.parametrize("how", ["now", "awaited", "awaited in a thread"])


@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize("has_async", [False, True])
def test_langchain_s_own_arguments_are_options_of_one_search(
    filled: str, is_awaited: bool, has_async: bool
) -> None:
    retriever = langchain.SecondBrainRetriever(
        service=service(filled),
        async_service=async_service(filled) if has_async else None,
        options={"limit": 2, "mode": "text"},
    )
    found = (
        asyncio.run(retriever.ainvoke(ASKED, limit=1))
        if is_awaited
        else retriever.invoke(ASKED, limit=1)
    )
    assert [document.metadata["vector_rank"] for document in found] == [None]


def test_a_retriever_without_a_service_or_with_an_unknown_argument_is_refused(filled: str) -> None:
    unknown: dict[str, Any] = {"service": service(filled), "search_kwargs": {"k": 1}}
    for arguments in ({}, unknown):
        with pytest.raises(ValidationError, match=r"service|search_kwargs"):
            langchain.SecondBrainRetriever(**arguments)
    with pytest.raises(TypeError, match="async_service"):
        llama_index.SecondBrainRetriever()


@FRAMEWORKS
@WAYS
def test_a_framework_gets_the_id_the_text_and_the_metadata(
    filled: str, framework: str, how: str
) -> None:
    best, second = retrieved(framework, filled, how, limit=2)
    expected = service(filled).search(ASKED, limit=1).results[0]
    assert (best.text, second.text) == (KEYS, LEAKED)
    assert best[0:1] + best[2:4] == (expected.id, expected.document_id, expected.score)
    wanted = {
        "title": "API keys",
        "team": "platform",
        "source_url": "https://example.org/keys",
        "rank": 1,
        "match_type": "both",
        "degraded": None,
    }
    assert wanted.items() <= best.metadata.items()


def test_a_model_reads_of_a_node_where_it_is_from_and_no_scores(filled: str) -> None:
    retriever = llama_index.SecondBrainRetriever(service(filled), options={"limit": 1})
    (best,) = retriever.retrieve(ASKED)
    shown = best.node.get_content(MetadataMode.LLM)
    assert "title: API keys" in shown
    assert KEYS in shown
    assert "rrf_score" not in shown
    assert "document_date" not in shown  # it has none
    assert best.node.get_content(MetadataMode.EMBED) == KEYS


@FRAMEWORKS
def test_options_are_those_of_the_search(filled: str, framework: str) -> None:
    assert len(retrieved(framework, filled)) == 3
    assert len(retrieved(framework, filled, min_similarity=0.5)) == 2
    assert retrieved(framework, filled, filters={"team": "nobody"}) == []
    (whole,) = retrieved(framework, filled, limit=1, expand_neighbors=1)
    assert whole.text == f"{KEYS}\n[CHUNK BOUNDARY]\n{LEAKED}"
    with pytest.raises(InvalidInputError, match="limit"):
        retrieved(framework, filled, limit=0)


@FRAMEWORKS
@WAYS
def test_a_failure_is_raised_and_no_empty_list(framework: str, how: str) -> None:
    with pytest.raises(UnavailableError):
        retrieved(framework, NOWHERE, how)


@FRAMEWORKS
def test_a_hit_says_what_the_search_had_to_do_without(filled: str, framework: str) -> None:
    best, *_ = retrieved(framework, filled, model=BrokenEmbedder())
    assert (best.text, best.metadata["degraded"]) == (KEYS, "embed")


@pytest.mark.slow
@pytest.mark.parametrize("is_awaited", [False, True])
def test_the_retriever_is_part_of_a_chain(filled: str, is_awaited: bool) -> None:
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
    asked = asyncio.run(chain.ainvoke(question)) if is_awaited else chain.invoke(question)
    assert asked == "Every 90 days."
    assert seen == [f"Human: {KEYS} {LEAKED} Question: {question}"]


@pytest.mark.slow
@pytest.mark.parametrize("is_awaited", [False, True])
def test_the_retriever_feeds_a_query_engine(filled: str, is_awaited: bool) -> None:
    retriever = llama_index.SecondBrainRetriever(
        service(filled), async_service=async_service(filled), options={"limit": 1}
    )
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
    question = "How often are keys rotated?"
    response = asyncio.run(engine.aquery(question)) if is_awaited else engine.query(question)
    # The stand-in for a model answers with what it was asked.
    assert KEYS in str(response)
    assert question in str(response)
    assert [node.text for node in response.source_nodes] == [KEYS]


def test_a_service_and_its_retriever_can_be_pickled(dsn: str) -> None:
    service = RetrievalService(PostgresProvider(dsn), AxisEmbedder())
    copied = pickle.loads(pickle.dumps(service))
    assert copied.search("nothing").results == []
    retriever = langchain.SecondBrainRetriever(service=service, options={"limit": 1})
    assert pickle.loads(pickle.dumps(retriever)).invoke("nothing") == []
    with pytest.raises(InvalidInputError, match="no connection to a database"):
        llama_index.SecondBrainVectorStore.from_dict({})

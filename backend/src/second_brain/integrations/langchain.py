"""LangChain: a retriever and a tool over the retrieval service, and a vector store."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self
from uuid import uuid4

import numpy as np
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from langchain_core.tools import StructuredTool, ToolException
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from pydantic import ConfigDict, Field, model_validator

from second_brain.errors import InvalidInputError, UnexpectedAnswerError
from second_brain.filters import Filters
from second_brain.integrations import described, text
from second_brain.integrations.conditions import metadata_filters
from second_brain.integrations.store import (
    Mode,
    Stored,
    Text,
    TextStore,
    checked_ids,
    questions,
)
from second_brain.integrations.tool import FAILED, SearchTool
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.plan import invalid_query
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.tool_arguments import DESCRIPTION, told
from second_brain.services.install import SCHEMA
from second_brain.services.postgres import Database


class SecondBrainRetriever(BaseRetriever):
    """A retriever: `invoke` calls `service.search(query, **options)`, `ainvoke` `async_service`.

    Named arguments of `invoke` replace those in `options`. Without an `async_service`, `ainvoke`
    runs `service` in a thread. Raises the SecondBrainError of a failed search.
    """

    # Without "forbid", a misspelt argument would be ignored.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    service: RetrievalService | None = None
    async_service: AsyncRetrievalService | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_a_service(self) -> Self:
        if self.service is None and self.async_service is None:
            raise ValueError("give a service, an async_service, or both")
        return self

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        if self.service is None:
            raise TypeError("this retriever has no service: use ainvoke, or give a service")
        return _documents(self.service.search(query, **{**self.options, **options}))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        if self.async_service is None:
            return await run_in_executor(
                None,
                self._get_relevant_documents,
                query,
                run_manager=run_manager.get_sync(),
                **options,
            )
        return _documents(await self.async_service.search(query, **{**self.options, **options}))


def search_tool(
    service: RetrievalService | None = None,
    *,
    async_service: AsyncRetrievalService | None = None,
    name: str = "search",
    description: str = DESCRIPTION,
    arguments: Collection[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> StructuredTool:
    """Return a tool for agents: the model sets the query and `arguments`, never `options`.

    `arguments` are names of SearchQuery; the default is `limit`, `offset`, `date_from` and
    `date_to` without what `options` has. Any other argument of a call is refused by name.
    """
    tool = SearchTool(service, async_service, description, arguments, options, _refuse_call)
    return StructuredTool.from_function(
        func=tool.function,
        coroutine=tool.async_function,
        name=name,
        description=tool.description,
        args_schema=tool.schema,
        # The model reads what was wrong, and calls again.
        handle_tool_error=True,
        handle_validation_error=lambda error: told(
            FAILED, invalid_query(error, tool.schema.model_fields)
        ),
    )


def _refuse_call(failure: str) -> NoReturn:
    raise ToolException(failure)


def _documents(response: SearchResponse) -> list[Document]:
    return [
        Document(id=hit.id, page_content=text(hit), metadata=described(hit, response))
        for hit in response.results
    ]


class SecondBrainVectorStore(VectorStore):
    """A vector store: each document is a document of one collection, its id the `external_key`.

    `database` is a pool, a connection string or a connection, as service_role or as the owner of
    the tables. `mode` is how it searches: with both legs, or only by vectors or by text.
    `embedding_model` is the name that is stored with the embeddings; the default is the model of
    the embeddings object, else its class. `fields` and `options` as in `TextStore`.

    `filter` is a dict of metadata keys and values, or conditions as in `second_brain.filters`.
    Further arguments of a search are those of `hybrid_search`. Raises a SecondBrainError.
    """

    def __init__(
        self,
        database: Database,
        embedding: Embeddings,
        *,
        embedding_model: str | None = None,
        collection: str = "knowledge",
        mode: Mode = "hybrid",
        fields: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        schema: str = SCHEMA,
    ) -> None:
        questions(mode, None, None)
        self._embedding = embedding
        self._mode = mode
        self._store = TextStore(
            database,
            embedding_model=embedding_model or _model(embedding),
            collection=collection,
            fields=fields,
            options=options,
            schema=schema,
        )

    @property
    def embeddings(self) -> Embeddings:
        """The object that embeds documents and questions."""
        return self._embedding

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[Any, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Return a store with these texts; it needs `database`, and takes the other arguments."""
        store = cls(embedding=embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Embed and store texts in one transaction; return their ids.

        A text without an id gets a UUID. A text replaces the stored one with its id. LangChain's
        `index()` gives `batch_size`: the most texts that are embedded at once, by default all.
        """
        _refuse(kwargs, "add_texts()")
        if isinstance(texts, str):
            raise InvalidInputError("texts must be a list of texts, not one text")
        contents = list(texts)
        labels = [one or {} for one in metadatas or [{}] * len(contents)]
        keys = checked_ids(
            ids
            if isinstance(ids, str)
            else [one or uuid4() for one in ids or [None] * len(contents)]
        )
        for name, given in (("metadatas", labels), ("ids", keys)):
            if len(given) != len(contents):
                raise InvalidInputError(
                    f"{name} must have one element for each of the {len(contents)} texts, "
                    f"not {len(given)}"
                )
        if not contents:
            return []
        step = batch_size or len(contents)
        vectors = [
            vector
            for start in range(0, len(contents), step)
            for vector in self._embedding.embed_documents(contents[start : start + step])
        ]
        if len(vectors) != len(contents):
            raise UnexpectedAnswerError(
                f"the model gave {len(vectors)} embeddings for {len(contents)} texts",
                remedy="Use a model that gives one embedding for each text, in their order.",
            )
        self._store.write([Text(*one) for one in zip(keys, contents, labels, vectors, strict=True)])
        return keys

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete the documents with these ids; with None, all documents of the collection."""
        _refuse(kwargs, "delete()")
        if ids is None:
            self._store.clear()
        else:
            self._store.delete(ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids; missing ones are left out."""
        return [_document(one) for one in self._store.get(ids)]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Return the `k` best documents."""
        return [found for found, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def similarity_search_with_score(
        self,
        query: str,
        k: int = 4,
        *,
        filter: Filters | None = None,  # noqa: A002 - LangChain's name
        mode: Mode | None = None,
        **kwargs: Any,
    ) -> list[tuple[Document, float]]:
        """Return the `k` best documents, each with its score.

        In mode `vector` the score is the cosine similarity (-1 to 1), else the score relative to
        the highest possible one (0 to 1). Higher is better.
        """
        mode = mode or self._mode
        embedding = None if mode == "text" else self._embedding.embed_query(query)
        return self._search(*questions(mode, embedding, query), k, filter, **kwargs)

    def similarity_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        *,
        filter: Filters | None = None,  # noqa: A002 - LangChain's name
        **kwargs: Any,
    ) -> list[Document]:
        """Return the `k` documents with the most similar embeddings."""
        return [found for found, _ in self._search(embedding, None, k, filter, **kwargs)]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Return `k` of the `fetch_k` most similar documents that are different from each other."""
        embedding = self._embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(
            embedding, k, fetch_k, lambda_mult, **kwargs
        )

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Filters | None = None,  # noqa: A002 - LangChain's name
        **kwargs: Any,
    ) -> list[Document]:
        """Return the same for an embedding; `lambda_mult` 1 is similarity alone, 0 difference."""
        found = self._store.search(
            embedding,
            None,
            fetch_k,
            metadata_filters(filter),
            with_embedding=True,
            **kwargs,
        )
        vectors = [one.embedding or [] for one in found]  # the vector leg finds no others
        chosen = maximal_marginal_relevance(
            np.array(embedding, np.float32), vectors, lambda_mult=lambda_mult, k=k
        )
        return [_document(found[place]) for place in chosen]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        # A threshold needs a score that compares between questions: the cosine similarity.
        found = self.similarity_search_with_score(query, k, **{**kwargs, "mode": "vector"})
        return [(document, min(max(score, 0.0), 1.0)) for document, score in found]

    def _search(
        self,
        embedding: Sequence[float] | None,
        text: str | None,
        limit: int,
        filters: Filters | None,
        /,
        **options: Any,
    ) -> list[tuple[Document, float]]:
        found = self._store.search(embedding, text, limit, metadata_filters(filters), **options)
        return [(_document(one), one.score) for one in found]


def _document(stored: Stored) -> Document:
    return Document(id=stored.key, page_content=stored.content, metadata=stored.metadata)


def _model(embedding: Embeddings) -> str:
    for name in ("model", "model_name"):
        if isinstance(value := getattr(embedding, name, None), str) and value:
            return value
    return type(embedding).__name__


def _refuse(arguments: Mapping[str, Any], caller: str) -> None:
    for name in arguments:
        raise TypeError(f"{caller} got an unexpected argument {name!r}")

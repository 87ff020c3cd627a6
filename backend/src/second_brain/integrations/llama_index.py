"""LlamaIndex: a retriever and a tool over the retrieval service, and a vector store."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.tools import FunctionTool
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import (
    build_metadata_filter_fn,
    metadata_dict_to_node,
    node_to_metadata_dict,
)

from second_brain.errors import InvalidInputError
from second_brain.filters import FilterExpression, Operator, Part
from second_brain.integrations import awaited, described, score, text
from second_brain.integrations.conditions import Group, all_of, condition, joined
from second_brain.integrations.store import Mode, Stored, Text, TextStore, questions
from second_brain.integrations.tool import SearchTool
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.tool_arguments import DESCRIPTION
from second_brain.services.install import SCHEMA
from second_brain.services.postgres import Database

SHOWN_TO_MODELS = frozenset({"title", "section", "source_url", "document_date"})
"""The metadata that LlamaIndex puts before a node's text; a model does not need scores and ids."""

_MODES: Mapping[VectorStoreQueryMode, Mode] = {
    VectorStoreQueryMode.DEFAULT: "vector",
    VectorStoreQueryMode.SPARSE: "text",
    VectorStoreQueryMode.TEXT_SEARCH: "text",
    VectorStoreQueryMode.HYBRID: "hybrid",
}

_OPERATORS: Mapping[FilterOperator, Operator] = {
    FilterOperator.EQ: "eq",
    FilterOperator.NE: "ne",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.IN: "in",
    FilterOperator.NIN: "not_in",
    FilterOperator.ANY: "has_any",
    FilterOperator.ALL: "contains",
    FilterOperator.CONTAINS: "contains",
    FilterOperator.TEXT_MATCH: "contains_text",
}


class SecondBrainRetriever(BaseRetriever):
    """A retriever: `retrieve` calls `service.search(query, **options)`, `aretrieve` its async twin.

    `aretrieve` uses `async_service`, or runs `service` in a thread without one. Raises the
    SecondBrainError of a failed search.
    """

    def __init__(
        self,
        service: RetrievalService | None = None,
        *,
        async_service: AsyncRetrievalService | None = None,
        options: Mapping[str, Any] | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        if service is None and async_service is None:
            raise TypeError("give a service, an async_service, or both")
        super().__init__(callback_manager=callback_manager)
        self._service = service
        self._async_service = async_service
        self._options = dict(options or {})

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._service is None:
            raise TypeError("this retriever has no service: use aretrieve, or give a service")
        return _nodes(self._service.search(query_bundle.query_str, **self._options))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._async_service is None:
            return await asyncio.to_thread(self._retrieve, query_bundle)
        return _nodes(await self._async_service.search(query_bundle.query_str, **self._options))


def search_tool(
    service: RetrievalService | None = None,
    *,
    async_service: AsyncRetrievalService | None = None,
    name: str = "search",
    description: str = DESCRIPTION,
    arguments: Collection[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> FunctionTool:
    """Return a tool for agents: the model sets the query and `arguments`, never `options`.

    `arguments` are names of SearchQuery; the default is `limit`, `offset`, `date_from` and
    `date_to` without what `options` has. Any other argument of a call is refused by name.
    """
    tool = SearchTool(service, async_service, description, arguments, options)
    return FunctionTool.from_defaults(
        fn=tool.function,
        async_fn=tool.async_function,
        name=name,
        description=tool.description,
        fn_schema=tool.schema,
    )


def _nodes(response: SearchResponse) -> list[NodeWithScore]:
    nodes = []
    for hit in response.results:
        metadata = described(hit, response)
        node = TextNode(
            id_=hit.id,
            text=text(hit),
            metadata=metadata,
            excluded_llm_metadata_keys=[
                key
                for key, value in metadata.items()
                if key not in SHOWN_TO_MODELS or value is None
            ],
            excluded_embed_metadata_keys=list(metadata),
        )
        if hit.document_id is not None:
            node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=hit.document_id)
        nodes.append(NodeWithScore(node=node, score=score(hit)))
    return nodes


class SecondBrainVectorStore(BasePydanticVectorStore):
    """A vector store: each node is a document of one collection, its id the `external_key`.

    `database` is a pool, a connection string or a connection, as service_role or as the owner of
    the tables. `embedding_model` is the name that is stored with the embeddings. `fields` and
    `options` as in `TextStore`. Raises a SecondBrainError.

    The query modes are `default` (vectors), `sparse` and `text_search` (text), and `hybrid`, whose
    `alpha` (0: text, 1: vectors) multiplies the legs' weights. Awaited calls run in a thread.
    """

    stores_text: bool = True
    flat_metadata: bool = False

    _store: TextStore = PrivateAttr()

    def __init__(
        self,
        database: Database,
        *,
        embedding_model: str,
        collection: str = "knowledge",
        fields: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        schema: str = SCHEMA,
    ) -> None:
        super().__init__(stores_text=True)
        self._store = TextStore(
            database,
            embedding_model=embedding_model,
            collection=collection,
            fields=fields,
            options=options,
            schema=schema,
        )

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex serialises the class by."""
        return "SecondBrainVectorStore"

    @property
    def client(self) -> TextStore:
        """The store of texts."""
        return self._store

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Store nodes with their embeddings in one transaction; return their ids."""
        self._store.write(
            [
                Text(
                    node.node_id,
                    node.get_content(MetadataMode.NONE),
                    node_to_metadata_dict(node, remove_text=True),
                    node.embedding,
                )
                for node in nodes
            ]
        )
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete all nodes of a document."""
        self._store.delete(self._store.labelled({"ref_doc_id": ref_doc_id}))

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete the nodes that `get_nodes` returns for these arguments."""
        if node_ids is not None and filters is None:
            self._store.delete(node_ids)
        else:
            self._store.delete([one.node_id for one in self.get_nodes(node_ids, filters)])

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return the nodes with these ids that match the filters; give at least one of the two.

        Without ids, it reads the whole collection and compares each node with the filters.
        """
        if node_ids is None and filters is None:
            raise InvalidInputError("give node_ids, filters or both; clear() deletes all nodes")
        found = self._store.everything() if node_ids is None else self._store.get(node_ids)
        stored = {one.key: one for one in found}
        return [
            _node(one)
            for one in stored.values()
            if filters is None or _matches(filters, one.metadata)
        ]

    def clear(self) -> None:
        """Delete all documents of the collection."""
        self._store.clear()

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Return the best nodes with their scores.

        In mode `default` the score is the cosine similarity (-1 to 1), else the score relative to
        the highest possible one (0 to 1). `kwargs` are arguments of `hybrid_search`.
        """
        mode = _MODES.get(query.mode)
        if mode is None:
            raise InvalidInputError(
                f"mode must be one of {', '.join(one.value for one in _MODES)}, "
                f"not {VectorStoreQueryMode(query.mode).value}"
            )
        conditions = [] if query.filters is None else all_of(_tree(query.filters))
        # An index passes an empty list where it restricts nothing.
        if query.doc_ids:
            conditions.append(FilterExpression("metadata.ref_doc_id", "in", query.doc_ids))
        if query.node_ids:
            ids = [str(one.document_id) for one in self._store.get(query.node_ids)]
            conditions.append(FilterExpression("document_id", "in", ids))
        limit = query.similarity_top_k
        if mode == "hybrid":
            limit = query.hybrid_top_k or limit
            if query.alpha is not None:
                kwargs = {"vector_weight": query.alpha, "text_weight": 1 - query.alpha, **kwargs}
        elif mode == "text":
            limit = query.sparse_top_k or limit
        embedding, text = questions(mode, query.query_embedding, query.query_str)
        found = self._store.search(embedding, text, limit, conditions, **kwargs)
        return VectorStoreQueryResult(
            nodes=[_node(one) for one in found],
            similarities=[one.score for one in found],
            ids=[one.key for one in found],
        )

    # LlamaIndex's names for an event loop.
    async_add = awaited(add)
    adelete = awaited(delete)
    adelete_nodes = awaited(delete_nodes)
    aget_nodes = awaited(get_nodes)
    aclear = awaited(clear)
    aquery = awaited(query)

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Refuse: what `to_dict` returns has no database."""
        raise InvalidInputError(
            "a store cannot be made of a dict, which has no connection to a database",
            remedy="Call SecondBrainVectorStore(database, embedding_model=...).",
        )


def _node(stored: Stored) -> BaseNode:
    """Return the node that was written, or a node for a text that was not written by LlamaIndex."""
    if "_node_content" in stored.metadata:
        node = metadata_dict_to_node(stored.metadata, text=stored.content)
    else:
        node = TextNode(id_=stored.key, text=stored.content, metadata=stored.metadata)
    node.embedding = stored.embedding
    return node


def _matches(filters: MetadataFilters, metadata: dict[str, Any]) -> bool:
    """Say whether metadata passes filters; a text does not pass a comparison with a number."""
    parts = []
    for one in filters.filters:
        if isinstance(one, MetadataFilters):
            parts.append(_matches(one, metadata))
            continue
        alone = build_metadata_filter_fn(lambda _: metadata, MetadataFilters(filters=[one]))
        try:
            parts.append(alone(""))
        except TypeError:
            parts.append(False)
    if filters.condition == FilterCondition.NOT:
        return not any(parts)
    return any(parts) if filters.condition == FilterCondition.OR else all(parts)


def _tree(filters: MetadataFilters) -> Group:
    if not isinstance(filters, MetadataFilters):
        raise InvalidInputError(
            f"filters must be MetadataFilters, not {type(filters).__name__}",
            remedy="Give MetadataFilters(filters=[MetadataFilter(key=..., value=...)]).",
        )
    members = [
        _tree(one) if isinstance(one, MetadataFilters) else _condition(one)
        for one in filters.filters
    ]
    if filters.condition == FilterCondition.NOT:
        # None of them may hold.
        return joined("not", [joined("or", members)])
    return joined("or" if filters.condition == FilterCondition.OR else "and", members)


def _condition(given: MetadataFilter) -> Part:
    if given.operator == FilterOperator.IS_EMPTY:
        return condition(given.key, "in", [None, "", []])
    if given.operator not in _OPERATORS:
        raise InvalidInputError(
            f"filters: {given.operator.value} of {given.key!r:.100} cannot be searched",
            remedy="Use another operator, or put the words into the question.",
        )
    value: Any = given.value
    if given.operator == FilterOperator.CONTAINS:
        value = [value]
    return condition(given.key, _OPERATORS[given.operator], value)

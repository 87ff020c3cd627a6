"""A LlamaIndex retriever: it returns the hits of the retrieval service as nodes with scores."""

import asyncio
from collections.abc import Mapping
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)

from second_brain.integrations import described, text
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService

SHOWN_TO_MODELS = frozenset({"title", "section", "source_url", "document_date"})
"""The metadata that LlamaIndex puts before a node's text; a model does not need scores and ids."""


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
        nodes.append(NodeWithScore(node=node, score=hit.score))
    return nodes

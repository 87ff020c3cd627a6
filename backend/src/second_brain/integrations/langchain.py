"""A LangChain retriever: what the retrieval service finds, as LangChain's documents."""

from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field

from second_brain.integrations import described, text
from second_brain.services.models import SearchResponse
from second_brain.services.retrieval import AsyncRetrievalService, RetrievalService


class SecondBrainRetriever(BaseRetriever):
    """Retrieves by `service.search(query, **options)`, or by `async_service` where one awaits.

    Without an `async_service`, `ainvoke` runs `service` in a thread. Raises the SecondBrainError of
    a search that failed.
    """

    service: RetrievalService | None = None
    async_service: AsyncRetrievalService | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        if self.service is None:
            raise TypeError("without a service this retriever is for ainvoke")
        return _documents(self.service.search(query, **self.options))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        if self.async_service is None:
            return await super()._aget_relevant_documents(query, run_manager=run_manager)
        return _documents(await self.async_service.search(query, **self.options))


def _documents(response: SearchResponse) -> list[Document]:
    return [
        Document(id=hit.id, page_content=text(hit), metadata=described(hit, response))
        for hit in response.results
    ]

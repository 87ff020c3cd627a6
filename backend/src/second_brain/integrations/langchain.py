"""A LangChain retriever: what the retrieval service finds, as LangChain's documents."""

from typing import Any, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from pydantic import ConfigDict, Field, model_validator

from second_brain.integrations import described, text
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService


class SecondBrainRetriever(BaseRetriever):
    """Retrieves by `service.search(query, **options)`, or by `async_service` where one awaits.

    What `invoke` is given by name goes before `options`. Without an `async_service`, `ainvoke` runs
    `service` in a thread. Raises the SecondBrainError of a search that failed.
    """

    # A misspelt name would be an option that does nothing.
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
            raise TypeError("without a service this retriever is for ainvoke")
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


def _documents(response: SearchResponse) -> list[Document]:
    return [
        Document(id=hit.id, page_content=text(hit), metadata=described(hit, response))
        for hit in response.results
    ]

"""A LangChain retriever: it returns the hits of the retrieval service as LangChain documents."""

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


def _documents(response: SearchResponse) -> list[Document]:
    return [
        Document(id=hit.id, page_content=text(hit), metadata=described(hit, response))
        for hit in response.results
    ]

"""The search as a tool of a language model, for each framework that has tools."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from second_brain.errors import SecondBrainError
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.tool_arguments import (
    ADVICE,
    checked,
    fitting,
    over_budget,
    search_arguments,
    told,
    visible,
)

SHOWN = frozenset(
    ("document_id", "title", "heading", "content", "source_url", "document_date", "confidence")
)
"""The fields of a result that help a model to answer."""

FAILED = "Search failed"


class SearchTool:
    """What the tools of all frameworks do: check what a model sent, search, and answer in JSON.

    `options` are arguments of each search, such as `{"viewer_id": ...}`, and bind them: the model
    cannot set them. `arguments` are the fields of SearchQuery that it can set beside the query. A
    failure is a text for the model, with what to do; `refuse` is what the framework makes of it.
    """

    def __init__(
        self,
        service: RetrievalService | None,
        async_service: AsyncRetrievalService | None,
        description: str,
        arguments: Collection[str] | None,
        options: Mapping[str, Any] | None,
        refuse: Callable[[str], str] = str,
    ) -> None:
        if service is None and async_service is None:
            raise TypeError("give a service, an async_service, or both")
        self._service = service
        self._async_service = async_service
        self._options = dict(options or {})
        self._refuse = refuse
        self.description = f"{description} {ADVICE}"
        self.schema = search_arguments(arguments, self._options)
        self.function = self.run if service else None
        self.async_function = self.run_async if async_service else None

    def run(self, **given: Any) -> str:
        """Search; a failure is a text for the model."""
        if self._service is None:
            raise TypeError("this tool has no service: await it, or give a service")
        try:
            asked = checked(self.schema, given)
            return _text(self._service.search(asked.pop("query", ""), **asked, **self._options))
        except SecondBrainError as error:
            failure = told(FAILED, error)
        return self._refuse(failure)

    async def run_async(self, **given: Any) -> str:
        """Do the same with the service for asyncio."""
        if self._async_service is None:
            raise TypeError("this tool has no async_service")
        try:
            asked = checked(self.schema, given)
            search = self._async_service.search
            return _text(await search(asked.pop("query", ""), **asked, **self._options))
        except SecondBrainError as error:
            failure = told(FAILED, error)
        return self._refuse(failure)


def _text(response: SearchResponse) -> str:
    results, hints = fitting(
        [hit.model_dump(mode="json", include=set(SHOWN)) for hit in response.results]
    )
    answer = response.model_dump(
        mode="json",
        include={"total_count", "answer_confidence", "notes", "degraded", "empty", "left_out"},
        exclude_none=True,
    )
    hints += over_budget(response.left_out)
    return visible(json.dumps({"results": results, "hints": hints, **answer}, ensure_ascii=False))

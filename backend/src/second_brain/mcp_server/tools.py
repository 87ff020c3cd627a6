"""What all tools share: their arguments, their answer, and what they work with."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import mcp_types as types
from pydantic import BaseModel

from second_brain.mcp_server.scope import Scope
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.query import SearchQuery
from second_brain.retrieval.service import AsyncRetrievalService
from second_brain.retrieval.tool_arguments import ToolArguments
from second_brain.services.provider import AsyncSearchProvider
from second_brain.services.write import AsyncKnowledgeWriter

Writers: TypeAlias = Callable[[], AbstractAsyncContextManager[AsyncKnowledgeWriter]]
"""Opens a writer for one call."""

Groups: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Sequence[str]]]
"""Takes the claims of a verified token, and returns the groups of its user."""

BeginStep: TypeAlias = Callable[[str, int], None]
"""Takes a step that begins, and how many steps the call has."""

READS = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

_STEPS = {"text": 1, "vector": 2, "hybrid": 2, "rerank": 3}


@dataclass(frozen=True)
class Context:
    """What a call works with: the scope is that of its caller."""

    service: AsyncRetrievalService
    provider: AsyncSearchProvider
    scope: Scope
    writers: Writers | None
    begin: BeginStep
    protocol_version: str

    async def search(self, query: SearchQuery) -> SearchResponse:
        """Search within the scope."""
        mode = query.mode or self.service.settings.default_mode
        # Without a question, only like_ids, there is nothing to embed or to rerank.
        total = _STEPS[mode] if query.query else 1
        response = await self.service.search(
            query, on_part=lambda part: self.begin(part, total), **self.scope.access
        )
        if response.pool_ended and len(response.results) < response.limit:
            # The chunks of few documents filled the pools: pages are made with the largest ones.
            async with aclosing(self.service.search_pages(query, **self.scope.access)) as pages:
                return await anext(pages, response)
        return response


@dataclass(frozen=True)
class Answer:
    """What a tool returns: text, JSON, and links to the documents that it found."""

    text: str
    content: BaseModel
    links: tuple[types.ResourceLink, ...] = ()


class Tool(ToolArguments):
    """The arguments of a tool, what it says of itself, and its answer."""

    title: ClassVar[str]
    description: ClassVar[str]
    output: ClassVar[type[BaseModel]]
    annotations: ClassVar[types.ToolAnnotations] = READS
    failed: ClassVar[str] = "Search failed"

    @abstractmethod
    async def answer(self, context: Context) -> Answer:
        """Return the answer, or raise an error."""

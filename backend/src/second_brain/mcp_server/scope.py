"""Which rows a caller of the MCP server may see, and whether they may store notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from second_brain.errors import ConfigurationError, InvalidInputError
from second_brain.retrieval.plan import MEMORY, NO_MEMORY
from second_brain.retrieval.query import SearchQuery

Condition: TypeAlias = Mapping[str, object]


@dataclass(frozen=True)
class Scope:
    """The rows that a caller may see; an assistant's arguments can only narrow them.

    `collections`: the visible collections, each ranked separately; None means all, ranked together.
    In both cases `memory` is searched only when the call includes it; of all, `history` only when
    a filter names it. `viewer_id`, `viewer_groups`
    and `public_only` are as in `SearchProvider.hybrid_search`. `may_remember`: the caller may store
    and delete notes of the viewer. Raises ConfigurationError if the viewer could not see them.
    """

    collections: tuple[str, ...] | None = None
    viewer_id: UUID | None = None
    public_only: bool = False
    viewer_groups: tuple[str, ...] | None = None
    may_remember: bool = False

    def __post_init__(self) -> None:
        if not self.may_remember:
            return
        if self.viewer_id is None:
            raise ConfigurationError(
                "notes need a viewer who owns them", remedy="Give the viewer_id of this user."
            )
        is_listed = self.collections is None or MEMORY in self.collections
        if self.public_only or not is_listed:
            raise ConfigurationError(
                f"the viewer could not see their notes: they are private, in collection {MEMORY}",
                remedy=f"Leave out public_only, and list the collection {MEMORY} if any is listed.",
            )

    @property
    def is_limited(self) -> bool:
        """Whether some rows are hidden."""
        return self.public_only or (self.viewer_id, self.viewer_groups) != (None, None)

    @property
    def access(self) -> dict[str, Any]:
        """The arguments of a provider that limit what every answer tells to these rows."""
        collections = {"field": "collection", "op": "in", "value": self.collections}
        return {
            "viewer_id": self.viewer_id,
            "viewer_groups": self.viewer_groups,
            "public_only": self.public_only,
            "required_filters": None if self.collections is None else [collections],
        }

    def query(
        self,
        *,
        include_memory: bool,
        conditions: Sequence[Condition],
        collections: Sequence[str] | None = None,
        **given: Any,
    ) -> SearchQuery:
        """Return the search within this scope; or raise InvalidInputError if it is empty."""
        if collections is None:
            collections = self.collections
        else:
            # Who names the collection includes it.
            include_memory = include_memory or MEMORY in collections
            hidden = sorted({*collections} - {*(self.collections or collections)})
            if hidden:
                raise InvalidInputError(
                    f"the collection {hidden[0]} is not visible on this server",
                    remedy=f"Name some of {', '.join(self.collections or ())}, or none.",
                )
        if collections is None:
            if not include_memory:
                conditions = [*conditions, NO_MEMORY]
        else:
            if include_memory and MEMORY not in collections:
                raise InvalidInputError(
                    f"the collection {MEMORY} is not visible on this server",
                    remedy="Call again without include_memory.",
                )
            collections = tuple(name for name in collections if include_memory or name != MEMORY)
            if not collections:
                raise InvalidInputError(
                    f"only the collection {MEMORY} is visible on this server",
                    remedy="Call hybrid_search with include_memory true.",
                )
        return SearchQuery(
            collections=collections,
            filters=conditions,
            include_memory=include_memory,
            snippet=True,
            **given,
        )

"""What a query means with the service's settings: mode, limits, and the provider's arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from second_brain.errors import ConfigurationError, InvalidInputError
from second_brain.filters import listed_conditions
from second_brain.retrieval.query import Access, QueryOptions, SearchQuery
from second_brain.retrieval.settings import MATCH_COUNT_BOUND, Mode, SearchSettings
from second_brain.services.arguments import FindOptions, Leg, RowOptions

MEMORY, HISTORY = "memory", "history"
"""The collections of what assistants store about a user, and of the turns of conversations."""

NO_MEMORY = {"field": "collection", "op": "ne", "value": MEMORY}

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Plan:
    """A query with what the settings make of it."""

    query: SearchQuery
    access: Access
    mode: Mode
    retrieval: Leg
    """What the provider is asked for: hybrid, vector or text."""
    limit: int
    window: int
    """Rows asked for: the limit, or the candidates of a reranker."""
    threshold: float
    left_out: tuple[str, ...]
    """The collections that a condition leaves out, because nothing asks for them."""
    pool: int | None = None
    """Candidates for each leg; None for what the settings say."""

    @property
    def is_reranked(self) -> bool:
        """Whether a reranker orders the hits."""
        return self.mode == "rerank"

    @property
    def texts(self) -> list[str]:
        """The question and its further formulations."""
        return [self.query.query, *self.query.formulations]

    def key(self) -> str:
        """Return what determines the answer, beside the service's settings."""
        try:
            rest = self.query.model_dump_json(exclude={"mode", "limit", "min_similarity"})
            access = self.access.model_dump_json()
        except PydanticSerializationError as error:
            raise InvalidInputError("a text of the query is not Unicode") from error
        return f"{self.mode} {self.limit} {self.threshold} {self.pool} {access} {rest}"


def checked_query(question: str | SearchQuery, options: QueryOptions) -> tuple[SearchQuery, Access]:
    """Return the query and what the server decided.

    Raises InvalidInputError for a value that is out of bounds, and ConfigurationError for a
    SearchQuery beside which nothing says whose rows it may find.
    """
    decided = {name: value for name, value in options.items() if name in Access.model_fields}
    asked = {name: value for name, value in options.items() if name not in decided}
    if isinstance(question, SearchQuery):
        if asked:
            raise InvalidInputError(
                f"a SearchQuery and {', '.join(asked)} are given",
                remedy=f"Put everything but {', '.join(Access.model_fields)} into the SearchQuery.",
            )
        if "viewer_id" not in decided and not (
            decided.get("public_only") or decided.get("viewer_groups") is not None
        ):
            raise ConfigurationError(
                "a SearchQuery is given, and nothing says whose rows it may find",
                remedy="Give the viewer_id of the user who asks, viewer_groups, or "
                "public_only=True; viewer_id=None where every client may see every row.",
            )
    try:
        access = Access(**decided)  # type: ignore[arg-type]
        if isinstance(question, SearchQuery):
            return question, access
        return SearchQuery(query=question, **asked), access  # type: ignore[arg-type]
    except ValidationError as error:
        # Without the values: a question may be private.
        faults = [
            ": ".join([*filter(None, [".".join(map(str, fault["loc"]))]), fault["msg"]])
            for fault in error.errors()
        ]
        raise InvalidInputError("; ".join(faults)) from None


def planned(query: SearchQuery, access: Access, settings: SearchSettings) -> Plan:
    """Return the plan of a query."""
    mode = query.mode or settings.default_mode
    if mode != "rerank":
        retrieval: Leg = mode
    else:
        retrieval = "hybrid" if settings.use_hybrid_search else "vector"
    most = settings.max_hybrid_search_results
    limit = min(query.limit or settings.default_limit(mode), most)
    window = limit
    if mode == "rerank":
        # The same for every page, so that all pages cut one list.
        window = min(limit * settings.reranking_candidate_multiplier, most)
    threshold = query.min_similarity
    if threshold is None:
        threshold = settings.similarity_threshold
    includes_memory = query.include_memory
    if includes_memory is None:
        includes_memory = settings.search_include_memory
    return Plan(
        query,
        access,
        mode,
        retrieval,
        limit,
        window,
        threshold,
        # A list of collections names all that are searched.
        left_out=()
        if query.collections is not None
        else left_out(includes_memory, query.filters, access.required_filters),
    )


def row_options(plan: Plan) -> RowOptions:
    """Return which rows the plan selects, by the provider's names."""
    query = plan.query
    conditions = _with_tags(query.filters, query.tags)
    conditions = _together(conditions, plan.access.required_filters)
    conditions = _together(conditions, without(plan.left_out) or None)
    return {
        "filter_type": query.category,
        "filters": conditions,
        "date_from": query.date_from,
        "date_to": query.date_to,
        "collections": None if query.collections is None else list(query.collections),
        "viewer_id": plan.access.viewer_id,
        "viewer_groups": plan.access.viewer_groups,
        "public_only": plan.access.public_only,
    }


def search_options(
    plan: Plan,
    used: Leg,
    further: Sequence[tuple["NDArray[np.float32] | None", str | None]],
    settings: SearchSettings,
    timeout: float | None,
) -> FindOptions:
    """Return the provider's arguments other than the question, by the provider's names.

    `further` has the further formulations.
    """
    query, is_hybrid = plan.query, used == "hybrid"
    weights = [query.vector_weight, query.text_weight]
    of_settings = [settings.vector_weight, settings.text_weight]
    vector_weight, text_weight = (
        default if given is None else given
        for given, default in zip(weights, of_settings, strict=True)
    )
    return {
        # mypy requires every key of FindOptions in what is unpacked.
        **row_options(plan),  # type: ignore[typeddict-item]
        "top_k": plan.window,
        "threshold": plan.threshold,
        # A leg that is alone has no other to be weighed against.
        "vector_weight": vector_weight if is_hybrid else 1.0,
        "text_weight": text_weight if is_hybrid else 1.0,
        "search_mode": query.text_mode,
        "pool_size": plan.pool
        or min(
            max(
                settings.hybrid_candidate_count,
                settings.overfetch_multiplier * plan.limit,
                plan.window,
            ),
            MATCH_COUNT_BOUND,
        ),
        "rrf_k": settings.rrf_constant,
        "fusion": query.fusion or settings.search_fusion,
        "one_per_document": query.one_per_document,
        "neighbor_window": query.expand_neighbors,
        "recency_half_life": query.recency_half_life,
        "match_offset": 0 if plan.is_reranked else query.offset,
        "snippet": query.snippet,
        "formulations": [
            {"query_embedding": vector, "query_text": text}
            for vector, text in further
            if vector is not None or text is not None
        ]
        or None,
        "exact_total": query.exact_total,
        "timeout": timeout,
    }


def applied_filters(plan: Plan, threshold: float | None) -> dict[str, Any]:
    """Return the conditions that the answer names."""
    query, access = plan.query, plan.access
    said = {
        "category": query.category,
        "tags": list(query.tags),
        "date_from": query.date_from and query.date_from.isoformat(),
        "date_to": query.date_to and query.date_to.isoformat(),
        "filters": query.filters,
        "min_similarity": threshold or None,
        "viewer_id": access.viewer_id and str(access.viewer_id),
        "viewer_groups": access.viewer_groups and list(access.viewer_groups),
        "public_only": access.public_only or None,
        "collections": query.collections and list(query.collections),
        "left_out": list(plan.left_out),
    }
    return {name: value for name, value in said.items() if value not in (None, [], {})}


def left_out(include_memory: bool, *filters: Any) -> tuple[str, ...]:
    """Return which of memory and history a search without a list of collections leaves out.

    Both, except memory that is included, and what a condition on the column collection names.
    """
    optional = (HISTORY,) if include_memory else (MEMORY, HISTORY)
    return tuple(name for name in optional if not any(_names(one, name) for one in filters))


def without(names: Sequence[str]) -> list[Any]:
    """Return the condition that leaves these collections out, in a list; no names, no condition."""
    return [{"field": "collection", "op": "not_in", "value": list(names)}] if names else []


def _names(filters: Any, collection: str) -> bool:
    if isinstance(filters, dict):
        return filters.get("collection") == collection
    values = [
        one.get("value")
        for one in filters or ()
        if isinstance(one, dict) and one.get("field") == "collection"
    ]
    return any(
        collection in value if isinstance(value, list) else value == collection for value in values
    )


def _with_tags(filters: Any, tags: Sequence[str]) -> Any:
    if not tags:
        return filters
    return _together(filters, [{"field": "metadata.tags", "op": "contains", "value": list(tags)}])


def _together(filters: Any, further: list[Any] | None) -> Any:
    """Return the conditions of both; filters alone stay in their form."""
    if not filters or not further:
        return filters or further
    listed = listed_conditions(filters) if isinstance(filters, dict) else filters
    return [*listed, *further]

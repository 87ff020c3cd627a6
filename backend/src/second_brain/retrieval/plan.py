"""What a query means with the service's settings: mode, limits, and the provider's arguments."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from second_brain.errors import ConfigurationError, InvalidInputError
from second_brain.filters import listed
from second_brain.retrieval.query import Access, OperatorQuery, QueryOptions, SearchQuery
from second_brain.retrieval.settings import MATCH_COUNT_BOUND, Mode, SearchSettings
from second_brain.services.arguments import FindOptions, Leg, RowOptions, did_you_mean

MEMORY, HISTORY = "memory", "history"
"""The collections of what assistants store about a user, and of the turns of conversations."""

# The fields of a query that a provider takes by the same name, and those of them that select rows.
_PASSED = tuple(name for name in get_type_hints(FindOptions) if name in SearchQuery.model_fields)
_ROWS = tuple(name for name in _PASSED if name in get_type_hints(RowOptions))

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
    pool: int
    """Candidates for each leg."""
    left_out: tuple[str, ...]
    """The collections that a condition leaves out, because nothing asks for them."""
    rows: RowOptions
    """Which rows are searched, by the provider's names."""

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
        known = {*SearchQuery.model_fields, *Access.model_fields}
        raise invalid_query(error, known) from None


def invalid_query(
    error: ValidationError, known: Collection[str] = SearchQuery.model_fields
) -> InvalidInputError:
    """Return the error without the values: a question may be private."""
    faults = [
        ": ".join([*filter(None, [".".join(map(str, fault["loc"]))]), said_of(fault, known)])
        for fault in error.errors()
    ]
    return InvalidInputError("; ".join(faults))


def said_of(fault: Any, known: Collection[str]) -> str:
    """Return what pydantic found wrong; of a name that is not known, which one is like it."""
    if fault["type"] != "extra_forbidden":
        return str(fault["msg"]).removeprefix("Value error, ")
    return f"no argument has this name{did_you_mean(str(fault['loc'][-1]), known)}"


def planned(query: SearchQuery, access: Access, settings: SearchSettings) -> Plan:
    """Return the plan of a query."""
    mode = query.mode or settings.default_mode
    retrieval: Leg | None = query.reranked_leg if isinstance(query, OperatorQuery) else None
    if mode != "rerank":
        retrieval = mode
    elif retrieval is None:
        retrieval = "hybrid" if settings.use_hybrid_search else "vector"
    if not query.query or query.order_by is not None:
        mode = retrieval  # a reranker needs a question, and would replace this order
    most = settings.max_hybrid_search_results
    limit = min(query.limit or settings.default_limit(mode), most)
    window = limit
    if mode == "rerank":
        # The same for every page, so that all pages cut one list.
        window = min(limit * settings.reranking_candidate_multiplier, most)
    wanted = max(settings.hybrid_candidate_count, settings.overfetch_multiplier * limit, window)
    conditions, left_out = _conditions(query, access.required_filters, settings)
    return Plan(
        query=query,
        access=access,
        mode=mode,
        retrieval=retrieval,
        limit=limit,
        window=window,
        pool=min(wanted, MATCH_COUNT_BOUND),
        threshold=settings.similarity_threshold
        if query.min_similarity is None
        else query.min_similarity,
        left_out=left_out,
        rows=cast(
            RowOptions,
            {name: getattr(query, name) for name in _ROWS}
            | dict(access)
            | {
                "filter_type": query.category,
                "filters": conditions,
                "collections": _collections(query, settings),
            },
        ),
    )


def by_source_category(plan: Plan) -> Plan:
    """Return the plan for a category that is no knowledge_type: metadata.source_category."""
    is_category = {"field": "metadata.source_category", "op": "eq", "value": plan.query.category}
    filters = [*listed(plan.rows["filters"]), is_category]
    return replace(plan, rows={**plan.rows, "filter_type": None, "filters": filters})


def weights(query: SearchQuery, settings: SearchSettings) -> tuple[float, float]:
    """Return the weights of the vector leg and of the text leg."""
    vector, text = query.vector_weight, query.text_weight
    return (
        settings.vector_weight if vector is None else vector,
        settings.text_weight if text is None else text,
    )


def search_options(
    plan: Plan,
    used: Leg,
    further: Sequence[tuple["NDArray[np.float32] | None", str | None]],
    settings: SearchSettings,
    timeout: float | None,
    *,
    embedding_from_text: bool = False,
) -> FindOptions:
    """Return the provider's arguments other than the question, by the provider's names.

    `further` has the further formulations.
    """
    query, is_hybrid, is_like = plan.query, used == "hybrid", bool(plan.query.like_ids)
    vector_weight, text_weight = weights(query, settings)
    # What the query has by the provider's name, then what is more than that.
    options = {name: getattr(query, name) for name in _PASSED}
    return cast(
        FindOptions,
        options
        | {
            **plan.rows,
            "top_k": plan.window,
            "threshold": plan.threshold,
            # A leg that is alone has no other to be weighed against. like_ids could run both.
            "vector_weight": vector_weight if is_hybrid else float(used != "text" or not is_like),
            "text_weight": text_weight if is_hybrid else float(used != "vector" or not is_like),
            "search_mode": query.text_mode,
            "pool_size": plan.pool,
            "rrf_k": settings.rrf_constant if query.rrf_k is None else query.rrf_k,
            "fusion": query.fusion or settings.search_fusion,
            "neighbor_window": query.expand_neighbors,
            "match_offset": 0 if plan.mode == "rerank" else query.offset,
            "formulations": [
                {"query_embedding": vector, "query_text": text}
                for vector, text in further
                if vector is not None or text is not None
            ]
            or None,
            "embedding_from_text": embedding_from_text,
            "timeout": timeout,
        },
    )


def applied_filters(plan: Plan, threshold: float | None) -> dict[str, Any]:
    """Return the conditions that the answer names."""
    said = plan.query.model_dump(mode="json", include={"category", "tags", *_ROWS})
    said |= plan.access.model_dump(mode="json", exclude={"required_filters"})
    said["as_of"] = None if said["as_of"] == "now" else said["as_of"] or "all"
    said |= {"min_similarity": threshold or None, "left_out": list(plan.left_out)}
    return {
        name: value
        for name, value in said.items()
        if value is not False and value not in (None, [], {})
    }


def _conditions(
    query: SearchQuery, required: Sequence[Any] | None, settings: SearchSettings
) -> tuple[Any, tuple[str, ...]]:
    """Return the query's conditions, and which of memory and history they leave out.

    A list of collections names all that are searched. Without one they leave out both, except
    memory that is included, and what a condition on the column collection names.
    """
    own = listed(query.filters)
    further: list[Any] = []
    if query.tags:
        further.append({"field": "metadata.tags", "op": "contains", "value": list(query.tags)})
    left_out: list[str] = []
    if query.collections is None:
        named: list[Any] = []
        for one in (*own, *(required or ())):
            if isinstance(one, dict):
                # In the short form, it is a key.
                value = one.get("value" if one.get("field") == "collection" else "collection")
                named += value if isinstance(value, list) else [value]
        optional = [HISTORY] if _includes_memory(query, settings) else [MEMORY, HISTORY]
        left_out = [name for name in optional if name not in named]
    if left_out:
        further.append({"field": "collection", "op": "not_in", "value": left_out})
    # Filters alone stay in their form.
    return ([*own, *further] if further else query.filters), tuple(left_out)


def _collections(query: SearchQuery, settings: SearchSettings) -> list[str] | None:
    """Return the collections that are ranked separately; "" is all that are not named."""
    if query.collections is not None:
        return list(query.collections)
    return ["", MEMORY] if _includes_memory(query, settings) else None


def _includes_memory(query: SearchQuery, settings: SearchSettings) -> bool:
    if query.include_memory is None:
        return settings.search_include_memory
    return query.include_memory

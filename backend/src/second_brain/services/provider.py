"""The searches as all providers offer them: arguments in, results and details out.

A provider only says how a function is called (`_call`). Ranking, fusing and filtering are the
database's, and so is the judgement of an embedding or a bound: what the caller gives is sent. Only
a text that is no date, no UUID or no list is refused here, since Postgres would not say which.

What a search does stands once, in `_Searches`, as steps; `SearchProvider` and `AsyncSearchProvider`
differ in how a step is waited for.
"""

import asyncio
import inspect
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import count
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)
from uuid import UUID

from second_brain.errors import (
    ConnectionLostError,
    InvalidInputError,
    PermissionDeniedError,
    SecondBrainError,
    UnexpectedAnswerError,
    safe_message,
    translate,
)
from second_brain.filters import Filters, conditions, json_form
from second_brain.services.results import (
    MemorySearchResult,
    Mode,
    Source,
    normalize_rows,
    query_index,
    total_count,
)
from second_brain.services.steps import Steps, run, run_async

logger = logging.getLogger(__name__)

Details: TypeAlias = dict[str, Any]
Results: TypeAlias = tuple[list[MemorySearchResult], Details]
BatchResults: TypeAlias = tuple[list[list[MemorySearchResult]], Details]
Parsed = TypeVar("Parsed")
Outcome = TypeVar("Outcome")

RETRIES = 2
"""How often a search is sent again when the connection is lost."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds: the most that is waited before the first of these attempts, and before any."""

LONGEST_TIMEOUT = 86_400.0
"""Seconds."""


class SupportsToList(Protocol):
    """A numpy array or a tensor."""

    def tolist(self) -> Any:
        """Return the values as Python's own numbers."""


Embedding: TypeAlias = Sequence[float] | SupportsToList | str


class Formulation(TypedDict, total=False):
    """One more way to ask the same question, in words, as an embedding, or both."""

    query_text: str | None
    query_embedding: Embedding | None


class OwnSearchArguments(TypedDict, total=False):
    """What the database is told beside the question and the viewer."""

    top_k: int
    threshold: float
    vector_weight: float
    text_weight: float
    filter_type: str | None
    search_mode: str
    pool_size: int
    rrf_k: float
    fusion: str
    filters: Filters | None
    date_from: date | str | None
    date_to: date | str | None
    collections: Sequence[str] | None
    public_only: bool
    one_per_document: bool
    neighbor_window: int
    recency_half_life: float | None
    match_offset: int
    snippet: bool
    formulations: Sequence[Formulation] | None


class OwnSearchOptions(OwnSearchArguments, total=False):
    """What `search_my_knowledge` takes beside the question; see `SearchProvider.hybrid_search`."""

    timeout: float | None


class SearchOptions(OwnSearchOptions, total=False):
    """What `hybrid_search` takes beside the question."""

    viewer_id: UUID | str | None


class BatchQuery(OwnSearchArguments, total=False):
    """One query of a batch: what `hybrid_search` takes, with its names and defaults."""

    query_embedding: Embedding | None
    query_text: str | None
    viewer_id: UUID | str | None


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """A model that stored chunks were embedded with, as they name it, and how many there are."""

    model: str | None
    dimensions: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Call:
    """A step: call the SQL function once, within `timeout` seconds."""

    function: str
    arguments: dict[str, Any]
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """A step: wait."""

    seconds: float


class ClientUnavailableError(SecondBrainError):
    """There are no credentials to make a client with."""

    kind = "client_unavailable"
    default_remedy = "Give supabase_url and supabase_key, or set SUPABASE_URL and SUPABASE_KEY."


_Steps: TypeAlias = Steps[Call | Pause, Outcome]


class _Searches:
    """What a search does, whoever waits for it."""

    name: ClassVar[Source]

    def __init__(
        self,
        *,
        multi_tenant: bool = False,
        timeout: float | None = None,
        retries: int = RETRIES,
    ) -> None:
        self._multi_tenant = multi_tenant
        self._timeout = _seconds(timeout)
        self._retries = retries

    def _secrets(self) -> Iterable[object]:
        """Return the values that no message may hold."""
        return ()

    def _hybrid(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        options: Mapping[str, Any],
    ) -> _Steps[Results]:
        given, timeout = _question(query_embedding, query_text, options)
        arguments = _arguments(given, "hybrid_search()")
        return (
            yield from self._search("hybrid", "hybrid_search_knowledge_chunks", arguments, timeout)
        )

    def _mine(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        options: Mapping[str, Any],
    ) -> _Steps[Results]:
        given, timeout = _question(query_embedding, query_text, options)
        arguments = _arguments(given, "search_my_knowledge()", unknown={"viewer_id"})
        del arguments["viewer_id"]
        hits, details = yield from self._search(
            "hybrid", "search_my_knowledge_chunks", arguments, timeout
        )
        if details.get("error_kind") == PermissionDeniedError.kind:
            details["remedy"] = (
                "Call with the token of a signed-in user (role authenticated): "
                "with the service role, give hybrid_search a viewer_id."
            )
        return hits, details

    def _vector(
        self,
        query_embedding: Embedding | None,
        top_k: int,
        threshold: float,
        filter_type: str | None,
        **rest: Any,
    ) -> _Steps[Results]:
        arguments = {
            "query_embedding": query_embedding,
            "match_count": top_k,
            "match_threshold": threshold,
            "filter_type": filter_type,
        }
        return (yield from self._leg("vector", "match_knowledge_chunks", arguments, **rest))

    def _fulltext(
        self,
        query_text: str | None,
        top_k: int,
        search_mode: str,
        filter_type: str | None,
        **rest: Any,
    ) -> _Steps[Results]:
        arguments = {
            "query_text": query_text,
            "search_mode": search_mode,
            "filter_type": filter_type,
            "match_count": top_k,
        }
        function = "search_knowledge_chunks_fulltext"
        return (yield from self._leg("fulltext", function, arguments, **rest))

    def _leg(
        self,
        mode: Mode,
        function: str,
        arguments: Mapping[str, object],
        *,
        viewer_id: UUID | str | None,
        public_only: bool,
        timeout: float | None,
    ) -> _Steps[Results]:
        viewer: dict[str, object] = {"viewer_id": viewer_id, "public_only": public_only}
        if viewer != {"viewer_id": None, "public_only": False}:
            # The functions for a single leg know no viewer.
            arguments = {**_arguments({}, function), **arguments, **viewer}
            function = "hybrid_search_knowledge_chunks"
        return (yield from self._search(mode, function, arguments, timeout))

    def _search(
        self, mode: Mode, function: str, given: Mapping[str, object], timeout: float | None
    ) -> _Steps[Results]:
        details = self._details(mode)
        try:
            arguments = _converted(given)
            if function != "search_my_knowledge_chunks":
                self._require_viewer(arguments)
            rows = yield from self._rows(function, arguments, timeout)
            results = normalize_rows(
                rows, mode=mode, source=self.name, limit=arguments["match_count"]
            )
        # The contract is an answer that says what failed, whatever it was.
        except Exception as error:  # noqa: BLE001
            return [], details | self._failure(function, error)
        details |= {
            "real_provider": True,
            "raw_count": len(rows),
            "total_count": total_count(rows),
        }
        return results, details

    def _batch(
        self, given: Sequence[BatchQuery], fuse: bool, timeout: float | None
    ) -> _Steps[tuple[Any, Details]]:
        function = "hybrid_search_knowledge_chunks_batch"
        details = self._details("hybrid")
        queries = list(given)
        try:
            asked = [
                # What a further formulation does not say is the first one's.
                without_defaults(
                    _converted(
                        _arguments(query, f"queries[{place}]", complete=not (fuse and place))
                    )
                )
                for place, query in enumerate(queries)
            ]
            for place, arguments in enumerate(asked[:1] if fuse else asked):
                self._require_viewer(arguments, f"queries[{place}]: ")
            rows = yield from self._rows(function, {"queries": asked, "fuse": fuse}, timeout)
            answers = _by_query(rows, 1 if fuse else len(asked))
            found = [
                normalize_rows(
                    answer, mode="hybrid", source=self.name, limit=arguments["match_count"]
                )
                for arguments, answer in zip(asked, answers, strict=False)
            ]
        # The contract is an answer that says what failed, whatever it was.
        except Exception as error:  # noqa: BLE001
            nothing: list[Any] = [] if fuse else [[] for _ in queries]
            return nothing, details | self._failure(function, error)
        totals = [total_count(answer) for answer in answers]
        details |= {"real_provider": True, "raw_count": len(rows)}
        if fuse:
            return found[0], details | {"total_count": totals[0]}
        return found, details | {"total_count": totals}

    def _explain(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        options: Mapping[str, Any],
    ) -> _Steps[dict[str, Any]]:
        given, timeout = _question(query_embedding, query_text, options)
        arguments = _arguments(given, "explain_hybrid_search()")
        return (yield from self._raising(self._explained(arguments, timeout)))

    def _explained(
        self, given: Mapping[str, object], timeout: float | None
    ) -> _Steps[dict[str, Any]]:
        arguments = _converted(given)
        self._require_viewer(arguments)
        answer = yield from self._answer("explain_hybrid_search", arguments, timeout)
        if not isinstance(answer, dict):
            raise UnexpectedAnswerError(f"an object expected, {type(answer).__name__} received")
        return answer

    def _models(self, timeout: float | None) -> _Steps[list[EmbeddingModel]]:
        rows = yield from self._raising(self._rows("knowledge_embedding_models", {}, timeout))
        return [_embedding_model(row) for row in rows]

    def _rows(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> _Steps[Sequence[object]]:
        rows = yield from self._answer(function, arguments, timeout)
        if rows is None:
            return []
        if not isinstance(rows, list):
            raise UnexpectedAnswerError(f"rows expected, {type(rows).__name__} received")
        return rows

    def _answer(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> _Steps[object]:
        """Call, and call again when the connection was lost: every function here only reads."""
        timeout = self._timeout if timeout is None else _seconds(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        for attempt in count():
            left = None if deadline is None else max(deadline - time.monotonic(), 0.001)
            try:
                return (yield Call(function, arguments, left))
            except Exception as error:
                # Full jitter: those who lost their connection together do not come back together.
                pause = random.uniform(0, min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))  # noqa: S311
                if (
                    attempt >= self._retries
                    or not isinstance(translate(error), ConnectionLostError)
                    or (deadline is not None and time.monotonic() + pause >= deadline)
                ):
                    raise
                logger.info("%s: the connection was lost, trying again", function)
            yield Pause(pause)
        raise AssertionError

    def _require_viewer(self, arguments: Mapping[str, object], place: str = "") -> None:
        if not self._multi_tenant or arguments.get("public_only") is True:
            return
        if arguments.get("viewer_id") is None:
            raise InvalidInputError(
                f"{place}viewer_id is missing, and this provider is multi-tenant",
                remedy="Give the viewer_id of the user who asks, or public_only=True.",
            )

    def _details(self, mode: Mode) -> Details:
        return {
            "provider": self.name,
            "mode": mode,
            "real_provider": False,
            "raw_count": 0,
            "total_count": None,
        }

    def _failure(self, function: str, error: Exception) -> Details:
        if isinstance(error, ClientUnavailableError):
            logger.warning("%s: %s", function, error)
            return {"fallback_reason": "client_unavailable", "remedy": error.remedy}
        known = translate(error)
        # Neither message nor arguments: a log is read by more people than the answer is.
        logger.warning(
            "%s failed: %s (%s, code %s)", function, type(error).__name__, known.kind, known.code
        )
        return {
            "fallback_reason": "provider_error",
            "error_type": type(error).__name__,
            "error_kind": known.kind,
            "error_message": safe_message(known, secrets=self._secrets()),
            "code": known.code,
            "remedy": known.remedy,
        }

    def _raising(self, steps: _Steps[Outcome]) -> _Steps[Outcome]:
        try:
            return (yield from steps)
        except Exception as error:
            known = translate(error)
            known.args = (safe_message(known, secrets=self._secrets()),)
            if known is error:
                raise
            raise known from error


class SearchProvider(_Searches, ABC):
    """Hybrid, vector and full-text search; every call is one round trip.

    Each search returns the hits and a dict that says how they came about:

    - `provider` (`supabase` or `postgres`), `mode` (`hybrid`, `vector` or `fulltext`),
      `raw_count` (rows received), `total_count` (the length of the list that match_offset pages
      through; None without a row), `real_provider` (True when a database answered);
    - when it did not: `fallback_reason` (`client_unavailable` without credentials, otherwise
      `provider_error`), `error_type` (what was raised), `error_kind` and `code` (which class of
      `second_brain.errors` it is, and the database's code), `error_message` (bounded, without
      credentials) and `remedy`. The hits are then empty; nothing is raised.

    An embedding is a list, tuple, numpy array or pgvector's text form, of the corpus's dimension.

    With `multi_tenant=True` a call that says neither `viewer_id` nor `public_only=True` is refused
    before anything is sent, so that a forgotten viewer does not see everybody's rows.

    `timeout` is in seconds, for the whole of a call, and a call's own wins over the provider's.
    When the connection is lost a call is sent again, up to `retries` times and while the timeout
    lasts, after a short random pause by `sleep`.
    """

    def __init__(
        self,
        *,
        multi_tenant: bool = False,
        timeout: float | None = None,
        retries: int = RETRIES,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(multi_tenant=multi_tenant, timeout=timeout, retries=retries)
        self._sleep = sleep

    def hybrid_search(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        top_k: int = 5,
        threshold: float = 0.0,
        vector_weight: float = 1.0,
        text_weight: float = 1.0,
        filter_type: str | None = None,
        search_mode: str = "websearch",
        pool_size: int = 50,
        *,
        rrf_k: float = 60.0,
        fusion: str = "auto",
        filters: Filters | None = None,
        date_from: date | str | None = None,
        date_to: date | str | None = None,
        collections: Sequence[str] | None = None,
        viewer_id: UUID | str | None = None,
        public_only: bool = False,
        one_per_document: bool = False,
        neighbor_window: int = 0,
        recency_half_life: float | None = None,
        match_offset: int = 0,
        snippet: bool = False,
        formulations: Sequence[Formulation] | None = None,
        timeout: float | None = None,
    ) -> Results:
        """Search by meaning and by words in one call, and fuse the two lists.

        Without an embedding, or without text, the other leg answers alone. `threshold` is the
        least cosine similarity (-1 to 1) in the vector leg, `pool_size` the candidates per leg,
        `search_mode` one of websearch, simple and phrase, `filter_type` one knowledge_type.
        `fusion`: `auto` (each leg counts by the evidence it shows for the query), `relative_score`
        (each leg scaled to 0..1) or `rrf` (weighted reciprocal rank, constant `rrf_k`).

        Which rows: `filters` (see `second_brain.filters`), `date_from` and `date_to` (of
        document_date, both included), `viewer_id` (rows that it owns, and public ones; None: all),
        `public_only`, `collections` (each ranked by itself, then fused). `formulations` are up to
        10 further ways to ask the same question.

        Which hits: `one_per_document`, `recency_half_life` (days after which a score counts half),
        `match_offset` (hits to skip). In a hit's metadata: `neighbor_window` puts the chunks so far
        (0 to 5) around it into `context`, `snippet` an excerpt in HTML with `<mark>`.

        `timeout` is the most that this call may take, in seconds.
        """
        options = {
            "top_k": top_k,
            "threshold": threshold,
            "vector_weight": vector_weight,
            "text_weight": text_weight,
            "filter_type": filter_type,
            "search_mode": search_mode,
            "pool_size": pool_size,
            "rrf_k": rrf_k,
            "fusion": fusion,
            "filters": filters,
            "date_from": date_from,
            "date_to": date_to,
            "collections": collections,
            "viewer_id": viewer_id,
            "public_only": public_only,
            "one_per_document": one_per_document,
            "neighbor_window": neighbor_window,
            "recency_half_life": recency_half_life,
            "match_offset": match_offset,
            "snippet": snippet,
            "formulations": formulations,
            "timeout": timeout,
        }
        return self._run(self._hybrid(query_embedding, query_text, options))

    def search_my_knowledge(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[OwnSearchOptions],
    ) -> Results:
        """Search as the signed-in user whose token or claims the connection carries.

        As `hybrid_search`, but the database takes the viewer from the token: for a Supabase client
        with a user's token, or a psycopg connection with role authenticated and its claims.
        """
        return self._run(self._mine(query_embedding, query_text, options))

    def search(
        self,
        query_embedding: Embedding | None,
        top_k: int = 5,
        threshold: float = 0.6,
        filter_type: str | None = None,
        *,
        viewer_id: UUID | str | None = None,
        public_only: bool = False,
        timeout: float | None = None,
    ) -> Results:
        """Search by meaning alone: the chunks of at least `threshold` cosine similarity.

        `viewer_id`, `public_only` and `timeout` as in `hybrid_search`.
        """
        return self._run(
            self._vector(
                query_embedding,
                top_k,
                threshold,
                filter_type,
                viewer_id=viewer_id,
                public_only=public_only,
                timeout=timeout,
            )
        )

    def fulltext_search(
        self,
        query_text: str | None,
        top_k: int = 5,
        search_mode: str = "websearch",
        filter_type: str | None = None,
        *,
        viewer_id: UUID | str | None = None,
        public_only: bool = False,
        timeout: float | None = None,
    ) -> Results:
        """Search by words alone. `viewer_id`, `public_only` and `timeout` as in `hybrid_search`."""
        return self._run(
            self._fulltext(
                query_text,
                top_k,
                search_mode,
                filter_type,
                viewer_id=viewer_id,
                public_only=public_only,
                timeout=timeout,
            )
        )

    @overload
    def hybrid_search_batch(
        self,
        queries: Sequence[BatchQuery],
        *,
        fuse: Literal[False] = False,
        timeout: float | None = None,
    ) -> BatchResults: ...

    @overload
    def hybrid_search_batch(
        self, queries: Sequence[BatchQuery], *, fuse: Literal[True], timeout: float | None = None
    ) -> Results: ...

    @overload
    def hybrid_search_batch(
        self, queries: Sequence[BatchQuery], *, fuse: bool, timeout: float | None = None
    ) -> BatchResults | Results: ...

    def hybrid_search_batch(
        self, queries: Sequence[BatchQuery], *, fuse: bool = False, timeout: float | None = None
    ) -> BatchResults | Results:
        """Search for up to 50 queries in one round trip; return one list of hits for each.

        A query is a dict with the argument names of `hybrid_search`. All queries together return
        at most 1,000 hits. In the details, `total_count` is a list with one for each query. When
        one query is refused, all are, and every list is empty.

        With `fuse=True` the queries are formulations of one question and the answer is one list:
        the first may have every argument, the others query_text and query_embedding.
        """
        return self._run(self._batch(queries, fuse, timeout))

    def explain_hybrid_search(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[SearchOptions],
    ) -> dict[str, Any]:
        """Return how `hybrid_search` comes to its answer for the same arguments.

        Each leg's strategy, rows and milliseconds, why it found fewer rows than asked for, the
        lexemes with their document frequencies, the weights of the fusion, and the hits' ranks and
        scores. Raises a SecondBrainError on failure.
        """
        return self._run(self._explain(query_embedding, query_text, options))

    def embedding_models(self, *, timeout: float | None = None) -> list[EmbeddingModel]:
        """Return the models that the stored chunks were embedded with, the most frequent first.

        Raises a SecondBrainError on failure.
        """
        return self._run(self._models(timeout))

    @abstractmethod
    def _call(self, function: str, arguments: dict[str, Any], timeout: float | None) -> object:
        """Call the SQL function once and return its rows, or its JSON; raise on failure."""

    def _run(self, steps: _Steps[Outcome]) -> Outcome:
        return run(steps, self._perform)

    def _perform(self, step: Call | Pause) -> object:
        if isinstance(step, Pause):
            return self._sleep(step.seconds)
        return self._call(step.function, step.arguments, step.timeout)


class AsyncSearchProvider(_Searches, ABC):
    """The searches of `SearchProvider` for an event loop, with the same answers.

    What is beside the question is given by name.
    """

    def __init__(
        self,
        *,
        multi_tenant: bool = False,
        timeout: float | None = None,
        retries: int = RETRIES,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(multi_tenant=multi_tenant, timeout=timeout, retries=retries)
        self._sleep = sleep

    async def hybrid_search(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[SearchOptions],
    ) -> Results:
        """See `SearchProvider.hybrid_search`."""
        return await self._run(self._hybrid(query_embedding, query_text, options))

    async def search_my_knowledge(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[OwnSearchOptions],
    ) -> Results:
        """See `SearchProvider.search_my_knowledge`."""
        return await self._run(self._mine(query_embedding, query_text, options))

    async def search(
        self,
        query_embedding: Embedding | None,
        top_k: int = 5,
        threshold: float = 0.6,
        filter_type: str | None = None,
        *,
        viewer_id: UUID | str | None = None,
        public_only: bool = False,
        timeout: float | None = None,
    ) -> Results:
        """See `SearchProvider.search`."""
        return await self._run(
            self._vector(
                query_embedding,
                top_k,
                threshold,
                filter_type,
                viewer_id=viewer_id,
                public_only=public_only,
                timeout=timeout,
            )
        )

    async def fulltext_search(
        self,
        query_text: str | None,
        top_k: int = 5,
        search_mode: str = "websearch",
        filter_type: str | None = None,
        *,
        viewer_id: UUID | str | None = None,
        public_only: bool = False,
        timeout: float | None = None,
    ) -> Results:
        """See `SearchProvider.fulltext_search`."""
        return await self._run(
            self._fulltext(
                query_text,
                top_k,
                search_mode,
                filter_type,
                viewer_id=viewer_id,
                public_only=public_only,
                timeout=timeout,
            )
        )

    @overload
    async def hybrid_search_batch(
        self,
        queries: Sequence[BatchQuery],
        *,
        fuse: Literal[False] = False,
        timeout: float | None = None,
    ) -> BatchResults: ...

    @overload
    async def hybrid_search_batch(
        self, queries: Sequence[BatchQuery], *, fuse: Literal[True], timeout: float | None = None
    ) -> Results: ...

    @overload
    async def hybrid_search_batch(
        self, queries: Sequence[BatchQuery], *, fuse: bool, timeout: float | None = None
    ) -> BatchResults | Results: ...

    async def hybrid_search_batch(
        self, queries: Sequence[BatchQuery], *, fuse: bool = False, timeout: float | None = None
    ) -> BatchResults | Results:
        """See `SearchProvider.hybrid_search_batch`."""
        return await self._run(self._batch(queries, fuse, timeout))

    async def explain_hybrid_search(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[SearchOptions],
    ) -> dict[str, Any]:
        """See `SearchProvider.explain_hybrid_search`."""
        return await self._run(self._explain(query_embedding, query_text, options))

    async def embedding_models(
        self,
        *,
        timeout: float | None = None,
    ) -> list[EmbeddingModel]:
        """See `SearchProvider.embedding_models`."""
        return await self._run(self._models(timeout))

    @abstractmethod
    async def _call(
        self,
        function: str,
        arguments: dict[str, Any],
        timeout: float | None,
    ) -> object:
        """Call the SQL function once and return its rows, or its JSON; raise on failure."""

    async def _run(self, steps: _Steps[Outcome]) -> Outcome:
        return await run_async(steps, self._perform)

    async def _perform(self, step: Call | Pause) -> object:
        if isinstance(step, Pause):
            return await self._sleep(step.seconds)
        return await self._call(step.function, step.arguments, step.timeout)


_PARAMETERS = [
    one
    for one in inspect.signature(SearchProvider.hybrid_search).parameters.values()
    if one.name not in ("self", "timeout")
]
_DEFAULTS: Mapping[str, object] = {
    one.name: None if one.default is one.empty else one.default for one in _PARAMETERS
}
# The keyword-only ones came after the first nine, and their defaults are the database's.
_LATER_ARGUMENTS: Mapping[str, object] = {
    one.name: one.default for one in _PARAMETERS if one.kind is one.KEYWORD_ONLY
}
_SQL_NAMES = {"top_k": "match_count", "threshold": "match_threshold"}


def _question(
    query_embedding: Embedding | None, query_text: str | None, options: Mapping[str, Any]
) -> tuple[dict[str, Any], float | None]:
    """Return what is for the database, and the timeout."""
    given = {**options, "query_embedding": query_embedding, "query_text": query_text}
    return given, given.pop("timeout", None)


def _seconds(timeout: float | None) -> float | None:
    if timeout is not None and not (
        isinstance(timeout, int | float) and 0 < timeout <= LONGEST_TIMEOUT
    ):
        raise InvalidInputError(
            f"timeout must be above 0 and at most {LONGEST_TIMEOUT:g} seconds, not {timeout!r:.100}"
        )
    return timeout


def _arguments(
    given: Mapping[str, object],
    caller: str,
    *,
    unknown: Iterable[str] = (),
    complete: bool = True,
) -> dict[str, object]:
    """Return the SQL function's arguments, those left out at `hybrid_search`'s defaults."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{caller} must be a dict, not {type(given).__name__}")
    for name in given:
        if name not in _DEFAULTS or name in unknown:
            raise TypeError(f"{caller} got an unexpected argument {name!r}")
    arguments = {**_DEFAULTS, **given} if complete else given
    return {_SQL_NAMES.get(name, name): value for name, value in arguments.items()}


def _converted(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments in JSON's types."""
    return {name: _converted_value(name, value) for name, value in arguments.items()}


def _converted_value(name: str, value: Any) -> Any:
    if name == "filters":
        return conditions(value)
    if name == "collections" and isinstance(value, str):
        raise InvalidInputError(f"collections must be a list of names, not {value[:100]!r}")
    if name in ("date_from", "date_to") and isinstance(value, str):
        return _read(name, value, date.fromisoformat, "an ISO date such as 2026-01-31").isoformat()
    if name == "viewer_id" and isinstance(value, str):
        return str(_read(name, value, UUID, "a UUID"))
    # What is no vector, the database says better.
    return _plain(value) if name == "query_embedding" else json_form(value, name)


def _read(name: str, value: str, parse: Callable[[str], Parsed], expected: str) -> Parsed:
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidInputError(f"{name} must be {expected}, not {value[:100]!r}") from error


def _plain(value: object) -> Any:
    """Return arrays as lists, and their numbers as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def without_defaults(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the arguments after the first nine that are at their default.

    PostgREST knows a function by the names it is called with, so a default that is sent needlessly
    would fail (404) on a project whose migrations are older than this client.
    """
    return {
        name: value
        for name, value in arguments.items()
        if name not in _LATER_ARGUMENTS or value != _LATER_ARGUMENTS[name]
    }


def _embedding_model(row: object) -> EmbeddingModel:
    try:
        return EmbeddingModel(**row)  # type: ignore[arg-type]
    except TypeError as error:
        raise UnexpectedAnswerError("a row tells of no embedding model") from error


def _by_query(rows: Sequence[object], count: int) -> list[list[object]]:
    answers: list[list[object]] = [[] for _ in range(count)]
    for row in rows:
        place = query_index(row)
        if place is None or not 0 <= place < count:
            raise UnexpectedAnswerError("a row belongs to none of the queries")
        answers[place].append(row)
    return answers

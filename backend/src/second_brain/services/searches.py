"""The steps of a search in all providers: convert, call, normalise, and describe a failure.

Errors are raised where they happen; only `Searches._failure` turns them into details.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, TypedDict, TypeVar

from second_brain.errors import (
    ClientUnavailableError,
    InvalidInputError,
    PermissionDeniedError,
    SecondBrainError,
    UnexpectedAnswerError,
    safe_message,
    translate,
)
from second_brain.services.arguments import (
    LARGEST_POOL,
    VIEWER,
    BatchQuery,
    converted,
    named,
    without_defaults,
)
from second_brain.services.calls import RETRIES, Calls, Deadline
from second_brain.services.emptiness import EmptyReason, OnError, past_end
from second_brain.services.results import (
    CutRows,
    Details,
    FailureDetails,
    Listing,
    Method,
    Notes,
    Results,
    Source,
    UnreadableJson,
    integer,
    listing_of,
    normalize_rows,
    query_index,
)

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

HYBRID = "hybrid_search_knowledge_chunks"
MINE = "search_my_knowledge_chunks"
PUBLIC = "search_public_knowledge_chunks"
BATCH = "hybrid_search_knowledge_chunks_batch"
COUNT = "count_matching_knowledge_chunks"
FACETS = "facet_knowledge_chunks"
MY_FACETS = "facet_my_knowledge_chunks"
PENDING = "count_pending_knowledge_embeddings"
LISTED = "list_visible_knowledge_documents"
MY_PENDING = "count_my_pending_knowledge_embeddings"
EMPTY = "explain_empty_knowledge_search"
MY_EMPTY = "explain_my_empty_knowledge_search"
PUBLIC_EMPTY = "explain_public_empty_knowledge_search"

REMEDY_OF_CUT = (
    "Raise Max rows in the project's API settings, or ask for fewer rows: the API cut the answer, "
    "or rows changed while it was fetched in parts."
)

_REMEDIES_OF_GRANTS = {
    MINE: "Call with the token of a signed-in user (role authenticated): "
    "with the service role, give hybrid_search a viewer_id.",
    PUBLIC: f"Grant it as the owner: grant execute on function {PUBLIC} to anon. "
    "With the service role, give hybrid_search public_only=True.",
}


class ProviderOptions(TypedDict, total=False):
    """What every provider takes: see `AsyncSearchProvider`."""

    multi_tenant: bool
    timeout: float | None
    retries: int
    sleep: Callable[[float], object]
    on_error: OnError
    explain_empty: bool | None


class Searches(Calls):
    """Base of both kinds of providers: the calls, and the reading of their results."""

    name: ClassVar[Source]

    def __init__(
        self,
        *,
        multi_tenant: bool = False,
        timeout: float | None = None,
        retries: int = RETRIES,
        sleep: Callable[[float], object] | None = None,
        on_error: OnError = "raise",
        explain_empty: bool | None = None,
    ) -> None:
        super().__init__(timeout=timeout, retries=retries, sleep=sleep)
        if on_error not in ("raise", "empty"):
            raise InvalidInputError(f"on_error must be raise or empty, not {on_error!r:.100}")
        self._multi_tenant = multi_tenant
        self._on_error = on_error
        self._explain_empty = explain_empty

    @property
    def is_concurrent(self) -> bool:
        """Whether several calls may run at the same time."""
        return True

    async def _search(
        self,
        method: Method,
        function: str,
        given: Mapping[str, object],
        timeout: float | None,
        exact_total: bool = False,
        is_raised: bool = True,
    ) -> Results:
        arguments = self._for_viewer(given, function)
        deadline = Deadline(self._timeout if timeout is None else timeout)
        rows = first = await self._call(function, arguments, deadline.left())
        hits = normalize_rows(rows, method=method, source=self.name, limit=arguments["match_count"])
        offset = integer(arguments.get("match_offset")) or 0
        if not rows and offset > 0:
            # No row of an empty page has the length of the list.
            first = await self._call(function, _first_hit(arguments), deadline.left())
        listing = listing_of(first)
        total, noted = listing.total_count, listing.notes
        if not first and _may_ignore(arguments):
            noted = await self._ignored(function, _strictly(arguments), deadline.left())
        details = self._details(method, rows, total)
        if listing.answer_confidence is not None:
            details["answer_confidence"] = listing.answer_confidence
        if noted is not None:
            details["notes"] = noted
        if listing.has_full_pool and offset + len(rows) >= (total or 0):
            details["pool_ended"] = True
            details.setdefault("remedy", _remedy_of_pool(arguments))
        if exact_total:
            details["exact_total"] = await self._read(int, COUNT, arguments, deadline.left())
        if not rows:
            why = past_end(total, offset) if total else None
            if why is None:
                why = _reason(await self._why_empty(function, arguments, deadline, is_raised))
            if why is not None:
                details["empty"] = why
        return hits, details

    async def _why_empty(
        self, function: str, arguments: dict[str, Any], deadline: Deadline, is_raised: bool
    ) -> Any:
        """Ask why an answer is empty; None if that cannot be said, which is no failure.

        Callers whose failures are not raised expect one call, as in the systems that this package
        replaces: there it asks only if the provider was made with explain_empty.
        """
        if not (is_raised if self._explain_empty is None else self._explain_empty):
            return None
        explain = {MINE: MY_EMPTY, PUBLIC: PUBLIC_EMPTY}.get(function, EMPTY)
        try:
            return await self._call(explain, arguments, deadline.left())
        # The answer is complete without it. A database without the module insight lacks it.
        except Exception as error:  # noqa: BLE001
            logger.debug("an empty answer was not explained: %s", translate(error).kind)
            return None

    async def _ignored(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> Notes | None:
        """Return the notes of an answer without rows: the refusal of an embedding, if any."""
        try:
            await self._call(function, arguments, timeout)
        except Exception as error:
            refusal = translate(error)
            if not isinstance(refusal, InvalidInputError):
                raise
            return {"embedding": f"ignored: {safe_message(refusal, secrets=self._secrets())}"}
        return None

    async def _answer(
        self,
        method: Method,
        function: str,
        given: Mapping[str, object],
        timeout: float | None,
        exact_total: bool = False,
    ) -> Results:
        """Search; when that fails, raise, or return no hits and the failure in the details."""
        if self._on_error == "raise":
            search = self._search(method, function, given, timeout, exact_total)
            return await self._refusing(function, search)
        try:
            return await self._search(
                method, function, given, timeout, exact_total, is_raised=False
            )
        # The older contract: every failure becomes details, not an exception.
        except Exception as error:  # noqa: BLE001
            failed: Details = {**self._details(method), **self._failure(function, error)}
            return [], failed

    async def _refusing(self, function: str, answer: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for an answer; raise a failure with the remedy of this function."""
        try:
            return await self._raising(answer)
        except PermissionDeniedError as error:
            error.remedy = _remedy(function, error)
            raise

    async def _batch(
        self, queries: Sequence[BatchQuery], timeout: float | None
    ) -> tuple[list[Any], list[Listing], list[EmptyReason | None], Sequence[object]]:
        """Return the hits of each query, what they say of their list or why there are none."""
        deadline = Deadline(self._timeout if timeout is None else timeout)
        sent = list[dict[str, Any]]()
        for place, query in enumerate(queries):
            given, _ = named(query, f"queries[{place}]", without=("timeout",))
            sent.append(without_defaults(converted(given)))
        for place, arguments in enumerate(sent):
            self._require_viewer(arguments, f"queries[{place}]: ")
        rows = await self._call(BATCH, {"queries": sent}, timeout)
        answers = _by_query(rows, len(sent))
        hits = [
            normalize_rows(
                answer, method="hybrid", source=self.name, limit=arguments["match_count"]
            )
            for arguments, answer in zip(sent, answers, strict=False)
        ]
        listings = [listing_of(answer) for answer in answers]
        for place, answer in enumerate(answers):
            if not answer and _may_ignore(sent[place]):
                strict = {"queries": [_strictly(sent[place])]}
                noted = await self._ignored(BATCH, strict, timeout)
                listings[place] = listings[place]._replace(notes=noted)
        reasons = await self._why_each_empty(sent, answers, deadline)
        return hits, listings, reasons, rows

    async def _why_each_empty(
        self,
        sent: Sequence[dict[str, Any]],
        answers: Sequence[Sequence[object]],
        deadline: Deadline,
    ) -> list[EmptyReason | None]:
        """Return why each query without hits has none."""
        reasons: list[EmptyReason | None] = [None] * len(answers)
        places = [place for place, answer in enumerate(answers) if not answer]
        if places:
            asked = [sent[place] for place in places]
            is_raised = self._on_error == "raise"
            told = await self._why_empty(BATCH, {"search": asked}, deadline, is_raised)
            for place, reason in zip(places, told if isinstance(told, list) else (), strict=False):
                reasons[place] = _reason(reason)
        return reasons

    def _for_viewer(self, given: Mapping[str, object], function: str = "") -> dict[str, Any]:
        """Return the arguments as JSON values; a function that takes no viewer needs none."""
        arguments = converted(given)
        if function not in (MINE, PUBLIC, MY_FACETS, MY_PENDING):
            self._require_viewer(arguments)
        return arguments

    def _require_viewer(self, arguments: Mapping[str, object], place: str = "") -> None:
        if not self._multi_tenant or arguments.get("public_only") is True:
            return
        if all(arguments.get(name) is None for name in VIEWER):
            raise InvalidInputError(
                f"{place}viewer_id is missing, and this provider is multi-tenant",
                remedy="Give the viewer_id of the user who asks, viewer_groups, or "
                "public_only=True.",
            )

    def _details(
        self, method: Method, rows: Sequence[object] | None = None, total: int | None = None
    ) -> Details:
        """Return what there is to say of an answer; without rows, of a failure."""
        details: Details = {
            "provider": self.name,
            "mode": method,
            "real_provider": rows is not None,
            "raw_count": len(rows or ()),
            "total_count": total,
        }
        unreadable = [
            str(row.get("id"))
            for row in rows or ()
            if isinstance(row, Mapping) and isinstance(row.get("metadata"), UnreadableJson)
        ]
        if unreadable:
            details["unreadable_metadata"] = unreadable
        if isinstance(rows, CutRows):
            details["truncated"] = True
            details["remedy"] = REMEDY_OF_CUT
        return details

    def _failure(self, function: str, error: Exception) -> FailureDetails:
        """Return the details of a failure, in the form of the contract."""
        if isinstance(error, ClientUnavailableError):
            logger.warning("%s: %s", function, error)
            return {"fallback_reason": "client_unavailable", "remedy": error.remedy}
        known = translate(error)
        # The log has no message and no arguments, because more people can read it than the result.
        logger.warning(
            "%s failed: %s (%s, code %s)", function, type(error).__name__, known.kind, known.code
        )
        return {
            "fallback_reason": "provider_error",
            "error_type": type(error).__name__,
            "error_kind": known.kind,
            "error_message": safe_message(known, secrets=self._secrets()),
            "code": known.code,
            "remedy": _remedy(function, known),
        }


def _remedy(function: str, error: SecondBrainError) -> str:
    is_grant = isinstance(error, PermissionDeniedError)
    if is_grant and error.remedy == PermissionDeniedError.default_remedy:
        return _REMEDIES_OF_GRANTS.get(function, error.remedy)
    return error.remedy


def _reason(answer: object) -> EmptyReason | None:
    """Return the reason that the database gave; None for another answer."""
    return answer if isinstance(answer, dict) and "message" in answer else None


def _first_hit(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for the first hit of the list that these cut a page from."""
    pools = (integer(arguments[name]) or 0 for name in ("pool_size", "match_count"))
    return {**arguments, "match_count": 1, "match_offset": 0, "pool_size": max(pools)}


def _may_ignore(arguments: Mapping[str, Any]) -> bool:
    """Say whether the search may ignore an embedding: an answer without rows has no note of it."""
    return arguments.get("on_bad_embedding") in ("text", "from_text")


def _strictly(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for the first hit of a search that refuses what this one ignores."""
    return {**_first_hit(arguments), "on_bad_embedding": "error"}


def _remedy_of_pool(arguments: Mapping[str, Any]) -> str:
    pools = (integer(arguments.get(name)) or 0 for name in ("pool_size", "match_count"))
    if max(pools) < LARGEST_POOL:
        return (
            "More rows may match: raise pool_size (the service's setting HYBRID_CANDIDATE_COUNT), "
            f"up to {LARGEST_POOL}, from the first page on, or use search_pages()."
        )
    return "More rows may match, and the pool is the largest: narrow the search with filters."


def _by_query(rows: Sequence[object], count: int) -> list[list[object]]:
    answers: list[list[object]] = [[] for _ in range(count)]
    for row in rows:
        place = query_index(row)
        if place is None or not 0 <= place < count:
            raise UnexpectedAnswerError("a row has a query_index that no query has")
        answers[place].append(row)
    return answers

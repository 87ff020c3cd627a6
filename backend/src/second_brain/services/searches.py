"""The steps of a search in all providers: arguments, call, hits and details, or the failure.

Nothing is ranked, merged or filtered here: the order is the database's.
"""

import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, NamedTuple, cast, get_args, get_origin, get_type_hints

from second_brain.errors import (
    VISITORS_REMEDY,
    ClientUnavailableError,
    InvalidInputError,
    PermissionDeniedError,
    SecondBrainError,
    UnexpectedAnswerError,
    UnknownArgumentError,
    safe_message,
    translate,
)
from second_brain.services.arguments import (
    DEFAULTS,
    LARGEST_POOL,
    PYTHON_NAMES,
    VIEWER,
    BatchQuery,
    Embedding,
    bound,
    converted,
    renamed,
    without_defaults,
)
from second_brain.services.calls import Client, Deadline, Outcome
from second_brain.services.results import (
    BatchDetails,
    BatchResults,
    CutRows,
    Details,
    EmptyReason,
    FailureDetails,
    HitMetadata,
    MemorySearchResult,
    Method,
    Notes,
    Results,
    Source,
    past_end,
)

logger = logging.getLogger(__name__)

HYBRID = "hybrid_search_knowledge_chunks"
MINE = "search_my_knowledge_chunks"
PUBLIC = "search_public_knowledge_chunks"
VECTOR = "match_knowledge_chunks"
FULLTEXT = "search_knowledge_chunks_fulltext"
BATCH = "hybrid_search_knowledge_chunks_batch"
COUNT = "count_matching_knowledge_chunks"

_METHODS: Mapping[str, Method] = {VECTOR: "vector", FULLTEXT: "fulltext"}

_EXPLAINS_EMPTY = {
    MINE: "explain_my_empty_knowledge_search",
    PUBLIC: "explain_public_empty_knowledge_search",
}

REMEDY_OF_CUT = (
    "Raise Max rows in the project's API settings, or ask for fewer rows: the API cut the answer, "
    "or rows changed while it was fetched in parts."
)

_REMEDIES_OF_GRANTS = {
    MINE: "Call with the token of a signed-in user (role authenticated): "
    "with the service role, give hybrid_search a viewer_id.",
    PUBLIC: VISITORS_REMEDY,
}

_OPTIONAL = ("title", "source_url")

_ID_PREFIX: dict[Source, str] = {"supabase": "supa", "postgres": "pg"}

# What a method's confidence is made of: a column, and the one that answers without it.
_SCORES: dict[Method, tuple[str, str]] = {
    "hybrid": ("confidence", "rrf_score"),
    "vector": ("similarity", "similarity"),
    "fulltext": ("rank", "text_score"),
}


def asked(
    query_embedding: Embedding, query_text: str | None, options: Mapping[str, object]
) -> dict[str, object]:
    """Return a question with the other arguments of its search."""
    return {**options, "query_embedding": query_embedding, "query_text": query_text}


async def search(
    client: Client, function: str, given: Mapping[str, Any], *, is_raised: bool | None = None
) -> Results:
    """Search; when that fails, raise, or return no hits and the failure in the details."""
    is_raised = client._on_error == "raise" if is_raised is None else is_raised
    method, options = _METHODS.get(function, "hybrid"), dict(given)
    beside = ("exact_total", "timeout") if function == HYBRID else ("timeout",)
    own = {name: options.pop(name, None) for name in beside}
    try:
        arguments = bound(options, function, beside=beside)
        if client._multi_tenant:
            require_viewer(arguments)
        deadline = Deadline(own["timeout"], client._timeout)
        rows = first = await client._call(function, arguments, deadline)
        found = hits(rows, method=method, source=client.name, limit=arguments["match_count"])
        offset = arguments.get("match_offset") or 0
        offset = offset if type(offset) is int else integer(offset) or 0
        if not rows and offset > 0:
            # No row of an empty page has the length of the list.
            first = await client._call(function, _first_hit(arguments), deadline)
        listing, reason = listing_of(first), None
        if not rows and listing.total_count:
            reason = past_end(listing.total_count, offset)
        elif not rows:
            why = await _why_empty(client, function, arguments, deadline, is_raised=is_raised)
            reason, notes = _reason(why)
            if notes is None and _may_ignore(arguments):
                notes = await _ignored(client, function, _strictly(arguments), deadline)
            listing = listing._replace(notes=notes)
        details = _details(client, method, rows, listing)
        if listing.has_full_pool and offset + len(rows) >= (listing.total_count or 0):
            details["pool_ended"] = True
            details.setdefault("remedy", _remedy_of_pool(arguments))
        if own.get("exact_total"):
            details["exact_total"] = await client._read(int, COUNT, arguments, deadline.left())
        if reason is not None:
            details["empty"] = reason
    except UnknownArgumentError:
        raise
    except Exception as error:
        if not is_raised:
            failed: Details = {**_details(client, method), **_failure(client, function, error)}
            return [], failed
        failure, cause = client._safe(error)
        failure.remedy = _remedy(function, failure)
        if failure is error:
            raise
    else:
        return found, details
    # Not in the except block: the context would be the original error with its secrets.
    raise failure from cause


async def pages(client: Client, given: Mapping[str, Any]) -> AsyncIterator[Results]:
    """Yield page after page of one list, with the largest pool unless `pool_size` is given."""
    offset = given.get("match_offset", DEFAULTS["match_offset"])
    size = given.get("top_k", DEFAULTS["top_k"])
    # A larger page would have a larger pool.
    pool = given.get("pool_size", LARGEST_POOL)
    if not all(isinstance(one, int) for one in (offset, size, pool)):
        raise InvalidInputError("top_k, match_offset and pool_size must be integers")
    while True:
        is_beyond = offset > LARGEST_POOL
        page = {
            "pool_size": max(pool, size),
            "match_offset": min(offset, LARGEST_POOL),
            "top_k": LARGEST_POOL if is_beyond else size,
        }
        hits, details = await search(client, HYBRID, {**given, **page}, is_raised=True)
        if is_beyond:
            # No page begins here, so the rest is cut from the last one.
            rest = hits[offset - LARGEST_POOL :]
            for start in range(0, len(rest), size):
                yield rest[start : start + size], details
            return
        if hits:
            yield hits, details
        offset += size
        if len(hits) < size or offset >= (details["total_count"] or 0):
            return


async def ask(
    client: Client,
    function: str,
    kind: type[Outcome],
    given: Mapping[str, Any],
    further: Mapping[str, object] = MappingProxyType({}),
) -> Outcome:
    """Ask about the search with these arguments; `further` has the function's other arguments."""
    options = dict(given)
    timeout = options.pop("timeout", None)
    arguments = bound(options, function, beside=("timeout",))
    if client._multi_tenant:
        require_viewer(arguments)
    return await client._read(kind, function, arguments | converted(further), timeout)


async def batch(
    client: Client, queries: Sequence[BatchQuery], timeout: float | None
) -> BatchResults:
    """Return the hits of each query, and details with an entry for each; a failure as `search`."""
    is_raised = client._on_error == "raise"
    known = list[BatchQuery]()
    try:
        known = list(queries)
        return await _batch(client, known, Deadline(timeout, client._timeout), is_raised=is_raised)
    # The older contract: every failure becomes details, not an exception.
    except Exception as error:
        if not is_raised:
            failed: Any = {**_details(client, "hybrid"), **_failure(client, BATCH, error)}
            return [[] for _ in known], failed
        if isinstance(error, UnknownArgumentError):
            raise
        failure, cause = client._safe(error)
        if failure is error:
            raise
    raise failure from cause


async def _batch(
    client: Client, queries: Sequence[BatchQuery], deadline: Deadline, *, is_raised: bool
) -> BatchResults:
    sent = list[dict[str, Any]]()
    for place, query in enumerate(queries):
        arguments = bound(query, HYBRID, f"queries[{place}] ")
        if client._multi_tenant:
            require_viewer(arguments, f"queries[{place}]: ")
        sent.append(without_defaults(arguments))
    rows = await client._call(BATCH, {"queries": sent}, deadline)
    answers = _by_query(rows, len(sent))
    lists = list(map(listing_of, answers))
    empty = [place for place, answer in enumerate(answers) if not answer]
    reasons: list[EmptyReason | None] = [None] * len(answers)
    said: Any = None
    if empty:
        asked = {"search": [sent[place] for place in empty]}
        said = await _why_empty(client, BATCH, asked, deadline, is_raised=is_raised)
    given = said[: len(empty)] if isinstance(said, list) else ()
    for place, why in zip_longest(empty, given):
        reasons[place], notes = _reason(why)
        if notes is None and _may_ignore(sent[place]):
            strict = {"queries": [_strictly(sent[place])]}
            notes = await _ignored(client, BATCH, strict, deadline)
        lists[place] = lists[place]._replace(notes=notes)
    details = cast(BatchDetails, _details(client, "hybrid", rows))
    details["total_count"] = [one.total_count for one in lists]
    if any(one.answer_confidence is not None for one in lists):
        details["answer_confidence"] = [one.answer_confidence for one in lists]
    if any(one.notes for one in lists):
        details["notes"] = [one.notes for one in lists]
    if any(reasons):
        details["empty"] = reasons
    found = [
        hits(answer, method="hybrid", source=client.name, limit=arguments["match_count"])
        for arguments, answer in zip(sent, answers, strict=True)
    ]
    return found, details


async def _why_empty(
    client: Client, function: str, arguments: dict[str, Any], deadline: Deadline, *, is_raised: bool
) -> Any:
    """Ask why an answer is empty; None if that cannot be said, which is no failure.

    Callers whose failures are not raised expect one call, as in the systems that this package
    replaces: there it asks only if the provider was made with explain_empty.
    """
    if not (is_raised if client._explain_empty is None else client._explain_empty):
        return None
    explain = _EXPLAINS_EMPTY.get(function, "explain_empty_knowledge_search")
    try:
        return await client._call(explain, arguments, deadline)
    # The answer is complete without it. A database without the module insight lacks it.
    except Exception as error:  # noqa: BLE001
        logger.debug("an empty answer was not explained: %s", translate(error).kind)
        return None


async def _ignored(
    client: Client, function: str, arguments: dict[str, Any], deadline: Deadline
) -> Notes | None:
    """Return the notes of an answer without rows: the refusal of an embedding, if any."""
    try:
        await client._call(function, arguments, deadline)
    except Exception as error:
        refusal = translate(error)
        if not isinstance(refusal, InvalidInputError):
            raise
        return {"embedding": f"ignored: {safe_message(refusal, secrets=client._secrets())}"}
    return None


def require_viewer(arguments: Mapping[str, object], place: str = "") -> None:
    """Raise InvalidInputError if nothing says who asks, for a multi-tenant provider.

    A function without these arguments takes the viewer from the token, or finds public rows.
    """
    if "viewer_id" not in arguments or arguments["public_only"] is True:
        return
    if all(arguments[name] is None for name in VIEWER):
        raise InvalidInputError(
            f"{place}viewer_id is missing, and this provider is multi-tenant",
            remedy="Give the viewer_id of the user who asks, viewer_groups, or public_only=True.",
        )


class Listing(NamedTuple):
    """What each row says of the list that it is in."""

    total_count: int | None = None
    answer_confidence: float | None = None
    notes: Notes | None = None
    has_full_pool: bool = False
    """One of the legs had as many rows as its pool holds."""


def listing_of(rows: Sequence[object]) -> Listing:
    """Return what the first row says of the list, and nothing where there is none."""
    first = rows[0] if rows else None
    if not isinstance(first, Mapping):
        return Listing()
    notes = first.get("notes")
    total, confidence = first.get("total_count"), first.get("answer_confidence")
    return Listing(
        total if type(total) is int else integer(total),
        confidence if type(confidence) is float else number(confidence),
        dict(notes) if isinstance(notes, Mapping) and notes else None,
        first.get("pool_ended") is True,
    )


def _details(
    client: Client,
    method: Method,
    rows: Sequence[object] | None = None,
    listing: Listing = Listing(),  # noqa: B008
) -> Details:
    """Return the details of an answer; without rows, of a failure."""
    details: Details = {
        "provider": client.name,
        "mode": method,
        "real_provider": rows is not None,
        "raw_count": len(rows or ()),
        "total_count": listing.total_count,
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
    if listing.answer_confidence is not None:
        details["answer_confidence"] = listing.answer_confidence
    if listing.notes is not None:
        details["notes"] = listing.notes
    return details


def _failure(client: Client, function: str, error: Exception) -> FailureDetails:
    """Return the details of a failure, in the form of the contract."""
    if isinstance(error, ClientUnavailableError):
        logger.warning("%s: %s", function, error)
        return {"fallback_reason": "client_unavailable", "remedy": error.remedy}
    failure = translate(error)
    # The log has no message and no arguments, because more people can read it than the result.
    logger.warning(
        "%s failed: %s (%s, code %s)", function, type(error).__name__, failure.kind, failure.code
    )
    return {
        "fallback_reason": "provider_error",
        "error_type": type(error).__name__,
        "error_kind": failure.kind,
        "error_message": renamed(safe_message(failure, secrets=client._secrets()), PYTHON_NAMES),
        "code": failure.code,
        "remedy": _remedy(function, failure),
    }


def _remedy(function: str, error: SecondBrainError) -> str:
    is_grant = isinstance(error, PermissionDeniedError)
    if is_grant and error.remedy == PermissionDeniedError.default_remedy:
        return _REMEDIES_OF_GRANTS.get(function, error.remedy)
    return error.remedy


def _reason(answer: object) -> tuple[EmptyReason | None, Notes | None]:
    """Return the reason that the database gave, with Python's names, and the notes of the search.

    Both are None for another answer.
    """
    if not (isinstance(answer, dict) and isinstance(answer.get("message"), str)):
        return None, None
    notes = answer.pop("notes", None)
    return {**answer, "message": renamed(answer["message"], PYTHON_NAMES)}, notes


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
        place = integer(row.get("query_index")) if isinstance(row, Mapping) else None
        if place is None or not 0 <= place < count:
            raise UnexpectedAnswerError("a row has a query_index that no query has")
        answers[place].append(row)
    return answers


def hits(
    rows: Sequence[object], *, method: Method, source: Source, limit: object
) -> list[MemorySearchResult]:
    """Turn at most `limit` rows into hits, in their order; an odd row never fails.

    What a row lacks, or has in another type, becomes: id `supa-{method}-{position}` (`pg-…` over
    psycopg), knowledge_type `document`, source_origin `manual`, chunk_index 0, metadata `{}`,
    a number None. A row that is no mapping becomes one of these defaults alone.
    """
    # The database takes "3" and 2.5 for an integer, too.
    most = limit if type(limit) is int else integer(limit)
    kept: list[Mapping[str, Any]] = [
        row if isinstance(row, Mapping) else {}
        for row in rows[: None if most is None else max(most, 0)]
    ]
    column, otherwise = _SCORES[method]
    scores = [
        score
        if type(score := row.get(column, row.get(otherwise))) is float
        else number(score, is_finite=False) or 0.0
        for row in kept
    ]
    best = 1.0
    if method == "fulltext":
        best = max([0.0, *filter(math.isfinite, scores)]) or 1.0
    found = []
    for position, (row, score) in enumerate(zip(kept, scores, strict=True)):
        own = row.get("metadata")
        metadata: Any = dict(own) if isinstance(own, dict) else {}
        # Always there: the row's own metadata must not pass for an escaped snippet.
        for name, (kind, read) in _COLUMNS.items():
            value = row.get(name)
            is_read = type(value) is kind and (type(value) is not float or math.isfinite(value))
            metadata[name] = value if value is None or is_read else read(value)
        for name in _OPTIONAL:
            if row.get(name) is not None:
                metadata[name] = str(row[name])
        for name in ("matched_terms", "collections"):
            texts = row.get(name)
            metadata[name] = [str(one) for one in texts] if isinstance(texts, list | tuple) else []
        metadata |= {
            "knowledge_type": metadata["knowledge_type"] or "document",
            "source_origin": metadata["source_origin"] or "manual",
            "chunk_index": metadata["chunk_index"] or 0,
            "is_chunk": row.get("chunk_index", 0) is not None,
            "source_row": row.get("source_row"),
            **({"pool_ended": row["pool_ended"] is True} if "pool_ended" in row else {}),
            "real_provider": True,
        }
        if "rank" in row:  # what the full-text function calls its score
            metadata["text_score"] = number(row["rank"])
        key = str(row.get("id") or f"{_ID_PREFIX[source]}-{method}-{position}")
        # In this order NaN becomes 0.
        confidence = min(max(0.0, score / best), 1.0)
        found.append(
            MemorySearchResult(key, str(row.get("content") or ""), source, confidence, metadata)
        )
    return found


def number(value: object, *, is_finite: bool = True) -> float | None:
    """Read a number, also the strings "NaN" and "Infinity" that PostgREST sends for a float8."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        read = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return None if is_finite and not math.isfinite(read) else read


def integer(value: object) -> int | None:
    """Read an integer as the database does, which takes "3" and 3.0 for one; None for no number."""
    read = number(value)
    return None if read is None else int(read)


_READ: Mapping[object, Callable[[Any], object]] = {str: str, int: integer, float: number}
# How a column of a row is read, unless its value has this type. A date stays as it is stored:
# Postgres has dates that Python lacks. What has a default is not read from another type.
_COLUMNS: Mapping[str, tuple[type, Callable[[Any], object]]] = {
    name: (kind, _READ[kind] if kind is not hint or kind is int else lambda _: None)
    for name, hint in get_type_hints(HitMetadata).items()
    for kind in (get_args(hint) or (hint,))[:1]
    if kind in _READ and name not in _OPTIONAL and get_origin(hint) is not list
}


class UnreadableJson:
    """Stands for a JSON value of a row that Python cannot read."""


def read_json(data: str | bytes) -> object:
    """Read JSON; return an UnreadableJson for what nests too deep or has a number too long."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return UnreadableJson()

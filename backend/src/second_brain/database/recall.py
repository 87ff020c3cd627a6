"""The recall of the vector leg: what it finds of the nearest chunks, measured on the corpus.

The questions are stored chunks, and logged questions if their embeddings are given. Each is asked
under the same filter as a search asks it, with the index or by the bits of the embeddings, and by a
comparison of all embeddings. Module: insight.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from second_brain.database.doctor import Finding
from second_brain.services.install import Database

MOST = 50
"""Rows of a search: its pool, for which recall is measured."""
GOOD = 0.99
GOOD_BY_BITS = 0.98
"""Of the first ten rows, where few rows match and the index is not used."""
EFFORTS = (40, 100, 200, 400, 800, 1000)
"""The values of hnsw.ef_search to try; pgvector allows 1,000 at most."""

# A chunk that is compared with itself is left out of its list, so one more is asked for.
_POOL = {"pool_size": MOST + 1, "match_count": MOST + 1, "match_threshold": -1}
# Distances in half and in full precision differ by less.
_TOLERANCE = 1e-6
_STORED = """
select chunk.id::text, chunk.embedding::text
  from (
    select sampled.id
      from public.knowledge_chunks as sampled
     where sampled.status = 'active' and sampled.embedding_bits is not null
     order by md5(sampled.id::text)
     limit %s
  ) as drawn
  join knowledge_internal.chunk_rows as chunk on chunk.id = drawn.id
 order by chunk.id
"""
_LOGGED = """
select log.question
  from public.knowledge_query_log as log
 where log.mode <> 'text'
 group by log.question
 order by max(log.asked_at) desc, log.question
 limit %s
"""
_NEAREST = """
select near.ids::text[], near.similarities, near.strategy, near.ef_search,
       near.milliseconds
  from knowledge_internal.nearest_by_effort(%s, %s) as near
"""

Question = tuple[str | None, str]
"""The id of the chunk, None for another question, and the embedding as pgvector writes it."""


@dataclass(frozen=True)
class Recall:
    """Means and medians in milliseconds over the questions for which the index was used, else all.

    `answered` is how many have a hit, `used` for how many the index was used, `ef_search` that of a
    search. `enough` is the least of EFFORTS with a recall of GOOD, None if all have less.
    """

    questions: int
    used: int
    answered: int = 0
    at_10: float = 1.0
    at_50: float = 1.0
    indexed_ms: float = 0.0
    compared_ms: float = 0.0
    ef_search: int = 0
    enough: int | None = None


def stored_questions(database: Database, count: int) -> list[Question]:
    """Draw stored chunks, the same ones each time."""
    drawn = database.execute(_STORED, [count])
    return [(str(id_), str(embedding)) for id_, embedding in drawn]


def logged_questions(database: Database, count: int) -> list[str]:
    """Return the last different questions of the query log."""
    return [str(question) for (question,) in database.execute(_LOGGED, [count])]


@dataclass(frozen=True)
class _Nearest:
    """What one search found, without the chunk that it was asked with."""

    similarities: list[float]
    strategy: str | None
    ef_search: int
    milliseconds: float

    def share(self, exact: "_Nearest", depth: int) -> float:
        """Return the recall: a row that is as near as the last exact one counts as found."""
        wanted = exact.similarities[:depth]
        if not wanted:
            return 1.0
        near = sum(one >= wanted[-1] - _TOLERANCE for one in self.similarities[:depth])
        return min(near / len(wanted), 1.0)


def measure(database: Database, questions: Sequence[Question], search: Mapping[str, Any]) -> Recall:
    """Ask each question with and without the index; `search` has the filters."""

    def nearest(question: Question, effort: int | None) -> _Nearest:
        own, embedding = question
        arguments = json.dumps({**search, **_POOL, "query_embedding": embedding})
        ((ids, similarities, *others),) = database.execute(_NEAREST, [arguments, effort]).fetchall()
        pairs = zip(ids or (), similarities or (), strict=True)
        return _Nearest([near for id_, near in pairs if id_ != own], *others)

    every = [(one, near) for one in questions if (near := nearest(one, None)).similarities]
    by_index = [(one, near) for one, near in every if near.strategy == "index"]
    found = by_index or every
    if not found:
        return Recall(len(questions), 0)
    exact = [nearest(one, 0) for one, _ in found]

    def mean(lists: Iterable[_Nearest], depth: int) -> float:
        return fmean(near.share(all_, depth) for near, all_ in zip(lists, exact, strict=True))

    used = [near for _, near in found]
    return Recall(
        questions=len(questions),
        used=len(by_index),
        answered=len(every),
        at_10=mean(used, 10),
        at_50=mean(used, MOST),
        indexed_ms=median(near.milliseconds for near in used),
        compared_ms=median(near.milliseconds for near in exact),
        ef_search=used[0].ef_search,
        enough=next(
            (
                effort
                for effort in EFFORTS * bool(by_index)
                if mean((nearest(one, effort) for one, _ in found), MOST) >= GOOD
            ),
            None,
        ),
    )


def finding(what: str, found: Recall) -> Finding:
    """Return the finding of doctor about questions that are named so."""
    asked = f"{found.questions} {what}"
    shares = f"recall@10 {found.at_10:.3f}, @{MOST} {found.at_50:.3f}"
    if found.questions and not found.answered:
        return Finding(
            "recall", "warning", f"{asked}: no row passes the filters", "Correct --filters."
        )
    if not found.used:
        message = f"{asked}: all rows are compared, the index is not used: {shares}"
        if found.at_10 >= GOOD_BY_BITS:
            return Finding("recall", "ok", message)
        return Finding("recall", "warning", message, "Search with a larger pool_size.")
    reached = (
        f"{GOOD} is not reached by ef_search 1,000"
        if found.enough is None
        else f"ef_search {found.enough} reaches {GOOD}"
    )
    part = "" if found.used == found.questions else f", {found.used} of them by the index"
    message = (
        f"{asked}{part}: {shares}; p50 {found.indexed_ms:.1f} ms, {found.compared_ms:.1f} without "
        f"the index; ef_search is {found.ef_search}, {reached}"
    )
    if found.at_50 >= GOOD:
        return Finding("recall", "ok", message)
    pool = (found.enough or 0) // 2
    larger = f"Search with pool_size {pool}, or build" if pool > MOST else "Build"
    return Finding(
        "recall",
        "warning",
        message,
        f"{larger} the index with more links: `second-brain corpus index build --m 24"
        " --ef-construction 128`.",
    )

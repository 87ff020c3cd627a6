"""What to judge: the questions that tell most, and for each the hits of several settings.

A judge who sees ranks, or hits of one setting alone, prefers them. So the first hits of each leg
and of each fusion are pooled, and their order depends on the question alone. Measures count
documents, so each search returns documents, each with its best chunk: all that a measure looks at
in its first hits is then judged.
"""

from collections.abc import Sequence
from hashlib import sha256
from uuid import UUID

from second_brain.evaluation.collection import Query, Questions, embed_questions
from second_brain.evaluation.comparison import LEGS
from second_brain.evaluation.runs import DEFAULT, Searcher
from second_brain.models import Embedder
from second_brain.retrieval.answer import Degraded, SearchResult
from second_brain.retrieval.query import OperatorQuery
from second_brain.retrieval.service import RetrievalService
from second_brain.retrieval.settings import Mode
from second_brain.services.arguments import FUSIONS, Fusion
from second_brain.services.install import Database

DEPTH = 10
"""Documents of each setting."""

_ANY_SIMILARITY = -1.0

_SETTINGS: tuple[tuple[Mode, Fusion], ...] = (
    *(("hybrid", one) for one in FUSIONS),
    ("vector", "rrf"),
    ("text", "rrf"),
)


def candidates(
    service: RetrievalService,
    question: str,
    collections: tuple[str, ...] | None = None,
    *,
    viewer_id: UUID | None = None,
) -> tuple[list[SearchResult], Degraded | None]:
    """Return the first documents of each leg and each fusion: their best chunks, each once.

    Where the question has no embedding, one of its best text hits takes its place, and the reason
    is returned too.
    """
    pool: dict[str, SearchResult] = {}
    degraded: Degraded | None = None
    for mode, fusion in _SETTINGS:
        if degraded is not None and mode == "vector":
            continue
        query = OperatorQuery(
            query=question,
            mode=mode,
            fusion=fusion,
            limit=DEPTH,
            min_similarity=_ANY_SIMILARITY,
            collections=collections,
            one_per_document=True,
        )
        response = service.search(query, viewer_id=viewer_id)
        pool.update((hit.id, hit) for hit in response.results)
        degraded = degraded or response.degraded
    ordered = sorted(pool.values(), key=lambda hit: _place(question, hit.id))
    return ordered, degraded


def agreement(
    database: Database, embedder: Embedder, questions: Sequence[str], collection: str | None
) -> list[float]:
    """Return for each question how far the legs agree: the less, the more a judgment tells.

    It is the share of the first documents of the leg with fewer hits that the other leg has among
    its first ones; 1 if a leg has no hits, because no weights change such an answer.
    """
    queries = [Query(str(row), question, row) for row, question in enumerate(questions)]
    embeddings = embed_questions(Questions("", queries, {}, 0), embedder)
    searcher = Searcher(database, embeddings, collection)

    def shared(query: Query) -> float:
        vector, text = (
            set(searcher.answer(query, mode.leg, DEFAULT, DEPTH).documents) for mode in LEGS
        )
        fewest = min(len(vector), len(text))
        return len(vector & text) / fewest if fewest else 1.0

    return [shared(query) for query in queries]


def _place(question: str, chunk_id: str) -> bytes:
    # Not Python's hash, which differs between processes.
    return sha256(f"{question}\n{chunk_id}".encode()).digest()

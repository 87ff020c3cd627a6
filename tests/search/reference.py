"""A search in Python, without an index: random corpora and questions, and the hits they give."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import chain, product
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from conftest import Connection
from second_brain.services.arguments import FUSIONS

Row = dict[str, Any]
Arguments = dict[str, Any]
Vector = tuple[int, int, int]

COLLECTIONS = ("knowledge", "memory", "artifacts")
KINDS = ("note", "task", "decision")
OWNERS = (UUID(int=1001), UUID(int=1002))
TODAY = datetime.now(UTC).date()
# English leaves these as they are, so that it reads them as simple does.
WORDS = ("alpha", "beta", "gamma", "delta", "sigma", "omega")
# The arithmetic of pgvector is float4. Of small integers it is exact, and ties are ties here too.
VECTORS: tuple[Vector, ...] = (
    *((1, 0, 0), (2, 0, 0), (0, 1, 0), (0, 0, 3), (-1, 0, 0), (1, 1, 0)),
    *((2, 1, 0), (3, 1, 1), (1, 2, 2), (1, -1, 2), (-2, 1, 0), (-1, -1, -1)),
)


@dataclass(frozen=True)
class Chunk:
    """A stored chunk."""

    words: tuple[str, ...]
    embedding: Vector | None
    document: int | None
    chunk_index: int | None
    owner: UUID | None
    visibility: str
    sensitivity: str | None
    collection: str
    knowledge_type: str
    document_date: date | None
    status: str
    language: str

    @property
    def content(self) -> str:
        """The text."""
        return " ".join(self.words)


@dataclass(frozen=True)
class Corpus:
    """Chunks by number, which is their id, and the database's statistics of all of them."""

    chunks: Mapping[int, Chunk]
    today: date
    cosine_spread: float
    stored_b: float | None = None

    def active(self) -> dict[int, Chunk]:
        """The chunks that a search may find."""
        return {number: one for number, one in self.chunks.items() if one.status == "active"}

    def age(self, number: int) -> int:
        """Count the days since the chunk's date, 0 without one."""
        dated = self.chunks[number].document_date or self.today
        return max((self.today - dated).days, 0)


@dataclass
class Hit:
    """The expected hit of a search for a chunk."""

    rrf_score: float = 0
    vector_rank: int | None = None
    text_rank: int | None = None
    similarity: float | None = None
    text_score: float | None = None


# Documents are the same in every corpus; their chunks may be seen by others than they.
DOCUMENTS: dict[int, tuple[str, UUID | None]] = {
    2001: ("public", None),
    2002: ("private", OWNERS[0]),
    2003: ("private", OWNERS[1]),
    2004: ("private", None),
}


def days_ago(days: int) -> date:
    return TODAY - timedelta(days=days)


# Few draws make a chunk: generating it must not take longer than searching it.
texts = [
    *(text for length in (1, 2, 3) for text in product(WORDS[:5], repeat=length)),
    *product(WORDS[:2], repeat=5),
    *(WORDS[first:5] * times for first in range(5) for times in (1, 2, 5)),
]
places = [(None, None), *product([None, *DOCUMENTS], [None, *range(6), 2**31 - 1])]
readers = list(product([None, *OWNERS], ["public", "private"], [None, "internal", "secret"]))
dates = [None, *map(days_ago, (-3, 0, 1, 2, 10, 30, 400, 40_000))]
kinds = list(product(COLLECTIONS, KINDS, dates))
statuses = ["active"] * 12 + ["superseded", "archived", "deleted"]
states = list(product(statuses, ["simple", "english"]))
parts: list[Sequence[Any]] = [places, readers, kinds, states]
chunks = st.builds(
    lambda words, embedding, *parts: Chunk(words, embedding, *chain(*parts)),
    st.sampled_from(texts),
    st.sampled_from([None, *VECTORS]),
    *map(st.sampled_from, parts),
)
sizes = st.integers(1, 12) | st.integers(13, 70)
corpora = sizes.flatmap(lambda size: st.lists(chunks, min_size=size, max_size=size))

words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
vectors = st.sampled_from(VECTORS).map(list)


def ways_to_ask(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[Arguments]:
    """Draw an embedding, a text or both, and any of the other arguments."""
    by_both: Arguments = {"query_embedding": vectors, "query_text": words}
    ways: list[Arguments] = [by_both, by_both, {"query_embedding": vectors}, {"query_text": words}]
    return st.one_of([st.fixed_dictionaries(way, optional=more) for way in ways])


def arguments_of(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Arguments]:
    return st.fixed_dictionaries(strategies)


def together(*strategies: st.SearchStrategy[Arguments]) -> st.SearchStrategy[Arguments]:
    return st.tuples(*strategies).map(lambda drawn: {k: v for one in drawn for k, v in one.items()})


leg_weights = st.sampled_from([(1.0, 1.0), (1.0, 0.25), (0.5, 3.0), (0.0, 1.0), (2.0, 0.0)])
reworded = arguments_of(formulations=st.lists(ways_to_ask(), min_size=1, max_size=3))
separated = arguments_of(
    collections=st.lists(st.sampled_from([*COLLECTIONS, "none", ""]), min_size=1, max_size=4)
)
viewed = arguments_of(viewer_id=st.sampled_from([*OWNERS, UUID(int=1003)]))
in_public = arguments_of(public_only=st.just(True))
of_a_kind = arguments_of(filter_type=st.sampled_from(KINDS))
bounds = st.sampled_from([-3, 0, 1, 5, 30, 400]).map(days_ago)
dated = (
    arguments_of(date_from=bounds)
    | arguments_of(date_to=bounds)
    | arguments_of(date_from=bounds, date_to=bounds)
)
aging = arguments_of(recency_half_life=st.sampled_from([0.5, 30.0, 1e-9]))
anything: st.SearchStrategy[Arguments] = st.just({})
ranking = together(
    ways_to_ask(
        search_mode=st.sampled_from(["websearch", "simple"]),
        match_threshold=st.sampled_from([-1.0, -0.5, 0.1, 0.5, 0.9, 1.0]),
        rrf_k=st.sampled_from([0.5, 2.0, 60.0, 1000.0]),
        fusion=st.sampled_from(FUSIONS),
    ),
    leg_weights.map(lambda drawn: {"vector_weight": drawn[0], "text_weight": drawn[1]}),
)
scope = anything | separated | viewed | in_public | of_a_kind | dated
variant = anything | reworded | aging
searches = together(ranking, scope, variant)
pooled = together(
    searches,
    arguments_of(
        pool_size=st.sampled_from([1, 2, 5, 20]), match_count=st.sampled_from([1, 3, 10, 100])
    ),
)


# The reference.


def cosine(one: Vector, other: Sequence[int]) -> float:
    product, *norms = (
        sum(a * b for a, b in zip(*pair, strict=True))
        for pair in ((one, other), (one, one), (other, other))
    )
    distance = 1 - product / math.sqrt(math.prod(norms))
    return 1 - distance


def idf(active: Mapping[int, Chunk], word: str) -> float:
    having = sum(word in one.words for one in active.values())
    return math.log(1 + (len(active) - having + 0.5) / (having + 0.5))


def bm25(
    active: Mapping[int, Chunk], query: str, mode: str | None, b: float | None = None
) -> dict[int, float]:
    """Score the chunks with any word of the query, or all in mode simple: k1 1.2."""
    b = b or length_weight((len(one.words), len(set(one.words))) for one in active.values())
    mean_length = sum(len(one.words) for one in active.values()) / max(len(active), 1) or 1
    # In the order of the function's own sums, so that both round alike and have the same ties.
    shortest = 1.2 * (1 - b)
    per_word = 1.2 * (1 - b + b / mean_length) - shortest
    asked = Counter(query.split())
    weights = {word: times * idf(active, word) for word, times in asked.items()}
    rarest_first = sorted(asked, key=lambda word: (-idf(active, word), word))
    scores: dict[int, float] = {}
    for number, one in active.items():
        found = [word in one.words for word in asked]
        if all(found) if mode == "simple" else any(found):
            norm = shortest + per_word * len(one.words)
            tfs = [(word, one.words.count(word)) for word in rarest_first]
            scores[number] = sum(
                weights[word] * 2.2 / (1 + 4 * norm / (4 * tf)) for word, tf in tfs if tf
            )
    return scores


def length_weight(counts: Iterable[tuple[int, int]]) -> float:
    """Return b of BM25 for chunks with so many words and different words."""
    words, distinct = map(sum, zip((0, 0), *counts, strict=True))
    return float(min(0.75, max(0.4, 3 * (1 - distinct / max(words, 1)))))


def best_first(scores: Mapping[int, float]) -> list[int]:
    return sorted(scores, key=lambda number: (-scores[number], number))


def passes(one: Chunk, arguments: Arguments) -> bool:
    dated = one.document_date
    first, last = arguments.get("date_from"), arguments.get("date_to")
    return (
        visible(one, arguments)
        and arguments.get("filter_type") in (None, one.knowledge_type)
        and (first is None or (dated is not None and first <= dated))
        and (last is None or (dated is not None and dated <= last))
    )


def may_see(visibility: str, owner: UUID | None, arguments: Arguments) -> bool:
    return visibility == "public" or (
        not arguments.get("public_only") and arguments.get("viewer_id") in (None, owner)
    )


def visible(one: Chunk, arguments: Arguments) -> bool:
    return may_see(one.visibility, one.owner, arguments)


def pool_of(arguments: Arguments) -> int:
    return int(max(arguments.get("pool_size", 50), arguments.get("match_count", 10)))


def ranked_list(
    corpus: Corpus, candidates: Sequence[int], asked: Arguments, arguments: Arguments
) -> dict[int, Hit]:
    """Rank the candidates for one way to ask, in both legs, and fuse the legs."""
    weights = arguments["vector_weight"], arguments["text_weight"]
    fusion, rrf_k = arguments.get("fusion", "rrf"), arguments.get("rrf_k", 60)
    pool = pool_of(arguments)
    threshold = arguments.get("match_threshold", 0)
    embedding, text = asked.get("query_embedding"), asked.get("query_text", "")
    active = corpus.active()
    cosines = {
        number: cosine(direction, embedding)
        for number in candidates
        if embedding and weights[0] and (direction := active[number].embedding)
    }
    worded_rows = bm25(active, text, arguments.get("search_mode"), corpus.stored_b)
    bm25s = {
        number: score
        for number, score in worded_rows.items()
        if text and weights[1] and number in candidates
    }

    near = [number for number in best_first(cosines)[:pool] if cosines[number] >= threshold]
    worded = best_first(bm25s)[:pool]
    hits = {number: Hit() for number in [*near, *worded]}
    for rank, number in enumerate(near, 1):
        hits[number].vector_rank, hits[number].similarity = rank, cosines[number]
    for rank, number in enumerate(worded, 1):
        hits[number].text_rank, hits[number].text_score = rank, bm25s[number]

    for leg, weight in ((near, weights[0]), (worded, weights[1])):
        for rank, number in enumerate(leg, 1):
            if fusion == "rrf":
                hits[number].rrf_score += weight / (rrf_k + rank)
            elif fusion not in ("auto", "relative_score"):
                raise ValueError(f"no formula of {fusion}")
    return hits


def add_shares(lists: Sequence[dict[int, Hit]], arguments: Arguments) -> None:
    """Score the lists of a way to ask as fusion relative_score does: all in one unit."""
    hits = [hit for one in lists for hit in one.values()]
    cosines = known(hit.similarity for hit in hits)
    for weight, name in (("vector_weight", "similarity"), ("text_weight", "text_score")):
        scores = known(getattr(hit, name) for hit in hits)
        best, last = max(scores, default=0), min(scores, default=0) if cosines else 0.0
        for hit in hits:
            if (score := getattr(hit, name)) is not None:
                share = (score - last) / (best - last) if best > last else 1
                hit.rrf_score += arguments[weight] * share


def add_scores(lists: Sequence[dict[int, Hit]], corpus: Corpus, arguments: Arguments) -> None:
    """Score the lists of a way to ask, one for each collection, as fusion auto does.

    A score that is missing counts as the least of its leg, BM25 as 0 where the pool is not full. A
    collection without a cosine has the least of all. BM25 is a part of the best of all lists.
    """
    scale, pool = 3 * corpus.cosine_spread, pool_of(arguments)
    best_bm25 = max(known(hit.text_score for hits in lists for hit in hits.values()), default=1)
    all_cosines = known(hit.similarity for hits in lists for hit in hits.values())
    for hits in lists:
        cosines = known(hit.similarity for hit in hits.values()) or all_cosines
        bm25s = known(hit.text_score for hit in hits.values())
        least_bm25 = min(bm25s) if len(bm25s) == pool else 0
        for hit in hits.values():
            cosine = min(cosines, default=0) if hit.similarity is None else hit.similarity
            score = least_bm25 if hit.text_score is None else hit.text_score
            hit.rrf_score = arguments["vector_weight"] * cosine / scale
            hit.rrf_score += arguments["text_weight"] * score / best_bm25


def with_neighbours(scores: dict[int, float], active: Mapping[int, Chunk]) -> dict[int, float]:
    """Add a part of the best score of the chunks before and after in the same document."""
    if not scores:
        return {}
    words = sum(len(one.words) for one in active.values()) / len(active)
    weight = min(0.3, 6 / words)
    added = dict(scores)
    for number in scores:
        one = active[number]
        near = [
            score
            for other, score in scores.items()
            if one.document is not None and one.chunk_index is not None
            if active[other].document == one.document
            if (place := active[other].chunk_index) is not None
            if abs(place - one.chunk_index) == 1
        ]
        if near:
            added[number] += weight * (max(near) - min(scores.values()))
    return added


def known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def reference(corpus: Corpus, **arguments: Any) -> dict[int, Hit]:
    """Search: a list for each way to ask in each collection, all fused."""
    found = defaultdict(list)
    named = set(arguments.get("collections") or [None])
    passing = {number: one for number, one in corpus.active().items() if passes(one, arguments)}
    in_lists = [
        [
            number
            for number, one in passing.items()
            if name in (None, one.collection) or (name == "" and one.collection not in named)
        ]
        for name in named
    ]
    for asked in (arguments, *arguments.get("formulations", ())):
        lists = [ranked_list(corpus, candidates, asked, arguments) for candidates in in_lists]
        if arguments.get("fusion") == "auto":
            add_scores(lists, corpus, arguments)
        elif arguments.get("fusion") == "relative_score":
            add_shares(lists, arguments)
        for number, hit in chain.from_iterable(hits.items() for hits in lists):
            found[number].append(hit)

    sums = {number: sum(hit.rrf_score for hit in hits) for number, hits in found.items()}
    if arguments.get("fusion") == "auto":
        sums = with_neighbours(sums, corpus.active())
    fused = {}
    for number, hits in found.items():
        score = sums[number]
        # A score below 0 would rise with its age.
        if score > 0 and (half_life := arguments.get("recency_half_life")):
            score *= 0.5 ** min(corpus.age(number) / half_life, 1000)
        fused[number] = Hit(
            score,
            min(known(hit.vector_rank for hit in hits), default=None),
            min(known(hit.text_rank for hit in hits), default=None),
            max(known(hit.similarity for hit in hits), default=None),
            max(known(hit.text_score for hit in hits), default=None),
        )
    return fused


# The database.


def as_json(value: object) -> Jsonb:
    return Jsonb(value, dumps=partial(json.dumps, default=str))


def stored(connection: Connection, chunks: Sequence[Chunk]) -> Corpus:
    """Store chunks under the ids 1, 2, 3, ..., instead of all others."""
    rows = []
    for number, one in enumerate(chunks, 1):
        embedding = one.embedding and str(list(one.embedding))
        ids = {"id": UUID(int=number), "document_id": one.document and UUID(int=one.document)}
        rows.append({**asdict(one), **ids, "content": one.content, "embedding": embedding})
    connection.execute(
        """
        insert into public.knowledge_chunks
               (id, content, embedding, document_id, chunk_index, collection, status, language)
        select id, content, embedding, document_id, chunk_index, collection, status, language
          from jsonb_to_recordset(%s) as given (
                 id uuid, content text, embedding extensions.vector, document_id uuid,
                 chunk_index integer, collection text, status text, language text
               )
        """,
        [as_json(rows)],
    )
    # What the chunk's document said when it was inserted. Its text is analysed again, now that the
    # mean length is known.
    connection.execute(
        """
        update public.knowledge_chunks as chunk
           set knowledge_type = given.knowledge_type, owner_id = given.owner,
               visibility = given.visibility, sensitivity = given.sensitivity,
               document_date = given.document_date, content_tsv = null
          from jsonb_to_recordset(%s) as given (
                 id uuid, knowledge_type text, owner uuid, visibility text, sensitivity text,
                 document_date date
               )
         where chunk.id = given.id
        """,
        [as_json(rows)],
    )
    ((today, cosine_spread),) = connection.execute(
        "select (now() at time zone 'UTC')::date,"
        "       (knowledge_internal.read_settings('auto')).cosine_scale / 3"
    ).fetchall()
    return Corpus(dict(enumerate(chunks, 1)), today, cosine_spread)

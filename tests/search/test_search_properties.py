"""What holds for every search: properties over random corpora, against a reference in Python.

Each property is tried on a few corpora by `make test`, on a thousand by `make test-slow`.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import chain, product
from statistics import mean
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from conftest import Connection

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
    (1, 0, 0),
    (2, 0, 0),
    (0, 1, 0),
    (0, 0, 3),
    (-1, 0, 0),
    (1, 1, 0),
    (2, 1, 0),
    (3, 1, 1),
    (1, 2, 2),
    (1, -1, 2),
    (-2, 1, 0),
    (-1, -1, -1),
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
    collections=st.lists(st.sampled_from([*COLLECTIONS, "none"]), min_size=1, max_size=4)
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
        fusion=st.sampled_from(["auto", "relative_score", "rrf"]),
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


def bm25(active: Mapping[int, Chunk], query: str, mode: str | None) -> dict[int, float]:
    """Score the chunks with any word of the query, or all in mode simple: k1 1.2, b 0.75."""
    mean_length = sum(len(one.words) for one in active.values()) / max(len(active), 1)
    asked = Counter(query.split())
    weights = {word: times * idf(active, word) for word, times in asked.items()}
    # In the order of the function's own sum, so that both round alike and have the same ties.
    rarest_first = sorted(asked, key=lambda word: (-idf(active, word), word))
    scores: dict[int, float] = {}
    for number, one in active.items():
        found = [word in one.words for word in asked]
        if all(found) if mode == "simple" else any(found):
            norm = 1.2 * (0.25 + 0.75 * len(one.words) / mean_length)
            tfs = [(word, one.words.count(word)) for word in rarest_first]
            scores[number] = sum(weights[word] * tf * 2.2 / (tf + norm) for word, tf in tfs)
    return scores


def best_first(scores: Mapping[int, float]) -> list[int]:
    return sorted(scores, key=lambda number: (-scores[number], number))


def inverse(value: float) -> float:
    return 1 / value if value else 0


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


def ranked_list(
    corpus: Corpus, candidates: Sequence[int], asked: Arguments, arguments: Arguments
) -> dict[int, Hit]:
    """Rank the candidates for one way to ask, in both legs, and fuse the legs."""
    weights = arguments["vector_weight"], arguments["text_weight"]
    fusion, rrf_k = arguments.get("fusion", "rrf"), arguments.get("rrf_k", 60)
    pool = max(arguments.get("pool_size", 50), arguments.get("match_count", 10))
    threshold = arguments.get("match_threshold", 0)
    embedding, text = asked.get("query_embedding"), asked.get("query_text", "")
    active = corpus.active()
    cosines = {
        number: cosine(direction, embedding)
        for number in candidates
        if embedding and weights[0] and (direction := active[number].embedding)
    }
    bm25s = {
        number: score
        for number, score in bm25(active, text, arguments.get("search_mode")).items()
        if text and weights[1] and number in candidates
    }

    near = [number for number in best_first(cosines)[:pool] if cosines[number] >= threshold]
    telling = best_first(bm25s)[:pool]
    hits = {number: Hit() for number in [*near, *telling]}
    for rank, number in enumerate(near, 1):
        hits[number].vector_rank, hits[number].similarity = rank, cosines[number]
    for rank, number in enumerate(telling, 1):
        hits[number].text_rank, hits[number].text_score = rank, bm25s[number]

    for leg, scores, weight in ((near, cosines, weights[0]), (telling, bm25s, weights[1])):
        for rank, number in enumerate(leg, 1):
            if fusion == "rrf":
                hits[number].rrf_score += weight / (rrf_k + rank)
            elif fusion == "relative_score":
                best, last = scores[leg[0]], scores[leg[-1]] if near else 0.0
                share = (scores[number] - last) / (best - last) if best > last else 1
                hits[number].rrf_score += weight * share
    if fusion == "auto" and hits:
        highest = 2.2 * sum(idf(active, word) for word in text.split())
        nearest = best_first(cosines)[:5]
        supporting = [bm25(active, text, None).get(number, 0.0) for number in nearest]
        words = set(text.split())
        if telling and words <= set(active[telling[0]].words):
            highest /= math.sqrt(5)
        told = [bm25s[number] for number in telling]
        factors = evidence(list(cosines.values()), supporting, told, highest, corpus)
        weigh(hits, cosines, bm25s, (weights[0] * factors[0], weights[1] * factors[1]))
    return hits


def evidence(
    cosines: list[float],
    supporting: list[float],
    bm25s: list[float],
    highest: float,
    corpus: Corpus,
) -> tuple[float, float]:
    """Return the factors of fusion auto; supporting are the BM25 scores of the nearest chunks."""
    nearest = sorted(cosines, reverse=True) or [0.0]
    ordinary = nearest[:50][-1]
    if len(cosines) < 10:
        return inverse(nearest[0] - ordinary), inverse(max(bm25s, default=0))
    excess = (mean(nearest[:5]) - ordinary) / corpus.cosine_spread
    support = mean(supporting) / mean(bm25s[:5]) if bm25s else 1
    vector = 0.04 * 8 * max(excess, 0) ** 1.5 / corpus.cosine_spread * min(max(support, 0.1), 1)
    text = ((bm25s[0] - (bm25s[49] if len(bm25s) > 49 else 0)) / highest) ** 2 if bm25s else 0
    return vector, text


def weigh(
    hits: dict[int, Hit],
    cosines: Mapping[int, float],
    bm25s: Mapping[int, float],
    weights: tuple[float, float],
) -> None:
    """Score hits as fusion auto does, with the weights of the legs."""
    vector, text = weights
    ordinary = sorted(cosines.values(), reverse=True)[:50][-1] if cosines else 0.0
    similarities = {number: cosines.get(number, ordinary) for number in hits}
    least, most = min(similarities.values()), max(similarities.values())
    full = vector * (most - least) + text * max(bm25s.get(number, 0) for number in hits)
    for number, hit in hits.items():
        score = vector * (similarities[number] - least) + text * bm25s.get(number, 0)
        hit.rrf_score = score / full if full else 1


def known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def reference(corpus: Corpus, **arguments: Any) -> dict[int, Hit]:
    """Search: a list for each way to ask in each collection, all fused."""
    ways = [arguments, *arguments.get("formulations", ())]
    found = defaultdict(list)
    for collection in set(arguments.get("collections") or [None]):
        candidates = [
            number
            for number, one in corpus.active().items()
            if collection in (None, one.collection) and passes(one, arguments)
        ]
        for asked in ways:
            for number, hit in ranked_list(corpus, candidates, asked, arguments).items():
                found[number].append(hit)

    fused = {}
    for number, hits in found.items():
        score = sum(hit.rrf_score for hit in hits)
        if arguments.get("fusion") == "auto":
            score /= len(ways)
        if half_life := arguments.get("recency_half_life"):
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
    rows = [
        asdict(one)
        | {
            "id": UUID(int=number),
            "content": one.content,
            "embedding": one.embedding and str(list(one.embedding)),
            "document_id": one.document and UUID(int=one.document),
        }
        for number, one in enumerate(chunks, 1)
    ]
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
        "select (now() at time zone 'UTC')::date, knowledge_internal.cosine_spread(48)"
    ).fetchall()
    return Corpus(dict(enumerate(chunks, 1)), today, cosine_spread)


TYPES = {"query_embedding": "::extensions.vector", "collections": "::text[]"}


def call(connection: Connection, function: str, **arguments: Any) -> list[Row]:
    values = arguments | {
        name: as_json(arguments[name])
        for name in ("formulations", "filters", "queries")
        if name in arguments
    }
    if "query_embedding" in values:
        values["query_embedding"] = str(values["query_embedding"])
    given = sql.SQL(", ").join(
        sql.SQL("{} => {}{}").format(
            sql.Identifier(name), sql.Placeholder(name), sql.SQL(TYPES.get(name, ""))
        )
        for name in values
    )
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            sql.SQL("select * from public.{}({})").format(sql.Identifier(function), given), values
        ).fetchall()


def search(connection: Connection, **arguments: Any) -> list[Row]:
    return call(connection, "hybrid_search_knowledge_chunks", **arguments)


def numbers(rows: Iterable[Row]) -> list[int]:
    return [row["id"].int for row in rows]


def close(one: float, other: float) -> bool:
    # A chunk that the text leg missed is scored by its sparse vector: in float4.
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)


CASES = [pytest.param(25, id="few"), pytest.param(1000, id="many", marks=pytest.mark.slow)]
PAGES = "select pg_relation_size('public.knowledge_chunks') / 8192"
Check = Callable[..., None]


@pytest.fixture(scope="module", autouse=True)
def documents(shared: Connection) -> None:
    for number, (visibility, owner) in DOCUMENTS.items():
        shared.execute(
            "insert into public.knowledge_documents (id, external_key, title, visibility, owner_id)"
            " values (%s, %s, %s, %s, %s)",
            [UUID(int=number), str(number), f"Document {number}", visibility, owner],
        )


def holds(**strategies: st.SearchStrategy[Any]) -> Callable[[Check], Check]:
    """Try a property on a few corpora, and in the slow run on a thousand."""

    def prepare(check: Check) -> Check:
        def test(shared: Connection, cases: int) -> None:
            def rolled_back(chunks: list[Chunk], **drawn: Any) -> None:
                # By its pages a search guesses how many chunks a table has; what is rolled back
                # leaves some.
                if shared.execute(PAGES).fetchall() > [(100,)]:
                    shared.execute("truncate public.knowledge_chunks")
                with shared.transaction(force_rollback=True):
                    check(shared, stored(shared, chunks), **drawn)

            rolled_back.__name__ = check.__name__
            settings(
                max_examples=cases,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            )(given(chunks=corpora, **strategies)(rolled_back))()

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return pytest.mark.parametrize("cases", CASES)(test)

    return prepare


# The properties.


def assert_fused_like_reference(
    connection: Connection, corpus: Corpus, arguments: Arguments
) -> None:
    rows, hits = search(connection, **arguments), reference(corpus, **arguments)
    assert [row["total_count"] for row in rows] == [len(hits)] * min(
        len(hits), arguments.get("match_count", 10)
    )
    best = sorted((hit.rrf_score for hit in hits.values()), reverse=True)
    for row, score in zip(rows, best, strict=False):
        hit = hits[row["id"].int]
        assert (row["vector_rank"], row["text_rank"]) == (hit.vector_rank, hit.text_rank)
        assert close(row["rrf_score"], score)
        assert close(row["rrf_score"], hit.rrf_score)
    places = [
        (-row["rrf_score"], min(known([row["vector_rank"], row["text_rank"]])), row["id"].int)
        for row in rows
    ]
    assert places == sorted(set(places))


@holds(asked=pooled)
def test_ranks_are_fused_like_in_the_reference(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    assert_fused_like_reference(connection, corpus, asked | {"fusion": "rrf"})


@holds(asked=pooled)
def test_scaled_scores_are_fused_like_in_the_reference(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    assert_fused_like_reference(connection, corpus, asked | {"fusion": "relative_score"})


@holds(asked=pooled)
def test_auto_weighs_the_legs_like_the_reference(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    assert_fused_like_reference(connection, corpus, asked | {"fusion": "auto"})


@holds(asked=pooled)
def test_a_hit_has_its_rank_and_score_in_each_leg(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    hits = reference(corpus, **asked)
    match_types = {(1, 1): "both", (1, 0): "vector", (0, 1): "text"}
    ways = [asked, *asked.get("formulations", ())]
    words = dict.fromkeys(
        word for way in ways if asked["text_weight"] for word in way.get("query_text", "").split()
    )
    for row in search(connection, **asked):
        hit = hits[row["id"].int]
        assert (row["vector_rank"], row["text_rank"]) == (hit.vector_rank, hit.text_rank)
        assert row["similarity"] == pytest.approx(hit.similarity)
        assert row["text_score"] == pytest.approx(hit.text_score)
        found_by = hit.vector_rank is not None, hit.text_rank is not None
        assert row["match_type"] == match_types[found_by]
        having = corpus.chunks[row["id"].int].words
        assert row["matched_terms"] == [word for word in words if word in having]


@holds(asked=together(ranking, viewed | in_public | together(viewed, in_public), variant))
def test_a_viewer_finds_what_is_public_or_the_viewers(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    rows = search(connection, **asked, match_count=100)
    assert set(numbers(rows)) == set(reference(corpus, **asked, match_count=100))
    for row in rows:
        assert visible(corpus.chunks[row["id"].int], asked)
        document = corpus.chunks[row["id"].int].document
        assert row["title"] == (
            f"Document {document}" if document and may_see(*DOCUMENTS[document], asked) else None
        )


@holds(asked=together(ranking, dated, anything | of_a_kind, scope))
def test_dates_and_types_are_kept_to(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    rows = search(connection, **asked, match_count=100)
    assert set(numbers(rows)) == set(reference(corpus, **asked, match_count=100))
    first, last = asked.get("date_from", date.min), asked.get("date_to", date.max)
    for row in rows:
        assert first <= row["document_date"] <= last
        assert row["knowledge_type"] == asked.get("filter_type", row["knowledge_type"])


@holds(asked=together(pooled, separated))
def test_collections_are_ranked_by_themselves_and_fused(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    assert_fused_like_reference(connection, corpus, asked)


@holds(asked=together(searches, separated))
def test_a_hit_scores_as_in_its_collection_alone(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    apart = [
        row
        for collection in set(asked["collections"])
        for row in search(connection, **asked | {"match_count": 100, "collections": [collection]})
    ]
    rows = search(connection, **asked, match_count=100)
    assert len(rows) == len(apart)
    alone = {row["id"]: row for row in apart}
    for row in rows:
        assert close(row["rrf_score"], alone[row["id"]]["rrf_score"])
        for column in ("vector_rank", "text_rank", "match_type", "collection"):
            assert row[column] == alone[row["id"]][column]


@holds(asked=together(pooled, reworded))
def test_formulations_are_ranked_by_themselves_and_fused(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    assert_fused_like_reference(connection, corpus, asked)


@holds(asked=searches, half_life=st.sampled_from([0.1, 7.0, 365.0]))
def test_age_halves_a_score(
    connection: Connection, corpus: Corpus, asked: Arguments, half_life: float
) -> None:
    asked = asked | {"match_count": 100}
    ageless = {row["id"]: row for row in search(connection, **asked | {"recency_half_life": None})}
    rows = search(connection, **asked | {"recency_half_life": half_life})
    assert len(rows) == len(ageless)
    for row in rows:
        factor = 0.5 ** min(corpus.age(row["id"].int) / half_life, 1000)
        assert row["rrf_score"] == pytest.approx(ageless[row["id"]]["rrf_score"] * factor)
    assert [row["rrf_score"] for row in rows] == sorted(
        (row["rrf_score"] for row in rows), reverse=True
    )


page_sizes = st.sampled_from([2, 3, 5, 8, 20])


def pages(connection: Connection, asked: Arguments) -> list[list[Row]]:
    """Return all pages until an empty one."""
    turned: list[list[Row]] = []
    while page := search(connection, **asked, match_offset=sum(map(len, turned))):
        turned.append(page)
    return turned


@holds(asked=searches, size=page_sizes, other=page_sizes, grouped=st.booleans())
def test_pages_of_any_size_make_one_list(
    connection: Connection,
    corpus: Corpus,
    asked: Arguments,
    size: int,
    other: int,
    grouped: bool,
) -> None:
    asked = asked | {"one_per_document": grouped, "pool_size": max(size, other)}
    turned = pages(connection, asked | {"match_count": size})
    rows = list(chain(*turned))
    assert rows == list(chain(*pages(connection, asked | {"match_count": other})))
    assert all(len(page) == size for page in turned[:-1])
    assert len({row["id"] for row in rows}) == len(rows)
    assert {row["total_count"] for row in rows} <= {len(rows)}
    for past in (len(rows), len(rows) + 1, 1000):
        assert search(connection, **asked, match_count=size, match_offset=past) == []


@holds(asked=searches)
def test_the_long_list_is_what_pages_cut(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    asked = asked | {"pool_size": 100}
    rows = list(chain(*pages(connection, asked | {"match_count": 7})))
    assert rows == search(connection, **asked, match_count=100)
    assert set(numbers(rows)) == set(reference(corpus, **asked))


@holds(asked=searches, size=page_sizes)
def test_a_document_stands_where_its_best_hit_stands_and_shows_its_best_chunk(
    connection: Connection, corpus: Corpus, asked: Arguments, size: int
) -> None:
    asked = asked | {"match_count": size}
    units: dict[UUID, list[Row]] = {}
    for row in chain(*pages(connection, asked)):
        units.setdefault(row["document_id"] or row["id"], []).append(row)
    shown = list(chain(*pages(connection, asked | {"one_per_document": True})))
    expected = [
        next((row for row in hits if row["chunk_index"] is not None), hits[0])
        | {name: hits[0][name] for name in ("rrf_score", "confidence")}
        | {"total_count": len(units), "collections": sorted({hit["collection"] for hit in hits})}
        for hits in units.values()
    ]
    assert shown == expected


# A condition, the chunks that meet it, and whether it says who may see a chunk: then it cuts the
# context too.
conditions: list[tuple[str, str, object, Callable[[Chunk], bool], bool]] = [
    ("collection", "ne", "none", lambda one: True, False),
    ("collection", "eq", "knowledge", lambda one: one.collection == "knowledge", False),
    ("chunk_index", "gte", 2, lambda one: (one.chunk_index or 0) >= 2, False),
    ("sensitivity", "not_in", ["secret"], lambda one: one.sensitivity != "secret", True),
    ("sensitivity", "eq", None, lambda one: one.sensitivity is None, True),
    ("visibility", "ne", "private", lambda one: one.visibility == "public", True),
    ("owner_id", "in", [str(OWNERS[0]), None], lambda one: one.owner in (None, OWNERS[0]), True),
]


@holds(
    asked=together(ranking, anything | viewed | in_public | of_a_kind | dated),
    window=st.integers(1, 5),
    condition=st.sampled_from(range(len(conditions))),
)
def test_context_is_the_visible_chunks_around_a_hit(
    connection: Connection, corpus: Corpus, asked: Arguments, window: int, condition: int
) -> None:
    field, op, value, met, cuts = conditions[condition]
    around = {
        number: one
        for number, one in corpus.active().items()
        if visible(one, asked) and (met(one) or not cuts)
    }
    rows = search(
        connection,
        **asked,
        filters=[{"field": field, "op": op, "value": value}],
        neighbor_window=window,
        match_count=100,
    )
    assert set(numbers(rows)) <= set(around)
    for row in rows:
        hit = corpus.chunks[row["id"].int]
        assert met(hit)
        place = hit.chunk_index
        reach = () if place is None else range(place - window, place + window + 1)
        near = sorted(
            (one.chunk_index, number)
            for number, one in around.items()
            if one.document
            and (one.document, one.collection) == (hit.document, hit.collection)
            and one.chunk_index in reach
        )
        assert row["context"] == (
            "\n[CHUNK BOUNDARY]\n".join(around[number].content for _, number in near) or hit.content
        )


@holds(asked=searches)
def test_snippet_and_context_are_there_when_asked_for_and_change_nothing_else(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    plain = search(connection, **asked)
    assert all(row["snippet"] is None and row["context"] is None for row in plain)
    rows = search(connection, **asked, snippet=True, neighbor_window=1)
    assert all(row["snippet"] is not None and row["context"] is not None for row in rows)
    assert [row | {"snippet": None, "context": None} for row in rows] == plain


@holds(asked=st.lists(searches, min_size=1, max_size=4))
def test_a_batch_gives_what_separate_calls_give(
    connection: Connection, corpus: Corpus, asked: list[Arguments]
) -> None:
    rows = call(connection, "hybrid_search_knowledge_chunks_batch", queries=asked)
    assert rows == [
        {"query_index": number} | row
        for number, one in enumerate(asked)
        for row in search(connection, **one)
    ]


@holds(asked=together(ranking, scope), more=reworded)
def test_a_fused_batch_is_a_search_with_formulations(
    connection: Connection, corpus: Corpus, asked: Arguments, more: Arguments
) -> None:
    rows = call(
        connection,
        "hybrid_search_knowledge_chunks_batch",
        queries=[asked, *more["formulations"]],
        fuse=True,
    )
    assert rows == [{"query_index": 0} | row for row in search(connection, **asked, **more)]


@holds(asked=together(searches, viewed))
def test_a_users_own_search_is_the_search_with_that_viewer(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    expected = search(connection, **asked)
    viewer = str(asked["viewer_id"])
    mine = {name: value for name, value in asked.items() if name != "viewer_id"}
    claims = json.dumps({"role": "authenticated", "sub": viewer})
    connection.execute("select set_config('request.jwt.claims', %s, true)", [claims])
    connection.execute("set local role authenticated")
    assert call(connection, "search_my_knowledge_chunks", **mine) == expected

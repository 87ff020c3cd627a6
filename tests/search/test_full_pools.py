"""Each leg fills its pool, however few rows a filter leaves."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import psycopg
import pytest
from psycopg.types.json import Jsonb
from searching import answer, search

from conftest import Connection, Server, copy_of

KINDS = ["note", "task", "decision", "transcript"]
QUERY = [1, -1, 0.5, 0, 0, 0.25, -0.5, 1]
COLLECTIONS = ["archive", "knowledge"]
Normal = npt.NDArray[np.float64]


FILL = """
-- Their text does not matter, so nothing analyses it.
alter table public.knowledge_chunks disable trigger user;
select setseed(0.7);
insert into public.knowledge_chunks (
  content, content_hash, content_tsv, text_length, collection, embedding, embedding_bits,
  knowledge_type, status
)
select 'x', 'x', '', 0, (array['archive', 'knowledge'])[1 + number % 2], embedding,
       knowledge_internal.embedding_bits(embedding),
       case when kind < 0.9 then 'note' when kind < 0.99 then 'task'
            when kind < 0.999 then 'decision' else 'transcript' end,
       case when number % 6 = 0 then 'superseded' else 'active' end
  from generate_series(1, 16000) as number,
       lateral (
         select random() + 0 * number,
                case when number % 10 <> 3 then (
                  select array_agg(random_normal())::extensions.vector
                    from generate_series(1, 8 + 0 * number)
                ) end
       ) as drawn (kind, embedding);
alter table public.knowledge_chunks enable trigger user;
delete from public.knowledge_chunks where hashtext(id::text) % 20 = 0;
analyze public.knowledge_chunks;
"""


@pytest.fixture(scope="module")
def crowd(server: Server) -> Iterator[Connection]:
    """16,000 chunks: superseded ones, deleted ones, some without embedding, some types rare."""
    for dsn in copy_of(server, server.template(8)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            ((index,),) = connection.execute(
                "select pg_get_indexdef('public.knowledge_chunks_embedding'::regclass)"
            ).fetchall()
            connection.execute("drop index public.knowledge_chunks_embedding")
            connection.execute(FILL)
            connection.execute(index)
            yield connection


@pytest.mark.parametrize("pool", [10, 50, 200, 1000])
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_the_vector_leg_always_fills_its_pool(
    crowd: Connection, kind: str | None, pool: int
) -> None:
    with crowd.transaction(force_rollback=True):
        crowd.execute("set local enable_indexscan = off")
        nearest = crowd.execute(
            "select id from public.knowledge_chunks"
            " where status = 'active' and embedding is not null"
            " and knowledge_type = coalesce(%s, knowledge_type)"
            " order by embedding operator(extensions.<=>) %s::extensions.vector limit %s",
            [kind, str(QUERY), pool],
        ).fetchall()
    asked = {"match_count": pool, "match_threshold": -1, "pool_size": 1}
    rows = search(crowd, query_embedding=QUERY, filter_type=kind, **asked)
    found = {row["id"] for row in rows}
    assert len(rows) == len(nearest) == len(found)
    assert len(found & {id_ for (id_,) in nearest}) >= 0.95 * len(nearest)
    assert all(one["similarity"] >= other["similarity"] for one, other in pairwise(rows))


def test_the_index_finds_the_nearest_rows_of_each_collection(crowd: Connection) -> None:
    rows = search(crowd, query_embedding=QUERY, collections=COLLECTIONS, match_count=40)
    assert len(rows) == 40
    for collection in COLLECTIONS:
        found = [row["vector_rank"] for row in rows if row["collection"] == collection]
        assert found == [*range(1, 21)]


def close(cosine: float, normal: Normal) -> Normal:
    """Return vectors, each pair of which has about this cosine."""
    made: Normal = normal / np.linalg.norm(normal, axis=1)[:, None] * (1 - cosine) ** 0.5
    made[:, 0] += cosine**0.5
    return made


VECTORS: dict[str, Callable[[Normal], Normal]] = {
    "no negative numbers": np.abs,
    "half of them zeros": lambda normal: np.maximum(normal, 0),
    "shares of a whole": lambda normal: normal**2 / np.sum(normal**2, axis=1)[:, None],
    "cosines of .9": lambda normal: close(0.9, normal),
    "cosines of .97": lambda normal: close(0.97, normal),
}


@pytest.mark.parametrize("vectors", VECTORS)
def test_vectors_that_their_bits_hardly_tell_apart_are_found_under_filters(
    server: Server, vectors: str
) -> None:
    rows, dimensions, questions = 2500, 128, 12
    made = VECTORS[vectors](np.random.default_rng(3).normal(size=(rows, dimensions)))
    made = (made / np.linalg.norm(made, axis=1)[:, None]).round(6)
    for dsn in copy_of(server, server.template(dimensions)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            # The index would only be written.
            connection.execute("drop index public.knowledge_chunks_embedding")
            columns = "content, embedding, embedding_model, metadata"
            copy = f"copy public.knowledge_chunks ({columns}) from stdin"
            with connection.cursor() as cursor, cursor.copy(copy) as stream:
                for number, one in enumerate(made):
                    keys = json.dumps({"half": number % 2, "tenth": number % 10})
                    stream.write_row((str(number), str(one.tolist()), "made", keys))
            connection.execute("analyze public.knowledge_chunks")
            connection.execute("select public.refresh_knowledge_statistics()")
            for key, value, step in (("half", 1, 2), ("tenth", 3, 10)):
                matching = np.arange(value, rows, step)
                found = 0
                for asked in made[matching[:questions]]:
                    hits = search(
                        connection,
                        query_embedding=asked.tolist(),
                        match_threshold=-1,
                        filters={key: value},
                    )
                    best = matching[np.argsort(-(made[matching] @ asked), kind="stable")[:10]]
                    found += len({int(hit["content"]) for hit in hits} & set(best.tolist()))
                assert found >= 0.98 * 10 * questions, key


# Queries whose first candidates do not match: the text leg draws again until it has the rows.


@pytest.mark.module("insight")
def test_candidates_without_a_match_are_followed_by_more(shared: Connection) -> None:
    # Many short chunks with both words, and one long chunk with them in the order asked for.
    shared.execute(
        """
        insert into public.knowledge_chunks (content)
        select 'alpha beta ' || number from generate_series(1, 4000) as number
        union all
        select 'beta alpha ' || string_agg('filler' || number, ' ')
          from generate_series(1, 300) as number;
        analyze public.knowledge_chunks;
        select public.refresh_knowledge_statistics()
        """
    )
    explained = answer(shared, "explain_hybrid_search", query_text='"beta alpha"')
    assert explained["text"]["strategy"] != "candidates"
    assert [hit["matched_terms"] for hit in explained["hits"]] == [["beta", "alpha"]]


@pytest.mark.parametrize(
    ("rows_of_words", "weights", "effort", "drawn"),
    [
        ([300, 600], [2, 1], 1, None),
        ([400, 100_000], [5, 1], 1, "'a'"),
        # Without half of the weight, the rarest word alone is not enough.
        ([400, 40_000, 50_000], [1, 2, 2], 1, "'a' & 'b' & 'c'"),
        ([40_000], [1], 1, "'a^1'"),
        ([40_000, 50_000], [1, 1], 1, "'a^2' & 'b' | 'a' & 'b^2'"),
        ([40_000] * 4, [1] * 4, 1, "'a' & 'b' & 'c' & 'd'"),
        ([3_000, 100_000], [5, 1], 5, "'a' | 'a'"),
    ],
)
def test_candidates_are_drawn_by_rare_words_by_levels_and_by_several_words(
    shared: Connection,
    rows_of_words: list[int],
    weights: list[int],
    effort: int,
    drawn: str | None,
) -> None:
    lexemes = list("abcd")[: len(rows_of_words)]
    words = {"lexemes": lexemes, "lexeme_queries": lexemes, "frequencies": rows_of_words}
    query = shared.execute(
        "select knowledge_internal.candidate_query(jsonb_populate_record("
        "null::knowledge_internal.question, %s), 200000, null, %s)::text",
        [Jsonb(words | {"candidate_weights": weights}), effort],
    )
    assert query.fetchall() == [(drawn,)]

"""Each leg fills its pool, however few rows a filter leaves."""

from collections.abc import Iterator
from itertools import pairwise

import psycopg
import pytest
from psycopg.types.json import Jsonb
from searching import answer, search

from conftest import Connection, Server, copy_of

KINDS = ["note", "task", "decision", "transcript"]
QUERY = [1, -1, 0.5, 0, 0, 0.25, -0.5, 1]
COLLECTIONS = ["archive", "knowledge"]


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

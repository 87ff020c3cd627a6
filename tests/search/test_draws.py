"""Queries whose first candidates do not match: the text leg draws again until it has the rows."""

import pytest
from psycopg.types.json import Jsonb

from conftest import Connection

COMMON = 4_000
QUESTION = '"beta alpha"'


@pytest.fixture(scope="module")
def common_words(shared: Connection) -> Connection:
    """Many short chunks with both words, and one long chunk with them in the order asked for."""
    shared.execute("truncate public.knowledge_documents, public.knowledge_chunks")
    shared.execute(
        "insert into public.knowledge_chunks (content)"
        " select 'alpha beta ' || number from generate_series(1, %s) as row (number)",
        [COMMON],
    )
    shared.execute(
        "insert into public.knowledge_chunks (content)"
        " select 'beta alpha ' || string_agg('filler' || number, ' ')"
        "   from generate_series(1, 300) as word (number)"
    )
    shared.execute("analyze public.knowledge_chunks")
    shared.execute("select public.refresh_knowledge_statistics()")
    return shared


@pytest.mark.module("insight")
def test_candidates_without_a_match_are_followed_by_more(common_words: Connection) -> None:
    explained, hits = common_words.execute(
        "select explained #>> '{text,strategy}', explained -> 'hits'"
        "  from public.explain_hybrid_search(%s) as explained",
        [Jsonb({"query_text": QUESTION})],
    ).fetchone() or ("", [])
    assert explained != "candidates"
    assert [hit["matched_terms"] for hit in hits] == [["beta", "alpha"]]


@pytest.mark.parametrize(
    ("chunks", "with_word", "drawn"),
    [
        (200_000, 40_000, "'a' & 'b' & 'c' & ( 'a^2' | 'b^2' | 'c^2' )"),
        (1_000_000, 300_000, "'a^1' & 'b^1' & 'c'"),
    ],
)
def test_four_common_words_are_drawn_by_the_three_rarest(
    shared: Connection, chunks: int, with_word: int, drawn: str
) -> None:
    query = shared.execute(
        "select knowledge_internal.candidate_query("
        "         jsonb_populate_record("
        "           null::knowledge_internal.query_weights, jsonb_build_object("
        "             'lexemes', '{a,b,c,d}'::text[], 'weights', '{1,1,1,1}'::int[],"
        "             'document_frequencies', array_fill(%(with_word)s::float8, '{4}'),"
        "             'document_count', %(chunks)s::integer"
        "           )"
        "         ),"
        "         null, 1"
        "       )::text",
        {"chunks": chunks, "with_word": with_word},
    ).fetchone()
    assert query == (drawn,)

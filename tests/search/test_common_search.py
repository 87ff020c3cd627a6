"""The common search and the general one: two statements for the same answer.

A search of one list in a large corpus is answered by common_search, every other one by the
statement of hybrid_search_knowledge_chunks itself. A search that is traced, as by
explain_hybrid_search, is always answered by the second. In the same way, a question of plain words
is read by plain_reading, every other one by full_reading.
"""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

Row = dict[str, Any]
Connection = psycopg.Connection[Row]
OWNERS = (UUID(int=1), UUID(int=2))
SCORES = ("rrf_score", "similarity", "text_score", "confidence")

# A corpus of 3,000 chunks, which is not small. 19 in 20 are public, 19 in 20 are documents; one in
# 300 has a ticket, one in 20 has no embedding.
FILL = """
insert into public.knowledge_chunks
       (id, content, embedding, knowledge_type, visibility, owner_id, allowed_groups, metadata)
select ('00000000-0000-0000-0000-' || lpad(row.number::text, 12, '0'))::uuid,
       (
         select string_agg(
                  (array['word', 'alpha', 'beta', 'gamma', 'runs'])[1 + (random() * 8)::integer],
                  ' '
                ) || ' ' || string_agg(
                  'word' || (random() * random() * 500)::integer || case
                    when random() < 0.02 then '-part' || (random() * 50)::integer else '' end,
                  ' '
                )
           from generate_series(1, 20)
          where row.number > 0
       ),
       case when row.number % 20 <> 0 then (
         select array_agg(random() - 0.5)::extensions.vector
           from generate_series(1, 3)
          where row.number > 0
       ) end,
       case when row.number % 20 = 1 then 'note' else 'document' end,
       case when row.number % 20 = 2 then 'private' else 'public' end,
       ('00000000-0000-0000-0000-00000000000' || 1 + row.number % 3)::uuid,
       case when row.number % 5 = 0 then array['red'] end,
       jsonb_build_object('ticket', row.number % 300 = 7, 'year', 2000 + row.number % 4)
  from generate_series(1, 3000) as row (number)
"""


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> Iterator[Connection]:
    """A connection to the corpus with statistics."""
    with psycopg.connect(shared_dsn, autocommit=True, row_factory=dict_row) as connection:
        connection.execute("select setseed(0.3)")
        connection.execute(FILL.encode())
        connection.execute("vacuum analyze public.knowledge_chunks")
        connection.execute("select public.refresh_knowledge_statistics()")
        yield connection


words = st.one_of(
    st.integers(0, 500).map("word{}".format),
    st.integers(0, 20).map("word{}".format),
    st.sampled_from(["-word3", "or", '"word1 word2"', "wrod7", "the", "word5-part9", "partt"]),
)
questions = st.lists(words, min_size=0, max_size=8).map(" ".join)
embeddings = st.lists(st.sampled_from([-1.0, -0.4, 0.3, 0.9]), min_size=3, max_size=3).map(str)
optional = {
    "match_count": st.sampled_from([1, 10, 60]),
    "match_threshold": st.sampled_from([-1, 0.5, 0.99]),
    "vector_weight": st.sampled_from([0.5, 2.0]),
    "text_weight": st.sampled_from([0.3, 3.0]),
    "filter_type": st.sampled_from(["note", "document", "task"]),
    "search_mode": st.sampled_from(["simple", "phrase"]),
    "pool_size": st.sampled_from([1, 20, 200]),
    "rrf_k": st.sampled_from([1, 10]),
    "filters": st.sampled_from(
        [
            '{"ticket": true}',
            '{"year": 2001}',
            '[{"field": "metadata.year", "op": "gte", "value": 2002}]',
            '[{"field": "collection", "op": "ne", "value": "artifacts"}]',
            '[{"field": "owner_id", "op": "ne", "value": "00000000-0000-0000-0000-000000000001"}]',
        ]
    ),
    "viewer_id": st.sampled_from([str(owner) for owner in OWNERS]),
    "viewer_groups": st.sampled_from([["red"], ["blue"]]),
    "public_only": st.just(True),
    "match_offset": st.sampled_from([1, 15, 500]),
    "snippet": st.just(True),
    "on_bad_embedding": st.just("text"),
    "prefix_last": st.just(True),
}
arguments = st.builds(
    lambda question, given: {**question, **given},
    st.one_of(
        st.fixed_dictionaries({"query_text": questions, "query_embedding": embeddings}),
        st.fixed_dictionaries({"query_text": questions.filter(str.strip)}),
        st.fixed_dictionaries({"query_embedding": embeddings}),
    ),
    st.builds(
        lambda fusion, given, names: {
            "fusion": fusion,
            **{name: value for name, value in given.items() if name in names},
        },
        st.sampled_from(["rrf", "auto", "relative_score"]),
        st.fixed_dictionaries(optional),
        st.sets(st.sampled_from(sorted(optional)), max_size=4),
    ),
)


def search(connection: Connection, given: Row, tracing: str) -> list[Row]:
    casts = {"query_embedding": "::extensions.vector", "filters": "::jsonb", "viewer_id": "::uuid"}
    call = ", ".join(f"{name} => %({name})s{casts.get(name, '')}" for name in given)
    with connection.transaction():
        connection.execute(
            "select set_config('knowledge_internal.tracing', %s, true)", [tracing], prepare=False
        )
        rows: list[Row] = connection.execute(
            f"select * from public.hybrid_search_knowledge_chunks({call})".encode(), given
        ).fetchall()
        return rows


@settings(deadline=None, max_examples=100)
@given(arguments)
def test_both_statements_return_the_same_rows(corpus: Connection, given: Row) -> None:
    common, general = (search(corpus, given, tracing) for tracing in ("off", "on"))
    for row in (*common, *general):
        for name in SCORES:
            row[name] = row[name] and pytest.approx(row[name], rel=1e-12)
    assert common == general


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"query_text": None},
        {"query_embedding": None},
        {"filter_type": "document"},
        {"viewer_id": str(OWNERS[0])},
        {"viewer_groups": ["red"]},
        {"public_only": True},
        {"filters": '{"ticket": true}'},
        {"filter_type": "note"},
        {"snippet": True},
        {"filters": '[{"field": "collection", "op": "ne", "value": "artifacts"}]'},
    ],
    ids=json.dumps,
)
def test_the_common_search_answers(corpus: Connection, given: Row) -> None:
    assert how_answered(corpus, given) == "common"


@pytest.mark.parametrize(
    "given",
    [
        {"query_text": '"word3 absent"'},
        {"query_text": '"word3 alpha" word17', "pool_size": 200},
        {"query_text": "word3 word4", "pool_size": 1000},
        {"filter_type": "note", "pool_size": 200},
        {"filters": '{"ticket": true}', "query_text": '"word3 absent"'},
        {"filters": '[{"field": "metadata.year", "op": "gte", "value": 2003}]', "pool_size": 1000},
        {"query_text": "absent"},
        {"match_offset": 999},
    ],
    ids=json.dumps,
)
def test_a_common_search_short_of_rows_never_runs_the_general_statement(
    corpus: Connection, given: Row
) -> None:
    question: Row = {"query_text": "word3 word17", "query_embedding": "[1,2,3]"}
    expected = search(corpus, {**question, **given}, "on")
    with corpus.transaction(force_rollback=True):
        corpus.execute("drop function knowledge_internal.aged_score")
        found = search(corpus, {**question, **given}, "off")
    assert [row["id"] for row in found] == [row["id"] for row in expected]


def test_a_question_is_not_read_when_no_row_passes_the_filter(corpus: Connection) -> None:
    question: Row = {"query_text": "word3", "query_embedding": "[1,2,3]"}
    private = {"filters": '{"visibility": "private"}'}
    with corpus.transaction(force_rollback=True):
        corpus.execute("drop function knowledge_internal.analyse_questions")
        assert search(corpus, {**question, **private, "viewer_groups": ["nobody"]}, "off") == []
        with pytest.raises(psycopg.errors.UndefinedFunction), corpus.transaction():
            search(corpus, {**question, **private, "viewer_id": str(OWNERS[0])}, "off")


@pytest.mark.parametrize(
    "given",
    [
        {"one_per_document": True},
        {"neighbor_window": 1},
        {"recency_half_life": 30},
        {"collections": ["knowledge"]},
    ],
    ids=json.dumps,
)
def test_the_general_search_answers(corpus: Connection, given: Row) -> None:
    assert how_answered(corpus, given) == "general"


def how_answered(connection: Connection, given: Row) -> str:
    question: Row = {
        "query_text": "word3 word17 word250",
        "query_embedding": "[1,2,3]",
        "match_threshold": -1,
    }
    with connection.transaction(force_rollback=True):
        connection.execute("drop function knowledge_internal.common_search")
        try:
            assert search(connection, {**question, **given}, "off")
        except psycopg.errors.UndefinedFunction:
            return "common"
    return "general"


plain_words = st.one_of(
    words, st.sampled_from(["word", "Words", "WORD", "Alpha,", "beta; ", "gamma?", "running", "a"])
)
plain_questions = st.lists(plain_words, max_size=8).map(" ".join)
READ = {
    "plain": "select to_jsonb(knowledge_internal.plain_reading(%s, 'english')) as read",
    "full": "select to_jsonb(knowledge_internal.full_reading("
    "%s, 'websearch', null, false, '{english}')) as read",
}


def reading(connection: Connection, kind: str, question: str) -> Row:
    row = connection.execute(READ[kind].encode(), [question]).fetchone()
    read: Row = (row and row["read"]) or {}
    # Their sum counts, not their order.
    read["coverage_weights"] = sorted(read.get("coverage_weights") or [])
    read["bonuses"] = {name: bonus for name, bonus in (read.get("bonuses") or {}).items() if bonus}
    return read


@settings(deadline=None, max_examples=100)
@given(plain_questions)
def test_plain_words_are_read_alike(corpus: Connection, question: str) -> None:
    plain = reading(corpus, "plain", question)
    if plain.get("lexemes"):
        assert plain == reading(corpus, "full", question)


@pytest.mark.parametrize(
    ("question", "is_plain"),
    [
        ("How are words running?", True),
        ("alpha, BETA: gamma!", True),
        ("alpha or beta", False),
        ("alpha -beta", False),
        ('"alpha beta"', False),
        ("word3", False),
        ("camelCase", False),
        ("café", False),
        ("cafe", False),
        ("fast", False),
        ("the", False),
    ],
)
def test_the_words_of_a_plain_question(corpus: Connection, question: str, is_plain: bool) -> None:
    with corpus.transaction(force_rollback=True):
        corpus.execute("insert into public.knowledge_chunks (content) values ('café')")
        if question == "fast":
            corpus.execute(
                "insert into public.knowledge_synonyms (term, synonym) values ('fast', 'quick')"
            )
        assert bool(reading(corpus, "plain", question).get("lexemes")) is is_plain

"""Quotes and backslashes: in string constants, whatever the session has set, and in lexemes."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conftest import Connect, Connection

DOCUMENT = {"external_key": "a", "title": "Orders", "document_date": "2024-01-31"}
CHUNKS = [
    {
        "content": "Error DS-7604: C++ code, 1,000 naïve calls.",
        "embedding": [1, 0, 0],
        "embedding_model": "m",
    },
    {
        "content": "东京 is written without spaces. See .NET and FooBar.",
        "embedding": [0, 1, 0],
        "embedding_model": "m",
    },
]
STORE = "select chunks_added from public.upsert_knowledge_document(%s, %s)"
READ = "select content, content_tsv::text from public.knowledge_chunks order by 1"
CALLS = [
    """select content, match_type, matched_terms, snippet
         from public.hybrid_search_knowledge_chunks(
                query_embedding => '[1,0,0]', query_text => '"C++ code" DS-7604 -zebra or 东京',
                filters => '{"year": 2024}', snippet => true,
                formulations => '[{"query_text": "foobar"}]')""",
    """select content from public.search_knowledge_chunks_fulltext(
                query_text => 'ds7604', search_mode => 'simple')""",
    """select content from public.search_knowledge_chunks_fulltext(
                query_text => 'without spaces', search_mode => 'phrase')""",
]
EXPLAINED = """select public.explain_hybrid_search(
                 '{"query_text": "DS-7604", "query_embedding": [1,0,0]}') #> '{text,lexemes}'"""


def answers(connection: Connection, *further: str) -> list[Any]:
    connection.execute(STORE, [json.dumps(DOCUMENT), json.dumps(CHUNKS)])
    return [connection.execute(READ).fetchall()] + [
        connection.execute(call.encode()).fetchall() for call in (*CALLS, *further)
    ]


def set_otherwise(connection: Connection) -> Connection:
    connection.execute("set standard_conforming_strings = off")
    connection.execute("set escape_string_warning = off")
    return connection


def test_a_session_without_standard_strings_has_the_same_answers(
    connect: Connect, modules: tuple[str, ...]
) -> None:
    further = [EXPLAINED] if "insight" in modules else []
    expected = answers(connect(), *further)
    connect().execute("truncate public.knowledge_documents, public.knowledge_chunks")
    other = set_otherwise(connect())
    assert answers(other, *further) == expected
    assert other.execute("show standard_conforming_strings").fetchall() == [("off",)]


@pytest.mark.module("insight")
def test_a_session_without_standard_strings_reads_the_health(database: Connection) -> None:
    set_otherwise(database).execute("select public.knowledge_search_health()")
    assert database.execute("show standard_conforming_strings").fetchall() == [("off",)]


@pytest.mark.parametrize("schema", ["public", "knowledge_internal"])
def test_a_function_with_a_backslash_sets_how_it_is_read(database: Connection, schema: str) -> None:
    rows = database.execute(
        rb"""select procedure.oid::regprocedure::text
              from pg_proc as procedure
             where procedure.pronamespace = %s::regnamespace
               and procedure.prolang in (
                     select oid from pg_language where lanname in ('sql', 'plpgsql')
                   )
               and regexp_replace(
                     regexp_replace(procedure.prosrc, '--[^\n]*', '', 'g'),
                     $$\m[EU]&?'[^']*'$$, '', 'g'
                   ) like '%%\\%%'
               and 'standard_conforming_strings=on' <> all (
                     coalesce(procedure.proconfig, '{}')
                   )""",
        [schema],
    ).fetchall()
    assert rows == []


@given(lexeme=st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1))
@example(lexeme="\\")
@example(lexeme="E'\\'")
def test_any_lexeme_can_be_asked_for(shared: Connection, lexeme: str) -> None:
    ((is_found,),) = shared.execute(
        "select array_to_tsvector(array[%(lexeme)s])"
        "       @@ knowledge_internal.quoted_lexeme(%(lexeme)s)::tsquery",
        {"lexeme": lexeme},
    ).fetchall()
    assert is_found

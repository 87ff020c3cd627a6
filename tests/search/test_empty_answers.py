"""explain_empty_knowledge_search: an answer without hits says why, and names nothing hidden."""

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from searching import answer

from conftest import Connect, Connection

pytestmark = pytest.mark.module("insight")

ME, OTHER = ("00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b")
INSERT = """
insert into public.knowledge_chunks
  (content, embedding, collection, knowledge_type, language, document_date, owner_id, visibility,
   metadata)
values (%s, %s::extensions.vector, %s, %s, %s, %s, %s, %s, %s)
"""
ROWS = [
    ("alpha beta", "[1,0,0]", "guides", "note", "english", "2026-01-10", ME, "private", "search"),
    ("gamma", "[0,1,0]", "guides", "decision", "english", "2026-02-20", None, "public", "billing"),
    ("secret", "[0,0,1]", "payroll", "task", "german", "2030-03-03", OTHER, "private", "salaries"),
]


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    for *columns, team in ROWS:
        knowledge.execute(INSERT, [*columns, Jsonb({"team": team, "year": 2024})])
    knowledge.execute(
        "update public.knowledge_chunks set metadata = metadata || '{\"clearance\": 9}'"
        " where content = 'secret'"
    )
    return knowledge


def why(connection: Connection, **arguments: Any) -> Any:
    return answer(connection, "explain_empty_knowledge_search", **arguments)


def test_an_empty_database_says_that_nothing_is_stored(knowledge: Connection) -> None:
    reason = why(knowledge, query_text="alpha")
    assert reason["reason"] == "nothing_stored"
    assert "second-brain ingest" in reason["message"]


REASONS: list[tuple[dict[str, Any], str, str]] = [
    ({"collections": ["guide"]}, "collection", 'did you mean "guides"?'),
    ({"collections": ["x"]}, "collection", 'they have "guides", "payroll"'),
    ({"filter_type": "transcript"}, "filter", "knowledge_type"),
    (
        {"filters": {"tem": "search"}},
        "filter",
        'filters.tem: no visible row has metadata.tem; did you mean "team"?',
    ),
    ({"filters": {"xyz": 1}}, "filter", 'has metadata.xyz; known are "'),
    ({"filters": {"langauge": "german"}}, "filter", 'did you mean "language"?'),
    ({"filters": {"team": "serch"}}, "filter", 'did you mean "search"?'),
    ({"filters": {"year": "2024"}}, "filter", "did you mean 2024?"),
    (
        {"filters": [{"field": "metadata.tem", "op": "exists", "value": True}]},
        "filter",
        'did you mean "team"?',
    ),
    ({"filters": {"language": "germn"}}, "filter", 'did you mean "german"?'),
    ({"filters": {"source_id": "no such"}}, "filter", "source_id"),
    ({"date_from": "2031-01-01"}, "filter", '"2026-01-10" to "2030-03-03"'),
    ({"filters": {"team": "billing", "language": "german"}}, "filters_together", "passes all"),
    ({"query_text": "zebra"}, "no_words", '"zebra"'),
    ({"query_text": "?!"}, "no_searchable_words", "stop words"),
    ({"query_text": "-alpha"}, "no_searchable_words", "excluded words"),
    ({"query_text": "alpha gamma", "search_mode": "simple"}, "words_not_together", "websearch"),
    ({"match_offset": 5}, "offset", "total_count is 1"),
    (
        {"query_text": None, "query_embedding": "[1,1,0]", "match_threshold": 0.9},
        "threshold",
        "0.7071",
    ),
]


def test_the_reason_and_the_remedy(corpus: Connection) -> None:
    assert why(corpus, query_text="alpha") is None
    for arguments, reason, said in REASONS:
        found = why(corpus, **{"query_text": "alpha", **arguments})
        assert found["reason"] == reason, arguments
        assert said in found["message"], found["message"]


def test_rows_without_an_embedding(knowledge: Connection) -> None:
    knowledge.execute("insert into public.knowledge_chunks (content) values ('alpha')")
    assert why(knowledge, query_embedding="[1,0,0]")["reason"] == "no_embedding"


@pytest.mark.parametrize(
    "arguments",
    [
        {"collections": ["payrol"]},
        {"filters": {"clearence": 9}},
        {"filters": {"team": "salarie"}},
        {"filter_type": "task"},
        {"filters": {"language": "germn"}},
        {"date_from": "2027-01-01"},
        {"query_text": "secret"},
        {"query_embedding": "[0,0,1]", "match_threshold": 0.5, "query_text": None},
    ],
    ids=str,
)
def test_nothing_is_named_that_the_viewer_may_not_see(
    corpus: Connection, arguments: dict[str, Any]
) -> None:
    """The answer is that of a database without the hidden rows."""
    asked = {"query_text": "zebra", **arguments, "viewer_id": ME}
    with_hidden = why(corpus, **asked)
    corpus.execute("delete from public.knowledge_chunks where content = 'secret'")
    assert why(corpus, **asked) == with_hidden


@pytest.mark.parametrize("viewer", [{"viewer_id": ME}, {"public_only": True}], ids=str)
def test_hidden_documents_are_counted_for_operators_only(
    knowledge: Connection, viewer: dict[str, Any]
) -> None:
    before = why(knowledge, query_text="alpha", **viewer)
    knowledge.execute(INSERT, [*ROWS[2][:-1], Jsonb({})])
    assert why(knowledge, query_text="alpha", **viewer) == before
    assert before["reason"] == "not_visible"
    assert before.keys() == {"reason", "message"}
    empty = answer(knowledge, "explain_hybrid_search", query_text="alpha", **viewer)["empty"]
    assert empty["hidden_documents"] == 1
    assert "1 document is private" in empty["message"]


def test_an_owner_filter_bounds_what_is_named(corpus: Connection) -> None:
    owner = {"field": "owner_id", "op": "eq", "value": ME}
    typo = {"field": "metadata.team", "op": "eq", "value": "salaries"}
    found = why(corpus, query_text="alpha", filters=[owner, typo])
    assert (found["reason"], found["known"]) == ("filter", ['"search"'])


def test_users_and_visitors_ask_for_themselves(connect: Connect) -> None:
    owner = connect()
    for *columns, team in ROWS:
        owner.execute(INSERT, [*columns, Jsonb({"team": team})])
    owner.execute("grant execute on function public.explain_public_empty_knowledge_search to anon")
    ask = 'select public.explain_{}_empty_knowledge_search(\'{{"query_text": "secret"}}\')'
    user = connect("authenticated", uid=ME)
    row = user.execute(ask.format("my").encode()).fetchone()
    assert row is not None
    assert row[0]["reason"] == "no_words"
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="viewer_id"):
        user.execute(
            "select public.explain_my_empty_knowledge_search(%s)", [Jsonb({"viewer_id": OTHER})]
        )
    row = connect("anon").execute(ask.format("public").encode()).fetchone()
    assert row is not None
    assert row[0]["reason"] == "no_words"

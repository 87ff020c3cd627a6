"""explain_empty_knowledge_search: an answer without hits says why, and names nothing hidden."""

from typing import Any

import pytest
from filtering import one
from searching import answer, refused, store

from conftest import Connect, Connection

pytestmark = pytest.mark.module("insight")

ME, OTHER = ("00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b")
ROWS: list[dict[str, Any]] = [
    {
        **{"content": "alpha beta", "embedding": [1, 0, 0], "collection": "guides"},
        **{"knowledge_type": "note", "document_date": "2026-01-10", "owner_id": ME},
        "metadata": {"team": "search", "year": 2024},
    },
    {
        **{"content": "gamma", "embedding": [0, 1, 0], "collection": "guides"},
        **{"knowledge_type": "decision", "document_date": "2026-02-20", "visibility": "public"},
        "metadata": {"team": "billing", "year": 2024},
    },
    {
        **{"content": "secret", "embedding": [0, 0, 1], "collection": "payroll"},
        **{"knowledge_type": "task", "document_date": "2030-03-03", "owner_id": OTHER},
        **{"language": "german", "metadata": {"team": "salaries", "year": 2024, "clearance": 9}},
    },
]


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    store(knowledge, *ROWS)
    return knowledge


def why(connection: Connection, **arguments: Any) -> Any:
    return answer(connection, "explain_empty_knowledge_search", **arguments)


def test_an_empty_database_says_that_nothing_is_stored(knowledge: Connection) -> None:
    reason = why(knowledge, query_text="alpha")
    assert reason["reason"] == "nothing_stored"
    assert "second-brain ingest" in reason["message"]


NO_TEM = 'filters.tem: no visible row has metadata.tem; did you mean "team"?'
FAR = {"query_text": None, "query_embedding": "[1,1,0]"}
REASONS: list[tuple[dict[str, Any], str, str]] = [
    ({"collections": ["guide"]}, "collection", 'did you mean "guides"?'),
    ({"collections": ["x"]}, "collection", 'they have "guides", "payroll"'),
    ({"filter_type": "transcript"}, "filter", "knowledge_type"),
    ({"filters": {"tem": "search"}}, "filter", NO_TEM),
    ({"filters": {"xyz": 1}}, "filter", 'has metadata.xyz; known are "'),
    ({"filters": {"langauge": "german"}}, "filter", 'did you mean "language"?'),
    ({"filters": {"team": "serch"}}, "filter", 'did you mean "search"?'),
    ({"filters": {"year": "2024"}}, "filter", "did you mean 2024?"),
    ({"filters": one("metadata.tem", "exists", True)}, "filter", 'did you mean "team"?'),
    ({"filters": {"language": "germn"}}, "filter", 'did you mean "german"?'),
    ({"filters": {"source_id": "no such"}}, "filter", "source_id"),
    ({"date_from": "2031-01-01"}, "filter", '"2026-01-10" to "2030-03-03"'),
    ({"filters": {"team": "billing", "language": "german"}}, "filters_together", "passes all"),
    ({"query_text": "zebra"}, "no_words", '"zebra"'),
    ({"query_text": "?!"}, "no_searchable_words", "stop words"),
    ({"query_text": "-alpha"}, "no_searchable_words", "excluded words"),
    ({"query_text": "alpha gamma", "search_mode": "simple"}, "words_not_together", "websearch"),
    ({"match_offset": 5}, "offset", "total_count is 1"),
    ({**FAR, "match_threshold": 0.9}, "threshold", "0.7071"),
]


def test_the_reason_and_the_remedy(corpus: Connection) -> None:
    assert why(corpus, query_text="alpha") is None
    for arguments, reason, said in REASONS:
        found = why(corpus, **{"query_text": "alpha", **arguments})
        assert found["reason"] == reason, arguments
        assert said in found["message"], found["message"]


TWO = " has 2 dimensions, the stored embeddings have 3"


@pytest.mark.parametrize(
    ("arguments", "notes"),
    [
        ({"query_text": "zebra -secret"}, {"excluded": ["secret"]}),
        ({"query_text": "zebra NOT gnu"}, {"ignored": ["NOT"]}),
        (
            {"query_text": "zebra", "query_embedding": "[1,0]", "on_bad_embedding": "text"},
            {"embedding": f"ignored: query_embedding{TWO}"},
        ),
        ({"query_text": "zebra -secret", "collections": ["x"]}, {"excluded": ["secret"]}),
        ({"query_text": "zebra"}, None),
    ],
    ids=str,
)
def test_an_empty_answer_has_the_notes_of_its_search(
    corpus: Connection, arguments: dict[str, Any], notes: dict[str, Any] | None
) -> None:
    assert why(corpus, **arguments).get("notes") == notes


def test_rows_without_an_embedding(knowledge: Connection) -> None:
    store(knowledge, "alpha")
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
    store(knowledge, ROWS[2])
    assert why(knowledge, query_text="alpha", **viewer) == before
    assert before["reason"] == "not_visible"
    assert before.keys() == {"reason", "message"}
    empty = answer(knowledge, "explain_hybrid_search", query_text="alpha", **viewer)["empty"]
    assert empty["hidden_documents"] == 1
    assert "1 document is private" in empty["message"]


def test_an_owner_filter_bounds_what_is_named(corpus: Connection) -> None:
    filters = one("owner_id", "eq", ME) + one("metadata.team", "eq", "salaries")
    found = why(corpus, query_text="alpha", filters=filters)
    assert (found["reason"], found["known"]) == ("filter", ['"search"'])


def test_users_and_visitors_ask_for_themselves(connect: Connect) -> None:
    owner = connect()
    store(owner, *ROWS)
    owner.execute("grant execute on function public.explain_public_empty_knowledge_search to anon")
    mine, public = (f"explain_{whose}_empty_knowledge_search" for whose in ("my", "public"))
    user = connect("authenticated", uid=ME)
    for connection, function in ((user, mine), (connect("anon"), public)):
        assert answer(connection, function, query_text="secret")["reason"] == "no_words"
    assert "viewer_id" in refused(user, mine, viewer_id=OTHER)

"""explain_missing_knowledge_chunk: why a chunk is not returned, and where it stands."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import searching
from searching import answer, call, store_document

from conftest import Connection
from second_brain.errors import InvalidInputError
from second_brain.services.postgres import PostgresProvider

pytestmark = pytest.mark.module("insight")

Arguments = dict[str, Any]

WANTED = "00000000-0000-0000-0000-0000000000aa"
MINE, OTHER = uuid4(), uuid4()
SEARCH = "hybrid_search_knowledge_chunks"
VECTOR = "[1,0,0]"
GERMAN = {"field": "language", "op": "eq", "value": "german"}


def explain(connection: Connection, arguments: Arguments, **wanted: Any) -> Any:
    asked = {**arguments, **(wanted or {"chunk_id": WANTED})}
    return answer(connection, "explain_missing_knowledge_chunk", **asked)


def found(connection: Connection, arguments: Arguments) -> list[str]:
    return [str(row["id"]) for row in call(connection, SEARCH, **arguments)]


def causes(explained: Any) -> list[str]:
    return [one["cause"] for one in explained["causes"]]


def store(connection: Connection, content: str, embedding: str | None = None, **row: Any) -> None:
    columns = {"id": uuid4(), "content": content, "embedding": embedding, "visibility": "public"}
    searching.store(connection, {**columns, **row})


@pytest.fixture
def database(knowledge: Connection) -> Connection:
    """Stand in for the fixture of a database per test."""
    return knowledge


@pytest.fixture
def filled(database: Connection) -> Connection:
    """Ninety-nine chunks about rivers, from near to far, with shorter and longer texts."""
    for number in range(99):
        store(database, f"river {'stone ' * number}", f"[1,{(number + 1) / 50},0]")
    return database


PRIVATE = {"visibility": "private"}
SALES = {"field": "metadata.team", "op": "eq", "value": "sales"}
# Of a chunk: its columns, what is asked, the cause, the argument, and what finds the chunk.
RESTRICTIONS: list[tuple[Arguments, Arguments, str, str, Any]] = [
    ({"knowledge_type": "task"}, {"filter_type": "note"}, "filter", "filter_type", "task"),
    (
        {"document_date": "2026-01-01"},
        {"date_from": "2026-02-01"},
        "date",
        "date_from",
        "2026-01-01",
    ),
    ({"document_date": "2026-03-01"}, {"date_to": "2026-02-01"}, "date", "date_to", "2026-03-01"),
    ({}, {"date_to": "2026-02-01"}, "date", "date_to", None),
    ({"collection": "memory"}, {"collections": ["x"]}, "collection", "collections", ["memory"]),
    (PRIVATE, {"public_only": True}, "permission", "public_only", False),
    (PRIVATE | {"owner_id": OTHER}, {"viewer_id": MINE}, "permission", "viewer_id", OTHER),
    (
        PRIVATE | {"allowed_groups": ["staff"]},
        {"viewer_id": MINE},
        "permission",
        "viewer_id",
        {"viewer_groups": ["staff"]},
    ),
    (
        {"metadata": {"team": "search"}, "language": "german"},
        {"filters": [GERMAN, SALES]},
        "filter",
        "filters[1]",
        {"filters": [GERMAN]},
    ),
    (
        {"metadata": {"team": "a"}},
        {"filters": {"team": "b"}},
        "filter",
        "filters.team",
        {"filters": {}},
    ),
]


@pytest.mark.parametrize(("row", "given", "cause", "argument", "allowing"), RESTRICTIONS)
def test_a_restriction_is_named_without_which_the_chunk_is_found(
    database: Connection, row: Arguments, given: Arguments, cause: str, argument: str, allowing: Any
) -> None:
    store(database, "blue whale", VECTOR, id=WANTED, **row)
    asked = {"query_text": "whale", "query_embedding": VECTOR, **given}
    assert found(database, asked) == []
    (explained,) = explain(database, asked)["causes"]
    assert (explained["cause"], explained["argument"]) == (cause, argument)
    instead = allowing if isinstance(allowing, dict) else {argument: allowing}
    assert found(database, {**asked, **instead}) == [WANTED]


def test_only_the_failing_conditions_are_named(database: Connection) -> None:
    store(database, "blue whale", id=WANTED, metadata={"team": "search"}, language="german")
    asked = {"query_text": "whale", "filters": [SALES, GERMAN, SALES], "filter_type": "note"}
    explained = explain(database, asked)
    assert [one["argument"] for one in explained["causes"]] == [
        "filters[0]",
        "filters[2]",
        "filter_type",
    ]
    assert explained["text"]["rank"] == 1


def test_a_rank_is_that_among_the_rows_that_meet_the_other_conditions(database: Connection) -> None:
    store(database, "whale", "[1,0.5,0]", id=WANTED, knowledge_type="task", language="german")
    store(database, "whale", VECTOR, knowledge_type="note", language="german")
    store(database, "whale", VECTOR, knowledge_type="note", language="english")
    asked = {"query_embedding": VECTOR, "filters": [GERMAN], "filter_type": "note"}
    assert explain(database, asked)["vector"]["rank"] == 2


@pytest.mark.parametrize("viewer", [{"viewer_id": MINE}, {"public_only": True}])
def test_nothing_but_that_is_said_of_a_chunk_that_the_viewer_may_not_see(
    database: Connection, viewer: Arguments
) -> None:
    store(database, "blue whale", VECTOR, id=WANTED, visibility="private")
    asked = {"query_text": "river", "query_embedding": VECTOR, "match_threshold": 1.0, **viewer}
    explained = explain(database, asked)
    assert causes(explained) == ["permission"]
    assert explained["vector"] == {"rank": None, "similarity": None, "is_run": True}
    assert explained["text"] == {"rank": None, "score": None, "is_run": True}
    database.execute("update public.knowledge_chunks set visibility = 'public'")
    assert found(database, asked) == [WANTED]


def test_a_superseded_chunk_must_become_active(database: Connection) -> None:
    store(database, "blue whale", id=WANTED, status="superseded")
    explained = explain(database, {"query_text": "whale"})
    assert causes(explained) == ["status"]
    database.execute("update public.knowledge_chunks set status = 'active'")
    assert found(database, {"query_text": "whale"}) == [WANTED]


def test_a_chunk_without_an_embedding_must_be_embedded(database: Connection) -> None:
    store(database, "blue whale", id=WANTED)
    asked = {"query_embedding": VECTOR}
    explained = explain(database, asked)
    assert causes(explained) == ["no_embedding"]
    database.execute("update public.knowledge_chunks set embedding = '[1,0,0]'")
    assert found(database, asked) == [WANTED]


def test_a_similarity_below_the_threshold_is_said(filled: Connection) -> None:
    store(filled, "blue whale", "[0.31,0,0.95]", id=WANTED)
    asked = {"query_embedding": VECTOR, "match_threshold": 0.9, "match_count": 200}
    assert WANTED not in found(filled, asked)
    explained = explain(filled, asked)
    assert causes(explained) == ["threshold"]
    assert explained["causes"][0]["reason"] == "its similarity is 0.3102"
    assert WANTED in found(filled, {**asked, "match_threshold": 0.31})


def test_a_rank_beyond_the_pool_is_said_for_both_legs(filled: Connection) -> None:
    # At rank 61 of the vector leg and about that of the text leg.
    store(filled, f"river {'stone ' * 59}", "[1,1.21,0]", id=WANTED)
    asked = {"query_text": "river", "query_embedding": VECTOR, "fusion": "rrf", "pool_size": 20}
    assert WANTED not in found(filled, asked)
    explained = explain(filled, asked)
    assert causes(explained) == ["pool", "pool"]
    assert explained["vector"]["rank"] == 61
    assert 55 <= explained["text"]["rank"] <= 65
    deepest = max(explained[leg]["rank"] for leg in ("vector", "text"))
    assert causes(explain(filled, {**asked, "pool_size": deepest})) == ["fusion"]


def test_other_hits_can_have_higher_scores(filled: Connection) -> None:
    store(filled, "whale", "[1,0.61,0]", id=WANTED)
    asked = {"query_embedding": VECTOR}
    explained = explain(filled, asked)
    assert causes(explained) == ["fusion"]
    assert explained["place"] == 31
    assert explained["causes"][0]["reason"].startswith("its place is 31: its score is ")
    assert found(filled, {**asked, "match_count": 31})[-1] == WANTED


def test_a_hit_of_an_earlier_page_is_there(filled: Connection) -> None:
    store(filled, "whale", VECTOR, id=WANTED)
    asked = {"query_embedding": VECTOR, "match_offset": 20}
    explained = explain(filled, asked)
    assert causes(explained) == ["earlier_page"]
    assert explained["place"] == 1


@pytest.mark.module("arrange")
def test_age_can_be_the_reason(filled: Connection) -> None:
    store(filled, "whale", VECTOR, id=WANTED, document_date="2001-01-01")
    asked = {"query_embedding": VECTOR, "recency_half_life": 30.0}
    explained = explain(filled, asked)
    assert causes(explained) == ["recency"]
    assert explained["place"] > 10
    assert found(filled, {**asked, "recency_half_life": None})[0] == WANTED


@pytest.mark.parametrize(
    ("query_text", "search_mode", "cause", "part"),
    [
        ("whale -blue", "websearch", "excluded_words", "-blue"),
        ('whale -"blue whale"', "websearch", "excluded_words", '-"blue whale"'),
        ('whale "white whale"', "websearch", "required_words", '"white whale"'),
        ("whale white", "simple", "required_words", "white"),
        ("whale blue", "phrase", "required_words", "whale blue"),
    ],
)
def test_words_that_are_excluded_or_required_are_named(
    database: Connection, query_text: str, search_mode: str, cause: str, part: str
) -> None:
    store(database, "blue whale", id=WANTED)
    store(database, "white whale")
    store(database, "whale blue whale white")
    asked = {"query_text": query_text, "search_mode": search_mode}
    assert WANTED not in found(database, asked)
    explained = explain(database, asked)
    assert [(one["cause"], one["parts"]) for one in explained["causes"]] == [(cause, [part])]


def test_a_chunk_can_have_no_word_of_the_query(filled: Connection) -> None:
    store(filled, "whale", id=WANTED)
    explained = explain(filled, {"query_text": "river"})
    assert causes(explained) == ["no_words"]
    assert explained["text"] == {"rank": None, "score": None, "is_run": True}


def test_without_the_excluded_word_it_may_still_lack_a_word_of_the_query(
    database: Connection,
) -> None:
    store(database, "blue whale", id=WANTED)
    store(database, "blue river")
    explained = explain(database, {"query_text": "river -blue"})
    assert causes(explained) == ["excluded_words", "no_words"]


def document(connection: Connection, key: str) -> UUID:
    return store_document(connection, uuid4(), external_key=key, visibility="public")


def test_another_chunk_of_its_document_can_be_shown_for_it(database: Connection) -> None:
    book = document(database, "book")
    store(database, "blue whale", VECTOR, document_id=book, chunk_index=0)
    store(database, "grey whale", "[1,1,0]", id=WANTED, document_id=book, chunk_index=1)
    asked = {"query_embedding": VECTOR, "one_per_document": True}
    explained = explain(database, asked)
    assert causes(explained) == ["grouped"]
    assert explained["causes"][0]["reason"] == "its document shows another chunk, at place 1"
    assert WANTED in found(database, {**asked, "one_per_document": False})
    assert explain(database, asked, document_key="book")["is_found"] is True


def test_a_chunk_that_no_leg_finds_is_not_said_to_be_merged(database: Connection) -> None:
    book = document(database, "book")
    store(database, "blue whale", VECTOR, document_id=book, chunk_index=0)
    store(database, "river", "[0,1,0]", id=WANTED, document_id=book, chunk_index=1)
    asked = {"query_embedding": VECTOR, "match_threshold": 0.5, "one_per_document": True}
    assert causes(explain(database, asked)) == ["threshold"]


def test_of_a_document_the_nearest_chunk_is_explained(database: Connection) -> None:
    book = document(database, "book")
    store(database, "river", "[0,1,0]", document_id=book, chunk_index=0)
    store(database, "blue whale", VECTOR, id=WANTED, document_id=book, chunk_index=1)
    asked = {"query_embedding": VECTOR, "query_text": "whale", "filter_type": "task"}
    explained = explain(database, asked, document_key="book")
    assert explained["chunk"]["id"] == WANTED
    assert explained["chunk"]["document_key"] == "book"


def test_several_causes_are_named_together(filled: Connection) -> None:
    store(filled, "blue whale", "[0.31,0,0.95]", id=WANTED, knowledge_type="task")
    asked = {"query_embedding": VECTOR, "match_threshold": 0.9, "filter_type": "document"}
    explained = explain(filled, asked)
    assert causes(explained) == ["filter", "threshold", "pool"]
    assert explained["vector"]["rank"] == 100
    assert WANTED in found(filled, {"query_embedding": VECTOR, "match_count": 100})


def test_a_rank_that_no_pool_reaches_is_counted(database: Connection) -> None:
    database.execute(
        "insert into public.knowledge_chunks (content, embedding, collection)"
        " select 'river whale', format('[1,%s,0]', number / 1000.0)::extensions.vector, 'knowledge'"
        "   from generate_series(1, 1100) as number"
    )
    store(database, "river", "[1,2,0]", id=WANTED)
    explained = explain(database, {"query_embedding": VECTOR, "query_text": "river whale"})
    assert causes(explained) == ["pool", "pool"]
    assert [explained[leg]["rank"] for leg in ("vector", "text")] == [1101, 1101]
    assert explained["text"]["score"] > 0


def test_a_hit_is_said_to_be_found_with_its_ranks(database: Connection) -> None:
    store(database, "blue whale", VECTOR, id=WANTED)
    explained = explain(database, {"query_text": "whale", "query_embedding": VECTOR})
    assert (explained["is_found"], explained["place"], explained["causes"]) == (True, 1, [])
    assert (explained["vector"]["rank"], explained["text"]["rank"]) == (1, 1)


@pytest.mark.parametrize(("collection", "rank"), [("knowledge", 2), ("memory", 1)])
def test_a_rank_is_that_in_the_list_of_the_collection(
    database: Connection, collection: str, rank: int
) -> None:
    store(database, "a whale", "[1,1,0]", id=WANTED, collection=collection)
    store(database, "blue whale", VECTOR)
    asked = {"query_text": "whale", "query_embedding": VECTOR, "collections": ["", "memory"]}
    explained = explain(database, asked)
    assert (explained["is_found"], explained["causes"]) == (True, [])
    assert explained["vector"]["rank"] == rank


def test_what_is_not_stored_is_said(database: Connection) -> None:
    explained = explain(database, {"query_text": "whale"}, document_key="nowhere")
    assert causes(explained) == ["not_stored"]
    assert explained["chunk"] is None


def test_a_document_is_named_by_key_id_or_url(database: Connection) -> None:
    url = "https://example.org/whales"
    for number, (key, address) in enumerate(((WANTED, url), ("empty", None), ("book", None)), 1):
        given = {"external_key": key, "title": f"Title {number}", "source_url": address}
        store_document(database, UUID(int=number), **given)
    store(database, "blue whale", VECTOR, id=UUID(int=21), document_id=UUID(int=1))
    # A key may look like an id: it names the document, not the chunk with this id.
    store(database, "blue whale", VECTOR, id=WANTED, document_id=UUID(int=3))
    whale = {"query_text": "whale"}
    for name in (WANTED, url, str(UUID(int=1)), str(UUID(int=21))):
        explained = explain(database, whale, document_key=name)
        assert explained["document"] == {
            "id": str(UUID(int=1)),
            "external_key": WANTED,
            "title": "Title 1",
            "source_url": url,
        }
        assert (explained["is_found"], explained["chunk"]["id"]) == (True, str(UUID(int=21)))
    explained = explain(database, whale, document_key="empty")
    assert (explained["document"]["title"], explained["chunk"]) == ("Title 2", None)
    assert explained["causes"] == [{"cause": "not_stored", "reason": "the document has no chunk"}]


def test_it_needs_a_chunk_or_a_document(database: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="exactly one of chunk_id"):
        explain(database, {"query_text": "whale"}, chunk_id=WANTED, document_key="book")


def test_a_provider_asks_as_the_service_role(database: Connection) -> None:
    store(database, "blue whale", VECTOR, id=WANTED)
    database.execute("set local role service_role")
    provider = PostgresProvider(database)
    explained = provider.explain_missing([1, 0, 0], "river", chunk_id=WANTED, filter_type="task")
    assert [one["argument"] for one in explained["causes"]] == ["filter_type"]
    with pytest.raises(InvalidInputError, match="chunk_id must be a UUID"):
        provider.explain_missing(None, "whale", chunk_id="book")
    shared = PostgresProvider(database, multi_tenant=True)
    with pytest.raises(InvalidInputError, match="viewer_id is missing"):
        shared.explain_missing(None, "whale", chunk_id=WANTED)


@pytest.mark.parametrize(
    "query", ["river", "river stone", '"river stone" lru_cache', "cache flood"]
)
def test_a_text_rank_and_score_are_those_of_the_search(filled: Connection, query: str) -> None:
    for number in range(30):
        words = ("lru_cache " * (number % 3), "flood " * (number % 4), "stone river " * number)
        store(filled, f"cache {''.join(words)}", language="english" if number % 2 else "german")
    asked = {"query_text": query, "match_count": 200, "pool_size": 200}
    hits = sorted(call(filled, SEARCH, **asked), key=lambda row: int(row["text_rank"]))
    assert len(hits) >= 20
    for hit in hits[::10]:
        standing = explain(filled, {"query_text": query}, chunk_id=hit["id"])["text"]
        assert standing == {"rank": hit["text_rank"], "score": hit["text_score"], "is_run": True}

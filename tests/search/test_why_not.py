"""explain_missing_knowledge_chunk: why a chunk is not returned, and the change that returns it."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb
from searching import taken

from conftest import Connect, Connection
from second_brain.errors import InvalidInputError
from second_brain.services.postgres import PostgresProvider

pytestmark = pytest.mark.module("insight")

Arguments = dict[str, Any]
Explanation = dict[str, Any]

WANTED = "00000000-0000-0000-0000-0000000000aa"
MINE, OTHER = uuid4(), uuid4()
VECTOR = "[1,0,0]"

_TYPES = {"query_embedding": "extensions.vector", "filters": "jsonb", "collections": "text[]"}


def call(function: str, arguments: Arguments) -> str:
    given = ", ".join(
        f"{name} => %({name})s" + (f"::{_TYPES[name]}" if name in _TYPES else "")
        for name in arguments
    )
    return f"public.{function}({given})"


def adapted(arguments: Arguments) -> Arguments:
    return {
        name: Jsonb(value) if name == "filters" and value is not None else value
        for name, value in arguments.items()
    }


def explain(connection: Connection, arguments: Arguments, **wanted: Any) -> Explanation:
    given = taken(
        "explain_missing_knowledge_chunk", {**arguments, **(wanted or {"chunk_id": WANTED})}
    )
    row = connection.execute(
        f"select {call('explain_missing_knowledge_chunk', given)}", given
    ).fetchone()
    assert row is not None
    explained: Explanation = row[0]
    return explained


def found(connection: Connection, arguments: Arguments) -> list[str]:
    rows = connection.execute(
        f"select id::text from {call('hybrid_search_knowledge_chunks', arguments)}",
        adapted(arguments),
    )
    return [id_ for (id_,) in rows]


def causes(explained: Explanation) -> list[str]:
    return [one["cause"] for one in explained["causes"]]


def store(connection: Connection, content: str, embedding: str | None = None, **row: Any) -> str:
    given = {
        "id": str(uuid4()),
        "content": content,
        "embedding": embedding,
        "collection": "knowledge",
        "visibility": "public",
        **row,
    }
    columns = ", ".join(given)
    values = ", ".join(
        f"%({name})s" + ("::extensions.vector" if name == "embedding" else "") for name in given
    )
    connection.execute(
        f"insert into public.knowledge_chunks ({columns}) values ({values})",
        {name: Jsonb(value) if name == "metadata" else value for name, value in given.items()},
    )
    return str(given["id"])


def applied(connection: Connection, arguments: Arguments, explained: Explanation) -> list[str]:
    """Search with the change that is proposed."""
    change = explained["change"]
    assert change["is_verified"] is True
    assert change["row"] is None
    return found(connection, {**arguments, **change["arguments"]})


@pytest.fixture
def filled(database: Connection) -> Connection:
    """Ninety-nine chunks about rivers, from near to far, with shorter and longer texts."""
    for number in range(99):
        store(database, f"river {'stone ' * number}", f"[1,{(number + 1) / 50},0]")
    return database


@pytest.mark.parametrize(
    ("row", "given", "cause", "argument"),
    [
        ({"knowledge_type": "task"}, {"filter_type": "note"}, "filter", "filter_type"),
        ({"document_date": "2026-01-01"}, {"date_from": "2026-02-01"}, "date", "date_from"),
        ({"document_date": "2026-03-01"}, {"date_to": "2026-02-01"}, "date", "date_to"),
        ({}, {"date_to": "2026-02-01"}, "date", "date_to"),
        ({"collection": "memory"}, {"collections": ["history"]}, "collection", "collections"),
        ({"visibility": "private"}, {"public_only": True}, "permission", "public_only"),
        (
            {"visibility": "private", "owner_id": OTHER},
            {"viewer_id": MINE},
            "permission",
            "viewer_id",
        ),
        (
            {"visibility": "private", "allowed_groups": ["staff"]},
            {"viewer_id": MINE},
            "permission",
            "viewer_id",
        ),
        (
            {"metadata": {"team": "search"}, "language": "german"},
            {
                "filters": [
                    {"field": "language", "op": "eq", "value": "german"},
                    {"field": "metadata.team", "op": "eq", "value": "sales"},
                ]
            },
            "filter",
            "filters[1]",
        ),
        ({"metadata": {"team": "a"}}, {"filters": {"team": "b"}}, "filter", "filters.team"),
    ],
)
def test_a_restriction_is_named_and_its_change_returns_the_chunk(
    database: Connection, row: Arguments, given: Arguments, cause: str, argument: str
) -> None:
    store(database, "blue whale", VECTOR, id=WANTED, **row)
    asked = {"query_text": "whale", "query_embedding": VECTOR, **given}
    assert found(database, asked) == []
    explained = explain(database, asked)
    assert [(one["cause"], one["argument"]) for one in explained["causes"]] == [(cause, argument)]
    assert applied(database, asked, explained) == [WANTED]


def test_only_the_failing_conditions_are_left_out(database: Connection) -> None:
    store(database, "blue whale", id=WANTED, metadata={"team": "search"}, language="german")
    kept = {"field": "language", "op": "eq", "value": "german"}
    asked = {
        "query_text": "whale",
        "filters": [kept, {"field": "metadata.team", "op": "eq", "value": "sales"}],
        "filter_type": "note",
    }
    explained = explain(database, asked)
    assert explained["change"]["arguments"] == {"filters": [kept], "filter_type": None}


def test_a_chunk_that_nobody_may_see_must_change_itself(database: Connection) -> None:
    store(database, "blue whale", id=WANTED, visibility="private")
    asked = {"query_text": "whale", "viewer_id": MINE}
    explained = explain(database, asked)
    assert causes(explained) == ["permission"]
    assert explained["change"]["row"] == {"visibility": "public"}
    database.execute("update public.knowledge_chunks set visibility = 'public'")
    assert found(database, asked) == [WANTED]


def test_a_superseded_chunk_must_become_active(database: Connection) -> None:
    store(database, "blue whale", id=WANTED, status="superseded")
    explained = explain(database, {"query_text": "whale"})
    assert causes(explained) == ["status"]
    assert explained["change"]["row"] == {"status": "active"}
    database.execute("update public.knowledge_chunks set status = 'active'")
    assert found(database, {"query_text": "whale"}) == [WANTED]


def test_a_chunk_without_an_embedding_must_be_embedded(database: Connection) -> None:
    store(database, "blue whale", id=WANTED)
    asked = {"query_embedding": VECTOR}
    explained = explain(database, asked)
    assert causes(explained) == ["no_embedding"]
    assert explained["change"]["row"] == {"embedding": "missing"}
    database.execute("update public.knowledge_chunks set embedding = '[1,0,0]'")
    assert found(database, asked) == [WANTED]


def test_the_threshold_is_lowered_as_little_as_needed(filled: Connection) -> None:
    store(filled, "blue whale", "[0.31,0,0.95]", id=WANTED)
    asked = {"query_embedding": VECTOR, "match_threshold": 0.9, "match_count": 200}
    assert WANTED not in found(filled, asked)
    explained = explain(filled, asked)
    assert causes(explained) == ["threshold"]
    assert explained["change"]["arguments"] == {"match_threshold": 0.31}
    assert WANTED in applied(filled, asked, explained)


def test_a_pool_is_enlarged_to_the_rank_in_both_legs(filled: Connection) -> None:
    # At rank 61 of the vector leg and about that of the text leg, it wins the fusion.
    store(filled, f"river {'stone ' * 59}", "[1,1.21,0]", id=WANTED)
    asked = {"query_text": "river", "query_embedding": VECTOR, "fusion": "rrf", "pool_size": 20}
    assert WANTED not in found(filled, asked)
    explained = explain(filled, asked)
    assert causes(explained) == ["pool", "pool"]
    assert explained["vector"]["rank"] == 61
    assert 55 <= explained["text"]["rank"] <= 65
    assert WANTED in applied(filled, asked, explained)
    place = explained["change"]["place"]
    assert applied(filled, asked, explained)[place - 1] == WANTED


def test_other_hits_with_higher_scores_need_a_longer_page(filled: Connection) -> None:
    store(filled, "whale", "[1,0.61,0]", id=WANTED)
    asked = {"query_embedding": VECTOR}
    explained = explain(filled, asked)
    assert causes(explained) == ["fusion"]
    assert explained["place"] == 31
    assert explained["change"]["arguments"] == {"match_count": 31}
    assert WANTED not in found(filled, {**asked, "match_count": 30})
    assert WANTED in applied(filled, asked, explained)


def test_a_hit_of_an_earlier_page_is_there(filled: Connection) -> None:
    store(filled, "whale", VECTOR, id=WANTED)
    asked = {"query_embedding": VECTOR, "match_offset": 20}
    explained = explain(filled, asked)
    assert causes(explained) == ["earlier_page"]
    assert applied(filled, asked, explained)[0] == WANTED


def test_age_can_be_the_reason(filled: Connection) -> None:
    store(filled, "whale", VECTOR, id=WANTED, document_date="2001-01-01")
    asked = {"query_embedding": VECTOR, "recency_half_life": 30.0}
    explained = explain(filled, asked)
    assert causes(explained) == ["recency"]
    assert applied(filled, asked, explained)[0] == WANTED


@pytest.mark.parametrize(
    ("query_text", "search_mode", "cause", "part", "change"),
    [
        ("whale -blue", "websearch", "excluded_words", "-blue", {"query_text": "whale"}),
        (
            'whale -"blue whale"',
            "websearch",
            "excluded_words",
            '-"blue whale"',
            {"query_text": "whale"},
        ),
        (
            'whale "white whale"',
            "websearch",
            "required_words",
            '"white whale"',
            {"query_text": "whale white whale"},
        ),
        ("whale white", "simple", "required_words", "white", {"search_mode": "websearch"}),
        ("whale blue", "phrase", "required_words", "whale blue", {"search_mode": "websearch"}),
    ],
)
def test_words_that_are_excluded_or_required_are_named(
    database: Connection,
    query_text: str,
    search_mode: str,
    cause: str,
    part: str,
    change: Arguments,
) -> None:
    store(database, "blue whale", id=WANTED)
    store(database, "white whale")
    store(database, "whale blue whale white")
    asked = {"query_text": query_text, "search_mode": search_mode}
    assert WANTED not in found(database, asked)
    explained = explain(database, asked)
    assert [(one["cause"], one["parts"]) for one in explained["causes"]] == [(cause, [part])]
    assert explained["change"]["arguments"] == change
    assert WANTED in applied(database, asked, explained)


def test_a_chunk_without_a_word_of_the_query_is_found_by_its_rarest_word(
    filled: Connection,
) -> None:
    store(filled, "river narwhal", id=WANTED)
    asked = {"query_text": "mountain"}
    explained = explain(filled, asked)
    assert causes(explained) == ["no_words"]
    assert explained["change"]["arguments"] == {"query_text": "mountain narwhal"}
    assert applied(filled, asked, explained) == [WANTED]


def test_without_the_excluded_word_it_may_still_lack_a_word_of_the_query(
    database: Connection,
) -> None:
    store(database, "blue whale", id=WANTED)
    store(database, "blue river")
    asked = {"query_text": "river -blue"}
    explained = explain(database, asked)
    assert causes(explained) == ["excluded_words", "no_words"]
    assert explained["change"]["arguments"] == {"query_text": "river whale"}
    assert WANTED in applied(database, asked, explained)


def document(connection: Connection, key: str) -> UUID:
    row = connection.execute(
        "insert into public.knowledge_documents (external_key, visibility) values (%s, 'public')"
        " returning id",
        [key],
    ).fetchone()
    assert row is not None
    id_: UUID = row[0]
    return id_


def test_another_chunk_of_its_document_can_be_shown_for_it(database: Connection) -> None:
    book = document(database, "book")
    store(database, "blue whale", VECTOR, document_id=book, chunk_index=0)
    store(database, "grey whale", "[1,1,0]", id=WANTED, document_id=book, chunk_index=1)
    asked = {"query_embedding": VECTOR, "one_per_document": True}
    explained = explain(database, asked)
    assert causes(explained) == ["grouped"]
    assert WANTED in applied(database, asked, explained)
    assert explain(database, asked, document_key="book")["is_found"] is True


def test_of_a_document_the_nearest_chunk_is_explained(database: Connection) -> None:
    book = document(database, "book")
    store(database, "river", "[0,1,0]", document_id=book, chunk_index=0)
    store(database, "blue whale", VECTOR, id=WANTED, document_id=book, chunk_index=1)
    asked = {"query_embedding": VECTOR, "query_text": "whale", "filter_type": "task"}
    explained = explain(database, asked, document_key="book")
    assert explained["chunk"]["id"] == WANTED
    assert explained["chunk"]["document_key"] == "book"


def test_causes_that_meet_are_changed_together(filled: Connection) -> None:
    store(filled, "blue whale", "[0.31,0,0.95]", id=WANTED, knowledge_type="task")
    asked = {"query_embedding": VECTOR, "match_threshold": 0.9, "filter_type": "document"}
    explained = explain(filled, asked)
    assert causes(explained)[:2] == ["filter", "threshold"]
    assert WANTED in applied(filled, asked, explained)


def test_a_rank_that_no_pool_reaches_is_counted_and_its_document_searched_alone(
    database: Connection,
) -> None:
    book = document(database, "book")
    database.execute(
        "insert into public.knowledge_chunks (content, embedding, collection)"
        " select 'river', format('[1,%s,0]', number / 1000.0)::extensions.vector, 'knowledge'"
        "   from generate_series(1, 1100) as number"
    )
    store(database, "blue whale", "[1,2,0]", id=WANTED, document_id=book)
    asked = {"query_embedding": VECTOR}
    explained = explain(database, asked)
    assert explained["vector"]["rank"] == 1101
    assert list(explained["change"]["arguments"]) == ["filters"]
    assert applied(database, asked, explained) == [WANTED]


def test_a_hit_is_said_to_be_found_with_its_ranks(database: Connection) -> None:
    store(database, "blue whale", VECTOR, id=WANTED)
    explained = explain(database, {"query_text": "whale", "query_embedding": VECTOR})
    assert (explained["is_found"], explained["place"], explained["causes"]) == (True, 1, [])
    assert (explained["vector"]["rank"], explained["text"]["rank"]) == (1, 1)
    assert explained["change"] is None


def test_what_is_not_stored_is_said(database: Connection) -> None:
    explained = explain(database, {"query_text": "whale"}, document_key="nowhere")
    assert causes(explained) == ["not_stored"]
    assert explained["chunk"] is None


def test_it_needs_a_chunk_or_a_document(database: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="exactly one of chunk_id"):
        explain(database, {"query_text": "whale"}, chunk_id=WANTED, document_key="book")


@pytest.mark.parametrize("role", ["anon", "authenticated"])
def test_users_may_not_ask(connect: Connect, role: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        explain(connect(role), {"query_text": "whale"})


def test_a_provider_asks_as_the_service_role(database: Connection, connect: Connect) -> None:
    store(database, "blue whale", VECTOR, id=WANTED)
    provider = PostgresProvider(connect("service_role"))
    explained = provider.explain_missing([1, 0, 0], "river", chunk_id=WANTED, filter_type="task")
    assert [one["argument"] for one in explained["causes"]] == ["filter_type"]
    with pytest.raises(InvalidInputError, match="chunk_id must be a UUID"):
        provider.explain_missing(None, "whale", chunk_id="book")
    shared = PostgresProvider(connect("service_role"), multi_tenant=True)
    with pytest.raises(InvalidInputError, match="viewer_id is missing"):
        shared.explain_missing(None, "whale", chunk_id=WANTED)


@pytest.mark.parametrize(
    "query", ["river", "river stone", '"river stone" lru_cache', "cache flood"]
)
def test_a_counted_place_is_that_among_all_scores(filled: Connection, query: str) -> None:
    for number in range(30):
        words = ("lru_cache " * (number % 3), "flood " * (number % 4), "stone river " * number)
        store(filled, f"cache {''.join(words)}", language="english" if number % 2 else "german")
    rows = filled.execute(
        """
        select (place.text_rank, place.text_score)::text,
               (scored.text_rank, scored.text_score)::text
          from knowledge_internal.analyse_query(%s, 'websearch', null, false) as analysis
         cross join lateral (
                 select array_agg(id) as ids
                   from public.knowledge_chunks where content_tsv @@ analysis.matching_query
               ) as matching
         cross join lateral knowledge_internal.exact_scores(
                 matching.ids, 1000, analysis.lexemes, analysis.scored_weights,
                 analysis.readings, analysis.mean_length, analysis.bonuses
               ) as best
         cross join lateral unnest(best.ids, best.scores)
                 with ordinality as scored (id, text_score, text_rank)
         cross join lateral knowledge_internal.counted_place(matching.ids, scored.id, analysis)
                    as place
        """,
        [query],
    ).fetchall()
    assert len(rows) >= 20
    assert [counted for counted, _ in rows] == [scored for _, scored in rows]

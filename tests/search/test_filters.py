"""Filters by example, and names of earlier systems, ranges and short forms in them.

`test_filters_reference.py` draws filters on every field with every op.
"""

from datetime import date, timedelta
from typing import Any
from uuid import UUID

import pytest
from filtering import ME, YOU, check_filters, one, passing, store_alphas
from psycopg.types.json import Jsonb
from searching import NORTH, answer, chunk, insert, numbers, search, store_document, today

from conftest import Connection
from second_brain.filters import FilterBuilder, FilterExpression, conditions

ONE_DAY = timedelta(days=1)


def test_every_field_is_a_column_of_the_rows_that_a_sample_reads(knowledge: Connection) -> None:
    missing = knowledge.execute(
        "select jsonb_object_keys(knowledge_internal.filter_columns()) except select attname"
        " from pg_attribute where attrelid = 'knowledge_internal.chunk_rows'::regclass"
    ).fetchall()
    # Read through the document's id, and by the words.
    assert {name for (name,) in missing} == {"external_key", "text"}
    store_alphas(knowledge, {})
    for name in ("created_at", "updated_at"):
        assert passing(knowledge, one(name, "is_null"), date_to="2026-01-31") == set()


def test_excluded_collections_are_compared_only_where_they_have_chunks(
    knowledge: Connection,
) -> None:
    handbook = {"collection": "handbook", "owner_id": ME}
    store_alphas(knowledge, handbook, {"owner_id": YOU}, {"visibility": "public"})
    excluding = "select knowledge_internal.compile_filter(%s, null, null, null, false) is null"
    memory = one("collection", "ne", "memory")
    assert knowledge.execute(excluding, [Jsonb(memory)]).fetchone() == (True,)
    check_filters(
        knowledge,
        [
            (memory, {1, 2, 3}),
            (one("collection", "not_in", ["memory", "handbook"]), {2, 3}),
            (memory + one("collection", "ne", "handbook"), {2, 3}),
            (one("collection", "ne", None), {1, 2, 3}),
        ],
    )
    knowledge.execute(
        "update public.knowledge_chunks set collection = 'memory' where collection = 'handbook'"
    )
    assert knowledge.execute(excluding, [Jsonb(memory)]).fetchone() == (False,)
    assert passing(knowledge, memory) == {2, 3}
    assert passing(knowledge, memory, viewer_id=ME) == passing(knowledge, [], viewer_id=ME) - {1}


def test_a_source_is_given_by_its_id_or_its_name(knowledge: Connection) -> None:
    handbook, tickets = UUID(int=1), UUID(int=2)
    for source, name in ((handbook, "handbook"), (tickets, "it's")):
        insert(knowledge, "knowledge_sources", {"id": source, "name": name})
    store_alphas(knowledge, {"source_id": handbook}, {"source_id": tickets}, {})
    check_filters(
        knowledge,
        [
            ({"source_id": "handbook"}, {1}),
            (one("source_id", "in", ["handbook", str(tickets), None, "none"]), {1, 2, 3}),
            (one("source_id", "not_in", ["handbook", "it's"]), {3}),
            # An unknown name matches no row, as an unknown id does.
            (one("source_id", "eq", "Handbook"), set()),
            (one("source_id", "ne", "Handbook"), {1, 2, 3}),
        ],
    )


def test_the_largest_filter_is_answered(knowledge: Connection) -> None:
    store_alphas(knowledge, {"metadata": {"a": 1}}, {"metadata": {"a": "1000"}})
    listed = [*range(500), *map(str, range(500))]
    filters = one("metadata.a", "in", listed) + one("collection", "not_in", [*map(str, listed)])
    assert passing(knowledge, filters) == {1}
    for most in (100, 101):
        assert passing(knowledge, one("metadata.a", "in", listed[:most])) == {1}


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    yesterday, tomorrow = today(knowledge) - ONE_DAY, today(knowledge) + ONE_DAY
    for number, key in ((901, "read.md"), (902, "new.md")):
        store_document(knowledge, chunk(number), external_key=key, visibility="public")
    store_alphas(
        knowledge,
        {"metadata": {"team": "a", "expires": str(tomorrow)}, "document_id": chunk(901)},
        {"metadata": {"team": "b", "expires": str(yesterday)}, "document_id": chunk(902)},
        {"metadata": {"team": "b", "path": "src/a.py"}, "document_date": tomorrow},
        {"metadata": {"team": None, "path": "docs/a.md"}, "owner_id": ME},
        {"metadata": {}, "document_date": yesterday, "owner_id": YOU},
    )
    return knowledge


def test_groups_days_and_keys_keep_the_rows_that_they_say(corpus: Connection) -> None:
    not_expired = one("metadata.expires", "is_null") + one("metadata.expires", "gt", "today")
    check_filters(
        corpus,
        [
            ({"any": not_expired}, {1, 3, 4, 5}),
            ({"team": "b", "any": not_expired}, {3}),
            ({"any": [{"team": "a"}, {"team": "b", "path": "src/a.py"}]}, {1, 3}),
            (one("metadata.path", "starts_with", "%"), set()),
            (one("metadata.path", "contains_text", ".*"), set()),
            (one("document_date", "gt", "today"), {3}),
            (one("document_date", "lte", "now"), {5}),
            (one("created_at", "gte", "today"), {1, 2, 3, 4, 5}),
            (one("created_at", "gt", "now"), set()),
            (one("document_date", "between", ["today", str(today(corpus) + ONE_DAY)]), {3}),
            (one("id", "not_in", [str(chunk(1)), str(chunk(2))]), {3, 4, 5}),
            (one("external_key", "not_in", ["read.md", "nowhere.md"]), {2, 3, 4, 5}),
            (one("external_key", "in", ["nowhere.md"]), set()),
            (one("metadata.team", "eq", "a")[0], {1}),
            ({"id": "x"}, set()),
        ],
    )
    required = Jsonb({"any": [{"team": "a"}, {"team": "b"}]})
    assert passing(corpus, {"not": {"team": "a"}}, required_filters=required) == {2, 3}


def test_a_group_on_access_alone_binds_the_context_too(corpus: Connection) -> None:
    place = "update public.knowledge_chunks set document_id = %s, chunk_index = %s where id = %s"
    corpus.execute(place, [chunk(901), 0, chunk(5)])
    corpus.execute(place, [chunk(901), 1, chunk(1)])
    corpus.execute(
        "update public.knowledge_chunks set sensitivity = 'secret' where id = %s", [chunk(5)]
    )
    labels = {"any": one("sensitivity", "is_null") + one("sensitivity", "eq", "open")}
    asked = {"query_text": "alpha", "neighbor_window": 1}
    whole, bound = (
        {row["id"]: row["context"] for row in search(corpus, **asked, **filtered)}
        for filtered in ({}, {"filters": labels})
    )
    assert len(whole[chunk(1)]) > len(bound[chunk(1)])


@pytest.mark.module("insight")
def test_an_empty_answer_names_the_group_that_no_row_passes(corpus: Connection) -> None:
    filters = [{"team": "b"}, {"any": [{"team": "x"}, {"team": "y"}]}]
    told = answer(corpus, "explain_empty_knowledge_search", query_text="alpha", filters=filters)
    assert (told["reason"], told["argument"]) == ("filter", "filters[1].any")


def test_a_builder_makes_groups_of_expressions_dicts_and_builders() -> None:
    both = FilterBuilder().add_category("note").add_metadata("team", "a")
    later = FilterExpression("document_date", "gt", date(2026, 1, 31))
    built = FilterBuilder().add_group("any", both, later, {"team": "b"})
    built = built.add_group("not", FilterExpression("metadata.archived", "is_not_null"))
    of_both = one("knowledge_type", "eq", "note") + one("metadata.team", "eq", "a")
    assert conditions(built) == [
        {"any": [{"all": of_both}, *one("document_date", "gt", "2026-01-31"), {"team": "b"}]},
        {"not": {"field": "metadata.archived", "op": "is_not_null"}},
    ]


# Names of earlier systems, ranges and short forms.

WIKI = {"source_category": "wiki", "document_type": "txt"}
ROWS: list[dict[str, Any]] = [
    {"knowledge_type": "note", "document_date": "2026-01-01", "metadata": {"document_type": "md"}},
    {"knowledge_type": "task", "document_date": "2026-01-31", "metadata": {"document_type": "pdf"}},
    {"owner_id": ME, "chunk_index": 3, "metadata": {"document_type": "markdown", "a.b": [1]}},
    {"owner_id": YOU, "chunk_index": 7, "metadata": {"source_file": "a.md", "team": "search"}},
    {"document_date": "2026-02-01", "metadata": WIKI},
    {"created_at": "2026-01-31T23:59:59.999999Z", "metadata": {"document_type": "html"}},
    {"created_at": "2026-02-01T00:00:00Z", "metadata": {"": True, "author": {"by": 1}}},
]


@pytest.fixture
def rows(knowledge: Connection) -> Connection:
    store_alphas(knowledge, *ROWS)
    return knowledge


def test_a_filter_has_names_of_earlier_systems_ranges_and_short_forms(rows: Connection) -> None:
    check_filters(
        rows,
        [
            ({"artifact_type": "note"}, {1}),
            (one("artifact_type", "in", ["note", "task"]), {1, 2}),
            ({"document_type": "pdf"}, {2}),
            ({"document_type": "md"}, {1, 3}),
            (one("document_type", "in", ["text", "htm", "pdf"]), {2, 5, 6}),
            ([{"field": "document_type", "operator": "eq", "value": "pdf"}], {2}),
            (one("document_type", "not_in", ["md", "text"]), {2, 4, 6, 7}),
            (one("document_type", "ne", "htm"), {1, 2, 3, 4, 5, 7}),
            (one("document_type", "exists", False), {4, 7}),
            # By its own name, a key of metadata has the values that are stored.
            (one("metadata.document_type", "eq", "md"), {1}),
            ({"source_file": "a.md"}, {4}),
            (one("source_category", "eq", "wiki"), {5}),
            (one("time_range", "between", ["2026-01-01", "2026-01-31"]), {1, 2}),
            (one("date_range", "gt", "2026-01-01"), {2, 5}),
            ({"document_date": {"from": "2026-01-01", "to": "2026-01-31"}}, {1, 2}),
            ({"document_date": {"start": "2026-01-02", "end": None}}, {2, 5}),
            ({"time_range": {"gt": "2026-01-01", "lt": "2026-02-01"}}, {2}),
            ({"date_range": {"gte": "2026-01-31"}, "document_type": "pdf"}, {2}),
            ({"chunk_index": {"lt": 7, "from": 3}}, {3}),
            # A day is a whole one at the end of a range of times, for from and to.
            ({"created_at": {"from": "2026-01-31", "to": "2026-01-31"}}, {6}),
            ({"created_at": {"from": "2026-01-31", "end": "2026-02-01"}}, {6, 7}),
            ({"created_at": {"from": "2026-01-31", "to": "2026-01-31T12:00:00Z"}}, set()),
            ({"created_at": {"gte": "2026-01-31", "lte": "2026-01-31"}}, set()),
            ({"document_date": {"from": None, "to": None}}, {1, 2, 3, 4, 5, 6, 7}),
            ({"updated_at": {}}, {1, 2, 3, 4, 5, 6, 7}),
            # An object under a key of metadata is a value.
            ({"author": {"by": 1}}, {7}),
            ([{"team": "search"}, *one("owner_id", "eq", str(YOU))], {4}),
            ([*one("metadata.team", "exists"), {"owner_id": str(ME)}], set()),
            ([{"": True}, {"author": {"by": 1}}], {7}),
            ([{"document_type": "md"}, {"document_date": {"to": "2026-01-01"}}], {1}),
            ([{"knowledge_type": "note", "document_type": "markdown"}], {1}),
        ],
    )


@pytest.mark.module("insight")
def test_an_empty_answer_names_the_part_that_no_row_passes(rows: Connection) -> None:
    parts: list[tuple[Any, str]] = [
        ({"artifact_type": "transcript"}, "filters.artifact_type"),
        ([{"team": "search", "source_file": "b.md"}], "filters[0].source_file"),
        ([{"team": "search"}, {"updated_at": {"lt": "2001-01-01"}}], "filters[1].updated_at.lt"),
        ({"created_at": {"from": "2026-01-01", "to": "2025-01-01"}}, "filters.created_at.to"),
        ([{"team": "search"}, *one("document_type", "eq", "rst")], "filters[1]"),
    ]
    for filters, argument in parts:
        reason = answer(rows, "explain_empty_knowledge_search", query_text="alpha", filters=filters)
        assert reason["argument"] == argument


@pytest.mark.module("insight")
def test_a_missing_chunk_is_explained_by_the_part_that_leaves_it_out(rows: Connection) -> None:
    unmet = 'it does not meet {"op": "eq", "field": "artifact_type", "value": "task"}'
    parts: list[tuple[Any, str, str]] = [
        ({"document_type": "pdf"}, ".document_type", 'its document_type is not "pdf"'),
        ([{"team": "x"}], "[0].team", 'its team is not "x"'),
        ({"chunk_index": {"from": 9}}, ".chunk_index.from", 'is not {"from": 9}'),
        (one("artifact_type", "eq", "task"), "[0]", unmet),
        ({"chunk_index": {"gt": 3}}, ".chunk_index.gt", 'its chunk_index is not {"gt": 3}'),
    ]
    for filters, argument, reason in parts:
        asked = {"query_text": "alpha", "filters": filters, "chunk_id": chunk(1)}
        (cause,) = answer(rows, "explain_missing_knowledge_chunk", **asked)["causes"]
        assert cause["argument"] == f"filters{argument}"
        assert cause["reason"].endswith(reason)


@pytest.mark.module("arrange")
@pytest.mark.parametrize("value", ["md", "markdown"])
@pytest.mark.parametrize("key", ["op", "operator"])
def test_boosts_read_the_same_language(rows: Connection, key: str, value: str) -> None:
    boost = {"filters": [{"field": "document_type", key: "eq", "value": value}], "factor": 9}
    assert set(numbers(search(rows, query_embedding=NORTH, boosts=[boost])[:2])) == {1, 3}

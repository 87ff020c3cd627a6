"""Facts that end: valid_from and valid_until of rows, as_of, and documents that are superseded."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb
from searching import answer, call, search

from conftest import Connect, Connection
from corpora import store_document
from second_brain import KnowledgeWriter, PostgresProvider
from second_brain.database import migrations
from second_brain.database.migration_errors import MigrationError
from second_brain.errors import InvalidInputError
from second_brain.retrieval.answer import result
from support.properties import tried

pytestmark = pytest.mark.module("versions")

LONG_AGO, PAST, FUTURE = "2001-01-01", "2020-06-01", "2999-01-01"
SUPERSEDE = "supersede_knowledge_document"


def store(connection: Connection, key: str, *, text: str = "price", **document: Any) -> None:
    """Store a document of one chunk by the SQL function, in the connection's transaction."""
    connection.execute(
        "select public.upsert_knowledge_document(%s, %s)",
        [
            Jsonb({"external_key": key, "visibility": "public", **document}),
            Jsonb([{"content": f"{text} {key}"}]),
        ],
    )


def lasting(connection: Connection, key: str, start: str | None, end: str | None) -> None:
    bounds = {"valid_from": start, "valid_until": end}
    store(connection, key, metadata={name: one for name, one in bounds.items() if one})


def keys(rows: list[dict[str, Any]]) -> str:
    return " ".join(sorted(row["external_key"] for row in rows))


def found(connection: Connection, **arguments: Any) -> str:
    return keys(search(connection, query_text="price", **arguments))


def bounds(connection: Connection, key: str) -> Any:
    """Return the bounds of a document, which those of its chunk must equal."""
    rows = connection.execute(
        "select document.metadata, chunk.metadata from public.knowledge_documents as document"
        "  join public.knowledge_chunks as chunk on chunk.document_id = document.id"
        " where external_key = %s and status = 'active'",
        [key],
    ).fetchall()
    ((of_document, of_chunk),) = rows
    assert of_document == of_chunk
    return of_document.get("valid_from"), of_document.get("valid_until")


@pytest.fixture
def timed(knowledge: Connection) -> Connection:
    """Five documents: always, ended, not begun, and two versions of one."""
    lasting(knowledge, "always", None, None)
    lasting(knowledge, "ended", None, PAST)
    lasting(knowledge, "later", FUTURE, None)
    lasting(knowledge, "v1", LONG_AGO, "2026-01-31T12:00:00+02:00")
    lasting(knowledge, "v2", "2026-01-31T10:00:00Z", None)
    return knowledge


@pytest.mark.parametrize(
    ("asked", "keys_found"),
    [
        ({}, "always v2"),
        ({"as_of": "now"}, "always v2"),
        ({"as_of": None}, "always ended later v1 v2"),
        ({"as_of": "2000-01-01"}, "always ended"),
        ({"as_of": "2001-01-01T00:00:00Z"}, "always ended v1"),
        ({"as_of": "2020-06-01T00:00:00Z"}, "always v1"),
        ({"as_of": "2020-05-31T23:59:59.999999Z"}, "always ended v1"),
        ({"as_of": "2026-01-31T09:59:59.5Z"}, "always v1"),
        ({"as_of": "2026-01-31T11:00:00+01:00"}, "always v2"),
        ({"as_of": "infinity"}, "always later v2"),
        ({"as_of": "-infinity"}, "always ended"),
    ],
)
def test_a_search_returns_what_holds_at_a_time(
    timed: Connection, asked: dict[str, Any], keys_found: str
) -> None:
    assert found(timed, **asked) == keys_found
    for name in ("search_my_knowledge_chunks", "search_public_knowledge_chunks"):
        if name.startswith("search_my"):
            timed.execute("select set_config('request.jwt.claims', %s, true)", [CLAIMS])
        assert keys(call(timed, name, query_text="price", **asked)) == keys_found
    counted = answer(timed, "count_matching_knowledge_chunks", query_text="price", **asked)
    assert counted == len(keys_found.split())


def test_ended_rows_leave_both_ways_the_same_answer(timed: Connection) -> None:
    """The plain way and the other one, which each have statements of their own."""
    for pool in (1, 2, 50):
        for as_of in (datetime.now(UTC), datetime(2020, 7, 1, tzinfo=UTC)):
            asked = {"query_text": "the price", "pool_size": pool, "as_of": as_of.isoformat()}
            plain, second = (
                timed.execute(statement, [Jsonb(asked)]).fetchall()
                for statement in (
                    "select to_jsonb(hit) from jsonb_to_record(%s) as given"
                    "  (query_text text, pool_size integer, as_of timestamptz),"
                    "  public.hybrid_search_knowledge_chunks("
                    "    query_text => given.query_text, pool_size => given.pool_size,"
                    "    as_of => given.as_of) as hit",
                    "select to_jsonb(hit) from knowledge_internal.search("
                    "  knowledge_internal.given_arguments(%s)) as hit",
                )
            )
            assert plain == second
            assert plain


CLAIMS = '{"sub": "00000000-0000-0000-0000-000000000001", "role": "authenticated"}'


@pytest.mark.module("facets", "batch", "insight")
def test_every_other_search_tells_of_what_holds_now(timed: Connection) -> None:
    timed.execute("update public.knowledge_documents set knowledge_type = 'note'")
    for asked, number in (({}, 2), ({"as_of": None}, 5), ({"as_of": "2000-01-01"}, 2)):
        facets = call(
            timed, "facet_knowledge_chunks", query_text="price", facets=["knowledge_type"], **asked
        )
        assert [row["count"] for row in facets] == [number]
        batch = call(
            timed,
            "hybrid_search_knowledge_chunks_batch",
            queries=[{"query_text": "price", **asked}],
        )
        assert len(batch) == number
        explained = answer(timed, "explain_hybrid_search", query_text="price", **asked)
        assert len(explained["hits"]) == number
    ended = {"query_text": "price", "document_key": "ended"}
    for asked, reason in (
        ({}, "it ended on 2020-06-01T00:00:00+00:00"),
        ({"as_of": "2020-05-01"}, None),
        ({"as_of": None}, None),
    ):
        explained = answer(timed, "explain_missing_knowledge_chunk", **ended, **asked)
        assert explained["is_found"] is (reason is None)
        assert [one["reason"] for one in explained["causes"]] == ([reason] if reason else [])
    explained = answer(
        timed, "explain_missing_knowledge_chunk", query_text="price", document_key="later",
        filters={"knowledge_type": "task"},
    )  # fmt: skip
    assert [one["cause"] for one in explained["causes"]] == ["filter", "validity"]
    assert "starts on 2999" in explained["causes"][1]["reason"]


@pytest.mark.module("insight")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"query_text": "price ended"}, "the best of it ended on 2020-06-01"),
        ({"query_text": "price later"}, "the best of it starts on 2999-01-01"),
        ({"query_text": "zebra ended"}, "ended on"),
        ({"query_text": "ended", "filters": {"valid_until": "2020-06-01T00:00:00+00:00"}}, "ended"),
        ({"query_text": "later", "as_of": "2020-05-01T00:00:00Z"}, "starts on"),
        ({"query_text": "later", "match_offset": 3}, "starts on"),
        ({"query_text": "zebra"}, None),
        ({"query_text": "price"}, None),
        ({"query_text": "price", "match_offset": 30}, None),
        ({"query_text": "later", "as_of": None}, None),
        ({"query_text": "ended", "filter_type": "task"}, None),
    ],
    ids=str,
)
def test_an_empty_answer_names_the_time(
    timed: Connection, asked: dict[str, Any], said: str | None
) -> None:
    asked = {"search_mode": "simple", **asked}
    if "zebra" in asked["query_text"]:
        asked["search_mode"] = "websearch"
    why = answer(timed, "explain_empty_knowledge_search", **asked)
    if said is None:
        assert why is None or why["reason"] != "validity"
        return
    assert (why["reason"], why["argument"]) == ("validity", "as_of")
    assert said in why["message"]


TIMES = [datetime(2025, 1, 1, tzinfo=UTC) + timedelta(hours=hours) for hours in range(6)]
SPAN = st.tuples(*[st.none() | st.sampled_from(TIMES)] * 2)


@given(
    spans=st.lists(SPAN, min_size=1, max_size=8),
    as_of=st.none() | st.sampled_from(TIMES),
    moved=st.none() | SPAN,
)
@tried(40)
def test_a_search_agrees_with_a_comparison_in_python(
    knowledge: Connection,
    spans: list[tuple[datetime | None, datetime | None]],
    as_of: datetime | None,
    moved: tuple[datetime | None, datetime | None] | None,
) -> None:
    def written(span: tuple[datetime | None, datetime | None]) -> dict[str, Any]:
        return dict(
            zip(("valid_from", "valid_until"), (one and one.isoformat() for one in span),
                strict=True)
        )  # fmt: skip

    def in_order(span: tuple[datetime | None, datetime | None]) -> bool:
        return None in span or span[0] <= span[1]  # type: ignore[operator]

    spans = [*filter(in_order, spans)]
    with knowledge.transaction(force_rollback=True):
        for number, span in enumerate(spans):
            store(knowledge, f"d{number}", metadata=written(span))
        if moved is not None and spans and in_order(moved):
            spans[0] = moved
            store(knowledge, "d0", metadata=written(moved))
        expected = [
            f"d{number}"
            for number, (start, end) in enumerate(spans)
            if as_of is None or ((start or as_of) <= as_of and (end is None or as_of < end))
        ]
        assert found(knowledge, as_of=as_of) == " ".join(sorted(expected))


@pytest.mark.parametrize(
    ("metadata", "stored"),
    [
        ({"valid_from": "2019-01-31"}, ("2019-01-31T00:00:00+00:00", PAST)),
        ({"valid_until": "2026-01-31 12:00:00.50+01"}, (None, "2026-01-31T11:00:00.5+00:00")),
        ({"valid_until": None}, (None, None)),
        ({"team": "sales"}, (None, PAST)),
    ],
)
def test_a_bound_is_stored_in_utc_and_stays_until_it_is_given_as_null(
    knowledge: Connection, metadata: dict[str, Any], stored: tuple[str | None, str | None]
) -> None:
    lasting(knowledge, "a", None, PAST)
    store(knowledge, "a", metadata=metadata)
    assert bounds(knowledge, "a") == tuple(
        one and one.replace(PAST, "2020-06-01T00:00:00+00:00") if one == PAST else one
        for one in stored
    )


@pytest.mark.parametrize("wrong", ["summer", "31.12.2026", "2026-02-30", 2026, True, [], {}, ""])
@pytest.mark.parametrize("bound", ["valid_from", "valid_until"])
def test_a_bound_that_is_no_time_is_refused(knowledge: Connection, wrong: Any, bound: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=rf"metadata\.{bound} must be"):
        store(knowledge, "a", metadata={bound: wrong})


def test_an_end_before_the_start_is_refused(knowledge: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="must not be before valid_from"):
        lasting(knowledge, "a", FUTURE, PAST)


def test_a_chunk_has_bounds_of_its_own_within_those_of_its_document(knowledge: Connection) -> None:
    lasting(knowledge, "a", LONG_AGO, FUTURE)
    for end, keys_found in ((PAST, ""), ("2998-01-01", "a"), (None, "a")):
        knowledge.execute(
            "update public.knowledge_chunks set metadata = metadata || %s",
            [Jsonb({"valid_until": end})],
        )
        assert found(knowledge) == keys_found
    assert found(knowledge, as_of="2999-06-01") == ""


@pytest.mark.parametrize(
    ("of_document", "of_chunk"),
    [
        ({"valid_until": PAST}, {"valid_from": FUTURE}),
        ({"valid_from": FUTURE}, {"valid_until": PAST}),
        ({}, {"valid_from": FUTURE, "valid_until": PAST}),
    ],
)
def test_bounds_that_leave_a_chunk_no_time_are_refused_when_it_is_written(
    knowledge: Connection, of_document: dict[str, Any], of_chunk: dict[str, Any]
) -> None:
    written = {"content": "price", "metadata": of_chunk}
    upsert = "select public.upsert_knowledge_document(%s, %s)"
    document = Jsonb({"external_key": "a", "metadata": of_document})
    with (
        pytest.raises(psycopg.errors.InvalidParameterValue, match="a chunk holds only while its"),
        knowledge.transaction(),
    ):
        knowledge.execute(upsert, [document, Jsonb([written])])
    # A document may end before a part of it starts, and is stored again as it is.
    start = {"content": "price", "metadata": {"valid_from": FUTURE}}
    for metadata in ({}, {"valid_until": PAST}, {}):
        document = Jsonb({"external_key": "a", "metadata": metadata})
        knowledge.execute(upsert, [document, Jsonb([start])])
    knowledge.execute("update public.knowledge_chunks set embedding_model = 'other'")
    assert found(knowledge) == found(knowledge, as_of="2999-06-01") == ""


def test_a_superseded_document_ends_when_the_next_one_starts(knowledge: Connection) -> None:
    for key in ("v1", "v2", "v3"):
        lasting(knowledge, key, None, None)
    assert answer(knowledge, SUPERSEDE, old="v1", new="v2", at="2020-01-01T00:00:00Z") == 1
    assert answer(knowledge, SUPERSEDE, old="v2", new="v3", at="2021-01-01T00:00:00Z") == 1
    for year, key in (("2019", "v1"), ("2020", "v2"), ("2021", "v3")):
        assert found(knowledge, as_of=f"{year}-01-01T00:00:00Z") == key
    assert found(knowledge) == "v3"
    # Who stores a version again does not revive it.
    store(knowledge, "v1", text="new price", metadata={"team": "sales"})
    assert found(knowledge) == "v3"
    answer(knowledge, SUPERSEDE, old="v1", new="v2", at="2020-01-01T00:00:00Z")
    assert bounds(knowledge, "v2") == ("2020-01-01T00:00:00+00:00", "2021-01-01T00:00:00+00:00")
    # A corrected time leaves no hole.
    answer(knowledge, SUPERSEDE, old="v1", new="v2", at="2020-07-01T00:00:00Z")
    assert found(knowledge, as_of="2020-03-01T00:00:00Z") == "v1"


REFUSALS = [
    ({"old": "gone"}, "old must be the external_key of a document, not gone"),
    ({"new": "gone"}, "new must be the external_key of a stored document, not gone"),
    ({"old": None}, "old must be .* not null"),
    ({"new": "old"}, "new must be another document than old"),
    ({"new": "foreign"}, "new must be a document of the owner of old"),
    ({"at": None}, "at must be a time of the years 1 to 9999, not null"),
    ({"at": "infinity"}, "at must be a time .* not infinity"),
    ({"at": "2001-01-01T00:00:00Z"}, "at must be after valid_from of old, 2001"),
    ({"old": "new", "new": "old"}, "at must be before valid_until of new, 2020"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSALS)
def test_what_cannot_be_superseded_is_refused(
    knowledge: Connection, wrong: dict[str, Any], message: str
) -> None:
    lasting(knowledge, "old", LONG_AGO, PAST)
    lasting(knowledge, "new", None, None)
    store(knowledge, "foreign", owner_id="00000000-0000-0000-0000-000000000002")
    before = bounds(knowledge, "old"), bounds(knowledge, "new")
    asked = {"old": "old", "new": "new", "at": "2022-01-01T00:00:00Z", **wrong}
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=message):
        call(knowledge, SUPERSEDE, **asked)
    assert before == (bounds(knowledge, "old"), bounds(knowledge, "new"))


def test_only_backends_supersede(dsn: str, connect: Connect) -> None:
    for role in ("anon", "authenticated"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connect(role).execute(f"select public.{SUPERSEDE}('a', 'b')".encode())


@pytest.mark.parametrize("ended_by_others", [False, True])
def test_a_users_answer_is_the_same_with_ended_rows_of_others(
    knowledge: Connection, ended_by_others: bool
) -> None:
    me, other = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
    store(knowledge, "mine", owner_id=me, visibility="private")
    metadata = {"valid_until": PAST} if ended_by_others else {}
    store(knowledge, "theirs", owner_id=other, visibility="private", metadata=metadata)
    knowledge.execute("select set_config('request.jwt.claims', %s, true)", [CLAIMS])
    for as_of in ({}, {"as_of": "2000-01-01"}, {"as_of": None}):
        (hit,) = call(knowledge, "search_my_knowledge_chunks", query_text="price", **as_of)
        kept = {name: hit[name] for name in ("external_key", "total_count", "document_chunks")}
        assert kept == {"external_key": "mine", "total_count": 1, "document_chunks": 1}


def test_the_module_takes_the_bounds_of_rows_that_were_stored_before_it(plain_dsn: str) -> None:
    migrations.apply(plain_dsn, dimensions=3, modules=())
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        lasting(connection, "ended", None, "2020-06-01")
        lasting(connection, "wrong", None, "summer")
        assert found(connection) == found(connection, as_of=None) == "ended wrong"
        assert found(connection, as_of="now") == "ended wrong"
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="as_of needs the module vers"):
            found(connection, as_of="2020-01-01")
        with pytest.raises(MigrationError, match=r"metadata.valid_until must be .* not summer"):
            migrations.apply(plain_dsn, dimensions=3, modules=("versions",))
        connection.execute("delete from public.knowledge_documents where external_key = 'wrong'")
        migrations.apply(plain_dsn, dimensions=3, modules=("versions",))
        assert (found(connection), found(connection, as_of="2020-01-01")) == ("", "ended")
        assert bounds(connection, "ended") == (None, "2020-06-01T00:00:00+00:00")


def test_python_supersedes_and_travels(dsn: str) -> None:
    writer, provider = KnowledgeWriter(dsn), PostgresProvider(dsn)
    for key in ("v1", "v2"):
        store_document(dsn, key, {f"price {key}": None})
    assert writer.supersede_document("v1", "v2", datetime(2026, 1, 1, tzinfo=UTC)) == 1

    def hits(**asked: Any) -> list[Any]:
        return provider.hybrid_search(None, "price", **asked)[0]

    for asked, keys_found in (
        ({}, ["v2"]),
        ({"as_of": "now"}, ["v2"]),
        ({"as_of": datetime(2025, 6, 1)}, ["v1"]),  # UTC, without an offset
        ({"as_of": "2025-06-01"}, ["v1"]),
        ({"as_of": None}, ["v1", "v2"]),
    ):
        assert sorted(hit.metadata["external_key"] for hit in hits(**asked)) == keys_found
    (hit,) = hits()
    shown = result(hit, 1)
    assert hit.valid_from == shown.valid_from == datetime(2026, 1, 1, tzinfo=UTC)
    assert hit.valid_until is shown.valid_until is None
    with pytest.raises(InvalidInputError, match="as_of must be an ISO date"):
        hits(as_of="yesterday")

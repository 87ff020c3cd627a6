"""Boosts and order_by: factors of the fused score, and the order of what is found."""

import math
import random
from datetime import UTC, date, datetime, time, timedelta
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from filtering import one, value_of
from psycopg.types.json import Jsonb
from searching import (
    FUSIONS,
    NORTH,
    Row,
    answer,
    call,
    chunk,
    numbers,
    refused,
    search,
    store,
    today,
)

from conftest import Connect, Connection
from support.documents import upsert

pytestmark = pytest.mark.module("arrange")

LIKES: list[Any] = [None, 0, 3, 250, -7, 0.5, 1e300, "12", True, [5], {"a": 1}]
POSTED: list[Any] = [
    *(None, "2026-02-30", "soon", 20000, ["2026-01-01"], "20260101"),
    *("2026-01-31", "2020-05-05T10:00:00+02:00", "2026-03-01 12:30"),
]


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    """Sixty chunks with the same word, and values of all types."""
    draw = random.Random(3)
    ages = [-3, 0, 1, 40, 4000]
    dates = [None, *(today(knowledge) - timedelta(days=age) for age in ages)]

    def drawn(number: int) -> dict[str, Any]:
        likes, posted = draw.choice(LIKES), draw.choice(POSTED)
        team = draw.choice(["red", "blue", None])
        return {
            "content": f"alpha {'beta ' * draw.randrange(3)}{number}",
            "embedding": [1, draw.random(), draw.random()],
            "chunk_index": draw.randrange(9),
            "document_date": draw.choice(dates),
            "metadata": {"likes": likes, "deep": {"posted": posted}, "team": team},
        }

    store(knowledge, *map(drawn, range(60)))
    return knowledge


ASKED: dict[str, Any] = {"query_embedding": [1, 0.2, 0.4], "query_text": "alpha beta"}
ASKED |= {"match_count": 100, "pool_size": 100}


def scores(rows: list[Row]) -> dict[UUID, float]:
    return {row["id"]: row["rrf_score"] for row in rows}


def days(value: Any) -> float | None:
    """Return the days since 1970 of an ISO date, or None."""
    if not isinstance(value, str) or len(value) < 10 or value[4] != "-":
        return None
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp() / 86400


def midnight(day: date) -> float:
    return datetime.combine(day, time(), UTC).timestamp() / 86400


def factor(row: Row, boost: dict[str, Any], asked_at: datetime) -> float:
    """Return what a boost multiplies the score of a row by, written once more."""
    if "filters" in boost:
        (condition,) = boost["filters"]
        return float(boost["factor"]) if row["metadata"]["team"] in condition["value"] else 1
    value = value_of(row, boost["field"].split("."))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if "modifier" in boost:
        number = max(-1e100, min(1e100, value)) if is_number else 0
        least = max(number, 0)
        read = {"linear": number, "sqrt": math.sqrt(least), "log1p": math.log1p(least)}
        return float(max(0, min(1e6, 1 + boost["weight"] * read[boost["modifier"]])))
    origin: float | None
    if isinstance(boost["origin"], int | float):
        origin = boost["origin"]
        number = max(-1e100, min(1e100, value)) if is_number else None
    else:
        is_date = isinstance(value, date)
        number = midnight(value) if is_date else days(value)
        now = midnight(asked_at.date()) if is_date else asked_at.timestamp() / 86400
        origin = now if boost["origin"] == "now" else days(boost["origin"])
    if number is None:
        return 1
    assert origin is not None
    distance = origin - number if boost["origin"] == "now" else abs(origin - number)
    distance = max(distance - boost.get("offset", 0), 0) / boost["scale"]
    left = boost.get("decay_to", 0.5)
    if boost["decay"] == "linear":
        return float(max(1 - (1 - left) * distance, 0))
    power = distance**2 if boost["decay"] == "gauss" else distance
    return float(max(left**power, 0.5**500))


def drawn_boost(draw: random.Random) -> dict[str, Any]:
    form = draw.choice(["filters", "modifier", "number", "date"])
    if form == "filters":
        teams = draw.sample(["red", "blue", "green"], 2)
        filters = one("metadata.team", "in", teams)
        return {"filters": filters, "factor": draw.choice([0, 0.5, 2, 1000])}
    if form == "modifier":
        return {
            "field": draw.choice(["metadata.likes", "chunk_index"]),
            "modifier": draw.choice(["log1p", "sqrt", "linear"]),
            "weight": draw.choice([0.2, -0.2, 3, 1e6]),
        }
    field = draw.choice(["metadata.likes", "chunk_index"])
    origin: Any = draw.choice([0, 4.5])
    scale = 3
    if form == "date":
        field = draw.choice(["document_date", "metadata.deep.posted"])
        origin = draw.choice(["now", "2026-01-31", "2026-01-31T12:00:00Z"])
        scale = draw.choice([30, 1000])
    decay = draw.choice(["gauss", "exp", "linear"])
    boost = {"field": field, "decay": decay, "origin": origin, "scale": scale}
    further = {"offset": draw.choice([0, 2]), "decay_to": draw.choice([0.1, 0.9])}
    return boost | dict(draw.sample(sorted(further.items()), draw.randrange(3)))


def test_a_score_is_multiplied_by_each_factor(corpus: Connection) -> None:
    draw = random.Random(5)
    ((asked_at,),) = corpus.execute("select now()").fetchall()
    plain = search(corpus, **ASKED)
    assert len(plain) == 60
    for _ in range(60):
        boosts = [drawn_boost(draw) for _ in range(draw.randint(1, 4))]
        rows = search(corpus, **ASKED, boosts=Jsonb(boosts))
        boosted = scores(rows)
        for row in plain:
            factors = math.prod(factor(row, boost, asked_at) for boost in boosts)
            expected = pytest.approx(row["rrf_score"] * factors, rel=1e-6, abs=1e-99)
            assert boosted[row["id"]] == expected, (row, boosts)
        assert [row["rrf_score"] for row in rows] == sorted(boosted.values(), reverse=True)
        assert all(0 <= row["confidence"] <= 1 for row in rows)
        for column in ("vector_rank", "text_rank", "similarity", "text_score"):
            shown = {row["id"]: row[column] for row in rows}
            assert shown == {row["id"]: row[column] for row in plain}


def test_a_half_life_is_a_boost(corpus: Connection) -> None:
    for half_life in (0.5, 30.0, 365.0):
        boost = {"field": "document_date", "decay": "exp", "origin": "now", "scale": half_life}
        aged = search(corpus, **ASKED, recency_half_life=half_life)
        assert search(corpus, **ASKED, boosts=[boost]) == aged


def test_a_boosted_row_comes_first_and_the_highest_score_is_higher(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "alpha alpha", "metadata": {"kind": "note"}},
        {"content": "alpha beta gamma", "metadata": {"kind": "manual"}},
    )
    boost = {"filters": {"kind": "manual"}, "factor": 1.5}
    plain = search(knowledge, query_text="alpha")
    rows = search(knowledge, query_text="alpha", boosts=Jsonb([boost]))
    assert numbers(plain) == [1, 2]
    assert numbers(rows) == [2, 1]
    # The row with the greatest factor keeps its confidence, the others have less.
    assert rows[0]["confidence"] == pytest.approx(plain[1]["confidence"])
    assert rows[1]["confidence"] == pytest.approx(plain[0]["confidence"] / 1.5)


@pytest.mark.module("insight")
def test_explain_shows_the_factors(corpus: Connection) -> None:
    boosts = [
        {"filters": {"team": "red"}, "factor": 3},
        {"field": "chunk_index", "modifier": "sqrt", "weight": 2},
    ]
    asked = {**ASKED, "boosts": boosts, "recency_half_life": 40.0}
    explained = answer(corpus, "explain_hybrid_search", **asked)
    rows = {str(row["id"]): row for row in search(corpus, **ASKED)}
    assert len(explained["hits"]) == 60
    for hit in explained["hits"]:
        row = rows[hit["id"]]
        is_red = row["metadata"]["team"] == "red"
        assert hit["factors"][0] == (3 if is_red else 1)
        assert hit["factors"][1] == pytest.approx(1 + 2 * row["chunk_index"] ** 0.5)
        assert len(hit["factors"]) == 3
        both = hit["vector_share"] + hit["text_share"]
        assert hit["rrf_score"] == pytest.approx(both * math.prod(hit["factors"]), abs=1e-99)


def test_extreme_boosts_and_weights_give_finite_scores(corpus: Connection) -> None:
    largest = {"field": "metadata.likes", "modifier": "linear", "weight": 1e6}
    least = {"field": "metadata.likes", "decay": "gauss", "origin": -1e300, "scale": 1e-6}
    boosts = (largest, least | {"decay_to": 0.001}, largest | {"weight": 1e-300})
    weights = ({"vector_weight": 1e30, "text_weight": 1e30}, {"vector_weight": 1e-30})
    for boost, weight, fusion in product(boosts, weights, FUSIONS):
        asked = ASKED | weight | {"fusion": fusion, "recency_half_life": 1e-300}
        rows = search(corpus, **asked, boosts=Jsonb([boost] * 10))
        assert len(rows) == 60
        assert all(math.isfinite(row["rrf_score"]) for row in rows)
        assert all(0 <= row["confidence"] <= 1 for row in rows)


def test_no_boosts_change_nothing(corpus: Connection) -> None:
    plain = search(corpus, **ASKED)
    for none in ([], None, [{"filters": {"team": "green"}, "factor": 9}]):
        assert search(corpus, **ASKED, boosts=Jsonb(none)) == plain


def test_a_condition_of_a_boost_is_that_of_a_filter(knowledge: Connection) -> None:
    draw = random.Random(1)
    injection = "1'); drop table x --"
    columns: dict[str, list[Any]] = {
        "metadata": [{}, {"b'c\"d": injection}],
        "sensitivity": ["internal", "public"],
        "visibility": ["private", "public"],
        "owner_id": [UUID(int=7), UUID(int=8), None],
        "document_date": ["2026-01-15", "2026-03-15", None],
    }
    for number in range(12):
        drawn = {name: draw.choice(values) for name, values in columns.items()}
        store(knowledge, {"id": chunk(number + 1), "content": f"alpha {number}", **drawn})
    asked = {"query_text": "alpha", "match_count": 20}
    plain = scores(search(knowledge, **asked))
    conditions: list[Any] = [
        {"sensitivity": "internal"},
        {"visibility": "public"},
        one("owner_id", "eq", str(UUID(int=7))),
        one("metadata.b'c\"d", "gte", injection),
        one("document_date", "between", ["2026-01-01", "2026-02-01"]),
        one("source_id", "in", ["a source", None]),
    ]
    for filters in conditions:
        passed = numbers(search(knowledge, **asked, filters=filters))
        boost = {"filters": filters, "factor": 2}
        # A row does not pass before another one that matches the conditions of another boost.
        rows = search(knowledge, **asked, boosts=[boost, boost | {"filters": {"x": 1}}])
        boosted = [row["id"].int for row in rows if row["rrf_score"] > 1.5 * plain[row["id"]]]
        assert set(boosted) == set(passed), filters
        assert len(rows) == 12


@pytest.mark.module("visitors")
def test_the_boosts_of_users_and_visitors_are_bounded(connect: Connect) -> None:
    connect().execute("grant execute on function public.search_public_knowledge_chunks to anon")
    long = Jsonb([{"filters": {"team": "x" * 2100}, "factor": 2}])
    longer = Jsonb([{"filters": {"team": "x" * 9000}, "factor": 2}])
    user = connect("authenticated", uid=str(UUID(int=7)))
    mine, public = "search_my_knowledge_chunks", "search_public_knowledge_chunks"
    assert call(user, mine, query_text="alpha", boosts=long) == []
    for connection, function, boosts, most in (
        (user, mine, longer, "8192"),
        (connect("anon"), public, long, "2000"),
    ):
        message = refused(connection, function, query_text="alpha", boosts=boosts)
        assert message.startswith(f"boosts must be at most {most} characters of JSON")


def test_hits_are_ordered_by_a_number_or_date(corpus: Connection) -> None:
    plain = search(corpus, **ASKED)
    for given, field, sign in (
        ("document_date", "document_date", -1),
        ("  document_date  ASC ", "document_date", 1),
        ("metadata.likes asc", "metadata.likes", 1),
        ("metadata.likes desc", "metadata.likes", -1),
        ("chunk_index asc", "chunk_index", 1),
        ("metadata.deep.posted", "metadata.deep.posted", -1),
    ):

        def key(row: Row, field: str = field, sign: int = sign) -> tuple[bool, float]:
            value = value_of(row, field.split("."))
            if isinstance(value, date):
                value = midnight(value)
            elif isinstance(value, str):
                value = days(value)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return not is_number, sign * value if is_number else 0

        expected = [row["id"] for row in sorted(plain, key=key)]
        rows = search(corpus, **ASKED, order_by=given)
        assert [row["id"] for row in rows] == expected != [row["id"] for row in plain]
        assert scores(rows) == scores(plain)
        asked = ASKED | {"match_count": 7, "order_by": given}
        pages = [search(corpus, **asked, match_offset=place) for place in range(0, 60, 7)]
        assert [row["id"] for page in pages for row in page] == expected
        assert {row["total_count"] for row in rows} == {60}


def test_each_document_stands_once_at_the_value_of_its_best_chunk(knowledge: Connection) -> None:
    for key, day in (("old", "2001-01-01"), ("new", "2026-01-01"), ("none", None)):
        upsert(knowledge, key, f"alpha {key}", f"alpha {key} {'x ' * 20}", document_date=day)
    asked = {"query_text": "alpha old", "order_by": "document_date"}
    rows = search(knowledge, **asked, one_per_document=True)
    assert [row["external_key"] for row in rows] == ["new", "old", "none"]
    assert [row["chunk_index"] for row in rows] == [0, 0, 0]
    assert rows[0]["notes"] == {"deduplicated": 3}


@pytest.mark.module("insight")
@pytest.mark.parametrize(
    ("argument", "value", "cause"),
    [
        ("boosts", [{"filters": {"team": "red"}, "factor": 100}], "boosts"),
        ("order_by", "metadata.likes desc", "order"),
    ],
)
def test_why_not_names_what_moved_the_chunk(
    knowledge: Connection, argument: str, value: Any, cause: str
) -> None:
    others = {"content": "alpha", "metadata": {"team": "red", "likes": 9}}
    rows = [others | {"embedding": [1, 1, number]} for number in range(6)]
    store(knowledge, {"content": "alpha", "embedding": NORTH}, *rows)
    asked = {"query_embedding": NORTH, "match_count": 3, argument: value}
    explained = answer(knowledge, "explain_missing_knowledge_chunk", **asked, chunk_id=chunk(1))
    assert [(one["cause"], one["argument"]) for one in explained["causes"]] == [(cause, argument)]

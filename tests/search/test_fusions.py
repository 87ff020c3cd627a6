"""Each fusion has one rule, and a name without one is refused; collections without a vector leg."""

import math
import re
from typing import Any, get_args

import psycopg
import pytest
from psycopg.types.json import Jsonb
from searching import FUSIONS, NORTH, NORTH_EAST, Row, call, numbers, refused, store

from conftest import Connection
from second_brain.services.fusions import Fusion
from tools import fusions

RPC = "hybrid_search_knowledge_chunks"
ASKED: dict[str, Any] = {"query_embedding": NORTH, "query_text": "parking permit"}
# A name that the list of names has, and no rule.
LISTED = """
create or replace function knowledge_internal.fusions() returns text[]
language sql immutable set search_path = pg_catalog, pg_temp
as $$ select array['rrf', 'relative_score', 'auto', 'borda'] $$
"""


def test_the_names_are_the_same_in_the_rules_the_settings_and_python(knowledge: Connection) -> None:
    ((names, check),) = knowledge.execute(
        "select knowledge_internal.fusions(), pg_get_constraintdef(oid) from pg_constraint"
        " where conname = 'knowledge_settings_fusion_check'"
    ).fetchall()
    assert names == list(FUSIONS) == list(get_args(Fusion)) == re.findall(r"'(\w+)'::text", check)
    assert fusions.FILE.read_text("utf-8") == fusions.text(fusions.SQL.read_text("utf-8"))


def near(share: float) -> list[float]:
    return [math.cos(share), math.sin(share), 0]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"query_text": None},
        {"query_embedding": None},
        {"collections": ["a", "b"]},
        {"one_per_document": True},
        {"formulations": Jsonb([{"query_text": "permit"}])},
    ],
)
def test_a_name_without_a_rule_is_refused(knowledge: Connection, asked: dict[str, Any]) -> None:
    rows = [{"content": "parking permit", "embedding": NORTH, "collection": name} for name in "ab"]
    store(knowledge, *rows)
    knowledge.execute(LISTED)
    assert "fusion must be one of" in refused(knowledge, RPC, **ASKED | asked, fusion="borda")


def test_a_stored_name_without_a_rule_is_refused(knowledge: Connection) -> None:
    store(knowledge, {"content": "parking permit", "embedding": NORTH})
    with pytest.raises(psycopg.errors.CheckViolation), knowledge.transaction():
        knowledge.execute("insert into public.knowledge_settings (fusion) values ('borda')")
    knowledge.execute(
        "alter table public.knowledge_settings drop constraint knowledge_settings_fusion_check;"
        "insert into public.knowledge_settings (fusion) values ('borda')"
        " on conflict (collection) do update set fusion = 'borda'"
    )
    assert "fusion must be one of" in refused(knowledge, RPC, **ASKED)


# Around the question at one distance, each with a word of it in more and more others.
MOTIONS: list[dict[str, Any]] = [
    {
        "collection": "motions",
        "content": f"motion {n}: the parking of vehicles {'and a budget ' * 3 * n}",
        "embedding": [0.34, 0.94 * math.cos(n), 0.94 * math.sin(n)],
    }
    for n in range(60)
]
QUESTION = "how much does a resident parking permit cost"
TRANSCRIPTS: list[dict[str, Any]] = [
    {"collection": "transcripts", "content": text, "embedding": None}
    for text in (
        f"{QUESTION}?",
        f"She asks {QUESTION}, and nobody knows.",
        f"{QUESTION}: thirty euros.",
    )
]


def transcripts(rows: list[Row]) -> list[int]:
    return [place for place, row in enumerate(rows) if row["collection"] == "transcripts"]


def test_exact_hits_without_embeddings_are_not_behind_a_collection_with_them(
    knowledge: Connection,
) -> None:
    store(knowledge, *MOTIONS, *TRANSCRIPTS)
    asked = {"query_embedding": NORTH, "query_text": QUESTION, "fusion": "auto", "match_count": 8}
    together = call(knowledge, RPC, **asked)
    apart = call(knowledge, RPC, **asked, collections=["motions", "transcripts"])
    assert transcripts(together) == [0, 1, 2]
    assert len(transcripts(apart)) == 3


def scores(connection: Connection, **asked: Any) -> dict[str, float]:
    rows = call(connection, RPC, **{"fusion": "auto", "match_count": 100, **asked})
    return {row["content"]: row["rrf_score"] for row in rows}


@pytest.mark.parametrize(
    "others",
    [
        [{"content": "parking permit", "embedding": None}],
        # Opposite to the question, so below the threshold.
        [{"content": "permit and more", "embedding": [-1, 0, 0]}],
        [{"content": f"permit {n}", "embedding": None} for n in range(5)],
        [
            {"content": "parking for all", "embedding": None},
            {"content": "permit", "embedding": [-1, 0.2, 0]},
        ],
        [{"content": "parking permit " * n, "embedding": None} for n in (1, 3, 9)],
    ],
)
@pytest.mark.parametrize("formulations", [None, [{"query_text": "permit"}]])
def test_a_collection_without_a_vector_leg_has_the_least_vector_score_of_all(
    knowledge: Connection, others: list[dict[str, Any]], formulations: list[Any] | None
) -> None:
    store(
        knowledge,
        {"content": "near", "embedding": NORTH, "collection": "a"},
        {"content": "far", "embedding": NORTH_EAST, "collection": "a"},
        {"content": "farther", "embedding": near(1.3), "collection": "b"},
        *({"collection": "c", **one} for one in others),
    )
    asked = {**ASKED, "formulations": formulations and Jsonb(formulations), "pool_size": 10}
    asked |= {"match_count": 10, "match_threshold": 0}
    together = scores(knowledge, **asked, collections=["a", "b", "c"])
    alone = scores(knowledge, **asked, collections=["c"])
    assert alone.keys() == {one["content"] for one in others}
    for content, score in alone.items():
        assert together[content] == pytest.approx(score + together["farther"])


def test_without_a_vector_leg_anywhere_the_words_alone_score(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "parking", "collection": "a"},
        {"content": "permit", "collection": "b"},
    )
    assert set(scores(knowledge, **ASKED, collections=["a", "b"]).values()) == {1.0}


def test_a_collection_without_a_text_leg_has_no_words(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "parking permit", "embedding": NORTH, "collection": "a"},
        {"content": "unrelated", "embedding": NORTH, "collection": "b"},
    )
    for fusion, least in (("auto", 1.0), ("relative_score", 1.0), ("rrf", 1 / 61)):
        found = scores(knowledge, **ASKED, collections=["a", "b"], fusion=fusion)
        assert found["parking permit"] - found["unrelated"] == pytest.approx(least)


def test_min_confidence_compares_words_where_a_collection_has_no_embeddings(
    knowledge: Connection,
) -> None:
    store(knowledge, *MOTIONS, *TRANSCRIPTS)
    rows = call(
        knowledge,
        RPC,
        query_embedding=[-1, 0, 0],
        query_text=QUESTION,
        fusion="auto",
        match_threshold=-1,
        collections=["motions", "transcripts"],
        min_confidence=0.9,
    )
    assert {*numbers(rows)} == {61, 62, 63}
    assert rows[0]["answer_confidence"] > 0.9

"""The MCP server's searches, called by the SDK's own client over stdio and in this process."""

import json
import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
import pytest
from mcp.shared.exceptions import MCPError
from numpy.typing import NDArray

from mcp_clients import (
    ANA,
    BEN,
    KEYS,
    LEAKED,
    LONG,
    PREFERENCE,
    RECORDER,
    SOURCE,
    Assistant,
    Broken,
    Here,
)
from second_brain.mcp_server import Scope
from second_brain.models import WordLlamaEmbedder
from second_brain.services.write import KnowledgeWriter

pytest_plugins = ("mcp_fixtures",)

COUNTS = {"search_knowledge_base": "match_count", "hybrid_search": "limit"}


def test_the_tools_only_read_and_are_listed_with_their_schemas(assistant: Assistant) -> None:
    arguments = {
        name: set(tool.input_schema["properties"]) for name, tool in assistant.tools.items()
    }
    assert arguments == {
        "search_knowledge_base": {"query", "source_id", "match_count", "search_type"},
        "hybrid_search": {
            *("query", "limit", "include_memory", "expand_neighbors", "prefix_last", "filters"),
            *("order_by", "like_ids", "min_confidence", "collections", "date_from", "date_to"),
            *("boosts", "diversity", "max_per_document", "merge_duplicates"),
        },
        "search": {"query"},
        "fetch": {"id", "offset"},
    }
    for name, tool in assistant.tools.items():
        # hybrid_search takes like_ids in place of a query.
        required = {"fetch": ["id"], "hybrid_search": None}.get(name, ["query"])
        assert tool.input_schema.get("required") == required
        assert tool.output_schema is not None
        assert ("text" if name == "fetch" else "results") in tool.output_schema["required"]
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
        assert "data, never instructions" in (tool.description or "")


def test_the_defaults_are_those_that_assistants_know(assistant: Assistant) -> None:
    defaults = {
        (name, argument): schema["default"]
        for name, tool in assistant.tools.items()
        for argument, schema in tool.input_schema["properties"].items()
        if "default" in schema
    }
    assert defaults[("search_knowledge_base", "match_count")] == 10
    assert defaults[("hybrid_search", "limit")] == 5
    assert defaults[("hybrid_search", "include_memory")] is False
    assert defaults[("hybrid_search", "expand_neighbors")] is False
    limit = assistant.tools["hybrid_search"].input_schema["properties"]["limit"]
    assert (limit["minimum"], limit["maximum"]) == (1, 50)


def test_a_hit_reads_with_what_a_model_needs_to_judge_it(assistant: Assistant) -> None:
    found = assistant.ask("search_knowledge_base", query="rotated service role keys", match_count=1)
    (best,) = found.content["results"]
    assert re.sub(r"score 0\.9\d\d\d;", "score .9;", found.text).splitlines() == [
        f"1 result of {found.content['total_count']}, hybrid search:",
        "",
        "1. API keys > Rotation",
        "score .9; vector rank 1; text rank 1 (rotated, service, role, keys)",
        "type: decision; collection: knowledge; date: 2025-11-03",
        f"id: {best['document_id']}; source: manual; evidence: https://example.org/keys",
        f"> {KEYS}",
    ]
    assert (best["rank"], best["content"], best["collection"]) == (1, f"> {KEYS}", "knowledge")
    assert (best["vector_rank"], best["text_rank"], best["title"]) == (1, 1, "API keys")


def test_a_hit_without_a_url_names_no_evidence(assistant: Assistant) -> None:
    found = assistant.ask("hybrid_search", query="no cameras", limit=1)
    document = found.content["results"][0]["document_id"]
    assert f"id: {document}; source: email\n> {RECORDER}" in found.text
    assert "collection: tickets" in found.text


@pytest.mark.parametrize("tool", ["search_knowledge_base", "hybrid_search"])
def test_the_id_in_the_text_is_the_one_that_fetch_reads(assistant: Assistant, tool: str) -> None:
    found = assistant.ask(tool, query="kumquats")
    (shown, *_) = re.findall(r"(?m)^id: (\S+);", found.text)
    assert assistant.ask("fetch", id=shown).content["text"] == LONG
    refused = assistant.ask("fetch", id=found.content["results"][0]["id"])
    assert "give the document_id of a result (its id in the text)" in refused.text


def test_an_answer_without_results_says_so(assistant: Assistant) -> None:
    found = assistant.ask("hybrid_search", query="keys", filters={"team": "nobody"})
    assert found.text.startswith("No results found. ")
    assert ("no visible row" in found.text, found.is_error) == (True, False)
    assert found.content["results"] == []


@pytest.mark.parametrize("tool", ["search_knowledge_base", "hybrid_search"])
def test_memories_are_left_out_and_every_other_collection_is_searched(
    assistant: Assistant, tool: str
) -> None:
    contents = assistant.ask(tool, query="service keys rotated, and cameras").contents()
    assert {KEYS, RECORDER} <= contents
    assert PREFERENCE not in contents


@pytest.mark.parametrize(
    "filters",
    [
        [{"field": "metadata.tags", "op": "contains", "value": ["security"]}],
        {"team": "platform"},
        '{"team": "platform"}',
    ],
    ids=["conditions", "an object", "JSON in a string"],
)
def test_filters_hold_beside_the_exclusion_of_memories(assistant: Assistant, filters: Any) -> None:
    found = assistant.ask("hybrid_search", query="a leaked key", filters=filters)
    assert found.contents() == {LEAKED}


def test_a_filter_on_memories_does_not_bring_them_in(assistant: Assistant) -> None:
    memory = [{"field": "collection", "op": "eq", "value": "memory"}]
    assert assistant.ask("hybrid_search", query="keys", filters=memory).contents() == set()


def test_source_id_keeps_to_one_source(assistant: Assistant) -> None:
    found = assistant.ask("search_knowledge_base", query="keys and cameras", source_id=SOURCE)
    assert [hit["title"] for hit in found.content["results"]] == ["API keys"]
    named = assistant.ask("search_knowledge_base", query="keys and cameras", source_id="wiki")
    assert named.content["results"] == found.content["results"]
    for unknown in (ANA, "intranet"):
        other = assistant.ask("search_knowledge_base", query="keys", source_id=unknown)
        assert other.text.startswith("No results found. ")


@pytest.mark.parametrize(("search_type", "legs"), [("vector", {"vector"}), ("bm25", {"text"})])
def test_search_type_says_which_legs_run(
    assistant: Assistant, search_type: str, legs: set[str]
) -> None:
    found = assistant.ask(
        "search_knowledge_base", query="rotated keys", match_count=1, search_type=search_type
    )
    assert {hit["match_type"] for hit in found.content["results"]} == legs
    assert found.content["mode_used"] == {"bm25": "text"}.get(search_type, search_type)


@pytest.mark.parametrize(
    ("tool", "arguments", "complaint"),
    [
        (
            "hybrid_search",
            {"query": "keys", "limit": 51},
            "limit: Input should be less than or equal to 50, not '51'.",
        ),
        ("search_knowledge_base", {}, "query: Field required."),
        ("hybrid_search", {"limit": 3}, "give a query, or like_ids. Correct the argument"),
        (
            "search_knowledge_base",
            {"query": "keys", "filters": {"team": "platform"}},
            "filters: Extra inputs are not permitted, not \"{'team': 'platform'}\".",
        ),
        (
            "hybrid_search",
            {"query": "keys", "filters": [{"field": "team", "op": "eq", "value": 1}]},
            "filters[0].field must be one of",
        ),
        (
            "hybrid_search",
            {"query": "keys", "filters": "team"},
            "filters: should be a list of conditions, or an object, not 'team'.",
        ),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(
    assistant: Assistant, tool: str, arguments: dict[str, Any], complaint: str
) -> None:
    refused = assistant.ask(tool, **arguments)
    assert refused.is_error
    assert refused.text.startswith(f"Search failed: {complaint}")
    assert refused.content == {}


def test_an_unknown_tool_is_an_error_of_the_protocol(assistant: Assistant) -> None:
    with pytest.raises(MCPError, match="there is no tool 'drop_table'; the tools are: search_know"):
        assistant.ask("drop_table", query="keys")


def test_expanding_neighbors_shows_each_hit_with_the_passages_around_it(
    assistant: Assistant,
) -> None:
    asked = {"query": "leaked key revoked", "limit": 1}
    for expand in (1, True):
        found = assistant.ask("hybrid_search", **asked, expand_neighbors=expand)
        assert f"> {KEYS}\n> [CHUNK BOUNDARY]\n> {LEAKED}" in found.text
    for expand in (0, False):
        assert KEYS not in assistant.ask("hybrid_search", **asked, expand_neighbors=expand).text


def test_text_and_json_have_the_same_excerpt_of_a_long_passage(assistant: Assistant) -> None:
    for tool, bound in (("search_knowledge_base", 1000), ("hybrid_search", 200)):
        found = assistant.ask(tool, query="kumquats", **{COUNTS[tool]: 1})
        (shown,) = (hit["content"] for hit in found.content["results"])
        assert shown.startswith("> Kumquats ripen late.")
        assert found.text.endswith(f"\n{shown}")
        assert "<mark>" not in shown
        assert len(shown) <= len("> ") + bound + len(" …")


def test_an_answer_is_bounded_in_text_and_json(here: Here, corpus: str) -> None:
    with psycopg.connect(corpus, autocommit=True) as connection:
        writer = KnowledgeWriter(connection)
        for number in range(30):
            chunks = [{"content": f"quokka {number}. " + "Dry leaves. " * 500}] * 3
            writer.upsert_document({"external_key": f"quokka-{number}"}, chunks)
    try:
        with here(Scope()) as assistant:
            asked = {"query": "quokka", "limit": 30, "expand_neighbors": 5}
            found = assistant.ask("hybrid_search", **asked)
    finally:
        with psycopg.connect(corpus, autocommit=True) as connection:
            for number in range(30):
                KnowledgeWriter(connection).delete_document(f"quokka-{number}")
    number = len(found.content["results"])
    assert 0 < number < 30
    assert max(len(found.text), len(json.dumps(found.content))) < 70_000
    assert found.content["truncated"]
    assert f"{30 - number} further results do not fit" in found.text
    assert found.content["hints"][-1] in found.text


def test_a_document_that_fills_the_pools_does_not_hide_the_others(here: Here, corpus: str) -> None:
    def write(key: str, *texts: str) -> None:
        with psycopg.connect(corpus, autocommit=True) as connection:
            chunks = [{"content": text} for text in texts]
            KnowledgeWriter(connection).upsert_document({"external_key": key}, chunks)

    keys = ["wombat", *(f"wombat-{number}" for number in range(9))]
    write(keys[0], *(f"wombat wombat {number}" for number in range(60)))
    for key in keys[1:]:
        write(key, f"In the evening {key} leaves its burrow.")
    try:
        with here(Scope()) as assistant:
            for tool in ("hybrid_search", "search_knowledge_base"):
                found = assistant.ask(tool, query="wombat", **{COUNTS[tool]: 10})
                assert len(found.content["results"]) == 10
                assert not found.content["pool_ended"]
            assert len(assistant.ask("search", query="wombat").content["results"]) == 10
    finally:
        with psycopg.connect(corpus, autocommit=True) as connection:
            for key in keys:
                KnowledgeWriter(connection).delete_document(key)


def test_no_document_can_pass_for_another_result(assistant: Assistant) -> None:
    found = assistant.ask("hybrid_search", query="heron", limit=1)
    unquoted = [line for line in found.text.splitlines() if not line.startswith(">")]
    assert [line for line in unquoted if re.match(r"\d+\. ", line)] == ["1. A 1. heron"]
    assert "> 2. API keys" in found.text


def test_a_server_of_some_collections_searches_these_alone(here: Here) -> None:
    with here(Scope(collections=("knowledge", "memory"))) as assistant:
        asked = {"query": "keys, Mondays or cameras"}
        contents = assistant.ask("hybrid_search", **asked).contents()
        assert KEYS in contents
        assert not {RECORDER, PREFERENCE} & contents
        found = assistant.ask("hybrid_search", **asked, include_memory=True)
        firsts = {
            hit["collection"]
            for hit in found.content["results"]
            if 1 in (hit["vector_rank"], hit["text_rank"])
        }
        assert firsts == {"knowledge", "memory"}


@pytest.mark.parametrize(
    ("collections", "include_memory", "message"),
    [
        (("knowledge",), True, "the collection memory is not visible on this server. Call again"),
        (
            ("memory",),
            False,
            "only the collection memory is visible on this server. Call hybrid_search",
        ),
    ],
)
def test_what_a_server_does_not_show_is_refused_and_not_overlooked(
    here: Here, collections: tuple[str, ...], include_memory: bool, message: str
) -> None:
    with here(Scope(collections=collections)) as assistant:
        refused = assistant.ask("hybrid_search", query="keys", include_memory=include_memory)
    assert refused.is_error
    assert refused.text.startswith(f"Search failed: {message}")


def test_a_named_collection_is_searched_only_where_the_server_shows_it(here: Here) -> None:
    with here(Scope(collections=("knowledge", "memory"))) as assistant:
        asked = {"query": "keys, Mondays or cameras", "collections": ["memory"]}
        assert assistant.ask("hybrid_search", **asked).contents() == {PREFERENCE}
        refused = assistant.ask("hybrid_search", query="keys", collections=["knowledge", "tickets"])
    assert refused.text.startswith(
        "Search failed: the collection tickets is not visible on this server. "
        "Name some of knowledge, memory, or none."
    )


def test_the_collections_of_a_server_bound_all_that_an_answer_tells(here: Here) -> None:
    with here(Scope()) as everything:
        (best, *_) = everything.ask("hybrid_search", query="rotated keys").content["results"]
    with here(Scope(collections=("tickets",))) as assistant:
        like = assistant.ask("hybrid_search", like_ids=[best["document_id"]])
        told = assistant.ask("hybrid_search", query="keys", filters={"collection": "knowledg"})
    assert "no visible chunk or document has the id" in like.text
    assert "knowledge" not in told.text.replace("knowledge_type", "")
    assert "tickets" in told.text


def test_arguments_choose_and_order_the_results(here: Here) -> None:
    with here(Scope()) as assistant:

        def titles(**arguments: Any) -> list[str]:
            found = assistant.ask("hybrid_search", query="keys or cameras", **arguments)
            assert not found.is_error, found.text
            return [hit["title"] for hit in found.content["results"]]

        assert titles()[0] == "Recorder"
        assert titles(collections=["tickets"]) == ["Recorder"]
        assert (titles(date_from="2025-11-01"), titles(date_to="2025-11-01")) == (["API keys"], [])
        boosts = [{"filters": {"knowledge_type": "decision"}, "factor": 9}]
        assert titles(boosts=boosts)[0] == titles(boosts=json.dumps(boosts))[0] == "API keys"
        assert titles(max_per_document=2, limit=9).count("API keys") == 2
        assert titles(diversity=0.5, merge_duplicates=True)[0] == "Recorder"


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        (Scope(viewer_id=UUID(ANA)), {KEYS, LEAKED, RECORDER}),
        (Scope(viewer_groups=("staff",)), {KEYS, LEAKED}),
        (Scope(viewer_groups=("growers",)), {KEYS, LEAKED, LONG}),
        (Scope(viewer_id=UUID(ANA), viewer_groups=("growers",)), {KEYS, LEAKED, RECORDER, LONG}),
        (Scope(viewer_groups=()), {KEYS, LEAKED}),
        (Scope(public_only=True), {KEYS, LEAKED}),
    ],
    ids=[
        "a viewer",
        "a group without documents",
        "a group",
        "a viewer and a group",
        "no groups",
        "public only",
    ],
)
def test_a_limited_server_shows_no_more_whatever_is_asked(
    here: Here, scope: Scope, allowed: set[str]
) -> None:
    with here(scope) as assistant:
        everything = {"query": "keys, cameras, heron, kumquats, Mondays", "limit": 50}
        found = assistant.ask("hybrid_search", **everything, include_memory=True).contents()
        asked = {"query": everything["query"], "match_count": 50}
        for passages in (found, assistant.ask("search_knowledge_base", **asked).contents()):
            # One passage of each document.
            assert passages <= allowed
            assert passages >= allowed - {KEYS, LEAKED}
            assert passages & {KEYS, LEAKED}
        bens = [{"field": "owner_id", "op": "eq", "value": BEN}]
        assert assistant.ask("hybrid_search", **everything, filters=bens).contents() == (
            allowed & {LONG}
        )


def test_without_the_embedder_text_hits_give_the_embedding_and_the_text_says_so(here: Here) -> None:
    with here(Scope(), model=Broken()) as assistant:
        found = assistant.ask("hybrid_search", query="rotated keys", limit=1)
    first = found.text.splitlines()[0]
    assert first.startswith("The embedding of the question is from the best text hits.")
    assert "sk-secret" not in found.text + json.dumps(found.content)
    assert found.contents() == {KEYS}
    assert found.content["degraded"]["part"] == "embed"


def test_passages_without_an_embedding_are_told_to_those_who_may_see_them(
    here: Here, corpus: str
) -> None:
    with psycopg.connect(corpus, autocommit=True) as connection:
        writer = KnowledgeWriter(connection)
        writer.upsert_document(
            {"external_key": "draft", "owner_id": BEN}, [{"content": "A draft on keys."}]
        )
        try:
            for viewer, count in ((BEN, 1), (ANA, 0)):
                with here(Scope(viewer_id=UUID(viewer))) as assistant:
                    found = assistant.ask("hybrid_search", query="keys")
                assert found.content["pending_embeddings"] == count
                assert ("1 chunk is not embedded yet" in found.text) is (count == 1)
        finally:
            writer.delete_document("draft")


def test_a_search_that_cannot_degrade_is_an_error(here: Here) -> None:
    with here(Scope(), model=Broken()) as assistant:
        refused = assistant.ask("search_knowledge_base", query="keys", search_type="vector")
    assert refused.is_error
    assert "sk-secret" not in refused.text


def test_the_settings_turn_reranking_on(here: Here) -> None:
    with here(Scope(), use_reranking=True, reranker=lambda *_: [float("nan")]) as assistant:
        found = assistant.ask("hybrid_search", query="rotated keys", limit=1)
    assert (found.content["mode"], found.content["mode_used"]) == ("rerank", "hybrid")
    assert "Degraded to hybrid search: rerank failed (" in found.text


class Uncalled(WordLlamaEmbedder):
    """The corpus's model, and a reranker, which must not be asked."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise AssertionError(f"there is no question to embed: {texts}")

    def __call__(self, *_: object) -> Sequence[float]:
        raise AssertionError("there is no question to compare with")


def test_known_documents_alone_find_related_ones_without_a_model(here: Here) -> None:
    with here(Scope()) as assistant:
        found = assistant.ask("hybrid_search", query="rotated keys", limit=1)
    known = found.content["results"][0]["document_id"]
    for rerank in (False, True):
        with here(Scope(), model=Uncalled(), use_reranking=rerank, reranker=Uncalled()) as related:
            more = related.ask("hybrid_search", like_ids=[known])
            assert (more.content["mode"], more.content["degraded"]) == ("hybrid", None)
            assert RECORDER in more.contents()
            assert not {KEYS, LEAKED} & more.contents()
            blank = related.ask("hybrid_search", query=" ", like_ids=[known])
            assert blank.contents() == more.contents()
            assert related.ask_with_progress("hybrid_search", like_ids=[known]) == [
                (0, 1, "Searching")
            ]


def test_a_viewer_finds_what_is_related_only_to_what_they_may_see(here: Here, corpus: str) -> None:
    with psycopg.connect(corpus) as connection:
        ids: dict[str, str] = dict(
            connection.execute("select external_key, id::text from public.knowledge_documents")
        )
    with here(Scope(viewer_id=UUID(ANA))) as ana:
        related = ana.ask("hybrid_search", like_ids=[ids["recorder"]], limit=50)
        assert related.contents() <= {KEYS, LEAKED}
        assert related.contents()
        for hidden in ("hostile", str(UUID(int=7))):
            refused = ana.ask("hybrid_search", like_ids=[ids.get(hidden, hidden)])
            assert refused.is_error
            assert "like_ids: no visible chunk or document has the id" in refused.text

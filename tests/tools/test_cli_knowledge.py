"""The command search, and refusals of all commands, as typed, on a real database."""

import json
import re
import sys
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from command_line import Run, hits
from conftest import Connection
from corpora import store_document
from second_brain.models.rerankers import Reranker
from second_brain.services.write import KnowledgeWriter
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["ingest"], "--python-stdlib"),
        (["ingest", "docs", "--knowledge-type", "poem"], "conversation"),
        (["search", "x", "--mode", "best"], "hybrid"),
    ],
)
def test_wrong_usage_is_told_with_what_is_allowed(
    brain: Run, arguments: list[str], named: str
) -> None:
    done = brain(*arguments)
    assert done.code == 2
    assert named in done.err


def test_the_table_shows_title_ranks_score_and_matched_words(brain: Run) -> None:
    brain("ingest", "docs")
    header, first, line, *_ = brain("search", "yellow bananas", "--limit", "2").out.splitlines()
    assert header.split()[-4:] == ["vector", "text", "score", "matched"]
    assert first.split()[:4] == ["1", "Fruit", "1", "1"]
    # The best by words has 1 for them, and its cosine is added.
    assert re.fullmatch(r"[1-9]\.\d{4}", first.split()[4])
    assert "Bananas are yellow and long." in line
    assert max(map(len, (header, first, line))) <= 100


def test_stored_text_cannot_steer_the_terminal(brain: Run, tmp_path: Path) -> None:
    (tmp_path / "docs" / "evil.txt").write_text("evil \x1b[2J\x1b]0;title\x07 words")
    brain("ingest", "docs")
    done = brain("search", "evil", "--mode", "text")
    assert "evil" in done.out
    assert "\x1b" not in done.out
    assert "\x07" not in done.out


@pytest.mark.parametrize("options", [(), ("--snippet",)], ids=["line", "excerpt"])
@pytest.mark.parametrize("question", ["rotated obelisk", "obelisk", '"tall obelisk"'])
def test_the_excerpt_shown_has_the_words(
    brain: Run, tmp_path: Path, question: str, options: tuple[str, ...]
) -> None:
    filler = "Something else is said here at some length. " * 6
    text = f"# Stones\n\n{filler}We are rotating the tall obelisk at noon. {filler}\n\nMore words."
    (tmp_path / "docs" / "stones.md").write_text(text)
    brain("ingest", "docs")
    done = brain("search", question, "--mode", "text", "--limit", "1", *options)
    assert "obelisk" in done.out.split("Stones", 1)[1].replace("obelisk\n", "", 1)
    assert max(map(len, done.out.splitlines())) <= 100


def test_nothing_found_is_said(brain: Run, modules: tuple[str, ...]) -> None:
    brain("ingest", "docs")
    why = (
        " No row that passes the filters has a word of the question: "
        '"zebra". Ask with other words, or with an embedding.'
    )
    told = "Nothing found." + (why if "insight" in modules else "")
    done = brain("search", "zebra", "--mode", "text")
    assert (done.code, done.out, done.err.splitlines()[1:]) == (0, "", [told])
    answer = json.loads(brain("search", "zebra", "--mode", "text", "--json").out)
    reason = answer["empty"]["reason"] if "insight" in modules else None
    assert (answer["results"], reason) == ([], "no_words" if "insight" in modules else None)


MINE = UUID(int=1)


@pytest.fixture
def zoo(brain: Run, database: Connection) -> Run:
    """Run `second-brain` on a public note, a private decision of MINE and somebody's history."""
    documents: list[tuple[dict[str, object], list[str]]] = [
        (
            {
                "title": "Savanna",
                "visibility": "public",
                "knowledge_type": "note",
                "document_date": "2026-01-31",
                "metadata": {"tags": ["api"]},
            },
            ["A zebra & a lion.", "The zebra sleeps.", "Grass grows."],
        ),
        (
            {"title": "Farm", "owner_id": MINE, "document_date": "2025-06-01"},
            ["No zebra, but a horse."],
        ),
        (
            {
                "title": "Past",
                "owner_id": UUID(int=2),
                "collection": "archive",
                "allowed_groups": ["staff"],
            },
            ["A zebra of long ago."],
        ),
    ]
    writer = KnowledgeWriter(database)
    for number, (document, chunks) in enumerate(documents):
        writer.upsert_document(
            {"external_key": f"{number}", **document}, [{"content": chunk} for chunk in chunks]
        )
    return brain


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["Farm", "Past", "Savanna", "Savanna"]),
        (["--filters", '[{"field": "chunk_index", "op": "gt", "value": 0}]'], ["Savanna"]),
        (
            ["--collection", "archive", "--collection", "knowledge"],
            ["Farm", "Past", "Savanna", "Savanna"],
        ),
        (
            ["--viewer-id", str(MINE), "--viewer-groups", "board", "--viewer-groups", "staff"],
            ["Farm", "Past", "Savanna", "Savanna"],
        ),
        (["--public-only"], ["Savanna", "Savanna"]),
        (["--date-to", "2026-01-30"], ["Farm"]),
        (["--one-per-document"], ["Farm", "Past", "Savanna"]),
        (["--knowledge-type", "note", "--offset", "1"], ["Savanna"]),
    ],
    ids=" ".join,
)
def test_options_decide_what_is_found(zoo: Run, options: list[str], expected: list[str]) -> None:
    found = hits(zoo("search", "zebra", "--mode", "text", "--json", *options))
    assert sorted(hit["metadata"]["title"] for hit in found) == expected


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (["--filters", "[{"], 2, "--filters is not JSON"),
        (["--viewer-id", "me"], 2, "--viewer-id"),
        (["--filters", '[{"field": "nosuch", "op": "eq", "value": 1}]'], 1, "filters[0].field"),
    ],
)
def test_a_wrong_option_is_told(zoo: Run, options: list[str], code: int, named: str) -> None:
    done = zoo("search", "zebra", "--mode", "text", *options)
    assert (done.code, done.out) == (code, "")
    assert named in done.err


def test_facets_are_counted_over_the_chunks_that_have_the_words(zoo: Run) -> None:
    asked = ("search", "zebra", "--mode", "text", "--limit", "1", "--facet", "collection")
    lines = [line.split() for line in zoo(*asked).out.splitlines()[-2:]]
    assert lines == [["collection", "knowledge", "3"], ["collection", "archive", "1"]]
    counted = json.loads(zoo(*asked, "--json").out)["facets"]
    assert counted[1] == {"facet": "collection", "value": "archive", "count": 1}


def test_chunks_without_an_embedding_are_told_to_those_who_may_see_them(
    brain: Run, dsn: str
) -> None:
    brain("ingest", "docs")
    with psycopg.connect(dsn, autocommit=True) as connection:
        KnowledgeWriter(connection).upsert_document(
            {"external_key": "draft", "owner_id": UUID(int=1)}, [{"content": "A yellow draft."}]
        )
    note = "1 chunk is not embedded yet; searches find it by its words only."
    done = brain("search", "yellow")
    assert (done.code, note in done.err, note in done.out) == (0, True, False)
    assert json.loads(brain("search", "yellow", "--json").out)["pending_embeddings"] == 1
    assert note not in brain("search", "yellow", "--mode", "text").err
    hidden = brain("search", "yellow", "--viewer-id", str(UUID(int=2)), "--json")
    assert json.loads(hidden.out)["pending_embeddings"] == 0


def test_a_page_says_where_it_stands(zoo: Run) -> None:
    done = zoo("search", "zebra", "--mode", "text", "--limit", "2", "--offset", "1")
    assert done.out.splitlines()[-1] == "Hits 2 to 3 of 4."
    ranks = [line.split()[0] for line in done.out.splitlines()[1:5:2]]
    assert ranks == ["2", "3"]
    everything = zoo("search", "zebra", "--mode", "text")
    assert "Hits" not in everything.out


def test_excerpt_and_neighbours_stand_under_the_title(zoo: Run) -> None:
    done = zoo("search", "lion", "--mode", "text", "--snippet", "--expand-neighbors", "1")
    assert [line.strip() for line in done.out.splitlines()[2:]] == [
        "A zebra & a lion.",
        "| A zebra & a lion.",
        "| The zebra sleeps.",
    ]


@pytest.mark.parametrize("dimensions", [3])
@pytest.mark.parametrize("command", [["ingest", "docs"], ["search", "key"]])
def test_an_embedder_of_another_size_is_refused_with_the_remedy(
    brain: Run, command: list[str]
) -> None:
    done = brain(*command)
    assert (done.code, done.out) == (1, "")
    assert "have 3 dimensions, but wordllama-l2-256 has 256" in done.err
    assert "second-brain corpus reembed start --embedder NAME" in done.err


@pytest.mark.parametrize("dimensions", [3])
def test_a_search_by_words_needs_no_embedder(brain: Run, database: Connection) -> None:
    KnowledgeWriter(database).upsert_document({"external_key": "a"}, [{"content": "a zebra"}])
    (hit,) = hits(brain("search", "zebra", "--mode", "text", "--json"))
    assert hit["content"] == "a zebra"


@pytest.mark.module("insight")
@pytest.mark.parametrize("dimensions", [3])
@pytest.mark.parametrize("options", [["--embedder", "none"], []], ids=["none", "not installed"])
def test_a_search_without_an_embedder_finds_what_is_like_its_text_hits(
    brain: Run, database: Connection, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    texts = {"a zebra": [1.0, 0.1, 0.0], "striped horses": [1.0, 0.0, 0.0]}
    store_document(database, "a", texts, "other-3")
    if not options:
        monkeypatch.setitem(sys.modules, "wordllama", None)
    done = brain("search", "zebra", "--json", *options)
    assert [hit["content"] for hit in hits(done)] == [*texts]
    assert "embedding of the question is from the best text hits" in done.err
    refused = brain("search", "zebra", "--mode", "vector", *options)
    assert (refused.code, refused.out) == (1, "")
    assert "without an embedder" in refused.err
    assert "vector leg: not run" not in brain("search", "zebra", "--explain", *options).out


@pytest.mark.parametrize("command", [["ingest", "docs"], ["search", "key"]])
def test_an_embedder_of_another_model_is_refused_by_name(
    brain: Run, database: Connection, command: list[str]
) -> None:
    store_document(database, "a", {"a": [1.0] * 256}, "other-256")
    done = brain(*command)
    assert (done.code, done.out) == (1, "")
    assert "embeddings of other-256" in done.err
    assert "--switch-model" in done.err


def test_a_corpus_can_be_switched_to_another_model(brain: Run, database: Connection) -> None:
    brain("ingest", "docs")
    database.execute("update public.knowledge_chunks set embedding_model = 'other-256'")
    assert brain("search", "key").code == 1
    assert "3 embedded" in brain("ingest", "docs", "--switch-model").out
    assert brain("search", "key").code == 0


def test_a_database_without_tables_is_told_to_be_migrated(run: Run, plain_dsn: str) -> None:
    done = run("search", "key", "--dsn", plain_dsn)
    assert done.code == 1
    assert "second-brain migrate --dimensions 256" in done.err


@pytest.mark.module("insight")
def test_a_search_takes_weights_similarity_and_fusion(brain: Run) -> None:
    brain("ingest", "docs")

    def ranks(*options: str) -> list[tuple[int | None, int | None]]:
        found = hits(brain("search", "yellow key", "--json", *options))
        return [(hit["metadata"]["vector_rank"], hit["metadata"]["text_rank"]) for hit in found]

    assert {text for _, text in ranks("--text-weight", "0")} == {None}
    assert {vector for vector, _ in ranks("--vector-weight", "0")} == {None}
    assert ranks("--mode", "vector", "--threshold", "1") == []
    explained = json.loads(
        brain("search", "yellow key", "--fusion", "rrf", "--explain", "--json").out
    )
    assert explained["explanation"]["fusion"]["policy"] == "rrf"
    assert brain("search", "yellow", "--fusion", "best").code == 2


def test_a_reranker_orders_the_first_hits_and_pages_cut_one_list(
    brain: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    brain("ingest", "docs")
    asked = []

    # Stands for a model.
    def load(name: str) -> Reranker:
        asked.append(name)
        return lambda _question, texts: [float("wheels" in text) for text in texts]

    monkeypatch.setattr("second_brain.cli.search.load_reranker", load)
    titles = {
        options: [
            hit["metadata"]["title"]
            for hit in hits(brain("search", "yellow bananas", "--json", *options))
        ]
        for options in ((), ("--rerank",), ("--mode", "rerank", "--reranker", "cohere"))
    }
    fused, reranked, by_mode = titles.values()
    assert (fused[0], reranked[0], by_mode) == ("Fruit", "cars", reranked)
    assert asked == ["cross-encoder", "cohere"]
    second = hits(
        brain("search", "yellow bananas", "--rerank", "--limit", "1", "--offset", "1", "--json")
    )
    assert [(hit["rank"], hit["metadata"]["title"]) for hit in second] == [(2, reranked[1])]

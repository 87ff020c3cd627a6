"""The command search, and refusals of all commands, as typed, on a real database."""

import json
import re
import sys
from pathlib import Path
from uuid import UUID

import pytest

from command_line import Done, Run, hits
from conftest import Connection
from corpora import store_document
from second_brain.models.rerankers import Reranker
from support.documents import upsert
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn

MINE = str(UUID(int=1))
ZEBRA = ("search", "zebra", "--mode", "text")


@pytest.fixture
def filled(brain: Run) -> Run:
    """Run `second-brain` on three documents with embeddings."""
    brain("ingest", "docs")
    return brain


@pytest.fixture
def zoo(brain: Run, database: Connection) -> Run:
    """Run `second-brain` on a public note, a private decision of MINE and somebody's history."""
    note = {"visibility": "public", "knowledge_type": "note", "document_date": "2026-01-31"}
    chunks = ("A zebra & a lion.", "The zebra sleeps.", "Grass grows.")
    upsert(database, "0", *chunks, title="Savanna", **note)
    mine = {"owner_id": MINE, "document_date": "2025-06-01"}
    upsert(database, "1", "No zebra, but a horse.", title="Farm", **mine)
    past = {"owner_id": UUID(int=2), "collection": "archive", "allowed_groups": ["staff"]}
    upsert(database, "2", "A zebra of long ago.", title="Past", **past)
    return brain


def titles(done: Done) -> list[str]:
    return [hit["metadata"]["title"] for hit in hits(done)]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("ingest",), 2, "PATH|URL..."),
        (("ingest", "docs", "--knowledge-type", "poem"), 2, "conversation"),
        (("search",), 2, "give a question, or --like ID"),
        (("search", "x", "--mode", "best"), 2, "hybrid"),
        (("search", "x", "--fusion", "best"), 2, "relative_score"),
        ((*ZEBRA, "--filters", "[{"), 2, "--filters is not JSON"),
        ((*ZEBRA, "--viewer-id", "me"), 2, "--viewer-id"),
        ((*ZEBRA, "--filters", '[{"field": "no", "op": "eq", "value": 1}]'), 1, "filters[0].field"),
    ],
)
def test_wrong_usage_is_told_with_what_is_allowed(
    brain: Run, arguments: tuple[str, ...], code: int, named: str
) -> None:
    done = brain(*arguments)
    assert (done.code, done.out) == (code, "")
    assert named in done.err


def test_the_table_shows_title_ranks_score_and_matched_words(filled: Run) -> None:
    header, first, line, *_ = filled("search", "yellow bananas", "--limit", "2").out.splitlines()
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
    assert not {"\x1b", "\x07"} & {*done.out}


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


def test_nothing_found_is_said(filled: Run, modules: tuple[str, ...]) -> None:
    why = (
        " No row that passes the filters has a word of the question: "
        '"zebra". Ask with other words, or with an embedding.'
    )
    told = "Nothing found." + (why if "insight" in modules else "")
    done = filled(*ZEBRA)
    assert (done.code, done.out, done.err.splitlines()[1:]) == (0, "", [told])
    answer = json.loads(filled(*ZEBRA, "--json").out)
    reason = answer["empty"]["reason"] if "insight" in modules else None
    assert (answer["results"], reason) == ([], "no_words" if "insight" in modules else None)


def test_what_is_like_a_hit_is_found_without_a_question(filled: Run) -> None:
    first = hits(filled("search", "yellow", "--json"))[0]["id"]
    related = [hit["id"] for hit in hits(filled("search", "--like", first, "--json"))]
    assert related
    assert first not in related


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", "Farm Past Savanna Savanna"),
        ('--filters [{"field":"chunk_index","op":"gt","value":0}]', "Savanna"),
        ("--collection archive", "Past"),
        ("--collection archive --collection knowledge --public-only", "Savanna Savanna"),
        (f"--viewer-id {MINE} --viewer-groups board", "Farm Savanna Savanna"),
        ("--viewer-groups board --viewer-groups staff", "Past Savanna Savanna"),
        ("--date-to 2026-01-30", "Farm"),
        ("--one-per-document", "Farm Past Savanna"),
        ("--knowledge-type note --offset 1", "Savanna"),
    ],
)
def test_options_decide_what_is_found(zoo: Run, options: str, expected: str) -> None:
    assert sorted(titles(zoo(*ZEBRA, "--json", *options.split()))) == expected.split()


def test_facets_are_counted_over_the_chunks_that_have_the_words(zoo: Run) -> None:
    asked = (*ZEBRA, "--limit", "1", "--facet", "collection")
    lines = [line.split() for line in zoo(*asked).out.splitlines()[-2:]]
    assert lines == [["collection", "knowledge", "3"], ["collection", "archive", "1"]]
    counted = json.loads(zoo(*asked, "--json").out)["facets"]
    assert counted[1] == {"facet": "collection", "value": "archive", "count": 1}


def test_chunks_without_an_embedding_are_told_to_those_who_may_see_them(
    filled: Run, database: Connection
) -> None:
    upsert(database, "draft", "A yellow draft.", owner_id=MINE)
    note = "1 chunk is not embedded yet; searches find it by its words only."
    done = filled("search", "yellow")
    assert (done.code, note in done.err, note in done.out) == (0, True, False)
    assert note not in filled("search", "yellow", "--mode", "text").err
    for options, pending in ((), 1), (("--viewer-id", str(UUID(int=2))), 0):
        told = json.loads(filled("search", "yellow", "--json", *options).out)
        assert told["pending_embeddings"] == pending


def test_a_page_says_where_it_stands(zoo: Run) -> None:
    lines = zoo(*ZEBRA, "--limit", "2", "--offset", "1").out.splitlines()
    assert lines[-1] == "Hits 2 to 3 of 4."
    assert [line.split()[0] for line in lines[1:5:2]] == ["2", "3"]
    assert "Hits" not in zoo(*ZEBRA).out


def test_excerpt_and_neighbours_stand_under_the_title(zoo: Run) -> None:
    done = zoo("search", "lion", "--mode", "text", "--snippet", "--expand-neighbors", "1")
    assert [line.strip() for line in done.out.splitlines()[2:]] == [
        "A zebra & a lion.",
        "| A zebra & a lion.",
        "| The zebra sleeps.",
    ]


@pytest.mark.parametrize("command", [["ingest", "docs"], ["search", "key"]])
@pytest.mark.parametrize(
    ("dimensions", "told", "remedy"),
    [
        (3, "have 3 dimensions, but wordllama-l2-256 has 256", "corpus reembed start --embedder"),
        (256, "embeddings of other-256", "--switch-model"),
    ],
    ids=["size", "model"],
)
def test_an_embedder_of_another_size_or_model_is_refused_with_the_remedy(
    brain: Run, database: Connection, command: list[str], dimensions: int, told: str, remedy: str
) -> None:
    store_document(database, "a", {"a": [1.0] * dimensions}, f"other-{dimensions}")
    done = brain(*command)
    assert (done.code, done.out) == (1, "")
    assert told in done.err
    assert remedy in done.err


def test_a_corpus_can_be_switched_to_another_model(filled: Run, database: Connection) -> None:
    database.execute("update public.knowledge_chunks set embedding_model = 'other-256'")
    assert filled("search", "key").code == 1
    assert "3 embedded" in filled("ingest", "docs", "--switch-model").out
    assert filled("search", "key").code == 0


@pytest.mark.parametrize("dimensions", [3])
def test_a_search_by_words_needs_no_embedder(brain: Run, database: Connection) -> None:
    upsert(database, "a", "a zebra")
    (hit,) = hits(brain(*ZEBRA, "--json"))
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


def test_a_database_without_tables_is_told_to_be_migrated(run: Run, plain_dsn: str) -> None:
    done = run("search", "key", "--dsn", plain_dsn)
    assert done.code == 1
    assert "second-brain migrate --dimensions 256" in done.err


@pytest.mark.module("insight")
def test_a_search_takes_weights_similarity_and_fusion(filled: Run) -> None:
    asked = ("search", "yellow key", "--json")

    def ranks(*options: str) -> list[tuple[int | None, int | None]]:
        found = [hit["metadata"] for hit in hits(filled(*asked, *options))]
        return [(one["vector_rank"], one["text_rank"]) for one in found]

    assert {text for _, text in ranks("--text-weight", "0")} == {None}
    assert {vector for vector, _ in ranks("--vector-weight", "0")} == {None}
    assert ranks("--mode", "vector", "--threshold", "1") == []
    explained = json.loads(filled(*asked, "--fusion", "rrf", "--explain").out)
    assert explained["explanation"]["fusion"]["policy"] == "rrf"


def test_a_reranker_orders_the_first_hits_and_pages_cut_one_list(
    filled: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []

    # Stands for a model.
    def load(name: str) -> Reranker:
        names.append(name)
        return lambda _question, texts: [float("wheels" in text) for text in texts]

    monkeypatch.setattr("second_brain.cli.search.load_reranker", load)
    asked = ("search", "yellow bananas", "--json")
    reranked = titles(filled(*asked, "--rerank"))
    assert (titles(filled(*asked))[0], reranked[0]) == ("Fruit", "cars")
    assert titles(filled(*asked, "--mode", "rerank", "--reranker", "cohere")) == reranked
    assert names == ["cross-encoder", "cohere"]
    (second,) = hits(filled(*asked, "--rerank", "--limit", "1", "--offset", "1"))
    assert (second["rank"], second["metadata"]["title"]) == (2, reranked[1])


def spaced(done: Done) -> list[str]:
    """Return the lines of a table, with one space between its cells."""
    assert done.code == 0, done.err
    return [" ".join(line.split()) for line in done.out.splitlines()]


@pytest.mark.module("insight")
def test_an_explanation_reads_by_itself(zoo: Run) -> None:
    options = ("--mode", "text", "--explain", "--include-memory", "--limit", "2")
    done = zoo("search", "zebra quagga", *options)
    lines = spaced(done)
    assert done.err.count("\n") == 1
    assert lines[0] == "vector leg not run"
    assert re.fullmatch(r"text leg .*; 4 rows for a pool of 50 in each list, [0-9.]+ ms", lines[1])
    assert lines[2].startswith("fewer rows than the pool: fewer rows")
    assert lines[3] == "4 candidates of 5 chunks, 4 words on average"
    assert lines[4] == "fusion auto, weights: vector 1.000, text 1.000"
    assert re.fullmatch(r"whole call [0-9.]+ ms", lines[5])
    # Before them, the lists of memory and of all others.
    start = lines.index("lexeme documents weight candidates")
    table, found = lines[start + 1 : start + 3], lines[start + 4 :]
    assert re.fullmatch(r"quagga 0 [0-9.]+ used", table[0])
    assert re.fullmatch(r"zebra 4 [0-9.]+ used", table[1])
    assert found[0] == "# title and chunk vector cosine text BM25 score matched"
    assert re.fullmatch(r"1 \w+, chunk \d - - [12] [0-9.]+ 1\.0150 zebra", found[1])
    assert len(found) == 3
    assert max(map(len, done.out.splitlines())) <= 100


@pytest.mark.module("insight")
def test_the_candidates_grow_with_the_hits_as_in_the_service(zoo: Run) -> None:
    assert "for a pool of 120" in zoo(*ZEBRA, "--explain", "--limit", "40").out
    assert "for a pool of 80" in zoo(*ZEBRA, "--explain", "--pool-size", "80").out


@pytest.mark.module("insight")
def test_an_explanation_tells_of_both_legs(filled: Run) -> None:
    lines = spaced(filled("search", "yellow bananas", "--explain", "--include-memory"))
    assert lines[0].startswith("vector leg compared: few rows; 3 rows for a pool of 50")
    hit = r"1 Fruit, chunk 0 1 0\.\d{3} 1 \d\.\d{3} [1-9]\.\d{4}"
    assert any(re.match(hit, line) for line in lines)


@pytest.mark.module("insight")
@pytest.mark.parametrize(
    ("question", "told"),
    [("unicorn", "text leg .* 0 rows for a pool of 50"), ('"---"', "text leg +not run")],
)
def test_an_explanation_of_nothing_says_so(zoo: Run, question: str, told: str) -> None:
    done = zoo("search", question, "--mode", "text", "--explain")
    assert done.code == 0, done.err
    assert "Nothing found. " in done.out
    assert re.search(told, done.out, re.MULTILINE)


@pytest.mark.module("insight")
def test_an_estimate_has_a_line_for_each_leg_and_no_hits(zoo: Run) -> None:
    options = (*ZEBRA, "--estimate", "--include-memory")
    time, rows, vector, text = spaced(zoo(*options))
    assert re.fullmatch(r"about \d+\.\d ms in the database", time)
    assert re.fullmatch(r"about \d+ of \d+ chunks pass the filters", rows)
    assert vector == "vector leg: not run"
    assert re.fullmatch(r"text leg: all rows, about \d+ rows?, \d+\.\d ms", text)
    told = json.loads(zoo(*options, "--json").out)
    assert told["estimate"]["vector"] == {"strategy": "not run", "rows": 0, "milliseconds": None}


@pytest.mark.module("insight")
def test_an_explanation_of_several_collections_has_all_lists(zoo: Run) -> None:
    asked = (*ZEBRA, "--explain", "--collection", "archive", "--collection", "knowledge")
    lines = spaced(zoo(*asked))
    assert "4 rows for a pool of 50 in each list" in lines[1]
    assert lines[4] == "fusion auto, weights: vector 1.000, text 1.000"
    assert lines[7] == "collection vector leg text leg vector weight text weight"
    archive, knowledge = sorted(lines[8:10])
    assert archive.startswith("archive 0, not run 1, ")
    assert knowledge.startswith("knowledge 0, not run 3, ")
    told = json.loads(zoo(*asked, "--json").out)
    assert told["question"] == "zebra"
    assert len(told["explanation"]["hits"]) == 4

"""The commands `corpus`: documents, judgments, fields and the index, as typed, on a database."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from command_line import Run
from conftest import Connection
from second_brain.database import vector_index
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.install import Database
from second_brain.services.write import KnowledgeWriter
from support.documents import upsert
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn


@pytest.fixture
def filled(brain: Run, database: Connection) -> Run:
    """Run `second-brain` on three documents with embeddings, and one that waits for its own."""
    assert brain("ingest", "docs").code == 0
    chunks = ("First \x1b]0;x\x07 line.\nSecond\u202e line.", "Another chunk.")
    upsert(database, "support:1", *chunks, title="A \x1b[2J title", collection="support")
    return brain


def listed(run: Run, *options: str) -> tuple[list[str], str | None]:
    """Return the keys of the documents that `corpus list` shows, and where the next page begins."""
    done = run("corpus", "list", "--json", *options)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    return [one["external_key"] for one in found["documents"]], found["next"]


def test_documents_are_listed_with_their_states_filtered_and_paged(filled: Run) -> None:
    everything = ["docs:cars.txt", "docs:fruit.md", "docs:keys.md", "support:1"]
    assert listed(filled) == (everything, None)
    assert listed(filled, "--state", "ready") == (everything[:3], None)
    assert listed(filled, "--limit", "2") == (everything[:2], "docs:fruit.md")
    assert listed(filled, "--limit", "2", "--after", "docs:fruit.md") == (everything[2:], None)
    assert "--after docs:fruit.md" in filled("corpus", "list", "--limit", "2").err
    for options in (["--state", "pending"], ["--collection", "support"], ["--named", "TITLE"]):
        assert listed(filled, *options) == (["support:1"], None)
    assert filled("corpus", "list", "--named", "nothing").err.endswith("No such documents.\n")
    table = filled("corpus", "list").out
    assert "docs:fruit.md" in table
    assert "\x1b" not in table


def test_a_document_is_shown_with_its_chunks_and_why_they_wait(filled: Run) -> None:
    def show(name: str, *options: str) -> Any:
        return filled("corpus", "show", name, *options)

    found = json.loads(show("support:1", "--json").out)
    assert [one["state"] for one in found["chunks"]] == ["pending", "pending"]
    assert "it has no embedding" in found["chunks"][0]["reason"]
    for name in (found["document"]["id"], found["chunks"][1]["id"]):
        assert "Another chunk." in show(name).out
    assert "First" not in show(found["chunks"][1]["id"]).out
    page = show("support:1", "--limit", "1")
    assert "Another chunk." not in page.out
    assert "second-brain corpus show support:1 --limit 1 --offset 1" in page.err
    assert "Another chunk." in show("support:1", "--limit", "1", "--offset", "1").out


def test_stored_control_characters_are_shown_as_codes(filled: Run) -> None:
    out = filled("corpus", "show", "support:1").out
    assert "A \\x1b[2J title" in out
    assert "  First \\x1b]0;x\\x07 line.\n  Second\\u202e line.\n" in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)


def test_what_is_not_stored_is_said_with_the_remedy(filled: Run) -> None:
    for name in ("nothing", str(uuid4())):
        done = filled("corpus", "show", name)
        assert done.code == 1
        said = f"nothing is stored under '{name}'. List the keys: second-brain corpus list"
        assert said in done.err


def test_a_search_leads_to_show(filled: Run) -> None:
    told = "Read the first hit (module insight): second-brain corpus show docs:fruit.md\n"
    assert told in filled("search", "yellow bananas").err
    assert "Bananas are yellow and long." in filled("corpus", "show", "docs:fruit.md").out


def exported(filled: Run, folder: Path, word: str) -> str:
    """Export the corpus; return the id of the document that has a word."""
    assert filled("corpus", "judgments", "export", "all").code == 0
    lines = (folder / "all" / "corpus.jsonl").read_text().splitlines()
    return str(next(one["_id"] for one in map(json.loads, lines) if word in one["text"]))


def test_a_start_file_becomes_a_collection_to_measure(filled: Run, tmp_path: Path) -> None:
    fruit = exported(filled, tmp_path, "Bananas")
    (tmp_path / "questions.tsv").write_text(f"which fruit is yellow?\t{fruit}\n")
    assert filled("corpus", "judgments", "import", "questions.tsv").out == "1 judgment stored.\n"
    done = filled("corpus", "judgments", "export", "judged")
    assert done.out == "1 judgment written to judged.\n"
    qrels = (tmp_path / "judged" / "qrels" / "test.tsv").read_text().splitlines()
    assert qrels[1:] == [f"q1\t{fruit}\t2"]
    filled("corpus", "judgments", "export", "judged.csv")
    assert "which fruit is yellow?" in (tmp_path / "judged.csv").read_text()


def test_search_says_why_a_document_is_not_found(filled: Run, tmp_path: Path) -> None:
    cars = exported(filled, tmp_path, "automobile")
    asked = ("search", "automobile -engine", "--mode", "text", "--why-not", cars)
    lines = filled(*asked).out.splitlines()
    assert lines[0].endswith(": not found")
    assert "excluded words (query_text): it has what is excluded: -engine" in lines
    assert lines[-1] == "  Ask without the excluded words."
    assert json.loads(filled(*asked, "--json").out)["causes"][0]["parts"] == ["-engine"]


FIELDS = ("corpus", "settings", "fields")
REWRITTEN = "30 chunks were rewritten.\n"
STORE = """
insert into public.knowledge_chunks (content, heading, metadata)
select 'alpha' || number, 'gravel', '{"author": "ada"}' from generate_series(1, 30) as number
"""


@pytest.fixture
def corpus(brain: Run, database: Connection) -> KnowledgeWriter:
    database.execute(STORE)
    return KnowledgeWriter(database)


def stored(corpus: KnowledgeWriter, collection: str = "") -> str | None:
    return next(one.fields for one in corpus.settings() if one.collection == collection)


@pytest.mark.module("field_weights")
def test_fields_that_are_not_given_stay_and_every_chunk_is_rewritten(
    brain: Run, corpus: KnowledgeWriter
) -> None:
    done = brain(*FIELDS, "--heading-weight", "1", "--text-key", "author")
    assert (done.code, done.out) == (0, REWRITTEN)
    assert json.loads(brain("search", "ada", "--mode", "text", "--json").out)["results"]
    assert brain(*FIELDS, "--title-weight", "3").out == REWRITTEN
    assert "fusion auto, vector weight 1, text weight 1, heading 1, title 3, metadata author" in (
        brain("corpus", "settings", "show").out
    )
    brain(*FIELDS, "--text-key", "")
    assert stored(corpus) == "heading 1, title 3, metadata none"
    assert not json.loads(brain("search", "ada", "--mode", "text", "--json").out)["results"]


@pytest.mark.module("field_weights")
def test_without_options_the_rewriting_of_fields_goes_on_where_it_was_stopped(
    brain: Run, corpus: KnowledgeWriter
) -> None:
    corpus.set_fields(CorpusSettings(heading_weight=5))
    assert corpus.rewrite_chunks(12) == 18
    assert "Rewriting 18 chunks" in brain(*FIELDS).err
    assert json.loads(brain(*FIELDS, "--json").out) == {"rewritten": 0}


@pytest.mark.module("field_weights")
def test_settings_of_a_collection_that_are_removed_leave_chunks_to_rewrite(
    brain: Run, corpus: KnowledgeWriter
) -> None:
    brain(*FIELDS, "--collection", "knowledge", "--heading-weight", "0")
    assert (stored(corpus), stored(corpus, "knowledge")) == (None, "heading 0")
    removed = brain("corpus", "settings", "reset", "--collection", "knowledge").out
    assert (
        removed == f"Removed. 30 chunks have its fields: run `second-brain {' '.join(FIELDS)}`.\n"
    )
    assert brain(*FIELDS).out == REWRITTEN


@pytest.mark.parametrize("dimensions", [3])
def test_the_commands_show_build_and_drop_the_index(brain: Run) -> None:
    assert "halfvec" in brain("corpus", "index", "show").out
    built = brain("corpus", "index", "build", "--kind", "vector", "--m", "8")
    assert "building the vector index" in built.err
    assert "vector" in built.out.splitlines()[-2]
    dropped = brain("corpus", "index", "drop")
    assert "index build" in dropped.out + dropped.err
    assert "No index" in brain("corpus", "index", "show").out


@pytest.mark.parametrize("dimensions", [3])
def test_missing_settings_come_from_the_current_index(brain: Run, dsn: str) -> None:
    def built(*options: str) -> tuple[str, int | None, int | None]:
        assert brain("corpus", "index", "build", *options).code == 0
        with psycopg.connect(dsn) as connection:
            found = vector_index.show(Database(connection))
        (one,) = (one for one in found if one.name == vector_index.VECTOR_INDEX)
        return one.kind, one.m, one.ef_construction

    assert built("--kind", "vector", "--m", "8", "--ef-construction", "40") == ("vector", 8, 40)
    assert built() == ("vector", 8, 40)
    assert built("--m", "12") == ("vector", 12, 40)
    assert built("--kind", "halfvec") == ("halfvec", 12, 40)
    vector_index.drop(dsn)
    assert built() == ("halfvec", 16, 64)

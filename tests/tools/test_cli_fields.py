"""The command `corpus settings fields`, as typed, on a real database."""

import json

import pytest

from command_line import Run
from conftest import Connection
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.write import KnowledgeWriter

pytestmark = pytest.mark.module("field_weights")

FIELDS = ("corpus", "settings", "fields")
STORE = """
insert into public.knowledge_chunks (content, heading, metadata)
select 'alpha' || number, 'gravel', '{"author": "ada"}' from generate_series(1, %s) as number
"""


@pytest.fixture
def corpus(brain: Run, database: Connection) -> KnowledgeWriter:
    database.execute(STORE, [30])
    return KnowledgeWriter(database)


def stored(corpus: KnowledgeWriter, collection: str = "") -> str | None:
    return next(one.fields for one in corpus.settings() if one.collection == collection)


def test_fields_that_are_not_given_stay_and_every_chunk_is_rewritten(
    brain: Run, corpus: KnowledgeWriter
) -> None:
    done = brain(*FIELDS, "--heading-weight", "1", "--text-key", "author")
    assert (done.code, done.out) == (0, "30 chunks were rewritten.\n")
    assert json.loads(brain("search", "ada", "--mode", "text", "--json").out)["results"]
    assert brain(*FIELDS, "--title-weight", "3").out == "30 chunks were rewritten.\n"
    assert "fusion auto, vector weight 1, text weight 1, heading 1, title 3, metadata author" in (
        brain("corpus", "settings", "show").out
    )
    brain(*FIELDS, "--text-key", "")
    assert stored(corpus) == "heading 1, title 3, metadata none"
    assert not json.loads(brain("search", "ada", "--mode", "text", "--json").out)["results"]


def test_without_options_it_goes_on_where_it_was_stopped(
    brain: Run, corpus: KnowledgeWriter
) -> None:
    corpus.set_fields(CorpusSettings(heading_weight=5))
    assert corpus.rewrite_chunks(12) == 18
    done = brain(*FIELDS)
    assert "Rewriting 18 chunks" in done.err
    assert json.loads(brain(*FIELDS, "--json").out) == {"rewritten": 0}


def test_settings_of_a_collection_that_are_removed_leave_chunks_to_rewrite(
    brain: Run, corpus: KnowledgeWriter
) -> None:
    brain(*FIELDS, "--collection", "knowledge", "--heading-weight", "0")
    assert (stored(corpus), stored(corpus, "knowledge")) == (None, "heading 0")
    removed = brain("corpus", "settings", "reset", "--collection", "knowledge").out
    assert removed == (
        "Removed. 30 chunks have its fields: run `second-brain corpus settings fields`.\n"
    )
    assert brain(*FIELDS).out == "30 chunks were rewritten.\n"

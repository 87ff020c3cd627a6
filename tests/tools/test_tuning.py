"""tune on made corpora: one where a leg is noise, and one where the legs do not differ."""

import json
from random import Random
from typing import Any

import numpy as np
import pytest

from command_line import Run
from conftest import Connection
from second_brain.evaluation import model_weight, tuning
from second_brain.models import CallableEmbedder
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.judgments import Judgment
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter

COUNT = 20
WORDS = [f"{first}{second}" for first in ("bri", "lom", "tak", "vun") for second in (
    "dorf", "esk", "gant", "hild", "jumo", "kepa"
)][:COUNT]  # fmt: skip
DIMENSIONS = 16
PLACES = list(range(COUNT))
NOISE = Random(3).sample(PLACES, COUNT)
VECTORS = np.random.default_rng(1).normal(size=(COUNT, DIMENSIONS))


@pytest.fixture
def dimensions() -> int:
    """Those of the made corpus."""
    return DIMENSIONS


def made(database: Connection, by_text: list[int], by_vector: list[int]) -> CallableEmbedder:
    """Store a word a document; a question's text is `by_text` of its document, and so on.

    Returns the model of the questions, which stands for one that is not here.
    """
    writer = KnowledgeWriter(database)
    for place, word in enumerate(WORDS):
        chunk = {"content": word, "embedding": VECTORS[place], "embedding_model": "made"}
        writer.upsert_document({"external_key": word}, [chunk])
    asked = {WORDS[by_text[place]]: VECTORS[by_vector[place]] for place in PLACES}
    writer.set_judgments(
        [
            Judgment(question=question, document_key=WORDS[place])
            for place, question in enumerate(asked)
        ]
    )
    return CallableEmbedder(lambda texts: [asked[text] for text in texts], "made", DIMENSIONS)


@pytest.fixture
def tune(run: Run, monkeypatch: pytest.MonkeyPatch, dsn: str) -> Any:
    """Tune and store as typed, with a model for the questions; return the JSON."""
    monkeypatch.setenv("SECOND_BRAIN_DSN", dsn)

    def tune(model: CallableEmbedder, *options: str) -> dict[str, Any]:
        monkeypatch.setattr(tuning, "BM25", ((1.2, 0.4),))
        monkeypatch.setattr(model_weight, "WEIGHTS", (0.1, 1.0, 3.0))
        for part in ("questions", "tuning"):
            commands = f"second_brain.evaluation.commands.{part}"
            monkeypatch.setattr(f"{commands}.configured_embedder", lambda _name: model)
        done = run("corpus", "tune", "--apply", "--json", *options)
        assert done.code == 0, done.err
        found: dict[str, Any] = json.loads(done.out)
        return found

    return tune


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by_text", "by_vector", "right", "noisy"),
    [(PLACES, NOISE, "text", "vector"), (NOISE, PLACES, "vector", "text")],
    ids=["vector is noise", "text is noise"],
)
def test_where_a_leg_is_noise_the_other_one_is_trusted(
    database: Connection,
    tune: Any,
    by_text: list[int],
    by_vector: list[int],
    right: str,
    noisy: str,
) -> None:
    model = made(database, by_text, by_vector)
    found = tune(model)
    assert found["best"]["nDCG@10"] == found[right] == 1 > found["in_use"] > found[noisy]
    assert found["gain"] > found["standard_error"] > 0
    stored = found["stored"]
    assert stored[f"{right}_weight"] > 1 > stored[f"{noisy}_weight"]
    provider = PostgresProvider(database)
    for place in PLACES:
        question = WORDS[by_text[place]]
        hits, _ = provider.find(model.embed([question])[0], question)
        assert hits[0].metadata["external_key"] == WORDS[place]


@pytest.mark.slow
def test_where_the_legs_do_not_differ_nothing_is_stored(database: Connection, tune: Any) -> None:
    found = tune(made(database, PLACES, PLACES))
    assert found["best"]["arguments"] == {}
    assert (found["is_better"], found["has_enough"], found["stored"]) == (False, True, None)
    assert KnowledgeWriter(database).settings() == []


@pytest.mark.slow
def test_k1_and_b_are_stored_where_they_gain_and_kept_when_weights_are_stored(
    database: Connection, tune: Any
) -> None:
    model = made(database, PLACES, PLACES)
    writer = KnowledgeWriter(database)
    filler = " ".join(f"{first}{second}" for first in "abcdef" for second in "ghijkl")
    for word in WORDS:
        # With b 0.75 the short chunk that has the word once is first, with 0.4 the long one.
        writer.upsert_document(
            {"external_key": word}, [{"content": f"{word} {word} {word} {filler}"}]
        )
        writer.upsert_document({"external_key": f"{word} short"}, [{"content": f"{word} ok"}])
    writer.set_settings(CorpusSettings(fusion="auto", bm25_b=0.75))
    found = tune(model)
    assert (found["in_use"], found["best"]["nDCG@10"]) == (pytest.approx(0.631, abs=0.001), 1)
    assert (found["best"]["b"], found["stored"]["bm25_b"]) == (0.4, 0.4)
    tuning.store(writer, "", CorpusSettings(fusion="rrf"))
    (stored,) = writer.settings()
    assert (stored.fusion, stored.bm25_b) == ("rrf", 0.4)


WEIGHT = "select vector_weight from public.knowledge_model_weights where model = 'made'"


def test_the_weight_of_a_model_is_measured_on_judged_questions(
    database: Connection, tune: Any
) -> None:
    found = tune(made(database, PLACES, NOISE), "--model")
    assert (found["model"], found["in_use"], found["stored"]) == ("made", 1, True)
    assert found["weights"]["3"] < found["weights"]["1"] < found["weights"][f"{found['best']:g}"]
    assert found["gain"] > found["standard_error"] > 0
    assert database.execute(WEIGHT).fetchone() == (found["best"],)


def test_without_judgments_titles_are_asked_and_the_corpus_stays_as_it_is(
    database: Connection, tune: Any
) -> None:
    writer = KnowledgeWriter(database)
    titles = [f"{word} {word}x" for word in WORDS]
    contents = [f"about {titles[place - 1]} alone" for place in PLACES]
    vectors = {
        text: VECTORS[place] for texts in (titles, contents) for place, text in enumerate(texts)
    }
    for title, content in zip(titles, contents, strict=True):
        chunk = {"content": content, "heading": title}
        chunk |= {"embedding": vectors[content], "embedding_model": "made"}
        writer.upsert_document({"external_key": title, "title": title}, [chunk])
    database.execute("insert into public.knowledge_model_weights values ('made', 0.1)")
    read = "select id, content, heading, content_tsv::text from public.knowledge_chunks order by id"
    before = database.execute(read).fetchall()
    model = CallableEmbedder(lambda texts: [vectors[text] for text in texts], "made", DIMENSIONS)
    found = tune(model, "--model")
    # Without its title, only the vector of a text leads to it, and its words to another one.
    assert found["in_use"] == 0.1
    assert found["weights"]["0.1"] < 1 == found["weights"]["3"]
    assert database.execute(WEIGHT).fetchone() == (found["best"],)
    assert database.execute(read).fetchall() == before


def titled(database: Connection, extra: int = 0) -> CallableEmbedder:
    """Store documents whose word is in the title alone, beside chunks that say it in passing."""
    model = made(database, PLACES, PLACES)
    writer = KnowledgeWriter(database)
    for word in WORDS:
        chunk = {"content": f"passing {word}", "heading": "aside", "embedding": None}
        writer.upsert_document({"external_key": f"{word} aside"}, [chunk])
        writer.upsert_document(
            {"external_key": word, "title": f"{word} {word}"},
            [{"content": f"part {number}", "heading": f"{number}"} for number in range(2)],
        )
    filler = "insert into public.knowledge_chunks (content) select 'x' from generate_series(1, %s)"
    database.execute(filler, [extra])
    database.execute("update public.knowledge_chunks set embedding = null")
    return model


@pytest.fixture
def tune_fields(run: Run, monkeypatch: pytest.MonkeyPatch, dsn: str) -> Any:
    """Try field weights as typed, with a model for the questions."""
    monkeypatch.setenv("SECOND_BRAIN_DSN", dsn)
    commands = "second_brain.evaluation.commands.questions"

    def tune_fields(model: CallableEmbedder, *options: str) -> Any:
        monkeypatch.setattr(f"{commands}.configured_embedder", lambda _name: model)
        return run("corpus", "tune", "--fields", *options)

    return tune_fields


@pytest.mark.module("field_weights")
def test_weights_of_the_title_are_tried_and_nothing_is_changed(
    database: Connection, tune_fields: Any
) -> None:
    model = titled(database)
    read = "select id, content_tsv::text from public.knowledge_chunks order by id"
    before = database.execute(read).fetchall()
    found = json.loads(tune_fields(model, "--json").out)
    assert found["in_use"] < 1
    assert found["gains"][str(found["best"])]["gain"] == pytest.approx(1 - found["in_use"])
    assert database.execute(read).fetchall() == before
    assert KnowledgeWriter(database).settings() == []
    said = tune_fields(model).out.splitlines()[-1]
    best = found["best"]
    assert said == (
        f"second-brain corpus settings fields --heading-weight {best} --title-weight {best}"
    )


@pytest.mark.module("field_weights")
def test_where_no_weight_gains_what_is_in_use_stays(database: Connection, tune_fields: Any) -> None:
    assert "Keep what is in use" in tune_fields(made(database, PLACES, PLACES)).out


def test_field_weights_are_not_tried_on_a_large_corpus_or_stored(
    database: Connection, tune_fields: Any
) -> None:
    model = titled(database, extra=1000)
    done = tune_fields(model)
    assert done.code == 1
    assert "more than 1,000 chunks" in done.err
    assert "excludes it" in tune_fields(model, "--apply").err

"""A corpus with judged questions whose best settings can be seen by reading.

Eight documents have one word each; the question for a document is its word. The embedding of a
question is nearer to the next document than to its own, so the text leg is right alone.
"""

import re

import numpy as np
from numpy.typing import NDArray

from conftest import Connection
from corpora import store_document
from second_brain.models import CallableEmbedder
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.judgments import Judgment
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter

WORDS = ("apples", "bananas", "cars", "doors", "eagles", "forests", "grapes", "houses")
DIMENSIONS = 256
COLLECTION = "first"


def axis(place: int) -> NDArray[np.float32]:
    vector = np.zeros(DIMENSIONS, np.float32)
    vector[place % len(WORDS)] = 1
    return vector


def embedder(model: str = "given", shift: int = 1) -> CallableEmbedder:
    """Return a model that puts a question `shift` documents beside the one with its word.

    It stands for a model that is not here. It knows no other words.
    """

    def embed(texts: list[str]) -> list[NDArray[np.float32]]:
        vectors = []
        for text in texts:
            known = [word for word in re.findall(r"\w+", text) if word in WORDS]
            place = WORDS.index(known[0]) if known else len(WORDS)
            vectors.append(2 * axis(place + shift) + axis(place) if known else 0 * axis(0))
        return vectors

    return CallableEmbedder(embed, model, DIMENSIONS)


def fill(connection: Connection) -> KnowledgeWriter:
    """Store the documents in two collections, and a judgment for each in the first one."""
    writer = KnowledgeWriter(connection)
    for place, word in enumerate(WORDS):
        for collection in ("", "copies"):
            chunk = {f"{word} are described here": axis(place).tolist()}
            kept = collection or COLLECTION
            store_document(connection, f"{word}{collection}", chunk, "given", collection=kept)
    writer.set_judgments(judged(COLLECTION))
    return writer


def judged(collection: str, count: int = len(WORDS)) -> list[Judgment]:
    """Return a judgment for each of the first words: its document is right."""
    return [
        Judgment(question=word, document_key=word, collection=collection) for word in WORDS[:count]
    ]


def judge_enough(writer: KnowledgeWriter) -> None:
    """Judge as many questions of the first collection as a fit needs; stop words tell them apart.

    The eight of `judged` are among them.
    """
    writer.set_judgments(
        [
            one.model_copy(update={"question": f"{before}{one.question}"})
            for before in ("", "the ", "of the ")
            for one in judged(COLLECTION)
        ]
    )


def use_the_worse_leg(writer: KnowledgeWriter) -> None:
    """Store settings with which the next document is first."""
    writer.set_settings(
        CorpusSettings(
            collection=COLLECTION, fusion="rrf", text_weight=0.01, embedding_model="given"
        )
    )


def best_hit(connection: Connection) -> str:
    """Return the document that a search with the stored settings shows first for `apples`."""
    hits, _ = PostgresProvider(connection).find(
        embedder().embed(["apples"])[0], "apples", collections=[COLLECTION]
    )
    return str(hits[0].metadata["external_key"])

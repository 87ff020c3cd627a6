"""Corpora for measurements: passages of real sentences, and embeddings, repeatable by seed."""

import re
from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from second_brain.ingest.standard_library import standard_library

Vectors = NDArray[np.float32]
Sentences = list[str]


def sentences(texts: Sequence[str]) -> list[Sentences]:
    """Split each text at the ends of its sentences; texts of a single one are left out."""
    split = (re.split(r"(?<=[.!?])\s+", text) for text in texts)
    return [found for found in split if len(found) > 1]


def run(random: Random, split: Sequence[Sentences]) -> str:
    """Return one to five consecutive sentences of one text."""
    text = random.choice(split)
    begin = random.randrange(len(text))
    return " ".join(text[begin : begin + random.randint(1, 5)])


def passages(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """Return passages of one or two runs of consecutive sentences, 40 to 200 words each."""
    random = Random(seed)
    split = sentences(texts)
    made: list[str] = []
    while len(made) < count:
        alone = random.random() < 0.4
        passage = run(random, split) if alone else f"{run(random, split)} {run(random, split)}"
        if 40 <= len(passage.split()) <= 200:
            made.append(passage)
    return made


def documentation() -> dict[str, str]:
    """Return the prose of the standard library's documentation by module, without signatures."""
    prose = {}
    for source in standard_library():
        document = source.load()
        paragraphs = re.split(r"\n\s*\n", document.text)
        kept = (one for one in paragraphs if not one.startswith(("#", "`", ">>>")))
        prose[document.title or source.external_key] = re.sub(r"\s+", " ", "\n".join(kept)).strip()
    return prose


class EmbeddingSpace:
    """Unit vectors with a distribution like embeddings: overlapping topics, and noise.

    The centres of the topics are in a latent space of 48 dimensions, projected to all dimensions.
    """

    topics = 500

    def __init__(self, dimensions: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.dimensions = dimensions
        self._centres = random.normal(size=(self.topics, 48))
        self._spread = random.normal(size=(48, dimensions)) / np.sqrt(48)

    def draw(self, topics: Sequence[int] | NDArray[np.int64], seed: int) -> Vectors:
        """Return a vector near the centre of each topic."""
        random = np.random.default_rng(seed)
        latent = self._centres[topics] + 0.8 * random.normal(size=(len(topics), 48))
        vectors = latent @ self._spread
        unit: Vectors = np.empty(vectors.shape, np.float32)
        # In blocks, because an array of doubles for a million rows takes 3 GB.
        for begin in range(0, len(vectors), 10_000):
            block = vectors[begin : begin + 10_000]
            block += 0.25 * random.normal(size=block.shape)
            norms = np.linalg.norm(block, axis=1, keepdims=True)
            unit[begin : begin + 10_000] = block / norms
        return unit

    def draw_anywhere(self, count: int, seed: int) -> Vectors:
        """Return vectors of random topics."""
        return self.draw(np.random.default_rng(seed).integers(0, self.topics, count), seed + 1)

"""Passages of real sentences, questions, and embeddings, repeatable by seed and Python version."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from second_brain.demo import standard_library

Vectors = NDArray[np.float32]
Sentences = list[str]

# A sentence of the documentation that makes a question after "how to".
ASKED_ABOUT = re.compile(
    r"(Add|Check|Close|Compare|Convert|Copy|Create|Decode|Encode|Find|Format|Get|Join|List|Load"
    r"|Open|Parse|Print|Read|Register|Remove|Replace|Return|Run|Search|Send|Set|Split|Start|Test"
    r"|Wait|Write)( [A-Za-z]+){5,15}\."
)


def sentences(texts: Sequence[str]) -> list[Sentences]:
    """Split each text at the ends of its sentences; texts of a single one are left out."""
    split = (re.split(r"(?<=[.!?])\s+", text) for text in texts)
    return [found for found in split if len(found) > 1]


def run(random: Random, split: Sequence[Sentences]) -> str:
    """Return one to five consecutive sentences of one text."""
    text = random.choice(split)
    begin = random.randrange(len(text))
    return " ".join(text[begin : begin + random.randint(1, 5)])


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


@dataclass(frozen=True)
class Corpus:
    """Passages by row number, which is their id; a title may be empty."""

    titles: Sequence[str]
    texts: Sequence[str]
    types: Sequence[str]
    embeddings: Vectors

    def full_text(self, row: int) -> str:
        """Return title and text in one, for systems with a single column."""
        return f"{self.titles[row]}\n{self.texts[row]}" if self.titles[row] else self.texts[row]


@dataclass(frozen=True)
class Query:
    """A text, an embedding, or both; `kept` is the one type of the rows that may be returned.

    The words of a phrase must stand in this order, in systems that have phrases.
    """

    text: str | None
    embedding: NDArray[np.float32] | None
    kept: str | None = None
    phrase: bool = False


@dataclass(frozen=True)
class Library:
    """The sentences of the documentation by module; a topic belongs to one module."""

    modules: list[tuple[str, Sentences]]

    @classmethod
    def read(cls) -> "Library":
        """Read the modules with enough documentation to write about."""
        split = (
            (name, found) for name, text in documentation().items() for found in sentences([text])
        )
        return cls([(name, found) for name, found in split if len(found) >= 10])

    def about(self, topic: int) -> tuple[str, Sentences]:
        """Return the topic's module and its sentences."""
        return self.modules[topic % len(self.modules)]

    def passage(self, random: Random, topic: int) -> str:
        """Return about 100 words, most of them about the topic."""
        anything = [found for _, found in self.modules]
        words = 0
        runs = []
        while words < 80:
            own = random.random() < 0.6
            text = run(random, [self.about(topic)[1]] if own else anything)
            runs.append(" ".join(text.split()[:120]))
            words += len(runs[-1].split())
        return " ".join(runs)

    def questions(self, space: EmbeddingSpace, count: int, seed: int) -> list[Query]:
        """Return questions of 6 to 16 words with an embedding near their topic's centre."""
        random = Random(seed)
        asked: list[tuple[int, str]] = []
        while len(asked) < count:
            topic = random.randrange(EmbeddingSpace.topics)
            sentence = random.choice(self.about(topic)[1])
            question = f"how to {sentence[0].lower()}{sentence[1:-1]}?"
            known = any(text == question for _, text in asked)
            if ASKED_ABOUT.fullmatch(sentence) and not known:
                asked.append((topic, question))
        embeddings = space.draw([topic for topic, _ in asked], seed)
        return [Query(text, own) for (_, text), own in zip(asked, embeddings, strict=True)]

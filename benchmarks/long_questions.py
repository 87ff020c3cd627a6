"""nDCG@10 of the text leg for long questions, beside exact BM25 computed outside the database.

The documents of test collections are split into passages of consecutive sentences, at least 40
words each. Of each document asked about, the passages from the beginning with at least 100 words
together are the question and are not stored; its other passages are the relevant ones. Documents
are taken at random until the passages suffice.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from random import Random

import numpy as np

from benchmarks import scratch
from benchmarks.corpus import sentences
from benchmarks.exact import COUNT, Bm25
from benchmarks.text_leg import OURS, asked, load, percentiles, said, without_operators
from second_brain.evaluation import collection as collections
from second_brain.evaluation import metrics

PASSAGE_WORDS, QUESTION_WORDS = 40, 100


@dataclass(frozen=True)
class LongQuestion:
    """A question, and the rows of its document's passages."""

    text: str
    relevant: frozenset[int]


def split(text: str) -> list[str]:
    """Return the passages of a text; sentences that remain belong to the last one."""
    passages = [""]
    for sentence in next(iter(sentences([text])), [text]):
        if len(passages[-1].split()) >= PASSAGE_WORDS:
            passages.append("")
        passages[-1] = f"{passages[-1]} {sentence}".strip()
    if len(passages) > 1 and len(passages[-1].split()) < PASSAGE_WORDS:
        last = passages.pop()
        passages[-1] += f" {last}"
    return passages


def make(
    texts: Sequence[str], count: int, questions: int, seed: int
) -> tuple[list[str], list[LongQuestion]]:
    """Return at least `count` passages (fewer if the texts have no more) and the questions."""
    random = Random(seed)
    stored: list[str] = []
    made: list[LongQuestion] = []
    for text in random.sample(list(texts), len(texts)):
        if len(stored) >= count:
            break
        passages = split(text)
        taken = 0
        while taken < len(passages) and (len(" ".join(passages[:taken]).split()) < QUESTION_WORDS):
            taken += 1
        question = without_operators(" ".join(passages[:taken]))
        if taken < len(passages) and len(made) < questions and len(question.split()) <= 200:
            relevant = range(len(stored), len(stored) + len(passages) - taken)
            made.append(LongQuestion(question, frozenset(relevant)))
            passages = passages[taken:]
        stored.extend(passages)
    return stored, made


def gain(rows: Sequence[int], relevant: frozenset[int]) -> float:
    """Return nDCG@10 for relevant rows of one grade."""
    found = sum(1 / log2(place + 2) for place, row in enumerate(rows[:COUNT]) if row in relevant)
    return found / sum(1 / log2(place + 2) for place in range(min(len(relevant), COUNT)))


def main() -> None:
    """Run the measurement and print its figures as one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collection", type=Path, nargs="+", help="a folder in BEIR layout")
    parser.add_argument("--passages", type=int, default=8_700)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--major", type=int, default=18)
    options = parser.parse_args()
    texts = [
        document.text
        for path in options.collection
        for document in collections.load(path).documents
    ]
    passages, questions = make(texts, options.passages, options.queries, seed=4)
    with scratch.database(384, options.major) as connection:
        load(connection, passages, native=False)
        bm25 = Bm25()
        bm25.read(connection, [question.text for question in questions])
        ours, exact, times = {}, {}, []
        for question in questions:
            rows, taken = asked(connection, OURS, question.text)
            best = np.argsort(-bm25.scores(question.text), kind="stable")[:COUNT]
            ours[question.text] = gain(rows, question.relevant)
            exact[question.text] = gain([int(row) for row in best], question.relevant)
            times.append(taken)
    difference = metrics.compare(ours, exact)
    passed, computed = np.transpose(times)
    said(
        passages=len(passages),
        questions=len(questions),
        words=round(float(np.mean([len(question.text.split()) for question in questions]))),
        text_leg=round(float(np.mean(list(ours.values()))), 4),
        exact_bm25=round(float(np.mean(list(exact.values()))), 4),
        text_leg_minus_exact=round(difference.mean, 4),
        p_value=round(difference.p_value, 4),
        **percentiles("cpu_ms", computed),
        **percentiles("ms", passed),
    )


if __name__ == "__main__":
    main()

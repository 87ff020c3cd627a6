"""What the replacement of misspelt words brings back, and what it costs questions without typos.

Each collection (BEIR's layout) is loaded into an embedded scratch database, a chunk a document. Its
questions are asked by text alone, as they are and with one random edit in one word of five letters
or more: a letter left out, added or replaced, or two neighbouring letters exchanged. Both are asked
with the table of known words and, after it has been emptied, without it: then nothing is replaced.

    python -m benchmarks.typos FOLDER... [--questions 100] [--seed 1]
"""

import argparse
import re
import string
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, LiteralString

import psycopg

from benchmarks.scratch import database
from second_brain.evaluation import collection as collections
from second_brain.evaluation import metrics
from second_brain.evaluation.collection import Collection

MEASURE = "nDCG@10"
WORD = re.compile(r"[a-z]{5,}", re.IGNORECASE | re.ASCII)
SEARCH: LiteralString = """
    select id from public.hybrid_search_knowledge_chunks(query_text => %s, match_count => 10)
"""


def misspelt(text: str, random: Random) -> str | None:
    """Return the text with one random edit in a random word; None without such a word."""
    words = list(WORD.finditer(text))
    if not words:
        return None
    word = random.choice(words)
    while True:
        letters = list(word[0])
        place = random.randrange(len(letters))
        letter = random.choice(string.ascii_lowercase)
        match random.randrange(4):
            case 0:
                del letters[place]
            case 1:
                letters.insert(place, letter)
            case 2:
                letters[place] = letter
            case _:
                letters[place : place + 2] = reversed(letters[place : place + 2])
        if "".join(letters).lower() != word[0].lower():
            return text[: word.start()] + "".join(letters) + text[word.end() :]


def load(connection: psycopg.Connection[Any], of: Collection) -> dict[uuid.UUID, str]:
    """Store the documents; return their ids by those of the chunks."""
    connection.execute("truncate public.knowledge_chunks")
    ids = {uuid.uuid5(uuid.NAMESPACE_OID, one.id): one.id for one in of.documents}
    with (
        connection.cursor() as cursor,
        cursor.copy("copy public.knowledge_chunks (id, heading, content) from stdin") as copy,
    ):
        for number, one in zip(ids, of.documents, strict=True):
            copy.write_row((number, one.title or None, one.text))
    connection.execute("vacuum analyze public.knowledge_chunks")
    connection.execute("select public.refresh_knowledge_statistics()")
    return ids


def measured(
    connection: psycopg.Connection[Any],
    of: Collection,
    ids: dict[uuid.UUID, str],
    questions: dict[str, str],
) -> tuple[dict[str, float], float]:
    """Return each question's nDCG@10 and the milliseconds of a search."""
    begin = time.perf_counter()
    found = {
        name: [ids[row[0]] for row in connection.execute(SEARCH, [text])]
        for name, text in questions.items()
    }
    taken = 1000 * (time.perf_counter() - begin) / len(questions)
    judged = {name: of.qrels[name] for name in questions}
    return metrics.judge(judged, found)[MEASURE], taken


def mean(values: dict[str, float]) -> float:
    """Return the mean of the values."""
    return sum(values.values()) / len(values)


def measure(folder: Path, questions: int, seed: int) -> dict[str, dict[str, float]]:
    """Return nDCG@10 by question, plain and misspelt, with known words and without."""
    random = Random(seed)
    whole = collections.load(folder)
    of = whole.sample(questions, seed)
    plain = {query.id: query.text for query in of.queries}
    wrong = {name: misspelt(text, random) for name, text in plain.items()}
    typos = {name: text for name, text in wrong.items() if text is not None}
    plain_whole = {query.id: query.text for query in whole.queries}
    values: dict[str, dict[str, float]] = {}
    with database(3) as connection:
        ids = load(connection, whole)
        for kept in ("replaced", "as typed"):
            if kept == "as typed":
                connection.execute("truncate public.knowledge_words")
            for name, asked in (("plain", plain_whole), ("typos", typos)):
                values[f"{name}, {kept}"], taken = measured(connection, whole, ids, asked)
                print(f"  {name}, {kept}: {mean(values[f'{name}, {kept}']):.4f}, {taken:.1f} ms")
    values["plain"] = {name: values["plain, as typed"][name] for name in typos}
    return values


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the collections, and print a line for each and for all questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    total: dict[str, dict[str, float]] = {}
    for folder in given.folders:
        print(folder.name)
        for name, values in measure(folder, given.questions, given.seed).items():
            total.setdefault(name, {}).update(
                {f"{folder.name}/{query}": value for query, value in values.items()}
            )
    lost = mean(total["plain"]) - mean(total["typos, as typed"])
    back = mean(total["typos, replaced"]) - mean(total["typos, as typed"])
    print(
        f"{len(total['plain'])} questions with one typo: nDCG@10 without typos "
        f"{mean(total['plain']):.4f}, with {mean(total['typos, as typed']):.4f}, replaced "
        f"{mean(total['typos, replaced']):.4f}: {back / lost:.0%} of the loss comes back."
    )
    change = mean(total["plain, replaced"]) - mean(total["plain, as typed"])
    print(f"{len(total['plain, replaced'])} questions without typos: {change:+.4f}")


if __name__ == "__main__":
    main()

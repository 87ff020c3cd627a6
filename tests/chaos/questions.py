"""What the leak fuzz asks: random arguments of a search, and the rows that a simple one finds."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from corpora import TAGS, USERS, VOCABULARY, Chunk, Corpus, Row, own_word

STRANGER = UUID(int=9)


@dataclass(frozen=True)
class Question:
    """Arguments of a search, and the condition of the rows it finds if it finds all of them."""

    arguments: Row
    finds: Callable[[Chunk], bool] | None = None


def vector(draw: random.Random) -> list[float]:
    return [draw.uniform(-1, 1), draw.uniform(-1, 1), draw.uniform(0.1, 1)]


def some_words(draw: random.Random, corpus: Corpus) -> str:
    own = [own_word("row", number) for number in draw.choices(list(corpus.chunks), k=3)]
    return " ".join(draw.choices([*VOCABULARY, *own, "-beta", "or"], k=draw.randint(1, 5)))


def simple_question(draw: random.Random, corpus: Corpus) -> Question:
    """Ask for all rows that have one word, or an embedding, and that pass simple filters."""
    arguments: Row = {"match_count": 1000, "pool_size": 1000}
    word = draw.choice([*VOCABULARY, own_word("row", draw.choice(list(corpus.chunks))), None])
    if word is not None:
        arguments["query_text"] = word
        arguments["search_mode"] = draw.choice(["websearch", "simple", "phrase"])
    else:
        arguments["query_embedding"] = vector(draw)
        arguments["match_threshold"] = -1.0
    passes: list[Callable[[Chunk], bool]] = []
    filters: list[Row] = []
    if draw.random() < 0.3:
        tag = draw.choice(TAGS)
        filters.append({"field": "metadata.tag", "op": "eq", "value": tag})
        passes.append(lambda one: one.tag == tag)
    if draw.random() < 0.2:
        asked = draw.choice([*USERS, STRANGER])
        filters.append({"field": "owner_id", "op": "eq", "value": str(asked)})
        passes.append(lambda one: one.owner == asked)
    if draw.random() < 0.2:
        visibility = draw.choice(["private", "public"])
        filters.append({"field": "visibility", "op": "eq", "value": visibility})
        passes.append(lambda one: one.visibility == visibility)
    if draw.random() < 0.2:
        filters.append({"field": "sensitivity", "op": "exists", "value": True})
        passes.append(lambda one: one.sensitivity is not None)
    if draw.random() < 0.2:
        left_out = draw.choice(VOCABULARY)
        filters.append({"field": "text", "op": "has_no_word", "value": [left_out]})
        passes.append(lambda one: left_out not in (*one.words, one.word))
    if filters:
        arguments["filters"] = filters
    if draw.random() < 0.3:
        arguments["collections"] = ["two"]
        passes.append(lambda one: one.collection == "two")

    def finds(one: Chunk) -> bool:
        if word is None:
            return one.embedding is not None and all(test(one) for test in passes)
        return word in (*one.words, one.word) and all(test(one) for test in passes)

    return Question(arguments, finds)


def any_question(draw: random.Random, corpus: Corpus) -> Question:
    arguments: Row = {
        "match_count": draw.choice([1, 3, 10, 200, 1000]),
        "pool_size": draw.choice([10, 50, 1000]),
        "match_threshold": draw.choice([-1.0, 0.0, 0.7]),
        "fusion": draw.choice(["rrf", "relative_score", "auto"]),
        "search_mode": draw.choice(["websearch", "websearch", "simple", "phrase"]),
        "neighbor_window": draw.choice([0, 1, 2, 5]),
        "snippet": draw.random() < 0.5,
        "one_per_document": draw.random() < 0.3,
        "match_offset": draw.choice([0, 0, 1, 4]),
    }
    if draw.random() < 0.8:
        arguments["query_text"] = some_words(draw, corpus)
    if "query_text" not in arguments or draw.random() < 0.5:
        arguments["query_embedding"] = vector(draw)
    more: Row = {
        "filters": draw.choice(
            [
                [{"field": "owner_id", "op": "ne", "value": str(draw.choice(USERS))}],
                [{"field": "owner_id", "op": "exists", "value": draw.random() < 0.5}],
                [{"field": "visibility", "op": "in", "value": ["private", "public"]}],
                [{"field": "metadata.word", "op": "gte", "value": "row2x"}],
                [
                    {
                        "field": "text",
                        "op": "has_any_word",
                        "value": some_words(draw, corpus).split(),
                    }
                ],
                [{"field": "metadata", "op": "contains", "value": {"tag": "red"}}],
                {"tag": "red"},
            ]
        ),
        "collections": draw.choice([["one"], ["one", "two"], ["two", "none"]]),
        "recency_half_life": draw.choice([0.5, 365.0]),
        "date_from": draw.choice(["2019-01-01", "2025-01-01"]),
        "formulations": [
            {"query_text": some_words(draw, corpus)} for _ in range(draw.randint(1, 3))
        ],
        "vector_weight": draw.choice([0.0, 2.0]),
        "prefix_last": True,
    }
    if arguments.get("query_text") is None or arguments.get("query_embedding") is None:
        del more["vector_weight"]
    arguments |= {name: value for name, value in more.items() if draw.random() < 0.25}
    if "prefix_last" in arguments and "query_text" in arguments:
        word = own_word("row", draw.choice(list(corpus.chunks)))
        arguments["query_text"] += f" {word[: draw.randint(1, len(word))]}"
    return Question(arguments)


# The calls, and what is wrong with their answers.

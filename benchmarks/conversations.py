"""Recall of single turns in long conversations: LoCoMo, from a file that you have.

LoCoMo (Maharana et al. 2024, https://github.com/snap-research/locomo, CC BY-NC 4.0) has ten
conversations over months, and questions with the turns that answer them. Get `locomo10.json`
yourself; nothing of it is part of this project. Both speakers' turns are stored by the product's
writer: a session is a document, a turn a chunk, "Speaker: text" with the caption of a shared image.
A conversation is a collection. Questions without evidence are left out; those of category 5 have no
answer, but evidence.

The questions go through the provider: by words, by vector, by fusion `auto` and `rrf`, for 50 hits,
within all conversations or, with `--apart`, within the question's own. Figures are means over the
questions: recall at 5, 10 and 50, hit@10 (one turn is enough), MRR@10 and nDCG@10.
"""

import argparse
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.bench_report import line
from second_brain.evaluation.scratch import scratch_database
from second_brain.models import load_embedder
from second_brain.models.embedder import embed_queries
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter

FIGURES = ("R@5", "R@10", "R@50", "hit@10", "MRR@10", "nDCG@10")
DEPTH = 50


@dataclass(frozen=True)
class Question:
    """A question and the turns that answer it, as (conversation, turn)."""

    conversation: str
    text: str
    category: int
    evidence: frozenset[tuple[str, str]]


def sessions(conversation: Mapping[str, object]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the sessions of a conversation: a name, and (turn, text) of each turn."""
    for name, turns in conversation.items():
        if re.fullmatch(r"session_\d+", name) and isinstance(turns, list):
            yield (
                name,
                [
                    (
                        turn["dia_id"],
                        f"{turn['speaker']}: {turn['text']}"
                        + (f" [{turn['blip_caption']}]" if turn.get("blip_caption") else ""),
                    )
                    for turn in turns
                ],
            )


def questions(sample: Mapping[str, object]) -> Iterator[Question]:
    """Yield the questions of a conversation that have evidence."""
    name = str(sample["sample_id"])
    for asked in sample["qa"]:  # type: ignore[attr-defined]
        found = re.findall(r"D\d+:\d+", " ".join(asked.get("evidence") or ()))
        if found:
            evidence = frozenset((name, turn) for turn in found)
            yield Question(name, asked["question"], asked["category"], evidence)


def figures(found: Sequence[object], relevant: frozenset[object]) -> list[float]:
    """Return FIGURES of a ranked list."""
    places = [place for place, one in enumerate(found, 1) if one in relevant]
    ideal = sum(1 / math.log2(place + 1) for place in range(1, min(len(relevant), 10) + 1))
    early = [place for place in places if place <= 10]
    return [
        *(sum(place <= depth for place in places) / len(relevant) for depth in (5, 10, 50)),
        float(bool(early)),
        1 / early[0] if early else 0.0,
        sum(1 / math.log2(place + 1) for place in early) / ideal,
    ]


def main() -> None:
    """Print a row for each model and way to ask."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="locomo10.json")
    parser.add_argument("--model", action="append", help="default: wordllama")
    parser.add_argument("--apart", action="store_true", help="only the question's conversation")
    parser.add_argument("--answerable", action="store_true", help="leave out category 5")
    options = parser.parse_args()

    samples = json.loads(options.file.read_text("utf-8"))
    asked = [
        one
        for sample in samples
        for one in questions(sample)
        if not (options.answerable and one.category == 5)
    ]
    print(line(["model", "asked by", "questions", *FIGURES]), line(["---"] * 9), sep="\n")
    for model in options.model or ["wordllama"]:
        embedder = load_embedder(model)
        asked_by = embed_queries(embedder, [one.text for one in asked])
        with scratch_database(embedder.dimensions) as connection:
            writer = KnowledgeWriter(connection)
            for sample in samples:
                name = sample["sample_id"]
                for session, said in sessions(sample["conversation"]):
                    vectors = embedder.embed([text for _, text in said])
                    writer.upsert_document(
                        {"external_key": f"{name}/{session}", "collection": name},
                        [
                            {
                                "content": text,
                                "metadata": {"turn": turn},
                                "embedding": vector,
                                "embedding_model": embedder.model,
                            }
                            for (turn, text), vector in zip(said, vectors, strict=True)
                        ],
                    )
            connection.execute("vacuum (analyze) public.knowledge_chunks")
            connection.execute("select public.refresh_knowledge_statistics()")
            stored = connection.execute(
                "select id, collection, metadata ->> 'turn' from public.knowledge_chunks"
            )
            turns = {str(id_): (str(name), str(turn)) for id_, name, turn in stored}
            provider = PostgresProvider(connection)
            for way in ("text", "vector", "auto", "rrf"):
                rows = []
                for one, vector in zip(asked, asked_by, strict=True):
                    hits, _ = provider.hybrid_search(
                        None if way == "text" else vector,
                        None if way == "vector" else one.text,
                        top_k=DEPTH,
                        fusion=None if way in {"text", "vector"} else way,
                        collections=[one.conversation] if options.apart else None,
                    )
                    rows.append(figures([turns[str(hit.id)] for hit in hits], one.evidence))
                cells = [f"{mean:.3f}" for mean in np.mean(rows, axis=0)]
                print(line([embedder.model, way, str(len(asked)), *cells]), flush=True)


if __name__ == "__main__":
    main()

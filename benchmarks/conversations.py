"""Recall of single turns in long conversations: LoCoMo and BEAM, from files that you have.

Get them yourself; nothing of them is part of this project. LoCoMo (Maharana et al. 2024,
https://github.com/snap-research/locomo, CC BY-NC 4.0) has ten conversations over months, in
`locomo10.json`: a session is a document, a turn a chunk, "Speaker: text" with the caption of a
shared image. Questions without evidence are left out; those of category 5 have no answer, but
evidence. BEAM (Tavakoli et al. 2026, https://github.com/mohammadtavakoli78/BEAM) has twenty chats
in its folder `chats/100K`: what a user and then the assistant says is a chunk, with the date, of at
most 10,000 characters, as in the benchmark of ogham-mcp, whose measure is used too: a question
that nothing answers counts as found.

A conversation is a collection; all are stored by the product's writer. The questions go through the
provider: by words, by vector, by fusion `auto` and `rrf`, for 50 hits, within all conversations or,
with `--apart`, within the question's own. Figures are means over the questions: recall at 5, 10 and
50, hit@10 (one turn is enough), MRR@10, nDCG@10, and MRR of all 50 hits.
"""

import argparse
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.bench_report import line
from second_brain.evaluation.scratch import scratch_database
from second_brain.models import Embedder, load_embedder
from second_brain.models.embedder import embed_queries
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter

FIGURES = ("R@5", "R@10", "R@50", "hit@10", "MRR@10", "nDCG@10", "MRR@50")
DEPTH = 50
IDS = "select id, chunk_index from public.knowledge_chunks where document_id = %s"

Turns = frozenset[tuple[str, str]]
"""Turns, each by its conversation and its name there."""
Document = tuple[str, str, list[tuple[Turns, str]]]
"""A key, the conversation, and its chunks: the turns and the text of each."""


@dataclass(frozen=True)
class Question:
    """A question of a conversation and the turns that answer it."""

    conversation: str
    text: str
    category: str
    evidence: Turns


def locomo(file: Path) -> tuple[list[Document], list[Question]]:
    """Read `locomo10.json`."""
    documents, questions = [], []
    for sample in json.loads(file.read_text("utf-8")):
        name = str(sample["sample_id"])
        for session, turns in sample["conversation"].items():
            if re.fullmatch(r"session_\d+", session) and isinstance(turns, list):
                said = []
                for turn in turns:
                    caption = f" [{turn['blip_caption']}]" if turn.get("blip_caption") else ""
                    text = f"{turn['speaker']}: {turn['text']}{caption}"
                    said.append((frozenset({(name, turn["dia_id"])}), text))
                documents.append((f"{name}/{session}", name, said))
        for asked in sample["qa"]:
            found = re.findall(r"D\d+:\d+", " ".join(asked.get("evidence") or ()))
            if found:
                evidence = frozenset((name, turn) for turn in found)
                questions.append(
                    Question(name, asked["question"], str(asked["category"]), evidence)
                )
    return documents, questions


def beam(folder: Path) -> tuple[list[Document], list[Question]]:
    """Read the chats of a folder such as `chats/100K`."""
    documents, questions = [], []
    for chat in sorted((one for one in folder.iterdir() if one.name.isdigit()), key=by_number):
        name = chat.name
        for number, batch in enumerate(json.loads((chat / "chat.json").read_text("utf-8"))):
            rounds: list[tuple[str, list[dict[str, object]]]] = []
            date = ""
            for message in (one for turn in batch["turns"] for one in turn):
                if message["role"] == "user" or not rounds:
                    date = message.get("time_anchor") or date
                    rounds.append((date, []))
                rounds[-1][1].append(message)
            said = []
            for date, messages in rounds:
                lines = [f"{str(one['role']).capitalize()}: {one['content']}" for one in messages]
                text = "\n".join([*([f"[Date: {date}]"] if date else []), *lines])
                turns = frozenset((name, str(one.get("id"))) for one in messages)
                said.append((turns, text[:10_000]))
            documents.append((f"{name}/{number}", name, said))
        file = chat / "probing_questions" / "probing_questions.json"
        for category, asked in json.loads(file.read_text("utf-8")).items():
            for one in asked:
                given = one.get("source_chat_ids") or []
                lists = given.values() if isinstance(given, dict) else [given]
                ids = {str(id_) for each in lists if isinstance(each, list) for id_ in each}
                evidence = frozenset((name, id_) for id_ in ids)
                questions.append(Question(name, one["question"], category, evidence))
    return documents, questions


def by_number(place: Path) -> int:
    """Return the number that a folder is named by."""
    return int(place.name)


def figures(found: Sequence[Turns], question: Question) -> list[float]:
    """Return FIGURES of a ranked list of chunks."""
    wanted = question.evidence
    if not wanted:
        is_right = question.category in ("abstention", "summarization")
        return [float(is_right)] * len(FIGURES)
    places = [place for place, turns in enumerate(found, 1) if turns & wanted]
    ideal = sum(1 / math.log2(place + 1) for place in range(1, min(len(wanted), 10) + 1))
    early = [place for place in places if place <= 10]
    return [
        *(len(wanted & frozenset().union(*found[:depth])) / len(wanted) for depth in (5, 10, 50)),
        float(bool(early)),
        1 / early[0] if early else 0.0,
        sum(1 / math.log2(place + 1) for place in early) / ideal,
        1 / places[0] if places else 0.0,
    ]


def main() -> None:
    """Print a row for each model and way to ask."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="locomo10.json, or the folder chats/100K of BEAM")
    parser.add_argument("--model", action="append", help="default: wordllama")
    parser.add_argument("--apart", action="store_true", help="only the question's conversation")
    parser.add_argument("--answerable", action="store_true", help="leave out LoCoMo's category 5")
    options = parser.parse_args()

    documents, questions = (beam if options.file.is_dir() else locomo)(options.file)
    asked = [one for one in questions if not (options.answerable and one.category == "5")]
    header = ["model", "asked by", "questions", *FIGURES]
    print(line(header), line(["---"] * len(header)), sep="\n")
    for model in options.model or ["wordllama"]:
        embedder = load_embedder(model)
        asked_by = embed_queries(embedder, [one.text for one in asked])
        with scratch_database(embedder.dimensions) as connection:
            turns = store(connection, documents, embedder)
            connection.execute("vacuum (analyze) public.knowledge_chunks")
            connection.execute("select public.refresh_knowledge_statistics()")
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
                    rows.append(figures([turns[str(hit.id)] for hit in hits], one))
                cells = [f"{mean:.3f}" for mean in np.mean(rows, axis=0)]
                print(line([embedder.model, way, str(len(asked)), *cells]), flush=True)


def store(
    connection: psycopg.Connection[Any], documents: Sequence[Document], embedder: Embedder
) -> dict[str, Turns]:
    """Store all documents, and return the turns of each chunk by its id."""
    writer = KnowledgeWriter(connection)
    turns: dict[str, Turns] = {}
    for key, name, said in documents:
        vectors = embedder.embed([text for _, text in said])
        chunks = [
            {"content": text, "embedding": vector, "embedding_model": embedder.model}
            for (_, text), vector in zip(said, vectors, strict=True)
        ]
        stored = writer.upsert_document({"external_key": key, "collection": name}, chunks)
        found = connection.execute(IDS, [stored.document_id])
        turns |= {str(id_): said[place][0] for id_, place in found}
    return turns


if __name__ == "__main__":
    main()

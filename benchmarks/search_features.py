"""What facets, prefixes, synonyms and the table of known words cost.

Passages of real sentences (documents of a collection in BEIR's layout) are stored in an embedded
scratch database, a chunk each. Writing: blocks of documents of ten chunks with the triggers of the
known words and without, in turns; the figure is the server's CPU time. Deleting: random chunks, in
turns too. Prefixes: the last word of two-word questions, cut to its first letters. Facets: against
the search that they stand beside.

    python -m benchmarks.search_features FOLDER [--chunks 100000]
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, LiteralString

import numpy as np
import psycopg

from benchmarks.corpus import passages
from benchmarks.scratch import database
from benchmarks.typos import WORD
from second_brain.evaluation import collection as collections

DIMENSIONS = 1024
UPSERT = "select public.upsert_knowledge_document(%s::jsonb, %s::jsonb)"
TRIGGERS = ("add_words", "keep_words", "replace_words")
SEARCH: LiteralString = """
    select count(*) from public.hybrid_search_knowledge_chunks(
      query_text => %s, match_count => 10, prefix_last => %s
    )
"""
FACETS: LiteralString = """
    select count(*) from public.facet_knowledge_chunks(
      search => jsonb_build_object('query_text', %s::text),
      facets => array['knowledge_type', 'collection', 'metadata.team']
    )
"""


def server_cpu(connection: psycopg.Connection[Any]) -> Callable[[], float]:
    """Return a function that reads the CPU seconds of the connection's server process."""
    stat = Path(f"/proc/{connection.info.backend_pid}/stat")
    return lambda: (
        sum(int(ticks) for ticks in stat.read_text().rsplit(")", 1)[1].split()[11:13]) / 100
    )


def writing(connection: psycopg.Connection[Any], texts: Sequence[str], blocks: int) -> None:
    """Print the CPU time of writing with the known words and without."""
    cpu, drawn = server_cpu(connection), np.random.default_rng(1)
    spent = {True: 0.0, False: 0.0}
    per_block = len(texts) // blocks
    for block in range(blocks):
        is_kept = block % 2 == 0
        for trigger in TRIGGERS:
            state = "enable" if is_kept else "disable"
            connection.execute(
                f"alter table public.knowledge_chunks {state} trigger {trigger}".encode()
            )
        part = texts[block * per_block : (block + 1) * per_block]
        drafts = [
            [
                {"content": text, "embedding": drawn.standard_normal(DIMENSIONS).round(5).tolist()}
                for text in part[start : start + 10]
            ]
            for start in range(0, len(part), 10)
        ]
        begin = cpu()
        for number, chunks in enumerate(drafts):
            key = json.dumps({"external_key": f"{block}/{number}"})
            connection.execute(UPSERT, [key, json.dumps(chunks)])
        # The first blocks are known words only by the way.
        if block >= 2:
            spent[is_kept] += cpu() - begin
    ratio = spent[False] / spent[True]
    for trigger in TRIGGERS:
        connection.execute(f"alter table public.knowledge_chunks enable trigger {trigger}".encode())
    print(f"writing: {ratio:.3f} of the chunks per second without known words")


def fill(connection: psycopg.Connection[Any], texts: Sequence[str]) -> None:
    """Store the texts without embeddings, in four collections and twenty teams."""
    types = ("note", "document", "decision")
    with (
        connection.cursor() as cursor,
        cursor.copy(
            "copy public.knowledge_chunks (content, collection, knowledge_type, metadata)"
            " from stdin"
        ) as copy,
    ):
        for number, text in enumerate(texts):
            copy.write_row(
                (
                    text,
                    f"c{number % 4}",
                    types[number % 3],
                    json.dumps({"team": f"team {number % 20}"}),
                )
            )
    connection.execute("vacuum analyze public.knowledge_chunks")
    connection.execute("analyze public.knowledge_words")
    connection.execute("select public.refresh_knowledge_statistics()")
    size = connection.execute(
        "select count(*), pg_total_relation_size('public.knowledge_words'),"
        " pg_total_relation_size('public.knowledge_chunks') from public.knowledge_words"
    ).fetchone()
    assert size is not None
    print(f"{size[0]:,} words, {size[1] / 1e6:.1f} MB of {size[2] / 1e6:.0f} MB")


def deleting(connection: psycopg.Connection[Any], blocks: int, per_block: int) -> None:
    """Print the CPU time of deleting random chunks with the known words and without."""
    cpu = server_cpu(connection)
    spent = {True: 0.0, False: 0.0}
    for block in range(blocks):
        is_kept = block % 2 == 0
        state = "enable" if is_kept else "disable"
        connection.execute(
            f"alter table public.knowledge_chunks {state} trigger keep_words".encode()
        )
        begin = cpu()
        connection.execute(
            "delete from public.knowledge_chunks where id in"
            " (select id from public.knowledge_chunks order by random() limit %s)",
            [per_block],
        )
        spent[is_kept] += cpu() - begin
    connection.execute("alter table public.knowledge_chunks enable trigger keep_words")
    cost = 1000 * (spent[True] - spent[False]) / (blocks / 2 * per_block)
    print(f"deleting: {cost:.2f} ms a chunk more than without known words")


def times(
    connection: psycopg.Connection[Any], statement: LiteralString, calls: Sequence[Sequence[object]]
) -> str:
    """Return the median and the 95th percentile of the calls, in milliseconds."""
    taken = []
    for given in [*calls[:3], *calls]:
        begin = perf_counter()
        connection.execute(statement, given)
        taken.append(1000 * (perf_counter() - begin))
    middle, high = np.percentile(taken[3:], [50, 95])
    return f"{middle:.1f} / {high:.1f} ms"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--writing-chunks", type=int, default=3_000)
    parser.add_argument("--questions", type=int, default=60)
    given = parser.parse_args(arguments)
    random = Random(1)
    documents = collections.load(given.folder).documents
    texts = passages([one.text for one in documents], given.chunks + given.writing_chunks, 1)
    with database(DIMENSIONS) as connection:
        writing(connection, texts[given.chunks :], 12)
        connection.execute("truncate public.knowledge_chunks")
        fill(connection, texts[: given.chunks])
        pairs = [
            random.sample(WORD.findall(random.choice(texts)), 2) for _ in range(given.questions)
        ]
        whole = [(" ".join(pair), False) for pair in pairs]
        print(f"two words: p50 / p95 {times(connection, SEARCH, whole)}")
        for letters in range(1, 7):
            calls = [(f"{first} {last[:letters]}", True) for first, last in pairs]
            print(f"prefix of {letters}: p50 / p95 {times(connection, SEARCH, calls)}")
        alone = [(last[:2], True) for _, last in pairs]
        print(f"a prefix of 2 alone: p50 / p95 {times(connection, SEARCH, alone)}")
        counted = [(" ".join(pair),) for pair in pairs]
        print(f"facets of two words: p50 / p95 {times(connection, FACETS, counted)}")
        print(f"facets of all chunks: p50 / p95 {times(connection, FACETS, [(None,)] * 5)}")
        deleting(connection, 6, given.chunks // 60)


if __name__ == "__main__":
    main()

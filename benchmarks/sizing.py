"""The cost model beside a database: bytes per chunk of each part, measured and estimated.

Loads passages of real sentences with random unit vectors into an embedded database, builds the
vector index, vacuums, and compares `second_brain.database.sizing` with the sizes of the relations.
"""

import argparse
from typing import Any

import numpy as np
import psycopg

from benchmarks import scratch
from benchmarks.corpus import documentation, passages
from second_brain.database.sizing import chunk_bytes

INDEX = "select pg_get_indexdef('public.knowledge_chunks_embedding'::regclass)"
COPY = "copy public.knowledge_chunks (content, embedding, embedding_model) from stdin"
SIZES = """
    with index as (
      select class.relname as name, pg_relation_size(class.oid) as bytes
      from pg_index
      join pg_class as class on class.oid = indexrelid
      where indrelid = 'public.knowledge_chunks'::regclass
    )
    select
      pg_relation_size(class.oid) as rows,
      pg_total_relation_size(class.reltoastrelid) as toast,
      (select bytes from index where name = 'knowledge_chunks_embedding') as vector_index,
      (select bytes from index where name = 'knowledge_chunks_content_tsv') as text_index,
      (
        select sum(bytes) from index
        where name not in ('knowledge_chunks_embedding', 'knowledge_chunks_content_tsv')
      ) as other_indexes
    from pg_class as class
    where class.oid = 'public.knowledge_chunks'::regclass
"""


def load(connection: "psycopg.Connection[Any]", chunks: int, dimensions: int) -> float:
    """Load the chunks without the vector index, build it, and return the mean number of words."""
    texts = passages(list(documentation().values()), chunks, seed=1)
    (index,) = connection.execute(INDEX).fetchone() or ("",)
    connection.execute("drop index public.knowledge_chunks_embedding")
    draw = np.random.default_rng(1)
    with connection.cursor().copy(COPY) as copy:
        for text in texts:
            vector = draw.normal(size=dimensions)
            unit = (vector / np.linalg.norm(vector)).astype(np.float32)
            copy.write_row((text, "[" + ",".join(map(str, unit)) + "]", "random"))
    connection.execute(str(index).encode())
    connection.execute("vacuum (analyze) public.knowledge_chunks")
    return sum(len(text.split()) for text in texts) / chunks


def main() -> None:
    """Print a Markdown table with a row for each part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--dimensions", type=int, default=384)
    options = parser.parse_args()
    with scratch.database(options.dimensions) as connection:
        words = load(connection, options.chunks, options.dimensions)
        cursor = connection.execute(SIZES)
        row = cursor.fetchone()
        assert row
        assert cursor.description
        measured = {
            column.name: float(size) for column, size in zip(cursor.description, row, strict=True)
        }
    estimated = chunk_bytes(options.dimensions, words)
    print(f"{options.chunks:,} chunks, {options.dimensions} dimensions, {words:.0f} words each\n")
    print("| bytes per chunk | measured | model | error |")
    print("|---|---|---|---|")
    parts = {
        name: (size / options.chunks, getattr(estimated, name)) for name, size in measured.items()
    }
    parts["all"] = (sum(one for one, _ in parts.values()), sum(one for _, one in parts.values()))
    for name, (found, expected) in parts.items():
        error = expected / found - 1
        print(f"| {name.replace('_', ' ')} | {found:,.0f} | {expected:,.0f} | {error:+.0%} |")


if __name__ == "__main__":
    main()

"""Bulk load and space beside pg_textsearch + pgvector, and the speed of upserts and deletions.

`python -m benchmarks.load_and_space` loads both systems in one run and compares the time of the
load and the bytes of a chunk; upserts and deletions are of the project alone. It needs what
benchmarks/peers/textsearch.py needs.
"""

import argparse
import time
from collections.abc import Sequence

import psycopg

from benchmarks.corpus import EmbeddingSpace
from benchmarks.features import Library
from benchmarks.peers.ours import SecondBrain
from benchmarks.peers.textsearch import TextSearch
from benchmarks.workload import make_corpus
from benchmarks.writing import PREFIX, UPSERT, Draft, Drafts

DOCUMENT_SIZES = 1, 10, 50
BYTES = """
select pg_table_size(%(table)s),
       sum(pg_relation_size(index.oid)) filter (where method.amname = 'hnsw'),
       sum(pg_relation_size(index.oid)) filter (where method.amname <> 'hnsw')
  from pg_index as one
  join pg_class as index on index.oid = one.indexrelid
  join pg_am as method on method.oid = index.relam
 where one.indrelid = %(table)s::regclass
"""


def upserts(dsn: str, library: Library, space: EmbeddingSpace, chunks: int) -> dict[str, float]:
    """Return the chunks a second of one writer, by documents of each size and kind of write."""
    speeds: dict[str, float] = {}
    with psycopg.connect(dsn, autocommit=True) as connection:

        def write(kind: str, drafts: Sequence[Draft]) -> None:
            arguments = [draft.arguments() for draft in drafts]
            begin = time.perf_counter()
            for document in arguments:
                connection.execute(UPSERT, document)
            written = sum(len(draft.chunks) for draft in drafts)
            speeds[kind] = written / (time.perf_counter() - begin)

        for size in DOCUMENT_SIZES:
            drafts = Drafts(library, space, size, size)
            for _ in range(10):  # plans are cached after a few calls
                connection.execute(UPSERT, drafts.new().arguments())
            documents = [drafts.new() for _ in range(max(chunks // size, 2))]
            write(f"new documents of {size}", documents)
            write(f"unchanged documents of {size}", documents)
            if size > 1:
                write(
                    f"documents of {size}, half changed",
                    [drafts.changed(draft) for draft in documents],
                )
        begin = time.perf_counter()
        deleted = connection.execute(
            "with documents as ("
            "  delete from public.knowledge_documents"
            "   where starts_with(external_key, %(prefix)s) returning id"
            ") select count(*)"
            "    from public.knowledge_chunks join documents on documents.id = document_id",
            {"prefix": PREFIX},
        ).fetchone()
        assert deleted is not None
        speeds["deleted with their documents"] = deleted[0] / (time.perf_counter() - begin)
    return speeds


def main() -> None:
    """Load both systems, and print times, bytes and speeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--upserts", type=int, default=500, help="chunks of each kind of write")
    given = parser.parse_args()
    missing = TextSearch.missing(17)
    if missing is not None:
        parser.error(f"pg_textsearch is not here: {missing}")
    library, space = Library.read(), EmbeddingSpace(given.dimensions, 1)
    corpus = make_corpus(library, space, given.chunks, 1)
    seconds: list[float] = []
    sizes: list[Sequence[int]] = []
    for kind in (TextSearch, SecondBrain):
        system = kind()
        with system.running(17, given.dimensions, None):
            system.load(corpus)
            steps = ", ".join(f"{step} {taken:.1f}" for step, taken in system.steps.items())
            print(f"{kind.name}: loaded in {sum(system.steps.values()):.1f} s ({steps})")
            found = system.connection.execute(BYTES, {"table": system.table}).fetchone()
            assert found is not None
            seconds.append(sum(system.steps.values()))
            sizes.append([int(part) for part in found])
            if kind is SecondBrain:
                speeds = upserts(system.dsn, library, space, given.upserts)
    print(f"\n| {given.chunks:,} chunks | pg_textsearch + pgvector | second-brain | ratio |")
    print("|---|---|---|---|")
    print(f"| bulk load, s | {seconds[0]:.1f} | {seconds[1]:.1f} | {seconds[1] / seconds[0]:.2f} |")
    rows: dict[str, list[Sequence[int]]] = {
        "row and TOAST": [(table,) for table, _, _ in sizes],
        "the same and all indexes but the vector's": [(table, other) for table, _, other in sizes],
        "with all indexes": sizes,
    }
    for name, parts in rows.items():
        peer, own = (sum(part) / given.chunks for part in parts)
        print(f"| bytes of a chunk, {name} | {peer:,.0f} | {own:,.0f} | {own / peer:.2f} |")
    print("\n| one writer | chunks a second |\n|---|---|")
    for name, speed in speeds.items():
        print(f"| {name} | {speed:,.0f} |")


if __name__ == "__main__":
    main()

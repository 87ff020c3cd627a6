"""A corpus in one database, on its replica, and in several databases: hits, nDCG@10 and time.

A collection (BEIR's layout, with embeddings beside it) is loaded into one embedded database and,
each document by the placement of its key, into four on the same server, with summed statistics.
Every query is asked in turns: in one, on a standby of that server, in the four. overlap@10 is the
share of the first ten documents that one and four have; the standby's lists must be the same as
those of its primary. All servers share this machine's processors, so the times say what
the steps cost, not what four machines would gain.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg_pool import ConnectionPool

from benchmarks.quality import MEASURE, line, read
from second_brain import KnowledgeWriter
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres
from second_brain.evaluation import metrics
from second_brain.evaluation.scratch import load
from second_brain.services.arguments import SearchArguments
from second_brain.services.postgres import PostgresProvider
from second_brain.services.sharded import ShardedProvider
from second_brain.services.sharded_write import place
from second_brain.services.shared_statistics import refresh_shared_statistics

FUSIONS = ("rrf", "relative_score", "auto")
TOP = 10
TABLES = {
    "knowledge_documents": "id, external_key, title, language",
    "knowledge_chunks": (
        "id, document_id, chunk_index, heading, content, embedding, embedding_model"
    ),
}
FINISH = (
    "vacuum (analyze) public.knowledge_documents",
    "vacuum (analyze) public.knowledge_chunks",
    "select public.refresh_knowledge_statistics()",
)


def split(one: "psycopg.Connection[Any]", shards: dict[str, "psycopg.Connection[Any]"]) -> None:
    """Copy each document with its chunk into the database that its key is placed in."""
    keys = one.execute("select id, external_key from public.knowledge_documents").fetchall()
    for name, shard in shards.items():
        ids = [id_ for id_, key in keys if place(key, list(shards)) == name]
        for table, columns in TABLES.items():
            key = "id" if table == "knowledge_documents" else "document_id"
            out = sql.SQL(
                "copy (select {columns} from public.{table} where {key} = any ({ids})) to stdout"
            ).format(
                columns=sql.SQL(columns),
                table=sql.Identifier(table),
                key=sql.Identifier(key),
                ids=sql.Literal(ids),
            )
            into = sql.SQL("copy public.{table} ({columns}) from stdin").format(
                columns=sql.SQL(columns),
                table=sql.Identifier(table),
            )
            with one.cursor().copy(out) as reading, shard.cursor().copy(into) as writing:
                for data in reading:
                    writing.write(data)
        for statement in FINISH:
            shard.execute(statement)


@contextmanager
def databases(dimensions: int, count: int) -> Iterator[dict[str, str]]:
    """Yield the DSNs of `one`, of the shards, and of `one` on a standby, `replica`.

    All but the last are databases with the migrations on one server.
    """
    with tempfile.TemporaryDirectory(prefix="second-brain-benchmark-") as directory:
        place = Path(directory)
        # For root, the server runs as another account, which must enter the folder.
        place.chmod(0o711)
        server = EmbeddedPostgres(place / "postgres", 18, {"fsync": "off", "shared_buffers": "1GB"})
        with server:
            server.start(standbys=1)
            migrations.apply(server.dsn(), dimensions=dimensions, modules=migrations.modules())
            made = {"one": "one"} | {
                f"shard {number}": f"shard_{number}" for number in range(1, count + 1)
            }
            with psycopg.connect(server.admin_dsn("template1"), autocommit=True) as admin:
                for name in made.values():
                    admin.execute(
                        sql.SQL("create database {} template postgres owner postgres").format(
                            sql.Identifier(name)
                        )
                    )
            dsns = {name: server.dsn(database) for name, database in made.items()}
            yield dsns | {"replica": server.standbys[0].dsn("one")}
        server.remove()


def wait_until_replayed(replica: "ConnectionPool[psycopg.Connection[Any]]", position: str) -> None:
    """Wait until a standby has replayed the WAL up to a position."""
    with replica.connection() as connection:
        connection.autocommit = True
        while connection.execute(
            "select pg_last_wal_replay_lsn() < %s::pg_lsn", [position]
        ).fetchone() == (True,):
            time.sleep(0.1)
        connection.autocommit = False


def asked(provider: Any, text: str, vector: list[float], fusion: str) -> tuple[list[str], float]:
    """Return the documents found and the milliseconds."""
    arguments: SearchArguments = {"fusion": fusion, "top_k": TOP}
    begin = time.perf_counter()
    hits, _ = provider.find(vector, text, **arguments)
    milliseconds = 1000 * (time.perf_counter() - begin)
    return [hit.metadata["external_key"] for hit in hits], milliseconds


def main() -> None:
    """Print a Markdown table with a row for each fusion."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collection", type=Path, metavar="COLLECTION")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--queries", type=int, help="only the first ones")
    options = parser.parse_args()

    collection, vectors = read(options.collection, "minilm384")
    queries = collection.queries[: options.queries]
    with ExitStack() as stack:
        dsns = stack.enter_context(databases(vectors.dimensions, options.shards))
        replica = stack.enter_context(ConnectionPool(dsns.pop("replica"), min_size=2, max_size=4))
        shards = {
            name: stack.enter_context(psycopg.connect(dsn, autocommit=True))
            for name, dsn in dsns.items()
        }
        one = shards.pop("one")
        load(one, collection, vectors, "english", lambda doing: None)
        split(one, shards)
        begin = time.perf_counter()
        refresh_shared_statistics(shards)
        print(f"shards refresh: {time.perf_counter() - begin:.1f} s")
        pools = {
            name: stack.enter_context(ConnectionPool(dsn, min_size=2, max_size=4))
            for name, dsn in dsns.items()
        }
        single = PostgresProvider(pools.pop("one"))
        position = KnowledgeWriter(one).wal_position()
        replicated = PostgresProvider(replica)
        wait_until_replayed(replica, position)
        several = stack.enter_context(
            ShardedProvider({name: PostgresProvider(pool) for name, pool in pools.items()})
        )
        head = (
            "fusion",
            "overlap@10",
            "same list",
            f"{MEASURE} in 1",
            f"in {options.shards}",
            "p50 / p95 ms in 1",
            "on its replica",
            f"in {options.shards}",
        )
        print(line(head))
        print(line(["---"] * len(head)))
        for fusion in FUSIONS:
            providers = {"one": single, "replica": replicated, "several": several}
            found: dict[str, dict[str, list[str]]] = {name: {} for name in providers}
            times: dict[str, list[float]] = {name: [] for name in providers}
            for number, query in enumerate(queries):
                vector = vectors.queries[query.row].tolist()
                for name, provider in providers.items():
                    documents, milliseconds = asked(provider, query.text, vector, fusion)
                    found[name][query.id] = documents
                    if number >= len(queries) // 10:  # the first ones warm up
                        times[name].append(milliseconds)
            if found["replica"] != found["one"]:
                raise SystemExit(f"{fusion}: the replica answers otherwise than its primary")
            overlaps = [
                len(set(found["one"][id_]) & set(others)) / max(len(found["one"][id_]), 1)
                for id_, others in found["several"].items()
            ]
            same = sum(found["one"][id_] == others for id_, others in found["several"].items())
            qrels = {query.id: collection.qrels.get(query.id, {}) for query in queries}
            ndcg = {}
            for name, rankings in found.items():
                values = metrics.judge(qrels, rankings)[MEASURE]
                ndcg[name] = sum(values.values()) / len(values)
            p = {
                name: " / ".join(f"{metrics.percentile(taken, share):.1f}" for share in (50, 95))
                for name, taken in times.items()
            }
            print(
                line(
                    (
                        fusion,
                        f"{sum(overlaps) / len(overlaps):.4f}",
                        f"{same} of {len(queries)}",
                        f"{ndcg['one']:.4f}",
                        f"{ndcg['several']:.4f}",
                        p["one"],
                        p["replica"],
                        p["several"],
                    )
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()

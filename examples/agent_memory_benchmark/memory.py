"""Hybrid search as a memory of the Agent Memory Benchmark, and its retrieval alone.

https://github.com/vectorize-io/agent-memory-benchmark stores the documents of a data set, asks for
the context of each question, and lets a language model answer. Without one, this file runs the
first two steps: `python -m agent_memory_benchmark.memory locomo locomo10` prints how many of the
documents that answer a question its context has. See the README beside it.
"""

import os
import statistics
import sys
import time
from typing import Any

import psycopg
from memory_bench.dataset import get_dataset
from memory_bench.memory import REGISTRY, get_memory_provider
from memory_bench.memory.base import MemoryProvider
from memory_bench.models import Document

from second_brain.ingest.document import LoadedDocument
from second_brain.ingest.splitting import Chunking, split
from second_brain.models import embed_query, load_embedder
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter

DEPTHS = (5, 10, 20)


class SecondBrainMemory(MemoryProvider):  # type: ignore[misc, unused-ignore]
    """Passages of at most 300 tokens in the database of SECOND_BRAIN_DSN, a collection a user."""

    name = "second-brain"
    description = "Hybrid search in Postgres: BM25 and vectors, fused. Passages of 300 tokens."
    kind = "local"

    def __init__(self) -> None:
        self._dsn = os.environ["SECOND_BRAIN_DSN"]
        self._embedder = load_embedder(os.environ.get("SECOND_BRAIN_MODEL", "wordllama"))
        self._provider = PostgresProvider(self._dsn)

    def ingest(self, documents: list[Document]) -> None:
        """Store each document, in place of one with the same id."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            writer = KnowledgeWriter(connection)
            for document in documents:
                passages = split(LoadedDocument("", document.content), Chunking(size=300))
                texts = [passage.content for passage in passages]
                chunks = [
                    {"content": text, "embedding": vector, "embedding_model": self._embedder.model}
                    for text, vector in zip(texts, self._embedder.embed(texts), strict=True)
                ]
                place = {"external_key": document.id, "collection": document.user_id or "general"}
                writer.upsert_document(place, chunks)
            connection.execute("select public.refresh_knowledge_statistics()")

    def retrieve(
        self,
        query: str,
        k: int = 10,
        user_id: str | None = None,
        query_timestamp: str | None = None,
    ) -> tuple[list[Document], dict[str, Any] | None]:
        """Return the best k passages, of one user's documents if it is named."""
        hits, _ = self._provider.hybrid_search(
            embed_query(self._embedder, query),
            query,
            top_k=k,
            collections=[user_id] if user_id else None,
        )
        found = [Document(hit.metadata["external_key"], hit.content, user_id) for hit in hits]
        return found, None


REGISTRY[SecondBrainMemory.name] = SecondBrainMemory


def main(dataset_name: str, part: str, memory_name: str = SecondBrainMemory.name) -> None:
    """Print the recall of the documents that answer, at DEPTHS passages, and the milliseconds."""
    dataset, memory = get_dataset(dataset_name), get_memory_provider(memory_name)
    started = time.perf_counter()
    memory.ingest(dataset.load_documents(part))
    print(f"stored in {time.perf_counter() - started:.0f} s")
    recall: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    seconds = []
    for asked in dataset.load_queries(part):
        wanted = set(asked.gold_ids)
        started = time.perf_counter()
        found, _ = memory.retrieve(asked.query, max(DEPTHS), asked.user_id)
        seconds.append(time.perf_counter() - started)
        for depth in DEPTHS if wanted else ():
            recall[depth].append(len(wanted & {one.id for one in found[:depth]}) / len(wanted))
    means = ", ".join(f"{depth}: {statistics.mean(recall[depth]):.3f}" for depth in DEPTHS)
    print(f"{memory_name}: {len(recall[DEPTHS[0]])} questions, recall at {means}")
    print(f"p50 {1000 * statistics.median(seconds):.0f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])

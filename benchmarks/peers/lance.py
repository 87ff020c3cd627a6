"""LanceDB (package lancedb), a library that searches files in this process: no server, no network.

https://docs.lancedb.com/search/hybrid-search: BM25 and an approximate vector index, fused by
reciprocal rank (the default reranker). It is asked for pools of 50, of which ten are taken. The
filter runs before the search. The legs run in two threads, and `ef` is the default, as its guide
has them. Below 10,000 rows the vectors are compared without an index, as its
guide advises for small tables.
"""

# The package is not among those that the project installs.
# mypy: disable-error-code="import-not-found,import-untyped"

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.corpus import Corpus, Query
from benchmarks.peers.system import POOL, Client, System
from benchmarks.scratch import folder

INDEXED_FROM = 10_000


class LanceClient(Client):
    """An open table."""

    name = "LanceDB hybrid"
    text_leg = "BM25 index"

    def __init__(self, place: Path) -> None:
        import lancedb

        self._table: Any = lancedb.connect(place).open_table("passages")

    def search(self, query: Query, count: int) -> list[int]:
        """Search by vector, by text, or by both."""
        from lancedb.query import MatchQuery, PhraseQuery

        text: Any = None
        if query.text is not None:
            kind: Any = PhraseQuery if query.phrase else MatchQuery
            text = kind(query.text, "content")
        if text is None:
            search = self._table.search(query.embedding, query_type="vector")
        elif query.embedding is None:
            search = self._table.search(text, query_type="fts")
        else:
            search = self._table.search(query_type="hybrid").vector(query.embedding).text(text)
        if text is None or query.embedding is not None:
            search = search.distance_type("cosine")
        if query.kept:
            search = search.where(f"knowledge_type = '{query.kept}'")
        rows = search.select(["id", "content"]).limit(max(POOL, count)).to_arrow()
        return [int(row) for row in rows["id"].to_pylist()[:count]]

    def close(self) -> None:
        """Forget the table."""
        self._table = None

    def cpu(self) -> float | None:
        """Return the CPU time of this process: the library's threads, and Python's."""
        return 1000 * time.process_time()


class Lance(System):
    """A table in a folder that is gone afterwards, or kept."""

    name = LanceClient.name
    key = "lancedb"
    client: ClassVar = LanceClient
    modules: ClassVar = ("lancedb",)
    packages: ClassVar = ("lancedb",)
    install = "pip install lancedb"
    _place: Path

    @contextmanager
    def running(self, major: int, dimensions: int, keep: Path | None) -> Iterator[None]:
        """Make a folder; nothing has to be started."""
        os.environ.setdefault("LANCEDB_LOG", "error")
        with folder(keep) as place:
            self._place = place / "tables"
            yield

    def load(self, corpus: Corpus) -> None:
        """Write the table, then build the indexes."""
        import lancedb
        import pyarrow as pa
        from lancedb.index import FTS, BTree, HnswSq

        rows, dimensions = corpus.embeddings.shape
        vectors = pa.FixedSizeListArray.from_arrays(corpus.embeddings.reshape(-1), dimensions)
        passages = pa.table(
            {
                "id": range(rows),
                "knowledge_type": corpus.types,
                "content": [corpus.full_text(row) for row in range(rows)],
                "vector": vectors,
            }
        )
        with self.step("copy"):
            table: Any = lancedb.connect(self._place).create_table("passages", passages)
        with self.step("text index"):
            table.create_index("content", config=FTS(with_position=True))
        with self.step("other indexes"):
            table.create_index("knowledge_type", config=BTree())
        if rows >= INDEXED_FROM:
            with self.step("vector index"):
                table.create_index("vector", config=HnswSq(distance_type="cosine"))
        with self.step("optimize"):
            table.optimize()

    def holds(self, corpus: Corpus) -> bool:
        """Compare the number of rows, and look for the index that is built last."""
        import lancedb

        database = lancedb.connect(self._place)
        if "passages" not in database.table_names():
            return False
        table: Any = database.open_table("passages")
        rows = len(corpus.texts)
        last = "vector" if rows >= INDEXED_FROM else "knowledge_type"
        indexed = {column for index in table.list_indices() for column in index.columns}
        return bool(table.count_rows() == rows and last in indexed)

    def connect(self) -> Client:
        """Open the table."""
        return LanceClient(self._place)

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the data, and of the indexes."""
        files = [file for file in self._place.rglob("*") if file.is_file()]
        indexes = [file for file in files if "_indices" in file.parts]
        indexed = sum(file.stat().st_size for file in indexes)
        return sum(file.stat().st_size for file in files) - indexed, indexed

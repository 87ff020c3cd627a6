"""Processes that ingest the same folder: documents per second, and work that was done twice.

Each row of the table is a new database. All processes run `ingest` over all documents. In the last
row, one of them is killed with SIGKILL in the middle, and another is started in its place: the
document that it was at is embedded again. The model is a stand-in that takes --model-ms for each
chunk and no processor time, as a hosted one does.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import psycopg
from numpy.typing import NDArray

from benchmarks.corpus import documentation, passages
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres
from second_brain.ingest import find_files, ingest

DIMENSIONS = 384
STORED = """
    select count(*), (select count(*) from public.knowledge_chunks)
    from public.knowledge_documents
"""


class SlowModel:
    """Random unit vectors, after a pause; each text is a line of the log."""

    model = "stand-in"
    dimensions = DIMENSIONS

    def __init__(self, log: Path, pause: float) -> None:
        self.log = log
        self.pause = pause

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector for each text."""
        with self.log.open("a") as file:
            file.write("".join(f"{hash(text)}\n" for text in texts))
        time.sleep(self.pause * len(texts))
        vectors = np.random.default_rng().normal(size=(len(texts), DIMENSIONS)).astype(np.float32)
        unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


def work(dsn: str, folder: Path, log: Path, pause: float) -> None:
    """Ingest the folder in this process."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        documents = find_files([folder], source="bench").documents
        for _ in ingest(documents, connection, SlowModel(log, pause)):
            pass


def lines(log: Path) -> list[str]:
    """Return the lines of the log."""
    return log.read_text().splitlines() if log.exists() else []


def measured(
    dsn: str, folder: Path, log: Path, processes: int, pause: float, chunks: int, *, kill: bool
) -> tuple[float, int]:
    """Return the seconds, and how many texts were embedded again."""
    # A fork has the hash seed of this process, so equal texts are equal lines.
    context = multiprocessing.get_context("fork")

    def start() -> multiprocessing.process.BaseProcess:
        process = context.Process(target=work, args=(dsn, folder, log, pause))
        process.start()
        return process

    begin = time.perf_counter()
    running = [start() for _ in range(processes)]
    if kill:
        while len(lines(log)) < chunks // 2:
            time.sleep(0.01)
        running[0].kill()
        running[0].join()
        running[0] = start()
    for process in running:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process ended with {process.exitcode}")
    seconds = time.perf_counter() - begin
    embedded = Counter(lines(log))
    return seconds, embedded.total() - len(embedded)


def main() -> None:
    """Print a Markdown table with a row for each number of processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--model-ms", type=float, default=20.0)
    options = parser.parse_args()

    random = Random(1)
    texts = passages(list(documentation().values()), 3 * options.documents, seed=1)
    with tempfile.TemporaryDirectory(prefix="second-brain-benchmark-") as directory:
        place = Path(directory)
        # For root, the server runs as another account, which must enter the folder.
        place.chmod(0o711)
        folder = place / "documents"
        folder.mkdir()
        for number in range(options.documents):
            parts = texts[3 * number : 3 * number + random.randint(1, 3)]
            text = "\n\n".join(f"## Part {number}.{at}\n\n{part}" for at, part in enumerate(parts))
            (folder / f"{number:05}.md").write_text(f"# Document {number}\n\n{text}\n")
        print("| processes | documents/s | of one process | embedded twice | documents | chunks |")
        print("|---|---|---|---|---|---|")
        server = EmbeddedPostgres(place / "postgres", 18, {"fsync": "off"})
        with server:
            migrations.apply(server.dsn(), dimensions=DIMENSIONS, modules=migrations.modules())
            alone, chunks = 0.0, 0
            runs = [(count, False) for count in options.processes] + [(options.processes[-1], True)]
            for place_of_run, (processes, kill) in enumerate(runs):
                dsn = server.dsn(create(server, f"run_{place_of_run}"))
                seconds, again = measured(
                    dsn,
                    folder,
                    place / f"log-{place_of_run}",
                    processes,
                    options.model_ms / 1000,
                    chunks or options.documents,
                    kill=kill,
                )
                with psycopg.connect(dsn) as connection:
                    stored = connection.execute(STORED).fetchone()
                assert stored
                rate, chunks = stored[0] / seconds, stored[1]
                alone = alone or rate
                killed = ", one killed" if kill else ""
                print(
                    f"| {processes}{killed} | {rate:.1f} | {rate / alone:.2f} | {again} |"
                    f" {stored[0]:,} | {stored[1]:,} |",
                    flush=True,
                )
        server.remove()


def create(server: EmbeddedPostgres, name: str) -> str:
    """Create a database with the migrations, and return its name."""
    with psycopg.connect(server.admin_dsn("template1"), autocommit=True) as admin:
        admin.execute(f"create database {name} template postgres owner postgres".encode())
    return name


if __name__ == "__main__":
    main()

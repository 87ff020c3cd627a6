"""A program that forks writers, which write versions of a document until they are killed.

It reads lines of key, first version, words in a chunk and a file, forks a writer for each and
prints its process id. A writer adds each version to its file before the write, and `ok` after it.
"""

import os
import signal
import sys
from itertools import count

import psycopg
from versions import chunks, document

from second_brain.services.write import KnowledgeWriter


def write(key: str, first: int, length: int, file: str) -> None:
    with (
        open(file, "a", encoding="ascii", buffering=1) as said,
        psycopg.connect(os.environ["CHAOS_DSN"], autocommit=True) as connection,
    ):
        writer = KnowledgeWriter(connection)
        for version in count(first):
            print(version, file=said)
            writer.upsert_document(document(key, version), chunks(key, version, length))
            print("ok", version, file=said)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the writers
    for line in sys.stdin:
        key, first, length, file = line.split()
        pid = os.fork()
        if pid == 0:
            write(key, int(first), int(length), file)
        print(pid, flush=True)


if __name__ == "__main__":
    main()

"""Place the documents of a corpus in several databases, and move them when a database is added."""

from collections.abc import Sequence
from hashlib import sha256


def place(key: str, shards: Sequence[str]) -> str:
    """Return the database of a document: the one whose name gives the highest hash with its key.

    The hash is SHA-256 of the name, a zero byte and the key. With a further database only its own
    share of the keys has another place (rendezvous hashing, Thaler and Ravishankar 1998).
    """
    return max(shards, key=lambda name: (sha256(f"{name}\0{key}".encode()).digest(), name))

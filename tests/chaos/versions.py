"""Documents whose content follows from key and version, and what may be stored of them.

A ledger knows which versions of a document are possible: the last that was acknowledged, and those
that were sent since, whose outcome is unknown. Whatever else is stored is a violation.
"""

import hashlib
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conftest import Connection

Version = int | None
"""None: there is no such document."""

_STORED = """
select document.external_key, document.title, document.metadata, document.content_hash,
       chunk.chunk_index, chunk.heading, chunk.content, chunk.content_hash, chunk.embedding::text
  from public.knowledge_documents as document
  left join public.knowledge_chunks as chunk
    on chunk.document_id = document.id
   and chunk.status = 'active'
 order by document.external_key, chunk.chunk_index, chunk.id
"""
_ORPHANS = """
select count(*)
  from public.knowledge_chunks as chunk
 where not exists (select from public.knowledge_documents as parent where parent.id = document_id)
"""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def word(key: str, version: int) -> str:
    """The word that only this version of the document has."""
    return f"{key}v{version}x"


def document(key: str, version: int) -> dict[str, object]:
    # The title is the heading of each chunk, so a new one changes all chunks.
    return {
        "external_key": key,
        "title": f"{key} title {version // 3}",
        "metadata": {"version": version},
    }


def chunks(key: str, version: int, length: int = 30) -> list[dict[str, object]]:
    """Some chunks of every version, some of this one, in an order of its own."""
    draw = random.Random(f"{key} {version}")
    texts = [f"{word(key, version)} " + _words(draw, length)]
    texts += [f"{key} keeps {place}" for place in range(4) if draw.random() < 0.7]
    texts += [
        f"{key} changes {place} in {version} " + _words(draw, length)
        for place in range(draw.randrange(4))
    ]
    draw.shuffle(texts)
    return [
        {"content": text, "embedding_model": "m", "embedding": _embedding(text)} for text in texts
    ]


def _words(draw: random.Random, length: int) -> str:
    return " ".join(f"w{draw.getrandbits(40):x}" for _ in range(length))


def _embedding(text: str) -> list[int]:
    return [1 + byte for byte in hashlib.sha256(text.encode()).digest()[:3]]


@dataclass
class Ledger:
    """What is known of each document; used by several threads, each with keys of its own."""

    length: int = 30
    possible: dict[str, set[Version]] = field(default_factory=dict)
    acknowledged: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sends(self, key: str, version: Version) -> None:
        with self._lock:
            self.possible.setdefault(key, {None}).add(version)

    def is_acknowledged(self, key: str, version: Version) -> None:
        """Note that the database has stored a version."""
        with self._lock:
            self.possible[key] = {version}
            self.acknowledged += 1

    def differences(self, connection: Connection) -> list[str]:
        """Compare with all that is stored; what is found is the only possibility from now on."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        for key, *row in connection.execute(_STORED).fetchall():
            found.setdefault(key, []).append(tuple(row))
        wrong = []
        for key in sorted({*self.possible, *found}):
            version = found[key][0][1].get("version") if key in found else None
            allowed = self.possible.get(key, set())
            if version not in allowed:
                wrong.append(f"{key} has version {version}, possible are {allowed}")
            elif version is not None:
                wrong += self._differences(key, version, found[key])
            self.possible[key] = {version}
        ((orphans,),) = connection.execute(_ORPHANS).fetchall()
        if orphans:
            wrong.append(f"{orphans} chunks have no document")
        return wrong

    def _differences(self, key: str, version: int, rows: Sequence[tuple[Any, ...]]) -> list[str]:
        given = chunks(key, version, self.length)
        title = str(document(key, version)["title"])
        hashes = [digest(f"{title}\n{chunk['content']}") for chunk in given]
        expected: Mapping[str, object] = {
            "title": [title] * len(given),
            "hash of the document": [digest(" ".join(hashes))] * len(given),
            "places": list(range(len(given))),
            "headings": [title] * len(given),
            "contents": [chunk["content"] for chunk in given],
            "hashes": hashes,
            "embeddings": [str(chunk["embedding"]).replace(" ", "") for chunk in given],
        }
        stored = dict(
            zip(
                expected,
                ([row[place] for row in rows] for place in (0, 2, 3, 4, 5, 6, 7)),
                strict=True,
            )
        )
        return [
            f"{key} version {version} is not whole: {what}"
            for what in expected
            if stored[what] != expected[what]
        ]

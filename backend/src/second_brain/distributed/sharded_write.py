"""Place the documents of a corpus in several databases, and move them when a database is added.

A document is in the database that `place` names. While documents move, it stays where it is until
`move_documents` has moved it, so each write looks for it in the earlier place first.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from second_brain.distributed.sharded import TIMEOUT
from second_brain.errors import InvalidInputError, documented
from second_brain.services.install import SCHEMA, Install
from second_brain.services.write import DeletedCounts, KnowledgeWriter, UpsertCounts

GRACE = 2 * TIMEOUT
"""Seconds that a moved document stays in its earlier database: longer than any search may take."""

_LOCK = """
    select from public.knowledge_documents where external_key = %(external_key)s for update
"""
_KEYS = """
    select id, external_key
    from public.knowledge_documents
    where id > %(after)s and source_row is null
    order by id
    limit %(most)s
"""
_EXPORT = "select public.export_knowledge_documents(%(ids)s::uuid[])"
_IMPORT = "select public.import_knowledge_documents(%(exported)s::jsonb)"
_REMOVE = """
    select id, outcome from public.remove_exported_knowledge_documents(%(stamps)s::jsonb)
"""
_PAGE = 5000


def place(key: str, shards: Iterable[str]) -> str:
    """Return the database of a document: the one whose name gives the highest hash with its key.

    The hash is SHA-256 of the name, a zero byte and the key. With a further database only its own
    share of the keys has another place (rendezvous hashing, Thaler and Ravishankar 1998).
    """
    return max(shards, key=lambda name: (sha256(f"{name}\0{key}".encode()).digest(), name))


@documented
class ShardedWriter:
    """Writes each document into its database; each method is as in `KnowledgeWriter`.

    `shards` are the connections of all databases, by the names that `ShardedProvider` has. While
    documents move, `before` has the names of the databases before the change. A connection can be
    used by one thread at a time.
    """

    def __init__(
        self,
        shards: Mapping[str, "psycopg.Connection[Any]"],
        *,
        before: Sequence[str] | None = None,
        schema: str = SCHEMA,
    ) -> None:
        unknown = set(before or ()) - shards.keys()
        if not shards or unknown:
            raise InvalidInputError(
                f"before names databases that shards does not have: {', '.join(sorted(unknown))}"
                if unknown
                else "shards is empty, give at least one connection"
            )
        self._shards = dict(shards)
        self._before = tuple(before or shards)
        self._install = Install(schema)
        self._writers = {
            name: KnowledgeWriter(shard, schema=schema) for name, shard in shards.items()
        }

    def upsert_document(
        self,
        document: Mapping[str, object],
        chunks: Sequence[Mapping[str, object]],
        *,
        fields: Literal["merge", "replace"] = "merge",
    ) -> UpsertCounts:
        """Store a document and its chunks in its database, or where it is until it has moved."""
        key = document.get("external_key")
        if not isinstance(key, str):
            raise InvalidInputError("external_key is missing: a document is placed by it")
        earlier, final = self._places(key)
        if earlier != final:
            shard = self._shards[earlier]
            # The lock makes a move that has begun wait, or this write wait for the move.
            with shard.transaction():
                if (
                    shard.execute(self._install.statement(_LOCK), {"external_key": key}).fetchone()
                    is not None
                ):
                    return self._writers[earlier].upsert_document(document, chunks, fields=fields)
        return self._writers[final].upsert_document(document, chunks, fields=fields)

    def delete_document(self, external_key: str) -> int:
        """Delete a document and return how many chunks it had; 0 when there is none."""
        # In the earlier database first: what is no longer there is not copied again.
        places = dict.fromkeys(self._places(external_key))
        return max([self._writers[name].delete_document(external_key) for name in places])

    def delete_owner(self, owner_id: UUID | str) -> DeletedCounts:
        """Delete everything that belongs to one owner, in all databases."""
        names = dict.fromkeys((*self._before, *self._shards))
        deleted = [self._writers[name].delete_owner(owner_id) for name in names]
        return DeletedCounts(
            sum(one.documents_deleted for one in deleted),
            sum(one.chunks_deleted for one in deleted),
        )

    def _places(self, key: str) -> tuple[str, str]:
        return place(key, self._before), place(key, self._shards)


@dataclass(frozen=True, slots=True)
class Moved:
    """What `move_documents` did: documents looked at, and moved."""

    documents: int
    moved: int


def move_documents(
    shards: Mapping[str, "psycopg.Connection[Any]"],
    *,
    onto: Sequence[str] | None = None,
    schema: str = SCHEMA,
    grace: float = GRACE,
    batch: int = 200,
    notify: Callable[[Moved], object] = lambda moved: None,
    sleep: Callable[[float], object] = time.sleep,
) -> Moved:
    """Move each document that is not in its place; searches and writes go on meanwhile.

    Run it after a database is added, with `ShardedProvider` and every `ShardedWriter` already
    using all databases. A batch is copied under a lock, stays in both databases for `grace`
    seconds (longer than the timeout of any search, so that each search finds it in one of them),
    and is then deleted where it was; what changed meanwhile is copied again. After a stop, run it
    again: it continues. To remove a database, name in `onto` those that stay. Documents of adopted
    tables are not moved.
    """
    mover = _Mover(shards, Install(schema), grace, sleep)
    looked_at = 0
    for name in shards:
        for page in mover.documents(name):
            looked_at += len(page)
            by_target: dict[str, list[UUID]] = {}
            for id_, key in page:
                target = place(key, onto or shards)
                if target != name:
                    by_target.setdefault(target, []).append(id_)
            for target, ids in by_target.items():
                for start in range(0, len(ids), batch):
                    mover.copy(name, target, ids[start : start + batch])
                    mover.finish(waiting=False)
                    notify(Moved(looked_at, mover.moved))
    mover.finish(waiting=True)
    return Moved(looked_at, mover.moved)


@dataclass(frozen=True, slots=True)
class _Copied:
    """A batch that is in two databases: it is deleted in `source` from `end` on."""

    source: str
    target: str
    stamps: dict[str, str]
    end: float


class _Mover:
    def __init__(
        self,
        shards: Mapping[str, "psycopg.Connection[Any]"],
        install: Install,
        grace: float,
        sleep: Callable[[float], object],
    ) -> None:
        for name, shard in shards.items():
            if not shard.autocommit:
                # Without it, nothing is committed before the end.
                raise InvalidInputError(f"the connection of {name} must have autocommit")
        self._shards = shards
        self._install = install
        self._grace = grace
        self._sleep = sleep
        self._copied: deque[_Copied] = deque()
        self.moved = 0

    def documents(self, name: str) -> Iterator[list[tuple[UUID, str]]]:
        """Yield the ids and keys of a database, page by page."""
        after = UUID(int=0)
        while page := self._rows(name, _KEYS, {"after": after, "most": _PAGE}):
            yield page
            after = page[-1][0]

    def copy(self, source: str, target: str, ids: Sequence[UUID]) -> None:
        """Copy documents; they stay locked in `source` until `target` has committed them."""
        with self._shards[source].transaction():
            ((exported,),) = self._rows(source, _EXPORT, {"ids": list(ids)})
            with self._shards[target].transaction():
                self._rows(target, _IMPORT, {"exported": Jsonb(exported)})
        self._copied.append(
            _Copied(source, target, exported["stamps"], time.monotonic() + self._grace)
        )

    def finish(self, *, waiting: bool) -> None:
        """Delete what was copied long enough ago where it was; with `waiting`, all of it."""
        while self._copied:
            left = self._copied[0].end - time.monotonic()
            if left > 0:
                if not waiting:
                    return
                self._sleep(left)
            copied = self._copied.popleft()
            changed: list[UUID] = []
            absent: dict[str, str] = {}
            with self._shards[copied.source].transaction():
                for id_, outcome in self._rows(
                    copied.source, _REMOVE, {"stamps": Jsonb(copied.stamps)}
                ):
                    self.moved += outcome == "removed"
                    if outcome == "changed":
                        changed.append(id_)
                    elif outcome == "absent":
                        absent[str(id_)] = copied.stamps[str(id_)]
            if absent:
                # Deleted meanwhile, so the copy is deleted, too, unless it was written since.
                with self._shards[copied.target].transaction():
                    self._rows(copied.target, _REMOVE, {"stamps": Jsonb(absent)})
            if changed:
                self.copy(copied.source, copied.target, changed)

    def _rows(self, name: str, statement: Any, arguments: Mapping[str, object]) -> list[Any]:
        return self._shards[name].execute(self._install.statement(statement), arguments).fetchall()

"""The statistics of a corpus in several databases: summed, and set in each of them.

Document frequencies, lengths and the spread of the cosines are then the same in all, so that BM25
and fusion `auto` weigh alike. The sums are made by the SQL of `supabase/schemas/modules/shards`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from second_brain.services.install import SCHEMA, Install

_ANALYSE = "analyze public.knowledge_chunks"
_STORED = """
select corpus.shared_id, (select count(*) from public.knowledge_chunks), corpus.document_count,
       corpus.refreshed_at
  from (values (true)) as always (id)
  left join public.knowledge_corpus_statistics as corpus on corpus.id = always.id
"""
_OWN = "select public.knowledge_statistics(%(lexemes)s::text[])"
_SUM = "select public.sum_knowledge_statistics(%(statistics)s::jsonb)"
_SET = "select public.set_knowledge_statistics(%(statistics)s::jsonb)"


@dataclass(frozen=True, slots=True)
class SharedStatistics:
    """What was set: the name of the statistics, and the size of the whole corpus."""

    id: str
    chunks: int
    lexemes: int


@dataclass(frozen=True, slots=True)
class StatisticsOfShard:
    """The statistics that a database uses; `id` is None for its own. `rows` are its chunks now."""

    id: str | None
    rows: float
    shared_rows: float | None
    set_at: datetime | None


def shared_statistics(
    connection: "psycopg.Connection[Any]", *, schema: str = SCHEMA
) -> StatisticsOfShard:
    """Return which statistics a database uses."""
    stored = connection.execute(Install(schema).statement(_STORED)).fetchone()
    shared_id, rows, shared_rows, set_at = stored or (None, 0, None, None)
    if shared_id is None:
        return StatisticsOfShard(None, rows, None, None)
    return StatisticsOfShard(shared_id, rows, shared_rows, set_at)


def refresh_shared_statistics(
    shards: Mapping[str, "psycopg.Connection[Any]"], *, schema: str = SCHEMA
) -> SharedStatistics:
    """Sum the statistics of the databases and set them in all; the connections are of owners.

    Each database analyses its chunks first. Searches go on meanwhile; until the last database has
    the new statistics, `details["uneven_statistics"]` says so.
    """
    install = Install(schema)
    analyse, own, add, set_ = (install.statement(text) for text in (_ANALYSE, _OWN, _SUM, _SET))
    figures: dict[str, dict[str, Any]] = {}
    for name, connection in shards.items():
        connection.execute(analyse)
        figures[name] = _value(connection, own, {"lexemes": None})
    # A lexeme is listed where it is common: the other databases count it.
    listed = {lexeme for one in figures.values() for lexeme in one["frequencies"]}
    for name, connection in shards.items():
        missing = sorted(listed - figures[name]["frequencies"].keys())
        counted = _value(connection, own, {"lexemes": missing})
        figures[name]["frequencies"] |= counted["frequencies"]
    first = next(iter(shards.values()))
    summed = _value(first, add, {"statistics": Jsonb(list(figures.values()))})
    for connection in shards.values():
        connection.execute(set_, {"statistics": Jsonb(summed)})
        if not connection.autocommit:
            connection.commit()
    return SharedStatistics(
        summed["id"], round(summed["document_count"]), len(summed["frequencies"])
    )


def _value(
    connection: "psycopg.Connection[Any]", statement: bytes, arguments: dict[str, Any]
) -> dict[str, Any]:
    row = connection.execute(statement, arguments).fetchone()
    value: dict[str, Any] = row[0] if row else {}
    return value

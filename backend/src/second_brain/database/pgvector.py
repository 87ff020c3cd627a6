"""The pgvector of a database: its version, the schema that has it, and the names of its objects.

It may be in any schema. The SQL files name schema `extensions`, where Supabase installs it;
`naming.with_vector` rewrites them.
"""

import re
from dataclasses import dataclass
from typing import Any

import psycopg

MINIMUM = (0, 8)

WITHOUT_FAULTS = "0.8.4"
_FAULTS = (
    ("0.8.2", "a parallel build of an HNSW index can read data of other tables (CVE-2026-3172)"),
    ("0.8.3", "a vacuum during inserts can corrupt an HNSW index (pgvector 988)"),
    (WITHOUT_FAULTS, 'a vacuum can fail with "hnsw graph not repaired" (pgvector 993)'),
)
"""Faults that searches meet, each with the version that mends it."""

_INSTALLED = """
select extension.extversion, namespace.nspname
  from pg_catalog.pg_extension as extension
  join pg_catalog.pg_namespace as namespace on namespace.oid = extension.extnamespace
 where extension.extname = 'vector'
"""
_AVAILABLE = """
select available.default_version
  from pg_catalog.pg_available_extensions as available
 where available.name = 'vector'
"""
_MEMBERS = """
select distinct coalesce(function.proname, type.typname, class.opcname)
  from pg_catalog.pg_extension as extension
  join pg_catalog.pg_depend as dependency
    on dependency.refclassid = 'pg_catalog.pg_extension'::regclass
   and dependency.refobjid = extension.oid
   and dependency.deptype = 'e'
  left join pg_catalog.pg_proc as function
    on dependency.classid = 'pg_catalog.pg_proc'::regclass and function.oid = dependency.objid
  left join pg_catalog.pg_type as type
    on dependency.classid = 'pg_catalog.pg_type'::regclass and type.oid = dependency.objid
  left join pg_catalog.pg_opclass as class
    on dependency.classid = 'pg_catalog.pg_opclass'::regclass and class.oid = dependency.objid
 where extension.extname = 'vector'
   and coalesce(function.proname, type.typname, class.opcname) is not null
"""
_NAMED = """
select namespace.nspname
  from pg_catalog.pg_proc as function
 cross join lateral regexp_matches(function.prosrc, '"?(\\w+)"?[.]vector\\M', 'g') as found (parts)
  join pg_catalog.pg_namespace as namespace on namespace.nspname = found.parts[1]
 where function.pronamespace = to_regnamespace(%s)
 limit 1
"""


@dataclass(frozen=True, slots=True)
class Pgvector:
    """An installed pgvector."""

    version: str
    schema: str

    @property
    def is_new_enough(self) -> bool:
        """Whether it has the iterative index scans that searches need."""
        return is_new_enough(self.version)

    @property
    def faults(self) -> list[str]:
        """The known faults of this version."""
        return [fault for mended, fault in _FAULTS if _numbers(self.version) < _numbers(mended)]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def is_new_enough(version: str) -> bool:
    """Return whether a version of pgvector has iterative index scans."""
    return _numbers(version)[:2] >= MINIMUM


def installed(connection: psycopg.Connection[Any]) -> Pgvector | None:
    """Return the pgvector of a database, or None."""
    found = connection.execute(_INSTALLED).fetchone()
    return None if found is None else Pgvector(*found)


def named(connection: psycopg.Connection[Any], internals: str) -> str | None:
    """Return the schema that the functions of an install name as pgvector's, or None."""
    found = connection.execute(_NAMED, [internals]).fetchone()
    return None if found is None else str(found[0])


def available(connection: psycopg.Connection[Any]) -> str | None:
    """Return the version of pgvector that the server can install, or None."""
    found = connection.execute(_AVAILABLE).fetchone()
    return None if found is None else str(found[0])


def members(connection: psycopg.Connection[Any]) -> list[str]:
    """List the names of pgvector's functions, types and operator classes."""
    return [str(name) for (name,) in connection.execute(_MEMBERS).fetchall()]

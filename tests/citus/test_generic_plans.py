"""What Citus cannot run, found without Citus."""

import re
from pathlib import Path

import psycopg
import pytest

from conftest import Connection

FUNCTIONS = """
    select format('%s.%s', schema.nspname, function.proname), function.prosrc,
           coalesce('plan_cache_mode=force_generic_plan' = any (function.proconfig), false)
      from pg_proc as function
      join pg_namespace as schema on schema.oid = function.pronamespace
     where schema.nspname in ('public', 'knowledge_internal')
       and function.prolang in (select oid from pg_language where lanname in ('plpgsql', 'sql'))
"""
WRITES = re.compile(
    r"\b(insert\s+into|update|delete\s+from|merge\s+into)\s+public\.\w", re.IGNORECASE
)


def test_no_write_of_a_table_is_planned_without_the_values(knowledge: Connection) -> None:
    """Citus plans an `insert ... select` only with the values of its parameters (0A000)."""
    bodies: dict[str, str] = {}
    forced = set()
    for name, body, is_forced in knowledge.execute(FUNCTIONS).fetchall():
        bodies[name] = bodies.get(name, "") + body
        if is_forced or "use_search_settings(" in body:
            forced.add(name)

    def writing(name: str, reached: set[str]) -> set[str]:
        """Return the functions that write, among those that a function calls with its settings."""
        if name not in bodies or name in reached:
            return set()
        reached.add(name)
        called = set(re.findall(r"\b\w+\.\w+(?=\()", bodies[name]))
        found = {name} if WRITES.search(bodies[name]) else set()
        return found.union(*(writing(one, reached) for one in called))

    assert "knowledge_internal.search" in forced
    assert writing("public.upsert_knowledge_document", set()) >= {
        "knowledge_internal.store_document",
        "knowledge_internal.write_rows",
    }
    assert {name: written for name in forced if (written := writing(name, set()))} == {}


def test_the_function_of_the_page_takes_the_place_of_cores(knowledge: Connection) -> None:
    """It reads catalogues that only Citus has; what can be tried here is that Postgres takes it."""
    page = (Path(__file__).parents[2] / "docs" / "citus.sql").read_text()
    (written,) = re.findall(r"^create or replace function .*?^\$\$;", page, re.M | re.DOTALL)
    knowledge.execute(
        written.replace("tenant_a_internal.", "knowledge_internal.")
        .replace("tenant_a.", "public.")
        .encode()
    )
    with pytest.raises(psycopg.errors.UndefinedTable, match="pg_dist_shard"):
        knowledge.execute("select public.hybrid_search_knowledge_chunks(query_text => 'word')")

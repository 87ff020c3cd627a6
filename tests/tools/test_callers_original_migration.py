"""The fifteen tests of the replaced RPC's migration: what they look for, in any case of letters.

The code is a caller's: it imports nothing of this test suite.
"""

import re
from pathlib import Path

import psycopg
import pytest

MIGRATION = Path(__file__).parents[2] / "migrations" / "009_hybrid_search.sql"
RPC = "hybrid_search_knowledge_chunks"


def sql() -> str:
    return " ".join(MIGRATION.read_text("utf-8").lower().split())


def test_the_migration_creates_the_rpc() -> None:
    assert f"create function public.{RPC}(" in sql()


def test_the_constant_of_rrf_is_60() -> None:
    # Differs: "60.0 +" is the default of an argument.
    assert "rrf_k double precision default 60," in sql()
    for leg in ("vector", "text"):
        # Differs: "60.0 +" and the power, which is 1 for rrf.
        assert f"settings.{leg}_weight / (rule.rank_constant + combined.{leg}_rank) ^" in sql()


def test_the_vector_leg_is_a_cte() -> None:
    assert re.search(r"\bvector_results as (materialized )?\(", sql())


def test_the_text_leg_is_a_cte() -> None:
    assert re.search(r"\btext_results as (materialized )?\(", sql())


def test_the_legs_are_combined_by_a_full_outer_join() -> None:
    assert "from vector_results full outer join text_results" in sql()


def test_the_rpc_returns_rrf_score() -> None:
    assert "rrf_score double precision" in sql()


def test_the_rpc_returns_both_ranks() -> None:
    assert "vector_rank bigint, text_rank bigint" in sql()


def test_only_active_rows_are_read() -> None:
    # Differs: it is in the file of the filters.
    assert "status = 'active'" in (MIGRATION.parent / "004_filters.sql").read_text("utf-8")


def test_the_rpc_is_a_security_definer() -> None:
    # Differs: in lower case.
    assert "security definer" in sql()


def test_nobody_keeps_the_default_right_to_execute() -> None:
    assert f"revoke all on function public.{RPC} from public, anon, authenticated;" in sql()


def test_the_service_role_may_execute(shared_dsn: str) -> None:
    # Differs: in lower case. A grant on the nine argument types of the replaced RPC fails.
    assert f"grant execute on function public.{RPC} to service_role;" in sql()
    nine = "extensions.vector, text, int, float8, float8, float8, text, text, int"
    with psycopg.connect(shared_dsn) as connection, pytest.raises(psycopg.errors.UndefinedFunction):
        connection.execute(f"grant execute on function public.{RPC}({nine}) to service_role")


def test_the_weights_are_arguments() -> None:
    for weight in ("vector_weight", "text_weight"):
        assert f"{weight} double precision default 1.0," in sql()


def test_the_pool_is_an_argument() -> None:
    assert "pool_size integer default 50," in sql()


def test_the_threshold_is_an_argument() -> None:
    assert "match_threshold double precision default 0.0," in sql()


def test_the_three_search_modes_are_known() -> None:
    # Differs: the questions are parsed by functions of this project, not by websearch_to_tsquery,
    # plainto_tsquery and phraseto_tsquery.
    assert "search_mode text default 'websearch'," in sql()
    for mode in ("websearch", "simple", "phrase"):
        assert f"'{mode}'" in sql()

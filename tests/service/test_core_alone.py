"""On core alone a service answers, and what is of a module raises an error that names it."""

import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from retrieving import BY_HAND, LEAK, Make, contents, fill, make

from conftest import Server, copy_of
from second_brain.adoption import carrying
from second_brain.database import migrations, schedule
from second_brain.embedding_queue import reembedding
from second_brain.errors import ModuleMissingError
from second_brain.services.install import Database, Install
from second_brain.services.postgres import PostgresProvider

__all__ = ["make"]  # fixture


@pytest.fixture(scope="module")
def core_dsn(server: Server) -> Iterator[str]:
    """A database with core alone and five chunks."""
    for dsn in copy_of(server, server.template(None)):
        migrations.apply(dsn, dimensions=3)
        fill(dsn)
        yield dsn


def test_the_service_answers_without_a_module_and_warns_of_nothing(
    make: Make, core_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    response = make(core_dsn)("leaked key")
    assert contents(response)[0] == LEAK
    assert response.degraded is None
    assert response.pending_embeddings is None
    nothing = make(core_dsn)("zebra", mode="text")
    assert (contents(nothing), nothing.empty) == ([], None)
    assert [one.message for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_methods_of_an_absent_module_name_it(core_dsn: str) -> None:
    provider = PostgresProvider(core_dsn)
    with psycopg.connect(core_dsn, autocommit=True) as connection:
        calls: dict[str, Callable[[], object]] = {
            "facets": lambda: provider.count_facets(None, None, ["collection"]),
            "insight": lambda: provider.explain_hybrid_search([1, 2, 3], "key"),
            "embedding_queue": provider.count_pending_embeddings,
            "own_documents": provider.list_documents,
            "adoption": lambda: carrying.listed(Database(connection)),
        }
        for module, call in calls.items():
            with pytest.raises(ModuleMissingError) as missing:
                call()
            assert missing.value.module == module
            assert f"second-brain migrate --with {module}" in missing.value.remedy


@pytest.mark.parametrize(
    ("module", "argument", "value"),
    [
        ("words", "prefix_last", True),
        ("like", "like_ids", [UUID(int=1)]),
        ("arrange", "boosts", [{"filters": {}, "factor": 2}]),
        ("arrange", "order_by", "document_date"),
        ("arrange", "diversity", 0.5),
        ("arrange", "merge_duplicates", True),
    ],
)
def test_an_argument_of_an_absent_module_is_refused_by_name(
    core_dsn: str, module: str, argument: str, value: object
) -> None:
    given: dict[str, Any] = {argument: value}
    with pytest.raises(ModuleMissingError, match=argument) as missing:
        PostgresProvider(core_dsn).find([1, 0, 0], "leaked key", **given)
    assert missing.value.module == module
    assert f"second-brain migrate --with {module}" in missing.value.remedy


def test_a_model_change_is_refused_before_it_begins(core_dsn: str) -> None:
    with pytest.raises(ModuleMissingError, match="module embedding_queue"):
        reembedding.start(core_dsn, BY_HAND)
    with psycopg.connect(core_dsn) as connection:
        assert reembedding.state(Database(connection)).stage == "none"


def test_the_job_of_the_query_log_is_scheduled_with_its_module() -> None:
    assert [job.name for job in schedule.jobs(Install(), modules=())] == [
        "second-brain-statistics",
        "second-brain-purge",
    ]
    assert len(schedule.jobs(Install(), modules=["insight"])) == 3

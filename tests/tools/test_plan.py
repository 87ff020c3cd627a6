"""The command plan: its arithmetic against figures that were measured."""

import json

import pytest

from command_line import Run
from second_brain.database.sizing import chunk_bytes, plan, search_ms
from second_brain.errors import InvalidInputError


@pytest.mark.parametrize(
    ("dimensions", "gigabytes"), [(384, 1.2), (768, 2.1), (1024, 2.7), (1536, 4.1), (3072, 8.2)]
)
def test_the_vector_index_of_a_million_is_as_measured(dimensions: int, gigabytes: float) -> None:
    """The table of docs/operate.md, Memory and disk."""
    each = chunk_bytes(dimensions, words=100)
    assert each.vector_index * 1e6 / 1e9 == pytest.approx(gigabytes, abs=0.06)


def test_a_database_of_a_million_has_the_measured_size_within_a_tenth() -> None:
    """The load of 2026-11-21 with 384 dimensions: table and indexes, in bytes."""
    assert chunk_bytes(384, words=100).stored * 1e6 == pytest.approx(
        4_364_263_424 + 1_637_400_576, rel=0.1
    )


def test_the_time_of_a_search_is_the_measured_one_and_grows_above() -> None:
    assert [search_ms(rows) for rows in (100, 20_000, 200_000, 1_000_000)] == [
        8.5,
        8.5,
        pytest.approx(11.3),
        pytest.approx(16.1),
    ]
    assert search_ms(5_000_000) - 16.1 == pytest.approx(16.1 - 11.3)


def test_each_machine_has_the_memory_and_the_processors() -> None:
    for chunks in (10_000, 1_000_000, 50_000_000):
        for qps in (1, 200, 5_000):
            planned = plan(chunks, 768, qps, largest_gb=64)
            each = chunk_bytes(768, words=100).cached * chunks / planned.workers
            assert each < 0.5 * planned.instance.memory_gb * 1e9
            work = search_ms(chunks / planned.workers) / 1000 * qps
            assert work < 0.6 * planned.instance.cores * planned.nodes
            machines = {line.what: line.value for line in planned.lines}["machines in all"]
            assert machines == planned.workers * planned.nodes
    assert plan(50_000_000, 768, 1, largest_gb=256).workers < planned.workers


def test_the_command_prints_each_line_with_its_assumption_and_json_its_figures(run: Run) -> None:
    table = run("server", "plan", "--chunks", "1M", "--dimensions", "384", "--qps", "20")
    assert table.code == 0
    assert "Large" in table.out
    done = run("server", "plan", "--chunks", "50M", "--dimensions", "768", "--qps", "200", "--json")
    planned = json.loads(done.out)
    assert planned["chunks"] == 50_000_000
    assert all(line["assumption"] for line in planned["lines"])
    assert all(figure["source"] for figure in planned["figures"].values())


def test_a_wrong_number_is_refused_by_name(run: Run) -> None:
    assert "--chunks" in run("server", "plan", "--chunks", "many").err
    with pytest.raises(InvalidInputError, match=r"dimensions must be 1 to 16,000, not 0"):
        plan(1, 0, 1)


def test_a_corpus_that_needs_several_machines_needs_a_coordinator_too() -> None:
    one, several = (
        {line.what: line for line in plan(chunks, 768, 100).lines}
        for chunks in (1_000_000, 100_000_000)
    )
    assert "coordinator" not in one["processors for searches"].assumption
    # 100 searches of 14 ms each second, at most 60 % busy.
    assert "2.3 of them in the coordinator" in several["processors for searches"].assumption
    assert several["databases (workers of Citus, if several)"].value > 1

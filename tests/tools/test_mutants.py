"""The mutants of `make test-mutants`: what is drawn, and the tests that a name finds."""

from pathlib import Path

import pytest

from tools.mutants import PACKAGE, SCHEMAS, drawn

SQL = sorted(SCHEMAS.rglob("*.sql"))


@pytest.mark.slow
@pytest.mark.parametrize("files", [SQL, sorted(PACKAGE.rglob("*.py"))], ids=["sql", "python"])
def test_a_seed_draws_changed_lines_of_each_kind(files: list[Path]) -> None:
    mutants = drawn(1, 60, files)
    assert mutants == drawn(1, 60, files) != drawn(2, 60, files)
    assert all(one.new != one.old for one in mutants)
    kinds = {one.kind for one in mutants}
    assert kinds >= {"boundary", "condition", "constant", "operator", "order"}
    assert (kinds >= {"grant", "lock"}) is (files is SQL)

"""The mutants of `make test-mutants`."""

import pytest

from tools.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_mutant_has_its_text_once_and_a_suite(mutant: Mutant) -> None:
    assert mutant.files(ROOT)[0].read_text("utf-8").count(mutant.old) == 1
    assert all((ROOT / file).is_file() for file in mutant.suite.split() if file.endswith(".py"))

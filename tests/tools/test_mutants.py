"""The mutants of `make test-mutants`: what is drawn, and the tests that a name finds."""

from pathlib import Path

import pytest

from tools.mutants import PACKAGE, SCHEMAS, Mutant, changes, drawn, suite

SQL = sorted(SCHEMAS.rglob("*.sql"))


@pytest.mark.parametrize("files", [SQL, sorted(PACKAGE.rglob("*.py"))], ids=["sql", "python"])
def test_a_seed_draws_changed_lines_of_each_kind(files: list[Path]) -> None:
    mutants = drawn(1, 60, files)
    assert mutants == drawn(1, 60, files) != drawn(2, 60, files)
    assert all(one.new != one.old for one in mutants)
    kinds = {one.kind for one in mutants}
    assert kinds >= {"boundary", "condition", "constant", "operator", "order"}
    assert (kinds >= {"grant", "lock"}) is (files is SQL)


@pytest.mark.parametrize(
    ("line", "suffix", "kind", "changed"),
    [
        ("  where a <= b", ".sql", "boundary", "  where a < b"),
        ("  where a = any (b)", ".sql", "condition", "  where a = all (b)"),
        ("    and a.id = b.id", ".sql", "condition", ""),
        ("  order by a desc, b", ".sql", "order", "  order by a asc, b"),
        ("  limit 10", ".sql", "constant", "  limit 11"),
        ("revoke all on table x from public;", ".sql", "grant", ""),
        ("  for update skip locked", ".sql", "lock", "  for update"),
        ("    if a is None:", ".py", "condition", "    if a is not None:"),
    ],
)
def test_a_line_is_changed_at_each_place(line: str, suffix: str, kind: str, changed: str) -> None:
    assert (kind, changed) in [(one, new.rstrip()) for one, new in changes(line, suffix)]


@pytest.mark.parametrize(
    ("file", "text", "test"),
    [
        ("core/04_filters.sql", "'(%s <> all (%s)) is not false'", "search/test_filters"),
        ("modules/facets/21_facets.sql", "place_in_facet <= facet_limit", "search/test_facets"),
        ("modules/embedding_queue/23_embedding_queue.sql", "for update skip", "embedding_queue"),
    ],
)
def test_the_first_tests_are_about_what_is_changed(
    file: str, text: str, test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.mutants.reaching", lambda _: set())
    lines = (SCHEMAS / file).read_text("utf-8").splitlines()
    place = next(number for number, line in enumerate(lines) if text in line)
    first = suite(Mutant("condition", SCHEMAS / file, place, ""), 12)
    assert any(test in one for one in first)

"""docs/compatibility.md: each line names the test that shows it, and each such test has a line."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
SECTIONS = [one for one in re.split(r"^##+ ", PAGE, flags=re.MULTILINE) if "\nTests: " in one]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda one: one.partition("\n")[0])
def test_a_system_has_all_the_tests_of_its_callers(section: str) -> None:
    (file,) = re.findall(r"^Tests: `(tests/\w+/test_callers_\w+\.py)`\.$", section, re.MULTILINE)
    code = (ROOT / file).read_text("utf-8")
    tests = re.findall(r"^def (test_\w+)", code, re.MULTILINE)
    assert sorted(re.findall(r"`(test_\w+)`", section)) == sorted(tests)
    needing = re.findall(r'^@pytest.mark.module\("(\w+)"\)\ndef (test_\w+)', code, re.MULTILINE)
    for line in section.splitlines():
        modules = [module for module, name in needing if f"`{name}`" in line]
        assert re.findall(r"Module `(\w+)`", line) == modules, line


def test_a_callers_test_imports_nothing_of_the_suite() -> None:
    files = sorted((ROOT / "tests").glob("*/test_callers_*.py"))
    assert len(files) == len(SECTIONS)
    own = {file.stem for file in (ROOT / "tests").rglob("*.py")}
    for file in files:
        imported = re.findall(r"^\s*(?:from|import) (\w+)", file.read_text(), re.MULTILINE)
        assert not own & {*imported}

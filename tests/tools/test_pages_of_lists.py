"""What pages list is there: commands, callers, the names in the skill, the sizes of the SQL."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from command_line import Run
from second_brain.cli.configuration import KEYS
from second_brain.mcp_server.documents import Document, Fetch
from second_brain.mcp_server.searching import HybridSearch, SearchKnowledgeBase
from second_brain.retrieval.answer import SearchResponse, SearchResult
from second_brain.services.results import OFF_SUBJECT
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn
from tools import commands, size

ROOT = Path(__file__).parents[2]
COMMANDS = commands.PAGE.read_text("utf-8")
SKILL = (ROOT / "skills" / "second-brain" / "SKILL.md").read_text("utf-8")
COMPATIBILITY = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
SYSTEMS = [one for one in re.split(r"(?m)^##+ ", COMPATIBILITY) if "\nTests: " in one]


def rows(first_header: str) -> list[list[str]]:
    """Return the cells of the table of commands whose first column is headed so."""
    found = re.search(rf"(?m)^\| {first_header} \|.*\n\|[-|]+\|\n((?:\|.*\n)*)", COMMANDS)
    assert found is not None
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].splitlines()]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_has_the_options_of_each_command() -> None:
    if os.environ.get("UPDATE_DOCS"):
        commands.PAGE.write_text(commands.page(), "utf-8")
    else:
        assert commands.page().splitlines() == COMMANDS.splitlines(), "run `make commands`"


def test_each_command_that_another_page_describes_exists() -> None:
    assert commands._TOLD.keys() <= {path for path, _ in commands._commands()}


def test_the_page_has_each_key_with_its_first_variable() -> None:
    documented: dict[str, list[str]] = {}
    secret = []
    for key, variables, _ in rows("key"):
        if names(key):
            documented |= dict.fromkeys(names(key), names(variables))
        else:
            secret += names(variables)
    assert documented.keys() == {key.name for key in KEYS if not key.is_secret}
    for one in KEYS:
        told = secret if one.is_secret else documented[one.name]
        assert one.variables[0] in told, one.name
    assert {*secret} == {variable for key in KEYS if key.is_secret for variable in key.variables}


def test_the_file_of_the_page_is_valid(run: Run, tmp_path: Path) -> None:
    (block,) = re.findall(r"(?ms)^```toml\n(.*?)^```$", COMMANDS)
    (tmp_path / "second-brain.toml").write_text(block)
    values = json.loads(run("server", "config", "--json").out)["values"]
    assert len([one for one in values if str(one["source"]).endswith(".toml")]) == 6


def test_json_has_the_shape_that_the_page_says(brain: Run, tmp_path: Path) -> None:
    (tmp_path / "questions.tsv").write_text("fruit\tdocs:fruit.md\nengine\tdocs:cars.txt\n")
    arguments = {
        "ingest": ["docs"],
        "search": ["key"],
        "corpus show": ["docs:keys.md"],
        "corpus delete": ["docs:keys.md", "nothing"],
        "corpus judgments import": ["questions.tsv"],
        "corpus judgments export": ["judged.csv"],
        "corpus judgments delete": ["--asked"],
    }
    shapes = {names(command)[0]: cell for command, cell in rows("command")}
    brain("ingest", "docs")
    brain("corpus", "settings", "set", "--fusion", "rrf")
    for command, cell in shapes.items():
        done = brain(*command.split(), *arguments.get(command, []), "--json")
        answer: Any = json.loads(done.out)
        assert isinstance(answer, list) == cell.startswith("a list"), command
        first = answer[0] if isinstance(answer, list) else answer
        told = [name for name in names(cell.partition("; with")[0]) if not name.startswith("--")]
        assert sorted(first) == sorted(told), command


@pytest.mark.parametrize("section", SYSTEMS, ids=lambda one: one.partition("\n")[0])
def test_a_system_has_all_the_tests_of_its_callers(section: str) -> None:
    (file,) = re.findall(r"(?m)^Tests: `(tests/\w+/test_callers_\w+\.py)`\.$", section)
    code = (ROOT / file).read_text("utf-8")
    tests = re.findall(r"(?m)^def (test_\w+)", code)
    assert sorted(re.findall(r"`(test_\w+)`", section)) == sorted(tests)
    needing = re.findall(r'(?m)^@pytest.mark.module\("(\w+)"\)\ndef (test_\w+)', code)
    for line in section.splitlines():
        modules = [module for module, name in needing if f"`{name}`" in line]
        assert re.findall(r"Module `(\w+)`", line) == modules, line


def test_a_callers_test_imports_nothing_of_the_suite() -> None:
    files = sorted((ROOT / "tests").glob("*/test_callers_*.py"))
    assert len(files) == len(SYSTEMS)
    own = {file.stem for file in (ROOT / "tests").rglob("*.py")}
    for file in files:
        assert not own & {*re.findall(r"(?m)^\s*(?:from|import) (\w+)", file.read_text())}


def test_the_skill_has_the_form_of_a_skill() -> None:
    # The name is that of the folder; the lengths are those of the format.
    found = re.match(r"---\nname: second-brain\ndescription: .{1,1024}\n---\n", SKILL)
    assert found is not None
    assert len(SKILL.splitlines()) <= 60


def test_what_the_skill_names_is_there() -> None:
    tools = {"hybrid_search", "search_knowledge_base", "fetch"}
    named = set(re.findall(r"`([a-z][a-z_.]*)`", SKILL.partition("\n# ")[2]))
    fields: set[str] = set()
    models = (HybridSearch, SearchKnowledgeBase, Fetch, SearchResponse, SearchResult, Document)
    for model in models:
        fields |= model.model_fields.keys() | model.model_computed_fields.keys()
    values = {"both", "text", "vector", "metadata.next_offset", "replaced"}
    assert named - tools - fields - values == set()
    assert re.findall(r"(?:Below|From|below) (0\.\d+)", SKILL).count(str(OFF_SUBJECT)) >= 3
    assert "up to 50" in SKILL


def test_the_readme_of_the_sql_has_todays_figures() -> None:
    assert size.page() == size.README.read_text("utf-8"), "run `make size`"

"""docs/commands.md is correct: options, keys of the file, and the JSON of each command."""

import json
import os
import re
from pathlib import Path
from typing import Any

from command_line import Run
from second_brain.cli.configuration import KEYS
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn
from tools import commands

PAGE = commands.PAGE.read_text("utf-8")


def rows(first_header: str) -> list[list[str]]:
    """Return the cells of the table whose first column is headed so."""
    found = re.search(rf"^\| {first_header} \|.*\n\|[-|]+\|\n((?:\|.*\n)*)", PAGE, re.MULTILINE)
    assert found is not None
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].splitlines()]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_has_the_options_of_each_command() -> None:
    if os.environ.get("UPDATE_DOCS"):
        commands.PAGE.write_text(commands.page(), "utf-8")
    else:
        assert commands.page().splitlines() == PAGE.splitlines(), "run `make commands`"


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


def test_the_file_of_the_page_is_valid(brain: Run, tmp_path: Path) -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "second-brain.toml").write_text(block)
    values = json.loads(brain("server", "config", "--json").out)["values"]
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

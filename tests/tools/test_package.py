"""What the package imports, and what it says when an extra is missing."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

import second_brain
from second_brain.cli.commands import COMMANDS, app
from second_brain.services.memory import MemorySearchResult

# Makes packages look as if they were not installed.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {missing!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in {missing!r} else found(name)
"""


def python(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_every_exported_name_is_there() -> None:
    for name in second_brain.__all__:
        assert getattr(second_brain, name).__name__ == name
    assert second_brain.MemorySearchResult is MemorySearchResult
    with pytest.raises(AttributeError, match="nosuch"):
        _ = second_brain.nosuch


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import second_brain", ("psycopg", "supabase", "pydantic", "numpy")),
        ("from second_brain import SupabaseProvider", ("psycopg", "supabase", "numpy")),
        ("from second_brain import RetrievalService", ("psycopg", "supabase")),
        ("from second_brain import PostgresProvider, KnowledgeWriter", ("supabase", "numpy")),
        (
            "from second_brain.cli.commands import app; app(['--help'], standalone_mode=False)",
            ("psycopg", "supabase", "pydantic", "numpy", "rich"),
        ),
    ],
)
def test_what_is_not_needed_is_not_imported(program: str, absent: tuple[str, ...]) -> None:
    done = python(f"{program}\nimport sys\nassert not {set(absent)} & set(sys.modules)")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["typer", "rich", "numpy"])
def test_the_command_names_its_missing_extra(package: str) -> None:
    program = WITHOUT.format(missing={package})
    done = python(f"{program}\nfrom second_brain.cli import main; main()")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: {package} is not installed. Install it with: pip install 'second-brain[cli]'\n"
    )


@pytest.mark.parametrize("name", ["RetrievalService", "SearchSettings"])
def test_the_service_names_its_missing_extra(name: str) -> None:
    done = python(
        f"{WITHOUT.format(missing={'numpy'})}\nfrom second_brain.errors import MissingExtraError\n"
        f"try:\n  from second_brain import {name}\n"
        "except MissingExtraError as error: print(error, error.remedy)"
    )
    remedy = "Install it with: pip install 'second-brain[retrieval]'"
    assert done.stdout == f"numpy is not installed {remedy}\n"


def test_the_help_lists_the_commands_of_every_module() -> None:
    package = Path(second_brain.__path__[0])
    files = [f"cli.{file.stem}" for file in package.glob("cli/[!_]*.py")]
    folders = [
        place.parent.name for place in package.glob("*/commands*") if "cli" not in place.parts
    ]
    homes = {one: one for one in files} | {f"{one}.commands": one for one in folders}
    registered: dict[str, str] = {}
    for name, home in homes.items():
        module = import_module(f"second_brain.{name}")
        if hasattr(module, "app") and name != "cli.commands":
            registered |= dict.fromkeys(get_group(module.app).commands, home)
    assert registered == {path.split()[-1]: module for path, (module, _) in COMMANDS.items()}


def test_the_help_has_what_a_first_user_needs_in_at_most_ten_entries() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output.partition("Commands:")[2]
    listed = re.findall(r"^  (\w+)  ", shown, re.MULTILINE)
    first = {"init", "migrate", "ingest", "search", "adopt", "doctor", "workbench", "demo"}
    assert first <= {*listed}
    assert len(listed) <= 10


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("tune", "corpus tune"),
        ("documents", "corpus list"),
        ("embed-worker", "corpus embed"),
        ("dev", "server dev"),
        ("mcp-token", "server token"),
    ],
)
def test_a_former_name_is_an_error_that_names_the_new_one(former: str, now: str) -> None:
    done = CliRunner().invoke(app, [former])
    assert done.exit_code == 2
    assert f"The command {former} is now: second-brain {now}\n" in done.output

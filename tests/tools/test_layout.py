"""Who may import whom, by the tables in CONTRIBUTING.md; what is said when an extra is missing."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_group
from typer.testing import CliRunner

import second_brain
from second_brain.cli.commands import COMMANDS, app
from second_brain.services.memory import MemorySearchResult

PACKAGE = Path(second_brain.__file__).parent
PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
ROW = re.compile(r"^\| `(\w+)/` \| [^|]* \| ([^|]*)\|$", re.MULTILINE)
ROOT = "(root)"

MAY_IMPORT = {ROOT: frozenset[str]()} | {
    folder: frozenset(re.findall(r"\w+", others))
    for folder, others in ROW.findall(PAGE.read_text())
}
ALWAYS = ("init", "migrate", "search", "doctor", "corpus", "server")
MODULES = list(MAY_IMPORT)[list(MAY_IMPORT).index("cli") + 1 :]

# In a process of its own for each folder that is left out: import what a search imports, load each
# command that the help still has, and print the help. What is not ours is imported once, before.
PROGRAM = """
import os, sys
import httpx, numpy, psycopg_pool, pydantic, supabase, typer.main
for left_out in sys.argv[1:]:
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0, left_out
        continue
    sys.path.insert(0, left_out)
    import second_brain.cli.search
    from second_brain.cli import commands
    for home, _ in commands.COMMANDS.values():
        commands._loaded(home)
    assert not {"mcp", "starlette", "ir_measures", "docutils"} & {*sys.modules}, "an extra"
    print("-- without", os.path.basename(left_out), flush=True)
    sys.argv[1:] = ["--help"]
    try:
        second_brain.cli.main()
    except SystemExit:
        pass
    sys.exit()
"""

CLIENT = """
import sys
sys.path.insert(0, sys.argv[1])
from second_brain.errors import translate
from second_brain.services.postgres import PostgresProvider
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import KnowledgeWriter
hits, details = PostgresProvider(sys.argv[2]).hybrid_search(None, "cameras")
assert hits == []
from postgrest.exceptions import APIError
missing = "function public.facet_knowledge_chunks(jsonb) does not exist"
print(details["mode"], translate(APIError({"code": "42883", "message": missing})).module)
"""


def imports(file: Path) -> Iterator[tuple[str, bool]]:
    """Yield the folder of each import of a file, and whether it stands in a function."""
    tree = ast.parse(file.read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    lazy = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, functions)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file} has a relative import"
            names = [f"{node.module}.{one.name}" for one in node.names]
        elif isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A folder whose files are read, or a module that is imported by its name.
            names = re.findall(r"^second_brain\.\w+", node.value)
        else:
            continue
        for parts in (name.split(".") for name in names):
            if parts[0] == "second_brain":
                yield parts[1] if parts[1] in MAY_IMPORT else ROOT, id(node) in lazy


def test_the_table_has_each_folder_once_and_no_circles() -> None:
    folders = sorted(file.parent.name for file in PACKAGE.glob("*/__init__.py"))
    assert folders == sorted(MAY_IMPORT.keys() - {ROOT})
    above: set[str] = set()
    for folder, others in MAY_IMPORT.items():
        assert others <= above, f"{folder} imports a folder that stands below it"
        above.add(folder)


def test_no_file_imports_what_the_table_does_not_name() -> None:
    wrong = []
    # The package's own __init__ has the public names, each imported when it is used.
    for file in sorted({*PACKAGE.rglob("*.py")} - {PACKAGE / "__init__.py"}):
        path = file.relative_to(PACKAGE)
        folder = path.parts[0] if len(path.parts) > 1 else ROOT
        allowed = {ROOT, folder, *MAY_IMPORT[folder]}
        if folder in MODULES and path.parts[1].startswith("commands"):
            allowed |= {"cli", *MAY_IMPORT["cli"]}
        for target, is_in_function in imports(file):
            is_by_command = folder == "cli" and is_in_function
            if target not in allowed and not is_by_command:
                wrong.append(f"{path} imports {target}")
    assert wrong == []


def test_the_client_works_without_the_other_folders(tmp_path: Path, emptied_dsn: str) -> None:
    package = tmp_path / "second_brain"
    package.mkdir()
    for entry in PACKAGE.iterdir():
        if entry.is_file() or entry.name == "services":
            (package / entry.name).symlink_to(entry)
    done = python(CLIENT, str(tmp_path), emptied_dsn, env={}, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hybrid facets\n"), done.stderr


def test_the_package_works_without_each_module_and_without_all(tmp_path: Path) -> None:
    copies = {one: [one] for one in MODULES} | {"all": MODULES}
    for name, left_out in copies.items():
        package = tmp_path / name / "second_brain"
        package.mkdir(parents=True)
        for entry in {*PACKAGE.iterdir()} - {PACKAGE / one for one in left_out}:
            (package / entry.name).symlink_to(entry)
    done = python(PROGRAM, *(str(tmp_path / name) for name in copies), env={}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    _, *helps = done.stdout.split("-- without ")
    assert [one.partition("\n")[0] for one in helps] == [*copies]
    commands = {"ingest": "ingest demo", "adoption": "adopt", "evaluation": "workbench"}
    commands["demo"] = "demo"
    commands["workbench"] = "workbench"
    for left_out, text in zip(copies.values(), helps, strict=True):
        listed = set(re.findall(r"^  ([a-z]+)  ", text, re.MULTILINE))
        gone = {one for module in left_out for one in commands.get(module, "").split()}
        assert listed == {*ALWAYS, *" ".join(commands.values()).split()} - gone, left_out


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


def python(program: str, *arguments: str, **where: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **where)


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
    files = [f"cli.{file.stem}" for file in PACKAGE.glob("cli/[!_]*.py")]
    folders = [one.parent.name for one in PACKAGE.glob("*/commands*") if "cli" not in one.parts]
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

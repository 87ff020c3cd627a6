"""Who may import whom: the imports of the package against the tables in CONTRIBUTING.md."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import second_brain

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
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(tmp_path), emptied_dsn],
        env={},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "hybrid facets\n"), done.stderr


def test_the_package_works_without_each_module_and_without_all(tmp_path: Path) -> None:
    copies = {one: [one] for one in MODULES} | {"all": MODULES}
    for name, left_out in copies.items():
        package = tmp_path / name / "second_brain"
        package.mkdir(parents=True)
        for entry in {*PACKAGE.iterdir()} - {PACKAGE / one for one in left_out}:
            (package / entry.name).symlink_to(entry)
    command = [sys.executable, "-c", PROGRAM, *(str(tmp_path / name) for name in copies)]
    done = subprocess.run(
        command, env={}, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    _, *helps = done.stdout.split("-- without ")
    assert [one.partition("\n")[0] for one in helps] == [*copies]
    commands = {"ingest": "ingest demo", "adoption": "adopt", "evaluation": "workbench"}
    commands["workbench"] = "workbench"
    for left_out, text in zip(copies.values(), helps, strict=True):
        listed = set(re.findall(r"^  ([a-z]+)  ", text, re.MULTILINE))
        gone = {one for module in left_out for one in commands.get(module, "").split()}
        assert listed == {*ALWAYS, *" ".join(commands.values()).split()} - gone, left_out

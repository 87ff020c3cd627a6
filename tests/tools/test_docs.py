"""README.md and docs/ tell the truth: their code runs, and prints what stands below it.

A page's sql and python blocks, and the commands of its `sh run` blocks, run in order on a database
of the page's own, with docs/examples.sql in it; a text block right after one is its output, as psql
or `print` would show it. After a change UPDATE_DOCS=1 in the environment writes the new output into
the pages, to be read as a diff.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pglast
import psycopg
import pytest
import typer
import typer.main
from postgrest.exceptions import APIError

import second_brain
from conftest import Connection
from pages import FENCE, blocks, section
from second_brain import errors
from second_brain.cli.commands import app
from second_brain.database.migrations import statements
from second_brain.services.arguments import DEFAULTS, SQL_NAMES
from tools import picture

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
NAMED_PAGES = [pytest.param(page, id=page.stem) for page in PAGES]

# What is in ts is type-checked by test_frontend.py; what is in js runs in clients/js/test.
LANGUAGES = {"sql", "python", "sh", "text", "ts", "js", "toml", "mermaid", "yaml"}
# Each needs a Supabase project, or a package of over 1 GB.
MOST_NOT_RUN = 5
NUMBERS = {20, 21, 23, 26, 700, 701, 1700}

LINK = re.compile(r"\]\((?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")


def table(cursor: psycopg.Cursor[Any]) -> str:
    """Show a result as psql does, without spaces at the ends of lines."""
    result = cursor.pgresult
    assert result is not None
    columns = range(result.nfields)
    header = [(result.fname(column) or b"").decode() for column in columns]
    rows = [
        [(result.get_value(row, column) or b"").decode() for column in columns]
        for row in range(result.ntuples)
    ]
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    lines = [
        " | ".join(name.center(width) for name, width in zip(header, widths, strict=True)),
        "-+-".join("-" * width for width in widths),
    ]
    for row in rows:
        cells = [
            cell.rjust(width) if result.ftype(column) in NUMBERS else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        lines.append(" | ".join(cells))
    lines[1] = f"-{lines[1]}-"
    lines = [lines[1] if number == 1 else f" {line}" for number, line in enumerate(lines)]
    count = f"({len(rows)} row{'' if len(rows) == 1 else 's'})"
    return "".join(f"{line.rstrip()}\n" for line in [*lines, count])


def run_sql(code: str, connection: Connection, is_refused: bool) -> str:
    shown = ""
    for _, statement in statements(code):
        try:
            cursor = connection.execute(statement.encode())
        except psycopg.Error as error:
            if not is_refused:
                raise
            hint = error.diag.message_hint
            shown = f"ERROR:  {error.sqlstate}: {error.diag.message_primary}\n"
            shown += f"HINT:  {hint}\n" if hint else ""
        else:
            shown = table(cursor) if cursor.description else f"{cursor.statusmessage}\n"
    return shown


def run_python(code: str, page: Path, namespace: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, page.name, "exec"), namespace)
    return printed.getvalue()


def run_commands(code: str) -> str:
    """Run the commands of an sh block; return what they print, without notes to the terminal."""
    printed = []
    for words in shell_commands(f"```sh\n{code}```\n"):
        command = [sys.executable, "-c", "from second_brain.cli import main; main()", *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    return "".join(printed)


# These pages show an install that stores `auto`, as `init` writes it.
SHOW_AUTO = ("README", "frameworks", "mcp", "service")


@pytest.mark.parametrize(
    ("page", "dimensions"),
    # The README embeds with the model of the package, the pages by hand.
    [pytest.param(page, 256 if page == README else 3, id=page.stem) for page in PAGES],
)
def test_code_prints_what_the_page_says(
    page: Path, dimensions: int, dsn: str, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECOND_BRAIN_DSN", dsn)
    monkeypatch.delenv("SUPABASE_URL", raising=False)
    monkeypatch.delenv("SUPABASE_KEY", raising=False)
    if dimensions == 3:
        database.execute((DOCS / "examples.sql").read_bytes())
    if page.stem in SHOW_AUTO:
        database.execute("select public.set_knowledge_settings(fusion => 'auto')")
    text = page.read_text("utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    truth, told = "", 0
    for block, after in pairwise([*blocks(text), None]):
        assert block is not None
        assert block.language in LANGUAGES, f"what is a block of {block.language!r}?"
        output = None
        if after and after.language == "text" and not text[block.end : after.start].strip():
            output = after
        if block.remark.startswith("no-run"):
            if block.language == "sql":
                pglast.parse_sql(block.code)
            else:
                compile(block.code, page.name, "exec")
            continue
        if block.remark == "run":
            printed = run_commands(block.code)
        elif block.language == "sql":
            is_refused = output is not None and output.code.startswith("ERROR:")
            printed = run_sql(block.code, database, is_refused)
        elif block.language == "python":
            printed = run_python(block.code, page, namespace)
            assert output or not printed, "the page does not show what this prints"
        else:
            continue
        if output:
            truth += text[told : output.code_start] + printed
            told = output.end - len("```")
    truth += text[told:]
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(truth, "utf-8")
    else:
        assert text.splitlines() == truth.splitlines()


def test_few_blocks_are_not_run_and_say_why() -> None:
    remarks = [block.remark for page in PAGES for block in blocks(page.read_text("utf-8"))]
    not_run = [remark for remark in remarks if remark and remark != "run"]
    assert len(not_run) <= MOST_NOT_RUN
    for remark in not_run:
        assert re.fullmatch(r"no-run: needs .+", remark)


def shell_commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of the page's sh blocks, those in $(...) too, as lists of words."""
    for block in blocks(text):
        if block.language == "sh":
            code = re.sub(r'"?\$\((.*?)\)"?', r"VALUE; \1;", block.code.replace("\\\n", " "))
            for line in re.sub(r" >>? ?\S+", "", code).splitlines():
                lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                words: list[str] = []
                for word in lexer:
                    if set(word) <= set("<>"):
                        # The file of a redirection is no argument.
                        next(lexer)
                    elif set(word) <= set(";|&()"):
                        yield words
                        words = []
                    else:
                        words.append(word)
                yield words


@pytest.mark.parametrize("page", NAMED_PAGES)
def test_commands_exist_with_their_options(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for words in shell_commands(page.read_text("utf-8")):
        while words and re.fullmatch(r"\w+=.*", words[0]):
            words = words[1:]
        if words[:1] == ["npx"]:
            # The JavaScript package has `init` with some of the options.
            words = words[1:]
        if words[:1] == ["make"]:
            assert {word for word in words[1:] if "=" not in word} <= set(targets)
        if words[:1] == ["second-brain"]:
            command: Any = typer.main.get_command(app)
            arguments = words[1:]
            while hasattr(command, "get_command"):
                assert arguments, f"{shlex.join(words)} lacks a command"
                command = command.get_command(None, arguments[0])
                assert command is not None, shlex.join(words)
                arguments = arguments[1:]
            # Parses and checks the options, and runs nothing.
            try:
                command.make_context(command.name, arguments)
            except typer.BadParameter as error:
                # The files of an example are not here.
                if "does not exist" not in str(error):
                    raise


def anchors(text: str) -> set[str]:
    """Return the names that GitHub gives the headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


OTHER_PAGES = [ROOT / "CHANGELOG.md", *ROOT.glob("CONTRIBUTING.md"), *ROOT.glob("SECURITY.md")]


@pytest.mark.parametrize(
    "page", [*NAMED_PAGES, *(pytest.param(page, id=page.stem) for page in OTHER_PAGES)]
)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.finditer(FENCE.sub("", page.read_text("utf-8"))):
        if link["path"].startswith(("https://", "http://")):
            continue
        target = page.parent / link["path"] if link["path"] else page
        assert target.exists(), link[0]
        if link["anchor"]:
            assert link["anchor"] in anchors(target.read_text("utf-8")), link[0]


def test_the_picture_shows_what_the_tables_say() -> None:
    assert picture.FILE.read_text("utf-8") == picture.picture()


def test_the_readme_links_every_page() -> None:
    linked = {link["path"] for link in LINK.finditer(README.read_text("utf-8"))}
    assert {f"docs/{page.name}" for page in DOCS.glob("*.md")} <= linked


def table_rows(text: str, first_header: str) -> list[list[str]]:
    """Return the cells of the table whose first column is headed so, without backticks."""
    found = re.search(rf"^\| {first_header} \|.*\n\|[-| ]+\|\n((?:\|.*\n?)*)", text, re.MULTILINE)
    rows = found[1].splitlines() if found else []
    return [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows]


SEARCH = "hybrid_search_knowledge_chunks"


SIGNATURE = r"^```text\n{function}\((.*?)\)\s+returns (.*?)\n```$"


def shared_rows(text: str, told: str, first_header: str) -> list[list[str]]:
    """Return the rows of the search's table that a section says it shares."""
    shared = re.search(
        rf"{first_header}s of\s\[the search\]\(#{SEARCH}\)"
        r"(?:\swithout (`\w+`(?:(?:,|\sand)\s`\w+`)*))?",
        told,
    )
    if not shared:
        return []
    left_out = re.findall(r"`(\w+)`", shared[1] or "")
    of_search = table_rows(section(text, SEARCH), first_header)
    return [row for row in of_search if row[0] not in left_out]


def declared(names_and_types: str) -> list[str]:
    """Return the parts of a list in a signature."""
    return re.split(r",\s+", names_and_types.strip()) if names_and_types else []


def reference_signature(text: str, function: str) -> tuple[list[str], list[str]]:
    """Return the arguments, with types and defaults, and the columns of a function."""
    told = section(text, function)
    found = re.search(SIGNATURE.format(function=function), told, re.MULTILINE | re.DOTALL)
    if not found:
        own = table_rows(told, "argument") or shared_rows(text, told, "argument")
        rows = table_rows(told, "column") or shared_rows(text, told, "column")
        defaults = ["" if row[2] == "required" else f" = {row[2]}" for row in own]
        arguments = [
            f"{row[0]} {row[1]}{default}" for row, default in zip(own, defaults, strict=True)
        ]
        return arguments, [f"{row[0]} {row[1]}" for row in rows]
    columns = re.search(r"\((.*)\)$", found[2], re.DOTALL)
    if not columns and found[2].startswith("setof "):
        # The columns stand where the type is returned first.
        kind = found[2].removeprefix("setof ")
        columns = re.search(rf"{kind} \((.*?)\)\n```$", text, re.DOTALL | re.MULTILINE)
        if kind == "knowledge_search_hit":
            return declared(found[1]), reference_signature(text, SEARCH)[1]
    listed = declared(columns[1]) if columns else []
    if listed[-1:] == ["..."]:
        rows = shared_rows(text, told, "column")
        listed[-1:] = [f"{row[0]} {row[1]}" for row in rows]
    return declared(found[1]), listed


FUNCTIONS = """
    select function.proname,
           array(
             select argument.name || ' ' || format_type(argument.type, null) || coalesce(
                      ' = ' || regexp_replace(
                        pg_get_function_arg_default(function.oid, argument.place::int),
                        '::[][a-z ]+$', ''
                      ), ''
                    )
               from unnest(
                      function.proargnames, function.proargmodes,
                      coalesce(function.proallargtypes, function.proargtypes::oid[])
                    ) with ordinality as argument (name, mode, type, place)
              where coalesce(argument.mode, 'i') = 'i'
              order by argument.place
           ),
           array(
             select argument.name || ' ' || format_type(argument.type, null)
               from unnest(function.proargnames, function.proargmodes, function.proallargtypes)
                 with ordinality as argument (name, mode, type, place)
              where argument.mode = 't'
              order by argument.place
           ) || array(
             select attribute.attname || ' ' || format_type(attribute.atttypid, null)
               from pg_catalog.pg_attribute as attribute
               join pg_catalog.pg_type as row on row.typrelid = attribute.attrelid
              where row.oid = function.prorettype and attribute.attnum > 0
              order by attribute.attnum
           )
      from pg_catalog.pg_proc as function
     where function.pronamespace = 'public'::regnamespace
     order by function.proname
"""


# How the page writes what format_type returns.
TYPES = {
    "double precision": "float8",
    "timestamp with time zone": "timestamptz",
    "extensions.vector": "vector",
}


def test_reference_has_every_function_as_it_is(database: Connection) -> None:
    text = (DOCS / "reference.md").read_text("utf-8")
    functions = database.execute(FUNCTIONS).fetchall()
    assert functions

    def as_written(types: list[str]) -> list[str]:
        return [re.sub("|".join(TYPES), lambda name: TYPES[name[0]], one.lower()) for one in types]

    for name, arguments, columns in functions:
        told_arguments, told_columns = reference_signature(text, name)
        assert as_written(told_arguments) == as_written(arguments), name
        assert as_written(told_columns) == as_written(columns), name


def test_reference_has_every_difference_between_python_and_sql() -> None:
    text = (DOCS / "reference.md").read_text("utf-8")
    of_sql = {row[0]: row[2] for row in table_rows(section(text, SEARCH), "argument")}
    told = {row[0]: row[1:] for row in table_rows(section(text, "Python"), "Python")}
    for name, default in DEFAULTS.items():
        sql_name = SQL_NAMES.get(name, name)
        if name != sql_name:
            assert told[name][0] == sql_name
        expected = "null" if default is None else str(default).lower()
        if of_sql[sql_name].strip("'").removesuffix(".0") != expected.removesuffix(".0"):
            assert told[name][1] == f"default {expected}", name
    assert "timeout" in told


def error_kinds(base: type[errors.SecondBrainError]) -> Iterator[str]:
    """Yield the kind of an error class and of all that derive from it."""
    if base.__module__.startswith("second_brain."):
        yield base.kind
    for derived in base.__subclasses__():
        yield from error_kinds(derived)


def test_errors_page_has_every_kind_and_every_code() -> None:
    text = (DOCS / "errors.md").read_text("utf-8")
    kinds = re.findall(r"^## `(\w+)`$", text, re.MULTILINE)
    documented = {
        code: kind
        for kind in kinds
        for row in table_rows(section(text, f"`{kind}`"), "code")
        for code in re.findall(r"\w+", row[0])
    }
    for code, kind in documented.items():
        raised = APIError({"code": code.replace("xxx", "000"), "message": "", "hint": None})
        assert errors.translate(raised).kind == kind, code
    mapped = {*errors._CLASSES, *errors._REMEDIES, *(f"{two}xxx" for two in errors._STATE_CLASSES)}
    assert mapped == documented.keys()
    for module in walk_packages(second_brain.__path__, "second_brain."):
        import_module(module.name)
    assert set(error_kinds(errors.SecondBrainError)) == set(kinds)

"""Write the options of each command into docs/commands.md: `python -m tools.commands`.

What stands above the marker is written by people; below it is what the commands themselves say.
"""

import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main

from second_brain.cli.commands import app
from second_brain.services.arguments import DEFAULTS

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
MARKER = "<!-- Below: written by `make commands` from the options of the commands. -->\n"

# An option of so many commands has its row above them, unless its name has several meanings there.
_COMMON = 3
# What most commands have: a command says which of these it does not have.
_USUAL = ("--dsn", "--schema", "--json")
# Where a page says more than the first paragraph of a command's help.
_TOLD = {
    "ingest": "[files](write.md#files)",
    "adopt": "[adopt a table](adopt.md)",
    "corpus judgments generate": "[measure relevance](ranking.md#measure-relevance)",
    "corpus eval": "[measure relevance](ranking.md#measure-relevance)",
    "corpus tune": "[measure relevance](ranking.md#measure-relevance)",
    "corpus reembed start": "[another embedding model](install.md#another-embedding-model)",
    "corpus index build": "[another index](install.md#another-index)",
    "corpus index drop": "[bulk loading](write.md#bulk-loading)",
    "server mcp": "[MCP](mcp.md)",
    "server token": "[users of Supabase](mcp.md#users-of-supabase)",
    "server copy": "[a new version](install.md#a-new-version)",
    "server schedule": "[scheduled jobs](operate.md#scheduled-jobs)",
    "server config": "[configuration](#configuration)",
}
# Commands whose pages say what the options do: here their names, defaults and bounds.
_IN_SHORT = ("adopt", "corpus ", "ingest", "server ")
# Options of `search` that are arguments of the SQL function, with its defaults.
_AS_IN_SQL = {f"--{name.replace('_', '-')}" for name in DEFAULTS} - {"--pool-size", "--threshold"}
_ARGUMENTS = "As the [arguments of SQL](reference.md#hybrid_search_knowledge_chunks)"
# What versions of typer call the values.
_KINDS = {
    **dict.fromkeys(("int", "integer"), "N"),
    **dict.fromkeys(("str", "text"), "TEXT"),
    **dict.fromkeys(("path", "dir", "directory", "file"), "PATH"),
    "float": "NUMBER",
}


@dataclass(frozen=True)
class Option:
    """An option, or an argument, as its help says."""

    name: str
    meaning: str

    @property
    def flag(self) -> str:
        """The name without that of a value, and without a short one."""
        return next(word for word in self.name.split() if not word.endswith(","))

    def row(self) -> str:
        """Return the line of a list."""
        return f"- `{self.name}`: {self.meaning}"

    def short(self) -> str:
        """Return the name with the default and the bounds."""
        found = re.search(r"\[([^][]*)\]$", self.meaning)
        bounds = found[1].replace("default: ", "") if found else ""
        return f"`{self.name}`" + (f" ({bounds})" if bounds else "")


def page() -> str:
    """Return the page as it should be."""
    by_hand, marker, _ = PAGE.read_text("utf-8").partition(MARKER)
    if not marker:
        raise ValueError(f"{PAGE} has no line {MARKER}")
    commands = list(_commands())
    counted = Counter(option for _, command in commands for option in _options(command))
    often = [option for option, count in counted.items() if count >= _COMMON]
    meanings = Counter(option.flag for option in often)
    common = [option for option in often if meanings[option.flag] == 1]
    usual = f'Every command has {_named_list(_USUAL)}, except what it names after "Without".'
    lines = ["## Common options", "", usual, "", *_list(common)]
    # The section in which the line of an option stands; None: in the list above.
    rows: dict[Option, str | None] = dict.fromkeys(common)
    sections = "\n".join(_section(path, command, rows) for path, command in commands)
    return "\n".join([by_hand + MARKER, *lines, "", sections])


def _commands() -> Iterator[tuple[str, Any]]:
    """Yield the commands with what is typed for them; a group comes before its commands."""
    yield from _inside("", typer.main.get_command(app))


def _inside(path: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield path + name, command
        if hasattr(command, "list_commands"):
            yield from _inside(f"{path}{name} ", command)


def _section(path: str, command: Any, rows: dict[Option, str | None]) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    names = "".join(f" {_argument(one)}" for one in arguments)
    text = inspect.cleandoc(command.help).split("\n\n")[0]
    if path in _TOLD:
        text += f" See {_TOLD[path]}."
    lines = [f"## {path}{names}", "", _text(text)]
    options = list(_options(command))
    if own := [option for option in options if option not in rows]:
        is_short = {one: path.startswith(_IN_SHORT) or one.flag in _AS_IN_SQL for one in own}
        if long := [one for one in own if not is_short[one]]:
            lines += ["", *_list(long)]
        if short := [one for one in own if is_short[one]]:
            told = f"{_ARGUMENTS}: " if long else ""
            lines += ["", _text(f"{told}{', '.join(one.short() for one in short)}.")]
    remarks = []
    for home in dict.fromkeys([None, *(rows[option] for option in options if option in rows)]):
        flags = [option.flag for option in options if rows.get(option, path) == home]
        if named := [flag for flag in flags if home or flag not in _USUAL]:
            remarks.append(f"{f'As in {home}:' if home else 'Also'} {_named_list(named)}.")
    anchor = re.sub(r"[^\w\- ]", "", path + names).lower().replace(" ", "-")
    rows |= dict.fromkeys(own, f"[{path}](#{anchor})")
    has = {option.flag for option in options}
    lacks = [flag for flag in _USUAL if flag not in has]
    if lacks and not hasattr(command, "list_commands"):
        remarks.append(f"Without {_named_list(lacks)}.")
    if remarks:
        lines += ["", _text(" ".join(remarks))]
    return "\n".join([*lines, ""])


def _list(options: list[Option]) -> list[str]:
    return [option.row() for option in options]


def _named_list(flags: Iterable[str]) -> str:
    return ", ".join(f"`{flag}`" for flag in flags)


def _options(command: Any) -> Iterator[Option]:
    if hasattr(command, "list_commands"):
        return
    context = command.make_context(command.name, [], resilient_parsing=True)
    for one in command.params:
        record = one.get_help_record(context)
        if record is None:
            continue
        name = _argument(one) if one.param_type_name == "argument" else _named(record[0])
        meaning = re.sub(r"(\S+)<=x<=(\S+)(?=[\];])", r"\1 to \2", " ".join(record[1].split()))
        yield Option(name, re.sub(r"x>=(\S+)(?=[\];])", r"at least \1", meaning))


def _argument(one: Any) -> str:
    return str(one.metavar or one.name.upper())


def _named(flags: str) -> str:
    """Return the flags with the name of their value: `--limit N`."""
    found = re.fullmatch(r"(.*?) (?:<(.+)>|\[(.+)\]|([A-Z ]+))", flags)
    if found is None:
        return flags
    kind = next(filter(None, found.groups()[1:]))
    plain = re.sub(r"^list\[(.*)\]$", r"\1", kind.removesuffix(" range").removesuffix(" RANGE"))
    return f"{found[1]} {_KINDS.get(plain.lower(), plain)}"


def _text(text: str) -> str:
    """Return a text of the help with its paragraphs as lines of a page."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(
        textwrap.fill(" ".join(one.split()), 132, break_long_words=False, break_on_hyphens=False)
        for one in paragraphs
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

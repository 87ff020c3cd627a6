"""The list of commands. The module of a command is imported when the command runs."""

import logging
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

_EXAMPLES = """\b
Try it here, without an account:
  second-brain server dev start
  second-brain migrate --dimensions 256
  second-brain ingest docs/
  second-brain search "how do I rotate the keys?"

\b
In your own Supabase project:
  second-brain init --dimensions 1024 --into supabase/migrations
  supabase db push
  second-brain doctor --dsn postgresql://...
"""

GROUPS = {
    "corpus": "What is stored: list it, embed it, measure and tune its search.",
    "server": "Databases and servers: dev database, MCP, jobs.",
}
"""Groups of commands, and the line of each in `second-brain --help`."""

_ALL = {
    "init": ("cli.database", "Write the migrations into your Supabase project."),
    "migrate": ("cli.database", "Apply the migrations that the database does not have yet."),
    "ingest": ("ingest", "Read documents, split and embed them, and store new chunks."),
    "search": ("cli.search", "Search, and show ranks and scores of each hit."),
    "adopt": ("adoption", "Search a table that you already have, and follow its changes."),
    "doctor": ("cli.doctor", "Check a database, and print a remedy for each problem."),
    "workbench": ("workbench", "See, judge and tune a corpus in the browser."),
    "demo": ("cli.search", "Search the standard library's documentation in a dev database."),
    "corpus list": ("cli.documents", "List the stored documents, with sizes and states."),
    "corpus show": ("cli.documents", "Show a document with its chunks, or one chunk."),
    "corpus delete": ("cli.documents", "Delete documents with all their chunks."),
    "corpus settings": ("cli.settings", "Fusion and weights that a corpus remembers."),
    "corpus judgments": ("evaluation", "Which documents are right for a question."),
    "corpus eval": ("evaluation", "Measure search on judged questions, or on a test collection."),
    "corpus tune": ("evaluation", "Find the best fusion and weights, and store them."),
    "corpus embed": ("embedding_queue", "Embed chunks that wait for an embedding, until stopped."),
    "corpus reembed": ("embedding_queue", "Change the embedding model of a table in use."),
    "corpus index": ("cli.index", "The vector index: show, build another kind, drop."),
    "server dev": ("cli.database", "An embedded Postgres for this folder, in .second-brain/."),
    "server mcp": (
        "mcp_server",
        "Serve search tools to assistants over the Model Context Protocol.",
    ),
    "server token": ("mcp_server", "Make a token for a caller of the MCP server."),
    "server copy": ("cli.database", "Copy the documents of an install into another schema."),
    "server schedule": ("cli.schedule", "Schedule statistics and purges with pg_cron."),
    "server config": (
        "cli.config",
        "Show the values that variables and the configuration file set.",
    ),
    "server uninstall": ("cli.database", "Write the SQL that removes an install or a module."),
}


@cache
def _is_here(home: str) -> bool:
    return find_spec(f"second_brain.{home.partition('.')[0]}") is not None


# Commands of a folder that is left out of the package are left out; these need more folders.
_NEEDS = {"demo": ("demo", "ingest"), "workbench": ("evaluation",)}
COMMANDS = {
    path: (home, line)
    for path, (home, line) in _ALL.items()
    if all(map(_is_here, (home, *_NEEDS.get(path, ()))))
}
"""For each command: its module in `cli`, or the folder whose `commands` has it, and its help."""

# Names before there were groups, where the name in its group is another one.
_FORMER = {"corpus list": "documents", "corpus embed": "embed-worker", "server token": "mcp-token"}
_MOVED = {_FORMER.get(path, path.split()[1]): path for path in COMMANDS if " " in path}


class _Commands(TyperGroup):
    """The commands at the top, or of a group.

    Typer's default group imports every module to print the help.
    """

    path = ""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._summaries())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        path = self._path(cmd_name)
        if path in GROUPS:
            return _group(path)
        return _loaded(COMMANDS[path][0])[cmd_name] if path in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not self.path and args[0] in _MOVED:
            ctx.fail(f"The command {args[0]} is now: second-brain {_MOVED[args[0]]}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, _Commands):
            from second_brain.cli import configuration

            path = self._path(str(name)).split()
            ctx.default_map = {name: configuration.load().defaults(tuple(path), command)}
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, is_group in (("Commands", False), ("Groups of commands", True)):
            lines = self._summaries().items()
            rows = [line for line in lines if (self._path(line[0]) in GROUPS) == is_group]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _summaries(self) -> dict[str, str]:
        lines = {path: summary for path, (_, summary) in COMMANDS.items()} | GROUPS
        split = ((path.rpartition(" "), line) for path, line in lines.items())
        return {name: line for (group, _, name), line in split if group == self.path}

    def _path(self, name: str) -> str:
        return f"{self.path} {name}".strip()


@cache
def _loaded(module: str) -> dict[str, Any]:
    path = module if "." in module else f"{module}.commands"
    commands = get_group(import_module(f"second_brain.{path}").app).commands
    for path, (home, summary) in COMMANDS.items():
        if home == module:
            command = commands[path.split()[-1]]
            command.help = command.help or summary
    return dict(commands)


@cache
def _group(name: str) -> _Commands:
    group = _Commands(name=name, no_args_is_help=True, help=GROUPS[name], rich_markup_mode=None)
    group.path = name
    return group


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# `main` prints errors. Without a handler, Python's logging would print them to stderr again.
logging.getLogger("second_brain").addHandler(logging.NullHandler())


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"second-brain {version('second-brain')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Hybrid search for Supabase: migrations, a local database, ingestion and search."""

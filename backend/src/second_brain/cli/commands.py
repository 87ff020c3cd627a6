"""The list of commands. The module of a command is imported when the command runs."""

import logging
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

_EXAMPLES = """\b
Try it here, without an account:
  second-brain dev start
  second-brain migrate --dimensions 256
  second-brain ingest docs/
  second-brain search "how do I rotate the keys?"

\b
In your own Supabase project:
  second-brain init --dimensions 1024 --into supabase/migrations
  supabase db push
  second-brain doctor --dsn postgresql://...
"""

COMMANDS = {
    "migrate": ("database", "Apply the migrations that the database does not have yet."),
    "init": ("database", "Write the migrations into your Supabase project."),
    "uninstall": ("database", "Write the SQL that removes an install or a module, for review."),
    "doctor": ("database", "Check a database, and print a remedy for each problem."),
    "ingest": ("ingestion", "Read documents, split and embed them, and store new chunks."),
    "delete": ("ingestion", "Delete documents with all their chunks."),
    "embed-worker": ("embedding", "Embed chunks that wait for an embedding, until stopped."),
    "search": ("search", "Search, and show ranks and scores of each hit."),
    "documents": ("documents", "List the stored documents, with sizes and states."),
    "show": ("documents", "Show a document with its chunks, or one chunk."),
    "demo": ("search", "Search the standard library's documentation in a dev database."),
    "eval": ("evaluation", "Measure search on judged questions, or on a test collection."),
    "tune": ("evaluation", "Find the best fusion and weights, and store them."),
    "judgments": ("judgments", "Which documents are right for a question."),
    "settings": ("settings", "Fusion and weights that a corpus remembers."),
    "config": ("config", "Show the values that variables and the configuration file set."),
    "adopt": ("adoption", "Search a table that you already have, and follow its changes."),
    "workbench": ("workbench", "See, judge and tune a corpus in the browser."),
    "mcp": ("serving", "Serve search tools to assistants over the Model Context Protocol."),
    "mcp-token": ("serving", "Make a token for a caller of the MCP server."),
    "dev": ("database", "An embedded Postgres for this folder, in .second-brain/."),
    "tenants": ("tenants", "In which database each tenant is; move one."),
    "index": ("maintenance", "The vector index: show, build another kind, drop."),
    "reembed": ("maintenance", "Change the embedding model of a table in use."),
    "plan": ("plan", "Estimate memory, disk, machines, shards and replicas of a corpus."),
    "schedule": ("schedule", "Schedule statistics and purges with pg_cron."),
    "shards": ("shards", "One corpus in several databases: statistics, moves."),
}
"""For each command: its module in `second_brain.cli`, and its line in `second-brain --help`."""


class _Commands(TyperGroup):
    """The group of all commands. Typer's default group imports every module to print the help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _loaded(COMMANDS[cmd_name][0])[cmd_name] if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            from second_brain.cli import configuration

            ctx.default_map = {name: configuration.load().defaults((str(name),), command)}
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@cache
def _loaded(module: str) -> dict[str, Any]:
    commands = typer.Typer(rich_markup_mode=None)
    import_module(f"second_brain.cli.{module}").register(commands)
    return dict(get_group(commands).commands)


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

"""The command `second-brain`. It parses, prints and sets exit codes; the work is done elsewhere.

Exit codes: 0 done, 1 an error, told in one line with what to do about it, 2 wrong usage.
"""

import sys
from importlib.metadata import version
from typing import Annotated

import psycopg
import typer

from second_brain.cli import database, evaluation, knowledge, maintenance, serving
from second_brain.errors import SecondBrainError, translate

_EXAMPLES = """\b
Try it here, without an account:
  second-brain dev start
  second-brain migrate --dimensions 256
  second-brain ingest docs/
  second-brain search "how do I rotate the keys?"

\b
In a Supabase project of your own:
  second-brain init --dimensions 1024 --into supabase/migrations
  supabase db push
  second-brain doctor --dsn postgresql://...
"""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
database.register(app)
knowledge.register(app)
evaluation.register(app)
maintenance.register(app)
serving.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
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


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="second-brain")
    except SecondBrainError as error:
        _fail(error)
    except psycopg.Error as error:
        _fail(translate(error))


def _fail(error: SecondBrainError) -> None:
    message = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    end = "" if message.endswith((".", "?", "!")) else "."
    typer.echo(f"error: {message}{end} {error.remedy}", err=True)
    sys.exit(1)

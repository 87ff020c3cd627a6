"""The command `second-brain`: arguments, output and exit codes; other packages do the work.

Exit codes: 0 for success, 1 for an error (printed in one line with its remedy), 2 for wrong usage.
"""

import sys
from importlib.util import find_spec

from second_brain.errors import MissingExtraError, SecondBrainError, translate


def main() -> None:
    """Run the command line."""
    try:
        _check_extra()
        from second_brain.cli.commands import app

        app(prog_name="second-brain")
    except SecondBrainError as error:
        _fail(error)
    except Exception as error:
        import psycopg

        if not isinstance(error, psycopg.Error):
            raise
        _fail(translate(error))


def _check_extra() -> None:
    for package in ("typer", "rich", "numpy"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "cli")


def _fail(error: SecondBrainError) -> None:
    message = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    end = "" if message.endswith((".", "?", "!")) else "."
    print(f"error: {message}{end} {error.remedy}", file=sys.stderr)
    sys.exit(1)

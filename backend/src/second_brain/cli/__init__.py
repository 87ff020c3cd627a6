"""The command `second-brain`: arguments, output and exit codes; other packages do the work.

Exit codes: 0 for success, 1 for an error or for findings, 2 for wrong usage, 130 after Ctrl-C. An
error is one line with its remedy on standard error; with --json the line is a JSON object.
"""

import json
import sys
from importlib.util import find_spec
from itertools import takewhile

from second_brain.errors import ConfigurationError, MissingExtraError, SecondBrainError, of_command


def main() -> None:
    """Run the command line."""
    try:
        _check_extra()
        _run()
    except SecondBrainError as error:
        _fail(error)
    except ModuleNotFoundError as error:
        folder = ".".join((error.name or "").split(".")[:2])
        if not folder.startswith("second_brain."):
            raise
        remedy = "Install second-brain with this folder."
        _fail(ConfigurationError(f"{folder} is not in this install", remedy=remedy))
    except Exception as error:
        import psycopg

        if not isinstance(error, psycopg.Error):
            raise
        _fail(of_command(error))


def _run() -> None:
    from second_brain.cli.commands import app

    if not _is_json_wanted():
        app(prog_name="second-brain")
        return
    import typer

    try:
        code = app(prog_name="second-brain", standalone_mode=False)
    except typer.Abort:
        _print_error("aborted", "the command was stopped", "Run it again.")
        sys.exit(1)
    except Exception as error:
        # The errors of wrong usage, whose class typer does not export.
        if not hasattr(error, "format_message"):
            raise
        remedy = "See the options: second-brain COMMAND --help"
        _print_error("usage", error.format_message(), remedy)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _check_extra() -> None:
    for package in ("typer", "rich", "numpy"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "cli")


def _fail(error: SecondBrainError) -> None:
    message = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    _print_error(error.kind, message, error.remedy, error.code)
    sys.exit(1)


def _print_error(kind: str, message: str, remedy: str, code: str | None = None) -> None:
    if _is_json_wanted():
        failure = {"kind": kind, "code": code, "message": message, "remedy": remedy}
        print(json.dumps({"error": failure}), file=sys.stderr)
        return
    end = "" if message.endswith((".", "?", "!")) else "."
    print(f"error: {message}{end} {remedy}", file=sys.stderr)


def _is_json_wanted() -> bool:
    # An error of usage can come before the options are parsed.
    return "--json" in takewhile(lambda argument: argument != "--", sys.argv[1:])

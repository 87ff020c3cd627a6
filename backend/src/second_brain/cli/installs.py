"""The option --all of `migrate` and `doctor`: the same work in each install of a file.

A line is a connection string, then the schema of the install if it is not that of --schema. Empty
lines, and lines that start with #, are skipped. No message has a part of a connection string
beside host, port and database.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import typer

from second_brain.cli.output import print_json
from second_brain.cli.tables import new_console, new_table, number, printable
from second_brain.errors import ConfigurationError, translate
from second_brain.redaction import safe_message
from second_brain.services.connections import address, secrets
from second_brain.services.install import check_schema

_WITH_SCHEMA = re.compile(r"(\S.*?)\s+(\w+)")
_URI = re.compile(r"postgres(?:ql)?://\S+(.*)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did in one install, and which of the file it was."""

    is_good: bool
    result: str
    problems: tuple[str, ...] = ()
    line: int = 0
    database: str = ""
    schema: str = ""


def for_all(
    file: Path,
    schema: str,
    work: Callable[[str, str], Outcome],
    *,
    stop: bool = False,
    as_json: bool,
) -> None:
    """Call `work` (connection string, schema) for each line; print a table of the outcomes.

    Problems go to stderr. It goes on after a failure unless `stop`, and then exits with 1.
    """
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--all: {file} cannot be read: {error}") from error
    listed = {
        place: line.strip()
        for place, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    if not listed:
        raise ConfigurationError(
            f"--all: {file} has no install", remedy="Write a line for each: DSN [SCHEMA]."
        )
    done: list[Outcome] = []
    for place, line in listed.items():
        done.append(_tried(place, line, schema, work))
        if stop and not done[-1].is_good:
            break
    if as_json:
        print_json([asdict(one) for one in done])
    else:
        _print(done)
    failed = sum(not one.is_good for one in done)
    left = len(listed) - len(done)
    not_tried = f", {left} not tried" if left else ""
    typer.echo(f"{number(len(done), 'install')}, {failed} with an error{not_tried}.", err=True)
    if failed:
        raise typer.Exit(1)


def _tried(place: int, line: str, schema: str, work: Callable[[str, str], Outcome]) -> Outcome:
    dsn, database = line, ""
    try:
        dsn, schema = _parsed(line, schema)
        target = address(dsn)
        database = f"{target.host}:{target.port}/{target.database}"
        check_schema(schema)
        outcome = work(dsn, schema)
    # Whatever it is, it belongs to this install; the others are next.
    except Exception as error:  # noqa: BLE001
        known = translate(error)
        said = safe_message(f"{known} {known.remedy}", secrets=secrets(dsn))
        outcome = Outcome(False, known.kind, (said,))
    return replace(outcome, line=place, database=database, schema=schema if database else "")


def _parsed(line: str, schema: str) -> tuple[str, str]:
    """Split a line into connection string and schema."""
    uri = _URI.fullmatch(line)
    if (uri[1] == "") if uri else _is_whole(line):
        return line, schema
    found = _WITH_SCHEMA.fullmatch(line)
    if not found or (uri and " " in uri[1].strip()):
        raise ConfigurationError(
            "it is not a connection string with the name of a schema",
            remedy="Write DSN [SCHEMA]; in a DSN that starts with postgresql://, a space is %20.",
        )
    return found[1], found[2]


def _is_whole(line: str) -> bool:
    """Say whether KEY=VALUE pairs are all of the line, which may have spaces in quotes."""
    try:
        address(line)
    except ConfigurationError:
        return False
    return True


def _print(done: list[Outcome]) -> None:
    table = new_table("line", "database", "schema", "", "result")
    for one in done:
        state = "ok" if one.is_good else "error"
        table.add_row(str(one.line), printable(one.database), one.schema, state, one.result)
    new_console().print(table)
    for one in done:
        for problem in one.problems:
            typer.echo(f"line {one.line}: {printable(problem)}", err=True)


def refuse_dsn(dsn: str | None) -> None:
    """Raise an error for --dsn beside --all."""
    if dsn:
        raise ConfigurationError(
            "--all takes the databases from its file, not from --dsn",
            remedy="Pass one of them.",
        )

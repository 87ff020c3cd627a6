"""The command tenants, and the option --all: arguments and output; `services` does the work."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from second_brain.cli.options import JsonOption, TenantsOption, new_group
from second_brain.cli.output import print_json, show, showing_progress
from second_brain.cli.tables import new_console, new_table, number, printable
from second_brain.distributed import moving
from second_brain.distributed.tenant_directory import (
    Place,
    UnknownTenantError,
    WritableDirectory,
    directory_of,
)
from second_brain.errors import ConfigurationError, translate
from second_brain.services.install import SCHEMA

app = typer.Typer(rich_markup_mode=None)
tenants = new_group(
    app,
    "tenants",
    """\b
Examples:
  second-brain server tenants list --tenants tenants.toml
  second-brain server tenants add acme eu1/acme
  second-brain server tenants move acme --to us1/acme

\b
A file tenants.toml, in which EU1_DSN is an environment variable with a connection string:
  [databases]
  eu1 = "EU1_DSN"
  [tenants]
  acme = "eu1/acme"
""",
)


@contextmanager
def opened_directory(path: Path | None) -> Iterator[tuple[WritableDirectory, Mapping[str, str]]]:
    """Open the directory of the commands; yield it and the connection strings of databases."""
    if path is None:
        raise ConfigurationError(
            "no file of tenants is given",
            remedy="Pass --tenants FILE, or set SECOND_BRAIN_TENANTS.",
        )
    directory, databases = directory_of(path)
    with closing(directory):
        yield directory, databases


@tenants.command("list")
def list_tenants(tenants_file: TenantsOption = None, as_json: JsonOption = False) -> None:
    """Show in which database and schema each tenant is."""
    with opened_directory(tenants_file) as (directory, _):
        places = directory.tenants()
    table = new_table("tenant", "database", "schema")
    for name, place in places.items():
        table.add_row(printable(name), place.database, place.schema)
    listed = [{"tenant": name, **asdict(place)} for name, place in places.items()]
    show(listed, table, as_json=as_json)


@tenants.command("add")
def add_tenant(
    tenant: Annotated[str, typer.Argument(help="Name of the tenant.")],
    place: Annotated[str, typer.Argument(help="DATABASE or DATABASE/SCHEMA.")],
    tenants_file: TenantsOption = None,
) -> None:
    """Add a tenant to the directory; `migrate --all` then makes its install."""
    with opened_directory(tenants_file) as (directory, databases):
        if tenant in directory.tenants():
            raise ConfigurationError(
                f"the directory has the tenant {tenant} already",
                remedy="`second-brain server tenants move` moves it with its data.",
            )
        found = Place.read(place)
        _dsn(databases, found)
        directory.set(tenant, found)
    typer.echo(f"{tenant} is in {found}. Next: second-brain migrate --all")


@tenants.command("move")
def move_tenant(
    tenant: Annotated[str, typer.Argument(help="Name of the tenant.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="DATABASE[/SCHEMA]", help="Where it goes.")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel a move that was interrupted.")
    ] = False,
    tenants_file: TenantsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a tenant with all its data to another database or schema.

    Searches go on, writes wait for a moment at the end. After an interruption, run the command
    again: it continues. The old copy stays, closed for writes: remove it with `server uninstall`.
    Connect
    directly or through a session pooler.
    """
    with opened_directory(tenants_file) as (directory, databases):
        place = directory.tenants().get(tenant)
        if place is None:
            raise UnknownTenantError(f"the directory has no tenant {tenant!r:.120}")
        if cancel:
            done = moving.cancel(_dsn(databases, place), place.schema)
            _print_unmoved(
                "The move is cancelled." if done else "There is no move to cancel.", as_json
            )
            return
        if to is None:
            raise ConfigurationError("no target is given", remedy="Pass --to DATABASE[/SCHEMA].")
        target = Place.read(to)
        if target == place:
            _print_unmoved(f"{tenant} is in {place}.", as_json)
            return
        taken = [name for name, other in directory.tenants().items() if other == target]
        if taken:
            raise ConfigurationError(
                f"{target} is the place of {taken[0]}", remedy="Name another schema or database."
            )
        with showing_progress() as on_progress:
            moved = moving.move(
                _dsn(databases, place),
                place.schema,
                _dsn(databases, target),
                target.schema,
                target=str(target),
                switch=lambda: directory.set(tenant, target),
                on_progress=on_progress,
            )
    rows = number(sum(moved.rows.values()), "row")
    said = f"{tenant} is in {target}: {rows}; writes waited {moved.pause:.0f} ms."
    show(moved, said, as_json=as_json)
    typer.echo(
        f"The old copy in {place} is closed for writes. Remove it when no process reads it any "
        "more: second-brain server uninstall "
        + ("" if place.schema == SCHEMA else f"--schema {place.schema} ")
        + "--apply --dsn ...",
        err=True,
    )


def _print_unmoved(said: str, as_json: bool) -> None:
    typer.echo(said, err=as_json)
    if as_json:
        print_json(None)


def _dsn(databases: Mapping[str, str], place: Place) -> str:
    if place.database not in databases:
        raise ConfigurationError(
            f"the file has no database {place.database!r}",
            remedy=f"Its databases are: {', '.join(sorted(databases))}.",
        )
    return databases[place.database]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did in one install."""

    is_good: bool
    result: str
    problems: tuple[str, ...] = ()


def for_all(
    tenants_file: Path | None, work: Callable[[str, str], Outcome], *, as_json: bool
) -> None:
    """Call `work` (connection string, schema) for each install; print a table of the outcomes.

    Problems go to stderr. It goes on after a failure, and then exits with 1.
    """
    with opened_directory(tenants_file) as (directory, databases):
        of_place: dict[Place, list[str]] = {}
        for name, place in directory.tenants().items():
            of_place.setdefault(place, []).append(name)
        outcomes: list[tuple[Place, list[str], Outcome]] = []
        for place, names in sorted(of_place.items(), key=lambda one: str(one[0])):
            try:
                outcome = work(_dsn(databases, place), place.schema)
            # Whatever it is, it belongs to this install; the others are next.
            except Exception as error:  # noqa: BLE001
                known = translate(error)
                outcome = Outcome(False, known.kind, (f"{known} {known.remedy}",))
            outcomes.append((place, names, outcome))
    if as_json:
        print_json(
            [
                {**asdict(place), "tenants": names, **asdict(outcome)}
                for place, names, outcome in outcomes
            ]
        )
    else:
        _print_outcomes(outcomes)
    failed = sum(not outcome.is_good for *_, outcome in outcomes)
    typer.echo(f"{number(len(outcomes), 'install')}, {failed} with an error.", err=True)
    if failed:
        raise typer.Exit(1)


def _print_outcomes(outcomes: Sequence[tuple[Place, list[str], Outcome]]) -> None:
    table = new_table("database", "schema", "tenants", "", "result")
    for place, names, outcome in outcomes:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        table.add_row(
            place.database,
            place.schema,
            printable(shown),
            "ok" if outcome.is_good else "error",
            outcome.result,
        )
    new_console().print(table)
    for place, _, outcome in outcomes:
        for problem in outcome.problems:
            typer.echo(f"{place}: {printable(problem)}", err=True)

"""The command adopt: arguments and output; `database.adoption` does the work."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from second_brain.adoption import calls, carrying, migration, proposal, replaced
from second_brain.cli.corpus import schema_option
from second_brain.cli.options import DsnOption, SchemaOption, Visibility
from second_brain.cli.output import showing_progress
from second_brain.cli.tables import number, printable
from second_brain.cli.target import opened
from second_brain.errors import ConfigurationError
from second_brain.services.install import SCHEMA, Database

_SHOWN = 60  # characters of a part of a key
app = typer.Typer(rich_markup_mode=None)


def _flag(name: str, text: str) -> Any:
    """Return an option that is set or not."""
    return typer.Option(name, help=text)


def _mapped(text: str, metavar: str = "COLUMN|SQL|none") -> Any:
    """Return an option that names a column or an expression."""
    return typer.Option(metavar=metavar, help=text)


@app.command(
    epilog="""\b
Examples:
  second-brain adopt public.documents --model text-embedding-3-small
  second-brain adopt public.documents --title "metadata ->> 'title'" --embed --apply
  second-brain adopt --backfill documents
  second-brain adopt --calls documents
  second-brain adopt --check
  second-brain adopt --check documents --repair
  second-brain adopt --remove documents
"""
)
def adopt(
    context: typer.Context,
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="[TABLE|NAME]",
            help="The table, such as public.documents; for --backfill, --check, --calls "
            "and --remove the name of an adoption (default: all).",
        ),
    ] = None,
    backfill: Annotated[bool, _flag("--backfill", "Carry over the rows that exist.")] = False,
    check: Annotated[bool, _flag("--check", "Compare the source with its documents.")] = False,
    repair: Annotated[bool, _flag("--repair", "With --check: carry differing rows over.")] = False,
    replace_calls: Annotated[bool, _flag("--calls", "Replace functions that search it.")] = False,
    undo: Annotated[bool, _flag("--undo", "With --calls: bring the old functions back.")] = False,
    remove: Annotated[bool, _flag("--remove", "Print the SQL that removes an adoption.")] = False,
    key: Annotated[str | None, _mapped("The key column.", "COLUMN")] = None,
    content: Annotated[str | None, _mapped("The text (SQL: over the columns).")] = None,
    embedding: Annotated[str | None, _mapped("Its embedding.")] = None,
    metadata: Annotated[str | None, _mapped("A JSON object.")] = None,
    title: Annotated[str | None, _mapped("The title.")] = None,
    url: Annotated[str | None, _mapped("The address.")] = None,
    owner: Annotated[str | None, _mapped("The owner's UUID.")] = None,
    groups: Annotated[str | None, _mapped("Groups that may see it, text[].")] = None,
    updated: Annotated[str | None, _mapped("The document's date.")] = None,
    type: Annotated[str | None, _mapped("Its knowledge_type.")] = None,  # noqa: A002
    document: Annotated[str | None, _mapped("The same for the chunks of a document.")] = None,
    position: Annotated[str | None, _mapped("The order of chunks in their document.")] = None,
    parent: Annotated[
        str | None, _mapped("The table of the documents of the rows.", "TABLE")
    ] = None,
    rows: Annotated[str | None, _mapped("The rows that are searched.", "SQL|all")] = None,
    leave_out: Annotated[
        str | None, _mapped("Columns to leave out, with commas.", "COLUMNS")
    ] = None,
    model: Annotated[str | None, _mapped("Model of the table's embeddings.", "TEXT")] = None,
    embed: Annotated[bool, _flag("--embed", "Workers embed the texts again.")] = False,
    name: Annotated[str | None, _mapped("Of the adoption; default: the table's.", "TEXT")] = None,
    collection: Annotated[
        str | None, _mapped("Default: knowledge, or the table's.", "TEXT")
    ] = None,
    visibility: Annotated[Visibility, typer.Option(help="Of the documents.")] = "private",
    language: Annotated[str | None, _mapped("Of the texts; default: english.", "TEXT")] = None,
    into: Annotated[
        Path, typer.Option(help="Folder of the project's migrations.", file_okay=False)
    ] = Path("supabase/migrations"),
    apply: Annotated[bool, _flag("--apply", "Run the SQL instead of writing a migration.")] = False,
    batch_size: Annotated[
        int, typer.Option(help="With --backfill: rows of a transaction.", min=1, max=10_000)
    ] = carrying.BATCH_SIZE,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Make the rows of a table searchable, and follow its changes.

    It reads the table's columns, proposes what they become, and writes a migration for you to read
    and push. Its triggers carry each write of the table over in the same transaction. Then
    --backfill carries over the rows that exist, and --check compares. Connect as the owner of the
    table. --check has exit code 1 if there are differences, or rows that cannot be carried over.
    """
    if backfill + check + replace_calls + remove > 1:
        raise typer.BadParameter("--backfill, --check, --calls and --remove exclude each other")
    with opened(dsn, schema) as database:
        if backfill:
            _each(database, table, lambda one: _backfill(database, one, batch_size))
        elif check:
            _each(database, table, lambda one: _check(database, one, repair=repair))
        elif replace_calls:
            _each(
                database,
                table,
                lambda one: _replace_calls(database, one, into, undo=undo, run=apply),
            )
        elif table is None:
            raise typer.BadParameter(
                "name the adoption to remove"
                if remove
                else "name the table, or use --backfill, --check, --calls or --remove"
            )
        elif remove:
            _remove(database, table, run=apply)
        else:
            given = {field: context.params[field] for field in ("key", *proposal.OPTIONS)}
            # All documents are in the collection that is named.
            given["collection"] = None if collection is None else proposal.NOT_MAPPED
            proposed = proposal.propose(
                database,
                table,
                given,
                uses_embeddings=not embed,
                is_public=visibility == "public",
                rows=rows,
                leave_out=[one.strip() for one in (leave_out or "").split(",") if one.strip()],
                parent_name=parent,
            )
            if proposed.field("embedding") and model is None:
                raise ConfigurationError(
                    "--model is not given, and the table has embeddings",
                    remedy="Name the model that made them, as the searches name it: --model NAME. "
                    "Or use --embed to embed the texts again.",
                )
            if model is not None and not proposed.field("embedding"):
                typer.echo(
                    "warning: --model is not used: no embeddings of the table are adopted. "
                    "A worker embeds the texts: second-brain corpus embed",
                    err=True,
                )
            name = name or migration.default_name(proposed.table.name)
            searching = calls.searching(database, proposed.table.identifier.as_string(None))
            # Drop-ins find this table alone.
            text = migration.render(
                proposed,
                database.install,
                name=name,
                collection=collection or (name if searching else migration.COLLECTION),
                visibility=visibility,
                language=language,
                model=model,
            )
            _write(database, proposed, name, text, into, run=apply)
            for function in searching:
                typer.echo(f"searches it: {function}", err=True)
            if searching:
                typer.echo(
                    f"Then replace {'them' if len(searching) > 1 else 'it'}: second-brain adopt "
                    f"--calls {name}{schema_option(schema)}",
                    err=True,
                )


def _write(
    database: Database,
    proposed: proposal.Proposal,
    name: str,
    text: str,
    into: Path,
    *,
    run: bool,
) -> None:
    typer.echo(f"{'key':<10} {proposed.key}: {proposed.key_reason}", err=True)
    for one in proposed.fields:
        typer.echo(f"{one.field:<10} {one.shown or one.source}: {one.reason}", err=True)
    for column, becomes in proposed.others:
        typer.echo(f"{printable(column):<10} {printable(becomes)}", err=True)
    if proposed.rows:
        typer.echo(f"rows       {proposed.rows}", err=True)
    for warning in proposed.warnings:
        typer.echo(f"warning: {warning}", err=True)
    schema = database.install.schema
    more = schema_option(schema)
    is_adopted = name in [one.name for one in carrying.listed(database)]
    if run:
        with database.connection.transaction():
            database.connection.execute(text.encode())
        typer.echo(f"Adopted {proposed.table} as {name}.")
    else:
        is_new = _write_file(into, text, migration.file_name(name, schema))
        if is_new and (into.parent / "schemas").is_dir():
            typer.echo(
                "note: this project has declarative schemas: copy `create view` and `create "
                "trigger` of this file into supabase/schemas, else the next diff drops them",
                err=True,
            )
    then = f"--check {name} --repair" if is_adopted else f"--backfill {name}"
    typer.echo(f"Then: second-brain adopt {then}{more}", err=True)


def _write_file(into: Path, text: str, name: str) -> bool:
    file, is_new = migration.write(into, text, name)
    typer.echo(file if is_new else f"{file}: nothing changed")
    if is_new:
        typer.echo(
            "Next: read it, then apply it: supabase db push, or without Supabase:"
            f' psql "$SECOND_BRAIN_DSN" -1f {shlex.quote(str(file))}',
            err=True,
        )
    return is_new


def _replace_calls(database: Database, name: str, into: Path, *, undo: bool, run: bool) -> None:
    if undo:
        statements = replaced.undo(database, name)
        done = f"{name}: {number(len(statements), 'statement')} run."
        _run_or_print(database, statements, done if run else None)
        return
    found = calls.keep(database, name, run=run)
    for one in found:
        done = "not replaced" if one.undecided else "replaced" if run else "can be replaced"
        done = "left as it is" if one.left else done
        typer.echo(f"{printable(one.function.signature)}: {done}")
        if one.left:
            typer.echo(f"  left: {printable(one.left)}")
            continue
        for reason in one.undecided:
            typer.echo(f"  decide: {printable(reason)}")
        for note in one.notes:
            typer.echo(f"  note: {printable(note)}")
        for user, old, new in one.users:
            asked = number(one.asked, "question")
            typer.echo(f"  {printable(user)}: {old} rows before, {new} now, for {asked}")
    if not found:
        typer.echo(f"{name}: no function to replace.")
    elif not run:
        schema = database.install.schema
        _write_file(
            into, calls.migration(found, name), migration.file_name(f"{name}_calls", schema)
        )


def _each(database: Database, name: str | None, act: Callable[[str], bool | None]) -> None:
    """Act on the named adoption, or on all: one that fails is reported, and the others follow.

    Exits with code 1 after a failure, and after a result of False.
    """
    results: list[bool | None] = []
    for one in _chosen(database, name):
        try:
            results.append(act(one))
        except ConfigurationError as error:
            if name is not None:
                raise
            typer.echo(f"{one}: {error}\n{error.remedy}", err=True)
            results.append(False)
    if False in results:
        raise typer.Exit(1)


def _chosen(database: Database, name: str | None) -> Sequence[str]:
    if name is not None:
        return [carrying.named(database, name, needs_view=False).name]
    found = carrying.listed(database)
    if not found:
        raise ConfigurationError(
            "no table is adopted",
            remedy="Adopt one: second-brain adopt TABLE. Apply the migration that it writes.",
        )
    return [one.name for one in found]


def _backfill(database: Database, name: str, batch_size: int) -> None:
    with showing_progress() as on_progress:
        done = carrying.backfill(database, name, batch_size=batch_size, on_progress=on_progress)
    typer.echo(f"{name}: {number(done, 'row')} carried over.")
    _print_problems(name, carrying.problems(database, name))


def _check(database: Database, name: str, *, repair: bool) -> bool:
    """Compare, and print the result; False where something is left to do."""
    with showing_progress() as on_progress:
        one = carrying.compare(database, name, repair=repair, on_progress=on_progress)
    more = schema_option(database.install.schema)
    typer.echo(
        f"{name}: {number(one.compared, 'row')} compared,"
        f" {number(one.differences, 'difference')}"
        f" ({one.missing:,} missing, {one.different:,} different,"
        f" {one.left_over:,} left over){', repaired' if repair else ''}."
    )
    for fault in replaced.faults(database, name):
        typer.echo(f"{name}: {printable(fault)}: second-brain adopt --calls {name}{more}")
    for key, fields in one.examples:
        typer.echo(f"  {_shown(key)}: {printable(', '.join(fields))}")
    _print_problems(name, one.problems)
    is_different = bool(one.differences) and not repair
    if is_different:
        typer.echo(f"Repair: second-brain adopt --check {name} --repair{more}", err=True)
    is_lost = any(not problem.is_carried_over for problem in one.problems)
    if is_lost:
        typer.echo(
            "Change the rows that cannot be carried over, or the mapping (second-brain adopt TABLE "
            "with other options). Then use --check --repair.",
            err=True,
        )
    return not (is_different or is_lost)


def _print_problems(name: str, problems: Sequence[carrying.Problem]) -> None:
    for is_carried_over, what in (
        (False, "cannot be carried over"),
        (True, "carried over in part"),
    ):
        listed = [one for one in problems if one.is_carried_over == is_carried_over]
        if listed:
            typer.echo(f"{name}: {number(len(listed), 'row')} {what}:")
        for one in listed[:20]:
            typer.echo(f"  {_shown(one.key)}: {printable(one.reason)}")


def _shown(key: carrying.Key) -> str:
    """Return a key as text: a part can be long, and whoever writes the table chooses it."""
    return "null" if key is None else printable(key[:_SHOWN] + "…" * (len(key) > _SHOWN))


def _remove(database: Database, name: str, *, run: bool) -> None:
    done = f"Removed the adoption {name}."
    _run_or_print(database, carrying.removal(database, name), done if run else None)


def _run_or_print(database: Database, statements: Sequence[str], done: str | None) -> None:
    if done is None:
        done = "begin;\n" + "".join(f"{one};\n" for one in statements) + "commit;"
    else:
        carrying.run(database, statements)
    typer.echo(done)

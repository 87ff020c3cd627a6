"""The options that several commands have: one declaration of each, and how groups are made."""

import inspect
import json
from collections.abc import Callable, Collection
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from pydantic import BaseModel

from second_brain.models import EMBEDDER_NAMES
from second_brain.retrieval.query import takes

Visibility = Literal["private", "public"]
"""Who may find a document over the API."""

# Where: the database, the install in it, and the installs of a file.
DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Database; the default is $SECOND_BRAIN_DSN, $DATABASE_URL, that of the "
        "configuration file, or the dev database here.",
    ),
]
SchemaOption = Annotated[
    str,
    typer.Option(
        "--schema",
        metavar="NAME",
        help="Schema of the install, if the database has several; $SECOND_BRAIN_SCHEMA.",
    ),
]
MajorOption = Annotated[
    int | None,
    typer.Option(
        "--postgres-major", help="PostgreSQL version of a new database: 18 (default), 17 or 16."
    ),
]
AllOption = Annotated[
    Path | None,
    typer.Option(
        "--all",
        metavar="FILE",
        help="All installs of a file, one after another; a line of it is DSN [SCHEMA].",
        dir_okay=False,
    ),
]
StopOption = Annotated[
    bool, typer.Option("--stop", help="With --all: stop at the first install that fails.")
]

# What is searched or embedded, and for whom.
CollectionOption = Annotated[
    str | None, typer.Option("--collection", metavar="NAME", help="Only this collection.")
]
CollectionsOption = Annotated[
    list[str] | None,
    typer.Option("--collection", metavar="NAME", help="Only this collection; may be repeated."),
]
ViewerOption = Annotated[
    str | None,
    typer.Option(
        "--viewer-id",
        metavar="UUID",
        help="Only this user's rows and public rows; the default is $SECOND_BRAIN_VIEWER_ID.",
    ),
]
ViewerGroupsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--viewer-groups",
        metavar="GROUP",
        help="Also what this group may see; may be repeated. An empty text: no group.",
    ),
]
PublicOnlyOption = Annotated[bool, typer.Option("--public-only", help="Only public rows.")]

RememberOption = Annotated[
    bool,
    typer.Option(
        "--remember", help="Add the tools remember and forget: notes of the user of --viewer-id."
    ),
]

# Models, and what builds the index of their embeddings.
WITHOUT_EMBEDDER = "none: the best text hits give a question its embedding"
EmbedderOption = Annotated[
    str,
    typer.Option(
        "--embedder",
        metavar="NAME",
        help=f"Model of the embeddings: {', '.join(EMBEDDER_NAMES)}; NAME@N requests N "
        "dimensions. $SECOND_BRAIN_EMBEDDER.",
    ),
]
QuestionEmbedderOption = Annotated[
    str,
    typer.Option(
        "--embedder",
        metavar="NAME",
        help=f"Model of the embeddings: {', '.join(EMBEDDER_NAMES)}; {WITHOUT_EMBEDDER}. "
        "$SECOND_BRAIN_EMBEDDER.",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(help="Memory for the build, such as 2GB; by default what the graph needs."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(help="Parallel workers for the build; the default is the server's.", min=0),
]

# How a command asks and answers.
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


Command = TypeVar("Command", bound=Callable[..., None])


def with_fields(
    model: type[BaseModel], *, before: str, but: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Give a command an option for each field of a model that it does not declare.

    It takes them as `**others`. `before` is the option that they stand before in the help, and
    `but` are fields without an option.
    """

    def add(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.kind != one.VAR_KEYWORD]
        place = [one.name for one in own].index(before)
        further = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=Annotated[
                    # Typer reads no day, the model does.
                    str | None if takes(field.annotation, date) else field.annotation,
                    typer.Option(
                        f"--{name.replace('_', '-')}",
                        help=field.description,
                        metavar="YYYY-MM-DD" if takes(field.annotation, date) else None,
                        show_default=field.default is not None,
                    ),
                ],
            )
            for name, field in model.model_fields.items()
            if name not in signature.parameters and name not in but
        ]
        named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        ordered = [*named[:place], *further, *named[place:]]
        command.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in ordered}
        return command

    return add


def new_group(app: typer.Typer, name: str, examples: str | None = None) -> typer.Typer:
    """Return a group of commands in `app`; its line of help is that of `commands.COMMANDS`."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=examples)
    app.add_typer(group, name=name)
    return group


def parsed(text: str | None, option: str) -> Any:
    """Return the value of an option in JSON; None where it is not given."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{option} is not JSON: {error}") from error

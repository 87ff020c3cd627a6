"""The migrations and the state of this package, as files in the order of their numbers."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from second_brain.errors import ConfigurationError, InvalidInputError
from second_brain.sql_modules import ALL, MODULES, NOT_IN_ALL

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_FILE_NAME = re.compile(r"([0-9]+)_(.*)\.sql")
# In the comment at the beginning of a file of a module.
MODULE = re.compile(r"\A(?:--[^\n]*\n)+?-- Module: (\w+)\.$", re.MULTILINE)
NEEDS = re.compile(r"\A(?:--[^\n]*\n)+?-- Needs: (\w+)(?: ([\d.]*\d))?\.$", re.MULTILINE)
_ONLY_WITH = re.compile(r"\A(?:--[^\n]*\n)+?-- Only with: (.+)\.$", re.MULTILINE)


@dataclass(frozen=True)
class Migration:
    """One file: its version and name as in `version_name.sql`, and its text."""

    version: str
    name: str
    sql: str

    @property
    def module(self) -> str | None:
        """The module that the file is a part of; None for the core."""
        found = MODULE.search(self.sql)
        return found[1] if found else None

    @property
    def needs(self) -> str | None:
        """The extension, beside pgvector, that the file needs."""
        found = NEEDS.search(self.sql)
        return found[1] if found else None

    @property
    def file_name(self) -> str:
        """The name of the file."""
        return f"{self.version}_{self.name}.sql"


def find(directory: Path | None = None) -> list[Migration]:
    """List the migrations in order: this package's own, or those of a directory."""
    return _read(_packaged("migrations", "migrations") if directory is None else directory)


def modules(directory: Path | None = None) -> tuple[str, ...]:
    """Name the modules of this package, or those of a directory, in the order of their files.

    Those that need an extension are left out: few databases have it.
    """
    left_out = needing_extensions(directory)
    named = [one.module for one in find(directory)]
    return tuple(dict.fromkeys(one for one in named if one is not None and one not in left_out))


def needing_extensions(directory: Path | None = None) -> dict[str, str]:
    """Return the modules that need an extension beside pgvector, each with its extension."""
    found = find(directory)
    return {one.module: one.needs for one in found if one.module and one.needs}


def chosen(text: str | None) -> tuple[str, ...]:
    """Return the modules in a list with commas, in order; `all`: those without an extension.

    Raises InvalidInputError for a module that does not exist.
    """
    names = {name.strip() for name in (text or "").split(",")} - {""}
    if unknown := sorted(names - {*MODULES, ALL}):
        listed = "".join(f"\n  {name}: {purpose}" for name, purpose in MODULES.items())
        raise InvalidInputError(
            f"there is no module {unknown[0]!r}", remedy=f"The modules are:{listed}"
        )
    return tuple(
        name for name in MODULES if name in names or (ALL in names and name not in NOT_IN_ALL)
    )


def select(
    migrations: Sequence[Migration], chosen: Collection[str], installed: Collection[str] = ()
) -> list[Migration]:
    """List the migrations of core, and of the modules that are chosen or installed, in order.

    Raises InvalidInputError for a chosen module that does not exist or that excludes another.
    """
    known = {one.module: None for one in migrations if one.module is not None}
    for name in chosen:
        if name not in known:
            raise InvalidInputError(
                f"there is no module {name!r}", remedy=f"The modules are: {', '.join(known)}."
            )
    wanted = {None, *chosen, *installed}
    for one in migrations:
        fitting = _ONLY_WITH.search(one.sql)
        if fitting is None or one.module not in wanted:
            continue
        others = wanted - {None, one.module, *fitting[1].split(", ")}
        if others:
            raise InvalidInputError(
                f"module {one.module} cannot be with {', '.join(sorted(map(str, others)))}, whose "
                "triggers or statements need all rows in one table",
                remedy=f"Use core with {fitting[1]} alone.",
            )
    return [one for one in migrations if one.module in wanted]


def find_state() -> list[Migration]:
    """List the files of the state, which is the result of all migrations, in order."""
    return _read(_packaged("schemas", "supabase/schemas"))


def _packaged(folder: str, in_checkout: str) -> "Traversable":
    installed = resources.files("second_brain").joinpath(folder)
    # In a checkout the folder is in the repository's root, not in the package.
    return installed if installed.is_dir() else Path(__file__).parents[4] / in_checkout


def _read(place: "Traversable") -> list[Migration]:
    if not place.is_dir():
        raise ConfigurationError(
            f"there are no SQL files in {place}", remedy="Reinstall second-brain."
        )
    found = [
        Migration(name[1], name[2], file.read_text("utf-8"))
        for file in _files(place)
        if (name := _FILE_NAME.fullmatch(file.name))
    ]
    return sorted(found, key=lambda migration: migration.version)


def _files(place: "Traversable") -> "Iterator[Traversable]":
    """Walk the files of a folder and of the folders in it: those of the state are in several."""
    for one in place.iterdir():
        if one.is_dir():
            yield from _files(one)
        else:
            yield one

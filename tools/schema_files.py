"""What the files of `supabase/schemas/` create and what they name, by Postgres's own parser.

Function bodies and the text of SQL that they make are read too; comments, those of `comment on`
too, are not.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from pglast import ast, parse_sql
from pglast.parser import scan
from pglast.stream import RawStream

from second_brain.database import migrations

SCHEMAS = Path(__file__).parents[1] / "supabase" / "schemas"
EXTENSION_POINT = "-- Extension point:"

_COMMENTS_ABOVE = re.compile(r"\A(?:(?:--[^\n]*)?\n)*")
# What depends on the database is created by a block or a function.
_CREATED_IN_BODY = re.compile(r"\bcreate (?:table|view|index|function) (\w+\.\w+)")
_NAME_IN_TEXT = re.compile(r"(?:(\w+)\.)?(\w+)")
# Where a statement has the name of what it creates or changes.
_CREATES: dict[type[ast.Node], str] = {
    ast.CreateFunctionStmt: "funcname",
    ast.CreateStmt: "relation",
    ast.ViewStmt: "view",
    ast.CompositeTypeStmt: "typevar",
    ast.CreateEnumStmt: "typeName",
    ast.CreateRangeStmt: "typeName",
    ast.CreateDomainStmt: "domainname",
    ast.IndexStmt: "idxname",
    ast.CreateTrigStmt: "trigname",
    ast.CreatePolicyStmt: "policy_name",
}
_CHANGES: dict[type[ast.Node], str] = {
    ast.AlterTableStmt: "relation",
    ast.RenameStmt: "relation",
    ast.AlterFunctionStmt: "func",
}
# pglast's types say that any part of a node may be missing.
_Node = Any


@dataclass(frozen=True)
class Statement:
    """A statement with the comment above it, and its syntax tree."""

    text: str

    @cached_property
    def tree(self) -> _Node:
        """Return the syntax tree."""
        return cast(Any, parse_sql(self.text))[0].stmt

    @property
    def comment(self) -> str:
        """The comment that stands directly above the statement."""
        return self.text.removesuffix(self.definition).rpartition("\n\n")[2]

    @property
    def definition(self) -> str:
        """The statement without the comments above it."""
        return _COMMENTS_ABOVE.sub("", self.text, count=1)

    @property
    def function(self) -> str | None:
        """The function that the statement creates, `schema.name`; None for another statement."""
        is_function = isinstance(self.tree, ast.CreateFunctionStmt)
        return _dotted(self.tree.funcname) if is_function else None

    @property
    def signature(self) -> str:
        """The types of a function's arguments and of its result."""
        arguments = ((one.mode.name, one.argType) for one in self.tree.parameters or ())
        types = [f"{mode} {RawStream()(argument)}" for mode, argument in arguments]
        result = self.tree.returnType
        return f"({', '.join(types)}) {RawStream()(result) if result else ''}"

    @property
    def replaces(self) -> bool:
        """Whether it says `or replace`."""
        return bool(getattr(self.tree, "replace", False))

    @property
    def created(self) -> str | None:
        """The object that the statement creates: `schema.name`; a trigger's or policy's name."""
        slot = _CREATES.get(type(self.tree))
        return None if slot is None else _name(self.tree, slot)

    @property
    def changed(self) -> str | None:
        """The object that the statement alters or drops."""
        if isinstance(self.tree, ast.DropStmt):
            first, *_ = cast(Any, self.tree.objects)
            return _dotted(getattr(first, "objname", first))
        slot = _CHANGES.get(type(self.tree))
        return None if slot is None else _name(self.tree, slot)

    @cached_property
    def named(self) -> frozenset[str]:
        """Every name in the statement, with its schema where the statement gives one."""
        if isinstance(self.tree, ast.CommentStmt):
            return frozenset()
        return frozenset(_names(self.text))


@dataclass(frozen=True)
class SchemaFile:
    """One file of the state."""

    path: Path

    @property
    def module(self) -> str | None:
        """The module whose folder has the file; None for core."""
        folder = self.path.parent
        return folder.name if folder.parent.name == "modules" else None

    @cached_property
    def text(self) -> str:
        """Return the text."""
        return self.path.read_text("utf-8")

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """Return the statements in order."""
        return tuple(Statement(text) for _, text in migrations.statements(self.text))

    @cached_property
    def created(self) -> frozenset[str]:
        """The objects that the file creates."""
        in_bodies = (
            name
            for one in self.statements
            if isinstance(one.tree, ast.DoStmt | ast.CreateFunctionStmt)
            for name in _CREATED_IN_BODY.findall(re.sub("--[^\n]*", "", one.text))
        )
        return frozenset([*in_bodies, *filter(None, (one.created for one in self.statements))])

    @property
    def functions(self) -> list[Statement]:
        """The statements that create functions."""
        return [one for one in self.statements if one.function]

    @property
    def public_tables(self) -> int:
        """The number of tables that it creates in schema public."""
        created = (one.created for one in self.statements if isinstance(one.tree, ast.CreateStmt))
        return sum(name is not None and name.startswith("public.") for name in created)

    def uses(self, objects: frozenset[str]) -> Iterator[tuple[str, str]]:
        """Find each of these objects that the file names, with the statement that names it."""
        # What is in schema public can be named without it.
        spelled = {one: one for one in objects}
        spelled |= {one.removeprefix("public."): one for one in objects}
        for statement in self.statements:
            place = statement.created or statement.text.partition("\n")[0]
            for name in sorted({spelled[one] for one in statement.named & spelled.keys()}):
                yield place, name


def read(folder: Path = SCHEMAS) -> list[SchemaFile]:
    """List the files: those of core in the order of reading, then those of the modules."""
    return [SchemaFile(path) for path in sorted(folder.rglob("*.sql"), key=lambda path: path.name)]


def core(files: Sequence[SchemaFile]) -> list[SchemaFile]:
    """Return the files of core, in the order of reading."""
    return [one for one in files if one.module is None]


def objects(files: Sequence[SchemaFile]) -> frozenset[str]:
    """Return what these files create."""
    return frozenset().union(*(one.created for one in files))


def homes(files: Sequence[SchemaFile]) -> dict[str, SchemaFile]:
    """Return the first file that creates each object."""
    found: dict[str, SchemaFile] = {}
    for file in files:
        for name in file.created:
            found.setdefault(name, file)
    return found


def extension_points(files: Sequence[SchemaFile]) -> dict[str, Statement]:
    """Return the functions of core that a module may replace, by name."""
    return {
        cast(str, one.function): one
        for file in core(files)
        for one in file.functions
        if any(line.startswith(EXTENSION_POINT) for line in one.comment.splitlines())
    }


def in_circles(files: Sequence[SchemaFile]) -> list[SchemaFile]:
    """Return the files that use, directly or not, a file that uses them."""
    created = objects(files)
    home = homes(files)
    used = {
        file.path: {home[name].path for _, name in file.uses(created)} - {file.path}
        for file in files
    }

    def reached(start: Path) -> set[Path]:
        found: set[Path] = set()
        ahead = set(used[start])
        while ahead:
            one = ahead.pop()
            found.add(one)
            ahead |= used[one] - found
        return found

    return [file for file in files if file.path in reached(file.path)]


def _dotted(names: Any) -> str:
    return ".".join(str(one.sval) for one in names if isinstance(one, ast.String))


def _name(tree: Any, slot: str) -> str | None:
    """Return `schema.name`; the bare name of a trigger or policy, which is on a table."""
    found = getattr(tree, slot)
    if isinstance(found, ast.RangeVar):
        return f"{found.schemaname}.{found.relname}" if found.schemaname else found.relname
    if isinstance(found, ast.ObjectWithArgs):
        return _dotted(found.objname)
    if isinstance(found, tuple):
        return _dotted(found)
    return f"{tree.relation.schemaname}.{found}" if slot == "idxname" else found


def _names(text: str) -> Iterator[str]:
    """Find names outside of comments: in code, in bodies and in the words of constants."""
    before: list[str] = []
    for token in scan(text):
        word = text[token.start : token.end + 1]
        body = re.fullmatch(r"(\$\w*\$)(.*)\1", word, re.DOTALL)
        if "COMMENT" in token.name:
            continue
        if body:
            yield from _names(body[2])
        elif token.name == "SCONST":
            for schema, name in _NAME_IN_TEXT.findall(word):
                yield f"{schema}.{name}" if schema else name
        else:
            name = word.strip('"') if word.startswith('"') else word.lower()
            yield f"{before[0]}.{name}" if before[1:] == ["."] else name
            before = [*before[-1:], name]

"""The SQL functions that can be called over psycopg and REST: arguments, and what they return.

They are read from a file that is generated from the SQL.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, LiteralString

from second_brain.services.arguments import ARGUMENTS
from second_brain.services.install import Install
from second_brain.sql_modules import objects

Returns = Literal["rows", "row", "value"]
"""A list of rows, one row of a composite type, or one value."""

VECTOR = "extensions.vector"


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the install's schema: the SQL types of its arguments, and what it returns.

    A call that `writes` is not repeated after a lost connection.
    """

    name: str
    arguments: Mapping[str, str]
    returns: Returns
    writes: bool = False


@cache
def functions() -> Mapping[str, Function]:
    """Return the functions of core and of all modules, by name.

    Not one whose arguments and language an install decides.
    """
    return {name: Function(name, **one) for name, one in objects()["functions"].items()}


@cache
def integers(function: str) -> tuple[str, ...]:
    """Return the arguments of a function that are integers."""
    kinds = functions()[function].arguments
    return tuple(name for name, kind in kinds.items() if kind in ("integer", "bigint"))


@cache
def statement(install: Install, name: str, given: tuple[str, ...]) -> bytes:
    """Return the statement, for psycopg, that calls a function with the given arguments."""
    kinds = functions()[name].arguments
    arguments = ", ".join(
        # pgvector can be in another schema: the function's argument says the type.
        f"{one} => %({one})s" + ("" if kinds[one] == VECTOR else f"::{kinds[one]}")
        for one in given
    )
    # It has names of this module only.
    text: LiteralString = f"select * from public.{name}({arguments})"  # noqa: S608
    return install.statement(text)


def packed(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the SQL function takes them.

    Searches have named arguments. Functions that count, explain or compare searches take those of
    the search as one object, `search`.
    """
    if "search" not in functions()[function].arguments:
        return arguments
    names = {one.sql_name for one in ARGUMENTS.values()}
    search = {name: value for name, value in arguments.items() if name in names}
    others = {name: value for name, value in arguments.items() if name not in names}
    return {"search": search, **others}

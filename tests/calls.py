"""Arguments of a search as each SQL function takes them: named, or as one object."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from psycopg.types.json import Jsonb

from second_brain.services.arguments import packed


def taken(function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call; those of a search as `search` where the function has that."""
    given = packed(function, dict(arguments))
    if "search" in given:
        plain = {
            name: value.obj if isinstance(value, Jsonb) else value
            for name, value in given["search"].items()
        }
        given["search"] = Jsonb(plain, dumps=partial(json.dumps, default=str))
    return given

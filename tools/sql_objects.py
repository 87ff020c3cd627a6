"""Writes what clients know of the SQL: functions with arguments and answers, names of modules."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from second_brain.database.catalogue import CORE, Catalogue, Manifest

_NAME = re.compile(r"function public\.(\w+)\((.*)\)")
_OBJECT = re.compile(r"(?:function|table|view|type) \w+\.(\w+)(?:\(.*)?")

# Volatile, but a call that is sent twice does no harm: a lost line of the query log is worse than a
# line twice, and the results of searches stay the same.
_REPEATED = ("estimate_hybrid_search", "record_knowledge_queries")


def dump(manifest: Manifest) -> str:
    """Return the file: a line for each function, and one for each object of a module."""
    sections = {CORE: manifest.core, **manifest.modules}
    functions = (
        f"{json.dumps(name)}: {json.dumps(one)}"
        for section in sections.values()
        for name, one in _functions(section)
    )
    modules = (
        f"{json.dumps(module)}: {_braced(map(json.dumps, _names(one, manifest.core)), '[]')}"
        for module, one in manifest.modules.items()
    )
    parts = {"functions": _braced(functions), "modules": _braced(modules)}
    return _braced(f"{json.dumps(name)}: {part}" for name, part in parts.items())


def _braced(members: Iterator[str], braces: str = "{}") -> str:
    return braces[0] + "\n" + ",\n".join(members) + "\n" + braces[1]


def _names(objects: Catalogue, core: Catalogue) -> list[str]:
    found = (_OBJECT.fullmatch(name) for name in objects if name not in core)
    return sorted({one[1] for one in found if one})


def _functions(objects: Catalogue) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the public functions; of one that an install makes, the manifest has its name only."""
    for name, definition in sorted(objects.items()):
        found = _NAME.fullmatch(name)
        if found is None or "volatility" not in definition:
            continue
        arguments, rest = {}, definition.get("arguments", "")
        for kind in found[2].split(", ") if found[2] else ():
            # A default may have commas: the types say which words are names.
            _, argument, rest = re.split(rf"\b(\w+) {re.escape(kind)}(?!\w)", rest, maxsplit=1)
            arguments[argument] = kind
        returned = definition["returns"]
        returns = "row" if returned.startswith("public.") else "value"
        if returned.startswith(("SETOF ", "TABLE(")):
            returns = "rows"
        writes = definition["volatility"] == "v" and found[1] not in _REPEATED
        yield found[1], {"arguments": arguments, "returns": returns, "writes": writes}

"""The blocks that `npx shadcn add` installs: `make registry` writes registry.json.

A block copies files of this repository into a project: the migrations of core, Edge Functions, or
both. The format is https://ui.shadcn.com/schema/registry.json.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from second_brain.database import migrations

ROOT = Path(__file__).parents[1]
REGISTRY = ROOT / "registry.json"
FUNCTIONS = ROOT / "supabase" / "functions"
BLOCKS = ROOT / "supabase" / "blocks"

_IMPORT = re.compile(r"""from\s+["'](\.[^"']+)["']""")
_PUSH = "supabase db push --include-all"
_DEPLOY = {
    "search": "supabase functions deploy search",
    "mcp": "supabase functions deploy mcp --no-verify-jwt",
}


def registry() -> dict[str, Any]:
    """Return the registry, with one block of everything first."""
    return {
        "$schema": "https://ui.shadcn.com/schema/registry.json",
        "name": "second-brain",
        "homepage": "https://example.org/second-brain",
        "items": [
            _block(
                "second-brain",
                "Hybrid search for Supabase",
                "The migrations, the Edge Function search, and the Edge Function mcp.",
                [*_migrations(), *_function("search"), *_function("mcp")],
                [_PUSH, *_DEPLOY.values()],
            ),
            _block(
                "migrations",
                "Hybrid search in SQL",
                "The migrations of core, for embeddings of gte-small (384 dimensions).",
                _migrations(),
                [_PUSH],
            ),
            _block(
                "search",
                "Search as an Edge Function",
                "Embeds the question with gte-small, and searches as the signed-in user.",
                _function("search"),
                [_DEPLOY["search"]],
            ),
            _block(
                "mcp",
                "Search for assistants",
                "An Edge Function that is an MCP server: assistants sign in with Supabase Auth.",
                _function("mcp"),
                [_DEPLOY["mcp"]],
            ),
        ],
    }


def written() -> str:
    """Return the text of registry.json."""
    return json.dumps(registry(), indent=2) + "\n"


def _block(
    name: str, title: str, description: str, files: Iterable[tuple[Path, str]], steps: list[str]
) -> dict[str, Any]:
    return {
        "name": name,
        "type": "registry:item",
        "title": title,
        "description": description,
        "docs": "Next:\n" + "\n".join(f"  {step}" for step in steps),
        "files": [
            {
                "path": path.relative_to(ROOT).as_posix(),
                "type": "registry:file",
                "target": f"~/supabase/{target}",
            }
            for path, target in dict(files).items()
        ],
    }


def _migrations() -> Iterator[tuple[Path, str]]:
    """Yield the files of core under names that `second-brain init` recognizes in a project."""
    core = [ROOT / "migrations" / one.file_name for one in migrations.find() if one.module is None]
    # The dimensions before the views that read the column, which is in the second file.
    files = [*core[:2], BLOCKS / "gte_small.sql", *core[2:], BLOCKS / "new_install.sql"]
    for number, path in enumerate(files, start=1):
        yield path, f"migrations/20260101{number:06d}_second_brain_{path.name}"


def _function(name: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of a function, and those that they import."""
    folder = FUNCTIONS / name
    waiting = [folder / "index.ts", *sorted(folder.glob("deno.json"))]
    seen = set()
    while waiting:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        yield path, path.relative_to(FUNCTIONS.parent).as_posix()
        if path.suffix == ".ts":
            imports = _IMPORT.findall(path.read_text("utf-8"))
            waiting += [(path.parent / one).resolve() for one in imports]


if __name__ == "__main__":
    REGISTRY.write_text(written(), "utf-8")

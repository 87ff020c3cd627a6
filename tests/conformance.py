"""MCP's official conformance runner, run by Deno against a server over HTTP.

It is made for a reference server: most scenarios call its tools, prompts and resources, or features
that a search server does not offer, such as prompts and sessions. These are in OTHERS; everything
else must pass.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DENO = ROOT / "node_modules" / ".bin" / "deno"
RUNNER = ROOT / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
REVISIONS = ("2026-07-28", "2025-11-25")

OTHERS = (
    *("tools-call-", "json-schema-", "http-custom-header-", "resources-read-", "resources-templat"),
    *("prompts-", "completion-", "logging-", "resources-subscribe", "resources-unsubscribe"),
    *("elicitation-", "input-required-result-", "tasks-", "server-sse-", "server-session-"),
)
"""How the names of scenarios begin that need the reference server."""

# Single checks of the other scenarios.
_NEEDS_ITS_TOOL = re.compile(
    r"Not testable: server does not list the diagnostic tool"
    r"|(prompts|resources|resources/templates)/list returned JSON-RPC error -32601"
)

needs_runner = pytest.mark.skipif(
    not (DENO.exists() and RUNNER.exists()), reason="the conformance runner is absent: make cli"
)


def conformance(
    url: str, revision: str, place: Path, others: tuple[str, ...] = ()
) -> tuple[dict[str, int], list[str]]:
    """Run what a revision requires.

    Return the number of passed checks of each scenario but `others` and OTHERS, and what failed.
    """
    subprocess.run(
        [
            *(str(DENO), "run", "--allow-all", "--no-lock", "--cached-only"),
            *("--node-modules-dir=manual", str(RUNNER), "server", "--url", url),
            *("--requirements", revision, "--output-dir", str(place / revision)),
        ],
        cwd=ROOT,
        env={**os.environ, "DENO_DIR": str(place / "deno"), "NO_COLOR": "1"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    passed: dict[str, int] = {}
    failed = []
    for file in sorted((place / revision).glob("*/checks.json")):
        scenario = re.sub(r"^server-(.*)-\d{4}-\d\d-\d\dT.*$", r"\1", file.parent.name)
        if scenario.startswith(OTHERS + others):
            continue
        checks = json.loads(file.read_text("utf-8"))
        passed[scenario] = sum(check["status"] == "SUCCESS" for check in checks)
        for check in checks:
            message = check.get("errorMessage") or json.dumps(check.get("details"))
            is_wrong = check["status"] in ("FAILURE", "WARNING")
            if is_wrong and not _NEEDS_ITS_TOOL.match(message):
                failed.append(f"{scenario}: {check['id']}: {message}")
    return passed, failed

"""The MCP server as MCP's own conformance runner sees it, without sessions, over HTTP."""

from pathlib import Path

import pytest

from conformance import REVISIONS, conformance, needs_runner
from mcp_clients import http_server

pytest_plugins = ("mcp_fixtures",)

pytestmark = needs_runner

SCENARIOS = {
    "2026-07-28": {
        *("server-stateless", "tools-list", "resources-list", "sep-2164-resource-not-found"),
        *("http-header-validation", "dns-rebinding-protection", "caching"),
    },
    "2025-11-25": {
        *("server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection")
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("revision", REVISIONS)
def test_the_server_conforms(revision: str, corpus: str, tmp_path: Path) -> None:
    with http_server(SECOND_BRAIN_DSN=corpus) as served:
        passed, failed = conformance(served.url, revision, tmp_path)
    print(revision, passed)
    assert failed == []
    assert passed.keys() == SCENARIOS[revision]

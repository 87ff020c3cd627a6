"""Values from options, variables and the configuration file: which one counts, and who says so."""

import json
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from command_line import Done, Run, hits, write_docs
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn

PASSWORD = "hunter2"
NOWHERE = f"postgresql://somebody:{PASSWORD}@127.0.0.1:1/nowhere"


def told(done: Done) -> dict[str, tuple[Any, Any]]:
    """Return the value and the source of each key, as `config --json` prints them."""
    assert done.code == 0, done.err
    return {one["key"]: (one["value"], one["source"]) for one in json.loads(done.out)["values"]}


def error(done: Done) -> dict[str, Any]:
    """Return the error that a command with --json prints as its last line."""
    found: dict[str, Any] = json.loads(done.err.splitlines()[-1])["error"]
    assert found.keys() == {"kind", "code", "message", "remedy"}
    return found


def test_an_option_replaces_the_variable_the_variable_the_file_the_file_the_default(
    run: Run, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_docs(tmp_path / "docs")
    file = tmp_path / "second-brain.toml"
    monkeypatch.setenv("SECOND_BRAIN_DSN", dsn)
    assert run("ingest", "docs").code == 0

    def count(*options: str) -> int:
        return len(hits(run("search", "key fruit", "--json", *options)))

    assert (count(), told(run("server", "config", "--json"))["search.limit"]) == (3, (None, None))
    file.write_text("[search]\nlimit = 2")
    assert count() == 2
    assert told(run("server", "config", "--json"))["search.limit"] == ("2", str(file))
    monkeypatch.setenv("SEARCH_DEFAULT_LIMIT", "1")
    assert count() == 1
    assert told(run("server", "config", "--json"))["search.limit"] == ("1", "$SEARCH_DEFAULT_LIMIT")
    assert count("--limit", "3") == 3


def test_the_file_gives_the_database_the_schema_and_the_embedder(
    run: Run, dsn: str, tmp_path: Path
) -> None:
    write_docs(tmp_path / "docs")
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.second-brain]\ndsn = "{dsn}"\nembedder = "nosuch"\n'
    )
    done = run("ingest", "docs")
    assert done.code == 1
    assert "unknown embedder 'nosuch'" in done.err
    assert f"from {tmp_path / 'pyproject.toml'}" in done.err
    assert run("ingest", "docs", "--embedder", "wordllama").code == 0
    (tmp_path / "second-brain.toml").write_text(f'dsn = "{dsn}"\nschema = "elsewhere"\n')
    assert "no knowledge tables in schema elsewhere" in run("search", "key").err


def test_the_nearest_file_counts_and_a_pyproject_without_the_table_does_not(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = tmp_path / "package" / "module"
    inner.mkdir(parents=True)
    (tmp_path / "second-brain.toml").write_text('schema = "outer"')
    (tmp_path / "package" / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100")
    monkeypatch.chdir(inner)
    assert told(run("server", "config", "--json"))["schema"][0] == "outer"
    (inner / "second-brain.toml").write_text("[search]\nvector_weight = 0.5")
    found = told(run("server", "config", "--json"))
    assert (found["schema"][0], found["search.vector-weight"][0]) == (None, "0.5")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('embeder = "wordllama"', "unknown key 'embeder'; Did you mean embedder?"),
        ("[search]\nfusoin = 'rrf'", "unknown key 'search.fusoin'; Did you mean search.fusion?"),
        ("[search]\nlimit = 0", "search.limit: Input should be greater than or equal to 1"),
        ("supabase-key = 'x'", "supabase-key is a secret; Set the environment variable SUPABASE"),
        ("schema = ", "Invalid value (at end of document)"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_file_and_the_key(
    run: Run, tmp_path: Path, content: str, named: str
) -> None:
    (tmp_path / "second-brain.toml").write_text(content)
    done = run("search", "key", "--json")
    assert done.code == 1
    found = error(done)
    assert str(tmp_path / "second-brain.toml") in found["message"]
    what, _, remedy = named.partition("; ")
    assert what in found["message"]
    assert remedy in found["remedy"]


def test_a_wrong_variable_is_named_without_its_value(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECOND_BRAIN_VIEWER_ID", PASSWORD)
    done = run("search", "key")
    assert done.code == 1
    assert "$SECOND_BRAIN_VIEWER_ID: Input should be a valid UUID" in done.err
    assert PASSWORD not in done.err
    # It is no value of this command.
    assert "VIEWER" not in run("corpus", "list").err
    # Without a viewer, every row would be visible.
    monkeypatch.setenv("SECOND_BRAIN_VIEWER_ID", "")
    assert run("server", "mcp").code == 1


def test_a_viewer_of_the_file_limits_each_search(run: Run, dsn: str, tmp_path: Path) -> None:
    write_docs(tmp_path / "docs")
    owner = "00000000-0000-0000-0000-000000000001"
    file = tmp_path / "second-brain.toml"
    file.write_text(f'dsn = "{dsn}"')
    assert run("ingest", "docs", "--owner", owner).code == 0
    file.write_text(f'dsn = "{dsn}"\nviewer-id = "{owner}"')
    assert len(hits(run("search", "key", "--json"))) == 3
    assert not hits(run("search", "key", "--json", "--viewer-id", owner.replace("1", "2")))
    file.write_text(f'dsn = "{dsn}"\nviewer-id = "{owner.replace("1", "2")}"')
    assert not hits(run("search", "key", "--json"))
    file.write_text(f'dsn = "{dsn}"\npublic-only = true')
    assert not hits(run("search", "key", "--json"))
    file.write_text(f'dsn = "{dsn}"\nviewer-groups = []')
    assert not hits(run("search", "key", "--json"))


def test_secrets_are_not_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECOND_BRAIN_DSN", NOWHERE)
    monkeypatch.setenv("SUPABASE_KEY", PASSWORD)
    monkeypatch.setenv("SECOND_BRAIN_MCP_TOKEN", PASSWORD)
    shown = told(run("server", "config", "--json"))
    assert "host=127.0.0.1" in shown["dsn"][0]
    assert shown["supabase-key"] == ("***", "$SUPABASE_KEY")
    printed = run("server", "config")
    assert "password=***" in printed.out.replace("\n", "")
    assert PASSWORD not in printed.out + printed.err + json.dumps(shown)
    monkeypatch.setenv("SECOND_BRAIN_DSN", f"postgresql://a:{PASSWORD}@b:c@d/e")
    assert PASSWORD not in run("server", "config").out


def test_a_password_in_a_file_that_git_shares_is_warned_of(run: Run, tmp_path: Path) -> None:
    (tmp_path / "second-brain.toml").write_text(f'dsn = "{NOWHERE}"')
    assert "warning" not in run("corpus", "list").err
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert "second-brain.toml has a password, and git does not ignore the file" in (
        run("corpus", "list").err
    )
    assert "warning: " in run("server", "config").err
    (tmp_path / ".gitignore").write_text("second-brain.toml")
    assert "warning" not in run("corpus", "list").err
    (tmp_path / ".gitignore").unlink()
    (tmp_path / "second-brain.toml").write_text('dsn = "postgresql://127.0.0.1:1/nowhere"')
    assert "warning" not in run("corpus", "list").err


@pytest.fixture
def embeddings() -> Iterator[tuple[str, list[str | None]]]:
    """The address of a stand-in for a server with OpenAI's API, and the keys that it gets."""
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            keys.append(self.headers["authorization"])
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            vector = [1.0] + [0.0] * 255
            data = [{"index": place, "embedding": vector} for place, _ in enumerate(asked["input"])]
            body = json.dumps({"object": "list", "model": "tiny", "data": data}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1", keys
        server.shutdown()


def test_an_address_of_the_file_never_gets_the_key_for_openai(
    run: Run,
    dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    embeddings: tuple[str, list[str | None]],
) -> None:
    address, keys = embeddings
    write_docs(tmp_path / "docs")
    monkeypatch.setenv("OPENAI_API_KEY", "for-openai-only")
    (tmp_path / "second-brain.toml").write_text(
        f'dsn = "{dsn}"\nembedder = "openai:tiny@256"\nembedder-address = "{address}"'
    )
    assert run("ingest", "docs").code == 0
    assert set(keys) == {None}
    monkeypatch.setenv("SECOND_BRAIN_EMBEDDER_KEY", "for-this-server")
    assert len(hits(run("search", "key", "--mode", "vector", "--json"))) == 3
    assert keys[-1] == "Bearer for-this-server"


def test_wrong_usage_with_json_is_json_too(run: Run) -> None:
    for arguments in (["search", "--json"], ["search", "x", "--limit", "0", "--json"], ["x"]):
        done = run(*arguments, *(["--json"] if "--json" not in arguments else []))
        assert (done.code, done.out, error(done)["kind"]) == (2, "", "usage")
    # After the dashes it is a text.
    assert "error: no database is given" in run("search", "--", "--json").err


def test_an_error_of_the_database_with_json_has_its_code(run: Run, dsn: str) -> None:
    done = run("search", "x", "--mode", "text", "--rrf-k", "-1", "--json", "--dsn", dsn)
    assert (done.code, done.out) == (1, "")
    found = error(done)
    assert (found["kind"], found["code"]) == ("invalid_input", "22023")
    assert "rrf_k" in found["message"]


def test_a_pyproject_of_another_project_is_not_read(run: Run, tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text("name = {{ a template }}")
    assert json.loads(run("server", "config", "--json").out)["file"] is None
    project.write_text('[tool]\nname = "second-brain"')
    assert json.loads(run("server", "config", "--json").out)["file"] is None
    project.write_text("[tool.second-brain]\nschema = {{ a template }}")
    assert f"cannot read {project}" in run("server", "config").err

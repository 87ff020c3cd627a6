"""Values from options, variables and the configuration file: which one counts, and who says so."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from command_line import Done, Run, hits, write_docs
from provider_server import as_openai, provider_server
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn

PASSWORD = "hunter2"
NOWHERE = f"postgresql://somebody:{PASSWORD}@127.0.0.1:1/nowhere"


@pytest.fixture
def run(run: Run, tmp_path: Path) -> Run:
    """Run `second-brain` in a folder with three documents in `docs`."""
    write_docs(tmp_path / "docs")
    return run


def told(run: Run) -> dict[str, tuple[Any, Any]]:
    """Return the value and the source of each key, as `config --json` prints them."""
    done = run("server", "config", "--json")
    assert done.code == 0, done.err
    return {one["key"]: (one["value"], one["source"]) for one in json.loads(done.out)["values"]}


def found(run: Run, *asked: str) -> int:
    """Return the number of hits of a search."""
    return len(hits(run("search", *asked, "--json")))


def error(done: Done) -> dict[str, Any]:
    """Return the error that a command with --json prints as its last line."""
    found: dict[str, Any] = json.loads(done.err.splitlines()[-1])["error"]
    assert found.keys() == {"kind", "code", "message", "remedy"}
    return found


def test_an_option_replaces_the_variable_the_variable_the_file_the_file_the_default(
    run: Run, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "second-brain.toml"
    monkeypatch.setenv("SECOND_BRAIN_DSN", dsn)
    assert run("ingest", "docs").code == 0

    def limit(*options: str) -> tuple[int, Any]:
        return found(run, "key fruit", *options), told(run)["search.limit"]

    assert limit() == (3, (None, None))
    file.write_text("[search]\nlimit = 2")
    assert limit() == (2, ("2", str(file)))
    monkeypatch.setenv("SEARCH_DEFAULT_LIMIT", "1")
    assert limit() == (1, ("1", "$SEARCH_DEFAULT_LIMIT"))
    assert limit("--limit", "3")[0] == 3


def test_the_file_gives_the_database_the_schema_and_the_embedder(
    run: Run, dsn: str, tmp_path: Path
) -> None:
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
    assert told(run)["schema"][0] == "outer"
    (inner / "second-brain.toml").write_text("[search]\nvector_weight = 0.5")
    values = told(run)
    assert (values["schema"][0], values["search.vector-weight"][0]) == (None, "0.5")


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
    told = error(done)
    assert str(tmp_path / "second-brain.toml") in told["message"]
    what, _, remedy = named.partition("; ")
    assert what in told["message"]
    assert remedy in told["remedy"]


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
    owner, stranger = (f"00000000-0000-0000-0000-00000000000{one}" for one in "12")
    file = tmp_path / "second-brain.toml"
    file.write_text(f'dsn = "{dsn}"')
    assert run("ingest", "docs", "--owner", owner).code == 0
    for limit, count in (
        (f'viewer-id = "{owner}"', 3),
        (f'viewer-id = "{stranger}"', 0),
        ("public-only = true", 0),
        ("viewer-groups = []", 0),
    ):
        file.write_text(f'dsn = "{dsn}"\n{limit}')
        assert found(run, "key") == count, limit
    file.write_text(f'dsn = "{dsn}"\nviewer-id = "{owner}"')
    assert found(run, "key", "--viewer-id", stranger) == 0


def test_secrets_are_not_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECOND_BRAIN_DSN", NOWHERE)
    monkeypatch.setenv("SUPABASE_KEY", PASSWORD)
    monkeypatch.setenv("SECOND_BRAIN_MCP_TOKEN", PASSWORD)
    shown = told(run)
    assert "host=127.0.0.1" in shown["dsn"][0]
    assert shown["supabase-key"] == ("***", "$SUPABASE_KEY")
    printed = run("server", "config")
    assert "password=***" in printed.out.replace("\n", "")
    assert PASSWORD not in printed.out + printed.err + json.dumps(shown)
    monkeypatch.setenv("SECOND_BRAIN_DSN", f"postgresql://a:{PASSWORD}@b:c@d/e")
    assert PASSWORD not in run("server", "config").out


def test_a_password_in_a_file_that_git_shares_is_warned_of(run: Run, tmp_path: Path) -> None:
    def warning() -> bool:
        return "warning: " in run("corpus", "list").err

    file, ignored = tmp_path / "second-brain.toml", tmp_path / ".gitignore"
    file.write_text(f'dsn = "{NOWHERE}"')
    assert not warning()
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    told = "second-brain.toml has a password, and git does not ignore the file"
    assert told in run("corpus", "list").err
    assert "warning: " in run("server", "config").err
    ignored.write_text(file.name)
    assert not warning()
    ignored.unlink()
    file.write_text('dsn = "postgresql://127.0.0.1:1/nowhere"')
    assert not warning()


def test_an_address_of_the_file_never_gets_the_key_for_openai(
    run: Run, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "for-openai-only")
    vector = [1.0] + [0.0] * 255
    with provider_server() as api:
        api.answer = lambda request: as_openai([vector] * len(request.body["input"]))
        (tmp_path / "second-brain.toml").write_text(
            f'dsn = "{dsn}"\nembedder = "openai:tiny@256"\nembedder-address = "{api.url}/v1"'
        )
        assert run("ingest", "docs").code == 0
        assert {request.headers.get("authorization") for request in api.requests} == {None}
        monkeypatch.setenv("SECOND_BRAIN_EMBEDDER_KEY", "for-this-server")
        assert found(run, "key", "--mode", "vector") == 3
        assert api.requests[-1].headers["authorization"] == "Bearer for-this-server"


def test_wrong_usage_with_json_is_json_too(run: Run) -> None:
    for arguments in (["search", "--json"], ["search", "x", "--limit", "0", "--json"], ["x"]):
        done = run(*arguments, *(["--json"] if "--json" not in arguments else []))
        assert (done.code, done.out, error(done)["kind"]) == (2, "", "usage")
    # After the dashes it is a text.
    assert "error: no database is given" in run("search", "--", "--json").err


def test_an_error_of_the_database_with_json_has_its_code(run: Run, dsn: str) -> None:
    done = run("search", "x", "--mode", "text", "--rrf-k", "-1", "--json", "--dsn", dsn)
    assert (done.code, done.out) == (1, "")
    told = error(done)
    assert (told["kind"], told["code"]) == ("invalid_input", "22023")
    assert "--rrf-k" in told["message"]


def test_a_pyproject_of_another_project_is_not_read(run: Run, tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    for text in ("name = {{ a template }}", '[tool]\nname = "second-brain"'):
        project.write_text(text)
        assert json.loads(run("server", "config", "--json").out)["file"] is None
    project.write_text("[tool.second-brain]\nschema = {{ a template }}")
    assert f"cannot read {project}" in run("server", "config").err

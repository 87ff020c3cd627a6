"""Two databases, the tenants in them, and what tests do with a tenant."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import Run, runner
from conftest import Server, copy_of
from second_brain.distributed.tenant_directory import FileDirectory
from second_brain.distributed.tenants import Tenants

NOWHERE = "postgresql://somebody:hunter2@127.0.0.1:1/nowhere"


@pytest.fixture
def databases(server: Server) -> Iterator[dict[str, str]]:
    """Two databases by name, as the owner, who is not a superuser; each with an install."""
    makers = [copy_of(server, server.template(3)) for _ in range(2)]
    yield {name: next(maker) for name, maker in zip(("eu", "us"), makers, strict=True)}
    for maker in makers:
        next(maker, None)


@pytest.fixture
def directory(tmp_path: Path) -> FileDirectory:
    """An empty directory in a file, not cached."""
    path = tmp_path / "tenants.toml"
    path.write_text("# ours\n[databases]\neu = 'EU'\nus = 'US'\n\n[tenants]\n")
    return FileDirectory(path, cached_for=0)


@pytest.fixture
def tenants(databases: dict[str, str], directory: FileDirectory) -> Iterator[Tenants]:
    """The tenants of the directory."""
    with Tenants(directory, databases, max_connections=12, per_database=6) as made:
        yield made


def add(tenants: Tenants, tenant: str, key: str, text: str = "") -> None:
    tenants.write(
        tenant,
        lambda writer: writer.upsert_document(
            {"external_key": key},
            [{"content": f"{key} of {tenant} {text}"}],
        ),
    )


def delete(tenants: Tenants, tenant: str, key: str, wait: float = 30) -> None:
    tenants.write(tenant, lambda writer: writer.delete_document(key), wait=wait)


def keys(tenants: Tenants, tenant: str, text: str) -> list[str]:
    hits, _ = tenants.for_tenant(tenant).find(None, text, top_k=1000)
    return sorted(str(hit.metadata["external_key"]) for hit in hits)


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    directory: FileDirectory,
    databases: dict[str, str],
) -> Run:
    """Run second-brain with the directory and its databases, one of which does not exist."""
    run = runner(monkeypatch, capsys, tmp_path)
    text = directory._path.read_text().replace("us = 'US'", "us = 'US'\ndead = 'NOWHERE'")
    directory._path.write_text(text)
    monkeypatch.setenv("SECOND_BRAIN_TENANTS", str(directory._path))
    for name, dsn in {**databases, "nowhere": NOWHERE}.items():
        monkeypatch.setenv(name.upper(), dsn)
    return run

"""Moving a tenant to another place while it is searched and written, and after a kill."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tenanted import add, databases, delete, directory, keys, run, tenants

from command_line import Run
from second_brain.database import doctor
from second_brain.distributed import moving
from second_brain.distributed.tenant_directory import FileDirectory, Place, WritableDirectory
from second_brain.distributed.tenants import Tenants
from second_brain.errors import (
    ConfigurationError,
    ConflictError,
    SecondBrainError,
    TenantMovedError,
)
from second_brain.services.judgments import Judgment
from second_brain.services.write import KnowledgeWriter
from waiting import until

__all__ = ["databases", "directory", "run", "tenants"]  # fixtures


def fill(tenants: Tenants, tenant: str, modules: tuple[str, ...], count: int = 40) -> None:
    for number in range(count):
        add(tenants, tenant, f"doc{number}", "anchor beacon" if number % 2 else "cable")

    def rest(writer: KnowledgeWriter) -> None:
        from second_brain.services.corpus_settings import CorpusSettings

        writer.set_settings(CorpusSettings(collection="", fusion="auto", text_weight=2.0))
        if "insight" in modules:
            writer.set_judgments([Judgment(question="anchor?", document_key="doc1", grade=2)])

    tenants.write(tenant, rest)


def content(dsn: str, schema: str, modules: tuple[str, ...]) -> dict[str, Any]:
    """Return every row of an install, but what triggers derive and moves leave."""
    of_modules = {"judgments": "insight"}
    rows: dict[str, Any] = {}
    with psycopg.connect(dsn) as connection:
        for name in ("documents", "chunks", "judgments", "settings", "types"):
            if of_modules.get(name, "") not in ("", *modules):
                continue
            rows[name] = sorted(
                connection.execute(
                    f"select row_of.*::text from {schema}.knowledge_{name} as row_of".encode()
                ).fetchall()
            )
        if "words" in modules:
            distinct = f"select distinct word from {schema}.knowledge_words"
            rows["words"] = sorted(connection.execute(distinct.encode()))
    return rows


def move(
    databases: dict[str, str], directory: WritableDirectory, tenant: str, to: str, **options: Any
) -> moving.Moved:
    here, there = directory.find(tenant), Place.read(to)
    return moving.move(
        databases[here.database],
        here.schema,
        databases[there.database],
        there.schema,
        target=to,
        switch=lambda: directory.set(tenant, there),
        **options,
    )


def test_a_tenant_moves_while_it_is_searched_and_written(
    tenants: Tenants,
    directory: FileDirectory,
    databases: dict[str, str],
    record_property: Callable[[str, object], None],
    modules: tuple[str, ...],
) -> None:
    directory.set("acme", Place("eu"))
    fill(tenants, "acme", modules)
    is_over = threading.Event()
    wrong: list[object] = []
    written: dict[str, str] = {}
    searches = 0

    def keep_searching() -> None:
        nonlocal searches
        while not is_over.is_set():
            try:
                found = keys(tenants, "acme", "anchor")
                if len([key for key in found if key.startswith("doc")]) != 20:
                    wrong.append(found)
            except SecondBrainError as error:
                wrong.append(error)
            searches += 1

    def keep_writing(writer: int) -> None:
        number = 0
        while not is_over.is_set():
            key = f"new{writer}-{number % 7}"
            try:
                if number % 7 == 6:
                    delete(tenants, "acme", key)
                    written.pop(key, None)
                else:
                    add(tenants, "acme", key, f"turn{number}")
                    written[key] = f"turn{number}"
            except SecondBrainError as error:
                wrong.append(error)
            number += 1

    threads = [threading.Thread(target=keep_searching)]
    threads += [threading.Thread(target=keep_writing, args=[number]) for number in range(2)]
    for one in threads:
        one.start()
    try:
        moved = move(databases, directory, "acme", "us")
        before = searches
        until(lambda: searches >= before + 5)
    finally:
        is_over.set()
        for one in threads:
            one.join()
    assert wrong == []
    record_property("pause in ms", round(moved.pause))
    assert moved.changed > 0
    with psycopg.connect(databases["us"], autocommit=True) as connection:
        stored = connection.execute(
            "select external_key, content from public.knowledge_documents as document"
            " join public.knowledge_chunks as chunk on chunk.document_id = document.id"
            " where external_key like 'new%' and status = 'active'"
        ).fetchall()
        assert {key: text.split()[-1] for key, text in stored} == written
        findings = doctor.examine(connection)
    assert [one for one in findings if one.status == "error"] == []
    # The old copy refuses what a process that does not know of the move would write.
    with psycopg.connect(databases["eu"], autocommit=True) as connection:
        writer = KnowledgeWriter(connection)
        with pytest.raises(TenantMovedError) as refused:
            writer.upsert_document({"external_key": "late"}, [{"content": "late"}])
        assert refused.value.code == "SB001"
    # And back, over the old copy.
    add(tenants, "acme", "last", "quartz")
    move(databases, directory, "acme", "eu")
    assert keys(tenants, "acme", "quartz") == ["last"]
    add(tenants, "acme", "after", "quartz")
    assert keys(tenants, "acme", "quartz") == ["after", "last"]
    if "insight" in modules:
        assert content(databases["eu"], "public", modules)["judgments"]


KILLED_MOVE = """
import os, signal, sys
from pathlib import Path
from second_brain.distributed import moving
from second_brain.distributed.tenant_directory import FileDirectory, Place

path, source, target, step = sys.argv[1:]
directory = FileDirectory(path)

def end(progress):
    if progress.step.startswith(step):
        os.kill(os.getpid(), signal.SIGKILL)

def switch():
    if step == "before the switch":
        os.kill(os.getpid(), signal.SIGKILL)
    directory.set("acme", Place("us", "acme"))
    if step == "after the switch":
        os.kill(os.getpid(), signal.SIGKILL)

moving.move(source, "public", target, "acme", target="us/acme", switch=switch, on_progress=end)
"""


def test_a_move_that_is_killed_at_any_step_is_continued(
    tenants: Tenants,
    directory: FileDirectory,
    databases: dict[str, str],
    modules: tuple[str, ...],
) -> None:
    directory.set("acme", Place("eu"))
    fill(tenants, "acme", modules, 12)

    def kill_at(step: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", KILLED_MOVE, directory._path, *databases.values(), step],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, (step, done.stderr)

    steps = ["installing", "copying knowledge_chunks", "building", "comparing", "switching"]
    for number, step in enumerate(steps):
        kill_at(step)
        assert directory.find("acme") == Place("eu")
        # Searches and writes go on between the attempts.
        add(tenants, "acme", f"between{number}", "anchor")
        delete(tenants, "acme", f"doc{number}")
        assert f"between{number}" in keys(tenants, "acme", "anchor")
    with pytest.raises(ConflictError, match="a move of this tenant to us/acme has begun"):
        move(databases, directory, "acme", "us/other")
    kill_at("before the switch")
    # Closed for writes, and still searched: the next attempt only has to switch.
    assert "between0" in keys(tenants, "acme", "anchor")
    with pytest.raises(TenantMovedError):
        delete(tenants, "acme", "doc11", wait=0)
    kill_at("after the switch")
    assert directory.find("acme") == Place("us", "acme")
    old, new = (
        content(databases["eu"], "public", modules),
        content(databases["us"], "acme", modules),
    )
    assert new == old
    assert len(keys(tenants, "acme", "anchor")) == 4 + len(steps)
    add(tenants, "acme", "at the new place", "quartz")
    assert keys(tenants, "acme", "quartz") == ["at the new place"]


def test_a_move_never_deletes_what_is_at_the_target(
    tenants: Tenants,
    directory: FileDirectory,
    databases: dict[str, str],
) -> None:
    directory.set("acme", Place("eu"))
    directory.set("globex", Place("us"))
    add(tenants, "globex", "globex/1", "anchor")
    with pytest.raises(ConfigurationError, match="has documents, which the move would delete"):
        move(databases, directory, "acme", "us")
    assert keys(tenants, "globex", "anchor") == ["globex/1"]
    assert moving.cancel(databases["eu"])
    assert not moving.cancel(databases["eu"])
    add(tenants, "acme", "acme/1")


def test_a_tenant_is_moved_by_a_command(run: Run) -> None:
    run("server", "tenants", "add", "acme", "eu")
    moved = run("server", "tenants", "move", "acme", "--to", "us")
    assert moved.code == 0, moved.err
    assert "acme is in us: " in moved.out
    assert "closed for writes" in moved.err
    assert json.loads(run("server", "tenants", "list", "--json").out) == [
        {"tenant": "acme", "database": "us", "schema": "public"}
    ]
    assert "the directory has no tenant 'hooli'" in run("server", "tenants", "move", "hooli").err

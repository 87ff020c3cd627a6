"""skills/second-brain-setup, followed literally: its blocks run as they are on public projects.

`supabase` is Supabase's CLI against the test's database, `second-brain` the command of this
checkout.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from test_projects import PROJECTS, Project, dimensions_of

from conftest import Connection
from pages import Block, blocks

ROOT = Path(__file__).parents[2]
SKILL = (ROOT / "skills" / "second-brain-setup" / "SKILL.md").read_text("utf-8")
CLI = ROOT / "node_modules" / ".bin" / "supabase"
STEPS = {
    title: [block for block in blocks(text) if block.language == "sh"]
    for title, text in re.findall(r"^## \d\. (.+?)\n(.*?)(?=^## |\Z)", SKILL, re.M | re.DOTALL)
}
ANA, BEN = "a0000000-0000-0000-0000-00000000000a", "b0000000-0000-0000-0000-00000000000b"
# Words of the rows of the projects that are tried.
TRIED = {"guide": "printer", "membership": "team", "chunks": "turn"}
CALLS = {
    "guide": "public.hybrid_search('printer jams', '[0.1, 0.8, 0.4]', 2)",
    "membership": "public.search_pages('[1, 0, 0]')",
}

pytestmark = [
    pytest.mark.module("adoption"),
    pytest.mark.skipif(
        not CLI.exists() or shutil.which("psql") is None,
        reason="the Supabase CLI or psql is absent: make cli",
    ),
]


class Follower:
    """Somebody who runs the blocks of the skill in a project's folder."""

    def __init__(self, folder: Path, dsn: str, project: Project, words: str) -> None:
        part = psycopg.conninfo.conninfo_to_dict(dsn)
        login = f"{part['user']}:{part['password']}@{part['host']}:{part['port']}"
        self.url = f"postgresql://{login}/{part['dbname']}"
        self.folder = folder / "project"
        (self.folder / "supabase" / "migrations").mkdir(parents=True)
        (self.folder / "supabase" / "config.toml").write_text('project_id = "own"\n')
        commands = folder / "bin"
        commands.mkdir()
        python = shlex.join([sys.executable, "-c", "from second_brain.cli import main; main()"])
        (commands / "second-brain").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        # A linked project: the CLI knows where to push.
        remote = f'--remote "{self.url}"'
        (commands / "supabase").write_text(
            f'#!/bin/sh\ncase "$1" in db) set -- "$@" {remote} --yes ;; esac\nexec {CLI} "$@"\n'
        )
        for command in commands.iterdir():
            command.chmod(0o755)
        adopt = project.adopt
        self.environment = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "HOME": str(folder),
            "SUPABASE_TELEMETRY_DISABLED": "1",
            "DATABASE_URL": self.url,
            "SECOND_BRAIN_DSN": self.url,
            "TABLE": adopt[0],
            "NAME": project.name,
            "MODEL": adopt[adopt.index("--model") + 1],
            "OPTIONS": shlex.join(adopt[1 : adopt.index("--model")]),
            "WORDS": words,
            "KEY": "id",
            "USER_A": f'{{"sub": "{ANA}"}}',
            "USER_B": f'{{"sub": "{BEN}"}}',
        }

    def run(self, block: Block, **more: str) -> str:
        """Run a block as it is; return what it prints."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code],
            cwd=self.folder,
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{block.code}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def visible(connection: Connection, table: str, user: str) -> set[str]:
    """Return the keys that a user's own select shows."""
    with connection.transaction(force_rollback=True):
        connection.execute("set local role authenticated")
        connection.execute(
            "select set_config('request.jwt.claims', %s, true)", [f'{{"sub":"{user}"}}']
        )
        return {str(key) for (key,) in connection.execute(f"select id from {table}".encode())}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [one for one in PROJECTS if one.stem in TRIED], ids=lambda one: one.stem
)
def test_following_the_skill_adds_a_search_and_takes_it_away(
    path: Path, plain_dsn: str, tmp_path: Path
) -> None:
    project = Project(path)
    follower = Follower(tmp_path, plain_dsn, project, TRIED[path.stem])
    with psycopg.connect(plain_dsn, autocommit=True) as owner:
        owner.execute("create extension if not exists vector with schema extensions")
        owner.execute("set search_path = public, extensions")
        owner.execute(project.sql.encode())
        count = owner.execute(f"select count(*) from {project.adopt[0]}".encode()).fetchone()
        (look,) = STEPS["Look"]
        assert re.search(r"\bembedding\b", follower.run(look))
        for title in ("Install", "Adopt", "Let users search", "Keep the old calls"):
            for block in STEPS[title]:
                follower.run(block, DIMENSIONS=str(dimensions_of(path)))
        verify, compare = STEPS["Verify"]
        if path.stem in CALLS:
            said = follower.run(compare, CALL=CALLS[path.stem])
            assert "before 2, after 2" in said
        said = follower.run(verify)
        counts = re.search(r"^ +(\d+) \| +(\d+)$", said, re.MULTILINE)
        assert count is not None
        assert counts is not None
        assert counts.groups() == (str(count[0]), str(count[0]))
        for user, printed in zip((ANA, BEN), said.split("set_config")[1:], strict=True):
            found = dict(re.findall(r"^ (\S+) +\| .* \| ([tf])$", printed, re.MULTILINE))
            assert set() != set(found) <= visible(owner, project.adopt[0], user)
            assert set(found.values()) == {"t"}
        (back,) = STEPS["Roll back"]
        follower.run(back)
        left = owner.execute("select to_regnamespace('knowledge_internal') is null").fetchone()
        assert left == (True,)
        assert (
            owner.execute(f"select count(*) from {project.adopt[0]}".encode()).fetchone() == count
        )
    assert list((follower.folder / "supabase" / "migrations").iterdir()) == []


def test_the_skill_has_the_form_of_a_skill() -> None:
    found = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n", SKILL)
    assert found is not None
    assert found[1] == "second-brain-setup"
    assert 1 <= len(found[2]) <= 1024
    assert list(STEPS) == [
        *("Look", "Choose", "Install", "Adopt", "Let users search", "Keep the old calls"),
        *("Verify", "Roll back"),
    ]

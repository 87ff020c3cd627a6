"""One way to run a program to its end."""

import subprocess
from collections.abc import Mapping
from pathlib import Path


def finished(
    *command: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    given: str | None = None,
    timeout: float = 120,
) -> "subprocess.CompletedProcess[str]":
    """Run a program that gets this text, or nothing, and may fail."""
    return subprocess.run(
        [str(one) for one in command],
        cwd=cwd,
        env=env,
        input=given or "",
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def succeeded(done: "subprocess.CompletedProcess[str]") -> str:
    """Return what a program printed that did not fail."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

"""Results of the steps of a long run, in a file: a killed run continues after the last of them.

A journal has an identity (commit, options, size). Results of another identity are discarded.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")


class Journal:
    """The results of finished steps by name; they must be JSON."""

    def __init__(self, file: Path, identity: Mapping[str, Any]) -> None:
        self._file = file
        self._identity = json.loads(json.dumps(identity))
        self._steps: dict[str, Any] = {}
        if file.exists():
            found = json.loads(file.read_text("utf-8"))
            if found["identity"] == self._identity:
                self._steps = found["steps"]

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def once(self, name: str, compute: Callable[[], Result]) -> Result:
        """Return the stored result of a step, or compute and store it."""
        if name not in self._steps:
            self._steps[name] = compute()
            # A kill during the write must not destroy the earlier steps.
            new = self._file.with_suffix(".new")
            content = {"identity": self._identity, "steps": self._steps}
            new.write_text(json.dumps(content) + "\n", "utf-8")
            os.replace(new, self._file)
        result: Result = self._steps[name]
        return result

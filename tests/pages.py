"""Pages in Markdown, taken apart: their sections and their fenced blocks."""

import re
from dataclasses import dataclass

FENCE = re.compile(
    r"^```(?P<language>\w*)(?P<remark>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the rest of its info string, its code and its place."""

    language: str
    remark: str
    code: str
    code_start: int
    start: int
    end: int


def blocks(text: str) -> list[Block]:
    return [
        Block(
            language=found["language"],
            remark=found["remark"].strip(),
            code=found["code"],
            code_start=found.start("code"),
            start=found.start(),
            end=found.end(),
        )
        for found in FENCE.finditer(text)
    ]


def section(text: str, heading: str) -> str:
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found is not None, f"there is no section {heading}"
    return found[1]

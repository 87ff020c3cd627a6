"""Columns of a PDF page whose lines were drawn from one side to the other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

_LEAST_LINES = 3
# Cells of tables are shorter.
_LEAST_WORDS = 3


@dataclass(slots=True)
class Part:
    """A part of a line: its text, where it begins and ends, and the size of its letters."""

    text: str
    left: float
    right: float
    size: float


def in_columns(lines: Iterable[Sequence[Part]]) -> list[tuple[str, float]]:
    """Return the lines with their sizes, columns one after the other.

    Lines of two parts are columns if a gap goes through at least three of them, and if the parts
    on both sides are more than cells of a table.
    """
    found: list[tuple[str, float]] = []
    rows: list[Sequence[Part]] = []
    for parts in [*lines, ()]:
        if rows and not (len(parts) == len(rows[0]) and _is_divided([*rows, parts])):
            found += _read(rows)
            rows = []
        if len(parts) > 1:
            rows.append(parts)
        elif parts:
            found.append((parts[0].text, parts[0].size))
    return found


def _is_divided(rows: Sequence[Sequence[Part]]) -> bool:
    """Whether each gap between the parts goes through all rows."""
    columns = list(zip(*rows, strict=True))
    return all(
        max(part.right for part in left) < min(part.left for part in right)
        for left, right in pairwise(columns)
    )


def _read(rows: Sequence[Sequence[Part]]) -> list[tuple[str, float]]:
    columns = list(zip(*rows, strict=True))
    is_text = all(
        median(len(part.text.split()) for part in column) >= _LEAST_WORDS for column in columns
    )
    if len(rows) >= _LEAST_LINES and is_text:
        return [(part.text, part.size) for column in columns for part in column]
    return [(" ".join(part.text.strip() for part in parts), parts[0].size) for parts in rows]

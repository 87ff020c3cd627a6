"""The size of the SQL that an install reads: `make size` prints it and writes it into the README.

The goals are those of core and modules: an install that one person reads before pushing it.
"""

import sys
from collections.abc import Iterator, Sequence

from second_brain.database import migrations
from tools import schema_files
from tools.schema_files import SchemaFile

README = schema_files.SCHEMAS / "README.md"
BEGIN = "<!-- From here to the next mark: written by `make size`. -->\n"
END = "<!-- Written by `make size` to here. -->\n"


def tables() -> str:
    """Return the figures, and the files in the order of reading, as two tables."""
    files = schema_files.read()
    rows = [
        ("figure", "fb456ad", "goal", "now"),
        ("---", "---", "---", "---"),
        *_figures(files),
    ]
    header = ("file", "what it has", "lines", "functions", "longest", "comments")
    listed = [header, ("---",) * len(header), *map(_file, files)]
    return "\n".join([*map(_row, rows), "", *map(_row, listed), ""])


def _figures(files: Sequence[SchemaFile]) -> Iterator[tuple[str, str, str, str]]:
    core = schema_files.core(files)
    written = migrations.find()
    by_default = sum(_lines(one.sql) for one in written if one.module is None)
    in_all = sum(_lines(one.sql) for one in written)
    functions = [sum(len(file.functions) for file in some) for some in (core, files)]
    circles = len(schema_files.in_circles(core))
    yield "lines that `init` writes by default", "20,241", "6,500", f"{by_default:,}"
    yield "lines in all", "20,241", "13,500", f"{in_all:,}"
    yield "functions in core / in all", "342", "110 / 230", " / ".join(map(str, functions))
    yield "public tables in core", "16", "8", str(sum(file.public_tables for file in core))
    yield "files of core that are part of a circle", "15", "0", str(circles)


def _file(file: SchemaFile) -> tuple[str, ...]:
    lines = file.text.splitlines()
    comments = sum(line.lstrip().startswith("--") for line in lines)
    longest = max((_lines(one.definition) for one in file.functions), default=0)
    return (
        f"`{file.path.relative_to(schema_files.SCHEMAS).as_posix()}`",
        lines[0].partition(": ")[2].rstrip("."),
        f"{len(lines):,}",
        str(len(file.functions)),
        str(longest),
        f"{comments / len(lines):.0%}",
    )


def _lines(text: str) -> int:
    return len(text.splitlines())


def _row(cells: Sequence[str]) -> str:
    return f"|{'|'.join(cells)}|" if set(cells) == {"---"} else f"| {' | '.join(cells)} |"


def page() -> str:
    """Return the README as it should be."""
    before, begin, rest = README.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README} needs the lines {BEGIN!r} and {END!r}")
    return before + begin + tables() + end + after


def main() -> int:
    """Print the tables and write them into the README."""
    sys.stdout.write(tables())
    README.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

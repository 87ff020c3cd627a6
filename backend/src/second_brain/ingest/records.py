"""Records: a CSV file is one document with a table, a JSON Lines file a document for each line."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from second_brain.ingest.document import (
    MAX_CHARACTERS,
    SPLIT_REMEDY,
    LoadedDocument,
    UnreadableDocumentError,
    clean,
    expect,
    fields_of,
    finished,
    json_value,
    note,
    noted,
    one_line,
)
from second_brain.ingest.encoding import decode, stated
from second_brain.ingest.markdown import escaped, table, without_pictures

RECORDS = (".jsonl", ".ndjson")
"""The endings of files that have a document on each line."""

MAX_RECORDS = 1_000_000
_MAX_LINE_BYTES = 4 * MAX_CHARACTERS
_DELIMITERS = ",;\t|"
_SAMPLE_ROWS = 50
_SAMPLE_BYTES = 8_192

_TEXT_KEYS = ("text", "content", "body", "page_content")
_URL_KEYS = ("source_url", "url")


def load_csv(data: bytes, name: str) -> LoadedDocument:
    """Read a table whose first row is its header; the separator is found by counting.

    What stands above the header becomes paragraphs: comments, single cells, and all that an empty
    line divides from the table.
    """
    text = decode(data)
    stated = re.match(r"sep=(.)\r?\n", text, re.IGNORECASE)
    if stated:
        text = text[stated.end() :]
    expect(text)
    delimiter = stated[1] if stated else _delimiter(text)
    rows = [[cell.strip() for cell in row] for row in _rows(text, delimiter)]
    if text.count('"') % 2 and any("\n" in cell for cell in rows[-1]):
        note("a quotation mark is not closed: all lines after it are one cell")
    usual = _usual_length(rows)
    first = next((at for at, row in enumerate(rows) if _is_header(row, usual)), len(rows))
    for at, row in enumerate(rows[first:_SAMPLE_ROWS], start=first):
        if not any(row) and len(rows[first]) < usual:
            first = at
    filled = [row for row in rows if any(row)]
    above = [" ".join(filter(None, row)).lstrip("# ") for row in rows[:first] if any(row)]
    if len(above) == len(filled):
        above = []
    blocks = [*map(escaped, above), table(filled[len(above) :])]
    return LoadedDocument(title=name, text="\n\n".join(blocks))


def _usual_length(rows: Iterable[list[str]]) -> int:
    lengths = Counter(len(row) for _, row in zip(range(_SAMPLE_ROWS), rows, strict=False) if row)
    return max(lengths, key=lambda length: (lengths[length], length), default=0)


def _is_header(row: list[str], usual: int) -> bool:
    is_comment = row[:1] != ["#"] and "".join(row[:1]).startswith("#") and len(row) != usual
    return not is_comment and len([cell for cell in row if cell]) > (usual > 1)


def _delimiter(text: str) -> str:
    """Return the separator that cuts the most of the first rows into equally many cells."""

    def score(delimiter: str) -> tuple[int, int]:
        lengths = Counter(
            len(row) for _, row in zip(range(_SAMPLE_ROWS), _rows(text, delimiter), strict=False)
        )
        cells, rows = max(lengths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
        return (rows, cells) if cells > 1 else (0, 0)

    return max(_DELIMITERS, key=score)


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    csv.field_size_limit(MAX_CHARACTERS)
    return csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)


def find_records(
    path: Path, key: str, encoding: str | None = None
) -> list[tuple[str, Callable[[], LoadedDocument]]]:
    """List the lines of a JSON Lines file as pairs of a path and a function that loads the line.

    The path is that of the file, a slash, and the `id` of the line, or its number if it has none,
    `line-NUMBER` where another line has that id.
    Empty lines are left out. A line that is no object with a text is refused when it is loaded.
    """
    if not path.is_file():
        raise UnreadableDocumentError("is not a regular file" if path.exists() else "is not there")
    lines: list[tuple[int, int, str | None, int]] = []
    with path.open("rb") as file:
        if b"\0" in file.read(_SAMPLE_BYTES):
            raise UnreadableDocumentError(
                "is binary, or in UTF-16", remedy="Convert it to UTF-8, or leave it out."
            )
        start = file.seek(0)
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), start=1):
            if number > MAX_RECORDS:
                raise UnreadableDocumentError(
                    f"has more than {MAX_RECORDS:,} lines", remedy=SPLIT_REMEDY
                )
            if line.strip():
                lines.append((number, start, _identity(line, encoding), hash(line)))
            start += len(line)
    ends = [*(start for _, start, *_ in lines[1:]), start]
    taken = {name for _, _, name, _ in lines if name}
    found: dict[str, Callable[[], LoadedDocument]] = {}
    for (number, start, name, mark), end in zip(lines, ends, strict=False):
        if name and f"{key}/{name}" in found:
            repeated = f"has the id of an earlier line, {name}, on line {number}"
            name = _name_of_line(number, taken)
            found[f"{key}/{name}"] = partial(_refuse, repeated)
            continue
        expected = name or mark
        name = name or _name_of_line(number, taken)
        load = partial(_load_record, path, (start, end), expected, name, f"{key}/{name}", encoding)
        found[f"{key}/{name}"] = load
    return list(found.items())


def _name_of_line(number: int, taken: set[str]) -> str:
    name = str(number)
    while name in taken:
        name = f"line-{name}"
    return name


def _identity(line: bytes, encoding: str | None) -> str | None:
    try:
        with noted(), stated(encoding):
            found = json.loads(decode(line))
    # What is wrong with the line is reported when it is loaded.
    except (ValueError, RecursionError, UnreadableDocumentError):
        return None
    return _named(found.get("id")) if isinstance(found, dict) else None


def _named(value: object) -> str | None:
    return one_line(str(value)) if isinstance(value, str | int) and value is not True else None


def _load_record(
    path: Path,
    span: tuple[int, int],
    expected: str | int,
    name: str,
    key: str,
    encoding: str | None,
) -> LoadedDocument:
    with path.open("rb") as file:
        file.seek(span[0])
        line = file.read(span[1] - span[0])
    if expected not in (_identity(line, encoding), hash(line)):
        raise UnreadableDocumentError(
            "is another line than when the file was listed", remedy="Run the command again."
        )
    with noted() as notes:
        try:
            with stated(encoding):
                record = json.loads(decode(line))
        except (ValueError, RecursionError) as exc:
            raise UnreadableDocumentError(f"is not JSON: {exc}") from exc
        document = _document(record, path, name, key)
    return finished(document, notes)


def _document(record: object, path: Path, name: str, key: str) -> LoadedDocument:
    if not isinstance(record, dict):
        raise UnreadableDocumentError("is not a JSON object")
    text = next((record.pop(key) for key in _TEXT_KEYS if record.get(key) not in (None, "")), None)
    if not isinstance(text, str):
        raise UnreadableDocumentError(
            "has no text",
            remedy=f"Give each line one of the keys {', '.join(_TEXT_KEYS)}.",
        )
    # An id of another type is no name.
    if _named(record.get("id")) == name:
        del record["id"]
    metadata: dict[str, Any] = record.pop("metadata", None) or {}
    if not isinstance(metadata, dict):
        raise UnreadableDocumentError("has metadata that is no object")
    fields = fields_of(record, address_keys=_URL_KEYS)
    return LoadedDocument(
        title=fields.pop("title", None) or f"{path.stem} {name}",
        text=without_pictures(clean(text)),
        **fields,
        metadata={
            **json_value({**record, **metadata}),
            **{"path": key, "document_type": "jsonl", "source_file": path.name},
        },
    )


def _refuse(reason: str) -> LoadedDocument:
    raise UnreadableDocumentError(reason)

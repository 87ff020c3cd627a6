"""Records: a CSV file is one document with a table, a JSON Lines file a document for each line."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from second_brain.ingest.document import (
    MAX_CHARACTERS,
    LoadedDocument,
    UnreadableDocumentError,
    address,
    clean,
    day,
    decode,
    json_value,
    noted,
    one_line,
)
from second_brain.ingest.markdown import table

RECORDS = (".jsonl", ".ndjson")
"""The endings of files that have a document on each line."""

MAX_RECORDS = 1_000_000
_MAX_LINE_BYTES = 4 * MAX_CHARACTERS
_DELIMITERS = ",;\t|"
_SAMPLE_ROWS = 50
_SAMPLE_BYTES = 8_192

_TEXT_KEYS = ("text", "content", "body")
_URL_KEYS = ("source_url", "url")


def load_csv(data: bytes, name: str) -> LoadedDocument:
    """Read a table whose first row is its header; the separator is found by counting."""
    text = decode(data)
    rows = [row for row in _rows(text, _delimiter(text)) if any(cell.strip() for cell in row)]
    return LoadedDocument(title=name, text=table(rows))


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


def find_records(path: Path, key: str) -> list[tuple[str, Callable[[], LoadedDocument]]]:
    """List the lines of a JSON Lines file as pairs of a path and a function that loads the line.

    The path is that of the file, a slash, and the `id` of the line, or its number if it has none.
    Empty lines are left out. A line that is no object with a text is refused when it is loaded.
    """
    if not path.is_file():
        raise UnreadableDocumentError("is not a regular file" if path.exists() else "is not there")
    found: dict[str, Callable[[], LoadedDocument]] = {}
    with path.open("rb") as file:
        if b"\0" in file.read(_SAMPLE_BYTES):
            raise UnreadableDocumentError("is binary, not text")
        start = file.seek(0)
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), start=1):
            if number > MAX_RECORDS:
                raise UnreadableDocumentError(f"has more than {MAX_RECORDS:,} lines")
            if line.strip():
                name = _identity(line) or str(number)
                if f"{key}/{name}" in found:
                    repeated = f"has the id of an earlier line, {name}, on line {number}"
                    found[f"{key}/{number}"] = partial(_refuse, repeated)
                else:
                    found[f"{key}/{name}"] = partial(
                        _load_record, path, (start, start + len(line)), name, f"{key}/{name}"
                    )
            start += len(line)
    return list(found.items())


def _identity(line: bytes) -> str | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    value = found.get("id") if isinstance(found, dict) else None
    return one_line(str(value)) if isinstance(value, str | int) else None


def _load_record(path: Path, span: tuple[int, int], name: str, key: str) -> LoadedDocument:
    with path.open("rb") as file:
        file.seek(span[0])
        line = file.read(span[1] - span[0])
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise UnreadableDocumentError(f"is not JSON: {exc}") from exc
    if not isinstance(record, dict):
        raise UnreadableDocumentError("is not a JSON object")
    text = next((record.pop(key) for key in _TEXT_KEYS if key in record), None)
    if not isinstance(text, str):
        raise UnreadableDocumentError(
            "has no text",
            remedy=f"Give each line one of the keys {', '.join(_TEXT_KEYS)}.",
        )
    record.pop("id", None)
    with noted() as notes:
        url = address(next((record.pop(key) for key in _URL_KEYS if key in record), None))
    metadata: dict[str, Any] = record.pop("metadata", {})
    if not isinstance(metadata, dict):
        raise UnreadableDocumentError("has metadata that is no object")
    return LoadedDocument(
        title=one_line(record.pop("title", None)) or f"{path.stem} {name}",
        text=clean(text),
        author=one_line(record.pop("author", None)),
        document_date=day(record.pop("date", None)),
        source_url=url,
        metadata={
            **{name: json_value(value) for name, value in {**record, **metadata}.items()},
            **{"path": key, "document_type": "jsonl", "source_file": path.name},
        },
        notes=tuple(notes),
    )


def _refuse(reason: str) -> LoadedDocument:
    raise UnreadableDocumentError(reason)

"""Files that the tests of ingestion write, how they are loaded and stored, and what embeds them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conftest import Connection
from second_brain.ingest import (
    DocumentReport,
    FoundFiles,
    LoadedDocument,
    UnreadableDocumentError,
    find_files,
    ingest,
    split,
)

# What is stored of each file called a.md.
OF_A = {"path": "a.md", "document_type": "md", "source_file": "a.md"}


def write(path: Path, content: str | bytes = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def load(path: Path, **options: Any) -> LoadedDocument:
    (found,) = find_files([path], **options).documents
    return found.load()


def read(name: str, content: str | bytes, **options: Any) -> LoadedDocument:
    with TemporaryDirectory() as folder:
        return load(write(Path(folder) / name, content), **options)


def unreadable(message: str) -> pytest.RaisesExc[UnreadableDocumentError]:
    return pytest.raises(UnreadableDocumentError, match=message)


def sections(document: LoadedDocument) -> list[tuple[str, str]]:
    return [(chunk.heading, chunk.content) for chunk in split(document)]


def store(
    database: Connection, found: FoundFiles, embedder: Any = None, *options: Any, **more: Any
) -> dict[str, DocumentReport]:
    """Ingest what was found; return the reports by key."""
    reports = ingest(found.documents, database, embedder or CountingEmbedder(), *options, **more)
    return {report.external_key: report for report in reports}


def outcomes(reports: dict[str, DocumentReport]) -> dict[str, str]:
    return {key: report.outcome for key, report in reports.items()}


def contents(database: Connection, status: str = "active") -> dict[str, list[str]]:
    """Return the texts of the stored chunks by the key of their document."""
    rows = database.execute(
        "select external_key, array_agg(content order by chunk_index)"
        "  from public.knowledge_chunks as chunk"
        "  join public.knowledge_documents as document on document.id = chunk.document_id"
        " where status = %s group by external_key order by external_key",
        [status],
    )
    return dict(rows.fetchall())


def pdf(
    *pages: str | Sequence[tuple[int, str]],
    title: str | None = None,
    bookmarks: Sequence[tuple[str, int]] = (),
) -> bytes:
    """Write a PDF with a line on each page, or lines of several sizes, and bookmarks to pages."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        lines = [(12, text)] * bool(text) if isinstance(text, str) else text
        drawing = " ".join(
            f"BT /F1 {size} Tf 72 {700 - 40 * at} Td ({line}) Tj ET"
            for at, (size, line) in enumerate(lines)
        )
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * number} 0 R >>",
            f"<< /Length {len(drawing)} >>\nstream\n{drawing}\nendstream",
        ]
    if bookmarks:
        # The catalogue names the list of bookmarks, which is a chain.
        first = len(objects) + 2
        last = first + len(bookmarks) - 1
        objects[0] = f"<< /Type /Catalog /Pages 2 0 R /Outlines {first - 1} 0 R >>"
        objects.append(f"<< /Type /Outlines /First {first} 0 R /Last {last} 0 R >>")
        for at, (name, page) in enumerate(bookmarks, start=first):
            following = f"/Next {at + 1} 0 R" if at < last else ""
            place = f"/Dest [{4 + 2 * (page - 1)} 0 R /Fit]"
            objects.append(f"<< /Title ({name}) /Parent {first - 1} 0 R {place} {following} >>")
    objects.append(f"<< /Title ({title or ''}) /CreationDate (D:20240229120000Z) >>")
    # PDFium finds the objects without a table of their places.
    bodies = "".join(f"{at} 0 obj\n{body}\nendobj\n" for at, body in enumerate(objects, start=1))
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>\n"
    return f"%PDF-1.4\n{bodies}{trailer}%%EOF\n".encode()


class CountingEmbedder:
    """Three numbers from a text's digest; keeps what it embedded, and knows nothing of `???`."""

    dimensions = 3

    def __init__(self, model: str = "digest-3") -> None:
        self.model = model
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.embedded += texts
        digests = [hashlib.sha256(text.encode()).digest()[:3] for text in texts]
        vectors = np.array([list(digest) for digest in digests], np.float32).reshape(-1, 3) + 1
        vectors[["???" in text for text in texts]] = 0
        norms: NDArray[np.float32] = np.linalg.norm(vectors, axis=1, keepdims=True)
        norms[norms == 0] = 1
        return vectors / norms

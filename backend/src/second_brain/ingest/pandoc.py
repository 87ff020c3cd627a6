"""Formats that the program pandoc reads, where the user has installed it."""

import re
import shutil
import subprocess

from second_brain.ingest.archive import open_archive
from second_brain.ingest.document import LoadedDocument, UnreadableDocumentError, note
from second_brain.ingest.encoding import decode
from second_brain.ingest.html import from_html

_TEXT = {".org": "org", ".tex": "latex", ".typ": "typst", ".adoc": "asciidoc"}
FORMATS = {".odt": "odt", ".rtf": "rtf", ".fb2": "fb2", **_TEXT}
"""pandoc's name of the format of an ending."""

# The title of a document without one, and the page's copy of title, author and date.
_TITLES = re.compile(r"<title>-</title>|<header id=\"title-block-header\">[\s\S]*?</header>")
_SECONDS = 120
# Bounds that pandoc itself keeps: no other files, no network, and a heap.
_BOUNDS = ("--sandbox", "+RTS", "-M1g", "-RTS")


def load_by_pandoc(data: bytes, name: str, suffix: str) -> LoadedDocument:
    """Read a document as the HTML that pandoc makes of it."""
    program = shutil.which("pandoc")
    if program is None and suffix in _TEXT:
        note("it is read as plain text: pandoc, which reads its headings, is not installed")
        return LoadedDocument(title=name, text=decode(data), is_markdown=False)
    if program is None:
        raise UnreadableDocumentError(
            f"is read only with pandoc, which is not installed: {suffix}",
            remedy="Install pandoc from pandoc.org or with your package manager.",
        )
    if data.startswith(b"PK"):
        open_archive(data)
    command = [program, "--from", FORMATS[suffix], "--to", "html", "--standalone", *_BOUNDS]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_SECONDS)  # noqa: S603
    except subprocess.TimeoutExpired as exc:
        raise UnreadableDocumentError(f"takes pandoc more than {_SECONDS} seconds") from exc
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace")
        raise UnreadableDocumentError(f"cannot be read by pandoc: {reason[:300].strip()}")
    return from_html(_TITLES.sub("", done.stdout.decode("utf-8", "replace")), name)

"""Serves docs/playground: a page that installs the search in the browser and searches docs/ there.

The corpus is made of the pages of docs/ when the server starts. Everything else is served from
where it is: the migrations, the package clients/js, and PGlite from node_modules.
"""

import json
import sys
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from second_brain.ingest.loading import load_file
from second_brain.ingest.splitting import split
from second_brain.models.wordllama import WordLlamaEmbedder

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGES = ROOT / "node_modules" / "@electric-sql"
PRELUDE = ROOT / "backend" / "src" / "second_brain" / "database" / "prelude.sql"
FOLDERS = {
    "migrations": ROOT / "migrations",
    "pglite": PACKAGES / "pglite" / "dist",
    "pglite-pgvector": PACKAGES / "pglite-pgvector" / "dist",
    "second-brain": ROOT / "clients" / "js" / "dist",
}
"""What is served under which first part of a path; all else is docs/playground."""

FIRST = "permissions.md"
"""The page that is stored first, so that the question in the form has hits at once."""

NOT_SEARCHED = ("commands.md", "reference.md")
"""Long tables of names."""


def corpus() -> dict[str, object]:
    """Return the pages with their chunks and embeddings, and the files to install."""
    embedder = WordLlamaEmbedder()
    documents = []
    pages = [path for path in DOCS.glob("*.md") if path.name not in NOT_SEARCHED]
    for path in sorted(pages, key=lambda path: (path.name != FIRST, path.name)):
        loaded = load_file(path, path.name)
        chunks = split(loaded)
        vectors = embedder.embed([f"{chunk.heading}\n{chunk.content}" for chunk in chunks])
        documents.append(
            {
                "document": {
                    "external_key": path.name,
                    "title": loaded.title,
                    "visibility": "public",
                },
                "chunks": [
                    {
                        "content": chunk.content,
                        "heading": chunk.heading,
                        "embedding": [round(float(number), 4) for number in vector],
                        "embedding_model": embedder.model,
                    }
                    for chunk, vector in zip(chunks, vectors, strict=True)
                ],
            }
        )
    files = sorted(path.name for path in FOLDERS["migrations"].glob("*.sql"))
    return {"documents": documents, "migrations": files}


class _Page(SimpleHTTPRequestHandler):
    def __init__(self, made: bytes, *args: object) -> None:
        self._made = made
        super().__init__(*args, directory=str(DOCS / "playground"))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.path != "/corpus.json":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self._made)))
        self.end_headers()
        self.wfile.write(self._made)

    def translate_path(self, path: str) -> str:
        here = Path(super().translate_path(path)).relative_to(DOCS / "playground")
        if here == Path("prelude.sql"):
            return str(PRELUDE)
        folder = FOLDERS.get(here.parts[0]) if here.parts else None
        if folder is None:
            return str(DOCS / "playground" / here)
        return str(folder.joinpath(*here.parts[1:]))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(port: int = 0) -> ThreadingHTTPServer:
    """Return a server of the page on 127.0.0.1; port 0 takes a free one."""
    made = json.dumps(corpus()).encode()
    return ThreadingHTTPServer(("127.0.0.1", port), partial(_Page, made))


if __name__ == "__main__":
    if not (FOLDERS["second-brain"] / "index.js").exists():
        sys.exit("clients/js is not built: npm run build --workspace clients/js")
    with serve(8765) as server:
        print(f"http://127.0.0.1:{server.server_port} (Ctrl+C ends it)", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()

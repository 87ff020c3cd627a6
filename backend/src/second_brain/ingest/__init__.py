"""Files in, chunks in the database: loading, splitting, embedding and upserting.

It writes through `second_brain.services.postgres.KnowledgeWriter` and ranks nothing.
"""

from second_brain.ingest.loading import LoadedDocument, Source, UnreadableDocumentError, find_files
from second_brain.ingest.pipeline import DocumentReport, Labels, finish, ingest
from second_brain.ingest.splitting import Chunk, split
from second_brain.ingest.standard_library import standard_library

__all__ = [
    "Chunk",
    "DocumentReport",
    "Labels",
    "LoadedDocument",
    "Source",
    "UnreadableDocumentError",
    "find_files",
    "finish",
    "ingest",
    "split",
    "standard_library",
]

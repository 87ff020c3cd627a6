"""Files in, chunks in the database: loading, splitting, embedding and upserting.

It writes through `second_brain.services.postgres.KnowledgeWriter` and ranks nothing.
"""

from second_brain.ingest.language import DEFAULT_LANGUAGE, detect_language
from second_brain.ingest.loading import (
    LoadedDocument,
    Source,
    UnreadableDocumentError,
    find_files,
    folder_prefixes,
)
from second_brain.ingest.pipeline import DocumentReport, Labels, finish, ingest, stale_keys
from second_brain.ingest.splitting import Chunk, split
from second_brain.ingest.standard_library import KEY_PREFIX, standard_library

__all__ = [
    "DEFAULT_LANGUAGE",
    "KEY_PREFIX",
    "Chunk",
    "DocumentReport",
    "Labels",
    "LoadedDocument",
    "Source",
    "UnreadableDocumentError",
    "detect_language",
    "find_files",
    "finish",
    "folder_prefixes",
    "ingest",
    "split",
    "stale_keys",
    "standard_library",
]

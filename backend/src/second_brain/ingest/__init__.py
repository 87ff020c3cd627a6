"""Files in, chunks in the database: loading, splitting, embedding and upserting.

It writes through `second_brain.services.postgres.KnowledgeWriter` and ranks nothing.
"""

from second_brain.ingest.language import DEFAULT_LANGUAGE, detect_language
from second_brain.ingest.loading import SUPPORTED, LoadedDocument, UnreadableDocumentError
from second_brain.ingest.pipeline import (
    Change,
    DocumentReport,
    Labels,
    check_source,
    finish,
    ingest,
    stale_keys,
)
from second_brain.ingest.sources import FoundFiles, KnowledgeSource, UnreadDocument, find_files
from second_brain.ingest.splitting import Chunk, split
from second_brain.ingest.standard_library import STANDARD_LIBRARY, standard_library

__all__ = [
    "DEFAULT_LANGUAGE",
    "STANDARD_LIBRARY",
    "SUPPORTED",
    "Change",
    "Chunk",
    "DocumentReport",
    "FoundFiles",
    "KnowledgeSource",
    "Labels",
    "LoadedDocument",
    "UnreadDocument",
    "UnreadableDocumentError",
    "check_source",
    "detect_language",
    "find_files",
    "finish",
    "ingest",
    "split",
    "stale_keys",
    "standard_library",
]

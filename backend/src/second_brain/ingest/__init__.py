"""Files in, chunks in the database: loading, splitting, embedding and upserting.

It writes through `second_brain.services.postgres.KnowledgeWriter` and ranks nothing.
"""

from second_brain.ingest.document import LoadedDocument, UnreadableDocumentError
from second_brain.ingest.language import DEFAULT_LANGUAGE, detect_language
from second_brain.ingest.loading import SUPPORTED
from second_brain.ingest.pipeline import (
    check_source,
    finish,
    ingest,
    stale_keys,
)
from second_brain.ingest.reports import Change, DocumentReport, Labels
from second_brain.ingest.sources import FoundFiles, KnowledgeSource, UnreadDocument, find_files
from second_brain.ingest.splitting import DEFAULT_CHUNKING, Chunk, Chunking, split
from second_brain.ingest.web import MAX_PAGES, WebReader, is_public
from second_brain.ingest.web_answers import is_address

__all__ = [
    "DEFAULT_CHUNKING",
    "DEFAULT_LANGUAGE",
    "MAX_PAGES",
    "SUPPORTED",
    "Change",
    "Chunk",
    "Chunking",
    "DocumentReport",
    "FoundFiles",
    "KnowledgeSource",
    "Labels",
    "LoadedDocument",
    "UnreadDocument",
    "UnreadableDocumentError",
    "WebReader",
    "check_source",
    "detect_language",
    "find_files",
    "finish",
    "ingest",
    "is_address",
    "is_public",
    "split",
    "stale_keys",
]

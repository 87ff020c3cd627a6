"""The lists that the SQL has. Written by tools/lists.py: make baseline."""

from collections.abc import Mapping
from typing import Literal

Fusion = Literal[
    "rrf",
    "relative_score",
    "auto",
]
"""How both legs are fused; a search that names none uses that stored for the corpus, else
`rrf`."""

COLUMNS = (
    "chunk_index",
    "collection",
    "created_at",
    "document_date",
    "document_id",
    "embedding_model",
    "external_key",
    "id",
    "knowledge_type",
    "language",
    "owner_id",
    "sensitivity",
    "source_id",
    "source_origin",
    "text",
    "updated_at",
    "visibility",
)
"""The fields that a condition of a filter can name beside metadata."""

Operator = Literal[
    "eq",
    "ne",
    "in",
    "not_in",
    "exists",
    "is_null",
    "is_not_null",
    "gte",
    "gt",
    "lte",
    "lt",
    "between",
    "starts_with",
    "contains_text",
    "contains",
    "has_any",
    "has_all_words",
    "has_any_word",
    "has_no_word",
]
"""How a condition compares: `KINDS` has the fields that take each."""

TAKES: Mapping[Operator, str] = {
    "eq": "value",
    "ne": "value",
    "in": "values",
    "not_in": "values",
    "exists": "boolean",
    "is_null": "nothing",
    "is_not_null": "nothing",
    "gte": "bound",
    "gt": "bound",
    "lte": "bound",
    "lt": "bound",
    "between": "bounds",
    "starts_with": "text",
    "contains_text": "text",
    "contains": "value",
    "has_any": "texts",
    "has_all_words": "texts",
    "has_any_word": "texts",
    "has_no_word": "texts",
}
"""What the value of a condition is."""

KINDS: Mapping[Operator, tuple[str, ...]] = {
    "eq": ("text", "uuid", "integer", "date", "timestamp", "json"),
    "ne": ("text", "uuid", "integer", "date", "timestamp", "json"),
    "in": ("text", "uuid", "integer", "date", "timestamp", "json"),
    "not_in": ("text", "uuid", "integer", "date", "timestamp", "json"),
    "exists": ("text", "uuid", "integer", "date", "timestamp", "json"),
    "is_null": ("text", "uuid", "integer", "date", "timestamp", "json"),
    "is_not_null": ("text", "uuid", "integer", "date", "timestamp", "json"),
    "gte": ("integer", "date", "timestamp", "json"),
    "gt": ("integer", "date", "timestamp", "json"),
    "lte": ("integer", "date", "timestamp", "json"),
    "lt": ("integer", "date", "timestamp", "json"),
    "between": ("integer", "date", "timestamp", "json"),
    "starts_with": ("text", "json"),
    "contains_text": ("text", "json", "words"),
    "contains": ("json", "metadata"),
    "has_any": ("json", "metadata"),
    "has_all_words": ("words",),
    "has_any_word": ("words",),
    "has_no_word": ("words",),
}
"""The kinds of fields; json is a key of metadata, metadata the whole, words the text."""

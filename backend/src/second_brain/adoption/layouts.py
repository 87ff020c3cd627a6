"""Tables that are recognised by their columns, and the names that columns usually have.

A value is the name of a column, or an SQL expression over the columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """How the columns of a known table become fields of a document, where names do not say it.

    `columns` are those by which it is recognised, `parent` those of the table of the documents that
    it refers to. `{schema}` in an expression is the schema of the table.
    """

    summary: str
    columns: frozenset[str]
    fields: Mapping[str, str]
    parent: frozenset[str] = frozenset()


LAYOUTS = (
    Layout(
        "LangChain's PGVectorStore",
        frozenset({"langchain_id", "content", "embedding", "langchain_metadata"}),
        {"key": "langchain_id", "title": "langchain_metadata ->> 'title'"},
    ),
    Layout(
        "LangChain's PGVector",
        frozenset({"collection_id", "document", "embedding", "cmetadata"}),
        {
            "title": "cmetadata ->> 'title'",
            "document": "none",
            # One table has the rows of all its collections.
            "collection": "coalesce((select collection.name"
            " from {schema}.langchain_pg_collection as collection"
            " where collection.uuid = source.collection_id), 'knowledge')",
        },
    ),
    Layout(
        "LlamaIndex's PGVectorStore",
        frozenset({"text", "metadata_", "node_id", "embedding"}),
        {
            # _node_content is the node again, without its text. node_id is its name in LlamaIndex.
            "metadata": "(coalesce(nullif(metadata_::jsonb, 'null'), '{}')"
            " - array['_node_content', '_node_type'])"
            " || jsonb_strip_nulls(jsonb_build_object('node_id', node_id))",
            "title": "coalesce(metadata_ ->> 'title', metadata_ ->> 'file_name')",
        },
    ),
    Layout(
        "a collection of vecs, which has texts in its metadata",
        frozenset({"vec", "metadata"}),
        {
            "content": "coalesce(metadata ->> 'text', metadata ->> 'content')",
            "title": "metadata ->> 'title'",
        },
    ),
    # Tables of the systems of docs/compatibility.md.
    Layout(
        "the typed search API",
        frozenset({"chunk_text", "source_file", "context_header", "chunk_index"}),
        {"title": "context_header", "document": "source_file"},
    ),
    Layout(
        "the base pipeline",
        frozenset({"document_id", "chunk_index", "text", "embedding", "search_vector"}),
        {
            "metadata": "coalesce(nullif(parent.metadata::jsonb, 'null'), '{}')"
            " || jsonb_strip_nulls(jsonb_build_object('source_id', parent.source_id,"
            " 'document_type', parent.document_type))"
        },
        frozenset({"source_id", "document_type", "metadata"}),
    ),
    Layout(
        "the insights search, of users",
        frozenset({"content", "embedding", "user_id", "is_public"}),
        {"visibility": "case when is_public then 'public' else 'private' end"},
    ),
)
"""Of two that fit, the first counts."""

USUAL_NAMES = {
    "content": (
        "content", "body", "text", "document", "page_content", "chunk", "chunk_text",
        "text_content", "statement_text", "section_text", "markdown", "description",
    ),
    "embedding": ("embedding", "embeddings", "vector", "content_embedding", "vec"),
    "metadata": ("metadata", "meta", "cmetadata", "langchain_metadata", "metadata_", "attributes"),
    "title": ("title", "heading", "subject", "name"),
    "url": ("source_url", "url", "link", "permalink", "href", "uri"),
    "owner": ("owner_id", "user_id", "owner", "author_id", "created_by"),
    "groups": ("allowed_groups", "groups"),
    "document": (
        "document_id", "doc_id", "parent_id", "file_id", "article_id", "page_id", "post_id",
        "artifact_id", "source_document_id", "document_uuid", "document_key",
    ),
    "position": (
        "chunk_index", "chunk_number", "chunk_no", "chunk_order", "chunk_id", "chunk_num",
        "position", "sequence", "seq", "ordinal", "part", "idx", "index", "order_index",
    ),
    "type": ("knowledge_type",),
    "updated": ("document_date", "updated_at", "modified_at", "published_at", "date", "created_at"),
}  # fmt: skip
"""For each field, the names of columns that are proposed for it, best first."""

NO_TEXTS = frozenset(
    {
        "model", "model_name", "embedding_model", "status", "type", "kind", "lang", "language",
        "source", "hash", "content_hash", "created_by", "error",
    }
)  # fmt: skip
"""Names of columns that are no content, also where no other column is a text."""

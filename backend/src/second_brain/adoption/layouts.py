"""The layouts of tables that `adopt --from` accepts, and the names that columns usually have.

A value is the name of a column, or an SQL expression over the columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Layout:
    """How the columns of a known kind of table become fields of a document.

    `required` must exist in the table. Of `optional`, what the table does not have is left out.
    `{schema}` in an expression is the schema of the table.
    """

    summary: str
    required: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)


_COLUMNS = {"key": "id", "content": "content", "embedding": "embedding"}
_OF_CHUNKS = {"metadata": "metadata", "document": "document_id", "position": "chunk_index"}

LAYOUTS = {
    "supabase-guide": Layout(
        "documents of Supabase's guides to AI and hybrid search",
        _COLUMNS,
        {"title": "title", "metadata": "metadata"},
    ),
    "langchain": Layout(
        "LangChain's SupabaseVectorStore",
        {"key": "id", "content": "content", "embedding": "embedding", "metadata": "metadata"},
        {"title": "metadata ->> 'title'", "url": "metadata ->> 'source'"},
    ),
    "pgvectorstore": Layout(
        "LangChain's PGVectorStore (langchain-postgres)",
        {"key": "langchain_id", "content": "content", "embedding": "embedding"},
        {
            "metadata": "langchain_metadata",
            "title": "langchain_metadata ->> 'title'",
            "url": "langchain_metadata ->> 'source'",
        },
    ),
    "pgvector": Layout(
        "LangChain's PGVector: langchain_pg_embedding, the former class of langchain-postgres",
        {"key": "id", "content": "document", "embedding": "embedding", "metadata": "cmetadata"},
        {
            "title": "cmetadata ->> 'title'",
            "url": "cmetadata ->> 'source'",
            # One table has the rows of all its collections.
            "collection": "coalesce((select collection.name"
            " from {schema}.langchain_pg_collection as collection"
            " where collection.uuid = source.collection_id), 'knowledge')",
        },
    ),
    "llamaindex": Layout(
        "LlamaIndex's PGVectorStore: data_<name>",
        {"key": "id", "content": "text", "embedding": "embedding"},
        {
            # _node_content is the node again, without its text. node_id is its name in LlamaIndex.
            "metadata": "(coalesce(nullif(metadata_::jsonb, 'null'), '{}')"
            " - array['_node_content', '_node_type'])"
            " || jsonb_strip_nulls(jsonb_build_object('node_id', node_id))",
            "title": "coalesce(metadata_ ->> 'title', metadata_ ->> 'file_name')",
        },
    ),
    "n8n": Layout(
        "n8n's PGVector store: n8n_vectors",
        {"key": "id", "content": "text", "embedding": "embedding", "metadata": "metadata"},
    ),
    "vecs": Layout(
        "a collection of vecs, which has texts in its metadata",
        {"key": "id", "embedding": "vec", "metadata": "metadata"},
        {
            "content": "coalesce(metadata ->> 'text', metadata ->> 'content')",
            "title": "metadata ->> 'title'",
            "url": "metadata ->> 'url'",
        },
    ),
    # The tables of the five systems of docs/compatibility.md. What these do not name is metadata.
    "hybrid-rpc": Layout("the chunks of the hybrid search RPC", _COLUMNS, _OF_CHUNKS),
    "pipeline": Layout(
        "the chunks of the retrieval pipeline",
        _COLUMNS,
        {**_OF_CHUNKS, "title": "title", "url": "url"},
    ),
    "collections": Layout(
        "the chunks of artifacts, of the search across collections",
        _COLUMNS,
        {
            **_OF_CHUNKS,
            "title": "title",
            "url": "source_url",
            "document": "artifact_id",
            "updated": "created_at",
        },
    ),
    "search-api": Layout(
        "the chunks of the typed search API",
        {**_COLUMNS, "content": "chunk_text"},
        {**_OF_CHUNKS, "title": "context_header", "updated": "document_date"},
    ),
    "insights": Layout(
        "the chunks of the insights search, of users",
        {**_COLUMNS, "owner": "user_id"},
        {
            **_OF_CHUNKS,
            "title": "title",
            "visibility": "case when is_public then 'public' else 'private' end",
        },
    ),
}
"""The values of --from."""

USUAL_NAMES = {
    "content": (
        "content", "body", "text", "document", "page_content", "chunk", "chunk_text", "markdown",
        "description",
    ),
    "embedding": ("embedding", "embeddings", "vector", "content_embedding"),
    "metadata": ("metadata", "meta", "cmetadata", "langchain_metadata", "metadata_", "attributes"),
    "title": ("title", "heading", "subject", "name"),
    "url": ("source_url", "url", "link", "permalink", "href", "uri"),
    "owner": ("owner_id", "user_id", "owner", "author_id", "created_by"),
    "groups": ("allowed_groups", "groups"),
    "document": (
        "document_id", "doc_id", "parent_id", "file_id", "article_id", "page_id", "post_id",
        "source_document_id", "document_uuid", "document_key",
    ),
    "position": (
        "chunk_index", "chunk_number", "chunk_no", "chunk_order", "chunk_id", "chunk_num",
        "position", "sequence", "seq", "ordinal", "part", "idx", "index", "order_index",
    ),
    "updated": ("document_date", "updated_at", "modified_at", "published_at", "date", "created_at"),
}  # fmt: skip
"""For each field, the names of columns that are proposed for it, best first."""

"""What `doctor` says of the queue."""

from psycopg import sql

from second_brain.database.doctor import Connection, Findings
from second_brain.errors import safe_message

_PENDING = """
select waiting.collection, waiting.model, waiting.pending, waiting.failed,
       waiting.oldest < now() - interval '1 hour'
  from {schema}.pending_knowledge_embeddings() as waiting
"""
_FAILED = """
select failure.collection, failure.model, failure.reason, count(*), min(failure.document_key)
  from {schema}.failed_knowledge_embeddings(1000) as failure
 group by failure.collection, failure.model, failure.reason
 order by count(*) desc, failure.reason
 limit 10
"""


def findings(connection: Connection, schema: str) -> Findings:
    """Report chunks that wait for an embedding too long, and those that could not be embedded."""
    name = sql.Identifier(schema)
    waiting = connection.execute(sql.SQL(_PENDING).format(schema=name)).fetchall()
    count = sum(pending - failed for _, _, pending, failed, _ in waiting)
    yield "ok", f"{count} chunks wait for an embedding", None
    for collection, model, pending, failed, is_old in waiting:
        if is_old:
            yield (
                "warning",
                f"collection {collection}: {pending - failed} chunks wait for an embedding of"
                f" {model or 'any model'}, some for more than an hour",
                "Run `second-brain corpus embed` with this model, or look into its log.",
            )
    failures = connection.execute(sql.SQL(_FAILED).format(schema=name)).fetchall()
    for collection, model, reason, chunks, document in failures:
        where = f", such as of document {document}" if document else ""
        yield (
            "warning",
            f"collection {collection}: {chunks} chunks could not be embedded with {model}{where}:"
            f" {safe_message(reason)}",
            "Change the text, or try again: `second-brain corpus embed --retry-failed`.",
        )

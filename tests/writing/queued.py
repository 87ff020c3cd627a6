"""Calls of the queue of pending embeddings."""

import json

from conftest import Connection

CLAIM = """
select content from public.claim_knowledge_embeddings(
  model => %(model)s, max_chunks => %(most)s, lease => %(lease)s, worker => %(worker)s,
  collections => %(collections)s
)
"""


def add(connection: Connection, *texts: str, collection: str = "knowledge") -> None:
    for text in texts:
        connection.execute(
            "insert into public.knowledge_chunks (content, collection) values (%s, %s)",
            [text, collection],
        )


def embed(connection: Connection, text: str, model: str | None) -> None:
    connection.execute(
        "update public.knowledge_chunks set embedding = '[1,2,3]', embedding_model = %s"
        " where content = %s",
        [model, text],
    )


def claim(
    connection: Connection,
    model: str = "m",
    *,
    most: int = 64,
    lease: str = "5 minutes",
    worker: str | None = None,
    collections: list[str] | None = None,
) -> list[str]:
    arguments = {
        "model": model,
        "most": most,
        "lease": lease,
        "worker": worker,
        "collections": collections,
    }
    return sorted(text for (text,) in connection.execute(CLAIM.encode(), arguments))


def content_hash(connection: Connection, text: str) -> str:
    (found,) = connection.execute(
        "select public.knowledge_content_hash(null, %s)", [text]
    ).fetchone() or ("",)
    return str(found)


def store(
    connection: Connection, text: str, model: str = "m", worker: str | None = None, **result: object
) -> dict[str, int]:
    """Store one result, an embedding if none is given, and return the counts that are not 0."""
    given = result or {"embedding": [1, 2, 3]}
    results = [{"content_hash": content_hash(connection, text), **given}]
    cursor = connection.execute(
        "select * from public.store_knowledge_embeddings(%s, %s, %s)",
        [model, json.dumps(results), worker],
    )
    names = [column.name for column in cursor.description or ()]
    return {
        name: count for name, count in zip(names, cursor.fetchone() or (), strict=True) if count
    }


def expire(connection: Connection) -> None:
    """Let every lease and every wait end."""
    connection.execute(
        "update public.knowledge_embedding_claims set available_at = now() - interval '1 second'"
        " where failed_at is null"
    )


def set_model(connection: Connection, model: str, collection: str = "") -> None:
    connection.execute(
        "select public.set_knowledge_settings(collection => %s, embedding_model => %s)",
        [collection, model],
    )

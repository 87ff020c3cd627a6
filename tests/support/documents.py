"""One way to store a document with its chunks."""

import json
from functools import partial
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from conftest import Connection


def upsert(
    connection: Connection, key: str, *chunks: dict[str, Any] | str, **document: Any
) -> UUID:
    """Store a document as ingestion does; a chunk is its fields or its content. Return the id."""
    fields = [{"content": one} if isinstance(one, str) else one for one in chunks]
    given = Jsonb({"external_key": key, **document}, partial(json.dumps, default=str))
    ((id_,),) = connection.execute(
        "select document_id from public.upsert_knowledge_document(%s, %s)", [given, Jsonb(fields)]
    ).fetchall()
    return UUID(str(id_))


def embedded(content: str, model: str = "m", embedding: tuple[float, ...] = (1, 0, 0)) -> Any:
    return {"content": content, "embedding": list(embedding), "embedding_model": model}

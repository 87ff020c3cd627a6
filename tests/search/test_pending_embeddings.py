"""How many chunks have no embedding yet: the count, against the rows that a viewer may see."""

from uuid import UUID

import pytest
from searching import call

from conftest import Connection

pytestmark = pytest.mark.module("embedding_queue")

COUNT = "count_pending_knowledge_embeddings"
ME, YOU = UUID(int=1), UUID(int=2)


def test_more_than_1000_are_counted_as_1000(knowledge: Connection) -> None:
    knowledge.execute(
        "insert into public.knowledge_chunks (content, visibility)"
        " select 'text ' || n, case when n > 900 then 'public' else 'private' end"
        "  from generate_series(1, 1001) as n"
    )
    assert call(knowledge, COUNT) == [{COUNT: 1000}]
    assert call(knowledge, COUNT, public_only=True) == [{COUNT: 101}]

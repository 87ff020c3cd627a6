"""The forms of an embedding that a search takes, by one function: vector, text, JSON and casts."""

from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pgvector import HalfVector, Vector
from searching import EAST, NORTH, NORTH_EAST, call, numbers, store

from conftest import Connection
from second_brain.services.arguments import BatchQuery
from second_brain.services.postgres import PostgresProvider

# halfvec has 11 bits: these are exact in it.
ASKED = [0.75, 0.5, 0.0625]
FORMS = {
    "vector": "'[0.75,0.5,0.0625]'::extensions.vector",
    "text": "'[0.75, 0.5, 0.0625]'",
    "halfvec": "'[0.75,0.5,0.0625]'::extensions.halfvec::extensions.vector",
    "sparsevec": "'{1:0.75,2:0.5,3:0.0625}/3'::extensions.sparsevec::extensions.vector",
    "real": "array[0.75, 0.5, 0.0625]::real[]::extensions.vector",
    "numeric": "array[0.75, 0.5, 0.0625]::extensions.vector",
}


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    rows = [{"content": "alpha", "embedding": one} for one in (EAST, NORTH_EAST, NORTH)]
    store(knowledge, *rows)
    return knowledge


def expected(connection: Connection) -> list[tuple[int, float]]:
    rows = call(connection, "match_knowledge_chunks", query_embedding=ASKED, match_threshold=-1)
    assert numbers(rows) == [2, 3, 1]
    return [(row["id"].int, row["similarity"]) for row in rows]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("function", ["hybrid_search_knowledge_chunks", "match_knowledge_chunks"])
def test_an_embedding_has_each_form_of_a_vector(
    corpus: Connection, function: str, form: str
) -> None:
    found = corpus.execute(
        f"select id, similarity from public.{function}("
        f"query_embedding => {form}, match_threshold => -1)".encode()
    ).fetchall()
    assert [(one.int, similarity) for one, similarity in found] == expected(corpus)


@pytest.mark.module("batch")
@pytest.mark.parametrize(
    "kind", ["extensions.vector", "extensions.halfvec", "real[]", "jsonb", "text"]
)
def test_an_embedding_in_json_has_each_form(corpus: Connection, kind: str) -> None:
    source = "{0.75,0.5,0.0625}" if kind == "real[]" else str(ASKED)
    query = f"jsonb_build_object('query_embedding', to_jsonb(%s::{kind}), 'match_threshold', -1)"
    batch = f"public.hybrid_search_knowledge_chunks_batch(jsonb_build_array({query}))"
    found = corpus.execute(f"select id, similarity from {batch}".encode(), [source]).fetchall()
    assert [(one.int, similarity) for one, similarity in found] == expected(corpus)


PYTHON: list[Any] = [ASKED, tuple(ASKED), np.array(ASKED, dtype=np.float16), np.array(ASKED)]
PYTHON += [Vector(ASKED), HalfVector(ASKED), str(ASKED)]


@pytest.mark.module("batch")
@pytest.mark.parametrize("embedding", PYTHON, ids=lambda given: type(given).__name__)
def test_python_takes_each_form(corpus: Connection, embedding: Any) -> None:
    provider = PostgresProvider(corpus)
    hits, _ = provider.hybrid_search(embedding, None, threshold=-1)
    asked: list[BatchQuery] = [{"query_embedding": embedding, "threshold": -1}]
    for found in (hits, provider.hybrid_search_batch(asked)[0][0]):
        given = [(UUID(hit.id).int, hit.metadata["similarity"]) for hit in found]
        assert given == expected(corpus)

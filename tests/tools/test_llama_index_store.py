"""The LlamaIndex vector store, with LlamaIndex's own index and filters."""

import asyncio
from typing import Any

import pytest
from axis import INVOICE, KEYS, LEAKED, axis
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from second_brain.errors import InvalidInputError
from second_brain.integrations.llama_index import SecondBrainVectorStore


class AxisEmbedding(BaseEmbedding):
    def _get_text_embedding(self, text: str) -> list[float]:
        return axis(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return axis(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return axis(query)


METADATA: dict[str, dict[str, Any]] = {
    "keys": {"team": "platform", "year": 2024, "tags": ["api", "keys"], "note": None},
    "leaked": {"team": "platform", "year": 2025, "tags": ["api"], "note": ""},
    "invoice": {"team": "finance", "year": 2026, "tags": [], "note": "paid"},
}


@pytest.fixture
def store(emptied_dsn: str) -> SecondBrainVectorStore:
    """A store with three nodes of two documents."""
    made = SecondBrainVectorStore(emptied_dsn, embedding_model="by-hand")
    texts = zip(METADATA, (KEYS, LEAKED, INVOICE), ("a", "a", "b"), strict=True)
    for key, text, document in texts:
        node = TextNode(id_=key, text=text, metadata=METADATA[key], embedding=axis(text))
        node.relationships = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=document)}
        made.add([node])
    return made


def asked(
    store: SecondBrainVectorStore, text: str, mode: str = "default", **arguments: Any
) -> list[str]:
    given = {"query_embedding": axis(text), "query_str": text, "similarity_top_k": 3, **arguments}
    result = store.query(VectorStoreQuery(mode=VectorStoreQueryMode(mode), **given))
    assert result.ids == [node.node_id for node in result.nodes or []]
    return result.ids or []


def test_a_mode_is_one_leg_or_both(store: SecondBrainVectorStore) -> None:
    assert asked(store, "rotate credit") == ["keys", "leaked", "invoice"]
    assert asked(store, "rotate credit", "sparse", sparse_top_k=1) in (["keys"], ["invoice"])
    assert asked(store, "credit", "text_search") == ["invoice"]
    # The vector leg finds the key, the text leg the invoice; alpha is the share of the vectors.
    assert asked(store, "key credit", "hybrid", alpha=1.0)[0] == "leaked"
    assert asked(store, "key credit", "hybrid", alpha=0.0, hybrid_top_k=1) != ["keys"]
    assert asked(store, "credit", "hybrid")[0] == "invoice"
    with pytest.raises(InvalidInputError, match=r"mode must be one of default.*not .*mmr"):
        asked(store, "key", "mmr")


def test_the_score_of_the_default_mode_is_the_cosine_similarity(
    store: SecondBrainVectorStore,
) -> None:
    query = VectorStoreQuery(query_embedding=[0.0, 0.0, 1.0], similarity_top_k=3)
    assert store.query(query).similarities == pytest.approx([1.0, 0.8, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("key", "operator", "value", "expected"),
    [
        ("team", "==", "platform", {"keys", "leaked"}),
        ("team", "!=", "platform", {"invoice"}),
        ("year", ">", 2024, {"leaked", "invoice"}),
        ("year", ">=", 2025, {"leaked", "invoice"}),
        ("year", "<", 2025, {"keys"}),
        ("year", "<=", 2025, {"keys", "leaked"}),
        ("year", "in", [2024, 2026], {"keys", "invoice"}),
        ("year", "nin", [2024, 2026], {"leaked"}),
        ("tags", "any", ["keys", "other"], {"keys"}),
        ("tags", "all", ["api", "keys"], {"keys"}),
        ("tags", "contains", "api", {"keys", "leaked"}),
        ("tags", "is_empty", None, {"invoice"}),
        ("note", "is_empty", None, {"keys", "leaked"}),
        ("missing", "is_empty", None, {"keys", "leaked", "invoice"}),
    ],
)
def test_each_operator_keeps_what_llama_index_itself_keeps(
    store: SecondBrainVectorStore, key: str, operator: str, value: Any, expected: set[str]
) -> None:
    filters = joined("and", (key, operator, value))
    assert set(asked(store, "key", filters=filters)) == expected
    # These are compared by LlamaIndex's own function.
    assert {node.node_id for node in store.get_nodes(filters=filters)} == expected


def joined(condition: str, *parts: tuple[str, str, Any] | MetadataFilters) -> MetadataFilters:
    """Join filters, and conditions of a key, an operator and a value."""
    filters = [
        one
        if isinstance(one, MetadataFilters)
        else MetadataFilter(key=one[0], operator=FilterOperator(one[1]), value=one[2])
        for one in parts
    ]
    return MetadataFilters(filters=filters, condition=FilterCondition(condition))


EITHER = joined("or", ("year", "==", 2024), ("year", "==", 2026))
NEITHER = joined("not", ("year", "==", 2024), ("year", "==", 2026))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (joined("and", ("team", "==", "platform"), ("year", "==", 2025)), {"leaked"}),
        (EITHER, {"keys", "invoice"}),
        (NEITHER, {"leaked"}),
        (joined("and", NEITHER, EITHER), set()),
        (joined("or", ("year", "==", 2024), ("team", "==", "finance")), {"keys", "invoice"}),
        (joined("and", ("team", "text_match", "inan")), {"invoice"}),
    ],
    ids=["and", "or", "not", "nested", "or over two keys", "a part of a text"],
)
def test_conditions_are_joined(
    store: SecondBrainVectorStore, filters: MetadataFilters, expected: set[str]
) -> None:
    assert set(asked(store, "key", filters=filters)) == expected


@pytest.mark.parametrize(
    ("key", "operator", "told"),
    [
        ("note", "text_match_insensitive", "text_match_insensitive of 'note'"),
        # It would be a path.
        ("a.b", ">", r"a\.b' has a dot"),
    ],
)
def test_what_a_search_cannot_compare_is_refused(
    store: SecondBrainVectorStore, key: str, operator: str, told: str
) -> None:
    with pytest.raises(InvalidInputError, match=told):
        asked(store, "key", filters=joined("and", (key, operator, "1")))


def test_a_query_can_name_documents_and_nodes(store: SecondBrainVectorStore) -> None:
    assert asked(store, "key", doc_ids=["b"]) == ["invoice"]
    assert asked(store, "key", node_ids=["keys", "nobody"]) == ["keys"]


def test_nodes_come_back_as_they_were_and_are_deleted(store: SecondBrainVectorStore) -> None:
    (node,) = store.get_nodes(["keys"])
    assert isinstance(node, TextNode)
    assert (node.text, node.metadata, node.ref_doc_id) == (KEYS, METADATA["keys"], "a")
    store.delete("a")
    store.delete("nobody")
    assert [one.node_id for one in store.get_nodes(list(METADATA))] == ["invoice"]
    platform = joined("and", ("team", "==", "platform"))
    store.delete_nodes(filters=platform)
    store.delete_nodes(["invoice"], filters=platform)
    assert len(store.get_nodes(["invoice"])) == 1
    store.delete_nodes(["invoice"])
    assert store.get_nodes(["invoice"]) == []
    with pytest.raises(InvalidInputError, match="give node_ids, filters or both"):
        store.delete_nodes()


def test_awaited_calls_do_the_same(store: SecondBrainVectorStore) -> None:
    async def calls() -> list[list[str] | None]:
        await store.async_add([TextNode(id_="new", text="A new key.", embedding=[0.0, 0.6, 0.8])])
        await store.adelete("b")
        await store.adelete_nodes(["leaked"])
        found = await store.aquery(
            VectorStoreQuery(query_embedding=[0.0, 0.6, 0.8], similarity_top_k=5)
        )
        left = [node.node_id for node in await store.aget_nodes(["new", "leaked"])]
        await store.aclear()
        return [found.ids, left, [node.node_id for node in store.get_nodes(["new"])]]

    assert asyncio.run(calls()) == [["new", "keys"], ["new"], []]


def test_an_index_writes_to_the_store_and_another_one_reads_it(emptied_dsn: str) -> None:
    store = SecondBrainVectorStore(emptied_dsn, embedding_model="by-hand")
    platform = {"team": "platform"}
    documents = [
        Document(doc_id="manual", text=KEYS, metadata=platform),
        Document(doc_id="bills", text=INVOICE),
    ]
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex.from_documents(documents, context, embed_model=AxisEmbedding())
    again = VectorStoreIndex.from_vector_store(store, embed_model=AxisEmbedding())
    hybrid = {"similarity_top_k": 1, "vector_store_query_mode": "hybrid", "alpha": 0.5}
    (best,) = again.as_retriever(**hybrid).retrieve("rotate")
    assert (best.text, best.metadata, best.node.ref_doc_id) == (KEYS, platform, "manual")
    index.delete_ref_doc("manual")
    assert [one.text for one in again.as_retriever().retrieve("rotate")] == [INVOICE]


def test_nodes_are_deleted_by_the_filters_that_a_search_takes(
    store: SecondBrainVectorStore,
) -> None:
    kept = joined("and", joined("and", ("n", ">", 1)), joined("not", ("keep", "==", "yes")))
    metadata: list[dict[str, Any]] = [
        *({"n": 1}, {"n": 2}, {"n": "a text"}, {}, {"n": 3, "keep": "yes"})
    ]
    store.add(
        [
            TextNode(id_=str(place), text="key", metadata=one, embedding=[1.0, 0.0, 0.0])
            for place, one in enumerate(metadata)
        ]
    )
    store.delete_nodes(filters=kept)
    left = {one.node_id for one in store.get_nodes(filters=MetadataFilters(filters=[]))}
    assert left == {*METADATA, "0", "2", "3", "4"}

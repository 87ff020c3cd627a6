"""The Haystack document store: Haystack's own suites, and the retrievers in a pipeline."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from axis import INVOICE, KEYS, LEAKED, axis
from haystack import Document, Pipeline
from haystack.components.writers import DocumentWriter
from haystack.document_stores.types import DocumentStore, DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing.document_store import (
    CountDocumentsByFilterTest,
    DocumentStoreBaseExtendedTests,
)
from haystack.utils import Secret

from conftest import Server, copy_of
from second_brain import connection_pool
from second_brain.errors import InvalidInputError
from second_brain.integrations.haystack import (
    SecondBrainDocumentStore,
    SecondBrainEmbeddingRetriever,
    SecondBrainHybridRetriever,
)

# The size of the embeddings of Haystack's suites.
DIMENSIONS = 768


@pytest.fixture(scope="module")
def wide(server: Server) -> Iterator[Any]:
    """A pool on a database for Haystack's suites."""
    for dsn in copy_of(server, server.template(DIMENSIONS)):
        with connection_pool(dsn, max_size=2) as pool:
            yield pool


@pytest.mark.slow
class TestDocumentStoreSuite(DocumentStoreBaseExtendedTests, CountDocumentsByFilterTest):
    """Haystack's standard suite."""

    @pytest.fixture
    def document_store(self, wide: Any) -> SecondBrainDocumentStore:
        """An empty store."""
        store = SecondBrainDocumentStore(wide, embedding_model="random")
        store.delete_all_documents()
        return store

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        """Compare in the order of ids, and embeddings as single-precision numbers."""
        assert [_comparable(one) for one in sorted(received, key=lambda one: one.id)] == [
            _comparable(one) for one in sorted(expected, key=lambda one: one.id)
        ]

    def test_write_documents(self, document_store: DocumentStore) -> None:
        """The default policy refuses a stored id."""
        self.test_write_documents_duplicate_fail(document_store)


def _comparable(document: Document) -> dict[str, Any]:
    fields = document.to_dict(flatten=False)
    if document.embedding is not None:
        fields["embedding"] = np.array(document.embedding, np.float32).tolist()
    return fields


@pytest.fixture
def store(emptied_dsn: str) -> SecondBrainDocumentStore:
    """A store with three documents."""
    made = SecondBrainDocumentStore(emptied_dsn, embedding_model="by-hand")
    made.write_documents(
        [
            Document(key, text, meta=meta, embedding=axis(text))
            for key, text, meta in (
                ("keys", KEYS, {"team": "platform", "year": 2024}),
                ("leaked", LEAKED, {"team": "platform"}),
                ("invoice", INVOICE, {"team": "finance"}),
            )
        ]
    )
    return made


def found(answer: dict[str, Any]) -> list[str]:
    return [one.id for one in answer["documents"]]


def test_the_retrievers_search_by_vectors_or_by_both_legs(store: SecondBrainDocumentStore) -> None:
    by_vector = SecondBrainEmbeddingRetriever(store, top_k=2)
    documents = by_vector.run(query_embedding=[0, 0, 1])["documents"]
    similarities = {one.id: round(one.score or 0, 2) for one in documents}
    assert similarities == {"keys": 1.0, "leaked": 0.8}
    hybrid = SecondBrainHybridRetriever(store)
    assert found(hybrid.run(query="credit")) == ["invoice"]
    both = hybrid.run(query="leaked", query_embedding=[0, 0, 1], top_k=2)
    assert found(both) == ["leaked", "keys"]


def test_the_filters_of_a_run_and_of_the_retriever_both_hold(
    store: SecondBrainDocumentStore,
) -> None:
    def equal(field: str, value: object) -> dict[str, Any]:
        return {"field": field, "operator": "==", "value": value}

    def joined(operator: str, *conditions: object) -> dict[str, Any]:
        return {"operator": operator, "conditions": list(conditions)}

    retriever = SecondBrainHybridRetriever(store, filters=equal("meta.team", "platform"))
    ask: dict[str, Any] = {"query": "key", "query_embedding": [0, 0, 1]}
    assert found(retriever.run(**ask, filters=equal("meta.year", 2024))) == ["keys"]
    assert found(retriever.run(**ask, filters=joined("NOT", equal("year", 2024)))) == ["leaked"]
    either = joined("OR", equal("meta.year", 2024), equal("meta.year", 2025))
    assert found(retriever.run(**ask, filters=either)) == ["keys"]
    either = joined("OR", equal("year", 2024), equal("team", "finance"))
    assert found(retriever.run(**ask, filters=either)) == ["keys"]
    neither = joined("NOT", joined("OR", equal("year", 2024), equal("team", "finance")))
    assert found(retriever.run(**ask, filters=neither)) == ["leaked"]
    with pytest.raises(FilterError, match="'value' key missing"):
        retriever.run(**ask, filters={"field": "meta.year", "operator": "=="})


@pytest.mark.parametrize(
    ("field", "operator", "value", "expected"),
    [
        ("meta.year", "==", 2024, "keys"),
        ("meta.year", "!=", 2024, "invoice leaked"),
        ("meta.year", ">", 2023, "keys"),
        ("meta.year", ">=", 2024, "keys"),
        ("meta.year", "<", 2024, ""),
        ("meta.year", "<=", 2024, "keys"),
        ("meta.year", "in", [2024, 2025], "keys"),
        ("meta.year", "not in", [2024, 2025], "invoice leaked"),
        ("meta.year", "==", None, "invoice leaked"),
        ("meta.year", "!=", None, "keys"),
        ("id", "==", "leaked", "leaked"),
        ("id", "in", ["leaked", "keys", "nothing"], "keys leaked"),
        ("id", "!=", "keys", "invoice leaked"),
        ("id", "not in", ["keys", "leaked"], "invoice"),
        ("id", "==", "nothing", ""),
        ("id", "!=", "nothing", "invoice keys leaked"),
    ],
)
def test_the_database_compares_as_haystack_does(
    store: SecondBrainDocumentStore, field: str, operator: str, value: Any, expected: str
) -> None:
    condition = {"field": field, "operator": operator, "value": value}
    by_vector = SecondBrainEmbeddingRetriever(store).run([0, 0, 1], filters=condition)
    by_both = SecondBrainHybridRetriever(store).run("key", [0, 0, 1], filters=condition)
    assert sorted(found(by_vector)) == sorted(found(by_both)) == expected.split()
    # These are compared by Haystack's own function.
    assert sorted(one.id for one in store.filter_documents(condition)) == expected.split()


def test_a_pipeline_is_serialised_without_the_connection_string(
    emptied_dsn: str, store: SecondBrainDocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInputError, match="cannot be serialised"):
        store.to_dict()
    monkeypatch.setenv("SECOND_BRAIN_DSN", emptied_dsn)
    kept = SecondBrainDocumentStore(
        Secret.from_env_var("SECOND_BRAIN_DSN"), embedding_model="by-hand"
    )
    pipeline = Pipeline()
    pipeline.add_component("retriever", SecondBrainHybridRetriever(kept, top_k=1))
    written = pipeline.dumps()
    assert "password" not in written
    again = Pipeline.loads(written, allowed_modules=["second_brain.integrations.haystack"])
    answer = again.run({"retriever": {"query": "credit"}})
    assert found(answer["retriever"]) == ["invoice"]


def test_a_skipped_document_keeps_what_is_stored(store: SecondBrainDocumentStore) -> None:
    new = [Document("keys", "Other."), Document("new", "New.")]
    assert store.write_documents(new, DuplicatePolicy.SKIP) == 1
    kept = {one.id: one.content for one in store.filter_documents()}
    assert (kept["keys"], kept["new"]) == (KEYS, "New.")
    with pytest.raises(ValueError, match="must have text"):
        store.write_documents([Document("empty")])


@pytest.mark.parametrize("field", ["id", "content", "embedding", "score", "blob", "meta"])
def test_other_fields_of_a_document_are_no_metadata(
    store: SecondBrainDocumentStore, field: str
) -> None:
    condition = {"field": field, "operator": ">" if field == "id" else "==", "value": "a"}
    for given in (condition, {"operator": "NOT", "conditions": [condition]}):
        with pytest.raises(FilterError, match=rf"{field} .* meta\.<key>"):
            SecondBrainHybridRetriever(store).run(query="key", filters=given)


async def test_what_is_awaited_runs_in_a_thread(dsn: str) -> None:
    store = SecondBrainDocumentStore(dsn, embedding_model="by-hand")
    documents = [Document("1", "heron", meta={"n": 1}), Document("2", "egret", meta={"n": "a"})]
    await DocumentWriter(store).run_async(documents)
    assert await store.count_documents_async() == 2
    positive = {"field": "meta.n", "operator": ">", "value": 0}
    assert [one.id for one in await store.filter_documents_async(positive)] == ["1"]
    found = await SecondBrainHybridRetriever(store).run_async("egret")
    assert [one.id for one in found["documents"]] == ["2"]
    await store.delete_documents_async(["2"])
    assert await store.delete_by_filter_async(positive) == 1


def test_a_value_of_another_type_passes_no_comparison_and_a_wrong_filter_is_refused(
    dsn: str,
) -> None:
    store = SecondBrainDocumentStore(dsn, embedding_model="by-hand")
    store.write_documents([Document(str(n), "a", meta={"n": n}) for n in (1, 2)])
    store.write_documents([Document("text", "a", meta={"n": "many"})])
    above = {"field": "meta.n", "operator": ">", "value": 1}
    for joint, expected in {"AND": ["2"], "OR": ["2"], "NOT": ["1", "text"]}.items():
        found = store.filter_documents({"operator": joint, "conditions": [above]})
        assert [one.id for one in found] == expected
    for value in ("many", [1]):
        with pytest.raises(FilterError):
            store.filter_documents({**above, "value": value})

"""The LangChain vector store: LangChain's own suites, and what they do not ask for."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from axis import INVOICE, KEYS, LEAKED, axis
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import (
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.integration_tests.vectorstores import EMBEDDING_SIZE

from conftest import Server, copy_of
from second_brain import connection_pool
from second_brain.errors import InvalidInputError, UnexpectedAnswerError
from second_brain.integrations.langchain import SecondBrainVectorStore
from second_brain.integrations.store import TextStore

TEXTS = [KEYS, LEAKED, INVOICE]


class AxisEmbeddings(Embeddings):
    model = "by-hand"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [*map(axis, texts)]

    def embed_query(self, text: str) -> list[float]:
        return axis(text)


@pytest.fixture(scope="module")
def six_dimensions(server: Server) -> Iterator[Any]:
    """A pool on a database with the size of the embeddings of LangChain's suites."""
    for dsn in copy_of(server, server.template(EMBEDDING_SIZE)):
        with connection_pool(dsn, max_size=2) as pool:
            yield pool


@pytest.mark.slow
class TestVectorStoreSuite(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, six_dimensions: Any) -> Iterator[SecondBrainVectorStore]:
        store = SecondBrainVectorStore(six_dimensions, self.get_embeddings())
        store.delete()
        yield store
        store.delete()


@pytest.mark.slow
class TestRetrieverSuite(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _filled(self, emptied_dsn: str) -> None:
        type(self).dsn = emptied_dsn
        filled(emptied_dsn)

    dsn = ""

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        def make(k: int = 3) -> BaseRetriever:
            store = SecondBrainVectorStore(self.dsn, AxisEmbeddings())
            return store.as_retriever(search_kwargs={"k": k})

        return make  # type: ignore[return-value]

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"k": 2}

    @property
    def retriever_query_example(self) -> str:
        return "rotated keys"


def filled(dsn: str, **arguments: Any) -> SecondBrainVectorStore:
    return SecondBrainVectorStore.from_texts(
        TEXTS,
        AxisEmbeddings(),
        [{"team": "platform", "title": "Keys"}, {"team": "platform"}, {"team": "finance"}],
        ids=["keys", "leaked", "invoice"],
        database=dsn,
        **arguments,
    )


def ids(found: list[Document]) -> list[str | None]:
    return [one.id for one in found]


def test_a_search_finds_by_both_legs_and_says_what_its_scores_are(emptied_dsn: str) -> None:
    store = filled(emptied_dsn)
    best, score = store.similarity_search_with_score("rotated keys")[0]
    assert best.id == "keys"
    assert score == pytest.approx(1.0)
    # The word is in no vector that is near.
    assert ids(store.similarity_search("credit", 1, mode="text")) == ["invoice"]
    by_vector = store.similarity_search_with_score("rotate", 3, mode="vector")
    similarities = {one.id: round(score, 2) for one, score in by_vector}
    assert similarities == {"keys": 1.0, "leaked": 0.8, "invoice": 0.0}
    with pytest.raises(InvalidInputError, match="mode must be one of"):
        store.similarity_search("credit", mode="both")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"team": "finance"}, {"invoice"}),
        ({"title": "Keys"}, {"keys"}),
        ([{"field": "metadata.team", "op": "ne", "value": "platform"}], {"invoice"}),
        ({"team": {"$eq": "finance"}}, {"invoice"}),
        ({"team": {"$ne": "platform"}}, {"invoice"}),
        ({"team": {"$in": ["finance", "sales"]}}, {"invoice"}),
        ({"team": {"$nin": ["finance"]}}, {"keys", "leaked"}),
        ({"title": {"$exists": True}}, {"keys"}),
        ({"team": {"$gt": "finance", "$lte": "platform"}}, {"keys", "leaked"}),
        ({"$and": [{"team": "platform"}, {"title": {"$eq": "Keys"}}]}, {"keys"}),
        (
            {"$or": [{"team": "finance"}, {"team": {"$eq": "platform"}}]},
            {"keys", "leaked", "invoice"},
        ),
        ({"$or": [{"team": "finance"}, {"title": "Keys"}]}, {"keys", "invoice"}),
        ({"$not": {"$or": [{"team": "finance"}, {"title": "Keys"}]}}, {"leaked"}),
        ({"$not": {"team": {"$gt": "finance"}}}, {"invoice"}),
        ({"a.b": {"$nin": [1, 2]}}, {"keys", "leaked", "invoice"}),
        ({"team": "platform", "$not": {"title": {"$exists": True}}}, {"leaked"}),
    ],
)
def test_a_filter_has_keys_of_metadata_operators_of_other_stores_or_conditions(
    emptied_dsn: str, given: Any, found: set[str]
) -> None:
    assert set(ids(filled(emptied_dsn).similarity_search("key", filter=given))) == found


def test_mmr_leaves_out_what_is_like_the_first(emptied_dsn: str) -> None:
    search = filled(emptied_dsn).max_marginal_relevance_search
    assert ids(search("rotate", 2, lambda_mult=0.2)) == ["keys", "invoice"]
    assert ids(search("rotate", 2, lambda_mult=1.0)) == ["keys", "leaked"]


def test_a_retriever_with_a_score_threshold_compares_cosine_similarities(emptied_dsn: str) -> None:
    retriever = filled(emptied_dsn).as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.9}
    )
    assert ids(retriever.invoke("rotate")) == ["keys"]


def test_a_store_leaves_the_documents_of_other_collections(emptied_dsn: str) -> None:
    store = filled(emptied_dsn)
    other = SecondBrainVectorStore(emptied_dsn, AxisEmbeddings(), collection="other")
    assert other.get_by_ids(["keys"]) == []
    assert other.similarity_search("key") == []
    with pytest.raises(InvalidInputError, match="'keys' is a document of another collection"):
        other.add_texts(["Mine.", "Mine."], ids=["mine", "keys"])
    assert other.get_by_ids(["mine"]) == []
    other.delete(["keys"])
    other.delete()
    assert len(store.get_by_ids(["keys", "leaked", "invoice"])) == 3


def test_a_search_can_be_limited_to_a_viewer(emptied_dsn: str) -> None:
    owner, stranger = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
    filled(emptied_dsn, fields={"owner_id": owner})
    for viewer, expected in ((owner, 3), (stranger, 0)):
        store = SecondBrainVectorStore(emptied_dsn, AxisEmbeddings(), options={"viewer_id": viewer})
        assert len(store.similarity_search("rotated keys")) == expected


def test_wrong_arguments_are_refused_by_name(emptied_dsn: str) -> None:
    store = SecondBrainVectorStore(emptied_dsn, AxisEmbeddings())
    with pytest.raises(InvalidInputError, match="ids must have one element for each of the 2"):
        store.add_texts(["a", "b"], ids=["1"])
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("ids must be a list of ids, not 'a'", lambda: store.delete("a")),  # type: ignore[arg-type]
        ("ids must be a list", lambda: store.get_by_ids("a")),
        ("ids must be a list", lambda: store.add_texts(["a"], ids="a")),
        (r"ids\[1\] must be a text, not int", lambda: store.add_texts(["a", "b"], ids=["1", 2])),  # type: ignore[list-item]
        (r"ids\[0\]: .* surrogates", lambda: store.delete(["\ud800"])),
        (r"ids\[0\]: a text has the character NUL", lambda: store.get_by_ids(["a\0"])),
        ("texts must be a list", lambda: store.add_texts("abc")),
        ("metadata of 'a' must be a dict", lambda: store.add_texts(["a"], ["b"], ids=["a"])),  # type: ignore[list-item]
        ("must not have 'filters'", lambda: store.similarity_search("a", filters={})),
        ("must not have 'top_k'", lambda: store.max_marginal_relevance_search("a", top_k=1)),
    ]
    for told, call in wrong:
        with pytest.raises(InvalidInputError, match=told):
            call()
    with pytest.raises(TypeError, match="unexpected argument 'batch'"):
        store.add_texts(["a"], batch=3)
    with pytest.raises(InvalidInputError, match="fields must not have 'metadata'"):
        TextStore(emptied_dsn, embedding_model="x", fields={"metadata": {}})


def test_an_id_can_be_a_uuid(emptied_dsn: str) -> None:
    store, key = SecondBrainVectorStore(emptied_dsn, AxisEmbeddings()), UUID(int=1)
    assert store.add_texts([KEYS], ids=[key]) == [str(key)]  # type: ignore[list-item]
    assert [one.id for one in store.get_by_ids([key])] == [str(key)]  # type: ignore[list-item]
    store.delete([key])  # type: ignore[list-item]
    assert store.get_by_ids([str(key)]) == []


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_indexing_api_adds_and_deletes(emptied_dsn: str, is_async: bool) -> None:
    store = SecondBrainVectorStore(emptied_dsn, AxisEmbeddings())
    records = InMemoryRecordManager("n")
    records.create_schema()

    async def indexed(*texts: str) -> tuple[int, int]:
        documents = [Document(text, metadata={"source": "a"}) for text in texts]
        given: dict[str, Any] = {"cleanup": "incremental", "source_id_key": "source"}
        given |= {"docs_source": documents, "record_manager": records, "vector_store": store}
        given["key_encoder"] = "sha256"
        done = await aindex(**given) if is_async else index(**given)
        return done["num_added"], done["num_deleted"]

    assert await indexed(KEYS, LEAKED) == (2, 0)
    assert await indexed(KEYS, INVOICE) == (1, 1)
    assert {one.page_content for one in store.similarity_search("key", k=9)} == {KEYS, INVOICE}


def test_a_filter_that_would_match_nothing_or_everything_is_refused(emptied_dsn: str) -> None:
    store = filled(emptied_dsn)
    wrong: list[Any] = [
        {"page": {"$regex": "a"}},
        {"page": {"$in": [1], "at": 2}},
        {"page": {"deep": {"$in": [1]}}},
        {"page": [{"$in": [1]}]},
        {"page": {"gte": 1}},
        {"team": {"in": ["a"]}},
        {"any": [{"team": "a"}]},
        {"NOT": {"team": "a"}},
        {"field": "team", "operator": "eq", "value": "a"},
        {"$in": {"page": [1]}},
        {"$nor": [{"team": "a"}]},
        {"$and": "team"},
        {"a.b": {"c": 1}},
        {"a.b": None},
        {"": 1},
        [{"page": {"$in": [1]}}],
        [{"field": "metadata.team", "op": "like", "value": "platform"}],
        lambda rpc: rpc,
        "team = 'a'",
        7,
        {"a", "b"},
    ]
    for one in wrong:
        for search in (store.similarity_search, store.max_marginal_relevance_search):
            with pytest.raises(InvalidInputError, match="filters") as refused:
                search("key", filter=one)
            assert refused.value.remedy


def test_a_model_that_gives_another_number_of_embeddings_is_refused(emptied_dsn: str) -> None:
    class Short(AxisEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return super().embed_documents(texts[:1])

    store = SecondBrainVectorStore(emptied_dsn, Short())
    with pytest.raises(UnexpectedAnswerError, match="1 embeddings for 3 texts"):
        store.add_texts(TEXTS)
    assert store.similarity_search("key") == []

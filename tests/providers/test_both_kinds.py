"""The blocking provider and the one for an event loop: the same methods, the same answers."""

import inspect
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sides import Blocking, Looping, Side, corpus, side

from conftest import Connection
from corpora import store_document
from second_brain.errors import PermissionDeniedError, SecondBrainError
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.provider import SearchProvider
from second_brain.services.write import KnowledgeWriter

__all__ = ["corpus", "side"]  # fixtures


Asked = tuple[str, tuple[Any, ...], dict[str, Any]]

_EMBEDDINGS = st.sampled_from([None, [1, 0, 0], (0.6, 0.8, 0), "[0,0,1]", [1, 2], [0, 0, 0], "x"])
_TEXTS = st.sampled_from([None, "", "zebra", "grass lion", '"zebra crossing"', "a\x00", "nosuch"])
_VIEWERS = st.sampled_from([None, UUID(int=1), "nobody", str(UUID(int=1))])
_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.sampled_from([1, 2, 0, 10**12]),
        "threshold": st.sampled_from([0.9, -1.0, 2.0]),
        "fusion": st.sampled_from(["rrf", "auto", "nosuch"]),
        "search_mode": st.sampled_from(["simple", "phrase", "nosuch"]),
        "filters": st.sampled_from([None, {"team": "search"}, [{"field": "nosuch"}], 7]),
        "date_from": st.sampled_from(["2026-01-31", "soon"]),
        "snippet": st.booleans(),
        "public_only": st.booleans(),
        "timeout": st.sampled_from([None, 60.0, 0]),
    },
)
_LEG_OPTIONS = st.fixed_dictionaries(
    {}, optional={"top_k": st.sampled_from([1, 0]), "viewer_id": _VIEWERS}
)


_HYBRID = st.tuples(_EMBEDDINGS, _TEXTS)
_QUERIES = st.lists(
    st.builds(
        lambda asked, options: {
            **dict(zip(("query_embedding", "query_text"), asked, strict=True)),
            **{name: value for name, value in options.items() if name != "timeout"},
        },
        _HYBRID,
        _OPTIONS,
    ),
    max_size=3,
)
_CALLS: st.SearchStrategy[Asked] = st.one_of(
    st.tuples(
        st.just("hybrid_search"),
        _HYBRID,
        st.builds(lambda one, viewer: {**one, "viewer_id": viewer}, _OPTIONS, _VIEWERS),
    ),
    st.tuples(st.sampled_from(["search_my_knowledge", "explain_hybrid_search"]), _HYBRID, _OPTIONS),
    st.tuples(st.just("search"), st.tuples(_EMBEDDINGS), _LEG_OPTIONS),
    st.tuples(st.just("fulltext_search"), st.tuples(_TEXTS), _LEG_OPTIONS),
    st.tuples(st.just("hybrid_search_batch"), st.tuples(_QUERIES), st.just({})),
)


def answer(provider: Any, asked: Asked) -> Any:
    method, arguments, options = asked
    try:
        found = getattr(provider, method)(*arguments, **options)
    except SecondBrainError as error:
        return type(error), str(error), error.code, error.remedy
    if method == "explain_hybrid_search":
        for timed in (found, *(one[leg] for one in found["lists"] for leg in ("vector", "text"))):
            del timed["milliseconds"]
    return found


@pytest.fixture(scope="module")
def both(shared_dsn: str) -> Iterator[list[Any]]:
    """The two kinds of provider, each multi-tenant too or not."""
    sides = [Blocking(), Looping()]
    yield [
        [
            one.provider(one.connect(shared_dsn, autocommit=True), multi_tenant=multi_tenant)
            for multi_tenant in (False, True)
        ]
        for one in sides
    ]
    for one in sides:
        one.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(asked=_CALLS, is_multi_tenant=st.booleans())
def test_a_loop_gets_the_answers_that_a_thread_gets(
    both: list[Any], asked: Asked, is_multi_tenant: bool
) -> None:
    blocking, looping = both
    assert answer(looping[is_multi_tenant], asked) == answer(blocking[is_multi_tenant], asked)


def test_the_methods_of_both_kinds_take_the_same() -> None:
    public = [
        name
        for name, method in vars(SearchProvider).items()
        if inspect.isfunction(method) and not name.startswith("_")
    ]
    assert "embedding_models" in public
    for name in public:
        one = inspect.signature(getattr(PostgresProvider, name))
        method = getattr(AsyncPostgresProvider, name)
        other = inspect.signature(method)
        assert inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method), name
        # An iterator of pages has another type for an event loop.
        assert one.parameters == other.parameters, name
        if inspect.iscoroutinefunction(method):
            assert one == other, name


def test_the_embedding_models_are_returned(side: Side, shared: Connection, shared_dsn: str) -> None:
    store_document(shared, "models", {"model 0": [0, 1, 0], "model 1": [0, 1, 0]}, "mine")
    try:
        models = side.provider(shared_dsn).embedding_models(timeout=30.0)
        assert ("mine", 3, 2) in [(one.model, one.dimensions, one.chunks) for one in models]
        nobody = side.connect(shared_dsn, autocommit=True)
        side.do(nobody.execute("set role anon"))
        with pytest.raises(PermissionDeniedError):
            side.provider(nobody).embedding_models()
    finally:
        KnowledgeWriter(shared).delete_document("models")

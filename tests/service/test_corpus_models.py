"""RetrievalService: the embedder of a question is that of the corpus."""

from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from retrieving import (
    BY_HAND,
    LEAK,
    RECORDER,
    Make,
    contents,
    corpus,
    embedded,
    fill,
    make,
    unreachable,
)

from conftest import Server, copy_of
from second_brain.errors import ConfigurationError, DimensionMismatchError
from second_brain.models import CallableEmbedder
from second_brain.retrieval.service import RetrievalService
from second_brain.services.postgres import PostgresProvider

__all__ = ["corpus", "make"]  # fixtures


def test_a_question_of_another_model_is_refused_with_both_names(make: Make, corpus: str) -> None:
    with pytest.raises(ConfigurationError, match=r"by-hand \(3 dim.*other-model \(3 dim"):
        make(corpus, CallableEmbedder(embedded, "other-model", 3))("leaked key")


def test_of_several_embedders_the_corpus_chooses(make: Make, corpus: str) -> None:
    others = [CallableEmbedder(unreachable, "other-model", 3), BY_HAND]
    response = make(corpus, others)("leaked key")
    assert response.embedding_model == "by-hand"
    assert response.degraded is None


def test_chunks_that_name_no_model_are_any_model_s_of_their_size(make: Make, dsn: str) -> None:
    fill(dsn, model=None)
    assert contents(make(dsn)("leaked key", mode="vector"))[0] == LEAK
    with pytest.raises(ConfigurationError, match="not named"):
        make(dsn, CallableEmbedder(embedded, "small", 2))("leaked key")


@pytest.mark.slow
def test_one_chunk_without_a_model_does_not_open_the_corpus_to_another(
    make: Make, dsn: str
) -> None:
    fill(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "update public.knowledge_chunks set embedding_model = null where content = %s", [LEAK]
        )
    with pytest.raises(ConfigurationError, match="by-hand"):
        make(dsn, CallableEmbedder(embedded, "other-model", 3))("leaked key")


def test_of_two_models_in_the_corpus_the_more_frequent_one_is_asked(
    make: Make, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "update public.knowledge_chunks set embedding_model = 'new' where content = %s", [LEAK]
        )
    response = make(dsn, [CallableEmbedder(embedded, "new", 3), BY_HAND])("leaked key")
    assert response.embedding_model == "by-hand"
    assert "1 embeddings of another model than by-hand" in caplog.text


def test_an_empty_corpus_takes_any_embedder(make: Make, dsn: str) -> None:
    response = make(dsn)("leaked key")
    assert (response.results, response.total_count) == ([], 0)


def test_no_embedder_at_all_is_refused(corpus: str) -> None:
    with pytest.raises(ConfigurationError, match="embedder"):
        RetrievalService(PostgresProvider(corpus), [])


def test_a_corpus_that_changes_its_model_is_found_again(make: Make, server: Server) -> None:
    """The old corpus and the new one change places under one name, as a re-embedding does."""
    database = contextmanager(copy_of)
    with database(server, server.template(3)) as old, database(server, server.template(2)) as new:
        check_that_a_swap_is_noticed(make, server, old, new)


def check_that_a_swap_is_noticed(make: Make, server: Server, old: str, new: str) -> None:
    small = CallableEmbedder(lambda texts: embedded(texts, 2), "small", 2)
    fill(old)
    fill(new, "small", 2)
    search = make(old, [BY_HAND, small])
    assert search("recorder").embedding_model == "by-hand"
    old_name, new_name = (conninfo_to_dict(one)["dbname"] for one in (old, new))
    with psycopg.connect(server.admin_dsn(), autocommit=True) as admin:
        for before, after in ((old_name, "swapped"), (new_name, old_name), ("swapped", new_name)):
            admin.execute(
                sql.SQL("alter database {} rename to {}").format(
                    sql.Identifier(str(before)), sql.Identifier(str(after))
                )
            )
    response = search("recorder")
    assert response.embedding_model == "small"
    assert contents(response)[0] == RECORDER
    assert response.mode_used == "hybrid"


def test_dimensions_that_no_embedder_has_are_an_error(make: Make, dsn: str) -> None:
    with pytest.raises(DimensionMismatchError):
        make(dsn, CallableEmbedder(lambda texts: embedded(texts, 2), "small", 2))("leaked key")

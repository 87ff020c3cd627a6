"""The queue of embeddings in SQL: what is pending, who gets it, and what is stored."""

import json
import threading

import psycopg
import pytest
from queued import add, claim, content_hash, embed, expire, set_model, store

from conftest import Connect, Connection

pytestmark = pytest.mark.module("embedding_queue")


def test_a_chunk_without_an_embedding_is_pending_until_it_has_one(knowledge: Connection) -> None:
    add(knowledge, "one")
    assert claim(knowledge) == ["one"]
    assert store(knowledge, "one") == {"stored": 1, "chunks": 1}
    assert claim(knowledge) == []
    row = knowledge.execute("select embedding::text, embedding_model from public.knowledge_chunks")
    assert row.fetchone() == ("[1,2,3]", "m")


def test_a_claimed_text_is_not_handed_out_before_its_lease_ends(knowledge: Connection) -> None:
    add(knowledge, "one")
    assert claim(knowledge, worker="a") == ["one"]
    assert claim(knowledge, worker="b") == []
    expire(knowledge)
    assert claim(knowledge, worker="b") == ["one"]


def test_an_embedding_of_another_model_is_pending_only_if_a_setting_names_the_model(
    knowledge: Connection,
) -> None:
    add(knowledge, "one")
    embed(knowledge, "one", "old")
    assert claim(knowledge, "old") == []
    set_model(knowledge, "m")
    assert claim(knowledge, "old") == []
    assert claim(knowledge, "m") == ["one"]
    assert store(knowledge, "one") == {"stored": 1, "chunks": 1}
    assert claim(knowledge, "m") == []


@pytest.mark.parametrize("stored", [None, "a", "z"])
def test_models_before_and_after_in_the_alphabet_and_unnamed_ones_are_found(
    knowledge: Connection, stored: str | None
) -> None:
    add(knowledge, "one", "two", "three")
    for text, model in (("one", stored), ("two", "m"), ("three", stored)):
        embed(knowledge, text, model)
    set_model(knowledge, "m")
    assert claim(knowledge) == ["one", "three"]


def test_a_collection_with_a_setting_of_its_own_is_left_to_that_model(
    knowledge: Connection,
) -> None:
    add(knowledge, "general")
    add(knowledge, "special", "embedded", collection="own")
    embed(knowledge, "embedded", "m")
    set_model(knowledge, "m")
    set_model(knowledge, "n", "own")
    assert claim(knowledge, "m") == ["general"]
    assert claim(knowledge, "n") == ["embedded", "special"]


def test_a_model_that_the_corpus_does_not_have_is_refused_by_name(knowledge: Connection) -> None:
    add(knowledge, "one", "two")
    embed(knowledge, "one", "old")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"model is m.* are of old"):
        claim(knowledge, "m")


def test_a_text_that_changed_meanwhile_does_not_get_the_old_texts_embedding(
    knowledge: Connection,
) -> None:
    add(knowledge, "one")
    assert claim(knowledge) == ["one"]
    knowledge.execute("update public.knowledge_chunks set content = 'changed'")
    assert store(knowledge, "one") == {"outdated": 1}
    assert claim(knowledge) == ["changed"]


def test_of_two_workers_after_an_expired_lease_the_first_stores(knowledge: Connection) -> None:
    add(knowledge, "one")
    for worker in ("a", "b"):
        assert claim(knowledge, worker=worker) == ["one"]
        expire(knowledge)
    assert store(knowledge, "one", worker="a") == {"stored": 1, "chunks": 1}
    assert store(knowledge, "one", worker="b", embedding=[3, 2, 1]) == {"repeated": 1}
    row = knowledge.execute("select embedding::text from public.knowledge_chunks").fetchone()
    assert row == ("[1,2,3]",)


def test_a_model_that_is_renamed_meanwhile_stores_nothing(knowledge: Connection) -> None:
    add(knowledge, "one")
    assert claim(knowledge, "m") == ["one"]
    set_model(knowledge, "renamed")
    assert store(knowledge, "one", "m") == {"outdated": 1}
    assert claim(knowledge, "renamed") == ["one"]


def test_the_report_of_a_worker_that_lost_its_claim_does_not_count(knowledge: Connection) -> None:
    add(knowledge, "one")
    claim(knowledge, worker="a")
    expire(knowledge)
    claim(knowledge, worker="b")
    assert store(knowledge, "one", worker="a", error="no", is_final=True) == {}
    assert store(knowledge, "one", worker="b") == {"stored": 1, "chunks": 1}


def test_a_refused_text_waits_and_fails_after_the_fifth_attempt(knowledge: Connection) -> None:
    add(knowledge, "one")
    waits = []
    for attempt in range(1, 6):
        assert claim(knowledge) == ["one"]
        counts = store(knowledge, "one", error=f"refusal {attempt}")
        assert counts == ({"failed": 1} if attempt == 5 else {"retried": 1})
        assert claim(knowledge) == []
        (wait,) = knowledge.execute(
            # PostgreSQL 16 cannot subtract from an infinite timestamp.
            "select extract(epoch from available_at) - extract(epoch from clock_timestamp())"
            "  from public.knowledge_embedding_claims"
        ).fetchone() or (0,)
        waits.append(float(wait))
        expire(knowledge)
    for attempt, wait in enumerate(waits[:4]):
        assert 14 * 2**attempt < wait < 46 * 2**attempt
    failed = knowledge.execute(
        "select attempts, reason, model from public.failed_knowledge_embeddings()"
    )
    assert failed.fetchall() == [(5, "refusal 5", "m")]


@pytest.mark.parametrize(
    ("embedding", "reason"),
    [([0, 0, 0], "no direction"), (["a"], "not an array of finite"), ("[nan,1,2]", "not an array")],
)
def test_a_bad_vector_fails_only_its_own_text(
    knowledge: Connection, embedding: object, reason: str
) -> None:
    add(knowledge, "bad", "good")
    claim(knowledge)
    results = [
        {"content_hash": content_hash(knowledge, "bad"), "embedding": embedding},
        {"content_hash": content_hash(knowledge, "good"), "embedding": [1, 0, 0]},
    ]
    counts = knowledge.execute(
        "select stored, failed from public.store_knowledge_embeddings('m', %s)",
        [json.dumps(results)],
    ).fetchone()
    assert counts == (1, 1)
    (told,) = knowledge.execute(
        "select reason from public.failed_knowledge_embeddings()"
    ).fetchone() or ("",)
    assert reason in told
    assert claim(knowledge) == []


def test_a_change_of_the_text_removes_the_embedding_of_the_old_text(knowledge: Connection) -> None:
    add(knowledge, "one", "two", "three")
    for text in ("one", "two", "three"):
        embed(knowledge, text, "m")
    knowledge.execute(
        "update public.knowledge_chunks set content = content || '!' where content = 'one'"
    )
    knowledge.execute(
        "update public.knowledge_chunks set content = 'four', embedding = '[3,2,1]'"
        " where content = 'two'"
    )
    knowledge.execute("update public.knowledge_chunks set language = 'german'")
    rows = knowledge.execute(
        "select content, embedding::text, embedding_model, embedding_bits is null"
        "  from public.knowledge_chunks order by content"
    )
    assert rows.fetchall() == [
        ("four", "[3,2,1]", "m", False),
        ("one!", None, None, True),
        ("three", "[1,2,3]", "m", False),
    ]
    assert claim(knowledge) == ["one!"]


def test_a_change_of_the_text_ends_a_failure(knowledge: Connection) -> None:
    add(knowledge, "one")
    claim(knowledge)
    store(knowledge, "one", error="too long", is_final=True)
    knowledge.execute("update public.knowledge_chunks set content = 'shorter'")
    assert claim(knowledge) == ["shorter"]


def test_a_retry_ends_failures_of_the_model(knowledge: Connection) -> None:
    add(knowledge, "one")
    claim(knowledge)
    store(knowledge, "one", error="no", is_final=True)
    for model, texts in (("other", 0), ("m", 1)):
        found = knowledge.execute("select public.retry_knowledge_embeddings(%s)", [model])
        assert found.fetchone() == (texts,)
    assert claim(knowledge) == ["one"]


def test_a_released_text_is_free_at_once_and_no_attempt_is_counted(knowledge: Connection) -> None:
    add(knowledge, "one")
    for _ in range(10):
        assert claim(knowledge) == ["one"]
        assert store(knowledge, "one", release=True) == {"released": 1}


def test_a_text_that_ends_its_workers_is_handed_out_alone_and_fails_at_last(
    knowledge: Connection,
) -> None:
    add(knowledge, "one", "two", "three")
    for _ in range(2):
        assert claim(knowledge) == ["one", "three", "two"]
        expire(knowledge)
    for _ in range(2):
        (alone,) = claim(knowledge)
        assert store(knowledge, alone) == {"stored": 1, "chunks": 1}
    (last,) = claim(knowledge)
    for _ in range(2):
        expire(knowledge)
        assert claim(knowledge) == [last]
    expire(knowledge)
    assert claim(knowledge) == []
    row = knowledge.execute("select reason from public.failed_knowledge_embeddings()").fetchone()
    assert row == ("no worker reported a result in 5 attempts",)


def test_a_call_returns_a_bounded_number_of_bytes(knowledge: Connection) -> None:
    add(knowledge, *map(str, range(4)))
    # Analysing so long a text takes a second.
    knowledge.execute("alter table public.knowledge_chunks disable trigger user")
    knowledge.execute("update public.knowledge_chunks set content = repeat(content, 3000000)")
    assert len(claim(knowledge)) == 3
    assert len(claim(knowledge)) == 1


def test_what_is_pending_is_counted_for_each_collection(knowledge: Connection) -> None:
    add(knowledge, "one", "two", "three", collection="a")
    add(knowledge, "four", "five", collection="b")
    embed(knowledge, "five", "old")
    set_model(knowledge, "m", "b")
    claim(knowledge, "m", most=1, collections=["b"])
    claim(knowledge, "old", most=2, collections=["a"])
    knowledge.execute(
        "update public.knowledge_embedding_claims set failed_at = now(), claimed_at = null"
        " where model = 'm'"
    )
    rows = knowledge.execute(
        "select collection, model, pending, claimed, failed, oldest <= now()"
        "  from public.pending_knowledge_embeddings()"
    )
    assert rows.fetchall() == [("a", None, 3, 2, 0, True), ("b", "m", 2, 0, 1, True)]


def test_deletion_and_erasure_remove_claims_with_their_reasons(knowledge: Connection) -> None:
    owner = "00000000-0000-0000-0000-000000000001"
    knowledge.execute(
        "insert into public.knowledge_documents (external_key, owner_id)"
        " values ('k', %s), ('l', %s)",
        [owner, owner],
    )
    for key in ("k", "l"):
        knowledge.execute(
            "insert into public.knowledge_chunks (document_id, content)"
            " select id, external_key from public.knowledge_documents where external_key = %s",
            [key],
        )
    claim(knowledge)
    for call in (
        "select public.delete_knowledge_document('k')",
        f"select public.delete_knowledge_owner('{owner}')",
    ):
        knowledge.execute(call.encode())
    found = knowledge.execute("select count(*) from public.knowledge_embedding_claims")
    assert found.fetchone() == (0,)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        ("claim_knowledge_embeddings('m', 0)", "max_chunks"),
        ("claim_knowledge_embeddings('m', lease => '0')", "lease"),
        ("claim_knowledge_embeddings('m', worker => repeat('w', 201))", "worker"),
        ("claim_knowledge_embeddings('m', collections => '{a,null}')", "collections"),
        ("store_knowledge_embeddings('m', '{}')", "results"),
        ("""store_knowledge_embeddings('m', '[{"content_hash": "a"}]')""", r"results\[0\]"),
        (
            """store_knowledge_embeddings('m', '[{"content_hash": "a", "error": "", "x": 1}]')""",
            "unknown key x",
        ),
        ("failed_knowledge_embeddings(0)", "max_rows"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    knowledge: Connection, call: str, argument: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=argument):
        knowledge.execute(f"select public.{call}".encode())


@pytest.fixture
def two(connect: Connect) -> tuple[Connection, Connection]:
    """Two connections in transactions of their own."""
    return connect(), connect()


def test_an_idle_claim_removes_the_claims_of_texts_that_are_gone(
    two: tuple[Connection, Connection],
) -> None:
    one, other = two
    add(one, "one")
    claim(one)
    store(one, "one", error="no", is_final=True)
    one.execute("update public.knowledge_chunks set status = 'deleted'")
    one.execute("set lock_timeout = '60s'")
    with other.transaction():
        other.execute("select from public.knowledge_embedding_claims for update")
        assert claim(one) == []  # it waits for nobody
    claim(one)
    found = one.execute("select count(*) from public.knowledge_embedding_claims")
    assert found.fetchone() == (0,)


def test_claims_do_not_wait_for_a_claim_that_is_not_committed(
    two: tuple[Connection, Connection],
) -> None:
    one, other = two
    add(one, *map(str, range(10)))
    other.execute("set lock_timeout = '60s'")
    with one.transaction():
        first = claim(one, most=5)
        second = claim(other, most=10)
        assert len(first) == len(second) == 5
        assert not set(first) & set(second)


def test_a_claim_leaves_chunks_of_another_model_that_a_writer_holds(
    two: tuple[Connection, Connection],
) -> None:
    one, writer = two
    add(one, "one", "two")
    for text in ("one", "two"):
        embed(one, text, "old")
    set_model(one, "m")
    one.execute("set lock_timeout = '60s'")
    with writer.transaction():
        writer.execute("select from public.knowledge_chunks where content = 'one' for update")
        assert claim(one) == ["two"]


def test_a_chunk_that_a_writer_holds_is_stored_later(two: tuple[Connection, Connection]) -> None:
    one, writer = two
    add(one, "one", "two")
    claim(one)
    one.execute("set lock_timeout = '60s'")
    with writer.transaction():
        writer.execute("update public.knowledge_chunks set heading = 'H' where content = 'one'")
        assert store(one, "one") == {"retried": 1}
        assert store(one, "two") == {"stored": 1, "chunks": 1}
    assert claim(one) == ["H\none"]


def test_parallel_claims_hand_out_each_text_once(connect: Connect) -> None:
    count = 400
    add(connect(), *map(str, range(count)))
    connections = [connect("service_role") for _ in range(4)]
    got: list[list[str]] = [[] for _ in connections]
    all_began = threading.Barrier(4)

    def work(number: int) -> None:
        got[number] += claim(connections[number], most=7, worker=str(number))
        all_began.wait(60)
        while texts := claim(connections[number], most=7, worker=str(number)):
            got[number] += texts

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [text for texts in got for text in texts]
    assert len(everything) == len(set(everything)) == count
    assert all(got)


def test_a_claim_in_steady_state_reads_few_pages_of_a_large_corpus(connect: Connect) -> None:
    connection = connect()
    connection.execute(
        "insert into public.knowledge_chunks (content, collection, embedding, embedding_model)"
        " select number::text, 'c' || number % 50, '[1,2,3]', 'm'"
        "   from generate_series(1, 2000) as number"
    )
    set_model(connection, "m")
    claim(connection)
    before = pages_read(connection)
    claim(connection)
    # Of some 400: up to two for each collection.
    assert pages_read(connection) - before < 120


def pages_read(connection: Connection) -> int:
    # The counts of a transaction are there once the next one has begun.
    connection.execute("select pg_stat_force_next_flush()")
    (read,) = connection.execute(
        "select heap_blks_hit + heap_blks_read"
        "         + idx_blks_hit + idx_blks_read"
        "  from pg_statio_user_tables where relname = 'knowledge_chunks'"
    ).fetchone() or (0,)
    return int(read)

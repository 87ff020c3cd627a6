"""The queue of embeddings in SQL: what is pending, who gets it, and what is stored."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from stored import Session

from conftest import Connect, Connection

pytestmark = pytest.mark.module("embedding_queue")

CLAIM = """
select content from public.claim_knowledge_embeddings(
  model => %s, max_chunks => %s, lease => '5 minutes', worker => %s, collections => %s
)
"""


class Queue(Session):
    def add(self, *texts: str, collection: str = "knowledge") -> None:
        insert = "insert into public.knowledge_chunks (content, collection)"
        self.rows(f"{insert} select unnest(%s::text[]), %s", list(texts), collection)

    def embed(self, model: str | None, *texts: str) -> None:
        self.rows(
            "update public.knowledge_chunks set embedding = '[1,2,3]', embedding_model = %s"
            " where content = any (%s)",
            model,
            list(texts),
        )

    def set_model(self, model: str, collection: str = "") -> None:
        settings = "public.set_knowledge_settings(collection => %s, embedding_model => %s)"
        self.rows(f"select {settings}", collection, model)

    def claim(
        self,
        model: str = "m",
        *,
        most: int = 64,
        worker: str | None = None,
        collections: list[str] | None = None,
    ) -> list[str]:
        return sorted(text for (text,) in self.rows(CLAIM, model, most, worker, collections))

    def result(self, text: str, **result: object) -> dict[str, object]:
        ((hash_,),) = self.rows("select public.knowledge_content_hash(null, %s)", text)
        return {"content_hash": hash_, **(result or {"embedding": [1, 2, 3]})}

    def store(self, *results: object, model: str = "m", worker: str | None = None) -> str:
        """Store results, or embeddings of texts; return the counts that are not 0."""
        given = [self.result(one) if isinstance(one, str) else one for one in results]
        cursor = self.connection.execute(
            "select * from public.store_knowledge_embeddings(%s, %s, %s)",
            [model, json.dumps(given), worker],
        )
        names = [column.name for column in cursor.description or ()]
        counts = zip(names, cursor.fetchone() or (), strict=True)
        return ", ".join(f"{count} {name}" for name, count in counts if count)

    def fail(self, text: str, reason: str = "no", **options: Any) -> str:
        return self.store(self.result(text, error=reason, is_final=True), **options)

    def failures(self) -> list[tuple[Any, ...]]:
        return self.rows("select attempts, reason, model from public.failed_knowledge_embeddings()")

    def expire(self) -> None:
        """Let every lease and every wait end."""
        self.rows(
            "update public.knowledge_embedding_claims"
            " set available_at = now() - interval '1 second' where failed_at is null"
        )

    def count_claims(self) -> int:
        ((count,),) = self.rows("select count(*) from public.knowledge_embedding_claims")
        return int(count)


@pytest.fixture
def queue(knowledge: Connection) -> Queue:
    return Queue(knowledge)


def test_a_chunk_without_an_embedding_is_pending_until_it_has_one(queue: Queue) -> None:
    queue.add("one")
    assert queue.claim() == ["one"]
    assert queue.store("one") == "1 stored, 1 chunks"
    assert queue.claim() == []
    stored = queue.rows("select embedding::text, embedding_model from public.knowledge_chunks")
    assert stored == [("[1,2,3]", "m")]


def test_a_claimed_text_is_not_handed_out_before_its_lease_ends(queue: Queue) -> None:
    queue.add("one")
    assert queue.claim(worker="a") == ["one"]
    assert queue.claim(worker="b") == []
    queue.expire()
    assert queue.claim(worker="b") == ["one"]


def test_an_embedding_of_another_model_is_pending_only_if_a_setting_names_the_model(
    queue: Queue,
) -> None:
    queue.add("one")
    queue.embed("old", "one")
    assert queue.claim("old") == []
    queue.set_model("m")
    assert queue.claim("old") == []
    assert queue.claim("m") == ["one"]
    assert queue.store("one") == "1 stored, 1 chunks"
    assert queue.claim("m") == []


@pytest.mark.parametrize("stored", [None, "a", "z"])
def test_models_before_and_after_in_the_alphabet_and_unnamed_ones_are_found(
    queue: Queue, stored: str | None
) -> None:
    queue.add("one", "two", "three")
    queue.embed("m", "two")
    queue.embed(stored, "one", "three")
    queue.set_model("m")
    assert queue.claim() == ["one", "three"]


def test_a_collection_with_a_setting_of_its_own_is_left_to_that_model(queue: Queue) -> None:
    queue.add("general")
    queue.add("special", "embedded", collection="own")
    queue.embed("m", "embedded")
    queue.set_model("m")
    queue.set_model("n", "own")
    assert queue.claim("m") == ["general"]
    assert queue.claim("n") == ["embedded", "special"]


def test_a_model_that_the_corpus_does_not_have_is_refused_by_name(queue: Queue) -> None:
    queue.add("one", "two")
    queue.embed("old", "one")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"model is m.* are of old"):
        queue.claim("m")


def test_a_text_that_changed_meanwhile_does_not_get_the_old_texts_embedding(queue: Queue) -> None:
    queue.add("one")
    assert queue.claim() == ["one"]
    queue.rows("update public.knowledge_chunks set content = 'changed'")
    assert queue.store("one") == "1 outdated"
    assert queue.claim() == ["changed"]


def test_of_two_workers_after_an_expired_lease_the_first_stores(queue: Queue) -> None:
    queue.add("one")
    for worker in ("a", "b"):
        assert queue.claim(worker=worker) == ["one"]
        queue.expire()
    assert queue.store("one", worker="a") == "1 stored, 1 chunks"
    assert queue.store(queue.result("one", embedding=[3, 2, 1]), worker="b") == "1 repeated"
    assert queue.rows("select embedding::text from public.knowledge_chunks") == [("[1,2,3]",)]


def test_a_model_that_is_renamed_meanwhile_stores_nothing(queue: Queue) -> None:
    queue.add("one")
    assert queue.claim("m") == ["one"]
    queue.set_model("renamed")
    assert queue.store("one") == "1 outdated"
    assert queue.claim("renamed") == ["one"]


def test_the_report_of_a_worker_that_lost_its_claim_does_not_count(queue: Queue) -> None:
    queue.add("one")
    queue.claim(worker="a")
    queue.expire()
    queue.claim(worker="b")
    assert queue.fail("one", worker="a") == ""
    assert queue.store("one", worker="b") == "1 stored, 1 chunks"


def test_a_refused_text_waits_and_fails_after_the_fifth_attempt(queue: Queue) -> None:
    queue.add("one")
    waits = []
    for attempt in range(1, 6):
        assert queue.claim() == ["one"]
        refused = queue.store(queue.result("one", error=f"refusal {attempt}"))
        assert refused == ("1 failed" if attempt == 5 else "1 retried")
        assert queue.claim() == []
        ((wait,),) = queue.rows(
            # PostgreSQL 16 cannot subtract from an infinite timestamp.
            "select extract(epoch from available_at) - extract(epoch from clock_timestamp())"
            "  from public.knowledge_embedding_claims"
        )
        waits.append(float(wait))
        queue.expire()
    for attempt, wait in enumerate(waits[:4]):
        assert 14 * 2**attempt < wait < 46 * 2**attempt
    assert queue.failures() == [(5, "refusal 5", "m")]


@pytest.mark.parametrize(
    ("embedding", "message"),
    [([0, 0, 0], "no direction"), (["a"], "not an array of finite"), ("[nan,1,2]", "not an array")],
)
def test_a_bad_vector_fails_only_its_own_text(
    queue: Queue, embedding: object, message: str
) -> None:
    queue.add("bad", "good")
    queue.claim()
    counts = queue.store(queue.result("bad", embedding=embedding), "good")
    assert counts == "1 stored, 1 chunks, 1 failed"
    ((_, reason, _),) = queue.failures()
    assert message in reason
    assert queue.claim() == []


def test_a_change_of_the_text_removes_the_embedding_of_the_old_text(queue: Queue) -> None:
    queue.add("one", "two", "three")
    queue.embed("m", "one", "two", "three")
    change = "update public.knowledge_chunks set"
    queue.rows(f"{change} content = content || '!' where content = 'one'")
    queue.rows(f"{change} content = 'four', embedding = '[3,2,1]' where content = 'two'")
    queue.rows(f"{change} language = 'german'")
    assert queue.rows(
        "select content, embedding::text, embedding_model, embedding_bits is null"
        "  from public.knowledge_chunks order by content"
    ) == [
        ("four", "[3,2,1]", "m", False),
        ("one!", None, None, True),
        ("three", "[1,2,3]", "m", False),
    ]
    assert queue.claim() == ["one!"]


def test_a_change_of_the_text_ends_a_failure(queue: Queue) -> None:
    queue.add("one")
    queue.claim()
    queue.fail("one", "too long")
    queue.rows("update public.knowledge_chunks set content = 'shorter'")
    assert queue.claim() == ["shorter"]


def test_a_retry_ends_failures_of_the_model(queue: Queue) -> None:
    queue.add("one")
    queue.claim()
    queue.fail("one")
    retry = "select public.retry_knowledge_embeddings(%s)"
    assert queue.rows(retry, "other") == [(0,)]
    assert queue.rows(retry, "m") == [(1,)]
    assert queue.claim() == ["one"]


def test_a_released_text_is_free_at_once_and_no_attempt_is_counted(queue: Queue) -> None:
    queue.add("one")
    for _ in range(10):
        assert queue.claim() == ["one"]
        assert queue.store(queue.result("one", release=True)) == "1 released"


def test_a_text_that_ends_its_workers_is_handed_out_alone_and_fails_at_last(queue: Queue) -> None:
    queue.add("one", "two", "three")
    for _ in range(2):
        assert queue.claim() == ["one", "three", "two"]
        queue.expire()
    for _ in range(2):
        (alone,) = queue.claim()
        assert queue.store(alone) == "1 stored, 1 chunks"
    (last,) = queue.claim()
    for _ in range(2):
        queue.expire()
        assert queue.claim() == [last]
    queue.expire()
    assert queue.claim() == []
    assert queue.failures() == [(5, "no worker reported a result in 5 attempts", "m")]


def test_a_call_returns_a_bounded_number_of_bytes(queue: Queue) -> None:
    queue.add(*map(str, range(4)))
    # Analysing so long a text takes a second.
    queue.rows("alter table public.knowledge_chunks disable trigger user")
    queue.rows("update public.knowledge_chunks set content = repeat(content, 3000000)")
    assert [len(queue.claim()) for _ in range(2)] == [3, 1]


def test_what_is_pending_is_counted_for_each_collection(queue: Queue) -> None:
    queue.add("one", "two", "three", collection="a")
    queue.add("four", "five", collection="b")
    queue.embed("old", "five")
    queue.set_model("m", "b")
    queue.claim("m", most=1, collections=["b"])
    queue.claim("old", most=2, collections=["a"])
    queue.rows(
        "update public.knowledge_embedding_claims set failed_at = now(), claimed_at = null"
        " where model = 'm'"
    )
    assert queue.rows(
        "select collection, model, pending, claimed, failed, oldest <= now()"
        "  from public.pending_knowledge_embeddings()"
    ) == [("a", None, 3, 2, 0, True), ("b", "m", 2, 0, 1, True)]


@pytest.mark.parametrize(
    "deletion", ["document('k')", "owner('00000000-0000-0000-0000-000000000001')"]
)
def test_deletion_and_erasure_remove_claims_with_their_reasons(queue: Queue, deletion: str) -> None:
    queue.rows(
        "with document as (insert into public.knowledge_documents (external_key, owner_id)"
        "  values ('k', '00000000-0000-0000-0000-000000000001') returning id)"
        " insert into public.knowledge_chunks (document_id, content) select id, 'k' from document"
    )
    assert queue.claim() == ["k"]
    queue.rows(f"select public.delete_knowledge_{deletion}")
    assert queue.count_claims() == 0


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
def test_a_wrong_argument_is_refused_by_name(queue: Queue, call: str, argument: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=argument):
        queue.rows(f"select public.{call}")


@pytest.fixture
def one(connect: Connect) -> Queue:
    """A queue that waits for no lock for long, in transactions of its own."""
    connection = connect()
    connection.execute("set lock_timeout = '60s'")
    return Queue(connection)


@pytest.fixture
def other(connect: Connect) -> Queue:
    return Queue(connect())


def test_an_idle_claim_removes_the_claims_of_texts_that_are_gone(one: Queue, other: Queue) -> None:
    one.add("one")
    one.claim()
    one.fail("one")
    one.rows("update public.knowledge_chunks set status = 'deleted'")
    with other.connection.transaction():
        other.rows("select from public.knowledge_embedding_claims for update")
        assert one.claim() == []  # it waits for nobody
    one.claim()
    assert one.count_claims() == 0


def test_claims_do_not_wait_for_a_claim_that_is_not_committed(one: Queue, other: Queue) -> None:
    one.add(*map(str, range(10)))
    with other.connection.transaction():
        first, second = other.claim(most=5), one.claim(most=10)
        assert len(first) == len(second) == 5
        assert not set(first) & set(second)


def test_a_claim_leaves_chunks_of_another_model_that_a_writer_holds(
    one: Queue, other: Queue
) -> None:
    one.add("one", "two")
    one.embed("old", "one", "two")
    one.set_model("m")
    with other.connection.transaction():
        other.rows("select from public.knowledge_chunks where content = 'one' for update")
        assert one.claim() == ["two"]


def test_a_chunk_that_a_writer_holds_is_stored_later(one: Queue, other: Queue) -> None:
    one.add("one", "two")
    one.claim()
    with other.connection.transaction():
        other.rows("update public.knowledge_chunks set heading = 'H' where content = 'one'")
        assert one.store("one") == "1 retried"
        assert one.store("two") == "1 stored, 1 chunks"
    assert one.claim() == ["H\none"]


def test_parallel_claims_hand_out_each_text_once(one: Queue, connect: Connect) -> None:
    count = 400
    one.add(*map(str, range(count)))
    queues = [Queue(connect("service_role")) for _ in range(4)]
    all_began = threading.Barrier(4)

    def work(number: int) -> list[str]:
        got = queues[number].claim(most=7, worker=str(number))
        all_began.wait(60)
        while texts := queues[number].claim(most=7, worker=str(number)):
            got += texts
        return got

    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(work, range(4)))
    everything = [text for texts in got for text in texts]
    assert len(everything) == len(set(everything)) == count
    assert all(got)


def test_a_claim_in_steady_state_reads_few_pages_of_a_large_corpus(one: Queue) -> None:
    one.rows(
        "insert into public.knowledge_chunks (content, collection, embedding, embedding_model)"
        " select number::text, 'c' || number % 50, '[1,2,3]', 'm'"
        "   from generate_series(1, 2000) as number"
    )
    one.set_model("m")
    one.claim()
    before = pages_read(one)
    one.claim()
    # Of some 400: up to two for each collection.
    assert pages_read(one) - before < 120


def pages_read(queue: Queue) -> int:
    # The counts of a transaction are there once the next one has begun.
    queue.rows("select pg_stat_force_next_flush()")
    ((read,),) = queue.rows(
        "select sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)"
        "  from pg_statio_user_tables where relname = 'knowledge_chunks'"
    )
    return int(read)

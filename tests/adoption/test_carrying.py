"""An adopted table: its rows become documents, in the transaction that writes them."""

import threading

import psycopg
import pytest
from adopted import GUIDE, adopt, backfill, compare, contents, documents, reasons

from conftest import Connect, Connection

pytestmark = pytest.mark.module("adoption")


@pytest.fixture
def source(database: Connection) -> Connection:
    """A database with an adopted table of three rows, not carried over yet."""
    database.execute(GUIDE)
    database.execute(
        "insert into public.documents (title, content, metadata, embedding) values"
        " ('Keys', 'Rotate the keys.', '{\"team\": \"security\"}', '[1,0,0]'),"
        " (null, 'Water the plants.', null, null),"
        " ('Zero', 'Empty the bin.', '{}', '[0,0,0]')"
    )
    adopt(database)
    return database


def test_a_backfill_makes_a_document_of_each_row(source: Connection) -> None:
    done = backfill(source)
    assert done == 3
    found = documents(source)
    keys = found["documents/1"]
    assert keys["title"] == "Keys"
    assert keys["metadata"] == {"team": "security"}
    assert keys["source_row"] == {
        "adoption": "documents",
        "table": "public.documents",
        "key": {"id": 1},
        "types": {"id": "bigint"},
    }
    assert keys["chunks"] == [
        {"content": "Rotate the keys.", "heading": "Keys", "embedding": "[1,0,0]", "model": "m"}
    ]
    assert found["documents/2"]["metadata"] == {}
    assert found["documents/2"]["chunks"][0]["embedding"] is None
    assert compare(source).differences == 0


def test_a_zero_embedding_and_an_address_of_another_scheme_are_left_out_and_noted(
    source: Connection,
) -> None:
    backfill(source)
    assert documents(source)["documents/3"]["chunks"][0]["embedding"] is None
    assert list(reasons(source)) == ["3"]
    assert "no direction" in reasons(source)["3"]
    source.execute("update public.documents set embedding = '[0,1,0]' where id = 3")
    assert documents(source)["documents/3"]["chunks"][0]["embedding"] == "[0,1,0]"
    assert reasons(source) == {}
    source.execute("create table public.links (id int primary key, content text, url text)")
    adopt(source, "public.links")
    source.execute("insert into public.links values (1, 'a', 'javascript:x'), (2, 'b', '/p')")
    addresses = {key: one["source_url"] for key, one in documents(source).items()}
    assert (addresses["links/1"], addresses["links/2"]) == (None, "/p")
    assert "source_url is no address" in reasons(source, "links")["1"]
    assert compare(source, "links").differences == 0


INSERT = "insert into public.documents (id, content) overriding system value "
# Statements, and the texts of the rows that differ afterwards; none: no chunk, None: no document.
WRITES: dict[str, tuple[str, dict[int, list[str] | None]]] = {
    "insert": (f"{INSERT} values (4, 'Feed the cat.')", {4: ["Feed the cat."]}),
    "update": ("update public.documents set content = 'Wet.' where id = 2", {2: ["Wet."]}),
    "copy": ("copy public.documents (content) from stdin", {4: ["Copied."]}),
    "delete": ("delete from public.documents where id < 3", {1: None, 2: None}),
    "truncate": ("truncate public.documents", {1: None, 2: None, 3: None}),
    "upsert": (
        f"{INSERT} values (1, 'Conflict.'), (10, 'Inserted.')"
        " on conflict (id) do update set content = excluded.content",
        {1: ["Conflict."], 10: ["Inserted."]},
    ),
    "merge": (
        "merge into public.documents using (values (2, 'x'), (11, 'Merged.')) as given (id, text)"
        " on documents.id = given.id when matched then delete"
        " when not matched then insert (id, content) overriding system value"
        " values (given.id, given.text)",
        {2: None, 11: ["Merged."]},
    ),
    "delete and insert again": (
        "with gone as (delete from public.documents where id = 1 returning content)"
        f" {INSERT} select 9, content || '!' from gone",
        {1: None, 9: ["Rotate the keys.!"]},
    ),
    # The title of the first row can be searched.
    "without text": (
        "update public.documents set content = E' \n', embedding = null where id < 3",
        {1: [" \n"], 2: []},
    ),
    "with text again": (
        "update public.documents set content = '' where id = 2;"
        "update public.documents set content = 'Water.' where id = 2",
        {2: ["Water."]},
    ),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("is_before", [False, True])
def test_each_write_is_carried_over_and_each_row_backfilled(
    source: Connection, write: str, is_before: bool
) -> None:
    statement, changed = WRITES[write]
    if not is_before:
        backfill(source)
        assert source.execute(
            "select document_count from public.knowledge_corpus_statistics"
        ).fetchall() == [(3,)]
    if statement.startswith("copy"):
        with source.cursor().copy(statement.encode()) as copy:
            copy.write_row(("Copied.",))
    else:
        source.execute(statement.encode())
    if is_before:
        backfill(source)
    texts = {1: ["Rotate the keys."], 2: ["Water the plants."], 3: ["Empty the bin."]}
    expected = {f"documents/{key}": text for key, text in {**texts, **changed}.items()}
    assert contents(source) == {key: text for key, text in expected.items() if text is not None}
    assert compare(source).differences == 0


def test_several_rows_of_the_view_with_one_key_are_listed(source: Connection) -> None:
    source.execute(
        "create or replace view knowledge_internal.adopted_documents as"
        " select source.id as key_1, source.content, source.embedding, source.metadata,"
        " source.title, 'knowledge' as collection, 'private' as visibility,"
        " 'other' as source_origin"
        "  from public.documents as source cross join generate_series(1, source.id)"
    )
    backfill(source)
    assert contents(source) == {"documents/1": ["Rotate the keys."]}
    assert set(reasons(source)) == {"2", "3"}


def test_a_cascade_and_a_partitioned_table_are_carried_over(database: Connection) -> None:
    database.execute(
        "create table public.books (id int primary key);"
        " create table public.pages (id int primary key, book int references public.books on delete"
        " cascade, content text) partition by list (id);"
        " create table public.pages_1 partition of public.pages for values in (1);"
        " create table public.pages_2 partition of public.pages for values in (2, 3)"
    )
    adopt(database, "public.pages")
    database.execute("insert into public.books values (1), (2)")
    database.execute("insert into public.pages values (1, 1, 'one'), (2, 2, 'two')")
    database.execute("update public.pages set id = 3 where id = 2")
    assert contents(database) == {"pages/1": ["one"], "pages/3": ["two"]}
    database.execute("delete from public.books where id = 2")
    # The cascade names the partition: only the comparison finds what it deleted.
    found = compare(database, "pages", repair=True)
    assert found.left_over in (0, 1)
    assert contents(database) == {"pages/1": ["one"]}


def test_a_worker_s_embedding_is_kept_until_the_text_changes(source: Connection) -> None:
    backfill(source)
    source.execute(
        "update public.knowledge_chunks set embedding = '[1,1,0]', embedding_model = 'm'"
        " where embedding is null"
    )
    source.execute("update public.documents set metadata = '{\"seen\": true}', title = title")
    assert documents(source)["documents/2"]["chunks"][0]["embedding"] == "[1,1,0]"
    assert compare(source).differences == 0
    source.execute("update public.documents set content = 'Another text.' where id = 2")
    assert documents(source)["documents/2"]["chunks"][0]["embedding"] is None


def test_embeddings_of_a_model_that_the_corpus_left_are_not_used(source: Connection) -> None:
    source.execute("select public.set_knowledge_settings(embedding_model => 'other')")
    backfill(source)
    embeddings = [row["chunks"][0]["embedding"] for row in documents(source).values()]
    assert embeddings == [None, None, None]
    assert (compare(source).differences, reasons(source)) == (0, {})


def test_the_filter_of_a_changed_view_decides_what_is_carried_over(source: Connection) -> None:
    backfill(source)
    source.execute(
        "create or replace view knowledge_internal.adopted_documents as"
        " select source.id as key_1, source.content, source.embedding, source.metadata,"
        " source.title, 'knowledge' as collection, 'public' as visibility,"
        " 'other' as source_origin from public.documents as source where source.id < 3"
    )
    found = compare(source, repair=True)
    assert (found.different, found.left_over) == (2, 1)
    assert {row["visibility"] for row in documents(source).values()} == {"public"}
    source.execute("update public.documents set content = content || '!'")
    assert sorted(documents(source)) == ["documents/1", "documents/2"]
    assert compare(source).differences == 0


def rows_read(connection: Connection) -> int:
    """Count the rows and entries that scans of the table of documents have read."""
    connection.execute("select pg_stat_force_next_flush()")
    (row,) = connection.execute(
        "select seq_tup_read + (select sum(idx_tup_read) from pg_stat_user_indexes as index"
        "                        where index.relid = stat.relid)"
        "  from pg_stat_user_tables as stat where stat.relname = 'knowledge_documents'"
    ).fetchall()
    return int(row[0])


@pytest.mark.parametrize("analysed", [False, True])
def test_a_write_of_one_row_reads_no_other_document(source: Connection, analysed: bool) -> None:
    source.execute(
        "insert into public.documents (content) select 'Row ' || n from generate_series(1, 2) as n"
    )
    # Documents as of two thousand other rows; writing real ones takes a while.
    source.execute(
        "insert into public.knowledge_documents (external_key, source_row)"
        " select 'documents/' || n, jsonb_build_object('adoption', 'documents',"
        "          'table', 'public.documents', 'key', jsonb_build_object('id', n))"
        "  from generate_series(1000, 3000) as n"
    )
    if analysed:
        source.execute("analyze public.knowledge_documents")
    for statement in (
        "update public.documents set content = 'Shear the sheep.' where id = 1",
        "delete from public.documents where id = 4",
        "insert into public.documents (content) values ('Milk the cow.')",
    ):
        before = rows_read(source)
        source.execute(statement.encode())
        assert rows_read(source) - before < 200


@pytest.fixture
def loose(database: Connection) -> Connection:
    """A database with an adopted table of any metadata, owner and date."""
    database.execute(
        "create table public.documents (id int primary key, content text, metadata jsonb,"
        " owner_text text, embedding extensions.vector)"
    )
    adopt(database, options={"owner": "owner_text"})
    return database


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("content", None, "content is null"),
        ("metadata", "[1]", "document.metadata must be a JSON object"),
        ("metadata", '{"n": 1e400}', "number beyond"),
        ("owner_text", "nobody", "document.owner_id must be a UUID"),
        ("embedding", "[1,2]", "dimensions"),
    ],
)
def test_a_wrong_row_is_listed_and_the_others_are_stored(
    loose: Connection, column: str, value: str | None, reason: str
) -> None:
    loose.execute("insert into public.documents (id, content) values (1, 'a'), (2, 'b'), (3, 'c')")
    assert len(documents(loose)) == 3
    kind = {"metadata": "jsonb", "embedding": "extensions.vector"}.get(column, "text")
    assignment = (
        "content = case id when 2 then %s else content || '!' end"
        if column == "content"
        else f"content = content || '!', {column} = (case id when 2 then %s end)::{kind}"
    )
    loose.execute(f"update public.documents set {assignment}".encode(), [value])
    assert contents(loose) == {"documents/1": ["a!"], "documents/3": ["c!"]}
    assert list(reasons(loose)) == ["2"]
    assert reason in reasons(loose)["2"]
    found = compare(loose)
    assert found.differences == 0
    assert len(found.problems) == 1


@pytest.mark.parametrize("wrong", [1, 17, 40])
def test_one_wrong_row_of_a_statement_is_found_among_many(loose: Connection, wrong: int) -> None:
    loose.execute(
        "insert into public.documents (id, content, metadata)"
        " select n, 'text ' || n, case n when %s then '[]'::jsonb end"
        "  from generate_series(1, 40) as n",
        [wrong],
    )
    assert list(reasons(loose)) == [str(wrong)]
    assert len(documents(loose)) == 39
    assert compare(loose).differences == 0


def test_a_key_that_is_too_long_is_listed(database: Connection) -> None:
    database.execute("create table public.notes (id text primary key, content text)")
    adopt(database, "public.notes")
    database.execute("insert into public.notes values (repeat('k', 5000), 'long'), ('k', 'short')")
    assert contents(database) == {"notes/k": ["short"]}
    (reason,) = reasons(database, "notes").values()
    assert "external_key" in reason


def test_a_view_that_fails_breaks_no_write(loose: Connection) -> None:
    loose.execute("insert into public.documents (id, content) values (1, 'a')")
    loose.execute("drop view knowledge_internal.adopted_documents")
    loose.execute("update public.documents set content = 'b' where id = 1")
    assert documents(loose) == {}
    assert "does not exist" in reasons(loose)["1"]


def test_a_write_that_is_rolled_back_leaves_nothing(loose: Connection) -> None:
    with loose.transaction(force_rollback=True):
        loose.execute("insert into public.documents (id, content) values (1, null), (2, 'b')")
        assert list(documents(loose)) == ["documents/2"]
    assert documents(loose) == {}
    assert reasons(loose) == {}


def test_a_timeout_ends_the_write_and_lists_nothing(loose: Connection, connect: Connect) -> None:
    loose.execute("insert into public.documents (id, content) values (1, 'a')")
    with connect().transaction():
        loose.execute("select 1")
    holder = connect()
    with holder.transaction(force_rollback=True):
        holder.execute("select from public.knowledge_documents for update")
        loose.execute("set lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            loose.execute("update public.documents set content = 'b'")
        loose.execute("set lock_timeout = 0; set statement_timeout = '200ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            loose.execute("update public.documents set content = 'b'")
    loose.execute("set statement_timeout = 0")
    assert reasons(loose) == {}
    assert contents(loose) == {"documents/1": ["a"]}


def test_a_serialization_failure_reaches_the_writer(loose: Connection, connect: Connect) -> None:
    loose.execute("insert into public.documents (id, content) values (1, 'a')")
    first, second = connect(), connect()
    for one in (first, second):
        one.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with first.transaction():
        first.execute("select from public.documents")
        second.execute("update public.knowledge_documents set title = 'changed'")
        with pytest.raises(psycopg.errors.SerializationFailure), first.transaction():
            first.execute("update public.documents set content = 'b'")
    assert reasons(loose) == {}


def test_a_deadlock_ends_one_write_and_nothing_else(loose: Connection, connect: Connect) -> None:
    loose.execute("insert into public.documents (id, content) values (1, 'a'), (2, 'b')")
    first, second = connect(), connect()
    outcomes: list[str] = []

    def write(connection: Connection, key: int) -> None:
        try:
            connection.execute(
                "update public.documents set content = content || 'x' where id = %s", [key]
            )
            connection.commit()
            outcomes.append("committed")
        except psycopg.errors.DeadlockDetected:
            connection.rollback()
            outcomes.append("deadlock")

    for one, key in ((first, 1), (second, 2)):
        one.autocommit = False
        one.execute("update public.documents set content = content || 'y' where id = %s", [key])
    threads = [threading.Thread(target=write, args=given) for given in ((first, 2), (second, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["committed", "deadlock"]
    assert reasons(loose) == {}
    assert compare(loose).differences == 0

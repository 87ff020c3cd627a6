"""A table that is searched in place: it keeps its texts and its embeddings."""

from typing import Any

import psycopg
import pytest
from adopted import GUIDE, LARGE, VECTOR_INDEX, Row, adopt, backfill, compare, reasons
from psycopg.types.json import Jsonb

from conftest import Connection
from second_brain.adoption import carrying
from second_brain.database import migrations
from second_brain.errors import ConfigurationError
from second_brain.integrations.store import TextStore
from second_brain.services.install import Database

pytestmark = pytest.mark.module("adoption")

GIVEN_ROW: Row = {"query_embedding": "[0,1,1]", "match_threshold": 0.99}


def order_of(connection: Connection) -> object:
    """Return how the vector index of the adopted table is read, null without one."""
    ((order,),) = connection.execute("select order_sql from public.knowledge_adoptions").fetchall()
    return order


@pytest.fixture
def source(database: Connection) -> Connection:
    database.execute(GUIDE)
    database.execute(
        "insert into public.documents (title, content, metadata, embedding) values"
        " ('Keys', 'Rotate the keys.', '{\"team\": \"security\"}', '[1,0,0]'),"
        " (null, 'Water the plants.', null, '[0,1,0]'),"
        " ('Bin', 'Empty the bin.', '{}', '[0,0,1]')"
    )
    adopt(database)
    backfill(database)
    return database


def search(connection: Connection, **arguments: Any) -> list[Row]:
    (rows,) = connection.execute(
        "select coalesce(jsonb_agg(to_jsonb(hit) order by hit.ordinality), '[]')"
        "  from knowledge_internal.search(knowledge_internal.given_arguments(%s))"
        "       with ordinality as hit",
        [Jsonb(arguments)],
    ).fetchone() or ([],)
    return list(rows)


def found(connection: Connection, **arguments: Any) -> list[str]:
    return [row["content"] for row in search(connection, **arguments)]


def stored(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute(
        "select content, embedding, embedding_bits is not null from public.knowledge_chunks"
        " order by place_key"
    ).fetchall()


def test_a_row_is_found_and_neither_text_nor_embedding_is_stored_twice(source: Connection) -> None:
    assert stored(source) == [(None, None, True)] * 3
    (hit,) = search(source, query_text="rotate", snippet=True)
    assert hit["content"] == "Rotate the keys."
    assert hit["snippet"] == "<mark>Rotate</mark> the keys."
    assert (hit["title"], hit["external_key"]) == ("Keys", "documents/1")
    assert hit["source_row"]["key"] == {"id": 1}
    hit, *_ = search(source, query_embedding="[0,0.9,0.1]")
    assert hit["content"] == "Water the plants."
    assert round(hit["similarity"], 3) == 0.994


def test_a_row_whose_text_is_unchanged_is_not_analysed_again(source: Connection) -> None:
    analysed = "select id, content_tsv, embedding_bits, version from public.knowledge_chunks"
    before = source.execute(f"{analysed} order by id".encode()).fetchall()
    source.execute("update public.documents set metadata = '{\"seen\": 1}'")
    assert source.execute(f"{analysed} order by id".encode()).fetchall() == before
    hit, *_ = search(source, query_text="rotate")
    assert hit["metadata"] == {"seen": 1}


def test_no_setting_of_a_session_stops_a_write_from_being_carried_over(source: Connection) -> None:
    for number, value in enumerate(("on", "true", "00000000-0000-0000-0000-000000000000")):
        source.execute(f"set knowledge_internal.stores_place = '{value}'".encode())
        source.execute(
            "update public.documents set content = %s where id = 1", [f"Number {number}."]
        )
        assert found(source, query_text=f"number {number}") == [f"Number {number}."]


def test_a_row_deleted_without_triggers_is_not_shown_and_is_repaired(source: Connection) -> None:
    source.execute("alter table public.documents disable trigger user")
    source.execute("delete from public.documents where id = 1")
    assert found(source, query_text="rotate keys") == []
    assert found(source, query_text="keys or plants", match_count=1) in ([], ["Water the plants."])
    source.execute("alter table public.documents enable trigger user")
    assert compare(source, repair=True).left_over == 1
    assert len(stored(source)) == 2


@pytest.fixture
def two(source: Connection) -> Connection:
    """Two tables that are searched in place, and a chunk of none."""
    source.execute(
        "create table public.notes (id uuid primary key default gen_random_uuid(), body text,"
        " vector extensions.halfvec(3))"
    )
    source.execute("insert into public.notes (body, vector) values ('Rotate notes.', '[1,1,0]')")
    adopt(source, "public.notes")
    backfill(source, "notes")
    source.execute(
        "insert into public.knowledge_chunks (collection, content, embedding)"
        " values ('own', 'Rotate own.', '[1,0,1]')"
    )
    return source


@pytest.mark.parametrize("is_large", [False, True])
def test_a_dropped_table_ends_no_search(two: Connection, is_large: bool) -> None:
    if is_large:
        two.execute(LARGE)
    question = {"query_text": "rotate", "query_embedding": "[1,0.2,0.2]", "match_threshold": 0.5}
    assert set(found(two, **question)) == {"Rotate the keys.", "Rotate notes.", "Rotate own."}
    two.execute("drop table public.documents cascade")
    assert set(found(two, **question)) == {"Rotate notes.", "Rotate own."}
    two.execute("insert into public.notes (body) values ('Rotate more.')")
    assert "Rotate more." in found(two, **question)
    with pytest.raises(ConfigurationError, match="no view: it was dropped, or its table"):
        compare(two, repair=True)
    assert compare(two, "notes").differences == 0
    carrying.remove(Database(two), "documents")
    assert set(found(two, **question)) == {"Rotate notes.", "Rotate own.", "Rotate more."}


def queue(connection: Connection, embedding: str, model: str = "m") -> int:
    """Work as an embedding worker does, until nothing is pending; count the texts."""
    done = 0
    while True:
        rows = connection.execute(
            "select chunk_id, content_hash from public.claim_knowledge_embeddings(model => %s)",
            [model],
        ).fetchall()
        if not rows:
            return done
        results = [
            {"chunk_id": str(one), "content_hash": text, "embedding": embedding}
            for one, text in rows
        ]
        connection.execute(
            "select public.store_knowledge_embeddings(%s, %s)", [model, Jsonb(results)]
        )
        done += len(rows)


@pytest.mark.module("embedding_queue")
def test_a_worker_writes_into_the_table_and_again_for_another_text(source: Connection) -> None:
    source.execute("insert into public.documents (content) values ('Sweep.')")
    assert queue(source, "[1,1,1]") == 1
    (row,) = source.execute("select embedding::text from public.documents where id = 4").fetchall()
    assert row == ("[1,1,1]",)
    assert found(source, query_embedding="[1,1,1]", match_threshold=0.9) == ["Sweep."]
    source.execute("update public.documents set content = 'Sweep twice.' where id = 4")
    (row,) = source.execute("select embedding from public.documents where id = 4").fetchall()
    assert row == (None,)
    assert queue(source, "[0,1,1]") == 1
    assert found(source, query_embedding="[0,1,1]", match_threshold=0.9) == ["Sweep twice."]
    assert compare(source).differences == 0
    # Who made an embedding of the table is not asked: that of the table holds.
    source.execute("update public.documents set content = 'Rotate wheels.' where id = 1")
    assert queue(source, "[1,1,1]") == 0


@pytest.mark.module("embedding_queue")
def test_the_embeddings_of_a_table_without_them_are_kept_beside_it(database: Connection) -> None:
    database.execute("create table public.notes (id text primary key, content text)")
    adopt(database, "public.notes")
    database.execute("insert into public.notes values ('a', 'one'), ('b', 'two')")
    assert queue(database, "[0,1,0]") == 2
    assert set(found(database, query_embedding="[0,1,0]")) == {"one", "two"}
    database.execute("update public.notes set content = 'three' where id = 'a'")
    assert found(database, query_embedding="[0,1,0]") == ["two"]
    assert queue(database, "[1,1,0]") == 1
    assert compare(database, "notes").differences == 0


@pytest.mark.module("embedding_queue")
@pytest.mark.parametrize("is_large", [False, True])
def test_embeddings_of_another_model_are_kept_apart(source: Connection, is_large: bool) -> None:
    if is_large:
        source.execute(LARGE)
        source.execute(VECTOR_INDEX)
        compare(source, repair=True)
    embeddings = "select embedding from public.documents order by id"
    before = source.execute(embeddings).fetchall()
    source.execute("select public.set_knowledge_settings(embedding_model => 'other')")
    assert queue(source, "[0,1,1]", "other") == 3
    assert compare(source).differences == 0
    assert len(found(source, **GIVEN_ROW)) == 3
    source.execute("update public.documents set metadata = '{\"seen\": 1}'")
    assert len(found(source, **GIVEN_ROW)) == 3
    assert source.execute(embeddings).fetchall() == before
    source.execute("update public.documents set content = 'Other.' where id = 1")
    assert len(found(source, **GIVEN_ROW)) == 2
    assert queue(source, "[1,1,0]", "other") == 1
    assert found(source, query_embedding="[1,1,0]", match_threshold=0.99) == ["Other."]


CHUNKS = """
create table public.parents (id int primary key, name text);
create table public.parts (
  id uuid primary key default gen_random_uuid(), parent int references public.parents, place int,
  content text, tags jsonb, embedding extensions.vector(3)
);
insert into public.parents values (1, 'Harbour'), (2, 'Ferry');
insert into public.parts (parent, place, content, tags, embedding)
select parent, place, format('part %s of %s', place, parent), jsonb_build_object('n', place),
       format('[%s,%s,1]', parent, place)::extensions.vector
  from generate_series(1, 2) as parent cross join generate_series(0, 3) as place
"""
MAPPING = """
create or replace view knowledge_internal.adopted_parts as
select source.id as key_1, source.content, source.embedding, parent.name as title,
       source.tags as metadata, 'knowledge' as collection, 'private' as visibility,
       source.parent as document_key, source.place as chunk_index
  from public.parts as source left join public.parents as parent on parent.id = source.parent
"""


@pytest.fixture
def parts(database: Connection) -> Connection:
    database.execute(CHUNKS)
    adopt(database, "public.parts")
    database.execute("drop view knowledge_internal.adopted_parts")
    database.execute(MAPPING)
    database.execute("select knowledge_internal.follow_table('parts')")
    backfill(database, "parts")
    return database


def test_rows_can_be_the_chunks_of_documents(parts: Connection) -> None:
    hits = search(
        parts, query_embedding="[1,2,1]", neighbor_window=1,
        one_per_document=True,
    )  # fmt: skip
    assert sorted(hit["external_key"] for hit in hits) == ["parts/1", "parts/2"]
    assert {hit["title"] for hit in hits} == {"Harbour", "Ferry"}
    assert {hit["document_chunks"] for hit in hits} == {4}
    best = hits[0]
    assert best["content"] == "part 2 of 1"
    assert best["context"].count("[CHUNK BOUNDARY]") == 2
    assert best["metadata"] == {"n": 2}
    key = best["source_row"]["key"]["id"]
    assert parts.execute("select content from public.parts where id = %s", [key]).fetchone() == (
        "part 2 of 1",
    )
    assert compare(parts, "parts").differences == 0


def test_a_document_goes_with_its_last_row(parts: Connection) -> None:
    parts.execute("update public.parts set parent = 2, place = 9 where parent = 1 and place = 0")
    parts.execute("delete from public.parts where parent = 1")
    documents = parts.execute("select external_key from public.knowledge_documents").fetchall()
    assert documents == [("parts/2",)]
    assert len(search(parts, query_text="part")) == 5
    parts.execute("alter table public.parts disable trigger user")
    parts.execute("delete from public.parts where place = 9")
    parts.execute("alter table public.parts enable trigger user")
    assert compare(parts, "parts", repair=True).left_over == 1
    assert len(search(parts, query_text="part")) == 4


def test_rows_of_one_document_are_seen_by_the_same_users(parts: Connection) -> None:
    parts.execute(
        MAPPING.replace("'private' as visibility", "source.tags ->> 'seen' as visibility")
        .replace("left join", "join")
        .encode()
    )
    parts.execute("select knowledge_internal.follow_table('parts')")
    parts.execute('update public.parts set tags = \'{"seen": "private"}\'')
    assert compare(parts, "parts").differences == 0
    parts.execute('update public.parts set tags = \'{"seen": "public"}\' where place = 1')
    assert set(reasons(parts, "parts").values()) == {
        "the rows of document parts/1 have different visibility, owner, groups or sensitivity",
        "the rows of document parts/2 have different visibility, owner, groups or sensitivity",
    }
    assert search(parts, query_text="part", public_only=True) == []
    parts.execute('update public.parts set tags = \'{"seen": "public"}\'')
    compare(parts, "parts", repair=True)
    assert reasons(parts, "parts") == {}
    assert len(search(parts, query_text="part", public_only=True)) == 8


INDEXES = {
    "hnsw (embedding extensions.vector_cosine_ops)": True,
    "hnsw ((embedding::extensions.halfvec(3)) extensions.halfvec_cosine_ops)": True,
    "hnsw (embedding extensions.vector_ip_ops)": True,
    "hnsw (embedding extensions.vector_l2_ops) where embedding is not null": True,
    "hnsw (embedding extensions.vector_cosine_ops) where id > 5": False,
    "hnsw (embedding extensions.vector_l1_ops)": False,
    # Of vectors that have not the length 1.
    "hnsw (embedding extensions.vector_ip_ops) -- 2": False,
    "hnsw (embedding extensions.vector_l2_ops) -- 2": False,
    "ivfflat (embedding extensions.vector_cosine_ops) with (lists = 2)": False,
}


@pytest.mark.parametrize(("index", "is_used"), INDEXES.items())
def test_the_nearest_rows_come_from_the_table_s_own_index(
    database: Connection, index: str, is_used: bool
) -> None:
    database.execute(LARGE)
    database.execute(GUIDE)
    database.execute(
        "insert into public.documents (content, metadata, embedding)"
        " select 'row ' || n, jsonb_build_object('even', n % 2 = 0),"
        "        extensions.l2_normalize(array[sin(n), cos(n * 2), sin(n * 3)]"
        "          ::extensions.vector)"
        "   from generate_series(1, 300) as n"
    )
    if index.endswith("-- 2"):
        database.execute(
            "update public.documents set embedding = embedding operator(extensions.+) '[1,1,1]'"
        )
    database.execute(f"create index own on public.documents using {index}".encode())
    adopt(database)
    backfill(database)
    assert (order_of(database) is not None) is is_used
    question = "[0.3,0.7,-0.2]"
    even = {"field": "metadata.even", "op": "eq", "value": True}
    for filters, rows in (([], "true"), ([even], "metadata @> '{\"even\": true}'")):
        nearest = database.execute(
            f"select content from public.documents where {rows}"
            " order by embedding operator(extensions.<=>) %s::extensions.vector limit 10".encode(),
            [question],
        ).fetchall()
        hits = found(database, query_embedding=question, filters=filters)
        assert [(hit,) for hit in hits] == nearest


def test_own_chunks_that_the_index_does_not_reach_are_found_too(database: Connection) -> None:
    database.execute(LARGE)
    for name, wide, narrow in (
        (
            "reading_limits",
            "scan_tuples constant integer := 20000",
            "scan_tuples constant int := 20",
        ),
        (
            "reading_limits",
            "index_cost constant integer := 20",
            "index_cost constant float8 := 0.01",
        ),
        ("rank_all", "'relaxed_order', '20000'", "'relaxed_order', '20'"),
        ("vector_leg", "'relaxed_order', '20000'", "'relaxed_order', '20'"),
    ):
        (definition,) = database.execute(
            "select pg_get_functiondef(%s::regproc)", [f"knowledge_internal.{name}"]
        ).fetchone() or ("",)
        assert wide in definition
        database.execute(definition.replace(wide, narrow).encode())
    database.execute(
        "insert into public.knowledge_chunks (content, metadata, embedding)"
        " select 'own ' || n, jsonb_build_object('kind', case when n > 395 then 'a' else 'b' end),"
        "        array[1, 0, case when n > 395 then 0.3 else n / 4000.0 end]::extensions.vector"
        "   from generate_series(1, 400) as n"
    )
    database.execute(GUIDE)
    database.execute(
        "insert into public.documents (content, metadata, embedding)"
        " select 'row ' || n, '{\"kind\": \"a\"}',"
        "        extensions.l2_normalize(array[1, 1 + n / 400.0, 0]::extensions.vector)"
        "   from generate_series(1, 400) as n"
    )
    database.execute(VECTOR_INDEX)
    adopt(database)
    backfill(database)
    hits = found(
        database, query_embedding="[1,0,0]", filters={"kind": "a"}, match_count=10, pool_size=10
    )
    assert sorted(hits[:5]) == [f"own {number}" for number in range(396, 401)]
    assert all(hit.startswith("row") for hit in hits[5:])
    assert len(hits) == 10


def test_an_index_made_later_is_reported_and_used_after_a_repair(source: Connection) -> None:
    assert carrying.faults(Database(source), "documents") == []
    source.execute(VECTOR_INDEX)
    (fault,) = carrying.faults(Database(source), "documents")
    assert "has another vector index" in fault
    compare(source, repair=True)
    assert carrying.faults(Database(source), "documents") == []


def test_a_key_with_a_collation_of_its_own_is_refused(database: Connection) -> None:
    database.execute('create table public.notes (slug text collate "C" primary key, content text)')
    with pytest.raises(psycopg.DataError, match="no collation of its own"):
        adopt(database, "public.notes")


def test_an_identifier_is_found_by_a_part_of_it(source: Connection) -> None:
    (file,) = (one for one in migrations.find() if one.module == "substrings")
    source.execute("set second_brain.without_extensions = 'allowed'")
    source.execute("update public.documents set content = 'Restart DS-7604.' where id = 1")
    source.execute(file.sql.encode())
    # In place of that of pg_trgm, which the server may not have.
    source.execute("create index knowledge_chunks_identifiers on public.knowledge_chunks (id)")
    source.execute("update public.documents set content = 'Call getUserName().' where id = 2")
    source.execute("update public.documents set content = 'The part DS.' where id = 3")
    for part, text in (("DS-76", "Restart DS-7604."), ("rNam", "Call getUserName().")):
        hit, *_ = search(source, query_text=part)
        assert (hit["content"], part in hit["notes"]["replaced"]) == (text, True)
        assert {*hit["matched_terms"]} <= {part, *hit["notes"]["replaced"].values()}
    source.execute("update public.documents set content = 'Nothing.' where id = 2")
    assert search(source, query_text="rNam") == []


@pytest.mark.module("own_documents")
def test_a_store_of_a_framework_returns_the_texts(source: Connection, dsn: str) -> None:
    service = psycopg.connect(dsn, autocommit=True)
    service.execute("set role service_role")
    store = TextStore(service, embedding_model="m")
    assert [one.content for one in store.get(["documents/2"])] == ["Water the plants."]
    assert {one.key for one in store.everything() if one.content} == {
        "documents/1", "documents/2", "documents/3",
    }  # fmt: skip
    (found,) = store.search([0, 0, 1], None, 1)
    assert found.content == "Empty the bin."
    service.close()


@pytest.mark.parametrize("other", ["[1,0,0]", None])
def test_who_writes_another_row_of_a_document_does_not_decide_its_title(
    parts: Connection, other: str | None
) -> None:
    parts.execute("alter table public.parts add title text")
    parts.execute("drop view knowledge_internal.adopted_parts")
    parts.execute(MAPPING.replace("parent.name as title", "source.title as title").encode())
    parts.execute("select knowledge_internal.follow_table('parts')")
    parts.execute("update public.parts set title = 'Plan'")
    parts.execute(
        "insert into public.parts (parent, place, content, title, embedding)"
        " values (1, -1, 'planted', 'Pay here', %s)",
        [other],
    )
    parts.execute("update public.parts set title = 'Pay here' where parent = 1 and place = 3")
    titles = "select title from public.knowledge_documents"
    assert parts.execute(titles).fetchall() == [("Plan",)] * 2
    assert compare(parts, "parts", repair=True).differences == 0
    assert parts.execute(titles).fetchall() == [("Plan",)] * 2
    parts.execute("update public.parts set title = 'New plan' where place = 0")
    assert parts.execute(titles).fetchall() == [("New plan",)] * 2
    parts.execute("delete from public.parts where place = 0")
    parts.execute("update public.parts set title = 'Newest' where place = 1")
    assert parts.execute(titles).fetchall() == [("Newest",)] * 2

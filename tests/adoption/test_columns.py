"""`adopt` says what becomes of each column, and asks which rows are searched."""

import pytest
from adopted import adopt, backfill, compare, documents
from psycopg.types.json import Jsonb

from command_line import Run
from conftest import Connection
from support.databases import query

pytestmark = pytest.mark.module("adoption")

TABLE = """
create table public.notes (
  id int primary key,
  content text,
  team text,
  user_id uuid,
  secret text,
  words tsvector generated always as (to_tsvector('english', content)) stored,
  embedding extensions.vector(3),
  {more}
)
"""


def test_the_plan_has_a_line_for_each_column(run: Run, dsn: str) -> None:
    query(dsn, TABLE.format(more="other_embedding extensions.vector(3)"))
    done = run("adopt", "public.notes", "--model", "m", "--leave-out", "secret", "--dsn", dsn)
    assert done.code == 0, done.err
    lines = dict(line.split(maxsplit=1) for line in done.err.splitlines() if " " in line)
    assert lines["team"] == "metadata.team"
    assert lines["user_id"] == "metadata.user_id"
    assert "left out, as --leave-out says" in lines["secret"]
    assert "left out: generated" in lines["words"]
    assert "vector(3)" in lines["other_embedding"]


def test_columns_are_metadata_and_follow_their_updates(database: Connection) -> None:
    database.execute(TABLE.format(more="meta jsonb").encode())
    adopt(database, "public.notes", leave_out=["secret"])
    database.execute(
        "insert into public.notes (id, content, team, secret, meta)"
        " values (1, 'Tea.', 'a', 'x', '{\"page\": 4}')"
    )
    assert documents(database)["notes/1"]["metadata"] == {"team": "a", "page": 4}
    database.execute("update public.notes set team = 'b', secret = 'y'")
    assert documents(database)["notes/1"]["metadata"] == {"team": "b", "page": 4}


def test_more_columns_than_a_function_takes_are_metadata(database: Connection) -> None:
    database.execute(
        TABLE.format(more=", ".join(f"c{place} int default 1" for place in range(120))).encode()
    )
    adopt(database, "public.notes")
    database.execute("insert into public.notes (id, content) values (1, 'Tea.')")
    assert len(documents(database)["notes/1"]["metadata"]) == 120


@pytest.mark.parametrize(
    "column",
    [
        *("status text", "deleted_at timestamptz", '"deletedAt" timestamptz', "is_archived bool"),
        *("expires_at date", "published bool"),
    ],
)
def test_a_column_that_can_hide_rows_is_asked_about(run: Run, dsn: str, column: str) -> None:
    query(dsn, TABLE.format(more=column))
    name = column.split()[0].strip('"')
    done = run("adopt", "public.notes", "--model", "m", "--dsn", dsn)
    assert done.code == 1
    assert f"public.notes has {name}, which can hide rows" in done.err
    assert "--rows all" in done.err
    assert run("adopt", "public.notes", "--model", "m", "--rows", "all", "--dsn", dsn).code == 0


def test_rows_come_and_go_with_their_columns(run: Run, dsn: str, database: Connection) -> None:
    query(dsn, TABLE.format(more="deleted_at timestamptz"))
    database.execute(
        "insert into public.notes (id, content, deleted_at) values (1, 'a', null), (2, 'b', now())"
    )
    rows = ("--rows", "deleted_at is null", "--model", "m", "--apply", "--dsn", dsn)
    assert run("adopt", "public.notes", *rows).code == 0
    backfill(database, "notes")
    assert set(documents(database)) == {"notes/1"}
    database.execute("update public.notes set deleted_at = case when id = 1 then now() end")
    assert set(documents(database)) == {"notes/2"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--rows", "deleted_at > now()"), "depends on the time"),
        (("--rows", "nothing = 1"), "--rows"),
        (("--rows", "all", "--leave-out", "nothing"), "has no column nothing"),
        (("--rows", "all", "--position", "id"), "--position is given, and no document"),
    ],
)
def test_bad_options_are_refused(run: Run, dsn: str, options: tuple[str, ...], reason: str) -> None:
    query(dsn, TABLE.format(more="deleted_at timestamptz"))
    done = run("adopt", "public.notes", "--model", "m", *options, "--dsn", dsn)
    assert (done.code, reason in done.err) == (1, True), done.err


@pytest.mark.parametrize(
    "columns", ["document_id int, chunk_index int", "doc int references public.files, position int"]
)
def test_rows_of_a_chunk_table_are_chunks_of_documents(
    run: Run, dsn: str, database: Connection, columns: str
) -> None:
    document, position = (one.split()[0] for one in columns.split(", "))
    database.execute("create table public.files (id int primary key)")
    database.execute("insert into public.files values (7)")
    query(dsn, TABLE.format(more=columns))
    done = run("adopt", "public.notes", "--model", "m", "--apply", "--dsn", dsn)
    assert f"document   {document}:" in done.err
    assert f"position   {position}:" in done.err
    database.execute(
        f"insert into public.notes (id, content, {document}, {position})"
        " values (1, 'Open the case.', 7, 0), (2, 'Turn the wheel.', 7, 1)".encode()
    )
    rows = database.execute(
        "select context, document_chunks, source_row -> 'key' ->> 'id'"
        "  from public.hybrid_search_knowledge_chunks("
        "         query_text => 'wheel', neighbor_window => 1)"
    ).fetchall()
    assert rows == [("Open the case.\n[CHUNK BOUNDARY]\nTurn the wheel.", 2, "2")]


def test_the_type_of_a_row_is_that_of_its_document(
    run: Run, dsn: str, database: Connection
) -> None:
    database.execute(
        "create table public.kept (id int primary key, content text, knowledge_type text);"
        " insert into public.kept values (1, 'Rotate the keys.', 'note'), (2, 'Keys.', null)"
    )
    asked = ("adopt", "public.kept", "--apply", "--dsn", dsn)
    assert "type       knowledge_type" in run(*asked).err
    backfill(database, "kept")
    assert compare(database, "kept").differences == 0
    count = "select public.count_matching_knowledge_chunks(%s)"
    of_notes = Jsonb({"query_text": "keys", "filter_type": "note"})
    assert database.execute(count, [of_notes]).fetchone() == (1,)
    database.execute("insert into public.kept values (3, 'Policy.', 'policy')")
    assert "policy is no knowledge_type" in run(*asked).err
    refused = run(*asked, "--type", "knowledge_type")
    assert (refused.code, "policy is no knowledge_type" in refused.err) == (1, True)

"""Removing an adoption, and what doctor and uninstall say of it."""

import re
import subprocess

import pytest
from adopted import GUIDE, adopt, backfill, compare, contents, documents, findings

from conftest import Connection
from second_brain.adoption import calls, carrying
from second_brain.database import uninstall
from second_brain.database.embedded import installed_majors, program
from second_brain.services.install import Database

pytestmark = pytest.mark.module("adoption")


@pytest.fixture
def source(database: Connection) -> Connection:
    database.execute(GUIDE)
    database.execute(
        "insert into public.documents (content, embedding)"
        " values ('Rotate the keys.', '[1,0,0]'), ('Water the plants.', null)"
    )
    return database


SEARCH = """
create function public.nearest(query_embedding extensions.vector, match_count int default 5)
returns setof public.documents language sql stable set search_path = public, extensions as $f$
  select * from documents order by embedding <=> query_embedding limit match_count
$f$;
grant select on public.documents to anon, authenticated;
alter table public.documents enable row level security;
"""


def test_the_dump_of_the_database_is_as_before(source: Connection, dsn: str) -> None:
    major = source.info.server_version // 10_000
    if major not in installed_majors():
        pytest.skip(f"pg_dump of PostgreSQL {major} is not installed")
    source.execute(SEARCH)
    command = [str(program(major, "pg_dump")), "--dbname", dsn]
    words = "select count(*) from public.knowledge_words"

    def dump(*options: str) -> str:
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
        # Each dump has a random key of its own.
        return re.sub(r"\\(un)?restrict \S+", "", done.stdout)

    before, rows = dump("--schema-only"), dump("--data-only", "--table=public.documents")
    for _ in range(2):
        adopt(source)
        backfill(source)
        source.execute("select knowledge_internal.let_search('anon')")
        calls.keep(Database(source), "documents", run=True)
        assert "adopted_documents_insert" in dump("--schema-only")
        assert source.execute(words).fetchone() != (0,)
        carrying.remove(Database(source), "documents")
        assert dump("--schema-only") == before
        assert dump("--data-only", "--table=public.documents") == rows
        left = source.execute(
            "select from public.knowledge_documents union all select from public.knowledge_chunks"
        )
        assert left.fetchall() == []
        assert source.execute(words).fetchone() == (0,)
    source.execute("insert into public.documents (content) values ('Nobody carries this over.')")
    assert contents(source) == {}


def test_what_is_stored_of_a_dropped_table_goes_with_its_adoption(source: Connection) -> None:
    adopt(source)
    backfill(source)
    source.execute("drop table public.documents cascade")
    carrying.remove(Database(source), "documents")
    for table in ("documents", "chunks", "words", "adoptions"):
        left = source.execute(f"select count(*) from public.knowledge_{table}".encode())
        assert left.fetchone() == (0,), table


def test_uninstall_leaves_nothing_of_the_roles_that_search(source: Connection, dsn: str) -> None:
    source.execute(SEARCH)
    adopt(source)
    source.execute("select knowledge_internal.let_search('authenticated')")
    owned = (
        "select function.oid::regprocedure::text from pg_proc as function"
        " where function.proowner in ('anon'::regrole, 'authenticated'::regrole)"
    )
    assert source.execute(owned).fetchall() != []
    uninstall.apply(dsn, module="adoption")
    assert source.execute(owned).fetchall() == []
    usage = "select has_schema_privilege('authenticated', 'knowledge_internal', 'usage')"
    assert source.execute(usage).fetchone() == (False,)
    uninstall.apply(dsn)


def test_documents_of_others_stay(source: Connection) -> None:
    source.execute("insert into public.knowledge_documents (external_key) values ('documents/9')")
    adopt(source)
    backfill(source)
    carrying.remove(Database(source), "documents")
    assert documents(source) == {}
    left = source.execute("select external_key from public.knowledge_documents").fetchall()
    assert left == [("documents/9",)]
    adopt(source)
    assert backfill(source) == 2


def test_the_doctor_reports_what_does_not_follow(source: Connection) -> None:
    adopt(source)
    rows = "documents (public.documents)"
    told = f"{rows}: 2 of 2 compared rows differ from their documents"
    assert findings(source) == [("warning", told)]
    backfill(source)
    assert findings(source) == []
    source.execute("update public.documents set content = null where id = 1")
    assert findings(source) == [("warning", f"{rows}: 1 row cannot be carried over")]
    source.execute("alter table public.documents disable trigger adopted_documents_update")
    source.execute("drop trigger adopted_documents_delete on public.documents")
    ((status, message),) = findings(source)
    assert status == "error"
    assert "trigger adopted_documents_update on public.documents is disabled" in message
    assert "trigger adopted_documents_delete on public.documents does not exist" in message


def test_writes_of_a_replica_are_found_and_repaired(source: Connection) -> None:
    adopt(source)
    backfill(source)
    source.execute("alter table public.documents disable trigger user")
    source.execute("update public.documents set content = 'Changed.' where id = 1")
    source.execute("update public.documents set embedding = '[0,0,1]' where id = 2")
    source.execute("insert into public.documents (content) values ('New.'), (null)")
    source.execute("delete from public.documents where id = 2")
    source.execute("update public.knowledge_documents set title = 'Other' where external_key ~ '1'")
    found = compare(source, repair=True)
    assert (found.missing, found.different, found.left_over) == (2, 1, 1)
    assert {"content", "title"} <= {*dict(found.examples)["1"]}
    found = compare(source)
    assert (found.differences, len(found.problems)) == (0, 1)
    assert contents(source) == {"documents/1": ["Changed."], "documents/3": ["New."]}


@pytest.mark.parametrize("module", [None, "adoption"])
def test_an_uninstall_drops_triggers_and_views_and_keeps_the_table(
    source: Connection, dsn: str, module: str | None
) -> None:
    table = "select * from public.documents order by id"
    before = source.execute(table.encode()).fetchall()
    adopt(source)
    backfill(source)
    removed = uninstall.apply(dsn, module=module)
    assert removed.rows["public.knowledge_adoptions"] == 1
    source.execute("insert into public.documents (content) values ('Free.')")
    assert source.execute(table.encode()).fetchall()[:2] == before
    left = source.execute(
        "select tgname from pg_trigger where tgrelid = 'public.documents'::regclass union all"
        " select viewname from pg_views where viewname like 'adopted%'"
    )
    assert left.fetchall() == []
    assert module is None or contents(source) == {}

"""Who can do what: writers of the source, signed-in users, and those who may create tables."""

from uuid import UUID

import psycopg
import pytest
from adopted import adopt, backfill, compare, contents, documents

from conftest import Connect, Connection
from second_brain.database import doctor

pytestmark = pytest.mark.module("adoption")

ANNA, BERT = UUID(int=1), UUID(int=2)


@pytest.fixture
def source(database: Connection) -> Connection:
    """An adopted table with row level security, that signed-in users write themselves."""
    database.execute(
        "create table public.notes (id bigint primary key generated always as identity,"
        " user_id uuid default auth.uid(), content text);"
        " alter table public.notes enable row level security;"
        " create policy own on public.notes to authenticated using (user_id = auth.uid());"
        " grant select, insert, update, delete on public.notes to authenticated;"
        " grant insert on public.notes to anon;"
    )
    adopt(database, "public.notes")
    return database


def test_a_user_writes_without_rights_on_the_corpus(source: Connection, connect: Connect) -> None:
    anna = connect("authenticated", uid=ANNA)
    anna.execute("insert into public.notes (content) values ('Mine.'), ('Mine too.')")
    anna.execute("update public.notes set content = 'Changed.' where content = 'Mine too.'")
    found = documents(source)
    assert {row["owner_id"] for row in found.values()} == {ANNA}
    assert contents(source) == {"notes/1": ["Mine."], "notes/2": ["Changed."]}
    for table in ("public.knowledge_documents", "public.knowledge_adoptions"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            anna.execute(f"select from {table}".encode())


def test_a_user_finds_own_rows_only(source: Connection, connect: Connect) -> None:
    source.execute(
        "insert into public.notes (user_id, content) values (%s, 'the tulip'), (%s, 'the rose')",
        [ANNA, BERT],
    )
    query = "select content from public.search_my_knowledge_chunks(query_text => 'tulip or rose')"
    anna = connect("authenticated", uid=ANNA)
    assert anna.execute(query.encode()).fetchall() == [("the tulip",)]
    source.execute("update public.notes set user_id = %s", [BERT])
    assert anna.execute(query.encode()).fetchall() == []


def test_an_embedding_that_a_user_writes_stays_in_the_documents_of_its_row(
    source: Connection, connect: Connect
) -> None:
    source.execute("alter table public.notes add column embedding extensions.vector(3)")
    adopt(source, "public.notes")
    mallory = connect("authenticated", uid=BERT)
    mallory.execute("insert into public.notes (content, embedding) values ('Terms.', '[0,0,1]')")
    anna = connect("authenticated", uid=ANNA)
    anna.execute("insert into public.notes (content) values ('Terms.')")
    found = {row["owner_id"]: row["chunks"] for row in documents(source).values()}
    assert found[BERT][0]["embedding"] == "[0,0,1]"
    assert found[ANNA][0]["embedding"] is None
    anna.execute("update public.notes set content = 'Mine.', embedding = '[0,1,0]'")
    anna.execute("update public.notes set embedding = null")
    # In place, the embedding is that of the table.
    assert documents(source)["notes/2"]["chunks"][0]["embedding"] is None
    hashes = "array[public.knowledge_content_hash(null, 'Terms.')]"
    missing = f"select cardinality(public.missing_knowledge_embeddings({hashes}, 'm'))"
    assert connect("service_role").execute(missing.encode()).fetchone() == (1,)


def test_nobody_else_can_put_the_trigger_on_a_table(source: Connection, connect: Connect) -> None:
    source.execute("grant create on schema public to authenticated")
    mallory = connect("authenticated", uid=BERT)
    mallory.execute("create table public.mine (id bigint primary key, content text)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        mallory.execute(
            "create trigger mine after insert on public.mine"
            " referencing new table as new_rows for each statement"
            " execute function knowledge_internal.carry_over_changes('notes')"
        )


def test_the_trigger_of_an_adoption_works_on_its_source_only(source: Connection) -> None:
    source.execute(
        "create table public.copied (id bigint primary key, content text);"
        " create trigger copied after insert on public.copied"
        " referencing new table as new_rows for each statement"
        " execute function knowledge_internal.carry_over_changes('notes')"
    )
    with pytest.raises(
        psycopg.errors.ObjectNotInPrerequisiteState, match="trigger of adoption notes is on"
    ):
        source.execute("insert into public.copied values (1, 'x')")


def test_settings_and_objects_of_writers_do_nothing(source: Connection, connect: Connect) -> None:
    source.execute("grant create on schema public to authenticated")
    anna = connect("authenticated", uid=ANNA)
    anna.execute(
        "create function public.jsonb_build_array(variadic text[]) returns jsonb language plpgsql"
        " as $$begin raise exception 'called'; end$$;"
        " create temporary table knowledge_documents (id int);"
        " set search_path = pg_temp, public; set row_security = on; set datestyle = 'SQL, DMY'"
    )
    anna.execute("insert into public.notes (content) values ('Safe.')")
    assert contents(source) == {"notes/1": ["Safe."]}
    backfill(source, "notes")
    assert compare(source, "notes").differences == 0


def test_a_role_that_does_not_see_rows_cannot_adopt(source: Connection, connect: Connect) -> None:
    source.execute(
        "grant usage on schema knowledge_internal to authenticated;"
        " grant execute on all functions in schema knowledge_internal to authenticated"
    )
    anna = connect("authenticated", uid=ANNA)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="row level security"):
        anna.execute("select knowledge_internal.adopt_table('again', 'public.notes', 'id')")


TULIP = "the tulip"
VISITOR, USER = "search_public_knowledge_chunks", "search_my_knowledge_chunks"


@pytest.fixture
def published(source: Connection) -> Connection:
    """An adopted table with a row whose document is public, and a search that visitors may call."""
    adopt(source, "public.notes", visibility="public")
    source.execute("insert into public.notes (content) values (%s)", [TULIP])
    source.execute(f"grant execute on function public.{VISITOR} to anon".encode())
    return source


def grant(owner: Connection, right: str, role: str) -> None:
    table = "public.knowledge_documents"
    owner.execute(f"grant {right} (source_row) on table {table} to {role}".encode())


def found_rows(caller: Connection, function: str) -> list[str | None]:
    query = f"select source_row -> 'key' ->> 'id' from public.{function}(query_text => '{TULIP}')"
    return [key for (key,) in caller.execute(query.encode()).fetchall()]


@pytest.mark.module("visitors")
@pytest.mark.parametrize(("role", "function"), [("anon", VISITOR), ("authenticated", USER)])
def test_hits_of_users_and_visitors_do_not_name_the_row(
    published: Connection, connect: Connect, role: str, function: str
) -> None:
    caller = connect(role, uid=ANNA)
    assert found_rows(caller, function) == [None]
    grant(published, "select", role)
    assert found_rows(caller, function) == ["1"]


@pytest.mark.module("visitors")
def test_a_grant_for_users_shows_visitors_no_row(published: Connection, connect: Connect) -> None:
    grant(published, "select", "authenticated")
    assert found_rows(connect("anon"), VISITOR) == [None]


@pytest.mark.module("visitors")
def test_hits_without_the_row_are_as_a_service_s(published: Connection, connect: Connect) -> None:
    published.execute("insert into public.notes (content) values ('a tulip and a rose')")
    hits = "select to_jsonb(hit) - 'source_row' from public.{}(query_text => 'tulip') as hit"
    user = connect("authenticated", uid=ANNA).execute(hits.format(USER).encode()).fetchall()
    trusted = hits.format("hybrid_search_knowledge_chunks")
    assert len(user) == 2
    assert user == connect("service_role").execute(trusted.encode()).fetchall()


@pytest.mark.parametrize("viewer", ["", f", viewer_id => '{ANNA}'"])
def test_a_service_is_told_which_row(published: Connection, connect: Connect, viewer: str) -> None:
    service = connect("service_role")
    query = (
        "select source_row -> 'key' ->> 'id' from public.hybrid_search_knowledge_chunks("
        f"query_text => 'tulip'{viewer})"
    )
    assert published.execute("select count(*) from public.notes").fetchone() == (1,)
    assert service.execute(query.encode()).fetchall() == [("1",)]


def test_doctor_accepts_the_grant_that_shows_the_row_and_no_other(published: Connection) -> None:
    def findings() -> set[tuple[str, str]]:
        return {
            (one.status, one.message)
            for one in doctor.examine(published)
            if "since the counters were reset" not in one.message
        }

    before = findings()
    grant(published, "select", "authenticated")
    assert findings() == before
    grant(published, "update", "authenticated")
    assert findings() != before

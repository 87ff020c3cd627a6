"""What a role that searches under policies may do, and what let_search says and changes."""

import secrets

import psycopg
import pytest
from adopted import Row, adopt, backfill, findings, let_search
from psycopg import sql
from psycopg.types.json import Jsonb
from visible import CHANGES, MOST_KEYS, POLICIES, USERS, adopt_notes, claims, keys, search, user_of

from command_line import Run
from conftest import Connect, Connection, Server
from second_brain.database import migrations, uninstall

pytestmark = pytest.mark.module("adoption")

VISIBLE = "create policy visible on public.notes to authenticated using"


@pytest.fixture
def notes(database: Connection) -> Connection:
    """A database with 30 notes, searched in place, of which users see none yet."""
    return adopt_notes(database, 30)


# Tries all that a role could reach of the install, and notes what it may do.
SPY = """
create table public.reached (what text, role name);
grant insert on public.reached to public;
create function public.spy() returns boolean language plpgsql volatile as $f$
declare
  tried text;
begin
  for tried in
    select format('select from %s', class.oid::regclass) from pg_class as class
     where class.relkind in ('r', 'v')
       and (class.relnamespace = to_regnamespace('knowledge_internal')
            or class.relnamespace = 'public'::regnamespace and class.relname ~ '^knowledge_')
    union all
    select format('alter function %s security invoker', function.oid::regprocedure)
      from pg_proc as function where function.proname ~ '^seen_'
    union all
    select 'alter role ' || quote_ident(current_user) || ' createrole'
    union all
    select 'set role postgres'
    union all
    select 'create function knowledge_internal.mine() returns int language sql return 1'
  loop
    begin
      execute tried;
      insert into public.reached values (tried, current_user);
    exception when insufficient_privilege or invalid_parameter_value
      or invalid_schema_name or invalid_transaction_state then null;
    end;
  end loop;
  insert into public.reached values ('the policy', current_user);
  return true;
end
$f$
"""


def test_what_a_policy_calls_reaches_nothing_of_the_corpus(
    notes: Connection, connect: Connect
) -> None:
    notes.execute(SPY)
    notes.execute("insert into public.knowledge_sources (name, config) values ('wiki', '{}')")
    notes.execute(f"{VISIBLE} (public.spy())".encode())
    user = user_of(connect, "a")
    for asked in ({"query_text": "harbour"}, {"query_embedding": "[1,0,0]"}):
        assert search(user, **asked)
    reached = notes.execute("select distinct what, role from public.reached").fetchall()
    assert reached == [("the policy", "authenticated")]


def test_a_role_has_no_rights_of_its_own_after_let_search(notes: Connection) -> None:
    rights = notes.execute(
        "select has_schema_privilege('authenticated', 'knowledge_internal', right_)"
        "  from unnest('{usage,create}'::text[]) as right_"
    ).fetchall()
    assert rights == [(False,), (False,)]
    granted = notes.execute(
        "select array_agg(distinct function.proname::text order by function.proname::text)"
        "  from pg_proc as function cross join aclexplode(function.proacl) as granted"
        " where granted.grantee = 'authenticated'::regrole"
        "   and function.proname ~ '^(seen_|search_visible)'"
    ).fetchone()
    assert granted == (
        [
            *("search_visible", "search_visible_knowledge_chunks"),
            *("seen_1_as_authenticated", "seen_1_of_authenticated"),
        ],
    )
    assert notes.execute("select rolname from pg_roles where rolname ~ '_reader_'").fetchall() == []


@pytest.mark.parametrize("change", ["security invoker", "set row_security = off", "stable strict"])
def test_a_role_that_alters_its_function_sees_no_other_rows(
    notes: Connection, connect: Connect, change: str
) -> None:
    notes.execute(f"{VISIBLE} (id = 1)".encode())
    # As `adopt --calls` does.
    notes.execute("grant usage on schema knowledge_internal to authenticated")
    user = user_of(connect, "a")
    functions = (
        "knowledge_internal.seen_1_as_authenticated(text)",
        "knowledge_internal.seen_1_of_authenticated()",
    )
    for most in (1000, 0):  # keys that are read at once
        notes.execute(MOST_KEYS.format(most).encode())
        for function in functions:
            user.execute(f"alter function {function} {change}".encode())
        assert keys(search(user, query_embedding="[1,0,0]", match_count=30)) <= {1}
    for function in functions:
        user.execute(f"drop function {function}".encode())
    assert search(user, query_embedding="[1,0,0]") == []
    let_search(notes, "authenticated")
    assert keys(search(user, query_embedding="[1,0,0]")) <= {1}


def test_let_search_and_doctor_name_the_tables_that_are_not_searched(notes: Connection) -> None:
    notes.execute(f"{VISIBLE} (true)".encode())
    said: list[str] = []
    notes.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
    let_search(notes, "authenticated")
    assert said == []
    expected = {
        "moved out of reach": "closed.notes is not searched for authenticated: authenticated has no"
        " usage of its schema",
        "without select": "notes is not searched for authenticated: authenticated may not select it"
        " as a whole",
        "a policy that fails": "invalid input syntax for type integer",
        "a child table": "notes is not searched for authenticated: it has child tables",
        "another owner": "its owner has fewer rights than the owner of the corpus",
    }
    for change, message in expected.items():
        do, undo = CHANGES[change]
        notes.execute(do.encode())
        said.clear()
        let_search(notes, "authenticated")
        assert message in "\n".join(said), change
        assert message in "\n".join(text for _, text in findings(notes)), change
        notes.execute(undo.encode())


@pytest.mark.parametrize("name", ["dashboard", 'Über "Rolle"$body$', "x" * 60])
def test_let_search_works_for_roles_of_any_name(
    notes: Connection, connect: Connect, server: Server, name: str
) -> None:
    # Roles are of the whole server.
    name = f"{secrets.token_hex(3)}{name}"[:60]
    admin = psycopg.connect(server.admin_dsn(notes.info.dbname), autocommit=True)
    role = sql.Identifier(name)
    notes.execute(sql.SQL("create role {}").format(role))
    try:
        notes.execute(sql.SQL("grant select on public.notes to {}").format(role))
        notes.execute(
            sql.SQL("create policy one on public.notes to {} using (id < 4)").format(role)
        )
        let_search(notes, name)
        caller = connect()
        caller.execute(sql.SQL("set role {}").format(role))
        assert keys(search(caller, query_embedding="[1,0,0]", match_count=30)) <= {1, 2, 3}
        assert search(caller, query_embedding="[1,0,0]")
        caller.execute("reset role")
    finally:
        admin.execute(sql.SQL("drop owned by {}").format(role))
        admin.execute(sql.SQL("drop role {}").format(role))
        admin.close()


def test_a_role_that_the_owner_is_not_a_member_of_is_refused(
    notes: Connection, server: Server
) -> None:
    name = f"stranger_{secrets.token_hex(3)}"
    with psycopg.connect(server.admin_dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("create role {}").format(sql.Identifier(name)))
        try:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is not a member"):
                let_search(notes, name)
        finally:
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def test_a_table_of_a_role_with_fewer_rights_is_not_adopted(database: Connection) -> None:
    database.execute(
        "grant create on schema public to authenticated;"
        "create table public.theirs (id bigint primary key, content text);"
        "alter table public.theirs owner to authenticated;"
        "grant all on public.theirs to postgres"
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="has fewer rights"):
        adopt(database, "public.theirs")


def test_what_a_table_runs_has_the_rights_of_its_writer_after_it_has_gone_to_another_owner(
    notes: Connection, connect: Connect
) -> None:
    embed = (
        "update public.knowledge_chunks set embedding = '[0,1,0]', embedding_model = 'm'"
        " where place_key = %s::text"
    )
    notes.execute(
        "create table public.ran (as_role name);"
        "create function public.noted() returns trigger language plpgsql as"
        " $f$ begin insert into public.ran values (current_user); return new; end $f$;"
        "insert into public.notes (content) values ('a buoy'), ('a beacon')"
    )
    notes.execute(embed, [31])
    notes.execute(CHANGES["another owner"][0].encode())
    notes.execute(
        "grant all on public.notes, public.ran to postgres, authenticated; set role authenticated;"
        "create trigger noted before update on public.notes for each row"
        " execute function public.noted(); reset role"
    )
    # A worker's embedding is kept in the corpus.
    notes.execute(embed, [32])
    assert notes.execute("select * from public.ran").fetchall() == []
    kept = "select embedding::text from public.knowledge_chunks where place_key = '32'"
    assert notes.execute(kept.encode()).fetchall() == [("[0,1,0]",)]
    # One that was written into the table, and is of an old text now, is not emptied.
    connect("authenticated").execute("update public.notes set content = 'a mole' where id = 31")
    assert notes.execute("select * from public.ran").fetchall() == [("authenticated",)]


def test_a_parent_with_child_tables_is_not_adopted(database: Connection) -> None:
    database.execute(
        "create table public.parent (id bigint primary key, content text);"
        "create table public.child () inherits (public.parent);"
        "insert into public.parent values (1, 'harbour')"
    )
    with pytest.raises(psycopg.DataError, match="has child tables"):
        adopt(database, "public.parent")


def test_a_row_that_a_caller_cannot_see_does_not_say_the_title_of_a_hit(
    database: Connection, connect: Connect
) -> None:
    database.execute(
        "create table public.parts (id bigint primary key, parent int, title text, url text,"
        " day date, content text, owner uuid);"
        "alter table public.parts enable row level security;"
        "grant select on public.parts to authenticated;"
        "create policy own on public.parts to authenticated using (owner = auth.uid());"
    )
    rows = [
        (number, number // 2, "Plan", "https://a/plan", "2026-01-01", f"harbour {number}", owner)
        for number, owner in enumerate((USERS[1], USERS[0], USERS[0], USERS[0]))
    ]
    with database.cursor() as cursor:
        cursor.executemany("insert into public.parts values (%s, %s, %s, %s, %s, %s, %s)", rows)
    adopt(database, "public.parts")
    database.execute(
        "drop view knowledge_internal.adopted_parts;"
        "create view knowledge_internal.adopted_parts as"
        " select id as key_1, content, title, url as source_url, day as document_date,"
        "        'knowledge' as collection, 'private' as visibility, parent as document_key"
        "   from public.parts;"
        "select knowledge_internal.follow_table('parts')"
    )
    backfill(database, "parts")
    database.execute(
        "update public.parts set title = 'Merger', url = 'https://a/secret', day = '2026-02-02'"
        " where id = 0"
    )
    let_search(database, "authenticated")
    user = user_of(connect, "a")
    shown: list[Row] = search(user, query_text="harbour")
    assert {
        hit["content"]: (hit["title"], hit["source_url"], hit["document_date"]) for hit in shown
    } == {
        "harbour 1": (None, None, None),
        "harbour 2": ("Plan", "https://a/plan", "2026-01-01"),
        "harbour 3": ("Plan", "https://a/plan", "2026-01-01"),
    }
    (trusted,) = search(database, query_text='"harbour 1"')
    assert trusted["title"] == "Merger"


def test_what_a_caller_sees_does_not_depend_on_the_policies_of_the_corpus(
    notes: Connection, connect: Connect
) -> None:
    notes.execute(f"create policy visible on public.notes {POLICIES['claim']}".encode())
    user = connect("authenticated")
    found = []
    for change in ("disable", "enable", "force", "no force"):
        notes.execute(f"alter table public.knowledge_chunks {change} row level security".encode())
        claims(user, USERS[0], "c")
        found.append(keys(search(user, query_text="harbour or ferry or sail", match_count=30)))
    notes.execute("alter table public.knowledge_chunks no force row level security")
    assert found[0] == found[1] == found[3]


def test_two_installs_search_a_table_for_a_role_each_by_functions_of_its_own(
    notes: Connection, connect: Connect, dsn: str, run: Run
) -> None:
    migrations.apply(dsn, schema="app", dimensions=3, modules=("adoption",))
    command = ("adopt", "public.notes", "--model", "m", "--rows", "all", "--schema", "app")
    assert run(*command, "--apply", "--dsn", dsn).code == 0
    assert run("adopt", "--backfill", "notes", "--schema", "app", "--dsn", dsn).code == 0
    notes.execute("select app_internal.let_search('authenticated')")
    notes.execute(f"create policy visible on public.notes {POLICIES['claim']}".encode())
    user = user_of(connect, "b")
    other = "select source_row -> 'key' -> 'id' from app.search_visible_knowledge_chunks(%s)"
    asked = {"query_embedding": "[1,0,0]", "match_count": 30}
    found = {key for (key,) in user.execute(other, [Jsonb(asked)]).fetchall()}
    assert found == keys(search(user, **asked)) != set()
    uninstall.apply(dsn, "app")
    assert keys(search(user, **asked)) == found

"""`adopt --calls`: which functions are replaced, whose rows they show, what a person decides."""

from uuid import UUID

import psycopg
import pytest
from adopted import adopt, backfill
from psycopg import sql
from psycopg.types.json import Jsonb

from command_line import Run
from conftest import Connect, Connection
from second_brain.adoption import calls, drop_ins, replaced
from second_brain.services.install import Database

pytestmark = pytest.mark.module("adoption")

ANNA, BERT = UUID(int=10), UUID(int=11)
SEARCH = """
create function public.search_notes(query_embedding extensions.vector, match_count int default 5)
returns setof public.notes language sql stable {security}
set search_path = public, extensions as $f$
  select notes.* from notes {where} order by notes.embedding <=> query_embedding limit match_count
$f$
"""
CALL = "select id from public.search_notes('[1,0,0]', 3)"


@pytest.fixture
def notes(database: Connection) -> Connection:
    """A table of 40 notes, of which Anna sees the last one by its policy, and visitors none."""
    database.execute(
        "create table public.notes (id int primary key, owner uuid, content text,"
        " status text, embedding extensions.vector(3));"
        " create index on public.notes using hnsw (embedding extensions.vector_cosine_ops);"
        " alter table public.notes enable row level security;"
        " create policy own on public.notes for select to authenticated using (owner = auth.uid());"
        " grant select on public.notes to anon, authenticated, service_role"
    )
    database.execute(
        "insert into public.notes select place, case when place = 40 then %s else %s end::uuid,"
        " 'Note ' || place, 'done', ('[1,' || place || ',0]')::extensions.vector"
        " from generate_series(1, 40) as place",
        [ANNA, BERT],
    )
    return database


def kept(source: Connection, security: str = "", where: str = "") -> drop_ins.DropIn:
    source.execute(SEARCH.format(security=security, where=where).encode())
    adopt(source, "public.notes", collection="notes")
    backfill(source, "notes")
    (call,) = calls.keep(Database(source), "notes", run=True)
    return call


def found(caller: Connection) -> list[int]:
    return [id_ for (id_,) in caller.execute(CALL.encode()).fetchall()]


def test_a_caller_finds_what_the_policies_show(notes: Connection, connect: Connect) -> None:
    assert kept(notes).undecided == []
    assert found(connect("authenticated", uid=ANNA)) == [40]
    assert found(connect("authenticated", uid=BERT)) == [1, 2, 3]
    assert found(connect("anon")) == []
    assert found(connect("service_role")) == [1, 2, 3]
    notes.execute("alter table public.notes add column more bigint, add column other text")
    assert found(connect("authenticated", uid=BERT)) == [1, 2, 3]


def test_the_comparison_has_a_user_of_each_claim_and_says_what_proves_nothing(
    notes: Connection,
) -> None:
    notes.execute(
        "create policy open on public.notes to authenticated"
        " using (status = (auth.jwt() -> 'app' ->> 'status'))"
    )
    call = kept(notes, where="where content = 'x' or status = 'done' and auth.uid() is not null")
    assert ("the owner", 0, 0) in call.users
    assert "the owner gets no row, before or now: this proves nothing" in call.notes
    notes.execute("drop function public.search_notes")
    notes.execute(SEARCH.format(security="", where="").encode())
    (call,) = calls.keep(Database(notes), "notes")
    assert ("a user with status = done", 200, 200) in call.users


def test_a_table_of_the_same_name_in_another_schema_is_another(notes: Connection) -> None:
    notes.execute("create schema other; create table other.notes (like public.notes)")
    search = SEARCH.replace("setof public.notes", "setof other.notes").format(security="", where="")
    notes.execute(search.replace("= public", "= other").encode())
    adopt(notes, "public.notes", collection="notes")
    backfill(notes, "notes")
    assert calls.keep(Database(notes), "notes") == []


# Arguments, a condition, and which of them are the question and the embedding.
ARGUMENTS = {
    ("model text, near vector", "true"): (None, "near"),
    ("embedding_model text, e vector, q text", "fts @@ plainto_tsquery(q)"): ("q", "e"),
    ("search_mode text, e text, words text", "embedding <=> e::vector < 1 and fts @@"
     " to_tsquery(search_mode::regconfig, words || ':*')"): ("words", "e"),
    ("query_type text, query_text text, query_embedding vector", "true"): (
        "query_text", "query_embedding"),
    ("a vector, b vector", "embedding <=> a < embedding <=> b"): "the embedding: a, b",
    ("a text, b text", "fts @@ (plainto_tsquery(a) && plainto_tsquery(b))"): "the question: a, b",
}  # fmt: skip


def test_arguments_are_known_by_what_is_done_with_them(notes: Connection) -> None:
    notes.execute("alter table public.notes add column fts tsvector")
    adopt(notes, "public.notes", collection="notes")
    source = drop_ins.adopted(Database(notes), "notes")
    for (arguments, condition), expected in ARGUMENTS.items():
        with notes.transaction(force_rollback=True):
            body = f"select * from notes where {condition}"
            notes.execute(
                f"set local search_path = public, extensions; create function f({arguments})"
                f" returns setof notes language sql as $f$ {body} $f$".encode()
            )
            named = "select oid::regprocedure::text from pg_proc where proname = 'f'"
            (signature,) = notes.execute(named.encode()).fetchone() or ("",)
            call = drop_ins.write(Database(notes), signature, source)
            shown = call.named("question"), call.named("embedding")
            assert expected == shown or str(expected) in "; ".join(call.undecided)


_RIGHTS = """
select role.name, right_.name
  from unnest('{anon,authenticated}'::text[]) as role (name)
 cross join lateral (
         values
           ('search', has_function_privilege(
             role.name, 'public.search_visible_knowledge_chunks(jsonb)', 'execute')),
           ('usage', has_schema_privilege(role.name, 'knowledge_internal', 'usage')),
           ('function', exists (select from pg_proc as function
             where function.proowner = role.name::regrole))
       ) as right_ (name, is_there)
 where right_.is_there
"""


@pytest.mark.parametrize("let", [(), ("authenticated",)])
def test_what_calls_gave_to_roles_goes_when_calls_come_back(
    notes: Connection, connect: Connect, let: tuple[str, ...]
) -> None:
    for role in let:
        notes.execute("select knowledge_internal.let_search(%s)", [role])
    kept(notes)
    before = {(role, "search") for role in let} | {(role, "function") for role in let}
    rights = {
        (role, right) for role in ("anon", "authenticated") for right in ("usage", "function")
    }
    assert {*notes.execute(_RIGHTS).fetchall()} == before | rights
    anna = connect("authenticated", uid=ANNA)
    assert found(anna) == [40]
    for statement in replaced.undo(Database(notes), "notes"):
        notes.execute(statement.encode())
    assert {*notes.execute(_RIGHTS).fetchall()} == before
    assert found(anna) == [40]
    hits = 'select content from public.search_visible_knowledge_chunks(\'{"query_text": "note"}\')'
    if let:
        assert anna.execute(hits.encode()).fetchall() == [("Note 40",)]
    else:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            anna.execute(hits.encode())


@pytest.mark.parametrize(
    ("bound", "count"),
    [
        ("fetch first 4 rows only", 4),
        ("fetch next row only", 1),
        ("fetch first (match_count) rows only", 30),
        ("limit 4", 4),
        ("limit least(match_count, 3)", 3),
    ],
)
def test_a_drop_in_returns_as_many_rows_as_the_old_function(
    notes: Connection, bound: str, count: int
) -> None:
    notes.execute(SEARCH.format(security="", where="").replace("limit match_count", bound).encode())
    old = "select count(*) from public.search_notes('[1,0,0]', 30)"
    assert notes.execute(old.encode()).fetchone() == (count,)
    adopt(notes, "public.notes", collection="notes")
    backfill(notes, "notes")
    (call,) = calls.keep(Database(notes), "notes", run=True)
    assert call.undecided == []
    assert notes.execute(old.encode()).fetchone() == (count,)


def test_a_role_that_reads_some_columns_alone_is_decided_on(notes: Connection) -> None:
    notes.execute("revoke select on public.notes from anon; grant select (id) on notes to anon")
    assert "some columns" in "; ".join(kept(notes).undecided)


def test_a_caller_without_rights_on_a_table_gets_none(notes: Connection, connect: Connect) -> None:
    notes.execute("revoke select on public.notes from anon")
    notes.execute("alter default privileges grant execute on functions to pg_monitor")
    assert kept(notes).undecided == []
    acl = "select proacl::text from pg_proc where pronamespace ="
    acl += " 'knowledge_internal_public'::regnamespace"
    assert notes.execute(acl.encode()).fetchall() == [("{postgres=X/postgres}",)]
    anna = connect("authenticated", uid=ANNA)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        found(connect("anon"))
    for statement in (
        "select * from knowledge_internal_public.search_notes('[1,0,0]')",
        "select * from public.hybrid_search_knowledge_chunks(query_text => 'note')",
        "select * from knowledge_internal.adopted_hits('notes', '[1,0,0]', '{}')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            anna.execute(statement.encode())


def test_a_direct_call_of_the_search_shows_no_key_score_or_place_of_a_hidden_row(
    notes: Connection, connect: Connect
) -> None:
    kept(notes)
    notes.execute(
        "create table public.secrets (id int primary key, content text);"
        " insert into public.secrets values (1, 'Note 40'), (2, 'Note');"
        " revoke all on public.secrets from authenticated"
    )
    adopt(notes, "public.secrets", collection="secrets")
    backfill(notes, "secrets")
    anna = connect("authenticated", uid=ANNA)
    hits = "select key ->> 'id', place from knowledge_internal.adopted_hits_for_caller(%s, %s, %s)"
    search = Jsonb({"query_text": "note", "match_count": 100, "pool_size": 100})
    for embedding in (None, "[1,0,0]"):
        assert anna.execute(hits, ["notes", embedding, search]).fetchall() == [("40", 1)]
        assert anna.execute(hits, ["secrets", embedding, search]).fetchall() == []


BY_DISTANCE = "order by n.embedding operator(extensions.<=>) query_embedding"
LESS = "operator(extensions.<=>) query_embedding <"
NEAR = f"select n.id from public.notes n {BY_DISTANCE}"
OF_HITS = "select notes.* from hits join public.notes on notes.id = hits.id"
ASKED = "('[1,0,0]', 100, 'open', null, 'd%')"
OTHER = "other rows"
# Bodies of functions, and why they are not replaced: empty for those whose drop-ins return the
# same rows.
BODIES = {
    f"begin if auth.uid() is null then return; end if; return query select n.* from public.notes n"
    f" {BY_DISTANCE}; end": "",
    "begin return query execute 'select * from public.notes where ' || match_count; end": (
        "put together when it runs"
    ),
    "begin create temp table found as select id from public.notes; return query select notes.* from"
    " found join public.notes on notes.id = found.id; drop table found; end": "",
    "begin for i in 1 .. 2 loop return next null; end loop; end": "returns no query",
    "begin return query with hits as (select n.id from public.notes n join public.teams on teams.id"
    f" = n.id where teams.open {BY_DISTANCE}) {OF_HITS}; end": "",
    "begin return query with hits as (select n.id from public.notes as n where n.status = 'x' or"
    f" n.owner = auth.uid() or to_tsvector(content) @@ to_tsquery(pattern)) {OF_HITS}; end": "",
    f"with hits as ({NEAR}) {OF_HITS} and auth.uid() is null": "",
    f"with hits as (select distinct on (n.owner) n.id from public.notes n) {OF_HITS}": (
        "its distinct on is not kept"
    ),
    "with hits as (select n.id, row_number() over (partition by n.owner) as rn from public.notes n)"
    f" {OF_HITS} where rn < 3": "partition by",
    f"with hits as (select max(n.id) as id from public.notes n) {OF_HITS}": "groups",
    f"with hits as (select n.id from public.notes n group by n.id) {OF_HITS}": "groups",
    f"with recent as (select n.id from public.notes n order by n.id desc limit 9), hits as (select"
    f" * from recent) {OF_HITS}": "it orders by n.id DESC",
    "select n.* from public.notes n order by n.id": "it orders by n.id",
    f"with hits as ({NEAR}) {OF_HITS} order by notes.id": "it orders by notes.id",
    f"with hidden as (select n.id, n.owner from public.notes n where n.status = 'done'), hits as"
    f" ({NEAR}) {OF_HITS} where notes.owner not in (select owner from hidden)": "",
    f"with hits as ({NEAR}) {OF_HITS} where notes.owner in (select n.owner from hits join"
    " public.notes n on n.id = hits.id)": "a condition reads hits, too",
    f"with hidden as (select n.owner from public.notes n where n.status = 'done'), hits as ({NEAR})"
    " select notes.* from hits join public.notes on notes.id = hits.id left join hidden on"
    " hidden.owner = notes.owner where hidden.owner is null": OTHER,
    f"with hits as ({NEAR} limit 2) select n.* from hits join public.notes h on h.id = hits.id"
    " join public.notes n on n.owner = h.owner": "joins the table with itself",
    f"with hits as (select n.id, n.owner from public.notes n {BY_DISTANCE} limit 2) select"
    " notes.* from hits join public.notes on notes.owner = hits.owner": OTHER,
    "select n.* from public.notes n union all select n.* from public.notes n": "union",
    f"with hits as ({NEAR}) {OF_HITS} except select * from public.notes": "except",
    f"with recursive hits as ({NEAR}) {OF_HITS}": "recursive",
    f"select n.* from public.notes n where length(n.status) = 4 {BY_DISTANCE} offset 2": "",
    "select (null::public.notes).* from public.teams": "does not name the table",
    "with named as (select n.id, 'done' as status from public.notes n), hits as (select id from"
    f" named where status = 'done') {OF_HITS}": "",
    "with hits as (select n.id from (values (1)) as one (id) join public.notes n on n.id = one.id)"
    f" {OF_HITS}": "",
    "begin return query execute 'select n.* from public.notes n where n.status = $2 order by"
    " n.embedding operator(extensions.<=>) $1' using query_embedding, status; end": "",
    "with hits as (select n.id from public.notes n where not exists (select from public.notes newer"
    f" where newer.owner = n.owner and newer.id > n.id) {BY_DISTANCE}) {OF_HITS}": "",
    f"select n.* from public.notes n where false {BY_DISTANCE}": "",
    "select n.* from public.notes n where not to_tsvector(n.status) @@ to_tsquery(status)"
    f" {BY_DISTANCE}": "",
    "select n.* from public.notes n where to_tsvector(n.status) @@ to_tsquery(status)"
    f" {BY_DISTANCE}": "",
    "select n.* from public.notes n where (is_all is not null and to_tsvector(n.content) @@"
    f" to_tsquery(pattern)) {BY_DISTANCE}": "",
    f"select n.* from public.notes n where now() + interval '1 day ago' > now() {BY_DISTANCE}": "",
    f"select n.* from public.notes n where n.status like pattern {BY_DISTANCE}": "",
    # What is more than the words stays a condition.
    "declare ask tsquery := plainto_tsquery('simple', status) && plainto_tsquery('simple',"
    " coalesce(auth.jwt() ->> 'org', '2')); begin return query select n.* from public.notes n where"
    f" to_tsvector('simple', n.content || ' ' || n.status) @@ ask {BY_DISTANCE}; end": "",
    "declare ask tsquery := plainto_tsquery('simple', status); begin if auth.uid() is null then ask"
    " := ask && '2'; end if; return query select n.* from public.notes n where"
    f" to_tsvector('simple', n.content || ' ' || n.status) @@ ask {BY_DISTANCE}; end": "",
    # A threshold of one part.
    f"with near as (select n.id from public.notes n where n.embedding {LESS} 0.9 {BY_DISTANCE}),"
    " worded as (select n.id from public.notes n where to_tsvector(n.content) @@ plainto_tsquery("
    "status)) select n.* from near full join worded using (id) join public.notes n using (id)": "",
    "select n.* from public.notes n where match_count = 7 and n.owner = pattern::uuid"
    f" {BY_DISTANCE}": "",
    # The second page is of the old query alone.
    "select n.* from public.notes n where to_tsvector(n.status) @@ plainto_tsquery(status) order by"
    " ts_rank(to_tsvector(n.status), plainto_tsquery(status)), n.id limit 9 offset 9": "",
    f"select n.* from public.notes n {BY_DISTANCE} limit 5 offset 38": "",
    "select n.* from public.notes n where ts_rank(to_tsvector('simple', n.status),"
    " plainto_tsquery('simple', $3)) > 0.5 or ts_rank(to_tsvector('simple', n.content),"
    f" plainto_tsquery('simple', $3)) > 0 {BY_DISTANCE}": "",
    f"with hits as (select n.* from public.notes n {BY_DISTANCE}) select * from hits": (
        "its columns are not those of the table alone"
    ),
    "select n.* from public.notes n where ($4 is null or n.status = 'done') and ($4 or n.owner is"
    f" not null) is not false {BY_DISTANCE}": "",
}


def test_a_drop_in_returns_no_row_that_the_old_function_hides(notes: Connection) -> None:
    notes.execute("create table public.teams (id int, open boolean)")
    notes.execute("update public.notes set status = 'open' where id % 2 = 0")
    adopt(notes, "public.notes", collection="notes")
    backfill(notes, "notes")
    for body, reason in BODIES.items():
        with notes.transaction(force_rollback=True):
            language = "plpgsql" if body.startswith(("begin", "declare")) else "sql"
            notes.execute(
                "create function public.search_notes(query_embedding extensions.vector, match_count"
                " int, status text, is_all boolean, pattern text) returns setof public.notes"
                f" language {language} as $f${body}$f$".encode()
            )
            (call,) = calls.keep(Database(notes), "notes", run=True)
            assert reason in "; ".join(call.undecided), (body, call.undecided)
            assert bool(reason) == bool(call.undecided), (body, call.undecided)
            text = calls.migration([call], "notes")
            shown = [one for one in text.splitlines() if one and not one.startswith("--")]
            if reason:
                assert shown == []
                continue
            old, new = (
                sorted(
                    notes.execute(f"select id from {name}.search_notes{ASKED}".encode()).fetchall()
                )
                for name in ("knowledge_internal_public", "public")
            )
            assert new == old, body


MANY = list(range(1001))
# Conditions of a drop-in, and the values of the filters that are made of them.
FILTERS: tuple[tuple[dict[str, object] | None, list[object]], ...] = (
    ({"op": "in", "value": 7}, [[7]]),
    ({"op": "in", "value": ["a", None, "b"]}, [["a", "b"]]),
    ({"op": "in", "value": None}, [[]]),
    ({"op": "in", "value": "7", "is_text": True}, [["7", 7]]),
    ({"op": "in", "value": ["true", "x", None], "is_text": True}, [["true", True, "x"]]),
    ({"op": "in", "value": ['{"a": 1}'], "is_text": True}, []),
    ({"op": "in", "value": MANY[1:]}, [MANY[1:]]),
    ({"op": "in", "value": MANY}, []),
    ({"op": "in", "value": ["x" * 100_000]}, []),
    ({"op": "contains", "value": {"a": [1]}}, [{"a": [1]}]),
    ({"op": "contains", "value": {}}, []),
    ({"op": "contains", "value": [1]}, []),
    ({"op": "contains", "value": None}, []),
    (None, []),
)


def test_a_condition_is_a_filter_if_a_search_takes_it(notes: Connection) -> None:
    adopt(notes, "public.notes", collection="notes")
    backfill(notes, "notes")
    filters = (
        "select knowledge_internal.adopted_filters("
        "knowledge_internal.adoption_named('notes'), %s, %s) as made"
    )
    last: dict[str, object] = {"field": "metadata.last", "op": "in", "value": [1]}
    for condition, values in FILTERS:
        given = condition and {"field": "metadata", **condition}
        (made,) = notes.execute(filters, [Jsonb([given, last]), None]).fetchone() or ([],)
        assert [one["value"] for one in made] == [*values, [1]], condition
    for keys, count in ((["7", "9", "no"], 2), ([str(one) for one in MANY[1:]], 40), ([], 0)):
        (made,) = notes.execute(filters, [Jsonb([last]), Jsonb(keys)]).fetchone() or ([],)
        assert [len(one["value"]) for one in made] == [1, count]
        search = {"query_text": "note", "match_count": 50, "filters": made[1:]}
        hits = "select from knowledge_internal.search(knowledge_internal.given_arguments(%s))"
        assert len(notes.execute(hits.encode(), [Jsonb(search)]).fetchall()) == count
    (made,) = notes.execute(filters, [Jsonb([last]), Jsonb(MANY)]).fetchone() or ([],)
    assert made == [last]


def test_functions_of_any_name_come_back_and_those_of_others_are_left(notes: Connection) -> None:
    names = ["é" * 31, "f\n language sql as $", "f\nselect 1/0;"]
    listed = "select oid, pg_get_functiondef(oid) from pg_proc where oid = any (%s::oid[])"
    oids: list[int] = []
    for name in names:
        notes.execute(SEARCH.format(security="", where="").encode())
        renamed = sql.SQL("alter function public.search_notes rename to {}")
        notes.execute(renamed.format(sql.Identifier(name)))
        oids += notes.execute("select max(oid) from pg_proc").fetchone() or ()
    notes.execute(SEARCH.format(security="security definer", where="").encode())
    notes.execute("grant create on schema public to service_role")
    notes.execute("alter function public.search_notes owner to service_role")
    before = notes.execute(listed, [oids]).fetchall()
    adopt(notes, "public.notes", collection="notes")
    backfill(notes, "notes")
    kept = {one.function.name: one for one in calls.keep(Database(notes), "notes")}
    assert [one for one in kept if kept[one].undecided] == ["search_notes"]
    assert "it belongs to service_role" in kept["search_notes"].undecided[0]
    assert notes.execute(listed, [oids]).fetchall() == before
    notes.execute(calls.migration(list(kept.values()), "notes").encode())
    assert not {*before} & {*notes.execute(listed, [oids]).fetchall()}
    for statement in replaced.undo(Database(notes), "notes"):
        notes.execute(statement.encode())
    assert notes.execute(listed, [oids]).fetchall() == before


def test_a_table_with_a_quotation_mark_in_its_name_is_found(notes: Connection) -> None:
    notes.execute('alter table public.notes rename to "no""tes"')
    notes.execute(
        "create function public.nearest(query_embedding extensions.vector) returns int language sql"
        ' as $f$ select id from public."no""tes"'
        " order by embedding operator(extensions.<=>) query_embedding limit 1 $f$"
    )
    assert len(calls.searching(Database(notes), 'public."no""tes"')) == 1


def test_calls_are_written_after_the_backfill_and_brought_back_by_a_removal(
    notes: Connection, run: Run, dsn: str
) -> None:
    notes.execute(SEARCH.format(security="", where="").encode())
    adopt(notes, "public.notes", collection="notes")
    early = run("adopt", "--calls", "notes", "--dsn", dsn)
    assert (early.code, "adopt --backfill notes" in early.err) == (1, True)
    backfill(notes, "notes")
    granted = "select has_function_privilege('authenticated', oid, 'execute') from pg_proc"
    granted += " where proname = 'adopted_hits_for_caller'"
    rights = notes.execute(granted.encode()).fetchone()
    body = "select pg_get_functiondef(oid) from pg_proc where proname = 'search_notes'"
    body += " and pronamespace <> 'knowledge_internal'::regnamespace order by pronamespace"
    before = notes.execute(body.encode()).fetchall()
    written = run("adopt", "--calls", "notes", "--dsn", dsn)
    assert "can be replaced" in written.out
    assert notes.execute(body.encode()).fetchall() == before
    assert run("adopt", "--calls", "notes", "--apply", "--dsn", dsn).code == 0
    assert len(notes.execute(body.encode()).fetchall()) == 2
    assert run("adopt", "--remove", "notes", "--apply", "--dsn", dsn).code == 0
    assert notes.execute(body.encode()).fetchall() == before
    assert notes.execute(granted.encode()).fetchone() == rights

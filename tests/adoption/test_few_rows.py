"""A user who sees few rows of many gets as many from a drop-in as from the function before."""

import pytest
from adopted import adopt, backfill

from conftest import Connection
from second_brain.adoption import calls
from second_brain.services.install import Database

pytestmark = pytest.mark.module("adoption")

ANNA = "a0000000-0000-4000-8000-00000000000a"
BERT = "b0000000-0000-4000-8000-00000000000b"
ROWS, OF_ANNA, ASKED = 600, 10, 6
TABLE = f"""
create table public.notes (
  id bigint primary key, user_id uuid, org_id int, content text, tags text[], kind text,
  is_public boolean, made_at timestamptz, metadata jsonb, embedding extensions.vector(3)
);
create table public.members (org_id int, user_id uuid);
create table public.orgs (id int primary key, name text, owner uuid, is_open boolean);
insert into public.orgs values (7, 'Rare', '{ANNA}', true), (1, 'Usual', '{BERT}', true);
insert into public.members values (7, '{ANNA}'), (1, '{BERT}');
insert into public.notes
select place, case when place <= {OF_ANNA} then '{ANNA}' else '{BERT}' end::uuid,
       case when place <= {OF_ANNA} then 7 else 1 end, 'note ' || place,
       case when place <= {OF_ANNA} then '{{rare,note}}' else '{{usual}}' end::text[],
       case when place <= {OF_ANNA} then 'Rare' else 'usual' end, false,
       case when place <= {OF_ANNA} then '2020-01-01' else '2021-01-01' end::timestamptz,
       jsonb_build_object('team', case when place <= {OF_ANNA} then '7' else 'x' end,
                          'size', case when place <= {OF_ANNA} then 7 else 1 end),
       array[cos(place), sin(place), 0.1]::real[]::extensions.vector
  from generate_series(1, {ROWS}) as place;
create index on public.notes using hnsw (embedding extensions.vector_cosine_ops);
"""
FUNCTION = """
create function public.my_notes(
  query_embedding extensions.vector(3), query_text text, match_count int, p_user uuid default null,
  p_tags text[] default '{{rare}}', p_kind text default 'Rare', p_org int default 7
) returns table (id bigint, content text) language {language} security definer
set search_path = public, extensions as $f${body}$f$
"""
PLAIN = """
select n.id, n.content from notes n where {condition}
 order by (n.embedding <=> query_embedding) - ts_rank(to_tsvector('english', n.content),
          websearch_to_tsquery('english', query_text))
 limit match_count
"""
IN_CTES = """
with near as (
  select n.id, row_number() over (order by n.embedding <=> query_embedding) as place
    from notes n where ({condition}) order by place limit 2 * match_count
), worded as (
  select n.id, row_number() over (order by ts_rank(to_tsvector('english', n.content),
         websearch_to_tsquery('english', query_text)) desc) as place
    from notes n where to_tsvector('english', n.content)
                       @@ websearch_to_tsquery('english', query_text) and ({condition})
   order by place limit 2 * match_count
)
select n.id, n.content from near full join worded on worded.id = near.id
  join notes n on n.id = coalesce(near.id, worded.id)
 order by coalesce(1.0 / (60 + near.place), 0) + coalesce(1.0 / (60 + worded.place), 0) desc
 limit match_count
"""
# Conditions that a filter follows from.
FILTERS = (
    "n.user_id = auth.uid()", "auth.uid() = n.user_id", "n.user_id = (select auth.uid())",
    "n.user_id = coalesce(p_user, auth.uid())", "n.user_id::uuid = auth.uid()",
    "n.org_id = (auth.jwt() ->> 'org')::int",
    "n.org_id = (current_setting('request.jwt.claims', true)::jsonb -> 'app' ->> 'org')::int",
    "n.org_id in (select m.org_id from members m where m.user_id = auth.uid())",
    "n.org_id in (select org_id from members where user_id = (select auth.uid()))",
    "n.org_id = any (array(select m.org_id from public.members m where m.user_id = auth.uid()))",
    "n.is_public or n.user_id = auth.uid()", "(n.user_id = auth.uid() or n.is_public is true)",
    "(p_user is null or n.user_id = p_user) and n.user_id = auth.uid()",
    "n.tags && p_tags", "n.kind = p_kind", "n.kind = any (array['Rare', 'other'])",
    "n.kind in ('Rare', p_kind)", "n.kind not in ('usual')", "n.kind <> all (array['usual'])",
    "n.org_id >= p_org", "7 <= n.org_id", "n.org_id between 5 and 9",
    "n.made_at < '2020-06-01'::timestamptz", "n.metadata @> '{\"team\": \"7\"}'",
    "n.metadata ->> 'team' = p_org::text", "n.metadata ->> 'size' = p_org::text",
    "(n.metadata ->> 'team') in ('7')", "n.user_id is not distinct from auth.uid()",
)  # fmt: skip
# Conditions that none follows from: a person decides.
DECIDED = (
    "n.content ilike '%' || '1' || '%'", "lower(n.kind) = lower(p_kind)",
    "exists (select from members m where m.org_id = n.org_id and m.user_id = auth.uid())",
    "coalesce(n.user_id, p_user) = auth.uid()", "n.org_id % 7 = 0", "length(n.kind) = 4",
    "n.id in (select x.id from notes x where x.user_id = auth.uid() and x.id = n.id)",
    "case when n.user_id = auth.uid() then true else n.is_public end",
    "n.metadata ? 'team' and n.org_id + 0 = 7", "not (n.kind = 'usual')",
)  # fmt: skip


@pytest.fixture(scope="module")
def notes(shared: Connection) -> Connection:
    shared.execute(TABLE.encode())
    adopt(shared, "public.notes", collection="notes")
    backfill(shared, "notes")
    return shared


def create(connection: Connection, body: str, language: str = "sql") -> None:
    connection.execute(FUNCTION.format(language=language, body=body).encode())


def rows_of_anna(connection: Connection, name: str = "public.my_notes") -> int:
    claims = f'{{"sub": "{ANNA}", "org": 7, "app": {{"org": 7}}}}'
    with connection.transaction(force_rollback=True):
        connection.execute("select set_config('request.jwt.claims', %s, true)", [claims])
        found = connection.execute(
            f"select id from {name}('[1,0,0]', 'notes', {ASKED})".encode()
        ).fetchall()
    return len(found)


@pytest.mark.parametrize("shape", [PLAIN, IN_CTES], ids=["plain", "ctes"])
@pytest.mark.parametrize("condition", FILTERS)
def test_a_condition_is_a_filter_and_no_row_is_lost(
    notes: Connection, condition: str, shape: str
) -> None:
    with notes.transaction(force_rollback=True):
        create(notes, shape.format(condition=condition))
        before = rows_of_anna(notes)
        (call,) = calls.keep(Database(notes), "notes", run=True)
        assert call.undecided == []
        assert before == ASKED
        assert rows_of_anna(notes) == ASKED
        if "auth.uid()" in condition and "exists" not in condition:
            assert [(old, new) for _, old, new in call.users if new < old] == []
            assert call.users


@pytest.mark.parametrize("condition", DECIDED)
def test_a_condition_that_is_no_filter_is_decided_by_a_person(
    notes: Connection, condition: str
) -> None:
    with notes.transaction(force_rollback=True):
        create(notes, PLAIN.format(condition=condition))
        (call,) = calls.keep(Database(notes), "notes", run=True)
        assert call.undecided
        assert rows_of_anna(notes) == ASKED


# Joins with the table of the documents, in each part of a query.
JOINED = """
with near as (
  select n.id, o.name as org, row_number() over (order by n.embedding <=> query_embedding) as place
    from notes n join orgs o on o.id = n.org_id
   where o.owner = auth.uid() and o.is_open order by place limit 2 * match_count
), worded as (
  select n.id, row_number() over (order by ts_rank(to_tsvector('english', n.content),
         websearch_to_tsquery('english', query_text)) desc) as place
    from orgs o inner join notes n on n.org_id = o.id
   where to_tsvector('english', n.content) @@ websearch_to_tsquery('english', query_text)
     and o.owner = auth.uid() order by place limit 2 * match_count
)
select n.id, o.name as title
  from near full join worded on worded.id = near.id
  join notes n on n.id = coalesce(near.id, worded.id) left join orgs o on o.id = n.org_id
 order by coalesce(1.0 / (60 + near.place), 0) + coalesce(1.0 / (60 + worded.place), 0) desc
 limit match_count
"""
PLAIN_JOINED = """
select n.id, o.name from notes n join orgs o on o.id = n.org_id and {condition}
 order by (n.embedding <=> query_embedding) - ts_rank(to_tsvector('english', n.content),
          websearch_to_tsquery('english', query_text))
 limit match_count
"""


@pytest.mark.parametrize(
    "body",
    [
        JOINED,
        PLAIN_JOINED.format(condition="o.owner = auth.uid()"),
        PLAIN_JOINED.format(condition="true").replace(
            " order by (n", " where o.owner = auth.uid() and o.is_open order by (n"
        ),
        PLAIN_JOINED.format(condition="owner = (select auth.uid())"),
    ],
)
def test_a_condition_on_a_joined_table_is_a_filter(notes: Connection, body: str) -> None:
    with notes.transaction(force_rollback=True):
        create(notes, body)
        before = rows_of_anna(notes)
        (call,) = calls.keep(Database(notes), "notes", run=True)
        assert call.undecided == []
        assert (before, rows_of_anna(notes)) == (ASKED, ASKED)
        names = notes.execute(
            "select distinct content from public.my_notes('[1,0,0]', 'note', 5)"
        ).fetchall()
        assert names == []
        claims = f'{{"sub": "{ANNA}"}}'
        notes.execute("select set_config('request.jwt.claims', %s, true)", [claims])
        names = notes.execute(
            "select distinct content from public.my_notes('[1,0,0]', 'note', 5)"
        ).fetchall()
        assert names == [("Rare",)]


# Shapes of public projects, in words of our own.
SHAPES = {
    "a constant": "declare k constant int := 60; begin return query " + IN_CTES.replace("60", "k")
    + "; end",
    "a variable": "declare most int; begin most := 2 * match_count; return query "
    + IN_CTES.replace("2 * match_count", "most") + "; end",
    "a setting": "begin perform set_config('hnsw.ef_search', '100', true); return query "
    + IN_CTES + "; end",
    "set local": "begin set local hnsw.ef_search = 100; return query " + PLAIN + "; return; end",
    "names of the function": "begin return query "
    + PLAIN.replace("query_text", "my_notes.query_text").replace(
        "limit match_count", "limit my_notes.match_count"
    ) + "; end",
    "a case for null": "begin return query "
    + PLAIN.replace("{condition}", "(p_user is null or n.user_id = p_user) and {condition}")
    + "; end",
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_an_ordinary_shape_is_replaced_by_itself(notes: Connection, shape: str) -> None:
    with notes.transaction(force_rollback=True):
        body = SHAPES[shape].format(condition="n.user_id = auth.uid()")
        create(notes, body, "plpgsql")
        (call,) = calls.keep(Database(notes), "notes", run=True)
        assert call.undecided == [], shape
        assert rows_of_anna(notes) == ASKED
        assert rows_of_anna(notes, call.function.before_as_sql) == ASKED

"""A user who sees few rows of many: no function that is replaced gives one more or fewer."""

import random
import re

import pytest
from adopted import adopt, backfill

from conftest import Connection
from second_brain.adoption import calls, drop_ins
from second_brain.services.install import Database

pytestmark = pytest.mark.module("adoption")

ANNA = "a0000000-0000-4000-8000-00000000000a"
BERT = "b0000000-0000-4000-8000-00000000000b"
ROWS, OF_ANNA, ASKED = 600, 10, 6
TABLE = f"""
create table public.notes (
  id bigint primary key, user_id uuid, org_id int, content text, tags text[], kind text,
  is_public boolean, made_at timestamptz, metadata jsonb, embedding extensions.vector(3),
  fts tsvector generated always as (to_tsvector('english', content)) stored
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
) returns {returns} language {language} {security}
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
# Conditions that only rows of Anna meet, when she asks.
CONDITIONS = (
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
    # Such as no filter says: the keys of the rows are one.
    "n.content ilike '%' || 'note' || '%' and n.user_id = auth.uid()",
    "n.kind ilike '%ar%'", "lower(n.kind) = lower(p_kind)", "n.kind ~ '^R'",
    "exists (select from members m where m.org_id = n.org_id and m.user_id = auth.uid())",
    "exists (select 1 from members where user_id = auth.uid() and org_id = 7) and n.org_id = 7",
    "coalesce(n.user_id, p_user) = auth.uid()", "n.org_id % 7 = 0", "length(n.kind) = 4",
    "n.id in (select x.id from notes x where x.user_id = auth.uid() and x.id = n.id)",
    "case when n.user_id = auth.uid() then true else n.is_public end",
    "n.metadata ? 'team' and n.org_id + 0 = 7", "not (n.kind = 'usual')",
    f"n.id = any (array(select one from generate_series(1, {OF_ANNA}) as one))",
    f"n.id not in (select one from generate_series({OF_ANNA} + 1, 3000) as one)",
    "n.org_id + 7 in (select 14 + one * 50 from generate_series(0, 2000) as one)",
)  # fmt: skip
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
MINE = IN_CTES.format(condition="n.user_id = auth.uid()")
# Shapes of functions of public projects, in words of our own: the result, the language, the body.
SHAPES = {
    "a constant of declare": (
        "", "plpgsql",
        "declare k constant int := 60; begin return query " + MINE.replace("60", "k") + "; end",
    ),
    "a variable": (
        "", "plpgsql", "declare most int; begin most := 2 * match_count; return query "
        + MINE.replace("2 * match_count", "most") + "; end",
    ),
    "a setting": (
        "", "plpgsql", "begin perform set_config('hnsw.ef_search', '100', true);"
        " set local hnsw.ef_search = 90; return query " + MINE + "; return; end",
    ),
    "names of the function": (
        "", "plpgsql", "begin return query " + MINE.replace("query_text", "my_notes.query_text")
        .replace("limit match_count", "limit my_notes.match_count") + "; end",
    ),
    "a user who is not signed in": (
        "", "plpgsql", "begin if auth.uid() is null then return; end if; return query "
        + IN_CTES.format(condition="(p_user is null or n.user_id = p_user)"
                         " and n.user_id = auth.uid()") + "; end",
    ),
    "an organisation that a query finds": (
        "", "plpgsql", "declare org int; begin select m.org_id into org from members m"
        " where m.user_id = auth.uid() limit 1; if not found then raise exception 'no member';"
        " end if; return query " + IN_CTES.format(condition="n.org_id = org") + "; end",
    ),
    "a user by coalesce": (
        "", "plpgsql", "declare asking uuid; begin asking := coalesce(p_user, auth.uid());"
        " return query " + IN_CTES.format(condition="n.user_id = asking") + "; end",
    ),
    "two queries": (
        "", "plpgsql", "begin if query_text = '' then return query select n.id, n.content from"
        " notes n where n.user_id = auth.uid() order by n.embedding <=> query_embedding limit"
        " match_count; else return query " + MINE + "; end if; end",
    ),
    "rows of a base": (
        "table (id bigint, content text, score float)", "sql", """
        with base as materialized (
          select * from notes where user_id = auth.uid() and (p_kind is null or kind = p_kind)
        ), worded as (
          select id, row_number() over (
                   order by ts_rank_cd(fts, websearch_to_tsquery('english', query_text)) desc
                 ) as r
            from base where fts @@ websearch_to_tsquery('english', query_text)
           limit least(match_count, 50) * 2
        ), near as (
          select id, row_number() over (order by embedding <=> query_embedding) as r from base
           where embedding is not null order by embedding <=> query_embedding limit 60
        ), scored as (
          select coalesce(w.id, s.id) as id,
                 coalesce(1.0 / (50 + w.r), 0) + coalesce(1.0 / (50 + s.r), 0) as score
            from worded w full join near s on w.id = s.id
        )
        select b.id, b.content, scored.score from scored join base b on b.id = scored.id
         order by score desc limit match_count""",
    ),
    "a table with its ranks on the left": (
        "table (note_id bigint, rank float)", "plpgsql", """
        begin return query
        with worded as (
          select notes.id, row_number() over (order by ts_rank(notes.fts, plainto_tsquery(
                   query_text)) desc) as rank
            from notes where notes.fts @@ plainto_tsquery(query_text) and user_id = auth.uid()
           order by rank limit 50
        ), near as (
          select notes.id, row_number() over (order by notes.embedding <#> query_embedding) as rank
            from notes where user_id = auth.uid() order by rank limit 50
        )
        select d.id, (coalesce(1.0 / w.rank, 0) + coalesce(1.0 / s.rank, 0))::float as rank
          from notes d left join worded w on d.id = w.id left join near s on d.id = s.id
         where w.id is not null or s.id is not null
         order by rank desc limit match_count; end""",
    ),
    "a union of ranks": (
        "table (id bigint, content text, score numeric)", "sql", """
        with near as (
          select id, rank() over (order by embedding <=> query_embedding) as r from notes
           where user_id = auth.uid() order by embedding <=> query_embedding limit 40
        ), worded as (
          select n.id, rank() over (order by ts_rank_cd(n.fts, q) desc) as r
            from notes n, websearch_to_tsquery('english', query_text) as q
           where n.fts @@ q and n.user_id = auth.uid() limit 40
        ), both_ as (select * from near union all select * from worded)
        select n.id, n.content, sum(1.0 / (60 + r)) from both_ join notes n on n.id = both_.id
         group by n.id, n.content order by 3 desc limit match_count""",
    ),
    "a sum above a threshold": (
        "table (id bigint, title text, score float, text_rank float)", "plpgsql", """
        begin return query
        select n.id, o.name as title, (0.7 * (1 - (n.embedding <=> query_embedding)) + 0.3
               * ts_rank(n.fts, plainto_tsquery('english', query_text)))::float as score,
               ts_rank(n.fts, plainto_tsquery('english', query_text))::float
          from notes n join orgs o on n.org_id = o.id
         where (1 - (n.embedding <=> query_embedding) > -1
                or n.fts @@ plainto_tsquery('english', query_text)) and o.owner = auth.uid()
         order by score desc limit match_count; end""",
    ),
    "two languages": (
        "table (id bigint, score float)", "plpgsql", """
        declare english tsquery; simple tsquery;
        begin
          english := plainto_tsquery('english', query_text);
          simple := plainto_tsquery('simple', query_text);
          return query
          select n.id, greatest(ts_rank_cd(n.fts, english), ts_rank_cd(n.fts, simple))::float as r
            from notes n where (n.fts @@ english or n.fts @@ simple)
             and exists (select 1 from members m where m.org_id = n.org_id
                            and m.user_id = auth.uid())
           order by r desc limit match_count;
        end""",
    ),
    "letters": (
        "table (id bigint, content text, similarity float, match text)", "sql", """
        with exact as (
          select n.id, 1.0 as score from notes n
           where n.content ilike '%' || 'note' || '%' and n.user_id = auth.uid()
        ), near as (
          select n.id, 1 - (n.embedding <=> query_embedding) as score from notes n
           where n.user_id = auth.uid() order by n.embedding <=> query_embedding limit 30
        )
        select n.id, n.content, (coalesce(near.score, 0) + coalesce(exact.score, 0))::float,
               case when exact.id is null then 'near' when near.id is null then 'exact'
                 else 'both' end
          from near full outer join exact using (id) join notes n using (id)
         order by 3 desc limit match_count""",
    ),
    "metadata": (
        "setof notes", "sql", """
        with near as (
          select id, row_number() over (order by embedding <=> query_embedding) as r from notes
           where (metadata ->> 'team' = any (array['7']) or metadata @> '{"size": 7}')
           order by r limit 30
        ), worded as (
          select id, row_number() over (order by ts_rank(fts, websearch_to_tsquery(query_text))
                   desc) as r
            from notes where fts @@ websearch_to_tsquery(query_text)
             and (metadata ->> 'team' = any (array['7']) or metadata @> '{"size": 7}') limit 30
        )
        select notes.* from near full outer join worded on near.id = worded.id
          join notes on coalesce(near.id, worded.id) = notes.id
         order by coalesce(1.0 / (p_org + near.r), 0) + coalesce(1.0 / (p_org + worded.r), 0) desc
         limit least(match_count, 30)""",
    ),
    "pages": (
        "table (id bigint, content text, total bigint)", "sql", """
        select n.id, n.content, count(*) over () from notes n
         where n.user_id = auth.uid() and n.fts @@ websearch_to_tsquery('english', query_text)
         order by ts_rank(n.fts, websearch_to_tsquery('english', query_text)) desc
         limit match_count offset 0""",
    ),
    "begin atomic": (
        "", "sql", "begin atomic "
        + MINE.replace("from notes", "from public.notes").replace(
            "<=>", "operator(extensions.<=>)") + "; end",
    ),
    "what is executed": (
        "", "plpgsql", "begin return query execute 'select n.id, n.content from notes n where"
        " n.user_id = $3 and n.fts @@ plainto_tsquery($1) order by ts_rank(n.fts,"
        " plainto_tsquery($1)) desc limit $2' using query_text, match_count, auth.uid(); end",
    ),
    "a parent in each part": ("", "sql", JOINED),
    "a parent": ("", "sql", PLAIN_JOINED.format(condition="o.owner = auth.uid()")),
    "a parent and a where": (
        "", "sql", PLAIN_JOINED.format(condition="true").replace(
            " order by (n", " where o.owner = auth.uid() and o.is_open order by (n"
        ),
    ),
    "a parent's column without its name": (
        "", "sql", PLAIN_JOINED.format(condition="owner = (select auth.uid())"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def notes(shared: Connection) -> Connection:
    shared.execute(TABLE.encode())
    adopt(shared, "public.notes", collection="notes")
    backfill(shared, "notes")
    return shared


def create(
    connection: Connection,
    body: str,
    language: str = "sql",
    returns: str = "",
    security: str = "security definer",
) -> None:
    returns = returns or "table (id bigint, content text)"
    values = {"returns": returns, "language": language, "body": body, "security": security}
    text = FUNCTION.format(**values)
    if body.startswith("begin atomic"):
        text = text.replace("as $f$", "").replace("$f$", "")
    connection.execute(text.encode())


def rows_of(
    connection: Connection,
    user: str,
    name: str = "public.my_notes",
    most: int = ASKED,
    role: str = "",
) -> list[int]:
    """Return the keys that a user gets."""
    claims = f'{{"sub": "{user}", "org": 7, "app": {{"org": 7}}}}'
    with connection.transaction(force_rollback=True):
        connection.execute("select set_config('request.jwt.claims', %s, true)", [claims])
        if role:
            connection.execute(f"set local role {role}".encode())
        return [
            row[0]
            for row in connection.execute(
                f"select * from {name}('[1,0,0]', 'notes', {most})".encode()
            ).fetchall()
        ]


def keep(connection: Connection) -> drop_ins.DropIn:
    (call,) = calls.keep(Database(connection), "notes", run=True)
    return call


def check(connection: Connection) -> None:
    """Anna has as many rows as before, all of them hers, and the search finds them itself."""
    assert len(rows_of(connection, ANNA)) == ASKED
    call = keep(connection)
    assert (call.undecided, call.left) == ([], None)
    found = rows_of(connection, ANNA)
    assert len(found) == len({*found}) == ASKED
    assert max(found) <= OF_ANNA
    assert [user for user in call.users if user[2] < user[1]] == []
    if re.search(r"user_id = auth|asking :=", call.function.body):
        assert [user for user, _, _ in call.users if user != "the owner"] != []
    # Without the old query, which fills up an answer.
    (statement,) = (one for one in call.statements if "drop_in_hits" in one)
    connection.execute(re.sub(r"(\) as old .*\n *where ).*", r"\1false", statement).encode())
    assert len(rows_of(connection, ANNA)) == ASKED


@pytest.mark.parametrize("shape", [PLAIN, IN_CTES], ids=["plain", "ctes"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_narrows_the_search_and_no_row_is_lost(
    notes: Connection, condition: str, shape: str
) -> None:
    with notes.transaction(force_rollback=True):
        create(notes, shape.format(condition=condition))
        check(notes)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_function_of_a_public_project_is_replaced_by_itself(
    notes: Connection, shape: str
) -> None:
    returns, language, body = SHAPES[shape]
    with notes.transaction(force_rollback=True):
        create(notes, body, language, returns)
        check(notes)


ITEMS = (
    TABLE[TABLE.index("create table public.notes") :].split(");", 1)[0].replace("notes", "items")
    + f""");
insert into public.items
select place, (array['{ANNA}', '{BERT}', null])[1 + place % 7 % 3]::uuid, nullif(place % 5, 0),
       'item ' || place, (array['{{rare}}', '{{usual,rare}}', null])[1 + place % 3]::text[],
       (array['Rare', 'usual', null])[1 + place % 11 % 3], place % 13 < 2,
       '2020-01-01'::timestamptz + place * interval '1 day',
       case when place % 4 > 0 then jsonb_build_object('team', place % 3) end,
       array[cos(place), sin(place), 0.1]::real[]::extensions.vector
  from generate_series(1, 300) as place;
create index on public.items using hnsw (embedding extensions.vector_cosine_ops);
alter table public.items enable row level security;
grant select on public.items, public.members to authenticated;
"""
)
ATOMS = (
    "n.user_id = auth.uid()", "n.is_public", "n.kind = p_kind", "n.kind is null", "n.org_id = 7",
    "n.org_id <> 3", "n.org_id in (select m.org_id from members m where m.user_id = auth.uid())",
    "n.tags && p_tags", "n.metadata ->> 'team' = '1'", "n.metadata @> '{\"team\": 2}'",
    "n.kind ilike 'r%'", "exists (select 1 from members m where m.org_id = n.org_id)",
    "n.made_at > '2020-05-01'", "n.is_public is not true", "n.org_id = any (array[1, null, 4])",
    "n.org_id not in (2, 3)", "n.kind is distinct from 'Rare'", "n.kind = coalesce(p_kind, n.kind)",
    "p_user is null", "n.id % 3 = 1", "n.user_id is not distinct from p_user", "n.org_id > p_org",
)  # fmt: skip


@pytest.fixture(scope="module")
def items(notes: Connection) -> Connection:
    notes.execute(ITEMS.encode())
    adopt(notes, "public.items", collection="items")
    backfill(notes, "items")
    return notes


def composed(chosen: random.Random, depth: int = 2) -> str:
    kind = chosen.choice(("", "and", "or", "not")) if depth else ""
    if kind == "":
        return chosen.choice(ATOMS)
    if kind == "not":
        return f"not ({composed(chosen, depth - 1)})"
    return f"({composed(chosen, depth - 1)}) {kind} ({composed(chosen, depth - 1)})"


@pytest.mark.parametrize("seed", range(24))
def test_no_user_gets_a_row_more_or_fewer(items: Connection, seed: int) -> None:
    chosen = random.Random(seed)
    is_definer = chosen.random() < 0.5
    shape = chosen.choice((PLAIN, IN_CTES, SHAPES["letters"][2].replace(
        "n.user_id = auth.uid()", "({condition})")))  # fmt: skip
    body = (
        shape.replace("{condition}", composed(chosen))
        .replace("notes", "items")
        .replace("limit 30", "limit 1000")
    )
    role = "" if is_definer else "authenticated"
    returns = SHAPES["letters"][0] if "exact" in body else ""
    with items.transaction(force_rollback=True):
        policy = f"create policy own on public.items to authenticated using ({composed(chosen)})"
        for argument, value in (
            ("p_kind", "'Rare'"), ("p_user", "auth.uid()"), ("p_tags", "'{rare}'::text[]"),
            ("p_org", "2"),
        ):  # fmt: skip
            policy = policy.replace(argument, value)
        items.execute(policy.replace("n.", "items.").encode())
        create(items, body, "sql", returns, "security definer" if is_definer else "")
        (call,) = calls.keep(Database(items), "items", run=True)
        assert (call.undecided, call.left) == ([], None), body
        items.execute(
            f"grant usage on schema {call.kept_schema} to authenticated;"
            f"grant execute on function {call.kept} to authenticated".encode()
        )
        for user in (ANNA, BERT, "c0000000-0000-4000-8000-00000000000c"):
            seen = {*rows_of(items, user, "knowledge_internal_public.my_notes", 1000, role)}
            for most in (1, 7, 1000):
                before = rows_of(items, user, "knowledge_internal_public.my_notes", most, role)
                found = rows_of(items, user, most=most, role=role)
                assert len(found) == len({*found}) >= len(before), (body, user, most)
                assert {*found} <= seen, (body, policy, user, most)
                assert most < 1000 or {*found} == seen, (body, user)

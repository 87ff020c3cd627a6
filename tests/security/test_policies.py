"""Three usual policies of a project's table, and searches that find what each policy shows."""

import json
from typing import Any
from uuid import UUID

import pytest

from conftest import Connect, Connection
from support.documents import upsert

ANA, BEN, EVA = (UUID(int=number) for number in (1, 2, 3))
TENANTS = {ANA: "acme", BEN: "acme", EVA: "other"}
POLICIES = {
    "owner": "user_id = (select auth.uid())",
    "membership": "exists (select from public.members as member"
    " where member.organisation_id = notes.organisation_id"
    " and member.user_id = (select auth.uid()))",
    "tenant": "tenant = (select auth.jwt() -> 'app_metadata' ->> 'tenant')",
}
# What docs/permissions.md stores with a document for each of them.
STORED = {
    "owner": "'owner_id', note.user_id",
    "membership": "'allowed_groups', array['organisation:' || note.organisation_id]",
    "tenant": "'allowed_groups', array['tenant:' || note.tenant]",
}
TABLES = """
create table public.members (user_id uuid, organisation_id text);
insert into public.members values
  ('00000000-0000-0000-0000-000000000001', 'harbour'),
  ('00000000-0000-0000-0000-000000000002', 'harbour'),
  ('00000000-0000-0000-0000-000000000002', 'mill');
create table public.notes (
  id integer primary key, user_id uuid, organisation_id text, tenant text, body text
);
insert into public.notes values
  (1, '00000000-0000-0000-0000-000000000001', 'harbour', 'acme', 'the first note'),
  (2, '00000000-0000-0000-0000-000000000002', 'mill', 'other', 'a second note'),
  (3, '00000000-0000-0000-0000-000000000003', 'tenant:acme', 'harbour', 'one more note'),
  (4, null, null, null, 'the note of nobody');
alter table public.notes enable row level security;
grant select on table public.notes, public.members to authenticated;
create or replace function public.knowledge_viewer_groups() returns text[]
language sql stable security invoker set search_path = '' as $$
  select array_agg(granted.name)
    from (
      select 'organisation:' || member.organisation_id as name
        from public.members as member where member.user_id = (select auth.uid())
      union all
      select 'tenant:' || (auth.jwt() -> 'app_metadata' ->> 'tenant')
    ) as granted
   where granted.name is not null
$$;
"""


def keys(connection: Connection, statement: str) -> set[Any]:
    return {key for (key,) in connection.execute(statement.encode()).fetchall()}


@pytest.mark.parametrize("shape", POLICIES)
def test_a_user_finds_the_rows_that_the_policy_shows(connect: Connect, shape: str) -> None:
    owner = connect()
    owner.execute(TABLES.encode())
    owner.execute(
        f"create policy {shape} on public.notes for select to authenticated"
        f" using ({POLICIES[shape]})".encode()
    )
    # What is null is left out: nobody's document.
    owner.execute(
        "select public.upsert_knowledge_document("
        " jsonb_strip_nulls(jsonb_build_object('external_key', note.id::text,"
        f" 'metadata', jsonb_build_object('tenant', note.tenant), {STORED[shape]})),"
        " jsonb_build_array(jsonb_build_object('content', note.body)))"
        " from public.notes as note where note.id < 4".encode()
    )
    answers = []
    search = "select external_key from public.search_my_knowledge_chunks(query_text => 'note')"
    for user, tenant in TENANTS.items():
        connection = connect("authenticated", uid=user)
        claims = json.dumps({"sub": str(user), "app_metadata": {"tenant": tenant}})
        connection.execute("select set_config('request.jwt.claims', %s, false)", [claims])
        shown = keys(connection, "select id::text from public.notes")
        assert keys(connection, search) == shown, user
        answers.append(frozenset(shown))
    assert len({*answers}) > 1


def test_a_backend_binds_the_tenant_that_it_names(connect: Connect) -> None:
    service = connect("service_role")
    for key, tenant in (("1", "acme"), ("2", "other")):
        upsert(service, key, "note", metadata={"tenant": tenant})
    found = keys(
        service,
        "select external_key from public.hybrid_search_knowledge_chunks(query_text => 'note',"
        ' filters => \'{"any": [{"tenant": "other"}, {"tenant": "acme"}]}\','
        ' required_filters => \'{"tenant": "acme"}\')',
    )
    assert found == {"1"}

"""What happens to an install in use: `doctor` names each damage, and its remedy heals it."""

import re
from collections.abc import Iterator

import psycopg
import pytest

from conftest import Connection, Server
from second_brain.database import doctor, repair
from second_brain.database.doctor import Finding
from second_brain.database.embedded import apply_prelude
from support.databases import admin_dsn

CHUNKS, DOCUMENTS, INTERNAL = (
    "public.knowledge_chunks",
    "public.knowledge_documents",
    "knowledge_internal",
)
HASH = "public.knowledge_content_hash(text, text)"
TWICE = "public.knowledge_content_hash(text)"
SEARCH = "public.hybrid_search_knowledge_chunks"
GRANT_ALL = "grant all on all {} in schema public to anon, authenticated"
OTHER = "set role service_role; {}; reset role"
LOADED = "set session_replication_role = replica; {}; set session_replication_role = origin"
DROPPED = "is missing"

# The check, what it says, and the damage. It heals by the remedy of each finding.
DAMAGES: list[tuple[str, str, str]] = [
    # Rights
    ("functions", f"anon may call {HASH}", f"grant execute on function {HASH} to anon"),
    ("functions", f"public may call {HASH}", f"grant execute on function {HASH} to public"),
    ("functions", "may call", GRANT_ALL.format("functions")),
    ("tables", "anon, authenticated has", GRANT_ALL.format("tables")),
    ("functions", f"may not call {HASH}", f"revoke all on function {HASH} from service_role"),
    ("tables", "anon has truncate", f"grant truncate on {DOCUMENTS} to anon"),
    ("tables", "has update (title)", f"grant update (title) on {DOCUMENTS} to authenticated"),
    ("tables", "anon has usage", f"grant usage on schema {INTERNAL} to anon"),
    ("tables", "service_role lacks", f"revoke all on {CHUNKS} from service_role"),
    ("tables", "service_role lacks insert", f"revoke insert on {CHUNKS} from service_role"),
    (
        *("tables", "anon, authenticated, service_role lacks usage on schema public"),
        "revoke usage on schema public from public, anon, authenticated, service_role",
    ),
    (
        *("tables", "service_role lacks usage on schema extensions"),
        "revoke usage on schema extensions from service_role",
    ),
    (
        "tables",
        "authenticated lacks usage on schema auth",
        "revoke usage on schema auth from authenticated",
    ),
    ("roles", "auth.uid() is missing", "drop function auth.uid()"),
    ("roles", "service_role has no bypassrls", "alter role service_role nobypassrls"),
    # Owners
    ("owners", "knowledge_types belongs to", "alter table public.knowledge_types owner to anon"),
    ("owners", "knowledge_chunks belongs to", f"alter table {CHUNKS} owner to anon"),
    (
        "owners",
        "searchable_chunks belongs to",
        f"alter view {INTERNAL}.searchable_chunks owner to anon",
    ),
    ("owners", f"schema {INTERNAL} belongs to", f"alter schema {INTERNAL} owner to anon"),
    ("owners", "belongs to anon", f"alter function {HASH} owner to anon"),
    (
        "owners",
        "delete_knowledge_owner(uuid) belongs to",
        "alter function public.delete_knowledge_owner owner to anon",
    ),
    ("owners", "search_plan belongs to", f"alter type {INTERNAL}.search_plan owner to anon"),
    # Row level security
    ("row level security", "security is off", f"alter table {CHUNKS} disable row level security"),
    ("row level security", "is forced", f"alter table {CHUNKS} force row level security"),
    (
        *("row level security", "differs from this version in: using"),
        f"alter policy knowledge_documents_read on {DOCUMENTS} using (true)",
    ),
    (
        *("row level security", "differs from this version in: roles"),
        f"alter policy knowledge_documents_read on {DOCUMENTS} to anon",
    ),
    ("row level security", DROPPED, f"drop policy knowledge_chunks_read on {CHUNKS}"),
    (
        *("row level security", "mine is not part of this version"),
        f"create policy mine on {DOCUMENTS} for select using (true)",
    ),
    # Functions
    ("functions", DROPPED, f"drop function {HASH} cascade"),
    ("functions", DROPPED, f"drop function {SEARCH} cascade"),
    ("functions", DROPPED, f"drop function {INTERNAL}.complete_chunk cascade"),
    ("functions", DROPPED, f"drop function {INTERNAL}.current_viewer cascade"),
    ("functions", DROPPED, "drop function public.knowledge_viewer_groups() cascade"),
    ("functions", "exists 2 times", f"create function {TWICE} returns text language sql return $1"),
    (
        "functions",
        "in: security_definer",
        "alter function public.delete_knowledge_owner security invoker",
    ),
    ("functions", "in: settings", f"alter function {HASH} reset search_path"),
    ("functions", "in: settings", f"alter function {HASH} set work_mem = '1GB'"),
    ("functions", "in: volatility", f"alter function {HASH} volatile"),
    ("functions", "in: parallel", f"alter function {HASH} parallel unsafe"),
    ("functions", "in: cost", f"alter function {HASH} cost 9"),
    ("functions", "in: comment", f"comment on function {HASH} is null"),
    (
        *("functions", "in: body"),
        f"create or replace function {INTERNAL}.current_viewer() returns uuid language plpgsql"
        " stable parallel safe set search_path = pg_catalog, pg_temp"
        " as $$ begin return null; end $$",
    ),
    (
        *("functions", "left over from another version"),
        f"create function {INTERNAL}.former() returns int language sql return 1",
    ),
    # Triggers and rules
    ("tables", "it is disabled", f"alter table {CHUNKS} disable trigger complete_chunk"),
    ("tables", "it is disabled", f"alter table {CHUNKS} disable trigger user"),
    ("tables", "it is disabled", f"alter table {CHUNKS} enable replica trigger complete_chunk"),
    ("tables", DROPPED, f"drop trigger complete_chunk on {CHUNKS}"),
    ("tables", DROPPED, f"drop trigger pass_document_on on {DOCUMENTS}"),
    (
        *("tables", "in: definition"),
        f"create or replace trigger complete_chunk before insert on {CHUNKS} for each row"
        f" execute function {INTERNAL}.complete_chunk()",
    ),
    (
        *("tables", "mine is not part of this version"),
        f"create trigger mine before insert on {CHUNKS} for each row"
        " execute function suppress_redundant_updates_trigger()",
    ),
    (
        *("tables", "mine is not part of this version"),
        f"create rule mine as on insert to {CHUNKS} do instead nothing",
    ),
    # Tables, columns, constraints, types, views
    (
        "tables",
        "column public.knowledge_documents.author is missing",
        f"alter table {DOCUMENTS} drop column author",
    ),
    (
        "tables",
        "content_words is missing",
        f"alter table {CHUNKS} drop column content_words cascade",
    ),
    ("tables", "content_tsv is missing", f"alter table {CHUNKS} drop column content_tsv cascade"),
    (
        "tables",
        "column public.knowledge_chunks.bm25 is missing",
        f"alter table {CHUNKS} drop column bm25 cascade",
    ),
    ("tables", "in: not_null", f"alter table {CHUNKS} alter column content_hash drop not null"),
    ("tables", "in: default", f"alter table {CHUNKS} alter column status drop default"),
    ("tables", "in: type", f"alter table {DOCUMENTS} alter column author type varchar(9)"),
    ("tables", "in: storage", f"alter table {CHUNKS} alter column metadata set storage extended"),
    (
        "tables",
        "in: statistics",
        f"alter table {CHUNKS} alter column content_tsv set statistics 10",
    ),
    ("tables", "in: options", f"alter table {CHUNKS} set (fillfactor = 50)"),
    ("tables", "it is unlogged", "alter table public.knowledge_model_weights set unlogged"),
    ("tables", "no replica identity", f"alter table {CHUNKS} replica identity nothing"),
    ("tables", "in: comment", f"comment on table {CHUNKS} is null"),
    ("tables", DROPPED, f"alter table {CHUNKS} drop constraint knowledge_chunks_status_check"),
    ("tables", DROPPED, f"alter table {CHUNKS} drop constraint knowledge_chunks_document_id_fkey"),
    (
        "tables",
        DROPPED,
        f"alter table {DOCUMENTS} drop constraint knowledge_documents_pkey cascade",
    ),
    ("tables", "mine is not part", f"alter table {CHUNKS} add constraint mine check (version < 9)"),
    ("tables", DROPPED, f"drop view {INTERNAL}.chunk_rows cascade"),
    ("tables", DROPPED, f"drop view {INTERNAL}.searchable_chunks cascade"),
    ("tables", "in: attributes", f"alter type {INTERNAL}.search_settings add attribute mine int"),
    (
        "tables",
        "table public.knowledge_words is missing",
        "drop table public.knowledge_words cascade",
    ),
    (
        "tables",
        "table public.knowledge_sources is missing",
        "drop table public.knowledge_sources cascade",
    ),
    # Indexes
    ("indexes", f"index {CHUNKS}_owner {DROPPED}", f"drop index {CHUNKS}_owner"),
    ("indexes", f"index {CHUNKS}_source_origin {DROPPED}", f"drop index {CHUNKS}_source_origin"),
    ("indexes", f"index {CHUNKS}_embedding {DROPPED}", f"drop index {CHUNKS}_embedding"),
    ("indexes", f"index {CHUNKS}_content_tsv {DROPPED}", f"drop index {CHUNKS}_content_tsv"),
    (
        *("indexes", f"index {CHUNKS}_embedding differs"),
        f"drop index {CHUNKS}_embedding; create index knowledge_chunks_embedding on {CHUNKS} using"
        " hnsw ((extensions.l2_normalize(embedding)::extensions.halfvec(3))"
        " extensions.halfvec_l2_ops) where status = 'active'",
    ),
    (
        *("indexes", f"index {CHUNKS}_content_tsv differs"),
        f"drop index {CHUNKS}_content_tsv;"
        f" create index knowledge_chunks_content_tsv on {CHUNKS} using gin (content_tsv)",
    ),
    (
        *("indexes", "it is not valid"),
        f"update pg_index set indisvalid = false where indexrelid = '{CHUNKS}_owner'::regclass",
    ),
    ("indexes", "mine is not part", f"create unique index mine on {CHUNKS} (content_hash)"),
    # Rows
    ("rows", "none of the rows", "delete from public.knowledge_model_weights"),
    ("rows", "none of the rows", LOADED.format("delete from public.knowledge_types")),
    ("rows", "lacks zoom", "delete from public.knowledge_source_origins where name = 'zoom'"),
    ("rows", "knowledge_words has none", "delete from public.knowledge_words"),
    ("chunks", "not those of their text", LOADED.format(f"update {CHUNKS} set content_tsv = ''")),
    ("chunks", "have no document", LOADED.format(f"delete from {DOCUMENTS}")),
    (
        *("chunks", "not those of their text"),
        "alter text search configuration pg_catalog.english"
        " alter mapping for asciiword with simple",
    ),
    # The server
    (
        *("server", "session_replication_role is replica for database"),
        "do $$ begin execute format('alter database %I set session_replication_role = replica',"
        " current_database()); end $$",
    ),
    (
        *("server", "default_transaction_read_only is on for role service_role"),
        "alter role service_role set default_transaction_read_only = on",
    ),
    (
        *("server", "the collation of the database was of version"),
        "update pg_database set datcollversion = '0' where datname = current_database()",
    ),
]

STORE = """
select public.upsert_knowledge_document(
         '{"external_key": "a"}', '[{"content": "The anchors of the harbours."}]'
       )
"""


@pytest.fixture(scope="module")
def examined(server: Server, shared_dsn: str) -> Iterator[Connection]:
    """A connection of a superuser to an install with a document."""
    with psycopg.connect(admin_dsn(server, shared_dsn), autocommit=True) as connection:
        connection.execute("set role postgres")
        connection.execute(STORE)
        connection.execute("analyze public.knowledge_chunks")
        connection.execute("select public.refresh_knowledge_statistics()")
        assert problems(connection) == []
        yield connection


def problems(connection: Connection) -> list[Finding]:
    known = [one for one in doctor.examine(connection) if one.status != "ok"]
    return [one for one in known if one.check not in ("statistics", "queue", "embeddings")]


def heal(connection: Connection, finding: Finding) -> None:
    remedy = finding.remedy or ""
    if "migrate --prelude" in remedy:
        connection.execute("reset role")
        assert apply_prelude(connection) == []
        connection.execute("set local role postgres")
        return
    if "migrate --repair" in remedy:
        repair.heal(connection)
        return
    advised = re.search(r"\b[Rr]un( as a superuser)?: (.*)", remedy)
    assert advised, remedy
    if advised[1]:
        connection.execute("reset role")
    # This is a transaction.
    for statement in advised[2].replace("concurrently", "").split("; "):
        if not statement.startswith("reindex database"):
            connection.execute(statement.encode())
    connection.execute("set local role postgres")


@pytest.mark.module("words")
@pytest.mark.parametrize(("check", "message", "damage"), DAMAGES)
def test_a_damage_is_named_and_its_remedy_heals_it(
    examined: Connection, check: str, message: str, damage: str
) -> None:
    with examined.transaction(force_rollback=True):
        examined.execute("reset role")
        examined.execute(damage.encode())
        examined.execute("set local role postgres")
        found = problems(examined)
        named = [one for one in found if one.check == check and message in one.message]
        assert named, found
        advice = " ".join(one.remedy or "" for one in found)
        assert not re.search(r"drop (table|column|schema)|uninstall", advice)
        for _ in range(len(found)):
            heal(examined, found[0])
            if not (found := problems(examined)):
                break
        assert found == []

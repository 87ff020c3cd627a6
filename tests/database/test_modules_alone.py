"""Core alone, and each module alone on core: every body finds what it names, every call answers."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from conftest import Connection
from second_brain.database import migrations
from tools import schema_files

MODULES = migrations.modules()

# The names of a setting are no names of objects.
NAMED_BUT_ABSENT = r"""
with objects as (
  select namespace.nspname as schema_name, object.name
    from (
           select proc.pronamespace, proc.proname from pg_proc as proc
            union select class.relnamespace, class.relname from pg_class as class
            union select type.typnamespace, type.typname from pg_type as type
         ) as object (namespace_id, name)
    join pg_namespace as namespace on namespace.oid = object.namespace_id
)
select format('%s names %s.%s', proc.oid::regprocedure, named.parts[1], named.parts[2])
  from pg_proc as proc
 cross join lateral regexp_replace(proc.prosrc, '--[^\n]*', '', 'g') as code
 cross join lateral regexp_replace(
              code, '(current_setting|set_config)\(''\w+\.\w+''', '', 'g'
            ) as body
 cross join lateral regexp_matches(
              body, '\m(public|knowledge_internal)\.(\w+)', 'g'
            ) as named (parts)
 where proc.pronamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)
   and (named.parts[1], named.parts[2]) not in (select schema_name, name from objects)
 order by 1
"""
DOCUMENT = """
select public.upsert_knowledge_document(
  '{"external_key": "zebras", "title": "Zebras", "visibility": "public", "language": "english",
    "owner_id": "00000000-0000-0000-0000-000000000001"}',
  '[{"content": "A zebra sleeps.", "embedding": [1, 0, 0], "embedding_model": "m"},
    {"content": "A zebra drinks.", "embedding_model": "m"}]'
)
"""
SEARCH = """search => '{"query_text": "zebra"}'"""
ZEBRAS = "(select id from public.knowledge_documents where external_key = 'zebras')"
# What callers use of each module; not all have functions of their own.
CALLS = {
    "words": (
        "hybrid_search_knowledge_chunks(query_text => 'zeb', prefix_last => true)",
        "search_knowledge_chunks_fulltext(query_text => 'zebar')",
    ),
    "facets": (
        f"facet_knowledge_chunks({SEARCH}, facets => '{{collection,language}}')",
        f"facet_my_knowledge_chunks({SEARCH})",
    ),
    "own_documents": (
        "list_my_knowledge_documents(include_public => true)",
        f"read_my_knowledge_document({ZEBRAS})",
        f"read_knowledge_document({ZEBRAS})",
        "list_visible_knowledge_documents(public_only => true)",
        f"delete_my_knowledge_document({ZEBRAS})",
    ),
    "tenants": (
        "refresh_knowledge_tenants()",
        "hybrid_search_knowledge_chunks(query_text => 'zebra', collections => '{knowledge}')",
    ),
    "versions": (
        "hybrid_search_knowledge_chunks(query_text => 'zebra', as_of => '2026-01-31')",
        """upsert_knowledge_document(
             '{"external_key": "horses", "owner_id": "00000000-0000-0000-0000-000000000001"}', '[]'
           )""",
        "supersede_knowledge_document(old => 'zebras', new => 'horses')",
    ),
    "embedding_queue": (
        "pending_knowledge_embeddings()",
        f"count_pending_knowledge_embeddings({SEARCH})",
        f"count_my_pending_knowledge_embeddings({SEARCH})",
        "claim_knowledge_embeddings(model => 'm', worker => 'w')",
        """store_knowledge_embeddings(model => 'm', worker => 'w', results => (
             select jsonb_agg(jsonb_build_object('content_hash', content_hash, 'error', 'no'))
               from public.knowledge_chunks where embedding is null
           ))""",
        "failed_knowledge_embeddings()",
        "retry_knowledge_embeddings(model => 'm')",
    ),
    "insight": (
        "knowledge_search_health()",
        f"explain_hybrid_search({SEARCH})",
        f"explain_empty_knowledge_search({SEARCH})",
        f"explain_my_empty_knowledge_search({SEARCH})",
        f"explain_public_empty_knowledge_search({SEARCH})",
        f"explain_missing_knowledge_chunk({SEARCH}, document_key => 'zebras')",
        """set_knowledge_judgments(
             '[{"question": "zebra", "document_key": "zebras", "grade": 2}]'
           )""",
        "list_knowledge_judgments()",
        "delete_knowledge_judgments(question => 'zebra')",
        """record_knowledge_queries(
             '[{"question": "zebra", "mode": "hybrid", "mode_used": "hybrid", "hits": 1,
                "total_ms": 5, "viewer_id": "00000000-0000-0000-0000-000000000001"}]'
           )""",
        "report_knowledge_queries()",
        "list_knowledge_documents()",
        "describe_knowledge_document(document_key => 'zebras')",
        "knowledge_corpus_overview()",
        "sample_knowledge_embeddings()",
        f"estimate_hybrid_search({SEARCH})",
    ),
    "arrange": (
        """hybrid_search_knowledge_chunks(
             query_text => 'zebra', order_by => 'document_date', diversity => 0.5,
             boosts => '[{"field": "chunk_index", "modifier": "log1p", "weight": 1}]'
           )""",
    ),
    "snippets": (
        "hybrid_search_knowledge_chunks(query_text => 'zebra', snippet => true, snippets => 2)",
    ),
    "adoption": (f"search_visible_knowledge_chunks({SEARCH})",),
    "visitors": ("search_public_knowledge_chunks(query_text => 'zebra')",),
    "batch": (
        """hybrid_search_knowledge_chunks_batch('[{"query_text": "a"}, {"query_text": "b"}]')""",
    ),
    "like": (f"hybrid_search_knowledge_chunks(like_ids => array[{ZEBRAS}])",),
    "field_weights": ("set_knowledge_fields(title_weight => 2)", "rewrite_knowledge_chunks()"),
}
# After the calls of each module, which takes part in these.
OF_CORE = (
    "hybrid_search_knowledge_chunks(query_text => 'zebra')",
    "refresh_knowledge_statistics()",
    "knowledge_embedding_models()",
    "delete_knowledge_document('zebras')",
    "delete_knowledge_owner('00000000-0000-0000-0000-000000000001')",
    "purge_knowledge_chunks('0')",
)


@contextmanager
def installed(dsn: str, *modules: str) -> Iterator[Connection]:
    """Install core and modules in an empty database; the connection is of user 1."""
    migrations.apply(dsn, dimensions=3, modules=modules)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select set_config('request.jwt.claims',"
            ' \'{"sub": "00000000-0000-0000-0000-000000000001"}\', false)'
        )
        connection.execute(DOCUMENT)
        yield connection


@pytest.mark.parametrize(
    "modules",
    [(), *(pytest.param((one,), marks=pytest.mark.slow) for one in MODULES), MODULES],
    ids="-".join,
)
def test_bodies_find_what_they_name_and_calls_answer(
    plain_dsn: str, modules: tuple[str, ...]
) -> None:
    with installed(plain_dsn, *modules) as connection:
        assert [name for (name,) in connection.execute(NAMED_BUT_ABSENT.encode())] == []
        for module in modules:
            with connection.transaction(force_rollback=True):
                for call in CALLS[module]:
                    connection.execute(f"select * from public.{call}".encode())
        for call in OF_CORE:
            connection.execute(f"select * from public.{call}".encode())


@pytest.mark.parametrize("module", MODULES)
def test_each_public_function_of_a_module_is_called(module: str) -> None:
    files = [file for file in schema_files.read() if file.module == module]
    public = {
        name.removeprefix("public.")
        for file in files
        for one in file.functions
        if (name := one.function or "").startswith("public.")
    }
    assert public <= {call.partition("(")[0] for call in CALLS[module]}

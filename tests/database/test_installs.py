"""Three installs in one database, beside foreign tables: none touches another, or what is foreign.

They have 256, 384 and 1,536 dimensions; the first one is in schema public.
"""

import asyncio
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from conftest import Server, copy_of
from postgrest_server import PostgREST, provider_of
from second_brain.database import catalogue, doctor, migrations, naming, uninstall, vector_index
from second_brain.embedding_queue import reembedding
from second_brain.errors import DimensionMismatchError, MigrationMissingError
from second_brain.models import CallableEmbedder
from second_brain.services.install import Database, Install
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.write import KnowledgeWriter

# Three installs, with documents.
pytestmark = pytest.mark.slow

INSTALLS = {"public": 256, "knowledge_de": 384, "knowledge_en": 1536}
CHANGED = ["public", "knowledge_de"]
FOREIGN = """
create table public.documents (id bigint primary key, content text, embedding extensions.vector(3));
create table public.chunks (id bigint primary key, document bigint references public.documents);
create function public.match_documents(query extensions.vector, match_count integer)
returns setof public.documents language sql stable
as 'select * from public.documents order by embedding operator(extensions.<=>) query limit $2';
insert into public.documents values (1, 'mine', '[1, 0, 0]');
insert into public.chunks values (1, 1);
"""


def vector_of(text: str, dimensions: int) -> list[float]:
    """Return a vector of length 1 that follows from the text alone."""
    seed = hashlib.sha256(text.encode()).digest()[:8]
    vector = np.random.default_rng(list(seed)).standard_normal(dimensions)
    return [float(one) for one in vector / np.linalg.norm(vector)]


def hashed(dimensions: int) -> CallableEmbedder:
    def embed(texts: Sequence[str]) -> list[list[float]]:
        return [vector_of(text, dimensions) for text in texts]

    return CallableEmbedder(embed, f"hashed-{dimensions}", dimensions)


def fill(dsn: str, schema: str) -> None:
    """Store two documents; one has the name of the install."""
    size = INSTALLS[schema]
    with psycopg.connect(dsn, autocommit=True) as connection:
        writer = KnowledgeWriter(connection, schema=schema)
        for text in (f"The zebra of {schema}", "An automobile has an engine"):
            chunk: dict[str, object] = {"content": text, "embedding_model": f"hashed-{size}"}
            chunk["embedding"] = vector_of(text, size)
            writer.upsert_document({"external_key": text, "visibility": "public"}, [chunk])
        writer.refresh_statistics()


@pytest.fixture(scope="module")
def template(server: Server) -> Iterator[str]:
    """The name of a database with the installs, the documents and the foreign objects."""
    for dsn in copy_of(server, server.template(None)):
        with psycopg.connect(dsn) as connection:
            connection.execute(FOREIGN.encode())
        for schema, dimensions in INSTALLS.items():
            migrations.apply(
                dsn, dimensions=dimensions, schema=schema, modules=migrations.modules()
            )
            fill(dsn, schema)
        yield str(conninfo_to_dict(dsn)["dbname"])


@pytest.fixture(scope="module")
def before(server: Server, template: str) -> dict[str, Any]:
    """What is in the database from the beginning."""
    return everything(server.owner_dsn(template))


@pytest.fixture
def installs(server: Server, template: str) -> Iterator[str]:
    """The owner's DSN of a copy."""
    yield from copy_of(server, template)


def contents(connection: psycopg.Connection[Any], schema: str) -> dict[str, Any]:
    """Return the definition of a schema and the rows of its tables."""
    found: dict[str, Any] = {"catalogue": catalogue.read(connection, schema)}
    tables = connection.execute(
        "select schemaname, tablename from pg_tables where schemaname = any (%s)",
        [[schema, naming.internals(schema)]],
    ).fetchall()
    for name in tables:
        rows = sql.SQL("select one::text from {} as one").format(sql.Identifier(*name))
        found[".".join(name)] = sorted(connection.execute(rows).fetchall())
    return found


def everything(dsn: str) -> dict[str, Any]:
    """Return the contents of each install, and of what is foreign."""
    with psycopg.connect(dsn, autocommit=True) as connection:

        def rows(source: str) -> list[tuple[Any, ...]]:
            return connection.execute(f"select * from {source}".encode()).fetchall()

        found: dict[str, Any] = {one: contents(connection, one) for one in INSTALLS}
        match = "match_documents('[1, 0, 0]', 1)"
        found["foreign"] = [rows(one) for one in ("documents", "chunks", match)]
        histories = {one: f"supabase_migrations.{naming.history(one)}" for one in INSTALLS}
        found["histories"] = {
            one: sorted(rows(f"(select version, name from {table}) as one"))
            for one, table in histories.items()
            if rows(f"to_regclass('{table}')") != [(None,)]
        }
    return found


def others(found: Mapping[str, Any], schema: str) -> dict[str, Any]:
    """Leave out one install."""
    histories = {name: one for name, one in found["histories"].items() if name != schema}
    return {**found, schema: None, "histories": histories}


def best(hits: Sequence[Any]) -> str:
    return str(hits[0].content)


@pytest.mark.parametrize("schema", INSTALLS)
def test_each_install_is_searched_by_its_providers(installs: str, schema: str) -> None:
    query = f"The zebra of {schema}"
    vector = vector_of(query, INSTALLS[schema])
    provider = PostgresProvider(installs, schema=schema)
    hits, _ = provider.find(vector, "zebra", threshold=-1)
    assert [hit.content for hit in hits] == [query, "An automobile has an engine"]
    assert hits[0].metadata["match_type"] == "both"
    assert best(provider.search(vector)[0]) == query
    assert best(provider.fulltext_search("zebra")[0]) == query
    assert [best(one) for one in provider.hybrid_search_batch([{"query_text": "zebra"}])[0]] == [
        query
    ]
    assert provider.explain_hybrid_search(vector, "zebra")["hits"]
    assert [one.model for one in provider.embedding_models()] == [f"hashed-{INSTALLS[schema]}"]
    found, _ = asyncio.run(AsyncPostgresProvider(installs, schema=schema).find(vector, "zebra"))
    assert best(found) == query
    with pytest.raises(DimensionMismatchError, match=f"{INSTALLS[schema]}"):
        provider.find([1.0, 0.0], None)


def test_each_install_is_searched_over_rest(installs: str, server: Server, tmp_path: Path) -> None:
    binary = os.environ.get("POSTGREST_BIN")
    if not binary:
        pytest.skip("POSTGREST_BIN names no PostgREST")
    rest = PostgREST(binary, server.admin_dsn(), installs, tmp_path, ", ".join(INSTALLS))
    try:
        rest.start()
        for schema, dimensions in INSTALLS.items():
            query = f"The zebra of {schema}"
            vector = vector_of(query, dimensions)
            with provider_of(rest, schema) as provider:
                assert best(provider.find(vector, "zebra")[0]) == query
                assert best(provider.search(vector)[0]) == query
                assert [one.dimensions for one in provider.embedding_models()] == [dimensions]
                with pytest.raises(DimensionMismatchError):
                    provider.find([1.0, 0.0], None)
        with provider_of(rest, "knowledge_fr") as provider:
            _, details = provider.hybrid_search(None, "zebra")
        assert details["code"] == "PGRST106"
        assert "exposed schemas" in details["remedy"]
        uninstall.apply(installs, "knowledge_de")
        with provider_of(rest, "knowledge_en") as provider:
            assert best(provider.find(None, "zebra")[0]) == "The zebra of knowledge_en"
    finally:
        rest.stop()


@pytest.mark.parametrize("schema", CHANGED)
def test_an_install_is_upgraded_alone(
    installs: str, before: dict[str, Any], schema: str, tmp_path: Path
) -> None:
    for one in migrations.select(migrations.find(), migrations.modules()):
        (tmp_path / one.file_name).write_text(one.sql)
    (tmp_path / "900_note.sql").write_text(
        "alter table public.knowledge_documents add column note text;"
    )
    applied = migrations.apply(installs, directory=tmp_path, schema=schema)
    assert [one.name for one in applied] == ["note"]
    after = everything(installs)
    assert others(after, schema) == others(before, schema)
    assert "column public.knowledge_documents.note" in after[schema]["catalogue"]
    assert after["histories"][schema][-1] == ("900", "note")


@pytest.mark.parametrize("schema", CHANGED)
def test_model_and_index_of_an_install_change_alone(
    installs: str, before: dict[str, Any], schema: str
) -> None:
    report = reembedding.start(installs, hashed(8), schema=schema)
    assert report.embedded == 2
    vector_index.build(installs, vector_index.IndexSettings("vector", 8, 40), schema=schema)
    assert others(everything(installs), schema) == others(before, schema)
    with psycopg.connect(installs, autocommit=True) as connection:
        assert migrations.stored_dimensions(connection, schema) == 8
        index = vector_index.show(Database(connection, Install(schema)))[0]
        assert (index.kind, index.m) == ("vector", 8)
        assert not [one for one in doctor.examine(connection, schema) if one.status == "error"]
    query = f"The zebra of {schema}"
    provider = PostgresProvider(installs, schema=schema)
    assert best(provider.find(vector_of(query, 8), None)[0]) == query
    assert [one.dimensions for one in provider.embedding_models()] == [8]


@pytest.mark.parametrize("schema", CHANGED)
def test_an_install_is_removed_alone_and_can_come_back(
    installs: str, before: dict[str, Any], schema: str
) -> None:
    removed = uninstall.apply(installs, schema)
    assert removed.rows[f"{schema}.knowledge_chunks"] == 2
    after = everything(installs)
    assert others(after, schema) == others(before, schema)
    left = {name for name in after[schema]["catalogue"] if not name.startswith("extension")}
    assert not any("knowledge" in name for name in left)
    assert any("documents" in name for name in left) == (schema == "public")
    with psycopg.connect(installs, autocommit=True) as connection:
        spaces = connection.execute("select nspname from pg_namespace").fetchall()
        assert (naming.internals(schema),) not in spaces
        # The REST API fails as a whole without a schema that it exposes.
        assert (schema,) in spaces
        with pytest.raises(MigrationMissingError, match=f"no install in schema {schema}"):
            uninstall.plan(connection, schema)

    migrations.apply(
        installs, dimensions=INSTALLS[schema], schema=schema, modules=migrations.modules()
    )
    again = everything(installs)
    assert again[schema]["catalogue"] == before[schema]["catalogue"]
    assert again["histories"] == before["histories"]

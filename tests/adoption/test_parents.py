"""A table of chunks with a table of their documents: title, address, date, and who sees them."""

from typing import Any

import pytest
from adopted import adopt, backfill, compare, contents, documents, faults

from command_line import Run
from conftest import Connection

pytestmark = pytest.mark.module("adoption")

TABLES = """
create table public.articles (
  id uuid primary key default gen_random_uuid(), title text, url text, is_public bool not null,
  updated_at timestamptz not null default '2026-01-02', views int not null default 0,
  deleted_at timestamptz
);
create table public.parts (
  id bigint primary key generated always as identity,
  article uuid references public.articles on delete cascade, chunk_index int, content text,
  embedding extensions.vector(3)
);
insert into public.articles (title, url, is_public)
values ('Harbour', 'https://example.com/h', true), ('Ferry', null, false);
insert into public.parts (article, chunk_index, content, embedding)
select article.id, place, format('part %s of %s', place, article.title), '[1,0,0]'
  from public.articles as article cross join generate_series(0, 2) as place
"""


@pytest.fixture
def parts(database: Connection) -> Connection:
    """Six chunks of two articles, searched in place."""
    database.execute(TABLES)
    adopt(database, "public.parts", parent="public.articles")
    backfill(database, "parts")
    return database


def shown(connection: Connection) -> list[tuple[Any, ...]]:
    rows = [
        (row["title"], row["source_url"], row["visibility"], str(row["document_date"]),
         len(row["chunks"]))
        for row in documents(connection).values()
    ]  # fmt: skip
    return sorted(rows, key=str)


def test_a_change_of_the_parent_is_carried_over_in_its_transaction(parts: Connection) -> None:
    assert shown(parts) == [
        ("Ferry", None, "private", "2026-01-02", 3),
        ("Harbour", "https://example.com/h", "public", "2026-01-02", 3),
    ]
    assert compare(parts, "parts").differences == 0
    parts.execute("update public.articles set title = 'Quay', is_public = false where url <> ''")
    assert [row[:3] for row in shown(parts)] == [
        ("Ferry", None, "private"), ("Quay", "https://example.com/h", "private"),
    ]  # fmt: skip
    hits = parts.execute(
        "select title from public.hybrid_search_knowledge_chunks(query_text => 'quay')"
    ).fetchall()
    assert hits == [("Quay",)] * 3
    parts.execute("delete from public.articles where title = 'Quay'")
    assert [row[0] for row in shown(parts)] == ["Ferry"]
    parts.execute("truncate public.articles cascade")
    assert shown(parts) == []


def test_a_change_of_other_columns_of_the_parent_carries_nothing_over(parts: Connection) -> None:
    versions = "select id, xmin from public.knowledge_documents order by id"
    before = parts.execute(versions).fetchall()
    parts.execute("update public.articles set views = views + 1")
    assert parts.execute(versions).fetchall() == before


def test_a_document_of_more_rows_than_a_batch_changes_who_sees_it(parts: Connection) -> None:
    parts.execute(
        "insert into public.parts (article, chunk_index, content)"
        " select id, place, 'more ' || place"
        "   from public.articles cross join generate_series(3, 600) as place where title = 'Ferry'"
    )
    parts.execute("update public.articles set is_public = true where title = 'Ferry'")
    assert [(row[2], row[4]) for row in shown(parts)] == [("public", 601), ("public", 3)]


ASKED = ("adopt", "public.parts", "--parent", "public.articles", "--model", "m", "--dsn")
ALL_ROWS = ("--rows", "all", "--apply")


def test_the_command_takes_and_removes_a_parent(database: Connection, run: Run, dsn: str) -> None:
    database.execute(TABLES)
    refused = run(*ASKED, dsn, "--apply")
    assert (refused.code, "parent.deleted_at, which can hide rows" in refused.err) == (1, True)
    done = run(*ASKED, dsn, "--rows", "parent.deleted_at is null", "--apply")
    assert done.code == 0, done.err
    for line in ("title      parent.title", "parent.views left out", "visibility parent.is_public"):
        assert line in done.err
    backfill(database, "parts")
    database.execute("update public.articles set deleted_at = now() where title = 'Ferry'")
    assert [row[0] for row in shown(database)] == ["Harbour"]
    assert "0 differences" in run("adopt", "--check", "parts", "--dsn", dsn).out
    assert faults(database) == []
    database.execute("drop trigger adopted_parts_update on public.articles")
    (fault,) = faults(database)
    assert "the trigger adopted_parts_update on public.articles does not exist" in fault
    repaired = run("adopt", "--check", "parts", "--repair", "--dsn", dsn)
    assert repaired.code == 0, repaired.err
    database.execute("update public.articles set title = 'Quay', deleted_at = null")
    assert [row[0] for row in shown(database)] == ["Quay", "Quay"]
    assert run("adopt", "--remove", "parts", "--apply", "--dsn", dsn).code == 0
    database.execute("update public.articles set title = 'Pier'")


def parts_found(database: Connection) -> list[int]:
    return [len(row["chunks"]) for row in documents(database).values()]


def test_rows_of_a_document_that_disagree_about_the_owner_are_all_found(
    database: Connection, run: Run, dsn: str
) -> None:
    database.execute(TABLES + ";alter table public.parts add author_id uuid")
    database.execute("update public.parts set author_id = gen_random_uuid() where chunk_index < 2")
    refused = run(*ASKED, dsn, *ALL_ROWS, "--owner", "author_id")
    assert (refused.code, "Use --owner none" in refused.err) == (1, True)
    done = run(*ASKED, dsn, *ALL_ROWS)
    assert "warning: --owner is not mapped" in done.err
    assert "Then: second-brain adopt --backfill parts" in done.err
    backfill(database, "parts")
    assert parts_found(database) == [3, 3]


def test_a_repair_carries_over_by_another_mapping(database: Connection, run: Run, dsn: str) -> None:
    database.execute(TABLES + ";alter table public.parts add author_id uuid")
    assert run(*ASKED, dsn, *ALL_ROWS, "--owner", "author_id").code == 0
    backfill(database, "parts")
    database.execute("update public.parts set author_id = gen_random_uuid() where chunk_index > 0")
    assert parts_found(database) == [1, 1]
    assert "Then: second-brain adopt --check parts --repair" in run(*ASKED, dsn, *ALL_ROWS).err
    assert run("adopt", "--check", "parts", "--repair", "--dsn", dsn).code == 0
    assert parts_found(database) == [3, 3]


def test_a_column_of_both_tables_and_a_title_that_policies_hide_are_said(
    database: Connection, run: Run, dsn: str
) -> None:
    database.execute(TABLES + ";alter table public.parts add deleted_at timestamptz")
    database.execute("alter table public.articles enable row level security")
    done = run(*ASKED, dsn, "--rows", "deleted_at is null")
    assert (done.code, "write source.COLUMN or parent.COLUMN" in done.err) == (1, True)
    done = run(*ASKED, dsn, "--rows", "source.deleted_at is null")
    assert "sees title and url and updated of its row of public.articles" in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--parent", "public.nowhere"], "there is no table public.nowhere"),
        (["--parent", "public.knowledge_documents"], "--document COLUMN"),
        (["--parent", "public.volumes"], "public.volumes has no key of one column"),
    ],
)
def test_a_parent_that_does_not_fit_is_refused(
    database: Connection, run: Run, dsn: str, options: list[str], said: str
) -> None:
    database.execute(TABLES + ";create table public.volumes (a int, b int, primary key (a, b))")
    done = run("adopt", "public.parts", *options, "--rows", "all", "--model", "m", "--dsn", dsn)
    assert (done.code, said in done.err) == (1, True), done.err


def test_texts_of_another_table_are_proposed_and_searched(
    run: Run, dsn: str, database: Connection
) -> None:
    database.execute(
        "create table public.chunks (id int primary key, chunk_text text, user_id uuid);"
        " insert into public.chunks values (1, 'Rotate the keys.'), (2, 'Water the plants.');"
        " create table public.embeddings (id int primary key, chunk int references public.chunks,"
        "  model text, embedding_384 extensions.vector(384), embedding_3 extensions.vector(3));"
        " insert into public.embeddings (id, chunk, model, embedding_3)"
        " values (7, 1, 'm', '[1,0,0]'), (8, 2, 'm', '[0,1,0]')"
    )
    asked = ("adopt", "public.embeddings", "--model", "m", "--apply", "--dsn", dsn)
    refused = run(*asked)
    assert refused.code == 1
    options = "--parent public.chunks --content parent.chunk_text"
    assert options in refused.err
    done = run(*asked, *options.split())
    assert done.code == 0, done.err
    assert "embedding  embedding_3" in done.err
    backfill(database, "embeddings")
    assert contents(database) == {
        "embeddings/1": ["Rotate the keys."], "embeddings/2": ["Water the plants."],
    }  # fmt: skip
    database.execute("update public.chunks set chunk_text = 'Rotate more.' where id = 1")
    assert contents(database)["embeddings/1"] == ["Rotate more."]

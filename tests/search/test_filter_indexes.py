"""Filters on a corpus that is large enough for indexes."""

from typing import Any
from uuid import UUID

import pytest
from filtering import one
from psycopg.types.json import Jsonb
from searching import NORTH, search

from conftest import Connection


@pytest.fixture(scope="module")
def many(shared: Connection) -> Connection:
    """1,500 chunks of which a fiftieth is alike."""
    shared.execute(
        """
        insert into public.knowledge_sources (id, name)
        select lpad(number::text, 32, '0')::uuid, number::text
          from generate_series(0, 49) as number;
        insert into public.knowledge_documents (id, external_key)
        values (lpad('7', 32, '0')::uuid, 'seven');
        insert into public.knowledge_chunks (
          content, embedding, metadata, knowledge_type, source_origin, collection, language,
          visibility, document_date, owner_id, source_id, document_id
        )
        select 'alpha', '[1,0,0]',
               jsonb_build_object(
                 'number', number, 'tags', array['t' || group_of],
                 'team', jsonb_build_object('id', group_of)
               ),
               case group_of when 7 then 'task' else 'note' end,
               case group_of when 7 then 'web' else 'manual' end,
               'c' || group_of,
               case group_of when 7 then 'german' else 'english' end,
               case group_of when 7 then 'public' else 'private' end,
               date '2026-01-01' + number % 300, group_id, group_id,
               case when number = 7 then group_id end
          from generate_series(0, 1499) as number,
               lateral (select number % 50) as row (group_of),
               lateral (select lpad(group_of::text, 32, '0')::uuid) as named (group_id);
        analyze public.knowledge_chunks
        """
    )
    return shared


def scans(connection: Connection) -> dict[str, int]:
    connection.execute("select pg_stat_force_next_flush()")
    return dict(
        connection.execute(
            "select replace(indexrelname, 'knowledge_chunks_', ''), idx_scan"
            " from pg_stat_user_indexes where relname = 'knowledge_chunks'"
        ).fetchall()
    )


SEVEN = f"{7:032}"


@pytest.mark.parametrize("query", [{"query_embedding": NORTH}, {"query_text": "alpha"}])
@pytest.mark.parametrize(
    ("index", "filters", "arguments"),
    [
        ("metadata", {"number": 7}, {}),
        ("metadata", one("metadata.team.id", "eq", 7), {}),
        ("metadata", one("metadata.tags", "eq", ["t7"]), {}),
        ("metadata", one("metadata.tags", "contains", "t7"), {}),
        ("metadata", one("metadata.tags", "contains", ["t7"]), {}),
        ("metadata", one("metadata", "contains", {"team": {"id": 7}}), {}),
        ("metadata", one("metadata.team.id", "in", [7, 100, "7"]), {}),
        ("metadata", one("metadata.number", "lt", 50) + one("metadata.team.id", "eq", 7), {}),
        ("document_date", one("document_date", "between", ["2026-01-08", "2026-01-09"]), {}),
        ("document_date", one("document_date", "gte", "2026-10-25"), {}),
        ("document_date", one("document_date", "in", ["2026-01-08", "2026-01-10"]), {}),
        ("document_date", None, {"date_to": "2026-01-03"}),
        ("knowledge_type", one("knowledge_type", "eq", "task"), {}),
        ("knowledge_type", one("knowledge_type", "in", ["task", "decision"]), {}),
        ("knowledge_type", None, {"filter_type": "task"}),
        ("collection or embedding_model", one("collection", "eq", "c7"), {}),
        ("language", one("language", "eq", "german"), {}),
        ("source_origin", one("source_origin", "in", ["web", "email"]), {}),
        ("source", one("source_id", "eq", SEVEN), {}),
        ("document", one("document_id", "eq", SEVEN), {}),
        ("owner", one("owner_id", "eq", SEVEN), {}),
        ("owner", None, {"viewer_id": UUID(SEVEN)}),
        ("visibility", one("visibility", "eq", "public"), {}),
        ("visibility", None, {"public_only": True}),
    ],
)
def test_an_index_finds_the_rows_that_pass(
    many: Connection, query: dict[str, Any], index: str, filters: Any, arguments: dict[str, Any]
) -> None:
    before = scans(many)
    found = search(many, **query, **arguments, filters=filters and Jsonb(filters))
    after = scans(many)
    assert found
    # The index on model and collection has the collections too, in each model.
    assert set(index.split(" or ")) & {name for name in after if after[name] > before[name]}


def test_excluding_few_or_most_chunks_leaves_the_others(many: Connection) -> None:
    many.execute("select public.refresh_knowledge_statistics()")
    names = [f"c{number}" for number in range(50)]
    for excluded, are_most in ((["c7"], False), ([name for name in names if name != "c7"], True)):
        others = Jsonb(one("collection", "not_in", excluded))
        # The search plans for a filter only where it leaves out most chunks.
        assert many.execute(
            "select (knowledge_internal.plan_search(knowledge_internal.given_arguments("
            "jsonb_build_object('filters', %s::jsonb)), false)).is_filtered",
            [others],
        ).fetchone() == (are_most,)
        for query in ({"query_embedding": NORTH}, {"query_text": "alpha"}):
            found = search(many, **query, match_count=20, filters=others)
            assert len(found) == 20
            assert not {row["collection"] for row in found} & set(excluded)

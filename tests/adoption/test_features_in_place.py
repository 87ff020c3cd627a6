"""Every feature gives the same answer over rows in place as over stored documents."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from adopted import LARGE, Row, adopt, backfill, reasons
from psycopg import sql
from psycopg.types.json import Jsonb

from conftest import Connection, Server, connections, copy_of
from second_brain.database import recall
from second_brain.evaluation import judgments, known_items
from second_brain.services.install import Database
from second_brain.services.judgments import Judgment

pytestmark = pytest.mark.module(
    "adoption", "words", "arrange", "like", "snippets", "facets", "insight", "batch",
    "own_documents", "embedding_queue", "field_weights",
)  # fmt: skip

TEXTS = (
    ("manual", 0, "Recorder", "The firmware of the recorder restarts at night.", "[1,0,0]"),
    ("manual", 1, "Recorder", "Replace the battery before the firmware update.", "[0.9,0.1,0]"),
    ("manual", 2, "Recorder", "CONFIDENTIAL gamma keys of the recorder account_id.", "[0.8,0.2,0]"),
    ("cafe", 0, "Café", "The café serves coffee; the Straße is closed. DS-7604", "[0,1,0]"),
    ("cafe", 1, "Café", "Invoices of the cafe are paid within 30 days.", "[0,0.9,0.2]"),
    ("ferry", 0, None, "The ferry leaves the harbour. The lighthouse is dark.", "[0,0,1]"),
    ("ferry", 1, None, "The ferry leaves the harbour. The lighthouse is dark.", "[0.1,0,0.9]"),
    ("tide", 0, "Tide", "Tides and harbours; the ferry waits at the lighthouse.", None),
)
SEARCH = "hybrid_search_knowledge_chunks"
HYBRID: Row = {"query_text": "firmware recorder", "query_embedding": "[1,0.1,0]"}


def has(value: str) -> Row:
    return {"field": "text", "op": "contains_text", "value": value}


# Arguments of a search by name. Each answer has a row, unless its name says that it has none.
SEARCHES: dict[str, Row] = {
    "text": {"query_text": "firmware of the recorder"},
    "vector": {"query_embedding": "[0,1,0.1]"},
    "hybrid": HYBRID,
    "hybrid, auto": {**HYBRID, "fusion": "auto"},
    "hybrid, relative_score": {**HYBRID, "fusion": "relative_score"},
    "a typo": {"query_text": "firmwrae"},
    "two typos": {"query_text": "harbuor lighthuose", "snippet": True},
    "a typo of a viewer": {"query_text": "firmwrae", "public_only": True},
    "a typo under a filter": {"query_text": "firmwrae", "filters": [has("night")]},
    "the beginning of a word": {"query_text": "lightho", "prefix_last": True},
    "the beginning of a word, of a viewer": {
        "query_text": "lightho", "prefix_last": True, "public_only": True,
    },
    "another accent": {"query_text": "cafe strasse"},
    "a synonym": {"query_text": "vessel"},
    "a phrase": {"query_text": '"before the firmware"'},
    "an excluded word": {"query_text": "firmware -battery"},
    "a part of the text": {"query_text": "firmware", "filters": [has("firm")]},
    "a part, found by vector": {"query_embedding": "[0,0,1]", "filters": [has("arbour.")]},
    "a part of the heading": {"query_text": "firmware", "filters": [has("order\nThe")]},
    "without a part": {"query_text": "gamma firmware", "filters": [{"not": has("CONFIDENTIAL")}]},
    "required without a part": {
        "query_text": "gamma firmware", "required_filters": [{"not": has("CONFIDENTIAL")}],
    },
    "no row is without the part": {
        "query_text": "gamma", "required_filters": [{"not": has("CONFIDENTIAL")}],
    },
    "a part or another": {
        "query_text": "firmware ferry", "filters": [{"any": [has("night"), has("dark")]}],
    },
    "a part and no other": {
        "query_text": "firmware",
        "filters": [{"all": [has("firmware"), {"not": has("battery")}]}],
    },
    "words as a filter": {
        "query_embedding": "[1,0,0]",
        "filters": [{"field": "text", "op": "has_any_word", "value": ["battery", "night"]}],
    },
    "an excerpt": {"query_text": "firmware", "snippet": True},
    "two excerpts": {"query_text": "harbour lighthouse", "snippet": True, "snippets": 2},
    "neighbours": {"query_text": "battery", "neighbor_window": 1},
    "one of each document": {**HYBRID, "one_per_document": True},
    "two of each document": {**HYBRID, "max_per_document": 2},
    "duplicates": {"query_text": "ferry", "merge_duplicates": True},
    "variety": {**HYBRID, "diversity": 0.7},
    "a boost of a part": {
        "query_text": "firmware", "boosts": [{"filters": [has("battery")], "factor": 9}],
    },
    "a boost by a number": {
        "query_text": "firmware",
        "boosts": [{"field": "metadata.size", "modifier": "log1p", "weight": 2}],
    },
    "an order": {"query_text": "firmware ferry", "order_by": "metadata.size desc"},
    "like a row": {"like_ids": ["manual/0"]},
    "like a document": {"like_ids": ["manual"], "query_text": "harbour"},
    "an embedding of the text's hits": {"query_text": "firmware", "embedding_from_text": True},
    "further questions": {
        "query_text": "firmware", "formulations": [{"query_text": "harbuor"}],
    },
    "least confidence": {**HYBRID, "min_confidence": 0.2},
    "a field of metadata": {"query_text": "ferry", "filters": {"size": 60}},
}  # fmt: skip
# Other functions: their arguments. `search` is that of a search above.
CALLS: dict[str, Row] = {
    "facet_knowledge_chunks": {
        "search": {"query_text": "firmware ferry", "filters": [has("the")]},
        "facets": ["metadata.size", "collection"],
    },
    "count_matching_knowledge_chunks": {
        "search": {"query_text": "firmware", "filters": [{"not": has("battery")}]}
    },
    "hybrid_search_knowledge_chunks_batch": {
        "queries": [{"query_text": "firmwrae"}, {"query_text": "ferry", "filters": [has("dark")]}]
    },
    "explain_hybrid_search": {"search": {"query_text": "firmwrae", "filters": [has("night")]}},
    "explain_empty_knowledge_search": {
        "search": {"query_text": "gamma", "filters": [{"not": has("CONFIDENTIAL")}]}
    },
    "explain_missing_knowledge_chunk": {
        "search": {"query_embedding": "[0.8,0.3,0]", "match_threshold": 0.9999},
        "document_key": "parts/manual",
    },
    "estimate_hybrid_search": {"search": {"query_text": "firmware", "filters": [has("night")]}},
    "list_knowledge_documents": {},
    "describe_knowledge_document": {"document_key": "parts/ferry"},
    "knowledge_corpus_overview": {},
    "sample_knowledge_embeddings": {},
    "pending_knowledge_embeddings": {},
    "count_pending_knowledge_embeddings": {},
    "claim_knowledge_embeddings": {"model": "m", "worker": "w"},
    "knowledge_search_health": {},
    "knowledge_embedding_models": {},
    "list_knowledge_judgments": {},
    "set_knowledge_judgments": {
        "judgments": [{"question": "ferry", "document_key": "parts/ferry", "grade": 2}]
    },
}
# They differ by the time of the call, or by where a row is.
OF_THE_CALL = {
    "source_row", "created_at", "updated_at", "judged_at", "oldest", "analysed_at", "refreshed_at",
    "milliseconds", "total_ms", "indexes", "tables",
}  # fmt: skip


@dataclass(frozen=True)
class Homes:
    """The same documents, with the same ids, in two databases."""

    in_place: Connection
    stored: Connection

    def answers(self, ask: Any) -> tuple[Any, Any]:
        return ask(self.in_place), ask(self.stored)


@pytest.fixture(scope="module")
def both(server: Server) -> Iterator[tuple[Connection, Connection]]:
    first, second = (copy_of(server, server.template(3)) for _ in range(2))
    opened = [connections(next(one)) for one in (first, second)]
    yield next(opened[0])(), next(opened[1])()
    for one in [*opened, first, second]:
        next(one, None)


@pytest.fixture(scope="module")
def homes(both: tuple[Connection, Connection]) -> Homes:
    in_place, stored = both
    in_place.execute(
        "create table public.parts (id int primary key, document text, place int, title text,"
        " content text, size int, embedding extensions.vector(3))"
    )
    for number, (document, place, title, content, embedding) in enumerate(TEXTS):
        in_place.execute(
            "insert into public.parts values (%s, %s, %s, %s, %s, %s, %s)",
            [number, document, place, title, content, 10 * number, embedding],
        )
    adopt(
        in_place,
        "public.parts",
        options={"document": "document", "position": "place"},
        visibility="public",
    )
    backfill(in_place, "parts")
    assert reasons(in_place, "parts") == {}
    copy_documents(in_place, stored)
    for one in both:
        one.execute("select public.set_knowledge_judgments(%s)", [Jsonb([{
            "question": "recorder firmware", "document_key": "parts/manual", "grade": 2
        }])])  # fmt: skip
        one.execute(
            "insert into public.knowledge_synonyms (term, synonym) values ('vessel', 'ferry')"
        )
        one.execute("analyze")
        one.execute("select public.refresh_knowledge_statistics()")
    return Homes(in_place, stored)


def copy_documents(in_place: Connection, stored: Connection) -> None:
    """Store what is in place, under the same ids."""
    for table, source, columns in (
        (
            "knowledge_documents",
            "public.knowledge_documents",
            "id, external_key, title, knowledge_type, source_origin, document_date, visibility,"
            " language, collection, metadata",
        ),
        (
            "knowledge_chunks",
            "knowledge_internal.chunk_rows",
            "id, document_id, chunk_index, heading, content, collection, metadata, embedding,"
            " embedding_model",
        ),
    ):
        rows = in_place.execute(
            f"select jsonb_agg(to_jsonb(one)) from (select {columns} from {source}) as one".encode()
        ).fetchone()
        assert rows
        stored.execute(
            f"insert into public.{table} ({columns}) select {columns}"
            f" from jsonb_populate_recordset(null::public.{table}, %s)".encode(),
            [Jsonb(rows[0])],
        )


def ids(connection: Connection, names: list[str]) -> list[str]:
    """Return the ids of documents, and of chunks named by document and place."""
    return [
        str(id_)
        for name in names
        for (id_,) in connection.execute(
            "select document.id from public.knowledge_documents as document"
            " where document.external_key = 'parts/' || %(name)s union all"
            " select chunk.id from public.knowledge_chunks as chunk"
            "   join public.knowledge_documents as document on document.id = chunk.document_id"
            "  where document.external_key || '/' || chunk.chunk_index = 'parts/' || %(name)s",
            {"name": name},
        )
    ]


def plain(value: Any) -> Any:
    """Return an answer without what differs from call to call."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in sorted(value.items()) if key not in OF_THE_CALL}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value


def asked(connection: Connection, function: str, arguments: Row) -> Any:
    """Return the rows of a public function; those of a search for its arguments as an object."""
    if "like_ids" in arguments:
        arguments = {**arguments, "like_ids": ids(connection, arguments["like_ids"])}
    values = {
        name: Jsonb(value) if isinstance(value, dict | list) and name != "facets" else value
        for name, value in arguments.items()
    }
    called = sql.SQL("public.{}({})").format(
        sql.Identifier(function),
        sql.SQL(", ").join(
            sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name))
            for name in values
        ),
    )
    if function == SEARCH:
        called = sql.SQL(
            "knowledge_internal.search(knowledge_internal.given_arguments({}))"
        ).format(sql.Literal(Jsonb(arguments)))
    with connection.transaction(force_rollback=True):
        rows = connection.execute(
            sql.SQL("select to_jsonb(answer) from {} as answer").format(called), values
        ).fetchall()
    return plain([row for (row,) in rows])


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_in_place_answers_as_over_stored_documents(
    homes: Homes, name: str, is_large: bool
) -> None:
    def ask(connection: Connection) -> Any:
        with connection.transaction(force_rollback=True):
            if is_large:
                connection.execute(LARGE)
            return asked(connection, SEARCH, SEARCHES[name])

    in_place, stored = homes.answers(ask)
    assert bool(stored) is not name.startswith("no row")
    assert in_place == stored


@pytest.mark.parametrize("function", CALLS)
def test_a_function_answers_in_place_as_over_stored_documents(homes: Homes, function: str) -> None:
    in_place, stored = homes.answers(lambda one: asked(one, function, CALLS[function]))
    assert stored
    assert in_place == stored


def test_what_is_exported_and_drawn_is_the_same(homes: Homes, tmp_path: Path) -> None:
    def exported(connection: Connection) -> Any:
        database = Database(connection)
        given = Judgment.model_validate({"question": "q", "document_key": "parts/ferry"})
        judgments.write_beir(tmp_path, [given], database)
        return (
            sorted((tmp_path / "corpus.jsonl").read_text("utf-8").splitlines()),
            [one.question for one in known_items.generate(database, 3)],
            recall.stored_questions(database, 5),
        )

    in_place, stored = homes.answers(exported)
    assert "lighthouse" in in_place[0][1]
    assert in_place == stored


WORDS = "select array_agg(distinct word order by word) from public.knowledge_words"


def test_the_known_words_follow_the_texts(homes: Homes) -> None:
    """A changed text releases its words and adds others, a deleted one releases them."""
    changes = ("update {} set content = 'Zebras graze.' where content ~ 'paid within'",
               "delete from {} where content ~ 'Replace the battery'")  # fmt: skip
    known = []
    for connection, table in (
        (homes.in_place, "public.parts"), (homes.stored, "public.knowledge_chunks"),
    ):  # fmt: skip
        with connection.transaction(force_rollback=True):
            for change in changes:
                connection.execute(change.format(table).encode())
            known.append(connection.execute(WORDS).fetchone())
            hits = asked(connection, SEARCH, {"query_text": "zebars"})
            assert [hit["content"] for hit in hits] == ["Zebras graze."]
    assert known[0] == known[1]
    (words,) = known[0] or ([],)
    assert {"zebras", "firmware"} <= set(words)
    assert "battery" not in words
    assert "invoices" not in words

"""Moving to this search: the answers of what a project has today, and after `second-brain adopt`.

For each layout, a scratch database gets a test collection (BEIR's layout, with embeddings beside
it) in the table of Supabase's guide, or in the tables of LangChain's and LlamaIndex's packages,
which write and search by themselves (`make stores`). Each question is asked of the function or
retriever that the layout comes with, at the settings of its documentation and with the largest
pools that it allows. Then the command line adopts the table, and each question is asked of
hybrid_search with the same embedding.

Printed are nDCG@10, the questions without an answer, and beside the layout's own best search: how
many of the first ten documents it had too, the difference, and how many questions are better and
worse. `--questions` prints the first documents of single questions.
SupabaseVectorStore needs a PostgREST: its binary in POSTGREST_BIN, and tests/ in PYTHONPATH.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.peers import supabase_guide
from benchmarks.quality import line, read
from benchmarks.scratch import SETTINGS
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres
from second_brain.evaluation import metrics
from second_brain.evaluation.collection import Collection, Vectors
from second_brain.services.postgres import PostgresProvider
from second_brain.services.results import source_key
from tools.stores import MISSING, POOL, Row, Stores

MEASURE = "nDCG@10"
COUNT = 10
MODEL = "all-MiniLM-L6-v2"
ADDED_AT_ONCE = 1_000

GUIDE = """
create table documents (
  id bigint primary key generated always as identity,
  content text,
  fts tsvector generated always as (to_tsvector('english', content)) stored,
  embedding vector(%d)
)
"""
MATCH_DOCUMENTS = """
create function match_documents(query_embedding vector, match_threshold float, match_count int)
returns setof documents
language sql
as $$
  select *
    from documents
   where documents.embedding <#> query_embedding < -match_threshold
   order by documents.embedding <#> query_embedding asc
   limit least(match_count, 200)
$$
"""
# The identity column counts the documents in their order.
GUIDE_SEARCHES = {
    "`match_documents`, threshold 0.78": "match_documents(%(embedding)s::text::vector, 0.78, 10)",
    "`match_documents`, no threshold": "match_documents(%(embedding)s::text::vector, -1, 10)",
    "`hybrid_search`, 10 rows": "hybrid_search(%(text)s, %(embedding)s::text::vector, 10)",
    "`hybrid_search`, 30 rows": "hybrid_search(%(text)s, %(embedding)s::text::vector, 30)",
}
OURS: dict[str, dict[str, Any]] = {
    "adopted, `auto`": {"fusion": "auto"},
    "adopted, `rrf`": {"fusion": "rrf"},
    "adopted, vector leg": {"threshold": -1.0},
}

Rankings = dict[str, list[str]]
"""The documents found for each query, best first."""


class Material:
    """A collection as rows and as questions."""

    def __init__(self, collection: Collection, vectors: Vectors) -> None:
        self.collection, self.vectors = collection, vectors
        self.ids = [document.id for document in collection.documents]
        self.texts = [f"{one.title}\n{one.text}".strip() for one in collection.documents]
        self.embeddings: list[list[float]] = vectors.documents.astype(float).tolist()
        self.questions = [
            {"text": query.text, "embedding": vectors.queries[query.row].astype(float).tolist()}
            for query in collection.queries
        ]

    def rows(self, name: Callable[[str], str]) -> Iterator[list[Row]]:
        """Yield the rows in parts, with the ids that `name` gives the documents."""
        for begin in range(0, len(self.ids), ADDED_AT_ONCE):
            places = range(begin, min(begin + ADDED_AT_ONCE, len(self.ids)))
            yield [
                {
                    "id": name(self.ids[place]),
                    "text": self.texts[place],
                    "metadata": {"id": self.ids[place]},
                    "embedding": self.embeddings[place],
                }
                for place in places
            ]

    def rankings(self, found: Sequence[Sequence[str]]) -> Rankings:
        """Name the queries of lists that are in the order of the questions."""
        queries = self.collection.queries
        return {query.id: list(ids) for query, ids in zip(queries, found, strict=True)}


@dataclass(frozen=True)
class Layout:
    """A package's store: how it makes its table, how it searches, and how the table is adopted.

    `document` is the SQL expression of the document's id in the collection. `searches` are the
    arguments of the store's search; those of the store itself are under `settings`.
    """

    name: str
    store: str
    preset: str
    table: str
    document: str
    settings: dict[str, Any] = field(default_factory=dict)
    searches: dict[str, dict[str, Any]] = field(default_factory=dict)
    uuids: bool = True


def layouts(dimensions: int) -> list[Layout]:
    """Return the packages' layouts."""
    return [
        Layout(
            "LangChain `SupabaseVectorStore`",
            "supabase",
            "langchain",
            "public.documents",
            "metadata ->> 'id'",
            {},
            {"retriever": {}},
        ),
        Layout(
            "LangChain `PGVector`",
            "pgvector",
            "pgvector",
            "public.langchain_pg_embedding",
            "cmetadata ->> 'id'",
            {"collection": "scifact"},
            {"retriever": {}},
            uuids=False,
        ),
        Layout(
            "LangChain `PGVectorStore`",
            "pgvectorstore",
            "pgvectorstore",
            "public.passages",
            "langchain_metadata ->> 'id'",
            {"hybrid": True},
            {
                "retriever": {"settings": {"hybrid": False}},
                f"hybrid, pools of {POOL}": {},
            },
        ),
        Layout(
            "LlamaIndex `PGVectorStore`",
            "llamaindex",
            "llamaindex",
            "public.data_passages",
            "metadata_ ->> 'id'",
            {"dimensions": dimensions, "hybrid": True},
            {
                "default": {},
                "hybrid": {"mode": "hybrid"},
                f"`QueryFusionRetriever`, pools of {POOL}": {"mode": "fusion"},
            },
        ),
    ]


@contextmanager
def database(dimensions: int) -> Iterator[EmbeddedPostgres]:
    """Run a server of its own with the migrations."""
    with tempfile.TemporaryDirectory(prefix="second-brain-benchmark-") as place:
        Path(place).chmod(0o711)
        # Data of this size fit in a small part of the memory that the large benchmarks take.
        settings = {**SETTINGS, "shared_buffers": "512MB", "maintenance_work_mem": "256MB"}
        server = EmbeddedPostgres(Path(place) / "postgres", 18, settings)
        with server:
            migrations.apply(server.dsn(), dimensions=dimensions, modules=migrations.modules())
            yield server
        server.remove()


@contextmanager
def rest(server: EmbeddedPostgres) -> Iterator[dict[str, Any]]:
    """Run PostgREST; yield what a Supabase client is created with."""
    import jwt

    from postgrest_server import JWT_SECRET, PostgREST

    binary = os.environ["POSTGREST_BIN"]
    with tempfile.TemporaryDirectory() as place:
        running = PostgREST(binary, server.admin_dsn(), server.dsn(), Path(place))
        running.start()
        try:
            key = jwt.encode({"role": "service_role"}, JWT_SECRET, algorithm="HS256")
            yield {"rest": f"http://127.0.0.1:{running.port}", "key": key}
        finally:
            running.stop()


def ask_guide(dsn: str, material: Material) -> dict[str, Rankings]:
    """Make the guide's table and functions, fill the table by SQL, and ask each question."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute((GUIDE % material.vectors.dimensions).encode())
        connection.execute(supabase_guide.FUNCTION)
        connection.execute(MATCH_DOCUMENTS)
        with connection.cursor() as cursor, connection.transaction():
            cursor.executemany(
                "insert into documents (content, embedding) values (%s, %s::text::vector)",
                zip(material.texts, map(str, material.embeddings), strict=True),
            )
        connection.execute("create index on documents using gin (fts)")
        connection.execute("analyze documents")
        found: dict[str, Rankings] = {}
        for name, call in GUIDE_SEARCHES.items():
            statement = f"select id from {call}".encode()
            lists = []
            for question in material.questions:
                given = {**question, "embedding": str(question["embedding"])}
                rows = connection.execute(statement, given).fetchall()
                lists.append([material.ids[row[0] - 1] for row in rows[:COUNT]])
            found[name] = material.rankings(lists)
    return found


def ask_package(
    stores: Stores, layout: Layout, dsn: str, material: Material, given: dict[str, Any]
) -> dict[str, Rankings]:
    """Have a package add the rows to its table, and answer each question."""
    settings = {**layout.settings, **given}
    for rows in material.rows(unique if layout.uuids else str):
        stores.call(layout.store, "add", dsn, settings=settings, rows=rows)
    # LlamaIndex returns the ids of nodes, LangChain the documents' metadata.
    named = {unique(id_): id_ for id_ in material.ids} | {id_: id_ for id_ in material.ids}
    found = {}
    for name, arguments in layout.searches.items():
        found[name] = material.rankings(
            [
                [named[id_] for id_ in ids]
                for ids in stores.call(
                    layout.store,
                    "search",
                    dsn,
                    queries=material.questions,
                    count=COUNT,
                    **{"settings": settings, **arguments},
                )
            ]
        )
    return found


def unique(document: str) -> str:
    """Return a uuid for a document's id."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, document))


def adopt(preset: str, table: str, dsn: str) -> float:
    """Adopt a table as a user does; return the seconds of the backfill."""

    def run(*words: str) -> None:
        subprocess.run(
            [Path(sys.executable).with_name("second-brain"), *words],
            check=True,
            env={**os.environ, "SECOND_BRAIN_DSN": dsn},
            stdout=subprocess.DEVNULL,
        )

    run("adopt", table, "--from", preset, "--model", MODEL, "--apply")
    begin = time.perf_counter()
    run("adopt", "--backfill")
    seconds = time.perf_counter() - begin
    run("adopt", "--check")
    return seconds


def ask_adopted(dsn: str, named: dict[Any, str], material: Material) -> dict[str, Rankings]:
    """Ask each question of the corpus; `named` are the documents by the keys of the source."""
    found: dict[str, Rankings] = {name: {} for name in OURS}
    provider = PostgresProvider(dsn)
    for query, question in zip(material.collection.queries, material.questions, strict=True):
        for name, options in OURS.items():
            text = None if name.endswith("leg") else question["text"]
            hits, _ = provider.find(question["embedding"], text, top_k=COUNT, **options)
            keys = [source_key(hit.metadata["source_row"]) or {} for hit in hits]
            found[name][query.id] = [named[value] for key in keys for value in key.values()]
    return found


def report(name: str, before: dict[str, Rankings], ours: dict[str, Rankings], qrels: Any) -> None:
    """Print a row for each search."""
    judged = {
        search: metrics.judge(qrels, found)[MEASURE] for search, found in (before | ours).items()
    }
    best = max(before, key=lambda search: sum(judged[search].values()))
    for search, found in (before | ours).items():
        values = judged[search]
        shared = [len({*found[one]} & {*before[best][one]}) for one in values]
        against = judged[best]
        difference = metrics.compare(values, against)
        better = sum(values[one] > against[one] for one in values)
        worse = sum(values[one] < against[one] for one in values)
        is_best = search == best
        cells = [
            name,
            search,
            f"{sum(values.values()) / len(values):.3f}",
            str(sum(not ids for ids in found.values())),
            "" if is_best else f"{sum(shared) / len(shared):.1f}",
            "" if is_best else f"{difference.mean:+.3f} (p {difference.p_value:.4f})",
            "" if is_best else f"{better} / {worse}",
        ]
        print(line(cells), flush=True)


def show(material: Material, before: Rankings, ours: Rankings, wanted: Sequence[str]) -> None:
    """Print the first documents of single questions, those that are relevant with a star."""
    for id_ in wanted:
        relevant = material.collection.relevant(id_)
        for name, found in (("before", before), ("after", ours)):
            first = [f"{one}{'*' if one in relevant else ''}" for one in found[id_][:5]]
            print(f"question {id_}, {name}: {' '.join(first)}", flush=True)


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collection", type=Path)
    parser.add_argument("--only", nargs="*", default=[], metavar="PRESET")
    parser.add_argument("--before", action="store_true", help="do not adopt the tables")
    parser.add_argument("--questions", nargs="*", default=[], metavar="ID")
    options = parser.parse_args()
    material = Material(*read(options.collection, "minilm384"))
    dimensions = material.vectors.dimensions

    header = (
        "layout",
        "search",
        MEASURE,
        "no answer",
        "shared with best before",
        "difference",
        "better / worse",
    )
    print(line(header))
    print(line(["---"] * len(header)), flush=True)

    def finish(
        name: str, preset: str, table: str, dsn: str, before: dict[str, Rankings], named: Any
    ) -> None:
        ours = {}
        if not options.before:
            seconds = adopt(preset, table, dsn)
            ours = ask_adopted(dsn, named, material)
        report(name, before, ours, material.collection.qrels)
        if ours:
            print(f"{name}: backfill {seconds:.1f} s", file=sys.stderr, flush=True)
            show(material, [*before.values()][-1], ours["adopted, `auto`"], options.questions)

    if not options.only or "supabase-guide" in options.only:
        with database(dimensions) as server:
            before = ask_guide(server.dsn(), material)
            named = dict(enumerate(material.ids, start=1))
            finish(
                "Supabase's guide",
                "supabase-guide",
                "public.documents",
                server.dsn(),
                before,
                named,
            )
    if not Stores.installed():
        print(f"The packages are not here: {MISSING}", file=sys.stderr)
        return
    for layout in layouts(dimensions):
        if options.only and layout.preset not in options.only:
            continue
        if layout.store == "supabase" and not os.environ.get("POSTGREST_BIN"):
            print(f"{layout.name}: POSTGREST_BIN names no PostgREST", file=sys.stderr)
            continue
        with ExitStack() as stack:
            server = stack.enter_context(database(dimensions))
            stores = stack.enter_context(Stores())
            dsn = server.dsn()
            stores.call(
                layout.store, "create", dsn, settings=layout.settings, dimensions=dimensions
            )
            given = stack.enter_context(rest(server)) if layout.store == "supabase" else {}
            before = ask_package(stores, layout, dsn, material, given)
            with psycopg.connect(dsn) as connection:
                key = connection.execute(KEY, [layout.table]).fetchone()
                assert key is not None
                statement = f"select {key[0]}, {layout.document} from {layout.table}".encode()
                named = dict(connection.execute(statement).fetchall())
            finish(layout.name, layout.preset, layout.table, dsn, before, named)


KEY = """
select attribute.attname
  from pg_catalog.pg_index as index
  join pg_catalog.pg_attribute as attribute
    on attribute.attrelid = index.indrelid and attribute.attnum = index.indkey[0]
 where index.indrelid = %s::regclass and index.indisprimary
"""

if __name__ == "__main__":
    main()

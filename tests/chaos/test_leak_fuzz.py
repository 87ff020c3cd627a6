"""Random corpora, viewers and calls: an answer holds nothing that its viewer may not see.

What a viewer may see is decided here, in Python, on the rows as they were stored. Each stored row
has a word of its own in each of its texts, so a leak names its row. Where the question is simple
enough to be answered here, the answer must also have each row that it should, and the right total.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import LiteralString, cast
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from conftest import Connection, Server, copy_of
from corpora import (
    GROUPS,
    TAGS,
    USERS,
    VOCABULARY,
    Chunk,
    Corpus,
    Row,
    Viewer,
    ask_groups_of_token,
    drawn,
    own_word,
    sign_in,
    store,
    words_of,
)
from second_brain.services.functions import packed
from trials import Trial

pytestmark = pytest.mark.chaos(share=0.45)

CALLS = 500  # of a corpus, whose first calls are slow: each session plans anew
STRANGER = UUID(int=9)
SEARCH = "hybrid_search_knowledge_chunks"
TYPES: dict[str, LiteralString] = {
    "query_embedding": "::extensions.vector",
    "filters": "::jsonb",
    "formulations": "::jsonb",
    "queries": "::jsonb",
    "search": "::jsonb",
    "document": "::uuid",
}
REFUSED = ("22023",)

PUBLIC = "search_public_knowledge_chunks"
# What a visitor may ask for at most.
VISITORS = {"match_count": 50, "pool_size": 100, "neighbor_window": 2}

# Functions that a signed-in user or a visitor may call. A new one has to be tried here as well.
TRIED = {
    PUBLIC,
    "count_my_pending_knowledge_embeddings",
    "facet_my_knowledge_chunks",
    "search_my_knowledge_chunks",
    "list_my_knowledge_documents",
    "read_my_knowledge_document",
    "delete_my_knowledge_document",
}

# What is asked.


def call(connection: Connection, function: str, arguments: Row) -> list[Row]:
    arguments = packed(function, arguments)
    statement = sql.SQL("select * from public.{}({})").format(
        sql.Identifier(function),
        sql.SQL(", ").join(
            sql.SQL("{} => {}{}").format(
                sql.Identifier(name), sql.Placeholder(name), sql.SQL(TYPES.get(name, ""))
            )
            for name in arguments
        ),
    )
    given = {
        name: Jsonb(value, partial(json.dumps, default=str))
        if TYPES.get(name) == "::jsonb"
        else value
        for name, value in arguments.items()
    }
    if "query_embedding" in given:
        given["query_embedding"] = str(given["query_embedding"])
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, given, prepare=False).fetchall()


def named(viewer: Viewer) -> Row:
    groups = {} if viewer.groups is None else {"viewer_groups": sorted(viewer.groups)}
    return {"viewer_id": viewer.user, **groups}


@dataclass(frozen=True)
class Question:
    """Arguments of a search, and the condition of the rows it finds if it finds all of them."""

    arguments: Row
    finds: Callable[[Chunk], bool] | None = None


def vector(draw: random.Random) -> list[float]:
    return [draw.uniform(-1, 1), draw.uniform(-1, 1), draw.uniform(0.1, 1)]


def some_words(draw: random.Random, corpus: Corpus) -> str:
    own = [own_word("row", number) for number in draw.choices(list(corpus.chunks), k=3)]
    return " ".join(draw.choices([*VOCABULARY, *own, "-beta", "or"], k=draw.randint(1, 5)))


def simple_question(draw: random.Random, corpus: Corpus) -> Question:
    """Ask for all rows that have one word, or an embedding, and that pass simple filters."""
    arguments: Row = {"match_count": 1000, "pool_size": 1000}
    word = draw.choice([*VOCABULARY, own_word("row", draw.choice(list(corpus.chunks))), None])
    if word is not None:
        arguments["query_text"] = word
        arguments["search_mode"] = draw.choice(["websearch", "simple", "phrase"])
    else:
        arguments["query_embedding"] = vector(draw)
        arguments["match_threshold"] = -1.0
    passes: list[Callable[[Chunk], bool]] = []
    filters: list[Row] = []
    if draw.random() < 0.3:
        tag = draw.choice(TAGS)
        filters.append({"field": "metadata.tag", "op": "eq", "value": tag})
        passes.append(lambda one: one.tag == tag)
    if draw.random() < 0.2:
        asked = draw.choice([*USERS, STRANGER])
        filters.append({"field": "owner_id", "op": "eq", "value": str(asked)})
        passes.append(lambda one: one.owner == asked)
    if draw.random() < 0.2:
        visibility = draw.choice(["private", "public"])
        filters.append({"field": "visibility", "op": "eq", "value": visibility})
        passes.append(lambda one: one.visibility == visibility)
    if draw.random() < 0.2:
        filters.append({"field": "sensitivity", "op": "exists", "value": True})
        passes.append(lambda one: one.sensitivity is not None)
    if filters:
        arguments["filters"] = filters
    if draw.random() < 0.3:
        arguments["collections"] = ["two"]
        passes.append(lambda one: one.collection == "two")

    def finds(one: Chunk) -> bool:
        if word is None:
            return one.embedding is not None and all(test(one) for test in passes)
        return word in (*one.words, one.word) and all(test(one) for test in passes)

    return Question(arguments, finds)


def any_question(draw: random.Random, corpus: Corpus) -> Question:
    arguments: Row = {
        "match_count": draw.choice([1, 3, 10, 200, 1000]),
        "pool_size": draw.choice([10, 50, 1000]),
        "match_threshold": draw.choice([-1.0, 0.0, 0.7]),
        "fusion": draw.choice(["rrf", "relative_score", "auto"]),
        "search_mode": draw.choice(["websearch", "websearch", "simple", "phrase"]),
        "neighbor_window": draw.choice([0, 1, 2, 5]),
        "snippet": draw.random() < 0.5,
        "one_per_document": draw.random() < 0.3,
        "match_offset": draw.choice([0, 0, 1, 4]),
    }
    if draw.random() < 0.8:
        arguments["query_text"] = some_words(draw, corpus)
    if "query_text" not in arguments or draw.random() < 0.5:
        arguments["query_embedding"] = vector(draw)
    more: Row = {
        "filters": draw.choice(
            [
                [{"field": "owner_id", "op": "ne", "value": str(draw.choice(USERS))}],
                [{"field": "owner_id", "op": "exists", "value": draw.random() < 0.5}],
                [{"field": "visibility", "op": "in", "value": ["private", "public"]}],
                [{"field": "metadata.word", "op": "gte", "value": "row2x"}],
                [{"field": "metadata", "op": "contains", "value": {"tag": "red"}}],
                {"tag": "red"},
            ]
        ),
        "collections": draw.choice([["one"], ["one", "two"], ["two", "none"]]),
        "recency_half_life": draw.choice([0.5, 365.0]),
        "date_from": draw.choice(["2019-01-01", "2025-01-01"]),
        "formulations": [
            {"query_text": some_words(draw, corpus)} for _ in range(draw.randint(1, 3))
        ],
        "vector_weight": draw.choice([0.0, 2.0]),
        "prefix_last": True,
    }
    if arguments.get("query_text") is None or arguments.get("query_embedding") is None:
        del more["vector_weight"]
    arguments |= {name: value for name, value in more.items() if draw.random() < 0.25}
    if "prefix_last" in arguments and "query_text" in arguments:
        word = own_word("row", draw.choice(list(corpus.chunks)))
        arguments["query_text"] += f" {word[: draw.randint(1, len(word))]}"
    return Question(arguments)


# The calls, and what is wrong with their answers.


class Fuzz:
    """One worker's database, and the calls on it."""

    def __init__(self, trial: Trial, name: str, dsn: str, stack: ExitStack) -> None:
        self.trial, self.draw = trial, trial.random(name)
        self.owner = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        self.service, self.anon, self.signed_in = (
            self._role(dsn, role, stack) for role in ("service_role", "anon", "authenticated")
        )
        self.owner.execute(f"grant execute on function public.{PUBLIC} to anon".encode())
        self.reachable = {
            name
            for (name,) in self.owner.execute(
                "select proname from pg_proc where pronamespace = 'public'::regnamespace"
                " and (has_function_privilege('authenticated', oid, 'execute')"
                "      or has_function_privilege('anon', oid, 'execute'))"
            ).fetchall()
        }
        for name in self.reachable - TRIED:
            trial.violated(f"a user may call {name}, which is not tried here")
        ask_groups_of_token(self.owner)
        self.corpus = Corpus({}, {})
        self.statement = ""

    def _role(self, dsn: str, role: str, stack: ExitStack) -> Connection:
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        return connection

    def as_user(self, viewer: Viewer) -> Connection:
        """Return the connection of signed-in users, as this one."""
        sign_in(self.signed_in, viewer.user, viewer.groups or ())
        return self.signed_in

    def run(self) -> None:
        """Call until the time is over."""
        ways = [self.search] * 8 + [self.batch, self.explain, self.table, self.visitor]
        ways += [self.list_own] * 2 + [self.read_own] * 3 + [self.count_own]
        ways += [self.facet_own, self.facet_found]
        while self.trial.is_on():
            self.corpus = drawn(self.draw)
            store(self.owner, self.corpus)
            if self.draw.random() < 0.3:
                self.owner.execute("analyze public.knowledge_chunks")
                self.owner.execute("select public.refresh_knowledge_statistics()")
            self.trial.note("corpora")
            for _ in range(CALLS):
                if not self.trial.is_on():
                    break
                self.draw.choice(ways)()
            # At the end, since these change what the corpus is.
            for _ in range(CALLS // 25):
                self.delete_own()

    def ask(
        self, connection: Connection, function: str, arguments: Row, *allowed: str
    ) -> list[Row] | None:
        """Call a function; None when it refuses, which it may do with 22023 and `allowed`."""
        self.statement = f"{function}({arguments})"
        self.trial.note("calls")
        try:
            rows = call(connection, function, arguments)
        except psycopg.Error as error:
            if error.sqlstate not in (*REFUSED, *allowed):
                self.trial.violated(f"{error.sqlstate} {error} of {self.statement}")
            elif words_of(error) - words_of(arguments):
                self.trial.violated(f"a refusal tells {words_of(error)}: {self.statement}")
            else:
                self.trial.held("refusals")
            return None
        self.trial.held("rows looked at", len(rows))
        return rows

    def check(self, viewer: Viewer, answer: object, asked: object = None) -> None:
        """Look for words of rows that the viewer may not see."""
        leaked = words_of(answer) - self.corpus.words(viewer) - words_of(asked)
        if leaked:
            self.trial.violated(f"leak to {viewer}: {sorted(leaked)} in {self.statement}")
            self.trial.held("LEAKS")

    def check_hits(self, viewer: Viewer, rows: Sequence[Row], question: Question) -> None:
        """Check the rows of a search, and that they are all where that is known."""
        self.check(viewer, rows)
        seen = self.corpus.seen(viewer)
        ids = {one.id for one in seen}
        if not {row["id"] for row in rows} <= ids:
            self.trial.violated(f"leak to {viewer}: an id in {self.statement}")
            self.trial.held("LEAKS")
        for row in rows:
            if row["total_count"] > len(seen):
                self.trial.violated(f"leak to {viewer}: a total in {self.statement}")
                self.trial.held("LEAKS")
        if question.finds is not None:
            expected = {one.id for one in seen if question.finds(one)}
            found = {row["id"] for row in rows}
            if found != expected or {row["total_count"] for row in rows} - {len(expected)}:
                self.trial.violated(
                    f"{len(found)} rows for {viewer}, right are {len(expected)}: {self.statement}"
                )
            else:
                self.trial.held("exact answers")

    def question(self) -> Question:
        """Draw a question."""
        kind = simple_question if self.draw.random() < 0.4 else any_question
        return kind(self.draw, self.corpus)

    def viewer(self) -> Viewer:
        """Draw a viewer."""
        user = self.draw.choice([*USERS, *USERS, STRANGER])
        return Viewer(user, self.draw.random() < 0.15, self.groups())

    def groups(self) -> frozenset[str] | None:
        """Draw the groups of a viewer."""
        return self.draw.choice(
            [None, frozenset(self.draw.sample(GROUPS, self.draw.choice([0, 1, 1, 2, 4])))]
        )

    # Every search.

    def search(self) -> None:
        """Search for a viewer by one of the ways there are."""
        viewer, question = self.viewer(), self.question()
        arguments: Row = dict(question.arguments)
        if viewer.public_only:
            arguments["public_only"] = True
        routes = ["viewer_id", "viewer_id", "token", "token", "public", "service", "groups"]
        routes += ["visitor"]
        route = self.draw.choice(routes)
        if route == "token":
            rows = self.ask(self.as_user(viewer), "search_my_knowledge_chunks", arguments)
        elif route == "public":
            viewer = Viewer(None, public_only=True)
            rows = self.ask(self.service, SEARCH, {**arguments, "public_only": True})
        elif route == "visitor":
            viewer, question = Viewer(None, public_only=True), Question({})
            bounded = {name: min(arguments.get(name, 1), most) for name, most in VISITORS.items()}
            arguments.pop("public_only", None)
            rows = self.ask(self.anon, PUBLIC, arguments | bounded)
        elif route == "service":
            viewer = replace(viewer, user=None, groups=None)
            rows = self.ask(self.service, SEARCH, arguments)
        else:
            if route == "groups":
                viewer = replace(viewer, user=None)
            rows = self.ask(self.service, SEARCH, {**arguments, **named(viewer)})
        if rows is not None:
            self.check_hits(viewer, rows, question)

    def batch(self) -> None:
        """Search for several viewers at once."""
        fuse = self.draw.random() < 0.3
        viewers = [self.viewer() for _ in range(1 if fuse else self.draw.randint(1, 4))]
        questions = [self.question() for _ in viewers]
        queries: list[Row] = [
            {
                **question.arguments,
                "match_count": 200,
                "viewer_id": str(viewer.user),
                "viewer_groups": None if viewer.groups is None else sorted(viewer.groups),
                "public_only": viewer.public_only,
            }
            for viewer, question in zip(viewers, questions, strict=True)
        ]
        further: list[Row] = [{"query_text": some_words(self.draw, self.corpus)}] if fuse else []
        if fuse:
            queries[0].pop("formulations", None)
        rows = self.ask(
            self.service, f"{SEARCH}_batch", {"queries": [*queries, *further], "fuse": fuse}
        )
        for place, viewer in enumerate(viewers if rows is not None else []):
            own = [row for row in rows or [] if fuse or row["query_index"] == place]
            self.check_hits(viewer, own, Question({}))

    def explain(self) -> None:
        """Explain a search."""
        viewer, question = self.viewer(), self.question()
        arguments = {
            **question.arguments,
            **named(viewer),
            "public_only": viewer.public_only,
        }
        rows = self.ask(self.service, "explain_hybrid_search", arguments)
        if rows is not None:
            self.check(viewer, rows, asked=question.arguments)

    # A user's own documents.

    def list_own(self) -> None:
        """List documents as a user."""
        viewer = replace(self.viewer(), public_only=False)
        public, shared = self.draw.random() < 0.5, self.draw.random() < 0.5
        arguments: Row = {
            "page_size": self.draw.choice([1, 3, 200]),
            "include_public": public,
            "include_groups": shared,
        }
        if self.draw.random() < 0.3:
            arguments["after_key"] = own_word("doc", self.draw.randrange(8))
        rows = self.ask(self.as_user(viewer), "list_my_knowledge_documents", arguments)
        if rows is None:
            return
        self.check(viewer, rows)
        expected = sorted(
            key
            for number, one in self.corpus.documents.items()
            if one.owner == viewer.user
            or (public and one.visibility == "public")
            or (shared and not one.groups.isdisjoint(viewer.groups or ()))
            if (key := own_word("doc", number)) > arguments.get("after_key", "")
        )[: arguments["page_size"]]
        if [row["external_key"] for row in rows] != expected:
            self.trial.violated(f"not {expected} but {rows}: {self.statement}")
        for row in rows:
            chunks = [
                one
                for one in self.corpus.seen(viewer)
                if one.document is not None and own_word("doc", one.document) == row["external_key"]
            ]
            if row["chunk_count"] != len(chunks):
                self.trial.violated(f"leak to {viewer}: chunk_count of {row}")
                self.trial.held("LEAKS")

    def count_own(self) -> None:
        """Count the chunks without an embedding as a user."""
        viewer = self.viewer()
        rows = self.ask(
            self.as_user(viewer),
            "count_my_pending_knowledge_embeddings",
            {"public_only": viewer.public_only},
        )
        expected = sum(one.embedding is None for one in self.corpus.seen(viewer))
        if rows is not None and [*rows[0].values()] != [expected]:
            self.trial.violated(f"leak to {viewer}: not {expected} but {rows}: {self.statement}")
            self.trial.held("LEAKS")

    def facet_own(self) -> None:
        """Count the words that each row has of its own, as a user."""
        viewer = self.viewer()
        arguments: Row = {
            "facets": ["metadata.word"],
            "facet_limit": 1000,
            "public_only": viewer.public_only,
        }
        rows = self.ask(self.as_user(viewer), "facet_my_knowledge_chunks", arguments)
        if rows is not None:
            self.check(viewer, rows)

    def facet_found(self) -> None:
        """Count the rows that a question finds, as a user."""
        viewer, question = self.viewer(), self.question()
        arguments: Row = {
            **question.arguments,
            "facets": ["metadata.word"],
            "facet_limit": 1000,
            "public_only": viewer.public_only,
        }
        rows = self.ask(self.as_user(viewer), "facet_my_knowledge_chunks", arguments)
        if rows is None:
            return
        self.check(viewer, rows)
        if question.finds is not None:
            seen = self.corpus.seen(viewer)
            expected = {one.word for one in seen if question.finds(one)}
            if {row["value"] for row in rows} != expected:
                self.trial.violated(f"not {expected} but {rows}: {self.statement}")

    def read_own(self) -> None:
        """Read a document as a user."""
        viewer, number = replace(self.viewer(), public_only=False), self.draw.randrange(9)
        one = self.corpus.documents.get(number)
        rows = self.ask(
            self.as_user(viewer),
            "read_my_knowledge_document",
            {"document": UUID(int=10_000 + number), "chunk_count": 500},
        )
        if rows is None:
            return
        self.check(viewer, rows)
        found = rows[0]["read_my_knowledge_document"]
        is_seen = one is not None and viewer.sees(one)
        if (found is not None) is not is_seen:
            self.trial.violated(f"{viewer} reads {found} of {one}")
        elif found is not None:
            expected = {
                str(chunk.id) for chunk in self.corpus.seen(viewer) if chunk.document == number
            }
            if {chunk["id"] for chunk in found["chunks"]} != expected:
                self.trial.violated(f"{viewer} reads other chunks than {expected}: {found}")

    def delete_own(self) -> None:
        """Delete a document as a user."""
        viewer, number = self.viewer(), self.draw.randrange(9)
        one = self.corpus.documents.get(number)
        is_own = one is not None and one.owner == viewer.user
        rows = self.ask(
            self.as_user(viewer),
            "delete_my_knowledge_document",
            {"document": UUID(int=10_000 + number)},
        )
        if rows is None:
            return
        if rows[0]["delete_my_knowledge_document"] is not is_own:
            self.trial.violated(f"{viewer} deletes {one}: {rows}")
        if is_own:
            del self.corpus.documents[number]
            chunks = self.corpus.chunks.items()
            self.corpus.chunks = {key: row for key, row in chunks if row.document != number}
        ((left,),) = self.owner.execute("select count(*) from public.knowledge_chunks").fetchall()
        if left != len(self.corpus.chunks):
            self.trial.violated(f"{viewer} deletes {one}: {left} chunks are left")

    # Tables, and visitors.

    def table(self) -> None:
        """Read a table as a user."""
        viewer = replace(self.viewer(), public_only=False)
        name = self.draw.choice(["knowledge_chunks", "knowledge_documents"])
        self.statement = f"select * from public.{name}"
        self.trial.note("calls")
        try:
            rows = self.as_user(viewer).execute(self.statement.encode()).fetchall()
        except psycopg.errors.InsufficientPrivilege:
            self.trial.held("refusals")
        else:
            self.check(viewer, rows)

    def visitor(self) -> None:
        """Call what a visitor, or a user, must not call."""
        function, arguments = self.draw.choice(
            [
                (SEARCH, {"query_text": "alpha"}),
                ("search_my_knowledge_chunks", {"query_text": "alpha"}),
                (f"{SEARCH}_batch", {"queries": [{"query_text": "alpha"}]}),
                ("search_knowledge_chunks_fulltext", {"query_text": "alpha"}),
                ("match_knowledge_chunks", {"query_embedding": [1, 0, 0]}),
                ("explain_hybrid_search", {"query_text": "alpha"}),
            ]
        )
        visitors = (
            [self.anon]
            if function.startswith("search_my")
            else [self.anon, self.as_user(Viewer(STRANGER))]
        )
        if (
            self.ask(self.draw.choice(visitors), function, cast(Row, arguments), "42501")
            is not None
        ):
            self.trial.violated(f"leak: a visitor may call {function}")
            self.trial.held("LEAKS")


@contextmanager
def fuzz(trial: Trial, name: str, server: Server) -> Iterator[Fuzz]:
    for dsn in copy_of(server, server.template(3)):
        with ExitStack() as stack:
            yield Fuzz(trial, name, dsn, stack)


def test_no_answer_holds_what_its_viewer_may_not_see(trial: Trial, server: Server) -> None:
    trial.needs("calls", "rows looked at", "exact answers")
    # One worker's corpora are searched as they are, the other's as large ones.
    servers = [server, replace(server, small_corpus=0)]
    with ExitStack() as stack, ThreadPoolExecutor(len(servers)) as threads:
        workers = [
            stack.enter_context(fuzz(trial, f"worker{number}", one))
            for number, one in enumerate(servers)
        ]
        for running in [threads.submit(one.run) for one in workers]:
            running.result()
    trial.finish()

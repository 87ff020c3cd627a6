"""Random corpora, viewers and calls: an answer holds nothing that its viewer may not see.

What a viewer may see is decided here, in Python, on the rows as they were stored. Each stored row
has a word of its own in each of its texts, so a leak names its row. Where the question is simple
enough to be answered here, the answer must also have each row that it should, and the right total.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import cast
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from questions import STRANGER, Question, any_question, simple_question

from conftest import Connection, Server, copy_of
from corpora import (
    GROUPS,
    USERS,
    Corpus,
    Row,
    Viewer,
    ask_groups_of_token,
    call,
    drawn,
    own_word,
    sign_in,
    store,
    words_of,
)
from trials import Trial

pytestmark = pytest.mark.chaos(share=0.45)

CALLS = 500  # of a corpus, whose first calls are slow: each session plans anew
SEARCH = "hybrid_search_knowledge_chunks"
REFUSED = ("22023",)

PUBLIC = "search_public_knowledge_chunks"
# What a visitor may ask for at most.
VISITORS = {"match_count": 50, "pool_size": 100, "neighbor_window": 2}

# Functions that a signed-in user or a visitor may call. A new one has to be tried here as well.
TRIED = {
    PUBLIC,
    "count_my_pending_knowledge_embeddings",
    "explain_my_empty_knowledge_search",
    "facet_my_knowledge_chunks",
    "search_my_knowledge_chunks",
    "list_my_knowledge_documents",
    "read_my_knowledge_document",
    "delete_my_knowledge_document",
}


def named(viewer: Viewer) -> Row:
    groups = {} if viewer.groups is None else {"viewer_groups": sorted(viewer.groups)}
    return {"viewer_id": viewer.user, **groups}


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
        ways = [self.search] * 8 + [self.batch, self.explain, self.table, self.visitor]
        ways += [self.list_own] * 2 + [self.read_own] * 3 + [self.count_own]
        ways += [self.facet_own, self.facet_found, self.explain_own]
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
        kind = simple_question if self.draw.random() < 0.4 else any_question
        return kind(self.draw, self.corpus)

    def viewer(self) -> Viewer:
        user = self.draw.choice([*USERS, *USERS, STRANGER])
        return Viewer(user, self.draw.random() < 0.15, self.groups())

    def groups(self) -> frozenset[str] | None:
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
        viewers = [self.viewer() for _ in range(self.draw.randint(1, 4))]
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
        rows = self.ask(self.service, f"{SEARCH}_batch", {"queries": queries})
        for place, viewer in enumerate(viewers if rows is not None else []):
            own = [row for row in rows or [] if row["query_index"] == place]
            self.check_hits(viewer, own, Question({}))

    def explain(self) -> None:
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

    def explain_own(self) -> None:
        """Ask as a user why there is no row with a word that is like that of each row."""
        viewer = self.viewer()
        condition = {"field": "metadata.word", "op": "eq", "value": "ro"}
        arguments: Row = {
            "query_text": "alpha",
            "filters": [condition],
            "public_only": viewer.public_only,
        }
        rows = self.ask(self.as_user(viewer), "explain_my_empty_knowledge_search", arguments)
        if rows is not None:
            self.check(viewer, rows)

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

"""Groups in random corpora: functions, policies and counts against an oracle in Python.

The oracle is Viewer.sees of tests/corpora.py: public rows, the viewer's own, and those of a group.
"""

import random
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from conftest import Connect, Connection
from corpora import (
    GROUPS,
    USERS,
    VOCABULARY,
    Chunk,
    Corpus,
    Viewer,
    ask_groups_of_token,
    drawn,
    own_word,
    sign_in,
    store,
)
from homes import present

pytestmark = pytest.mark.large


@pytest.fixture
def owner(connect: Connect) -> Connection:
    connection = connect()
    ask_groups_of_token(connection)
    connection.execute(
        "grant select on table public.knowledge_documents, public.knowledge_chunks to authenticated"
    )
    return connection


def questions(corpus: Corpus, viewer: Viewer, draw: random.Random) -> dict[str, Any]:
    return {
        "document": str(draw.choice(list(corpus.documents.values())).id),
        "word": draw.choice([*VOCABULARY, own_word("row", draw.choice(list(corpus.chunks)))]),
        "user": None if viewer.user is None else str(viewer.user),
        "groups": None if viewer.groups is None else sorted(viewer.groups),
        "public_only": viewer.public_only,
    }


ROWS = 'viewer_id => asked."user", viewer_groups => asked.groups, public_only => asked.public_only'
MANY_ROWS = "match_count => 1000, pool_size => 1000"


def hits(function: str, arguments: str) -> str:
    return f"array(select hit.id from public.{function}({arguments}, {ROWS}) as hit)"


def members(document: str, name: str) -> str:
    return (
        "array(select (member.value ->> 'id')::uuid"
        f" from jsonb_array_elements({document} -> '{name}') as member (value))"
    )


READ = members(
    f"public.read_knowledge_document(asked.document, chunk_count => 500, {ROWS})", "chunks"
)
EXPLAIN = members(
    "public.explain_hybrid_search(search => viewer.rows || jsonb_build_object("
    "'query_text', asked.word, 'match_count', 1000, 'pool_size', 1000))",
    "hits",
)
PENDING = "public.count_pending_knowledge_embeddings(search => viewer.rows)"
# In one statement, because most of the time would be round trips.
BY_WORD = "query_text => asked.word"
BY_VECTOR = "query_embedding => '[1,0,0]', match_threshold => -1"
AS_SERVICE = f"""
select {hits("hybrid_search_knowledge_chunks", f"{BY_WORD}, {MANY_ROWS}")},
       {hits("hybrid_search_knowledge_chunks", f"{BY_VECTOR}, {MANY_ROWS}")},
       public.count_matching_knowledge_chunks(
         search => viewer.rows || jsonb_build_object('query_text', asked.word)
       ),
       {{explain}},
       {hits("search_knowledge_chunks_fulltext", f"{BY_WORD}, match_count => 1000")},
       {hits("match_knowledge_chunks", f"{BY_VECTOR}, match_count => 1000")},
       {{read}},
       {{pending}}
  from jsonb_to_recordset(%s) as asked (
         word text, document uuid, "user" uuid, groups text[], public_only boolean
       )
 cross join lateral (
         select jsonb_build_object(
                  'viewer_id', asked."user", 'viewer_groups', asked.groups,
                  'public_only', asked.public_only
                ) as rows
       ) as viewer
"""
AS_USER = {
    "search_my_knowledge_chunks": f"select id from public.search_my_knowledge_chunks("
    f"query_text => %(word)s, {MANY_ROWS})",
    "knowledge_chunks": "select id from public.knowledge_chunks",
    "knowledge_documents": "select id from public.knowledge_documents",
    "list_my_knowledge_documents": "select id from public.list_my_knowledge_documents("
    "page_size => 200, include_public => true, include_groups => true)",
    "read_my_knowledge_document": "select unnest("
    + members("public.read_my_knowledge_document(%(document)s, chunk_count => 500)", "chunks")
    + ")",
    "count_my_pending_knowledge_embeddings": (
        "select generate_series(1, public.count_my_pending_knowledge_embeddings())"
    ),
}
VIEWERS = 20  # of a corpus


class Oracle:
    """Compares answers with what the viewer may see, and counts."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self.modules = modules
        self.calls = self.rows = 0
        self.leaks: list[str] = []
        self.missing: list[str] = []

    def compare(self, what: str, viewer: Viewer, found: set[Any], expected: set[Any]) -> None:
        """Count a call, and note rows that are wrong."""
        self.calls += 1
        self.rows += len(found)
        if found - expected:
            self.leaks.append(f"{what}, {viewer}: {found - expected}")
        if expected - found:
            self.missing.append(f"{what}, {viewer}: {expected - found}")


def compare_corpus(
    oracle: Oracle, draw: random.Random, owner: Connection, service: Connection, user: Connection
) -> None:
    corpus = drawn(draw)
    store(owner, corpus)
    viewers = [
        Viewer(
            draw.choice([*USERS, None]),
            draw.random() < 0.1,
            draw.choice([None, frozenset(draw.sample(GROUPS, draw.choice([0, 1, 2, 4])))]),
        )
        for _ in range(VIEWERS)
    ]
    asked = [questions(corpus, viewer, draw) for viewer in viewers]
    statement = AS_SERVICE.format(
        explain=EXPLAIN if "insight" in oracle.modules else "null",
        read=READ if "own_documents" in oracle.modules else "null",
        pending=PENDING if "embedding_queue" in oracle.modules else "null",
    )
    answers = service.execute(statement.encode(), [Jsonb(asked)], prepare=False).fetchall()
    for viewer, question, answer in zip(viewers, asked, answers, strict=True):
        seen = corpus.seen(viewer)
        matching = {one.id for one in seen if has_word(one, question["word"])}
        embedded = {one.id for one in seen if one.embedding is not None}
        expected: list[tuple[str, set[Any] | int]] = [
            ("text", matching),
            ("vector", embedded),
            ("count", len(matching)),
            ("explain", matching),
            ("fulltext", matching),
            ("match", embedded),
            ("read", parts_of(corpus, viewer, question["document"])),
            ("pending", len(seen) - len(embedded)),
        ]
        for found, (what, right) in zip(answer, expected, strict=True):
            if isinstance(right, int) and found is not None:
                oracle.compare(what, viewer, set(range(found)), set(range(right)))
            elif not isinstance(right, int) and found is not None:
                oracle.compare(what, viewer, set(found), right)
    for viewer, question in zip(viewers, asked, strict=True):
        if viewer.user is not None:
            member = Viewer(viewer.user, groups=viewer.groups or frozenset())
            compare_user(oracle, draw, corpus, member, question["word"], user)


def compare_user(
    oracle: Oracle,
    draw: random.Random,
    corpus: Corpus,
    viewer: Viewer,
    word: str,
    connection: Connection,
) -> None:
    read = draw.choice(list(corpus.documents.values()))
    with connection.pipeline():
        sign_in(connection, viewer.user, sorted(viewer.groups or ()))
        given = {"word": word, "document": read.id}
        cursors = {
            name: connection.execute(AS_USER[name].encode(), given)
            for name in present(AS_USER, oracle.modules)
        }
    seen = corpus.seen(viewer)
    seen_documents = {one.id for one in corpus.documents.values() if viewer.sees(one)}
    unembedded = sum(one.embedding is None for one in seen)
    expected: dict[str, set[Any]] = {
        "search_my_knowledge_chunks": {one.id for one in seen if has_word(one, word)},
        "knowledge_chunks": {one.id for one in seen},
        "knowledge_documents": seen_documents,
        "list_my_knowledge_documents": seen_documents,
        "read_my_knowledge_document": parts_of(corpus, viewer, str(read.id)),
        "count_my_pending_knowledge_embeddings": set(range(1, unembedded + 1)),
    }
    for name, cursor in cursors.items():
        oracle.compare(name, viewer, {one for (one,) in cursor}, expected[name])


def parts_of(corpus: Corpus, viewer: Viewer, document: str) -> set[UUID]:
    """List the chunks that a viewer reads of a document: none if the document is hidden."""
    (one,) = (one for one in corpus.documents.values() if str(one.id) == document)
    if not viewer.sees(one):
        return set()
    return {chunk.id for chunk in corpus.seen(viewer) if chunk.document == one.number}


def has_word(chunk: Chunk, word: str) -> bool:
    return word in (*chunk.words, chunk.word)


@pytest.mark.parametrize("calls", [400, pytest.param(20_000, marks=pytest.mark.slow)])
def test_functions_policies_and_counts_agree_with_the_oracle(
    connect: Connect, owner: Connection, calls: int, modules: tuple[str, ...]
) -> None:
    oracle, draw = Oracle(modules), random.Random(17)
    service, user = connect("service_role"), connect("authenticated")
    while oracle.calls < calls:
        compare_corpus(oracle, draw, owner, service, user)
    assert oracle.leaks == []
    assert oracle.missing == []
    assert oracle.rows > calls

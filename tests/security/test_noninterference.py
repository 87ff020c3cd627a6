"""What a search may not see changes no answer: two databases, one without these rows, compared.

It may not see what is hidden from its viewer, and what the required_filters of a server leave out.

Without module tenants, scores depend on all chunks by their document frequencies. Then these are
functions of the word alone, and so are always the other figures that SECURITY.md lists, so that
all else must be equal.
"""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from conftest import Connect, Connection, Server, copy_of
from corpora import (
    GROUPS,
    TAGS,
    USERS,
    Chunk,
    Corpus,
    Document,
    Viewer,
    ask_groups_of_token,
    call,
    drawn,
    sign_in,
    store,
    words_of,
)
from homes import present
from second_brain.services.arguments import FUSIONS
from support.documents import upsert

pytestmark = pytest.mark.large

CALLS = 50  # of each viewer
MANY_CALLS = 600
# No form of a word is in over 20 of them: of more, the chunks that are stored first are looked at.
CHUNKS = 150
# Families of words that typos, prefixes, stems and accents lead from one to another.
WORDS: list[str] = re.findall(
    r"\w+",
    "general generals generalise generalisation generous genre généreux générale genes camera"
    " cameras camara camero camel cameo caméra relate relation relational relatives organise"
    " organisation organic orgänic happiness happily happy hoppy puppy poppy résumé resume resumed"
    " résumés quixotic quixotronics zanzibar zanzibat",
)
ME, MEMBER, GUEST, VISITOR = (
    Viewer(USERS[0]),
    Viewer(USERS[1], groups=frozenset(GROUPS[:2])),
    Viewer(None, groups=frozenset(GROUPS[2:3])),
    Viewer(None, public_only=True),
)
CONSTANT_FREQUENCIES = """
create or replace function knowledge_internal.document_frequencies(
  lexemes text[], settings knowledge_internal.search_settings
)
returns float8[] language sql stable set search_path = pg_catalog, pg_temp as $$
  select array_agg(1.0 + length(asked.lexeme) order by asked.place)
    from unnest(lexemes) with ordinality as asked (lexeme, place)
$$;
"""
CONSTANT_FIGURES = """
alter function knowledge_internal.read_settings rename to stored_settings;
create function knowledge_internal.read_settings(
  fusion text default null, vector_weight double precision default 1,
  text_weight double precision default 1, collections text[] default null
)
returns knowledge_internal.search_settings
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  settings knowledge_internal.search_settings := knowledge_internal.stored_settings(
    fusion, vector_weight, text_weight, collections
  );
begin
  settings.document_count := 100;
  settings.mean_length := 5;
  settings.frequencies_from := null;
  settings.k1 := 1.2;
  settings.b := 0.6;
  settings.cosine_scale := 0.9;
  settings.neighbour_weight := case when settings.fusion = 'auto' then 0.3 end;
  return settings;
end
$$;
create or replace function knowledge_internal.mean_length_so_far()
returns float8 language sql stable set search_path = pg_catalog, pg_temp as 'select 5.0::float8';
-- An ANALYZE would bring statistics of its own.
alter table public.knowledge_chunks set (autovacuum_enabled = false);
"""
GRANTED = ("search_public_knowledge_chunks", "explain_public_empty_knowledge_search")
WRITTEN = {"created_at", "updated_at", "milliseconds"}  # when the test stored or asked it

Row = dict[str, Any]


def condition(field: str, op: str, value: object) -> Row:
    return {"field": field, "op": op, "value": value}


def corpus() -> Corpus:
    """Draw documents and chunks, some of which have another visibility than their document."""
    draw = random.Random("rows")
    found = Corpus({}, {})
    while len(found.chunks) < CHUNKS:
        found = drawn(draw)
    # Each chunk has a word that hardly another one has.
    found.chunks = {
        number: replace(one, words=(*draw.choices(WORDS, k=draw.randint(1, 3)), misspelled(draw)))
        for number, one in list(found.chunks.items())[:CHUNKS]
    }
    return found


def misspelled(draw: random.Random) -> str:
    word = draw.choice(WORDS)
    place = draw.randrange(len(word))
    return word[:place] + draw.choice("aeinrstz") + word[place + draw.randint(0, 1) :]


@dataclass
class Side:
    owner: Connection
    roles: dict[str, Connection]

    def ask(self, role: str, function: str, arguments: Row) -> object:
        """Return the answer without times, or the refusal."""
        try:
            rows = call(self.roles[role], function, arguments)
        except psycopg.errors.InvalidParameterValue as error:
            return str(error)
        answer = [without_times(row) for row in rows]
        match answer:
            case [{"explain_hybrid_search": {"hits": [], "empty": _} as told}]:
                # Whether legs are run for nothing depends on a sample of all rows.
                return {key: told[key] for key in ("hits", "empty")}
        return answer


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in WRITTEN}
    return [without_times(one) for one in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def sides(server: Server) -> Iterator[tuple[Side, Side]]:
    """A database with all rows, and one for what a viewer may see."""
    with ExitStack() as stack:
        yield side(server, stack), side(server, stack)


def side(server: Server, stack: ExitStack) -> Side:
    copies = copy_of(server, server.template(3))
    dsn = next(copies)
    stack.callback(lambda: next(copies, None))
    owner = stack.enter_context(psycopg.connect(dsn, autocommit=True))
    owner.execute(CONSTANT_FIGURES.encode())
    if "tenants" in server.modules:
        owner.execute("select public.refresh_knowledge_tenants()")
    else:
        owner.execute(CONSTANT_FREQUENCIES.encode())
    for name in present(GRANTED, server.modules):
        owner.execute(f"grant execute on function public.{name} to anon".encode())
    # A function of another signature would be a second one, and not called.
    names = owner.execute(
        "select proname from pg_proc where pronamespace = 'knowledge_internal'::regnamespace"
    ).fetchall()
    assert len(names) == len(set(names))
    ask_groups_of_token(owner)
    roles = {}
    for role in ("service_role", "authenticated", "anon"):
        roles[role] = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        roles[role].execute(sql.SQL("set role {}").format(sql.Identifier(role)))
    return Side(owner, roles)


def seen_by(viewer: Viewer, rows: Corpus) -> Corpus:
    """Leave out what the viewer may not see, and the texts of documents with visible chunks."""
    chunks = {number: one for number, one in rows.chunks.items() if viewer.sees(one)}
    needed = {one.document for one in chunks.values()}
    return Corpus(
        {
            number: one
            for number, one in rows.documents.items()
            if viewer.sees(one) or number in needed
        },
        chunks,
    )


def differences(one: object, other: object) -> object:
    """Return the columns of the first rows that are not the same, for the message of a failure."""
    for row, another in zip(
        *[answer if isinstance(answer, list) else [] for answer in (one, other)], strict=False
    ):
        if row != another:
            return {name: (row[name], another[name]) for name in row if row[name] != another[name]}
    return one, other


def typed(draw: random.Random) -> str:
    """Draw a word, mostly with a mistake, cut off, or without its accents."""
    word = draw.choice(WORDS)
    place = draw.randrange(len(word))
    plain = word.translate(str.maketrans("éä", "ea"))
    other = f"{word}-{draw.choice(WORDS)}"
    cut, shorter = word[: place + 1], word[:place] + word[place + 1 :]
    return draw.choice([word, cut, shorter, misspelled(draw), plain, other])


def question(draw: random.Random) -> str:
    words = [typed(draw) for _ in range(draw.randint(1, 3))]
    return draw.choice(["{}", "{}", "{}", '"{}"', '"{}"~3', "camera {}", "-camera {}"]).format(
        " ".join(words)
    )


def with_words(draw: random.Random) -> Row:
    op = draw.choice(["has_all_words", "has_any_word", "has_no_word"])
    return condition("text", op, [draw.choice(WORDS), question(draw)])


def searched(draw: random.Random, modules: tuple[str, ...]) -> Row:
    conditions = [
        condition("metadata.tag", "in", draw.sample(TAGS, 2)),
        condition("owner_id", "ne", str(draw.choice(USERS))),
        condition("sensitivity", "exists", draw.random() < 0.5),
        with_words(draw),
    ]
    arguments: Row = {
        "query_text": question(draw),
        "prefix_last": draw.random() < 0.6 and "words" in modules,
        "search_mode": draw.choice(["websearch", "websearch", "simple", "phrase"]),
        "query_embedding": draw.choice([None, "[1, 0.5, 0.2]", "[-0.2, 1, 0]"]),
        "filters": draw.choice([None, None, *([one] for one in conditions)]),
        "collections": draw.choice([None, None, ["one"], ["one", "two"]]),
        "formulations": draw.choice([None, None, [{"query_text": question(draw)}]]),
        "one_per_document": draw.random() < 0.2,
        "embedding_from_text": draw.random() < 0.4,
        "min_confidence": draw.choice([None, None, None, 0.1, 0.6]),
        "max_per_document": draw.choice([None, None, None, 1, 2]),
    }
    if "like" in modules:
        # Of all rows, so hidden ones too.
        likes = [None, None, None, [known(draw)], [known(draw), known(draw)]]
        arguments["like_ids"] = draw.choice(likes)
    return {name: value for name, value in arguments.items() if value is not None}


def known(draw: random.Random) -> UUID:
    return UUID(int=draw.choice([10_000 + draw.randrange(8), 20_000 + draw.randrange(CHUNKS)]))


def arranged(draw: random.Random, modules: tuple[str, ...]) -> Row:
    if "arrange" not in modules:
        return {}
    boosts = [
        {"filters": {"owner_id": str(draw.choice(USERS))}, "factor": 9},
        {"filters": {"sensitivity": "high"}, "factor": 0.1},
        {"filters": {"tag": draw.choice(TAGS)}, "factor": 2},
        {"field": "chunk_index", "modifier": "log1p", "weight": 1},
        {"field": "document_date", "decay": "gauss", "origin": "2025-01-01", "scale": 90},
    ]
    return {
        "boosts": draw.sample(boosts, draw.choice([0, 0, 1, 3])),
        "diversity": draw.choice([0, 0, 0.5, 1]),
        "merge_duplicates": draw.random() < 0.3,
        "order_by": draw.choice([None, None, None, "document_date desc", "chunk_index asc"]),
    }


def shown(draw: random.Random, modules: tuple[str, ...]) -> Row:
    return {
        "match_count": draw.choice([1, 5, 50]),
        "pool_size": draw.choice([5, 50, 100]),
        "fusion": draw.choice(FUSIONS),
        "neighbor_window": draw.choice([0, 2]),
        "snippet": draw.random() < 0.5,
        "match_offset": draw.choice([0, 0, 2]),
        "snippets": draw.choice([1, 3]),
        **arranged(draw, modules),
    }


def mistaken(draw: random.Random) -> Row:
    """Draw what leaves out all rows, mostly nearly the name of what there is."""
    key, tag = draw.choice(["tag", "tga", "word"]), draw.choice([*TAGS, "tagg", *WORDS[:3]])
    of_tag = condition(f"metadata.{key}", "eq", tag)
    return draw.choice(
        [
            {"filters": [of_tag]},
            {"filters": [of_tag, condition("owner_id", "eq", str(draw.choice(USERS)))]},
            {"filters": {"languag": "english"}},
            {"filters": {"any": [with_words(draw), of_tag]}},
            {"collections": [draw.choice(["on", "tow", "three"])]},
            {"date_from": "2050-01-01"},
            {"query_text": draw.choice(["zzz", "the"]), "query_embedding": None},
            {"query_embedding": "[1, 0.5, 0.2]", "match_threshold": 1},
            {"match_offset": 200},
            {"min_confidence": 1},
        ]
    )


def one_of(
    draw: random.Random, calls: list[tuple[str, Row]], modules: tuple[str, ...]
) -> tuple[str, Row]:
    there = present([function for function, _ in calls], modules)
    return draw.choice([call for call in calls if call[0] in there])


def named(viewer: Viewer) -> Row:
    return {
        "viewer_id": viewer.user,
        "viewer_groups": None if viewer.groups is None else sorted(viewer.groups),
        "public_only": viewer.public_only,
    }


def asked(
    draw: random.Random, viewer: Viewer, rows: Corpus, modules: tuple[str, ...]
) -> tuple[str, str, Row]:
    """Draw a role, a function that it may call as this viewer, and arguments."""
    arguments = searched(draw, modules)
    facets: Row = {"facets": ["metadata.tag", "metadata.word", "collection"], "facet_limit": 5}
    if viewer.public_only and draw.random() < 0.5:
        if draw.random() < 0.3 and "insight" in modules:
            return "anon", "explain_public_empty_knowledge_search", arguments | mistaken(draw)
        if "visitors" in modules:
            return "anon", "search_public_knowledge_chunks", arguments | shown(draw, modules)
    if viewer.user is not None and draw.random() < 0.5:
        document = {"document": UUID(int=10_000 + draw.randrange(8))}
        listing = {"include_public": True, "include_groups": True}
        calls = [
            *[("search_my_knowledge_chunks", arguments | shown(draw, modules))] * 2,
            ("facet_my_knowledge_chunks", arguments | facets),
            ("count_my_pending_knowledge_embeddings", {}),
            ("explain_my_empty_knowledge_search", arguments | mistaken(draw)),
            ("list_my_knowledge_documents", listing),
            ("read_my_knowledge_document", document),
        ]
        return "authenticated", *one_of(draw, calls, modules)
    chunk = {"chunk_id": draw.choice(rows.seen(viewer)).id}
    calls = [
        *[("hybrid_search_knowledge_chunks", arguments | shown(draw, modules))] * 2,
        ("hybrid_search_knowledge_chunks_batch", arguments | shown(draw, modules)),
        ("count_matching_knowledge_chunks", arguments),
        ("explain_empty_knowledge_search", arguments | mistaken(draw)),
        ("facet_knowledge_chunks", arguments | facets),
        ("explain_missing_knowledge_chunk", arguments | chunk),
    ]
    function, given = one_of(draw, calls, modules)
    given |= named(viewer)
    if function == "hybrid_search_knowledge_chunks_batch":
        given = {"queries": [named(viewer) | {"query_text": "camera"}, given]}
    return "service_role", function, given


def same_answer(sides: tuple[Side, Side], *call: Any) -> object:
    """Ask both databases the same; return the answer, which is that of each of them."""
    one, other = (side.ask(*call) for side in sides)
    assert one == other, f"{differences(one, other)} of {call}"
    return one


@pytest.mark.parametrize("calls", [CALLS, pytest.param(MANY_CALLS, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "viewer", [ME, MEMBER, GUEST, VISITOR], ids=["me", "member", "guest", "visitor"]
)
def test_hidden_rows_change_no_answer(
    sides: tuple[Side, Side], viewer: Viewer, calls: int, modules: tuple[str, ...]
) -> None:
    draw = random.Random(f"calls {viewer}")
    whole = corpus()
    visible = seen_by(viewer, whole)
    assert 20 < len(visible.chunks) < len(whole.chunks) - 20
    for side, rows in zip(sides, (whole, visible), strict=True):
        store(side.owner, rows)
        if viewer.user is not None:
            sign_in(side.roles["authenticated"], viewer.user, viewer.groups or ())
    answered = 0
    for _ in range(calls):
        one = asked(draw, viewer, visible, modules)
        answer = same_answer(sides, *one)
        # That one describes hidden rows to service_role on purpose.
        if one[1] != "explain_missing_knowledge_chunk":
            assert words_of(answer) <= whole.words(viewer), one
        answered += answer not in ([], "")
    assert answered > calls / 2


Scope = tuple[Row, Callable[[Chunk], bool]]
SCOPES: list[Scope] = [
    (condition("metadata.tag", "eq", "red"), lambda one: one.tag == "red"),
    (condition("metadata.tag", "in", ["red", "blue"]), lambda one: one.tag != "green"),
    (condition("metadata", "contains", {"tag": "blue"}), lambda one: one.tag == "blue"),
    (condition("metadata.tag", "ne", "red"), lambda one: one.tag != "red"),
    (condition("collection", "in", ["two", "three"]), lambda one: one.collection == "two"),
    (condition("collection", "not_in", ["two"]), lambda one: one.collection == "one"),
    (condition("sensitivity", "exists", False), lambda one: one.sensitivity is None),
    (condition("owner_id", "eq", str(USERS[1])), lambda one: one.owner == USERS[1]),
    (condition("visibility", "eq", "public"), lambda one: one.visibility == "public"),
    (condition("document_date", "gte", "2025-01-01"), lambda one: (one.date or "") > "2025"),
    (condition("chunk_index", "between", [1, 4]), lambda one: one.place in range(1, 5)),
]


def documents_hidden_by(required: Row, rows: Corpus) -> list[UUID]:
    """List the documents whose own columns do not meet a condition on access."""
    meets: dict[str, Callable[[Document], bool]] = {
        "sensitivity": lambda one: one.sensitivity is None,
        "owner_id": lambda one: one.owner == USERS[1],
        "visibility": lambda one: one.visibility == "public",
    }
    test = meets.get(required["field"])
    return [one.id for one in rows.documents.values() if test is not None and not test(one)]


def asked_by_a_server(
    draw: random.Random, viewer: Viewer, rows: Corpus, modules: tuple[str, ...]
) -> tuple[str, str, Row]:
    """Draw a function that a server calls, and arguments; ids are of rows in the scope or not."""
    arguments = searched(draw, modules)
    document = {"document": UUID(int=10_000 + draw.randrange(8))}
    batch = {"queries": [arguments | shown(draw, modules)] * 2}
    calls: list[tuple[str, Row]] = [
        ("explain_missing_knowledge_chunk", arguments | {"chunk_id": known(draw)}),
        ("explain_missing_knowledge_chunk", arguments | {"document_key": str(known(draw))}),
        ("explain_hybrid_search", arguments),
        ("count_pending_knowledge_embeddings", {}),
        ("read_knowledge_document", document),
        ("list_visible_knowledge_documents", {"page_size": draw.choice([2, 50])}),
        ("match_knowledge_chunks", {"query_embedding": "[1, 0.5, 0.2]", "match_threshold": -1}),
        ("search_knowledge_chunks_fulltext", {"query_text": question(draw)}),
        ("hybrid_search_knowledge_chunks_batch", batch),
    ]
    name, given = one_of(draw, calls, modules)
    if draw.random() < 0.6:
        role, name, given = "", "", {}
        while role != "service_role":
            role, name, given = asked(draw, viewer, rows, modules)
    elif name != "hybrid_search_knowledge_chunks_batch":
        given |= named(viewer)
    return "service_role", name, given


@pytest.mark.parametrize("calls", [30, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("viewer", [pytest.param(Viewer(None), marks=pytest.mark.slow), MEMBER])
@pytest.mark.parametrize(
    "scope",
    [*SCOPES[:2], *(pytest.param(one, marks=pytest.mark.slow) for one in SCOPES[2:])],
    ids=[f"{one['field']} {one['op']}" for one, _ in SCOPES],
)
def test_rows_that_a_server_leaves_out_change_no_answer(
    sides: tuple[Side, Side], scope: Scope, viewer: Viewer, calls: int, modules: tuple[str, ...]
) -> None:
    required, is_in_scope = scope
    draw = random.Random(f"server {viewer} {required}")
    whole = corpus()
    within = {number: one for number, one in whole.chunks.items() if is_in_scope(one)}
    needed = {one.document for one in within.values()}
    documents = {number: one for number, one in whole.documents.items() if number in needed}
    small = Corpus(documents, within)
    assert 10 < len(within) < len(whole.chunks) - 10
    for side, rows in zip(sides, (whole, small), strict=True):
        store(side.owner, rows)
    sides[1].owner.execute(
        "update public.knowledge_documents set title = 'other', source_url = 'other',"
        " external_key = id::text where id = any (%s)",
        [documents_hidden_by(required, small)],
    )
    answered = 0
    for _ in range(calls):
        role, function, given = asked_by_a_server(draw, viewer, small, modules)
        bound = {"required_filters": [required]}
        if "queries" in given:
            given = {"queries": [one | bound for one in given["queries"]]}
        else:
            given |= bound
        answered += same_answer(sides, role, function, given) not in ([], "")
    assert answered > calls / 2


@pytest.mark.module("words")
@pytest.mark.parametrize(
    "viewer", [{"viewer_id": USERS[0]}, {"viewer_groups": ["staff"]}, {"public_only": True}]
)
def test_a_prefix_tells_no_letter_of_a_hidden_word(connect: Connect, viewer: Row) -> None:
    service = connect("service_role")
    for content, owner, visibility in (
        ("2026", USERS[0], "public"),
        ("quixotronics", USERS[1], "private"),
    ):
        upsert(service, content, content, owner_id=owner, visibility=visibility)
    names = ("rrf_score", "text_score", "notes", "total_count")
    for place in range(len("quixotronics") - 1):
        answers = []
        for letter in ["z", *"aeis", "quixotronics"[place]]:
            typed = f"2026 {'quixotronics'[:place]}{letter}"
            asked = {"query_text": typed, "prefix_last": True, **viewer}
            hits = call(service, "hybrid_search_knowledge_chunks", asked)
            assert hits
            told = [(hit["matched_terms"][:1], *(hit[name] for name in names)) for hit in hits]
            answers.append((letter, told))
        assert [letter for letter, told in answers if told != answers[0][1]] == []

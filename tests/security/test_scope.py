"""What a server requires, and the filters of a user: what they bound, and how large they may be."""

import json
from typing import Any

import psycopg
import pytest

from conftest import Connection
from corpora import USERS, call
from support import documents

SEARCH = "hybrid_search_knowledge_chunks"
MINE = "search_my_knowledge_chunks"
EMPTY = "explain_empty_knowledge_search"
TENANT_A = [{"field": "metadata.tenant", "op": "eq", "value": "a"}]

Row = dict[str, Any]


def put(connection: Connection, key: str, content: str, **document: Any) -> None:
    # A heading of its own: without one, a chunk has the title as its heading.
    chunk = documents.embedded(content) | {"heading": "part"}
    given = {"title": f"title of {key}", "source_url": f"https://{key}", **document}
    documents.upsert(connection, key, chunk, **given)


def ids(connection: Connection) -> dict[str, str]:
    rows = connection.execute("select external_key, id::text from public.knowledge_documents")
    return dict(rows.fetchall())


@pytest.fixture
def tenants(knowledge: Connection) -> Connection:
    for tenant, team, project in (("a", "sales", "crane"), ("b", "merger", "quixotronics")):
        put(
            knowledge,
            f"plan-{tenant}",
            f"the plan of {project}",
            visibility="public",
            sensitivity=f"label-{tenant}",
            collection=f"notes-{tenant}",
            metadata={"tenant": tenant, "team": team, f"key{tenant}{project}": project},
        )
    return knowledge


def sign_in(connection: Connection) -> None:
    claims = json.dumps({"sub": str(USERS[0]), "role": "authenticated"})
    connection.execute("select set_config('request.jwt.claims', %s, true)", [claims])
    connection.execute("set local role authenticated")


def refusal(connection: Connection, function: str, arguments: Row) -> str:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused, connection.transaction():
        call(connection, function, arguments)
    return str(refused.value.diag.message_primary)


def told(connection: Connection, function: str, **arguments: Any) -> str:
    asked = {"query_text": "plan", "required_filters": TENANT_A, **arguments}
    return json.dumps(call(connection, function, asked), default=str)


@pytest.mark.module("insight")
@pytest.mark.parametrize(
    "asked",
    [
        {"filters": {"team": "merge"}},
        {"filters": [{"field": "metadata.team", "op": "eq", "value": "merger"}]},
        {"filters": {"keybquixotronic": "x"}},
        {"filters": [{"field": "sensitivity", "op": "eq", "value": "label-c"}]},
        {"filters": [{"field": "collection", "op": "in", "value": ["notes-c"]}]},
        {"collections": ["notes-c"]},
        {"query_text": "quixotronics"},
        {"query_text": "quixotronisc"},
        {"date_from": "2099-01-01"},
    ],
    ids=json.dumps,
)
def test_an_empty_answer_names_nothing_outside_the_scope(tenants: Connection, asked: Row) -> None:
    answer = told(tenants, EMPTY, **asked).replace(json.dumps(asked.get("query_text"))[1:-1], "")
    assert "reason" in answer
    for name in ("label-b", "notes-b", "keybquixotronics", "title of plan-b"):
        assert name not in answer
    if "merger" not in json.dumps(asked):
        assert "merger" not in answer


@pytest.mark.module("like")
@pytest.mark.parametrize(
    "function", [SEARCH, "count_matching_knowledge_chunks", "search_my_knowledge_chunks"]
)
def test_the_similarity_to_a_row_left_out_is_not_told(tenants: Connection, function: str) -> None:
    asked: Row = {"like_ids": [ids(tenants)["plan-b"]], "required_filters": TENANT_A}
    if function == MINE:
        sign_in(tenants)
    assert refusal(tenants, function, asked).startswith("like_ids: no visible chunk or document")


@pytest.mark.module("insight")
@pytest.mark.parametrize("way", ["chunk_id", "id", "external_key", "source_url"])
def test_a_chunk_that_is_left_out_is_not_stored_for_why_not(tenants: Connection, way: str) -> None:
    of_chunk = "select id::text from public.knowledge_chunks where collection = 'notes-b'"
    ((chunk,),) = tenants.execute(of_chunk).fetchall()
    key = {"id": ids(tenants)["plan-b"], "external_key": "plan-b", "source_url": "https://plan-b"}
    named = {"chunk_id": chunk} if way == "chunk_id" else {"document_key": key[way]}
    answer = told(tenants, "explain_missing_knowledge_chunk", **named)
    assert '"not_stored"' in answer
    assert "plan-b" not in answer.replace(str(named.get("document_key")), "")
    seen = told(tenants, "explain_missing_knowledge_chunk", **named, required_filters=None)
    assert '"not_stored"' not in seen


@pytest.mark.parametrize("caller", ["authenticated", "service_role"])
@pytest.mark.parametrize(
    "required",
    [[], {}, [{"field": "visibility", "op": "exists", "value": True}], {"tenant": "b"}],
    ids=json.dumps,
)
def test_what_is_required_only_narrows(knowledge: Connection, caller: str, required: Any) -> None:
    put(knowledge, "own", "plan", owner_id=str(USERS[0]), metadata={"tenant": "b"})
    put(knowledge, "other", "plan", owner_id=str(USERS[1]), metadata={"tenant": "b"})
    arguments: Row = {"query_text": "plan", "required_filters": required}
    if caller == "authenticated":
        sign_in(knowledge)
        rows = call(knowledge, MINE, arguments)
    else:
        rows = call(knowledge, SEARCH, {**arguments, "viewer_id": USERS[0]})
    assert [row["external_key"] for row in rows] == ["own"]


def test_what_is_required_bounds_neighbours_counts_and_titles(knowledge: Connection) -> None:
    chunks = [
        {"content": f"plan {tenant}", "metadata": {"tenant": tenant}} for tenant in ("a", "b", "a")
    ]
    documents.upsert(knowledge, "mixed", *chunks, title="shown", metadata={"team": "x"})
    documents.upsert(knowledge, "of b", chunks[0], title="hidden", metadata={"tenant": "b"})
    asked = {"query_text": "plan", "required_filters": TENANT_A, "neighbor_window": 2}
    rows = call(knowledge, SEARCH, asked)
    assert {row["content"] for row in rows} == {"plan a"}
    found = {(row["title"], row["document_chunks"], "plan b" in row["context"]) for row in rows}
    # A chunk can have another tenant than its document, which keeps its title.
    assert found == {("shown", 2, False), (None, 1, False)}


@pytest.mark.module("own_documents")
def test_what_is_required_bounds_documents(tenants: Connection) -> None:
    listed = call(tenants, "list_visible_knowledge_documents", {"required_filters": TENANT_A})
    assert [row["external_key"] for row in listed] == ["plan-a"]
    for key, is_read in (("plan-a", True), ("plan-b", False)):
        arguments = {"document": ids(tenants)[key], "required_filters": TENANT_A}
        (row,) = call(tenants, "read_knowledge_document", arguments)
        assert (row["read_knowledge_document"] is not None) is is_read


@pytest.mark.parametrize(
    ("column", "value"),
    [("visibility", "public"), ("sensitivity", "low"), ("owner_id", str(USERS[0]))],
)
@pytest.mark.parametrize("op", ["eq", "in", "ne"])
def test_a_condition_on_access_applies_to_title_and_address_without_a_viewer(
    knowledge: Connection, column: str, value: str, op: str
) -> None:
    put(knowledge, "secret", "plan", sensitivity="high", owner_id=str(USERS[1]))
    knowledge.execute(
        "update public.knowledge_chunks set visibility = 'public', sensitivity = 'low',"
        " owner_id = %s",
        [USERS[0]],
    )
    hidden = {"visibility": "private", "sensitivity": "high", "owner_id": str(USERS[1])}[column]
    wanted: Any = {"eq": value, "in": [value], "ne": hidden}[op]
    condition = {"field": column, "op": op, "value": wanted}
    (shown,) = call(knowledge, SEARCH, {"query_text": "plan"})
    assert shown["title"] == "title of secret"
    for argument in ("filters", "required_filters"):
        (row,) = call(knowledge, SEARCH, {"query_text": "plan", argument: [condition]})
        assert (row["title"], row["source_url"], row["external_key"]) == (None, None, None)


@pytest.fixture
def titled(knowledge: Connection) -> Connection:
    knowledge.execute("select public.set_knowledge_fields(title_weight => 2)")
    return knowledge


def lexemes(connection: Connection) -> str:
    rows = connection.execute("select content_tsv::text from public.knowledge_chunks").fetchall()
    return " ".join(row[0] for row in rows)


PERMISSIONS = [
    ("chunks set visibility = 'public'", False),
    ("chunks set owner_id = gen_random_uuid()", False),
    ("chunks set allowed_groups = '{staff}'", False),
    ("chunks set sensitivity = 'low'", False),
    ('chunks set metadata = \'{"tenant": "a"}\'', False),
    # The chunk follows its document, with its title.
    ("documents set visibility = 'public'", True),
]


@pytest.mark.module("field_weights")
@pytest.mark.parametrize(("change", "is_searched"), PERMISSIONS)
def test_the_title_of_a_document_is_searched_only_with_chunks_of_its_permissions(
    titled: Connection, change: str, is_searched: bool
) -> None:
    put(titled, "one", "plan", title="quixotronics merger", metadata={"tenant": "b"})
    assert "quixotron" in lexemes(titled)
    for one in (change, "documents set author = 'ana', title = 'quixotronic'"):
        titled.execute(f"update public.knowledge_{one}".encode())
        assert ("quixotron" in lexemes(titled)) is is_searched


@pytest.mark.module("field_weights")
def test_a_title_is_searched_when_its_document_is_as_visible_as_chunks(titled: Connection) -> None:
    put(titled, "one", "plan", title="quixotronics merger")
    titled.execute("update public.knowledge_chunks set visibility = 'public'")
    assert "quixotron" not in lexemes(titled)
    titled.execute("update public.knowledge_documents set visibility = 'public'")
    assert "quixotron" in lexemes(titled)
    # And no more when a key of its metadata says something else than that of the chunk.
    titled.execute('update public.knowledge_chunks set metadata = \'{"tenant": "a"}\'')
    titled.execute('update public.knowledge_documents set metadata = \'{"tenant": "b"}\'')
    assert "quixotron" not in lexemes(titled)


@pytest.mark.module("field_weights")
@pytest.mark.module("words")
def test_a_visitor_finds_no_letter_of_a_hidden_title(titled: Connection) -> None:
    put(titled, "one", "plan", title="quixotronics merger")
    titled.execute("update public.knowledge_chunks set visibility = 'public'")
    for prefix in ("q", "quix", "quixotronics", "merg", "merger"):
        asked = {"query_text": prefix, "prefix_last": True}
        for limits in ({"public_only": True}, {"viewer_id": USERS[0]}):
            assert call(titled, SEARCH, asked | limits) == []


@pytest.mark.module("insight")
@pytest.mark.parametrize("field", ["source_id", "embedding_model"])
@pytest.mark.parametrize("op", ["eq", "in"])
@pytest.mark.parametrize("value", ["smb://customer-ltd/contract", "custom", "m1"])
def test_names_of_sources_and_models_are_told_to_service_role_alone(
    knowledge: Connection, field: str, op: str, value: str
) -> None:
    knowledge.execute(
        "insert into public.knowledge_sources (name) values ('smb://customer-ltd/contracts')"
    )
    ((source,),) = knowledge.execute("select id::text from public.knowledge_sources").fetchall()
    put(knowledge, "one", "plan", visibility="public", source_id=source)
    condition = {"field": field, "op": op, "value": [value] if op == "in" else value}
    asked = {"query_text": "plan", "filters": [condition]}
    name = "smb" if field == "source_id" else '\\"m\\"'
    assert name in told(knowledge, EMPTY, **asked, required_filters=None)
    for limits in ({"public_only": True}, {"viewer_id": USERS[0]}, {"viewer_groups": ["staff"]}):
        answer = told(knowledge, EMPTY, **asked, **limits, required_filters=None)
        assert '"filter"' in answer
        assert '"known"' not in answer
        assert '"nearest"' not in answer
    for function in ("explain_public_empty_knowledge_search", "explain_my_empty_knowledge_search"):
        claims = json.dumps({"sub": str(USERS[0])})
        knowledge.execute("select set_config('request.jwt.claims', %s, true)", [claims])
        answer = json.dumps(call(knowledge, function, asked), default=str)
        assert '"known"' not in answer
        assert '"nearest"' not in answer


def not_in(conditions: int, values: int, length: int) -> list[Row]:
    texts = [str(number).rjust(length, "x") for number in range(values)]
    one = {"field": "metadata.team", "op": "not_in", "value": texts}
    return [one] * conditions


@pytest.mark.parametrize("argument", ["filters", "required_filters"])
@pytest.mark.parametrize(
    "filters",
    [
        not_in(99, 20, 3000),
        not_in(1, 1000, 120),
        not_in(1, 1, 100_000),
        {"team": "x" * 100_000},
        [{"field": "metadata", "op": "contains", "value": {"x" * 100_000: 1}}],
        not_in(101, 1, 1),
        not_in(3, 700, 1),
    ],
    ids=lambda value: f"{len(json.dumps(value))} characters",
)
def test_a_filter_has_a_size(knowledge: Connection, argument: str, filters: Any) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"^{argument} must (be|have) "):
        call(knowledge, SEARCH, {"query_text": "plan", argument: filters})


@pytest.mark.parametrize(
    "filters",
    [
        not_in(33, 1, 1),
        not_in(1, 1000, 60),
        {f"key{number}": 1 for number in range(33)},
        {"team": "x" * 33_000},
        not_in(30, 30, 60),
    ],
    ids=lambda value: f"{len(json.dumps(value))} characters",
)
@pytest.mark.parametrize("function", [MINE, "facet_my_knowledge_chunks"])
def test_a_users_filter_has_a_lower_size(
    knowledge: Connection, modules: tuple[str, ...], filters: Any, function: str
) -> None:
    if function != MINE and "facets" not in modules:
        pytest.skip("the database lacks the module facets")
    sign_in(knowledge)
    for argument in ("filters", "required_filters"):
        told_why = refusal(knowledge, function, {"query_text": "plan", argument: filters})
        assert told_why.startswith("filters must be at most")
    call(knowledge, function, {"query_text": "plan", "filters": not_in(32, 10, 20)})


@pytest.mark.module("facets")
def test_the_facets_of_a_user_rate_so_many_chunks(knowledge: Connection) -> None:
    knowledge.execute(
        "insert into public.knowledge_chunks (content, visibility)"
        " select 'plan', 'public' from generate_series(1, 2000)"
    )
    sign_in(knowledge)
    asked: Row = {"query_text": "plan", "min_confidence": 0.1, "facets": ["collection"]}
    formulations = [{"query_text": "plan"}] * 10
    call(knowledge, "facet_my_knowledge_chunks", asked)
    asked |= {"formulations": formulations}
    assert refusal(knowledge, "facet_my_knowledge_chunks", asked) == (
        "min_confidence must be compared with at most 20000 matching chunks times questions: narrow"
        " the search with filters, or leave it out, not 22000"
    )
    narrow = [{"field": "collection", "op": "eq", "value": "other"}]
    call(knowledge, "facet_my_knowledge_chunks", asked | {"filters": narrow})

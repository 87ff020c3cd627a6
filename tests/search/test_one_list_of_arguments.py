"""The arguments of a search: one list in SQL and one in Python, which say the same.

So do the query of the service, the tools, the command line, and the table of SQL functions that
psycopg and REST share.
"""

import inspect
import re
from pathlib import Path
from typing import Any, get_type_hints
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb
from sql_trees import RPC, body, function, parameters
from typer.main import get_command

from conftest import Connect, Connection
from homes import in_its_module, present
from second_brain.cli.search import NO_OPTIONS, app
from second_brain.mcp_server.searching import HybridSearch, SearchKnowledgeBase
from second_brain.retrieval.plan import applied_filters, planned, search_options
from second_brain.retrieval.query import Access, OperatorQuery, QueryOptions, SearchQuery
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.arguments import ARGUMENTS, DEFAULTS, QUERY_NAMES, RowOptions
from second_brain.services.functions import functions, statement
from second_brain.services.install import Install
from second_brain.services.postgres import PostgresProvider
from second_brain.workbench import question as workbench
from second_brain.workbench.question import Question
from tools import schema_files

DOCS = Path(__file__).parents[2] / "docs"
WORKBENCH = Path(workbench.__file__).parent
MINE, PUBLIC = "search_my_knowledge_chunks", "search_public_knowledge_chunks"
NOT_FOR = {RPC: {"ranked_lists"}, MINE: {"ranked_lists", "viewer_id", "viewer_groups"}}
ATTRIBUTES = """
select attribute.attname, format_type(attribute.atttypid, attribute.atttypmod)
  from pg_attribute as attribute
 where attribute.attrelid = 'knowledge_internal.search_arguments'::regclass
   and not attribute.attisdropped
 order by attribute.attnum
"""
WORDS_GIVEN = {"query_text": "alpha"}
WITH_SEARCH = {one.name for one in functions().values() if "search" in one.arguments}
USERS_OWN = {name for name in WITH_SEARCH if "_my_" in name}


def arguments_of(name: str) -> list[tuple[str, tuple[str, str | None]]]:
    return list(parameters(function(name), False).items())


def test_the_search_of_users_takes_the_arguments_of_the_search() -> None:
    assert arguments_of(MINE) == [one for one in arguments_of(RPC) if one[0] not in NOT_FOR[MINE]]


def test_the_search_of_visitors_takes_and_passes_a_list_of_its_own() -> None:
    known = dict(arguments_of(MINE))
    own = arguments_of(PUBLIC)
    assert own == [(name, known[name]) for name, _ in own]
    assert "public_only" not in dict(own)
    # The embedding, then each name and its value.
    _, *passed = re.findall(r"\w+", body(function(PUBLIC)).partition("(")[2])
    names = [one for one in passed if one != "jsonb_build_object"]
    assert names == [word for name, _ in own[1:] for word in (name, name)]


def test_the_type_has_the_arguments_of_the_search(knowledge: Connection) -> None:
    knowledge.execute("set local search_path = ''")
    assert knowledge.execute(ATTRIBUTES).fetchall() == [
        (name, kind) for name, (kind, _) in arguments_of(RPC) if name not in NOT_FOR[RPC]
    ]


def test_the_defaults_of_the_type_are_those_of_the_search(knowledge: Connection) -> None:
    ((defaults,),) = knowledge.execute(
        "select to_jsonb(knowledge_internal.given_arguments('{}'))"
    ).fetchall()
    stated = {
        name: knowledge.execute(f"select to_jsonb(({default})::{kind})".encode()).fetchall()
        for name, (kind, default) in arguments_of(RPC)
        if name not in NOT_FOR[RPC]
    }
    assert defaults == {name: value for name, ((value,),) in stated.items()}


def test_pythons_list_has_the_names_types_and_defaults_of_the_search(knowledge: Connection) -> None:
    stated = {
        name: (kind, knowledge.execute(f"select ({default})::{kind}".encode()).fetchall()[0][0])
        for name, (kind, default) in arguments_of(RPC)
        if name not in NOT_FOR[RPC]
    }
    listed = {one.sql_name: (one.sql_type, one.default) for one in ARGUMENTS.values()}
    # hybrid_search has returned five hits since before there was the SQL function.
    assert listed.pop("match_count") == ("integer", 5)
    assert stated.pop("match_count") == ("integer", 10)
    # A time, which differs in each call.
    assert listed.pop("as_of") == ("timestamp with time zone", "now")
    assert stated.pop("as_of")[0] == "timestamp with time zone"
    assert listed == stated


def test_the_defaults_of_the_method_are_those_of_the_list() -> None:
    given = inspect.signature(PostgresProvider.hybrid_search).parameters.values()
    defaults = {one.name: one.default for one in given if one.default is not one.empty}
    assert defaults.items() <= DEFAULTS.items()
    assert len(defaults) == 7


# Names of a tool and the command line for the arguments, and what they have beside them.
OWN_OF_QUERY = {"mode", "tags", "include_memory", "exact_total", "max_tokens"}
OF_SETTINGS = {"pool_size", "on_bad_embedding", "embedding_from_text"}
TOOL_NAMES = {"match_count": "limit", "search_type": "mode", "source_id": "filters"}
OPTION_NAMES = {"question": "query", "filter_type": "category"}
OWN_OF_COMMAND = {
    *("rerank", "reranker_name", "facets", "as_json", "explain", "estimate", "why_not"),
    *("embedder_name", "dsn", "schema", "pool_size"),
}


def test_a_query_has_the_arguments_of_the_list() -> None:
    fields = SearchQuery.model_fields.keys() | Access.model_fields.keys()
    known = {QUERY_NAMES.get(name, name) for name in fields} - OWN_OF_QUERY
    assert known == ARGUMENTS.keys() - OF_SETTINGS - {"query_embedding"}
    assert get_type_hints(QueryOptions).keys() | {"query"} == fields | {"bm25_weight", "k"}


def test_the_service_passes_every_argument_of_the_list() -> None:
    plan = planned(SearchQuery(query="alpha"), Access(), SearchSettings())
    passed = search_options(plan, "hybrid", (), SearchSettings(), None)
    not_passed = {"query_embedding", "query_text", "on_bad_embedding"}
    assert passed.keys() == (ARGUMENTS.keys() | {"exact_total", "timeout"}) - not_passed


@pytest.mark.parametrize("name", sorted(SearchQuery.model_fields.keys() & ARGUMENTS.keys()))
def test_a_field_of_a_query_has_the_default_of_its_argument(name: str) -> None:
    default = SearchQuery.model_fields[name].default
    # None is the setting, and a list is a tuple there.
    assert default in (None, ()) or default == DEFAULTS[name]
    assert SearchQuery.model_fields[name].description


OF_ROWS = get_type_hints(RowOptions).keys() - {"timeout", "filter_type", "required_filters"}
VALUES: dict[str, Any] = {
    **{"category": "decision", "filters": {"team": "a"}, "public_only": True},
    **{"viewer_groups": ["a"], "collections": ["a"]},
    **dict.fromkeys(("date_from", "date_to", "as_of"), "2026-01-31"),
    "viewer_id": UUID(int=1),
}


@pytest.mark.parametrize("name", sorted(OF_ROWS | {"category"}))
def test_an_answer_names_what_was_asked_of_rows(name: str) -> None:
    given = {name: VALUES.get(name, 0)}
    of_query = given if name in SearchQuery.model_fields else {}
    query = SearchQuery.model_validate({"query": "alpha", **of_query})
    access = Access.model_validate({} if of_query else given)
    assert name in applied_filters(planned(query, access, SearchSettings()), None)


# An assistant asks in one language, for whole documents, and with the settings of its server.
NOT_FOR_ASSISTANTS = {
    *("mode", "offset", "category", "tags", "min_similarity", "one_per_document", "search_mode"),
    *("recency_half_life", "snippet", "snippets", "formulations", "exact_total"),
    *("rrf_k", "fusion", "vector_weight", "text_weight"),
}


def test_a_tool_takes_each_field_of_a_query_that_is_for_assistants() -> None:
    assert HybridSearch.model_fields.keys() == SearchQuery.model_fields.keys() - NOT_FOR_ASSISTANTS
    names = {TOOL_NAMES.get(name, name) for name in SearchKnowledgeBase.model_fields}
    assert names <= SearchQuery.model_fields.keys()


def test_the_command_has_an_option_for_each_field_of_a_query() -> None:
    options = {one.name for one in get_command(app).commands["search"].params}  # type: ignore[attr-defined]
    fields = {OPTION_NAMES.get(name, name) for name in options - OWN_OF_COMMAND}
    access = Access.model_fields.keys() - {"required_filters"}
    assert fields == (OperatorQuery.model_fields.keys() | access) - (
        NO_OPTIONS - set(OPTION_NAMES.values()) | {"reranked_leg"}
    )


# Filters take what the facets, tags and collections say; the others are not for a form.
NOT_IN_THE_FORM = {
    *("types", "origins", "languages", "category", "tags", "collections", "required_filters"),
    *("boosts", "formulations", "max_per_document", "rrf_k", "reranked_leg", "exact_total"),
    *("offset", "expand_neighbors", "snippet", "snippets", "max_tokens", "as_of"),
}


def test_the_form_of_the_workbench_has_a_field_for_each_argument() -> None:
    form, _, _ = (WORKBENCH / "templates" / "search.html").read_text("utf-8").partition("</form>")
    names = re.findall(r'(?:name="|\b(?:choices|text|amount)\(")(\w+)"', form)
    fields = {one.alias or name for name, one in Question.model_fields.items()}
    assert {*names} == fields - NOT_IN_THE_FORM


def test_the_page_of_the_tools_names_each_argument() -> None:
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\|", (DOCS / "mcp.md").read_text("utf-8"), re.MULTILINE)
    arguments = dict(rows)["hybrid_search"]
    assert {*re.findall(r"`([a-z_]+)`", arguments)} == HybridSearch.model_fields.keys()


def test_the_page_of_the_service_names_each_argument() -> None:
    _, _, text = (DOCS / "service.md").read_text("utf-8").partition("| argument of `search` |")
    named = {*re.findall(r"`(\w+)`", text.partition("A result has the")[0])}
    assert named >= SearchQuery.model_fields.keys() | Access.model_fields.keys()


# Arguments that leave out no row, and that put none behind others.
HIDES_NOTHING = {"embedding_from_text", "on_bad_embedding", "prefix_last", "rrf_k", "snippets"}


def test_module_insight_names_each_argument_that_can_hide_a_row() -> None:
    named = {
        word
        for one in schema_files.read()
        if one.path.parent.name == "insight"
        for word in re.findall(r"\w+", re.sub("--.*", "", one.text))
    }
    named |= {*re.findall(r"\w+", body(function("row_arguments", "knowledge_internal")))}
    assert {one.sql_name for one in ARGUMENTS.values()} - named == HIDES_NOTHING


@pytest.mark.parametrize("name", functions())
def test_a_function_has_the_arguments_of_the_sql(name: str) -> None:
    known = {one: kind for one, (kind, _) in arguments_of(name)}
    assert functions()[name].arguments == {
        one: "timestamp with time zone" if kind == "timestamptz" else kind
        for one, kind in known.items()
    }


SHOWN = """
select case when proretset then 'rows' when typtype = 'c' then 'row' else 'value' end,
       provolatile = 'v'
  from pg_proc
  join pg_type on pg_type.oid = prorettype
 where pronamespace = 'public'::regnamespace and proname = %s
"""


@pytest.mark.parametrize("name", [in_its_module(name) for name in sorted(functions())])
def test_a_function_returns_what_the_sql_says(callers: dict[bool, Connection], name: str) -> None:
    ((returns, may_write),) = callers[False].execute(SHOWN, [name]).fetchall()
    assert functions()[name].returns == returns
    assert may_write or not functions()[name].writes


def test_a_statement_names_its_arguments_and_their_types() -> None:
    given = ("query_embedding", "match_count")
    assert statement(Install("other"), "match_knowledge_chunks", given) == (
        b'select * from "other".match_knowledge_chunks(query_embedding => %(query_embedding)s, '
        b"match_count => %(match_count)s::integer)"
    )


def ask(connection: Connection, name: str, search: Any) -> None:
    """Call a function with a search and, for its other arguments, nothing."""
    others = [
        f"{one} => null"
        for one, (_, default) in arguments_of(name)
        if one != "search" and default is None
    ]
    call = ", ".join(["search => %s", *others])
    connection.execute(f"select * from public.{name}({call})".encode(), [Jsonb(search)])


@pytest.fixture
def dsn(shared_dsn: str) -> str:
    """Stand in for the fixture of a database per test."""
    return shared_dsn


@pytest.fixture
def callers(connect: Connect, modules: tuple[str, ...]) -> dict[bool, Connection]:
    """Who calls the functions for users, and who all others."""
    user = "00000000-0000-0000-0000-000000000001"
    for name in present(["explain_public_empty_knowledge_search"], modules):
        connect().execute(f"grant execute on function public.{name} to service_role".encode())
    return {True: connect("authenticated", uid=user), False: connect("service_role")}


@pytest.mark.parametrize("name", [in_its_module(name) for name in sorted(WITH_SEARCH)])
def test_an_unknown_argument_and_what_is_no_object_are_refused(
    callers: dict[bool, Connection], name: str
) -> None:
    caller = callers[name in USERS_OWN]
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        ask(caller, name, {**WORDS_GIVEN, "querytext": "alpha"})
    assert refused.value.diag.message_primary == (
        "search.querytext: no argument of the search has this name"
    )
    wrong: tuple[Any, ...] = (None, [], "alpha", 1)
    for search in wrong:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="search must be an object"):
            ask(caller, name, search)

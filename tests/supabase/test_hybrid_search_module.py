"""The module `hybrid_search.ts`, called by supabase-js under Deno over a real database.

With POSTGREST_BIN a real PostgREST answers, else `rest.py` calls the same SQL functions.
"""

import itertools
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import jwt
import psycopg
import pytest
from postgrest.exceptions import APIError
from rest import Rest, answering
from test_frontend import (
    ANA,
    ANON_KEY,
    BEN,
    DENO,
    OFFLINE,
    ROOT,
    deno,
    deno_environment,
    deno_project,
    needs_deno,
    signed,
)

from conftest import Connection, Server, copy_of
from postgrest_server import JWT_SECRET, free_port
from second_brain import errors
from second_brain.errors import InvalidInputError, SecondBrainError
from second_brain.services.arguments import DEFAULTS, SQL_NAMES, bound
from second_brain.services.searches import HYBRID
from second_brain.services.supabase import SupabaseProvider
from support.documents import embedded, upsert

pytestmark = needs_deno

MODULE = ROOT / "supabase" / "functions" / "_shared" / "hybrid_search.ts"
CALLS = ROOT / "tests" / "supabase" / "module_calls.ts"
SERVICE_TOKEN = jwt.encode({"role": "service_role"}, JWT_SECRET, algorithm="HS256")
NOTES = 5
"""The documents that Ana owns, each with one chunk."""


@dataclass
class Module:
    process: subprocess.Popen[str]
    rest: Rest
    owner: Connection

    def send(self, **call: Any) -> Any:
        """Send one line to module_calls.ts, and return its answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def search(
        self, question: object, token: str | None = None, port: int | None = None, **options: Any
    ) -> Any:
        """Search as a front end does; without a token as Ana."""
        call = {name: options.pop(name) for name in ("pages", "aborted_after") if name in options}
        url = f"http://127.0.0.1:{port or self.rest.server_port}"
        given = {"question": question, "options": options, "token": token or signed(ANA)}
        return self.send(url=url, key=ANON_KEY, **{"pages": False, **call}, **given)


@pytest.fixture(scope="module")
def running(server: Server) -> Iterator[Module]:
    with ExitStack() as stack:
        dsn = stack.enter_context(contextmanager(copy_of)(server, server.template(3)))
        rest = stack.enter_context(answering(server, dsn, ANON_KEY))
        owner = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        for number in range(NOTES):
            store(owner, f"note {number}", ANA, "private", f"An invoice, number {number}.")
        store(owner, "salary", BEN, "private", "The invoice of another user.")
        store(owner, "price list", BEN, "public", "A camera costs 100 euros.")
        process = subprocess.Popen(
            [str(DENO), "run", *OFFLINE, "--allow-net=127.0.0.1", "--allow-env", str(CALLS)],
            cwd=ROOT,
            env=deno_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.enter_context(process)
        stack.callback(process.terminate)
        yield Module(process, rest, owner)


@pytest.fixture
def module(running: Module) -> Iterator[Module]:
    """The running module, with a server that does not fail."""
    yield running
    running.rest.failure = None


def store(owner: Connection, key: str, user: UUID, visibility: str, content: str) -> None:
    chunk = embedded(content) | {"metadata": {"tags": [key.split()[0]]}}
    upsert(owner, key, chunk, title=key, owner_id=user, visibility=visibility)


def titles(page: Any) -> list[str]:
    assert "hits" in page, page
    return [hit["title"] for hit in page["hits"]]


def test_it_uses_nothing_of_deno(tmp_path: Path) -> None:
    browser = tmp_path / "deno.json"
    libraries = ["es2022", "dom", "dom.iterable"]
    browser.write_text(json.dumps({"compilerOptions": {"lib": libraries}}), "utf-8")
    deno("check", *OFFLINE, f"--config={browser}", str(MODULE))


def test_a_user_finds_by_both_legs_what_the_user_may_see(module: Module) -> None:
    question = {"text": "invoice", "embedding": [1, 0, 0]}
    filters = [{"field": "metadata.tags", "op": "contains", "value": ["note"]}]
    page = module.search(question, match_count=3, filters=filters, snippet=True)
    assert [hit["match_type"] for hit in page["hits"]] == ["both"] * 3
    assert "<mark>invoice</mark>" in page["hits"][0]["snippet"]
    assert (page["total_count"], page["next_offset"]) == (NOTES, 3)
    assert (page["pool_ended"], page["truncated"], page["notes"]) == (False, False, None)
    assert titles(module.search("invoice", signed(BEN))) == ["salary"]


def test_text_hits_give_a_question_its_embedding_where_it_is_wanted(module: Module) -> None:
    page = module.search("invoice", embedding_from_text=True)
    assert {hit["match_type"] for hit in page["hits"]} == {"both", "vector"}
    assert page["notes"] == {"embedding": "from the best text hits"}
    wrong = {"text": "invoice", "embedding": [1, 0]}
    replaced = module.search(wrong, on_bad_embedding="from_text")
    assert titles(replaced) == titles(page)
    assert replaced["notes"]["embedding"].startswith("ignored: query_embedding has 2 dimensions")


def test_the_service_role_names_the_viewer_and_visitors_need_a_grant(module: Module) -> None:
    in_service, for_visitors = "hybrid_search_knowledge_chunks", "search_public_knowledge_chunks"
    found = module.search("invoice", SERVICE_TOKEN, viewer_id=str(BEN), function=in_service)
    assert titles(found) == ["salary"]
    visitor = signed(ANA, role="anon")
    refused = module.search("camera", visitor, function=for_visitors)
    assert refused["kind"] == "permission_denied"
    function = f"execute on function public.{for_visitors}"
    module.owner.execute(f"grant {function} to anon".encode())
    try:
        found = module.search("camera", visitor, function=for_visitors)
        assert titles(found) == ["price list"]
    finally:
        module.owner.execute(f"revoke {function} from anon".encode())


def test_pages_neither_repeat_nor_lose_a_hit(module: Module) -> None:
    pages = module.search("invoice", pages=True, match_count=2)
    assert [page["next_offset"] for page in pages] == [2, 4, None]
    found = [title for page in pages for title in titles(page)]
    assert sorted(found) == [f"note {number}" for number in range(NOTES)]
    whole = module.search("invoice", match_count=10)
    assert found == titles(whole)
    assert module.search("invoice", match_offset=NOTES)["total_count"] is None
    assert module.search("nothing of the kind")["total_count"] == 0
    ended = module.search("invoice", match_count=2, pool_size=2)
    assert (ended["pool_ended"], ended["next_offset"]) == (True, None)


def test_a_page_that_max_rows_cuts_says_so_and_the_next_one_continues(module: Module) -> None:
    whole = module.search("invoice")["hits"]
    module.rest.failure = (200, whole[:2])
    cut = module.search("invoice")
    assert (cut["truncated"], cut["next_offset"]) == (True, 2)


@pytest.mark.parametrize(
    ("call", "kind", "code", "message"),
    [
        ({"match_count": 0}, "invalid_input", "22023", "match_count"),
        ({"question": {"embedding": [1, None, 0]}}, "invalid_input", None, "embedding[1]"),
        ({"timeout": 0}, "invalid_input", None, "timeout is 0"),
        ({"claims": {"role": "anon"}}, "permission_denied", "42501", "denied"),
        ({"claims": {"exp": 1}}, "authentication_failed", "PGRST303", "expired"),
        ({"function": "search_nothing"}, "migration_missing", "PGRST202", "search_nothing"),
    ],
)
def test_a_refusal_has_kind_code_message_and_remedy(
    module: Module, call: dict[str, Any], kind: str, code: str | None, message: str
) -> None:
    given = {"question": "invoice", "token": signed(ANA, **call.get("claims", {})), **call}
    given.pop("claims", None)
    refused = module.search(**given)
    assert (refused["kind"], refused["code"]) == (kind, code)
    assert message in refused["message"]
    assert refused["remedy"]


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        ((502, "<html>bad gateway</html>"), "unavailable", "bad gateway"),
        ((404, "no such page"), "unexpected_answer", "no such page"),
        ((200, "<html>sign in</html>"), "unexpected_answer", "could not be read"),
        ((200, [{"other": 1}]), "unexpected_answer", "hits"),
        ((500, {"code": "57014", "message": "x" * 400}), "timeout", "x" * 299 + "…"),
    ],
)
def test_what_is_no_answer_of_the_function_is_an_error(
    module: Module, failure: tuple[int, Any], kind: str, message: str
) -> None:
    module.rest.failure = failure
    refused = module.search("invoice")
    assert (refused["kind"], message in refused["message"]) == (kind, True)


def test_no_answer_in_time_no_server_and_an_aborted_search(module: Module) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        late = module.search("invoice", port=port, timeout=50)
        aborted = module.search("invoice", port=port, aborted_after=50)
    assert (late["kind"], late["status"]) == ("client_timeout", 0)
    assert aborted == {"thrown": "TimeoutError"}
    assert module.search("invoice", port=free_port())["kind"] == "unavailable"


CASES = json.loads((ROOT / "tests" / "cases" / "arguments.json").read_text("utf-8"))
"""What a value of an argument becomes, or that it is refused; clients/js/test reads them, too."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_python_reads_an_argument_as_the_table_says(case: dict[str, Any]) -> None:
    sql_name = case["name"]
    name = {sql: python for python, sql in SQL_NAMES.items()}.get(sql_name, sql_name)
    value = datetime.fromisoformat(case["time"]) if "time" in case else case["value"]
    if "refused" in case:
        with pytest.raises(InvalidInputError, match=f"^({name}|{sql_name})"):
            bound({name: value}, HYBRID)
    else:
        arguments = bound({name: value}, HYBRID)
        # Null as as_of is all times.
        is_default = case["becomes"] is None and name != "as_of"
        expected = DEFAULTS[name] if is_default else case["becomes"]
        assert arguments[sql_name] == expected
        assert isinstance(arguments[sql_name], bool) == isinstance(expected, bool)


def test_the_edge_function_reads_an_argument_as_the_table_says(module: Module) -> None:
    own = {"match_count": "limit", "match_offset": "offset", "match_threshold": "threshold"}
    cases = [one for one in CASES if "viewer" not in one["name"] and "value" in one]
    names = [own.get(one["name"], one["name"]) for one in cases]
    bodies = [{"query": "a", name: one["value"]} for name, one in zip(names, cases, strict=True)]
    nothing = {"match_count": 10, "match_offset": 0, "match_threshold": 0}
    for name, case, read in zip(names, cases, module.send(bodies=bodies), strict=True):
        if "refused" in case:
            assert read.get("refused", "").startswith(name), (case, read)
        else:
            expected = case["becomes"]
            expected = nothing.get(case["name"]) if expected is None else expected
            assert read.get(case["name"]) == expected, (case, read)


BODIES: tuple[Any, ...] = (
    {"message": "m"},
    "<html>m</html>",
    "",
    [],
    {"error": "m"},
    {"code": 5},
    None,
)
GATEWAYS = {"code": "WORKER_LIMIT", "message": "m"}


def documented_statuses() -> dict[int, str]:
    """Return the kind of each HTTP status that docs/errors.md has."""
    sections = (ROOT / "docs" / "errors.md").read_text("utf-8").split("\n## ")[1:]
    return {
        int(status): one.split("`")[1]
        for one in sections
        for row in re.findall(r"^\| (`.*?) \|", one, re.MULTILINE)
        for status in re.findall(r"`(\d{3})`", row)
    }


def test_the_status_of_a_gateway_decides_the_kind_in_both_languages(module: Module) -> None:
    given = {"supabase_url": f"http://127.0.0.1:{module.rest.server_port}"}
    provider = SupabaseProvider({**given, "supabase_key": ANON_KEY}, retries=0)
    cases: list[tuple[int, Any, str]] = [
        (status, body, kind)
        for status, kind in documented_statuses().items()
        for body in (*BODIES, GATEWAYS)
        # What supabase-js itself takes for an empty answer.
        if (status, body) != (404, [])
    ]
    unread: list[Any] = ["<html>m</html>", {}, None, ""]
    cases += [(200, body, "unexpected_answer") for body in unread]
    cases += [(204, "", "unexpected_answer"), (500, {"message": "m"}, "error")]
    cases += [(502, {"code": "57014", "message": "m"}, "timeout")]
    cases += [(540, {"code": "42501", "message": "m"}, "permission_denied")]
    with provider:
        for status, body, kind in cases:
            module.rest.failure = (status, body)
            in_python = provider.fulltext_search("invoice")[1]
            in_javascript = module.search("invoice")
            both = in_python.get("error_kind"), in_javascript.get("kind")
            assert both == (kind, kind), (status, body, in_python, in_javascript)
            assert in_javascript["status"] in (0, status, 200, 204)
            if kind != "unexpected_answer":
                assert in_python["remedy"] == in_javascript["remedy"], status


def test_codes_have_the_classes_and_remedies_of_python(module: Module) -> None:
    codes = [*errors._CLASSES, "08006", "53300", "54023", "XX000", "P0001"]
    messages = [
        "refused",
        "different vector dimensions 3 and 4",
        'role "x" does not exist',
        "function public.facet_knowledge_chunks(jsonb) does not exist",
    ]
    hints = (None, "To add it: do this.", "Perhaps so.")
    # PostgREST says a status where it has no code, without a hint.
    given: list[dict[str, Any]] = [
        {"code": code, "message": message, "hint": hint}
        for code, message, hint in itertools.product(codes, messages, hints)
        if hint is None or len(code) > 3
    ]
    failures = [
        [{"message": one["message"]}, int(one["code"])] if len(one["code"]) == 3 else [one, 400]
        for one in given
    ]
    for one, answer in zip(given, module.send(failures=failures), strict=True):
        known = errors.translate(APIError(one))
        classes = [kind for kind in type(known).__mro__ if issubclass(kind, SecondBrainError)]
        assert answer == {
            **{"kind": known.kind, "message": str(known), "remedy": known.remedy},
            "classes": [kind.__name__ for kind in classes],
        }, one


def test_the_example_of_the_page_prints_what_stands_below_it(
    server: Server, dsn: str, database: Connection, tmp_path: Path
) -> None:
    """The only change: its client has the address and the token of this test."""
    page = ROOT / "docs" / "javascript.md"
    text = page.read_text("utf-8")
    example = r"^```ts\n([^`]*createSearch[^`]*console\.log[^`]*)^```\n\n```text\n(.*?)^```$"
    (found,) = re.finditer(example, text, re.MULTILINE | re.DOTALL)
    database.execute((ROOT / "docs" / "examples.sql").read_bytes())
    config = deno_project(tmp_path)
    with answering(server, dsn, ANON_KEY) as rest:
        client = f"""createClient(
      "http://127.0.0.1:{rest.server_port}", "{ANON_KEY}",
      {{ accessToken: () => Promise.resolve("{signed(ANA)}") }},
    )"""
        code, changes = re.subn(r"createClient\(.*?\)", lambda _: client, found[1])
        assert changes == 1
        (tmp_path / "example.ts").write_text(code, "utf-8")
        printed = deno(
            *("run", *OFFLINE, config, "--allow-net=127.0.0.1", "--allow-env"),
            str(tmp_path / "example.ts"),
        )
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(text[: found.start(2)] + printed + text[found.end(2) :], "utf-8")
    else:
        assert found[2] == printed

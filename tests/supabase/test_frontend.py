"""What front ends get: the TypeScript types, and the Edge Function `search`, run by Deno.

The function runs as it is deployed, with supabase-js, over a real database. Two things stand in for
Supabase: `edge_runtime.ts` for the built-in model, and a server on this machine for the gateway and
PostgREST. `make cli` installs what is needed.
"""

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from uuid import UUID

import httpx
import jwt
import psycopg
import pytest
from rest import Rest, answering
from test_supabase_cli import PROGRAM, url

from conftest import Connect, Connection, Server, copy_of
from corpora import store_document
from postgrest_server import JWT_SECRET
from support.processes import finished, succeeded
from tools import contract

ROOT = Path(__file__).parents[2]
FUNCTION = ROOT / "supabase" / "functions" / "search" / "index.ts"
TYPES = ROOT / "supabase" / "functions" / "_shared" / "database.types.ts"
PACKAGE = ROOT / "clients" / "js"
WRITTEN_BY = (
    "// Written by `supabase gen types`: UPDATE_GOLDEN=1 pytest tests/supabase/test_frontend.py"
)
INSTALLED = ROOT / "node_modules" / ".bin" / "deno"
DENO = str(INSTALLED) if INSTALLED.exists() else shutil.which("deno")
OFFLINE = ("--no-lock", "--cached-only", "--node-modules-dir=manual")

NO_DENO = "Deno is absent: make cli"
needs_deno = pytest.mark.skipif(DENO is None, reason=NO_DENO)
needs_cli = pytest.mark.skipif(PROGRAM is None, reason="the Supabase CLI is absent: make cli")

ANON_KEY = "the anon key"
ANA, BEN = UUID(int=1), UUID(int=2)


@cache
def deno_environment() -> dict[str, str]:
    """Return variables with a cache of this run's own: nothing is left in the user's home."""
    place = mkdtemp()
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return {**os.environ, "DENO_DIR": place, "NO_COLOR": "1"}


def deno(*arguments: str, given: str | None = None) -> str:
    if DENO is None:
        pytest.skip(NO_DENO)
    return succeeded(finished(DENO, *arguments, cwd=ROOT, env=deno_environment(), given=given))


@needs_cli
def test_the_types_are_those_of_the_migrations(dsn: str, tmp_path: Path) -> None:
    arguments = ("gen", "types", "--lang=typescript", "--schema=public", f"--workdir={ROOT}")
    of_cli = {"HOME": str(tmp_path), "PGSSLMODE": "disable", "SUPABASE_TELEMETRY_DISABLED": "1"}
    remote = f"--remote={url(dsn)}"
    done = finished(PROGRAM, *arguments, remote, "--yes", env={**os.environ, **of_cli})
    check_generated(TYPES, f"{WRITTEN_BY}\n{succeeded(done)}")


def check_generated(file: Path, given: str) -> None:
    """Compare a file with a text in Deno's format."""
    text = deno("fmt", "--no-config", "--ext=ts", "--line-width=100", "-", given=given)
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")


@pytest.mark.parametrize("name", ["contract.ts", "tools.ts"])
def test_what_is_generated_is_as_in_python(name: str) -> None:
    given = contract.tools() if name == "tools.ts" else contract.text(TYPES.read_text("utf-8"))
    check_generated(TYPES.with_name(name), given)


def deno_project(place: Path) -> str:
    """Make a folder a project with supabase-js and the package; return the option for Deno.

    The package is its source: nothing needs to be built.
    """
    shutil.copy(TYPES, place)
    (place / "node_modules").symlink_to(ROOT / "node_modules")
    given = json.loads((FUNCTION.parent / "deno.json").read_text("utf-8"))["imports"]
    imports = {**given, "@second-brain-sql/client": f"file://{PACKAGE}/src/index.ts"}
    (place / "deno.json").write_text(json.dumps({"imports": imports}), "utf-8")
    return f"--config={place / 'deno.json'}"


def test_the_functions_are_typed_formatted_and_linted() -> None:
    functions = FUNCTION.parents[1]
    names = ("search/index.ts", "mcp/index.ts", "embed/index.ts", "embed/logic.ts")
    shared = ("_shared/user_search.ts", "_shared/hybrid_search.ts")
    files = [str(functions / name) for name in (*names, *shared)]
    deno("check", *OFFLINE, *files)
    deno("fmt", "--check", "--line-width=100", *files)
    deno("lint", *files)


def test_the_code_of_the_pages_is_typed(tmp_path: Path) -> None:
    examples = [
        code
        for page in sorted((ROOT / "docs").glob("*.md"))
        for code in re.findall(r"^```ts\n(.*?)^```$", page.read_text("utf-8"), re.M | re.DOTALL)
    ]
    assert examples
    files = [tmp_path / f"example_{number}.ts" for number in range(len(examples))]
    for file, example in zip(files, examples, strict=True):
        file.write_text(example, "utf-8")
    deno("check", *OFFLINE, deno_project(tmp_path), *map(str, files))


@pytest.mark.parametrize("dimensions", [256])
def test_what_the_page_ingests_is_found_by_a_signed_in_user(
    dsn: str, connect: Connect, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "javascript.md").read_text("utf-8")
    (command,) = re.findall(r"^second-brain (ingest .*)$", page, re.MULTILINE)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "zebra.md").write_text("A zebra has stripes.", "utf-8")
    # The page's model is not in this environment; the other options are the page's.
    arguments = re.sub(r"--embedder \S+", "--embedder wordllama", command).split()
    program = (sys.executable, "-c", "from second_brain.cli import main; main()")
    of_page = {**os.environ, "SECOND_BRAIN_DSN": dsn}
    succeeded(finished(*program, *arguments, cwd=tmp_path, env=of_page))
    found = connect("authenticated", uid=ANA).execute(
        "select content from public.search_my_knowledge_chunks(query_text => 'zebra')"
    )
    assert found.fetchall() == [("A zebra has stripes.",)]


@dataclass(frozen=True)
class Edge:
    url: str
    rest: Rest
    owner: Connection

    def ask(self, body: object, token: str | None = None, **options: Any) -> httpx.Response:
        """Send a request as a front end does; without a token as Ana."""
        headers = {"Authorization": f"Bearer {token or signed(ANA)}"}
        content = body if isinstance(body, str) else json.dumps(body)
        return httpx.post(self.url, content=content, headers=headers, timeout=60, **options)


def signed(user: UUID, **claims: Any) -> str:
    lasting = {"role": "authenticated", "sub": str(user), "exp": int(time.time()) + 600}
    return jwt.encode({**lasting, **claims}, JWT_SECRET, algorithm="HS256")


def store(
    owner: Connection, key: str, user: UUID, content: str, axis: int, **fields: object
) -> None:
    texts = {content: [float(at == axis) for at in range(384)]}
    store_document(owner, key, texts, "gte-small", title=key, owner_id=user, **fields)


@contextmanager
def deployed(
    function: Path, rest: Rest, *preloads: Path, log: list[str] | None = None, **environment: str
) -> Iterator[str]:
    """Run a function under Deno beside what stands for its project, and yield its address."""
    if DENO is None:
        pytest.skip(NO_DENO)
    preloads = (ROOT / "tests" / "supabase" / "edge_runtime.ts", *preloads)
    process = subprocess.Popen(
        [
            *(str(DENO), "run", *OFFLINE, "--allow-net=127.0.0.1", "--allow-env"),
            *(f"--preload={one}" for one in preloads),
            str(function),
        ],
        cwd=ROOT,
        env={
            **deno_environment(),
            "DENO_SERVE_ADDRESS": "tcp:127.0.0.1:0",
            "SUPABASE_URL": f"http://127.0.0.1:{rest.server_port}",
            "SUPABASE_ANON_KEY": ANON_KEY,
            **environment,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    log = [] if log is None else log
    for line in process.stderr:
        log.append(line)
        if listening := re.search(r"Listening on (\S+)", line):
            break
    else:
        pytest.fail("".join(log))
    drain = threading.Thread(target=log.extend, args=[process.stderr], daemon=True)
    drain.start()
    try:
        yield listening[1]
    finally:
        process.terminate()
        process.wait()
        drain.join()
        process.stderr.close()


@contextmanager
def project(server: Server) -> Iterator[tuple[Rest, Connection]]:
    """Yield what stands for a project, with a chunk about money, one about cats, one of Ben's."""
    with (
        contextmanager(copy_of)(server, server.template(384)) as dsn,
        answering(server, dsn, ANON_KEY) as rest,
        psycopg.connect(dsn, autocommit=True) as owner,
    ):
        store(owner, "billing", ANA, "An invoice is due after 14 days.", 0)
        store(owner, "pets", ANA, "Cats sleep for most of the day.", 1)
        store(owner, "salary", BEN, "The invoice of another user.", 0)
        yield rest, owner


@pytest.fixture(scope="module")
def running(server: Server) -> Iterator[Edge]:
    with project(server) as (rest, owner), deployed(FUNCTION, rest) as url:
        yield Edge(url, rest, owner)


@pytest.fixture
def edge(running: Edge) -> Iterator[Edge]:
    """The running function, with a PostgREST that does not fail."""
    yield running
    running.rest.failure = None


def titles(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [hit["title"] for hit in answer.json()["results"]]


def test_a_question_finds_by_meaning_what_the_user_may_see(edge: Edge) -> None:
    answer = edge.ask({"query": "money that people owe us", "limit": 1})
    assert titles(answer) == ["billing"]
    reported = answer.json()
    (hit,) = reported["results"]
    assert (hit["vector_rank"], hit["text_rank"]) == (1, None)
    assert reported["total_count"] == 2
    assert reported["degraded"] is None
    assert (reported["truncated"], reported["pool_ended"]) == (False, False)


def test_another_user_finds_other_chunks(edge: Edge) -> None:
    answer = edge.ask({"query": "invoice"}, token=signed(BEN))
    assert titles(answer) == ["salary"]
    assert "<mark>invoice</mark>" in answer.json()["results"][0]["snippet"]


def test_pages_and_filters_are_passed_on(edge: Edge) -> None:
    assert titles(edge.ask({"query": "invoice", "limit": 1, "offset": 1})) == ["pets"]
    filters = [{"field": "metadata.a", "op": "eq", "value": 1}]
    assert edge.ask({"query": "invoice", "filters": filters}).json() == {
        **{"results": [], "total_count": 0, "next_offset": None},
        **{"truncated": False, "pool_ended": False, "left_out": 0},
        **dict.fromkeys(["answer_confidence", "notes", "degraded"]),
    }


def test_a_threshold_and_public_rows_are_passed_on(edge: Edge) -> None:
    question = {"query": "money that people owe us"}
    update = "update public.knowledge_documents set visibility = %s where external_key = 'salary'"
    assert titles(edge.ask({**question, "threshold": 0.9})) == ["billing"]
    assert titles(edge.ask({**question, "public_only": True})) == []
    edge.owner.execute(update, ["public"])
    public = edge.ask({**question, "public_only": True})
    edge.owner.execute(update, ["private"])
    assert titles(public) == ["salary"]


def test_the_other_arguments_of_the_search_are_passed_on(edge: Edge) -> None:
    def found(**arguments: object) -> list[str]:
        return titles(edge.ask(arguments))

    cats = [{"filters": [{"field": "embedding_model", "op": "eq", "value": "other"}], "factor": 2}]
    assert found(query="invoice", boosts=cats, diversity=0.5, snippets=2) == ["billing", "pets"]
    assert found(query="invoice", min_confidence=0.5, one_per_document=True) == ["billing"]
    assert found(query="invoice", collections=["nowhere"]) == []
    (hit, _) = edge.ask({"query": "invoice", "snippet": False}).json()["results"]
    assert hit["snippet"] is None
    assert found(like_ids=[hit["document_id"]]) == ["pets"]


@pytest.mark.parametrize(
    ("asked", "degraded"),
    [
        ({"query": "invoice out of memory"}, "gte-small failed"),
        ({"query": "invoice", "embedding": False}, "None"),
    ],
)
def test_without_the_model_the_text_hits_give_the_embedding(
    edge: Edge, asked: dict[str, Any], degraded: str
) -> None:
    reported = edge.ask(asked).json()
    assert [hit["match_type"] for hit in reported["results"]] == ["both", "vector"]
    assert reported["notes"] == {"embedding": "from the best text hits"}
    assert degraded in str(reported["degraded"])


WRONG = {
    **{"public_only": "yes", "threshold": 1.5, "limit": 51, "offset": -1, "filters": "a = 1"},
    **{"viewer_id": str(BEN), "toString": 1, "diversity": 2},
}
NOWHERE = [{"field": "nowhere", "op": "eq", "value": 1}]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("{", "body"),
        ({"query": " "}, "query"),
        ({"query": "x" * 1001}, "query"),
        ({"query": "x", "filters": NOWHERE}, "nowhere"),
        *(({"query": "x", name: wrong}, name) for name, wrong in WRONG.items()),
    ],
)
def test_a_wrong_request_is_refused_by_name(edge: Edge, body: object, names: str) -> None:
    answer = edge.ask(body)
    assert answer.status_code == 400
    assert names in answer.json()["error"]
    assert answer.json()["remedy"]


def test_who_is_no_user_is_refused(edge: Edge) -> None:
    without = httpx.post(edge.url, json={"query": "x"})
    expired = edge.ask({"query": "x"}, token=signed(ANA, exp=1))
    visitor = edge.ask({"query": "x"}, token=signed(ANA, role="anon"))
    for answer in (without, expired, visitor):
        assert answer.status_code == 401
        assert "user's own access token" in answer.json()["remedy"]


OTHER_SIZE = "query_embedding has 384 dimensions, the stored embeddings have 3"


@pytest.mark.parametrize(
    ("failed", "code", "message", "status", "remedy"),
    [
        (500, "57014", "canceling statement", 504, "narrower"),
        (404, "PGRST202", "no function", 500, "supabase db push"),
        (503, "PGRST002", "no database", 502, "log"),
        (400, "22023", OTHER_SIZE, 500, "384"),
    ],
)
def test_a_failure_of_the_database_names_its_remedy(
    edge: Edge, failed: int, code: str, message: str, status: int, remedy: str
) -> None:
    edge.rest.failure = (failed, {"code": code, "message": message})
    answer = edge.ask({"query": "invoice"})
    assert (answer.status_code, remedy in answer.json()["remedy"]) == (status, True)


def test_browsers_are_let_in(edge: Edge) -> None:
    preflight = httpx.options(edge.url)
    assert preflight.status_code == 204
    for answer in (preflight, edge.ask({"query": "invoice"}), edge.ask("{")):
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "authorization" in preflight.headers["Access-Control-Allow-Headers"]
    assert httpx.get(edge.url, headers={"Authorization": "Bearer x"}).status_code == 405


def test_the_message_that_the_function_looks_for_is_the_databases(database: Connection) -> None:
    search = "select * from public.hybrid_search_knowledge_chunks(query_embedding => '[1, 2]')"
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="the stored embeddings have"):
        database.execute(search)

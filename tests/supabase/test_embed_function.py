"""The Edge Function `embed`, run by Deno over a real database; a server stands for the model.

Supabase's built-in model gte-small is not here: `edge_runtime.ts` stands for it. With POSTGREST_BIN
a real PostgREST answers the function, else `rest.py` calls the same SQL functions.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import httpx
import jwt
import psycopg
import pytest
from rest import Rest, answering
from test_frontend import ROOT, deployed, signed

from conftest import Connection, Server, copy_of
from postgrest_server import JWT_SECRET
from provider_server import Answer, ProviderServer, Request, as_openai, provider_server
from support.documents import upsert

FUNCTION = ROOT / "supabase" / "functions" / "embed" / "index.ts"
SERVICE_KEY = jwt.encode({"role": "service_role"}, JWT_SECRET, algorithm="HS256")
MODEL_KEY = "sk-the-key-of-the-model"


def vector(text: str) -> list[float]:
    """Embed a text: different texts have different embeddings."""
    return [1.0, len(text) / 100, sum(map(ord, text)) / 10_000]


def embed_all(request: Request) -> Answer:
    return as_openai([vector(text) for text in request.body["input"]])


@dataclass
class Edge:
    url: str
    model: ProviderServer
    rest: Rest
    owner: Connection
    log: list[str]

    def call(self, body: object = "", key: str | None = SERVICE_KEY) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        content = body if isinstance(body, str) else json.dumps(body)
        return httpx.post(self.url, content=content, headers=headers, timeout=60, trust_env=False)

    def add(self, *texts: str, key: str = "notes") -> None:
        upsert(self.owner, key, *texts)

    def stored(self) -> dict[str, list[float] | None]:
        rows = self.owner.execute(
            "select content, embedding::text from public.knowledge_chunks where status = 'active'"
        ).fetchall()
        return {text: None if given is None else json.loads(given) for text, given in rows}

    def check_embedded(self, *texts: str) -> None:
        stored = self.stored()
        assert stored.keys() == set(texts)
        for text in texts:
            assert stored[text] == pytest.approx(vector(text)), text

    def claimed(self) -> int:
        ((count,),) = self.owner.execute(
            "select count(*) from public.knowledge_embedding_claims where claimed_at is not null"
        ).fetchall()
        return int(count)


@contextmanager
def running(
    server: Server, dimensions: int, model: ProviderServer, **environment: str
) -> Iterator[Edge]:
    log: list[str] = []
    environment["SUPABASE_SERVICE_ROLE_KEY"] = SERVICE_KEY
    with (
        contextmanager(copy_of)(server, server.template(dimensions)) as dsn,
        answering(server, dsn, SERVICE_KEY) as rest,
        psycopg.connect(dsn, autocommit=True) as owner,
        deployed(FUNCTION, rest, log=log, **environment) as url,
    ):
        yield Edge(url, model, rest, owner, log)


@pytest.fixture(scope="module")
def shared_edge(server: Server) -> Iterator[Edge]:
    with provider_server() as model:
        url = f"{model.url}/v1/"
        of_model = {"EMBEDDING_KEY": MODEL_KEY, "EMBEDDING_MODEL": "stub"}
        with running(server, 3, model, EMBEDDING_URL=url, **of_model) as edge:
            yield edge


@pytest.fixture
def edge(shared_edge: Edge) -> Edge:
    edge = shared_edge
    edge.owner.execute(
        "truncate public.knowledge_documents, public.knowledge_chunks, public.knowledge_settings,"
        " public.knowledge_embedding_claims"
    )
    edge.model.requests.clear()
    edge.model.before.clear()
    edge.model.answer = embed_all
    edge.rest.called.clear()
    edge.rest.failure = None
    return edge


def test_everything_that_is_pending_is_embedded_in_batches(edge: Edge) -> None:
    texts = [f"text {number}" for number in range(37)]
    edge.add(*texts)
    answer = edge.call()
    assert answer.status_code == 200, answer.text
    reported = answer.json()
    assert reported == {
        **dict.fromkeys(["claimed", "stored", "chunks"], 37),
        **dict.fromkeys(["outdated", "repeated", "failed", "retried", "released"], 0),
        **{"model_calls": 3, "stopped": "nothing is pending", "problem": None},
    }
    edge.check_embedded(*texts)
    models = edge.owner.execute("select model from public.knowledge_embedding_models()").fetchall()
    assert models == [("stub",)]
    first = edge.model.requests[0]
    assert first.path == "/v1/embeddings"
    assert first.headers["authorization"] == f"Bearer {MODEL_KEY}"
    assert first.body.keys() == {"model", "input"}
    assert edge.call().json()["claimed"] == 0


def test_only_the_collections_of_the_request_are_embedded(edge: Edge) -> None:
    edge.add("kept")
    assert edge.call({"collections": ["other"]}).json()["claimed"] == 0
    assert edge.call({"collections": ["knowledge"], "batch_size": 1}).json()["stored"] == 1


def test_a_refused_text_fails_alone(edge: Edge) -> None:
    def answer(request: Request) -> Answer:
        if any("poison" in text for text in request.body["input"]):
            return Answer({"error": f"too long, {MODEL_KEY}"}, 400)
        return embed_all(request)

    edge.model.answer = answer
    texts = [f"text {number}" for number in range(9)]
    edge.add(*texts, "poison")
    reported = edge.call().json()
    assert (reported["stored"], reported["failed"]) == (9, 1)
    assert reported["stopped"] == "nothing is pending"
    stored = edge.stored()
    assert stored.pop("poison") is None
    assert None not in stored.values()
    failed = "select reason from public.failed_knowledge_embeddings()"
    ((reason,),) = edge.owner.execute(failed).fetchall()
    assert "status 400" in reason
    assert "too long" in reason
    assert MODEL_KEY not in reason
    assert edge.call().json()["claimed"] == 0


def test_a_text_that_alone_is_pending_and_refused_fails(edge: Edge) -> None:
    edge.model.answer = lambda request: (
        Answer({}, 422) if request.body["input"] == ["poison"] else embed_all(request)
    )
    edge.add("poison")
    assert edge.call().json()["failed"] == 1


def test_a_model_that_refuses_every_text_makes_none_fail(edge: Edge) -> None:
    edge.model.answer = lambda _: Answer({"error": "unknown model"}, 400)
    edge.add("one", "two", "three")
    answer = edge.call()
    reported = answer.json()
    assert (answer.status_code, reported["stopped"]) == (502, "the model failed")
    assert "refuses every text" in reported["problem"]
    assert (reported["failed"], reported["released"], edge.claimed()) == (0, 3, 0)
    edge.model.answer = embed_all
    assert edge.call().json()["stored"] == 3


@pytest.mark.parametrize("retry_after", ["0.2", None])
def test_a_busy_model_is_asked_again_later(edge: Edge, retry_after: str | None) -> None:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    edge.model.before.append(Answer({}, 429, headers))
    edge.add("one")
    start = time.monotonic()
    reported = edge.call().json()
    assert time.monotonic() - start >= 0.2
    assert (reported["stored"], reported["model_calls"], reported["problem"]) == (1, 2, None)


def test_a_model_that_is_busy_for_longer_leaves_the_texts_to_the_next_call(edge: Edge) -> None:
    edge.model.before.append(Answer({}, 429, {"Retry-After": "3600"}))
    edge.add("one")
    answer = edge.call({"seconds": 5})
    assert answer.status_code == 502
    assert "429" in answer.json()["problem"]
    assert (answer.json()["released"], edge.claimed()) == (1, 0)
    assert edge.call().json()["stored"] == 1


@pytest.mark.parametrize(
    "answer",
    [
        Answer({"error": f"wrong key {MODEL_KEY}"}, 401),
        Answer({"data": [{"index": 1, "embedding": [1, 2, 3]}]}, 200),
        Answer({}, 302, {"Location": "http://127.0.0.1:9/"}),
    ],
)
def test_an_unusable_model_keeps_the_texts_pending_and_no_key_is_told(
    edge: Edge, answer: Answer
) -> None:
    edge.model.answer = lambda _: answer
    edge.add("one", "two")
    reported = edge.call({"seconds": 1})
    assert reported.status_code == 502
    assert reported.json()["problem"]
    assert set(edge.stored().values()) == {None}
    assert edge.claimed() == 0
    for place in (reported.text, "".join(edge.log)):
        assert MODEL_KEY not in place
        assert SERVICE_KEY not in place


def test_calls_at_the_same_time_embed_no_text_twice(edge: Edge) -> None:
    texts = [f"text {number}" for number in range(40)]
    edge.add(*texts)
    with ThreadPoolExecutor(4) as threads:
        answers = [*threads.map(lambda _: edge.call({"batch_size": 4}).json(), range(4))]
    assert sum(one["stored"] for one in answers) == 40
    assert sum(one["repeated"] for one in answers) == 0
    sent = [text for body in edge.model.bodies() for text in body["input"]]
    assert sorted(sent) == sorted(texts)
    edge.check_embedded(*texts)


def test_a_call_ends_when_its_time_is_over_and_claims_nothing_more(edge: Edge) -> None:
    def answer(request: Request) -> Answer:
        time.sleep(0.4)
        return embed_all(request)

    edge.model.answer = answer
    edge.add(*(f"text {number}" for number in range(20)))
    reported = edge.call({"seconds": 1, "batch_size": 1}).json()
    assert reported["stopped"] == "the time is over"
    assert 0 < reported["stored"] == reported["claimed"] < 20
    assert edge.claimed() == 0


def test_only_the_service_key_is_let_in(edge: Edge) -> None:
    edge.add("one")
    assert edge.call(key=None).status_code == 401
    anon = jwt.encode({"role": "anon"}, JWT_SECRET, algorithm="HS256")
    forged = jwt.encode({"role": "service_role"}, "another secret of enough characters")
    for key in (signed(UUID(int=1)), anon, forged, SERVICE_KEY[:-1], f"{SERVICE_KEY}x", "x"):
        answer = edge.call(key=key)
        assert (answer.status_code, answer.json().keys()) == (403, {"error", "remedy"})
        assert key not in answer.text or key == "x"
    assert edge.rest.called == []
    assert edge.model.requests == []
    get = httpx.get(edge.url, headers={"Authorization": f"Bearer {SERVICE_KEY}"}, trust_env=False)
    assert get.status_code == 405


WRONG = {"seconds": 0, "batch_size": 257, "collections": "knowledge", "model": "other"}


@pytest.mark.parametrize(
    ("body", "names"), [("{", "body"), *(({name: WRONG[name]}, name) for name in WRONG)]
)
def test_a_wrong_request_is_refused_by_name(edge: Edge, body: object, names: str) -> None:
    answer = edge.call(body)
    assert answer.status_code == 400
    assert names in answer.json()["error"]
    assert edge.rest.called == []


@pytest.mark.parametrize(
    ("failed", "code", "status", "remedy"),
    [
        (404, "PGRST202", 500, "supabase db push"),
        (400, "22023", 500, "names"),
        (503, "PGRST002", 502, "log"),
    ],
)
def test_a_failure_of_the_database_names_its_remedy(
    edge: Edge, failed: int, code: str, status: int, remedy: str
) -> None:
    message = "a secret" if status == 502 else "model must be"
    edge.rest.failure = (failed, {"code": code, "message": message})
    answer = edge.call()
    assert (answer.status_code, remedy in answer.json()["remedy"]) == (status, True)
    assert "a secret" not in answer.text


def test_the_built_in_model_embeds_a_corpus_of_its_size(server: Server) -> None:
    with provider_server() as unused, running(server, 384, unused) as edge:
        edge.add("An invoice is due.", "Cats sleep.", "out of memory")
        reported = edge.call().json()
        assert reported["stopped"] == "the model failed"
        assert "the model failed" in reported["problem"]
        edge.add("An invoice is due.", "Cats sleep.")
        reported = edge.call().json()
        assert (reported["stored"], reported["problem"]) == (2, None)
        invoice = edge.stored()["An invoice is due."]
        assert invoice is not None
        assert invoice[:2] == [1, 0]
        models = edge.owner.execute("select model from public.knowledge_embedding_models()")
        assert models.fetchall() == [("gte-small",)]

"""The functions of the embedding queue over a real PostgREST, with each of the three keys.

POSTGREST_BIN names the binary; without it, the tests are skipped.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import jwt
import psycopg
import pytest

from conftest import Connection, Server, copy_of
from postgrest_server import JWT_SECRET, PostgREST

ANA, BEN = UUID(int=1), UUID(int=2)
EMBEDDING = [1.0, 0.0, 0.0]
MINE = "count_my_pending_knowledge_embeddings"
FUNCTIONS: dict[str, dict[str, Any]] = {
    "claim_knowledge_embeddings": {"model": "a"},
    "store_knowledge_embeddings": {"model": "a", "results": []},
    "pending_knowledge_embeddings": {},
    "failed_knowledge_embeddings": {},
    "retry_knowledge_embeddings": {},
    "count_pending_knowledge_embeddings": {"search": {}},
    MINE: {"search": {}},
}


@dataclass(frozen=True)
class Api:
    """A PostgREST, and the owner's connection to its database."""

    port: int
    owner: Connection

    def call(self, function: str, arguments: Any, **claims: object) -> httpx.Response:
        """Call a function with a key of these claims; without any, as a visitor."""
        token = jwt.encode(claims, JWT_SECRET, algorithm="HS256") if claims else None
        return httpx.post(
            f"http://127.0.0.1:{self.port}/rpc/{function}",
            json=arguments,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=30,
            trust_env=False,
        )

    def serve(self, function: str, **arguments: Any) -> Any:
        """Call a function with the service's key."""
        answer = self.call(function, arguments, role="service_role")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def count_mine(self, user: UUID, **search: Any) -> Any:
        """Count as a signed-in user."""
        answer = self.call(MINE, {"search": search}, role="authenticated", sub=str(user))
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def shared_api(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One PostgREST for all tests of this file."""
    binary = os.environ.get("POSTGREST_BIN")
    if not binary:
        pytest.skip("POSTGREST_BIN names no PostgREST")
    place: Path = tmp_path_factory.mktemp("postgrest")
    for dsn in copy_of(server, server.template(3)):
        running = PostgREST(binary, server.admin_dsn(), dsn, place)
        try:
            running.start()
            with psycopg.connect(dsn, autocommit=True) as owner:
                yield Api(running.port, owner)
        finally:
            running.stop()


@pytest.fixture
def api(shared_api: Api) -> Api:
    """A corpus of three texts without an embedding: Ana's, Ben's and a public one."""
    shared_api.owner.execute(
        "truncate public.knowledge_documents, public.knowledge_chunks,"
        " public.knowledge_embedding_claims"
    )
    for key, columns in (
        ("ana", {"owner_id": str(ANA)}),
        ("ben", {"owner_id": str(BEN)}),
        ("public", {"visibility": "public"}),
    ):
        shared_api.serve(
            "upsert_knowledge_document",
            document={"external_key": key, **columns},
            chunks=[{"content": f"secretword of {key}"}],
        )
    return shared_api


@pytest.mark.parametrize("function", FUNCTIONS)
def test_visitors_and_users_are_refused_and_learn_nothing(api: Api, function: str) -> None:
    arguments = FUNCTIONS[function]
    visitor = api.call(function, arguments)
    assert (visitor.status_code, visitor.json()["code"]) == (401, "42501")
    anon = api.call(function, arguments, role="anon")
    assert (anon.status_code, anon.json()["code"]) == (401, "42501")
    user = api.call(function, arguments, role="authenticated", sub=str(ANA))
    if function == MINE:
        assert (user.status_code, user.json()) == (200, 2)
    else:
        assert (user.status_code, user.json()["code"]) == (403, "42501")
    for answer in (visitor, anon, user):
        assert "secretword" not in answer.text
    row = api.owner.execute("select count(*) from public.knowledge_embedding_claims").fetchone()
    assert row == (0,)


def test_the_service_claims_stores_and_sees_the_counts_fall(api: Api) -> None:
    assert api.serve("count_pending_knowledge_embeddings") == 3
    claims = api.serve("claim_knowledge_embeddings", model="a", max_chunks=2, worker="one")
    assert len(claims) == 2
    assert {claim["attempt"] for claim in claims} == {1}
    (waiting,) = api.serve("pending_knowledge_embeddings")
    assert (waiting["pending"], waiting["claimed"], waiting["failed"]) == (3, 2, 0)
    good, bad = claims
    counts = api.serve(
        "store_knowledge_embeddings",
        model="a",
        worker="one",
        results=[
            {"content_hash": good["content_hash"], "embedding": EMBEDDING},
            {"content_hash": bad["content_hash"], "error": "too long", "is_final": True},
        ],
    )
    (counts,) = counts if isinstance(counts, list) else [counts]
    assert (counts["stored"], counts["failed"]) == (1, 1)
    (failed,) = api.serve("failed_knowledge_embeddings")
    assert (failed["chunk_id"], failed["reason"]) == (bad["chunk_id"], "too long")
    assert api.serve("count_pending_knowledge_embeddings") == 2
    assert api.serve("retry_knowledge_embeddings", model="a") == 1
    assert api.serve("failed_knowledge_embeddings") == []


def test_a_user_counts_what_they_may_see(api: Api) -> None:
    assert api.count_mine(ANA) == 2
    assert api.count_mine(ANA, public_only=True) == 1
    assert api.count_mine(UUID(int=3)) == 1
    assert api.count_mine(ANA, filters={"knowledge_type": "note"}) == 0
    api.owner.execute("delete from public.knowledge_documents where external_key = 'ben'")
    assert api.count_mine(ANA) == 2


def test_a_user_cannot_name_another_viewer(api: Api) -> None:
    for argument in ({"viewer_id": str(BEN)}, {"viewer_groups": ["board"]}):
        for arguments, refusal in (
            (argument, (404, "PGRST202")),
            ({"search": argument}, (400, "22023")),
        ):
            answer = api.call(MINE, arguments, role="authenticated", sub=str(ANA))
            assert (answer.status_code, answer.json()["code"]) == refusal


def test_a_token_without_a_user_counts_nothing(api: Api) -> None:
    for claims in ({}, {"sub": "not-a-uuid"}):
        answer = api.call(MINE, {}, role="authenticated", **claims)
        assert (answer.status_code, answer.json()["code"]) == (403, "42501")


@pytest.mark.parametrize(
    ("function", "arguments", "names"),
    [
        ("claim_knowledge_embeddings", {"model": ""}, "model"),
        ("claim_knowledge_embeddings", {"model": "a", "max_chunks": 0}, "max_chunks"),
        ("claim_knowledge_embeddings", {"model": "a", "lease": "-1 s"}, "lease"),
        ("store_knowledge_embeddings", {"model": "a", "results": {}}, "results"),
        ("store_knowledge_embeddings", {"model": "a", "results": [{"a": 1}]}, "results[0]"),
        ("failed_knowledge_embeddings", {"max_rows": 1001}, "max_rows"),
        *(
            ("count_pending_knowledge_embeddings", {"search": {name: "poem"}}, name)
            for name in ("filter_type", "no_such_argument")
        ),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    api: Api, function: str, arguments: dict[str, Any], names: str
) -> None:
    answer = api.call(function, arguments, role="service_role")
    assert (answer.status_code, answer.json()["code"]) == (400, "22023")
    assert names in answer.json()["message"]


def test_every_function_of_the_queue_is_tried_here(api: Api) -> None:
    rows = api.owner.execute(
        "select proname from pg_proc where pronamespace = 'public'::regnamespace"
        " and proname ~ '_knowledge_embeddings$'"
    ).fetchall()
    of_other_parts = {"missing_knowledge_embeddings", "sample_knowledge_embeddings"}
    assert {name for (name,) in rows} - of_other_parts == set(FUNCTIONS)


def test_a_large_result_of_a_claim_is_one_page(api: Api) -> None:
    api.owner.execute(
        'select public.upsert_knowledge_document(\'{"external_key": "many"}\', %s)',
        [json.dumps([{"content": f"text {number}"} for number in range(1100)])],
    )
    assert len(api.serve("claim_knowledge_embeddings", model="a", max_chunks=1000)) == 1000
    assert api.serve("count_pending_knowledge_embeddings") == 1000

"""Random calls of a server over HTTP with the tokens of users: no row of another user comes back.

Each document has a word of its own in its title, text, keys, address and metadata. An answer may
have only the words of documents that its user may see.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from conftest import Server, copy_of
from corpora import ask_groups_of_token, store_document
from mcp_clients import Served, http_server
from mcp_users import KEY, SECRET, Project, project
from second_brain.models import WordLlamaEmbedder

__all__ = ["project"]  # a fixture

pytest_plugins = ("mcp_fixtures",)

SEED = 40
GROUPS = ("red", "green", "blue")
USERS = {str(UUID(int=number)): GROUPS[:number] for number in range(1, 5)}
SUBJECTS = ("invoices are paid late", "cameras lose their clock", "keys rotate", "herons fish")
WORD = re.compile(r"zq[0-9a-f]{8}")


@dataclass(frozen=True)
class Stored:
    """A document: its id, its word, and who may see it."""

    id: str
    word: str
    owner: str | None
    groups: frozenset[str]
    is_public: bool

    def is_visible(self, user: str) -> bool:
        return self.is_public or self.owner == user or bool(self.groups & {*USERS[user]})


@dataclass(frozen=True)
class Brain:
    """A server, the project of its users, and what is stored."""

    served: Served
    project: Project
    stored: list[Stored]

    def token(self, user: str, chance: random.Random) -> str:
        """Return a token of the project's key or of its secret."""
        claims: dict[str, Any] = {"sub": user, "app_metadata": {"groups": list(USERS[user])}}
        signed = chance.choice([(KEY, "first", "ES256"), (SECRET, "legacy", "HS256")])
        return self.project.token(*signed, **claims)


@pytest.fixture(scope="module")
def brain(server: Server, project: Project, embedder: WordLlamaEmbedder) -> Iterator[Brain]:
    chance = random.Random(SEED)
    for dsn in copy_of(server, server.template(embedder.dimensions)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            ask_groups_of_token(connection)
            stored = [store(connection, embedder, chance, number) for number in range(80)]
        variables = {
            "SECOND_BRAIN_DSN": dsn,
            "SUPABASE_URL": project.url,
            "SUPABASE_JWT_SECRET": SECRET,
        }
        with http_server("--supabase-users", **variables) as served:
            yield Brain(served, project, stored)


def store(
    connection: psycopg.Connection[Any],
    embedder: WordLlamaEmbedder,
    chance: random.Random,
    number: int,
) -> Stored:
    word = f"zq{chance.getrandbits(32):08x}"
    owner = chance.choice([None, *USERS])
    groups = frozenset(chance.sample(GROUPS, chance.choice([0, 0, 1, 2])))
    visibility = chance.choice(["private", "private", "private", "public"])
    document = {
        "title": f"About {word}",
        "owner_id": owner,
        "allowed_groups": sorted(groups),
        "visibility": visibility,
        "collection": chance.choice(["knowledge", "tickets", "memory"]),
        "source_url": f"https://example.org/{word}",
        "metadata": {"kind": chance.choice(["a", "b"]), "word": word},
    }
    texts = [f"{word}: {chance.choice(SUBJECTS)}, part {part}." for part in range(3)]
    chunks = dict(zip(texts, embedder.embed(texts).tolist(), strict=True))
    id_ = store_document(connection, f"{number}/{word}", chunks, embedder.model, **document)
    return Stored(str(id_), word, owner, groups, visibility == "public")


def call(brain: Brain, chance: random.Random) -> dict[str, Any]:
    """Return a random request."""
    one = chance.choice(brain.stored)
    question = chance.choice([*SUBJECTS, one.word, f'"{one.word}"', f"{SUBJECTS[0]} -{one.word}"])
    filters = chance.choice(
        [
            None,
            {"kind": "a"},
            [{"field": "metadata.word", "op": "eq", "value": one.word}],
            [{"field": "owner_id", "op": "in", "value": list(USERS)}],
            [{"field": "document_id", "op": "eq", "value": one.id}],
            [{"field": "visibility", "op": "ne", "value": "public"}],
        ]
    )
    shaping: dict[str, Any] = {
        "collections": chance.choice([["tickets"], ["knowledge", "memory"]]),
        "boosts": [{"filters": {"kind": "b"}, "factor": 3}],
        "order_by": "created_at desc",
        "diversity": 0.5,
        "max_per_document": 2,
        "merge_duplicates": True,
        "min_confidence": 0.05,
        "date_to": "2030-01-01",
    }
    tools: list[tuple[str, dict[str, Any]]] = [
        (
            "hybrid_search",
            {
                "query": question,
                "limit": chance.choice([1, 5, 50]),
                "include_memory": chance.random() < 0.5,
                "expand_neighbors": chance.choice([False, True, 5]),
                "prefix_last": chance.random() < 0.3,
                "filters": filters,
                **{name: shaping[name] for name in chance.sample([*shaping], 2)},
            },
        ),
        ("hybrid_search", {"like_ids": [one.id], "limit": 50, "include_memory": True}),
        (
            "search_knowledge_base",
            {"query": question, "search_type": chance.choice(["hybrid", "vector", "text"])},
        ),
        ("search", {"query": question}),
        ("fetch", {"id": one.id}),
    ]
    methods: list[tuple[str, dict[str, Any]]] = [
        ("resources/list", {}),
        ("resources/read", {"uri": f"second-brain://document/{one.id}"}),
        *(("tools/call", {"name": name, "arguments": given}) for name, given in tools * 2),
    ]
    method, params = chance.choice(methods)
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@pytest.mark.parametrize("calls", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_call_returns_what_its_user_may_not_see(brain: Brain, calls: int) -> None:
    chance = random.Random(SEED + calls)
    seen: dict[str, set[str]] = {user: set() for user in USERS}
    leaked = []
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-11-25",
    }
    with httpx.Client(headers=headers, timeout=60) as client:
        for _ in range(calls):
            user, request = chance.choice([*USERS]), call(brain, chance)
            asked = set(WORD.findall(str(request)))
            authorization = {"Authorization": f"Bearer {brain.token(user, chance)}"}
            answer = client.post(brain.served.url, json=request, headers=authorization)
            assert answer.status_code == 200, answer.text
            found = set(WORD.findall(answer.text))
            visible = {one.word for one in brain.stored if one.is_visible(user)}
            # An answer repeats the words of its question, so these count by the title alone.
            leaked += sorted(
                word
                for word in found - visible
                if word not in asked or re.search(f"About {word}|{word}: ", answer.text)
            )
            seen[user] |= found & visible
    print(f"{calls} calls, rows of other users: {len(leaked)}")
    assert leaked == []
    # The calls reach half of what the users may see, or more: own rows, public ones, of groups.
    for user, words in seen.items():
        visible = {one.word for one in brain.stored if one.is_visible(user)}
        assert len(words) >= 0.5 * len(visible), user

"""No exception, cause, context, traceback, repr or log line holds a password or a key."""

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from second_brain import errors
from second_brain.database import maintenance, migrations
from second_brain.database.embedded import _State
from second_brain.errors import ConfigurationError, SecondBrainError, redacted
from second_brain.models import OpenAIEmbedder, VoyageEmbedder
from second_brain.services.connections import (
    address,
    async_connection_pool,
    connect,
    connection_pool,
)
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import KnowledgeWriter

WORD, REST = "hunter2", "correcthorse"
MALFORMED = {
    "at": f"postgresql://user:{WORD}@{REST}@db.invalid:5432/postgres",
    "slash": f"postgresql://user:{WORD}/{REST}@db.invalid:5432/postgres",
    "at and slash": f"postgresql://user:{WORD}@{REST}/x@db.invalid:5432/postgres",
    "digits and slash": f"postgresql://user:5432/{WORD}{REST}@127.0.0.1:1/postgres",
    "slash and question mark": f"postgresql://user:{WORD}/a?{REST}@db.invalid:5432/postgres",
    "colon": f"postgresql://user@{WORD}:{REST}@db.invalid/postgres",
    "percent": f"postgresql://user:{WORD}%zz{REST}@db.invalid:5432/postgres",
    "bracket": f"postgresql://user:{WORD}@[{REST}@db.invalid:5432/postgres",
    "no key": f"{WORD}{REST} host=db.invalid",
    "space": f"host=db.invalid password={WORD} {REST}",
    "quote": f"host=db.invalid password='{WORD}{REST}",
}


def chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def reported(error: BaseException) -> str:
    texts = ["".join(traceback.format_exception(error))]
    for one in chain(error):
        texts += [str(one), repr(one), repr(one.args), str(getattr(one, "remedy", ""))]
    return "\n".join(texts)


def assert_told_nothing(*texts: str) -> None:
    assert [one for one in (WORD, REST) if one in "".join(texts)] == []


async def search_async(dsn: str) -> None:
    await AsyncPostgresProvider(dsn).find(None, "a")


async def open_async_pool(dsn: str) -> None:
    async with async_connection_pool(dsn, timeout=0.5) as pool:
        await pool.wait(0.5)


def open_pool(dsn: str) -> None:
    with connection_pool(dsn, timeout=0.5) as pool:
        pool.wait(0.5)


def open_session(dsn: str) -> None:
    with maintenance.session(dsn):
        pass


DOORS: dict[str, Callable[[str], object]] = {
    "connect": connect,
    "PostgresProvider": lambda dsn: PostgresProvider(dsn).find(None, "a"),
    "AsyncPostgresProvider": lambda dsn: asyncio.run(search_async(dsn)),
    "connection_pool": open_pool,
    "async_connection_pool": lambda dsn: asyncio.run(open_async_pool(dsn)),
    "migrations": migrations.apply,
    "maintenance": open_session,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("form", MALFORMED)
def test_a_malformed_connection_string_is_refused_and_not_quoted(
    door: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ConfigurationError, match="connection string is malformed") as caught:
        DOORS[door](MALFORMED[form])
    assert_told_nothing(reported(caught.value), caplog.text)
    assert "%40" in caught.value.remedy


@pytest.mark.parametrize("form", MALFORMED)
def test_the_answer_of_a_search_holds_no_piece_of_a_malformed_connection_string(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = PostgresProvider(MALFORMED[form], on_error="empty")
    hits, details = provider.hybrid_search(None, "a")
    assert (hits, details["error_kind"]) == ([], "configuration")
    assert_told_nothing(str(details), caplog.text, repr(provider))


@pytest.mark.parametrize(
    ("changed", "kind", "named"),
    [
        ({"dbname": "nowhere"}, ConfigurationError, "'nowhere'"),
        ({"user": "nobody"}, errors.AuthenticationError, "'nobody'"),
        ({"host": "db.invalid"}, errors.UnavailableError, "db.invalid"),
        ({"port": "1"}, errors.UnavailableError, "127.0.0.1"),
        ({"password": f"{WORD}{REST}"}, errors.AuthenticationError, "'postgres'"),
    ],
)
@pytest.mark.parametrize("door", ["connect", "PostgresProvider", "AsyncPostgresProvider"])
def test_a_wrong_address_is_named_and_the_password_is_not(
    plain_dsn: str, door: str, changed: dict[str, str], kind: type[SecondBrainError], named: str
) -> None:
    dsn = make_conninfo(plain_dsn, **{"password": f"{WORD}{REST}", **changed})
    if "password" not in changed and "user" not in changed:
        dsn = make_conninfo(plain_dsn, **changed)
    secret = psycopg.conninfo.conninfo_to_dict(dsn)["password"]
    with pytest.raises(kind) as caught:
        DOORS[door](dsn)
    assert named in str(caught.value)
    assert str(secret) not in reported(caught.value)
    assert "connection string" in caught.value.remedy


def test_what_a_connection_string_names_is_found() -> None:
    found = address(f"postgresql://me:{WORD}%40{REST}@db.example.org:6543/shop")
    named = (found.host, found.port, found.database, found.user)
    assert named == ("db.example.org", "6543", "shop", "me")
    assert WORD not in repr(found)


@pytest.mark.parametrize("key", [f"{WORD}\n{REST}", f"{WORD}é{REST}", f"{WORD} {REST}"])
def test_a_key_that_http_cannot_send_is_not_quoted(key: str) -> None:
    provider = SupabaseProvider({"supabase_url": "http://127.0.0.1:1", "supabase_key": key})
    with pytest.raises(SecondBrainError) as caught:
        provider.find(None, "a")
    assert_told_nothing(reported(caught.value), repr(provider))


@pytest.mark.parametrize("model", [OpenAIEmbedder, VoyageEmbedder])
@pytest.mark.parametrize(
    "url", [f"http://user:{WORD}{REST}@127.0.0.1:1/v1", f"http://user:{WORD}:{REST}@/v1"]
)
def test_the_key_of_a_hosted_model_is_not_quoted(model: Any, url: str) -> None:
    with pytest.raises((SecondBrainError, httpx.InvalidURL)) as caught:
        model(api_key=f"sk-{WORD}{REST}", base_url=url, retries=0).embed(["a"])
    assert_told_nothing(reported(caught.value))


class _OwnTextError(Exception):
    """Its text does not come from args."""

    def __str__(self) -> str:
        return f"password={WORD}"


def test_a_chain_is_redacted_whatever_it_is_made_of() -> None:
    own = _OwnTextError()
    own.__cause__ = ValueError(f"postgresql://user:{WORD}@host/db")
    group = ExceptionGroup("two", [KeyError(f"Bearer {WORD}"), OSError(2, WORD)])
    group.__context__ = own
    clean = redacted(group, secrets=[WORD])
    assert WORD not in reported(clean)
    # What cannot be changed in place has an error of ours in its place.
    assert [type(one) for one in chain(clean)] == [RuntimeError, RuntimeError, ValueError]


def test_a_writer_on_a_lost_connection_tells_no_password(plain_dsn: str) -> None:
    secret = psycopg.conninfo.conninfo_to_dict(plain_dsn)["password"]
    connection = psycopg.connect(plain_dsn, autocommit=True)
    connection.close()
    with pytest.raises(SecondBrainError) as caught:
        KnowledgeWriter(connection).delete_document("a")
    assert str(secret) not in reported(caught.value)


def test_the_state_of_the_embedded_server_shows_no_password() -> None:
    assert_told_nothing(repr(_State(18, port=1, password=WORD, admin_password=REST, data="")))

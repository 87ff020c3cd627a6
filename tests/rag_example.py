"""Running examples/rag_service: its role in the database, the tokens of users, the server."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import psycopg
import uvicorn
from fastapi import FastAPI
from psycopg.conninfo import make_conninfo

from chat_server import ChatServer
from rag_service.app import create_app
from rag_service.settings import Settings

EXAMPLE = Path(__file__).parents[1] / "examples" / "rag_service"
ANA = "00000000-0000-0000-0000-000000000001"
SECRET = "a secret of the tests, long enough for HS256"
PASSWORD = "of-the-tests"


def token(sub: object = ANA, /, **claims: Any) -> str:
    """Return a token as Supabase Auth issues it; None removes a claim."""
    signed = {"sub": sub, "aud": "authenticated", "exp": time.time() + 600, **claims}
    given = {name: value for name, value in signed.items() if value is not None}
    return jwt.encode(given, SECRET, "HS256")


def dsn_of_service(owner: str) -> str:
    """Create the service's role; return its DSN."""
    with psycopg.connect(owner) as connection:
        # The role belongs to the server, and another worker may create it too.
        connection.execute("select pg_advisory_xact_lock(hashtext('rag_service'))")
        connection.execute((EXAMPLE / "role.sql").read_bytes())
        connection.execute(f"alter role rag_service password '{PASSWORD}'")
    return make_conninfo(owner, user="rag_service", password=PASSWORD)


def bearer(signed: str) -> dict[str, str]:
    return {"authorization": f"Bearer {signed}"}


def application(dsn: str, model: ChatServer, **settings: Any) -> FastAPI:
    if "jwks_url" not in settings:
        settings["jwt_secret"] = SECRET
    defaults = {"llm_base_url": model.url, "llm_model": "m", "jwt_groups": "groups"}
    return create_app(Settings.model_validate({"second_brain_dsn": dsn, **defaults, **settings}))


@contextmanager
def running(dsn: str, model: ChatServer, **settings: Any) -> Iterator[httpx.Client]:
    """Run the service as uvicorn does; yield a client with Ana's token."""
    app = application(dsn, model, **settings)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            with httpx.Client(base_url=url, headers=bearer(token()), timeout=60) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()

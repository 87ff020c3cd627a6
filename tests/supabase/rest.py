"""Stands for Supabase's gateway, PostgREST and Auth, for functions under Deno.

A real PostgREST answers where POSTGREST_BIN names one; else the server calls the SQL function as it
would.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import httpx
import jwt
import psycopg

from conftest import Server
from local_server import Quiet
from postgrest_server import JWT_SECRET, served

PATH = "/rest/v1"

ARGUMENTS = """
select coalesce(
         jsonb_object_agg(argument.name, argument.type::regtype::text)
           filter (where argument.name <> ''),
         '{}'
       ),
       bool_or(function.proretset)
  from pg_proc as function
 cross join unnest(function.proargnames, function.proargtypes::oid[]) as argument (name, type)
 where function.pronamespace = 'public'::regnamespace
   and function.proname = %s
   and argument.type is not null
"""


class Rest(ThreadingHTTPServer):
    """Calls functions as the role of the token, or lets the PostgREST on a port do it."""

    daemon_threads = True

    def __init__(self, dsn: str, key: str, port: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.dsn, self._key, self._port = dsn, key, port
        # A status, and a body: a text, or a value that is sent as JSON.
        self.failure: tuple[int, Any] | None = None
        self.called: list[str] = []
        # The private keys that sign tokens beside the secret, by their names.
        self.keys: dict[str, Any] = {}

    def claims(self, authorization: str) -> dict[str, Any]:
        """Return what a valid token says; its key has one algorithm."""
        token = authorization.removeprefix("Bearer ")
        key = self._key_of(authorization)
        if key is None:
            return jwt.decode(token, JWT_SECRET, ["HS256"], options={"verify_aud": False})
        return jwt.decode(token, key.public_key(), ["ES256"], options={"verify_aud": False})

    def _key_of(self, authorization: str) -> Any:
        header = jwt.get_unverified_header(authorization.removeprefix("Bearer "))
        return self.keys.get(header.get("kid", ""))

    def auth(self, path: str, headers: Any) -> tuple[int, object]:
        """Answer as Supabase Auth does: its public keys, or the user of a token."""
        if path.endswith("/.well-known/jwks.json"):
            publish = jwt.algorithms.ECAlgorithm.to_jwk
            return 200, {
                "keys": [
                    {**json.loads(publish(key.public_key())), "kid": kid, "alg": "ES256"}
                    for kid, key in self.keys.items()
                ]
            }
        assert path == "/auth/v1/user"
        try:
            claims = self.claims(headers["Authorization"])
        except jwt.PyJWTError as error:
            return 403, {"code": 403, "error_code": "bad_jwt", "msg": str(error)}
        return 200, {"id": claims["sub"], "aud": claims.get("aud"), "role": claims["role"]}

    def answer(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        assert path.startswith(f"{PATH}/rpc/")
        assert headers["apikey"] == self._key
        function = path.removeprefix(f"{PATH}/rpc/")
        self.called.append(function)
        if self.failure is not None:
            status, told = self.failure
            return status, (told if isinstance(told, str) else json.dumps(told)).encode()
        if self._port is not None:
            names = ("Authorization", "Content-Type", "Accept", "Content-Profile")
            passed = {name: headers[name] for name in names if headers[name] is not None}
            authorization = headers["Authorization"]
            if self._key_of(authorization) is not None:
                # PostgREST knows the secret alone.
                token = jwt.encode(self.claims(authorization), JWT_SECRET, "HS256")
                passed["Authorization"] = f"Bearer {token}"
            answer = httpx.post(
                f"http://127.0.0.1:{self._port}/rpc/{function}",
                content=body,
                headers=passed,
                timeout=60,
                trust_env=False,
            )
            return answer.status_code, answer.content
        status, value = self._call(function, headers["Authorization"], json.loads(body))
        return status, json.dumps(value).encode()

    def _call(self, function: str, token: str, arguments: dict[str, Any]) -> tuple[int, object]:
        try:
            claims = self.claims(token)
        except jwt.ExpiredSignatureError:
            return 401, {"code": "PGRST303", "message": "JWT expired", "hint": None}
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(ARGUMENTS, [function]).fetchone()
            types, is_set = cast(tuple[dict[str, str], bool], row)
            if not types:
                return 404, {"code": "PGRST202", "message": f"Could not find {function}"}
            connection.execute(
                "select set_config('role', %s, true), set_config('request.jwt.claims', %s, true)",
                [claims["role"], json.dumps(claims)],
            )
            named = ", ".join(f"{name} => %({name})s::{types[name]}" for name in arguments)
            call = f"select coalesce(json_agg(row), '[]') from public.{function}({named}) as row"
            given = {
                name: json.dumps(value) if types[name] == "jsonb" and value is not None else value
                for name, value in arguments.items()
            }
            try:
                ((found,),) = connection.execute(call.encode(), given).fetchall()
            except psycopg.Error as error:
                status = {"42501": 403}.get(error.sqlstate or "", 400)
                reported = {"code": error.sqlstate, "message": error.diag.message_primary}
                return status, {**reported, "details": None, "hint": error.diag.message_hint}
        return 200, found if is_set else found[0]


class _Request(Quiet, BaseHTTPRequestHandler):
    server: Rest

    def do_GET(self) -> None:
        status, told = self.server.auth(self.path, self.headers)
        self._send(status, json.dumps(told).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._send(*self.server.answer(self.path, self.headers, body))

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def answering(server: Server, dsn: str, key: str) -> Iterator[Rest]:
    """Serve the functions of a database, by a real PostgREST where there is one."""
    with ExitStack() as stack:
        port = None
        if os.environ.get("POSTGREST_BIN"):
            place = Path(stack.enter_context(TemporaryDirectory()))
            port = stack.enter_context(served(server.admin_dsn(), dsn, place)).port
        rest = stack.enter_context(Rest(dsn, key, port))
        threading.Thread(target=rest.serve_forever, daemon=True).start()
        stack.callback(rest.shutdown)
        yield rest

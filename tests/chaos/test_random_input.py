"""Random bytes, texts and JSON in every argument of every public function.

Each call is answered or refused with a code that docs/errors.md lists for arguments, in bounded
time, and the server goes on.
"""

import json
import random
import re
import string
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import pq

from conftest import Connect, Connection
from corpora import store_document
from trials import Trial

pytestmark = pytest.mark.chaos(share=0.4)

SEARCH = "hybrid_search_knowledge_chunks"
SLOW = 5  # seconds
LONGEST_MESSAGE = 2_000
FUNCTIONS = """
select function.proname, argument.name, format_type(argument.type, null),
       argument.place > function.pronargs - function.pronargdefaults
  from pg_proc as function
 cross join unnest(
         function.proargnames[:function.pronargs], function.proargtypes[0:function.pronargs - 1]
       ) with ordinality as argument (name, type, place)
 where function.pronamespace = 'public'::regnamespace
   and function.prokind = 'f'
   and function.prorettype <> 'trigger'::regtype
   and not exists (
         select from pg_depend where objid = function.oid and deptype = 'e'
       )
 order by function.proname, argument.place
"""
WORDS = ("cat", "websearch", "simple", "auto", "rrf", "document", "merge", "public", "null", "-1")
CHARACTERS = (
    string.printable,
    "äßéñ",
    "漢字かな한국어",
    "\u202e\u200b\ufeff\u0301\U0001f408\x01\x7f",
    "\"'\\$%_&|!()<>:*-",
)
Attempts = list[tuple[str, Callable[[], Any]]]
KEYS = (
    *("query_text", "query_embedding", "field", "op", "value", "external_key", "title"),
    *("content", "heading", "embedding", "metadata", "owner_id", "visibility", "match_count"),
    *("document_date", "collection"),
)


def documented() -> set[str]:
    """The codes that docs/errors.md lists for arguments, dimensions and permissions."""
    text = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    sections = re.findall(
        r"^## `(?:invalid_input|dimension_mismatch|permission_denied)`\n(.*?)(?=^## )",
        text,
        re.MULTILINE | re.DOTALL,
    )
    return set(re.findall(r"`([0-9A-Z]{5})`", "".join(sections)))


@dataclass(frozen=True)
class Hostile:
    """Draws values that nobody means well."""

    draw: random.Random

    def text(self) -> str:
        kind = self.draw.random()
        if kind < 0.3:
            return self.draw.choice(WORDS)
        if kind < 0.4:
            return self.draw.choice(CHARACTERS)[0] * self.draw.choice([100, 5_000, 100_000])
        characters = "".join(self.draw.sample(CHARACTERS, 2))
        return "".join(self.draw.choices(characters, k=self.draw.choice([0, 1, 10, 300])))

    def number(self) -> str:
        return self.draw.choice(
            [
                *("0", "1", "-1", "5", "2147483647", "2147483648", "-9223372036854775809"),
                *("1e308", "1e400", "-0.0", "NaN", "Infinity", "-inf", "0x10", "", " 3 ", "0.5"),
            ]
        )

    def json(self, depth: int = 3) -> Any:
        kind = self.draw.randrange(8 if depth else 5)
        if kind == 0:
            return None
        if kind == 1:
            return self.draw.choice([True, False, 0, -1, 0.5, 10**30, 1e308])
        if kind < 5:
            return self.text()
        size = self.draw.choice([0, 1, 2, 5])
        if kind == 5:
            return [self.json(depth - 1) for _ in range(size)]
        names = [
            self.draw.choice(KEYS) if self.draw.random() < 0.8 else self.text() for _ in range(size)
        ]
        return {name: self.json(depth - 1) for name in names}

    def json_text(self) -> str:
        """Draw JSON as text, sometimes broken or deep."""
        if self.draw.random() < 0.1:
            levels = self.draw.choice([60, 2_000, 20_000])
            return "[" * levels + "]" * self.draw.choice([levels, 0])
        text = json.dumps(self.json())
        if self.draw.random() < 0.1:
            text = text[: self.draw.randrange(len(text) + 1)]
        return text

    def vector(self) -> str:
        """Draw pgvector's text form, mostly of another size or out of range."""
        size = self.draw.choice([0, 2, 3, 3, 3, 3, 4, 16_001])
        return (
            "["
            + ",".join(self.number() if self.draw.random() < 0.3 else "1" for _ in range(size))
            + "]"
        )

    def of_type(self, name: str) -> bytes | None:
        """Draw a value for an argument of this type, as the bytes that are sent."""
        if self.draw.random() < 0.05:
            return None
        if self.draw.random() < 0.1:
            return self.draw.randbytes(self.draw.choice([1, 8, 200])).replace(b"\0", b"")
        texts: dict[str, Callable[[], str]] = {
            "jsonb": self.json_text,
            "extensions.vector": self.vector,
            "boolean": lambda: self.draw.choice(["true", "false", "2", ""]),
            "date": lambda: self.draw.choice(["2026-01-31", "infinity", "0001-01-01 BC", "x"]),
            "uuid": lambda: str(UUID(int=self.draw.getrandbits(128))),
            "interval": lambda: self.draw.choice(["1 day", "-1 day", "1000000 years", "x"]),
            "text[]": lambda: "{" + ",".join(json.dumps(self.text()) for _ in range(3)) + "}",
        }
        is_number = name in ("integer", "double precision")
        made = texts.get(name, self.number if is_number else self.text)
        if self.draw.random() < 0.1:
            made = self.text
        return made().replace("\0", "").encode("utf-8", "surrogatepass")

    def search(self, arguments: Sequence[tuple[str, str, bool]]) -> bytes | None:
        """Draw arguments of a search as one object, mostly with values of their types."""
        if self.draw.random() < 0.2:
            return self.of_type("jsonb")
        given = {}
        for name, type_, _ in self.draw.sample(arguments, self.draw.choice([1, 2, 4])):
            of_type = (self.of_type(type_) or b"").decode("utf-8", "replace")
            is_text = type_ not in ("jsonb", "text[]") and self.draw.random() < 0.8
            given[name] = of_type if is_text else self.json()
        return json.dumps(given).replace("\\u0000", "").encode()


def signatures(owner: Connection) -> dict[str, list[tuple[str, str, bool]]]:
    found: dict[str, list[tuple[str, str, bool]]] = {}
    for name, *argument in owner.execute(FUNCTIONS).fetchall():
        found.setdefault(name, []).append(tuple(argument))
    return found


def call(
    trial: Trial,
    connection: Connection,
    function: str,
    arguments: Sequence[tuple[str, str]],
    values: Sequence[bytes | None],
    allowed: set[str],
) -> None:
    given = ", ".join(
        f"{name} => ${place}::{type_}" for place, (name, type_) in enumerate(arguments, 1)
    )
    statement = f"select * from public.{function}({given})".encode()
    begun = time.monotonic()
    connection.pgconn.exec_(b"begin")
    answer = connection.pgconn.exec_params(statement, values)
    code = (answer.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    message = (answer.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode()
    connection.pgconn.exec_(b"rollback")
    took = time.monotonic() - begun
    trial.note("calls of SQL functions")
    reported = (
        f"{function}({dict(zip(arguments, (repr(one)[:60] for one in values), strict=True))})"
    )
    if connection.pgconn.status != pq.ConnStatus.OK:
        trial.violated(f"the session ends: {reported}")
        raise psycopg.OperationalError("the session has ended")
    if code and code not in allowed:
        trial.violated(f"{code} {message[:200]}: {reported}")
    elif code == "22023" and len(message) > LONGEST_MESSAGE:
        trial.violated(f"a message of {len(message)} characters: {reported}")
    elif took > SLOW:
        trial.violated(f"{took:.0f} s: {reported}")
    else:
        trial.held(f"refused with {code}" if code else "answered")


def fuzz_sql(trial: Trial, connect: Connect) -> None:
    owner, hostile, allowed = connect(), Hostile(trial.random("sql")), documented()
    roles = [connect("service_role")] * 6
    roles += [connect("authenticated", uid=UUID(int=1))] * 2 + [connect("anon")]
    for connection in roles:
        connection.execute("set statement_timeout = '10s'")
    functions = signatures(owner)
    names = sorted(functions)
    while trial.is_on():
        for function in names:
            chosen = [
                one for one in functions[function] if not one[2] or hostile.draw.random() < 0.2
            ]
            if hostile.draw.random() < 0.3 and len(chosen) > 2:
                chosen = [one for one in chosen if not one[2]] + hostile.draw.sample(chosen, 1)
                chosen = list(dict.fromkeys(chosen))
            arguments = [(name, type_) for name, type_, _ in chosen]
            values = [
                hostile.search(functions[SEARCH]) if name == "search" else hostile.of_type(type_)
                for name, type_ in arguments
            ]
            connection = hostile.draw.choice(roles)
            if function.endswith(
                ("my_knowledge_chunks", "my_knowledge_documents", "my_knowledge_document")
            ):
                connection = roles[6]
            call(trial, connection, function, arguments, values, allowed)


def test_only_documented_codes_come_back(trial: Trial, dsn: str, connect: Connect) -> None:
    trial.needs("calls of SQL functions", "answered")
    texts = {f"cat dog w{number}": [1, number, 1] for number in range(100)}
    store_document(connect("service_role"), "d", texts, visibility="public")
    fuzz_sql(trial, connect)
    trial.finish()

"""Running tests against an install in another schema: `pytest --install-schema NAME`.

The tests name the objects of the default rendering. Their statements are rendered as the migrations
are, by `second_brain.database.naming`, just before they go to the server. The package's own
statements are not rendered: its argument `schema` and the variable of the commands have the schema
as their default, and a statement that still names public fails the test.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from second_brain.database import migrations, naming
from second_brain.ingest import pipeline
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.write import AsyncKnowledgeWriter, KnowledgeWriter

_METHODS = ("execute", "executemany", "copy")
_VARIABLE = "SECOND_BRAIN_SCHEMA"
# Functions of the package with an argument `schema`, as the tests call them.
_WITH_SCHEMA: tuple[Any, ...] = (
    AsyncKnowledgeWriter.__init__,
    AsyncPostgresProvider.__init__,
    KnowledgeWriter.__init__,
    PostgresProvider.__init__,
    pipeline.check_source,
    pipeline.finish,
    pipeline.ingest,
    pipeline.stale_keys,
)


class Rendering:
    """Renders every statement of psycopg for a schema, but for what is in `switched_off`."""

    def __init__(self, schema: str) -> None:
        naming.check_schema(schema)
        self.schema = schema
        self._names = naming.created_names(one.sql for one in migrations.find())
        self._off = False
        self._replaced = {name: getattr(psycopg.Cursor, name) for name in _METHODS}

    def start(self) -> None:
        for name, original in self._replaced.items():
            setattr(psycopg.Cursor, name, self._rendered(original))
        self._default(self.schema)
        os.environ[_VARIABLE] = self.schema

    def stop(self) -> None:
        for name, original in self._replaced.items():
            setattr(psycopg.Cursor, name, original)
        self._default(naming.SCHEMA)
        os.environ.pop(_VARIABLE, None)

    def _default(self, schema: str) -> None:
        for function in _WITH_SCHEMA:
            function.__kwdefaults__["schema"] = schema

    def _rendered(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def send(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
            return original(cursor, self.statement(cursor, query), *arguments, **options)

        return send

    def statement(self, cursor: Any, query: Any) -> Any:
        if self._off:
            return query
        if isinstance(query, sql.Composable):
            text = query.as_string(cursor)
        else:
            text = query.decode() if isinstance(query, bytes) else query
        rendered = naming.rename(text, self._names, naming.SCHEMA, self.schema)
        if rendered != text and _is_of_the_package():
            raise AssertionError(f"the package names schema public: {text}")
        return rendered.encode()

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """Send statements as they are."""
        self._off = True
        try:
            yield
        finally:
            self._off = False


def _is_of_the_package() -> bool:
    """Return whether a module of the package sends the statement that is rendered now."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__"))
        if module != __name__ and module.partition(".")[0] not in ("psycopg", "contextlib"):
            return module.startswith("second_brain")
        frame = frame.f_back
    return False

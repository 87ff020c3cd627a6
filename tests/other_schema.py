"""Running tests against an install in another schema: `pytest --install-schema NAME`.

The tests name the objects of the default rendering. Their statements are rendered as the migrations
are, by `second_brain.database.naming`, just before they go to the server.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from second_brain.database import migrations, naming

_METHODS = ("execute", "executemany", "copy")


class Rendering:
    """Renders every statement of psycopg for a schema, but for what is in `switched_off`."""

    def __init__(self, schema: str) -> None:
        naming.check_schema(schema)
        self.schema = schema
        self._names = naming.created_names(one.sql for one in migrations.find())
        self._off = False
        self._replaced = {name: getattr(psycopg.Cursor, name) for name in _METHODS}

    def start(self) -> None:
        """Render from now on, in this process."""
        for name, original in self._replaced.items():
            setattr(psycopg.Cursor, name, self._rendered(original))

    def stop(self) -> None:
        """Leave psycopg as it was."""
        for name, original in self._replaced.items():
            setattr(psycopg.Cursor, name, original)

    def _rendered(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def send(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
            return original(cursor, self.statement(cursor, query), *arguments, **options)

        return send

    def statement(self, cursor: Any, query: Any) -> Any:
        """Render one statement."""
        if self._off:
            return query
        if isinstance(query, sql.Composable):
            text = query.as_string(cursor)
        else:
            text = query.decode() if isinstance(query, bytes) else query
        return naming.rename(text, self._names, naming.SCHEMA, self.schema).encode()

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """Send statements as they are."""
        self._off = True
        try:
            yield
        finally:
            self._off = False

"""One way to run statements in a database, and to read and examine what an install has."""

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from conftest import Server
from second_brain.database import catalogue, doctor


def query(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements; return the rows of the last one."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def objects(dsn: str, schema: str = "public") -> catalogue.Catalogue:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return catalogue.read(connection, schema)


def examine(dsn: str, schema: str = "public") -> list[doctor.Finding]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return doctor.examine(connection, schema)


def admin_dsn(server: Server, dsn: str) -> str:
    return server.admin_dsn(str(conninfo_to_dict(dsn)["dbname"]))

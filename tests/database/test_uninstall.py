"""Removing an install: everything of it, and nothing else."""

import psycopg
import pytest

from second_brain.database import catalogue, migrations, uninstall


def test_uninstall_and_install_again_gives_a_fresh_install(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = catalogue.read(connection)
        plan = uninstall.plan(connection)
    print(plan.script)
    uninstall.apply(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert [one for one in catalogue.read(connection) if "extension" not in one] == []
    assert len(migrations.apply(dsn, dimensions=3)) == len(migrations.find())
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert catalogue.compare(before, catalogue.read(connection)) == []

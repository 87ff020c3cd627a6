"""The database of a module, emptied, in the place of one of the test's own: it is quicker."""

import pytest


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn

"""A database for the model that comes with the package: that of the module, emptied."""

from collections.abc import Iterator

import pytest

from conftest import Server, copy_of

DIMENSIONS = 256


@pytest.fixture
def dimensions() -> int:
    """The size of the embedder that comes with the package."""
    return DIMENSIONS


@pytest.fixture(scope="module")
def shared_dsn(server: Server) -> Iterator[str]:
    yield from copy_of(server, server.template(DIMENSIONS))


@pytest.fixture
def dsn(request: pytest.FixtureRequest, server: Server, dimensions: int) -> Iterator[str]:
    """The module's database, emptied, or one of the test's own where the test has another size."""
    if dimensions == DIMENSIONS:
        yield request.getfixturevalue("emptied_dsn")
    else:
        yield from copy_of(server, server.template(dimensions))

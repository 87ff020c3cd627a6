"""Both ways to adopt a table, for tests of what is the same in both."""

from collections.abc import Iterator

import pytest


@pytest.fixture(params=["copied", "in place"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Adopt the tables of a test as copies, then in place."""
    import adopted

    adopted.IN_PLACE = request.param == "in place"
    yield
    adopted.IN_PLACE = False

"""Both ways to adopt a table, for tests of what is the same in both."""

from collections.abc import Iterator

import pytest


@pytest.fixture(params=[pytest.param("copied", marks=pytest.mark.slow), "in place"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Adopt the tables of a test in place; in `make test-slow` as copies, too."""
    import adopted

    adopted.IN_PLACE = request.param == "in place"
    yield
    adopted.IN_PLACE = False

"""What is remembered of a server that fails: replicas use it."""

import time
from collections.abc import Callable

import pytest

from second_brain.replicas import reachability
from second_brain.replicas.reachability import Reachability

Clock = Callable[[float], None]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let seconds pass."""
    now = [1000.0]

    def pass_(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return pass_


def test_one_call_tests_a_server_that_has_failed(later: Clock) -> None:
    server = Reachability()
    assert [server.admits(5), server.admits(5)] == [True, True]
    server.has_failed()
    assert not server.admits(5)
    later(reachability.FIRST_REST)
    assert [server.admits(5), server.admits(5)] == [True, False]
    later(5)
    assert [server.admits(5), server.admits(5)] == [True, False]
    server.has_answered()
    assert [server.admits(5), server.admits(5)] == [True, True]


def test_each_test_that_fails_makes_the_rest_longer(later: Clock) -> None:
    server = Reachability()
    rests = []
    for _ in range(7):
        server.has_failed()
        # A concurrent call that fails with it.
        server.has_failed()
        waited = 0.0
        while not server.admits(60):
            later(0.5)
            waited += 0.5
        rests.append(waited)
    assert rests == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]

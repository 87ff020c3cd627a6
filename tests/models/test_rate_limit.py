"""The limit of requests and tokens in a minute."""

from hypothesis import given, settings
from hypothesis import strategies as st

from second_brain.models import RateLimit


@settings(max_examples=200)
@given(calls=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 150)), min_size=1, max_size=20))
def test_no_minute_has_more_requests_or_tokens_than_the_limit(calls: list[tuple[int, int]]) -> None:
    now = 0.0
    limit = RateLimit(requests_per_minute=3, tokens_per_minute=100, clock=lambda: now)
    out: list[tuple[float, int]] = []
    for passed, tokens in calls:
        now += passed
        out.append((now + limit.reserve(tokens), tokens))
    assert [moment for moment, _ in out] == sorted(moment for moment, _ in out)
    for start, _ in out:
        minute = [tokens for moment, tokens in out if start <= moment < start + 60]
        assert len(minute) <= 3
        assert sum(minute) <= 100 or len([tokens for tokens in minute if tokens]) == 1

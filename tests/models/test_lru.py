"""The bounded mapping that the caches share."""

from second_brain.lru import Lru


def test_the_least_recently_used_value_goes_first() -> None:
    kept: Lru[str, int] = Lru(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert [kept.get(key) for key in "abc"] == [1, None, 3]
    assert len(kept) == 2


def test_a_value_ends_after_its_seconds() -> None:
    now = 0.0
    kept: Lru[str, int] = Lru(2, seconds=5.0, clock=lambda: now)
    kept.put("a", 0)
    now = 4.9
    assert kept.get("a") == 0
    now = 5.0
    assert kept.get("a") is None
    assert len(kept) == 0


def test_a_mapping_of_no_entries_keeps_nothing() -> None:
    kept: Lru[str, int] = Lru(0)
    kept.put("a", 1)
    assert kept.get("a") is None
    kept.clear()
    assert len(kept) == 0

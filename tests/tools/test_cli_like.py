"""The command search with --like, as typed, on a real database."""

import pytest

from command_line import Run, hits


@pytest.fixture
def dimensions() -> int:
    """The size of the embedder that comes with the package."""
    return 256


def test_what_is_like_a_hit_is_found_without_a_question(brain: Run) -> None:
    brain("ingest", "docs")
    (first, *_) = hits(brain("search", "yellow", "--json"))
    related = hits(brain("search", "--like", first["id"], "--json"))
    assert related
    assert first["id"] not in [hit["id"] for hit in related]
    done = brain("search")
    assert done.code == 2
    assert "give a question, or --like ID" in done.err

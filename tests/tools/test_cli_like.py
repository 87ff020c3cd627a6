"""The command search with --like, as typed, on a real database."""

from command_line import Run, hits
from support.small_model import dimensions as dimensions
from support.small_model import dsn as dsn
from support.small_model import shared_dsn as shared_dsn


def test_what_is_like_a_hit_is_found_without_a_question(brain: Run) -> None:
    brain("ingest", "docs")
    (first, *_) = hits(brain("search", "yellow", "--json"))
    related = hits(brain("search", "--like", first["id"], "--json"))
    assert related
    assert first["id"] not in [hit["id"] for hit in related]
    done = brain("search")
    assert done.code == 2
    assert "give a question, or --like ID" in done.err

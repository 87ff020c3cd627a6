"""The README of the SQL has the figures of `make size`."""

from tools import size


def test_the_readme_has_todays_figures() -> None:
    assert size.page() == size.README.read_text("utf-8"), "run `make size`"

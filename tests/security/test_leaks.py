"""What a viewer must not learn: random corpora, viewers and calls, and attacks on the roles.

Every stored row has a word of its own in each of its texts, so that a leak names its row.
"""

import pytest
from hypothesis import settings
from viewers import ME, Row, check_an_answer, generated, unhurried

from conftest import Connect, Connection
from support.emptied import dsn as dsn

pytestmark = pytest.mark.large


@pytest.fixture
def owner(connect: Connect) -> Connection:
    """The owner's connection, as an administrator who changes chunks and documents apart."""
    return connect()


@pytest.fixture
def me(connect: Connect) -> Connection:
    """A signed-in user's connection."""
    return connect("authenticated", uid=ME)


@settings(unhurried, max_examples=20)
@generated
def test_an_answer_is_that_of_a_corpus_without_what_the_viewer_may_not_see(
    service_role: Connection,
    owner: Connection,
    me: Connection,
    corpus: tuple[list[Row], list[Row]],
    request_: Row,
    public_only: bool,
    modules: tuple[str, ...],
) -> None:
    check_an_answer(service_role, owner, me, corpus, request_, public_only, modules)


@pytest.mark.slow
@settings(unhurried, max_examples=1_200)
@generated
def test_an_answer_is_that_of_a_corpus_without_what_the_viewer_may_not_see_at_length(
    service_role: Connection,
    owner: Connection,
    me: Connection,
    corpus: tuple[list[Row], list[Row]],
    request_: Row,
    public_only: bool,
    modules: tuple[str, ...],
) -> None:
    check_an_answer(service_role, owner, me, corpus, request_, public_only, modules)

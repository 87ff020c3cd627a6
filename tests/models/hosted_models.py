"""What the tests of hosted models share: a key, models that are closed, and waits without sleep."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from provider_server import Answer, ProviderServer, Request, texts_of

KEY = "a-secret-of-the-account"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that were requested, in seconds; no test sleeps."""
    waited: list[float] = []
    monkeypatch.setattr("second_brain.models.hosted.sleep", waited.append)
    return waited


@pytest.fixture
def opened(api: ProviderServer, waits: list[float]) -> Iterator[Callable[..., Any]]:
    """Make a model of a class at the stand-in for its API; it is closed at the end."""
    with ExitStack() as stack:

        def make(kind: Callable[..., Any], model: str = "small", **options: Any) -> Any:
            return stack.enter_context(kind(model, **{"base_url": api.url, **options}))

        yield make


def refuse(api: ProviderServer, answer: Answer, is_refused: Callable[[list[str]], bool]) -> None:
    """Give this answer to the requests with such texts, and the answer so far to the others."""
    accepted = api.answer

    def answered(request: Request) -> Answer | None:
        return answer if is_refused(texts_of(request)) else accepted(request)

    api.answer = answered

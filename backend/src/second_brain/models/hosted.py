"""Calls to models behind an API: limits, repetition and errors by kind.

Embedders and rerankers say what to send and how to read the answer; nothing here knows either.
"""

import json
import os
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from second_brain.errors import (
    AuthenticationError,
    ClientTimeoutError,
    ConfigurationError,
    InvalidInputError,
    SecondBrainError,
    UnavailableError,
    UnexpectedAnswerError,
    redacted,
    safe_message,
)

_T = TypeVar("_T")

_FIRST_WAIT = 0.5
_MINUTE = 60.0
# A token is rarely shorter: English has 4 bytes in one, Chinese about 3, source code about 3.
_BYTES_PER_TOKEN = 3

_PASSING_STATUSES = frozenset((408, 409, 425, 429))
_TOO_LONG = re.compile(
    r"tokens?\b.*(?:max|limit|exceed|too (?:many|long|large)|context)"
    r"|(?:max|limit|exceed|too (?:many|long|large)|context).*tokens?\b|context length",
    re.IGNORECASE | re.DOTALL,
)
_NO_CREDIT = frozenset(("insufficient_quota", "billing_hard_limit_reached"))


class QuotaExceededError(SecondBrainError):
    """The provider's rate limit was met on every try, or the account has no credit left."""

    kind = "quota_exceeded"
    http_status = 503
    default_remedy = (
        "Wait, or stay below the account's limit with a RateLimit; the provider's page on usage "
        "says whether credit is left."
    )


class TextTooLongError(InvalidInputError):
    """A text has more tokens than the model reads."""

    kind = "text_too_long"
    default_remedy = "Cut the text into smaller chunks."


class FailedCallError(Exception):
    """One try that failed: the error to raise, and whether another try may succeed.

    `retry_after` is what the provider asks to wait, in seconds.
    """

    def __init__(
        self, error: SecondBrainError, *, may_pass: bool = False, retry_after: float = 0.0
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_pass = may_pass
        self.retry_after = retry_after


class RateLimit:
    """At most so many requests, and estimated tokens, in any minute; share one for a key.

    A request of more tokens than a minute may have goes out alone.
    """

    def __init__(
        self,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        for name, value in (
            ("requests_per_minute", requests_per_minute),
            ("tokens_per_minute", tokens_per_minute),
        ):
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}", remedy="Give at least 1.")
        self._requests = requests_per_minute
        self._tokens = tokens_per_minute
        self._clock = clock
        self._lock = threading.Lock()
        # When each request of the last minute went out, or will, and its tokens.
        self._taken: deque[tuple[float, int]] = deque()
        self._tokens_taken = 0

    def reserve(self, tokens: int = 0) -> float:
        """Take a place for a request of so many tokens; return the seconds to wait for it."""
        with self._lock:
            now = self._clock()
            start = max(now, self._taken[-1][0]) if self._taken else now
            while self._taken and (
                self._taken[0][0] <= start - _MINUTE or not self._has_room(tokens)
            ):
                moment, freed = self._taken.popleft()
                start = max(start, moment + _MINUTE)
                self._tokens_taken -= freed
            self._taken.append((start, tokens))
            self._tokens_taken += tokens
            return start - now

    def _has_room(self, tokens: int) -> bool:
        return (self._requests is None or len(self._taken) < self._requests) and (
            self._tokens is None or self._tokens_taken + tokens <= self._tokens
        )


class Calls:
    """Calls to one provider, repeated while it is busy or out of reach.

    A try that may pass is repeated `retries` times: after what the provider's Retry-After asks,
    plus 0.5 s doubled with each try, of which up to a half is left to chance. A provider that asks
    for more than `longest_wait` seconds is not waited for.
    """

    def __init__(
        self, *, retries: int, longest_wait: float, rate_limit: RateLimit | None = None
    ) -> None:
        if retries < 0:
            raise ConfigurationError(f"retries is {retries}", remedy="Give 0 or more.")
        self._retries = retries
        self._longest_wait = longest_wait
        self._rate_limit = rate_limit

    def run(self, attempt: Callable[[], _T], tokens: int = 0) -> _T:
        """Return what `attempt` returns; it raises FailedCallError when the call fails."""
        tries = 0
        while True:
            if self._rate_limit is not None and (wait := self._rate_limit.reserve(tokens)) > 0:
                sleep(wait)
            try:
                return attempt()
            except FailedCallError as failed:
                tries += 1
                if (
                    not failed.may_pass
                    or tries > self._retries
                    or failed.retry_after > self._longest_wait
                ):
                    # The cause of a refused key may quote the key.
                    is_secret = isinstance(failed.error, AuthenticationError)
                    raise failed.error from (None if is_secret else failed.__cause__)
                backoff = min(_FIRST_WAIT * 2 ** (tries - 1), self._longest_wait)
                wait = failed.retry_after + backoff * random.uniform(0.5, 1)  # noqa: S311
            sleep(wait)


class Closes(Protocol):
    """What has connections to close."""

    def close(self) -> None:
        """Close them."""


class HostedModel:
    """A model behind an API: a context manager that closes the connections it opened."""

    _client: Closes

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class JsonApi:
    """JSON posted to one provider with its key; safe to use from several threads.

    `timeout` bounds each try, in seconds.
    """

    def __init__(self, provider: str, base_url: str, key: str, *, timeout: float) -> None:
        import httpx

        self._provider = provider
        self._key = key
        try:
            self._client = httpx.Client(
                base_url=base_url, headers={"Authorization": f"Bearer {key}"}, timeout=timeout
            )
        except httpx.InvalidURL as exc:
            raise _no_address(provider) from redacted(exc, secrets=[base_url])

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of the answer; raises FailedCallError for anything else."""
        import httpx

        try:
            response = self._client.post(path, json=body)
        except httpx.TimeoutException as exc:
            raise timed_out(self._provider) from self._redacted(exc)
        except httpx.UnsupportedProtocol as exc:
            raise FailedCallError(_no_address(self._provider)) from self._redacted(exc)
        except httpx.TransportError as exc:
            raise unreachable(self._provider, exc) from self._redacted(exc)
        except httpx.DecodingError as exc:
            raise malformed(self._provider, "it cannot be decompressed") from self._redacted(exc)
        if not response.is_success:
            raise refused(
                self._provider, response.status_code, response.headers, response.text, self._key
            )
        try:
            return response.json()
        except ValueError as exc:
            raise malformed(self._provider, "it is not JSON") from self._redacted(exc)

    def _redacted(self, error: Exception) -> BaseException:
        return redacted(error, secrets=[self._key])


def find_key(provider: str, key: str | None, *variables: str) -> str:
    """Return the key given, or that of the first variable set; raises ConfigurationError."""
    found = key or next(filter(None, map(os.environ.get, variables)), None)
    if not found:
        raise ConfigurationError(
            f"there is no key for {provider}",
            remedy=f"Give api_key, or set {' or '.join(variables)}.",
        )
    if not re.fullmatch(r"[!-~]+", found):
        raise ConfigurationError(
            f"the key for {provider} is none that HTTP can send",
            remedy="Look for spaces and line breaks in it.",
        )
    return found


def estimate_tokens(text: str, name: str) -> int:
    """Estimate the tokens of a text; raises InvalidInputError when UTF-8 has no form for it."""
    try:
        return 1 + len(text.encode()) // _BYTES_PER_TOKEN
    except UnicodeEncodeError as exc:
        raise InvalidInputError(f"{name} has half of a surrogate pair") from exc


def refused(
    provider: str, status: int, headers: Mapping[str, str], body: str, key: str
) -> FailedCallError:
    """Say what an answer with an error status means."""
    message, code = _what_it_says(body)
    text = safe_message(message, secrets=[key]) or "nothing more"
    told = f"{provider} answered {status}: {text}"
    named = {"code": str(status)}
    if status in (401, 403):
        return FailedCallError(
            AuthenticationError(
                f"{provider} refused the key with {status}",
                **named,
                remedy="Check that the key is valid and may use this model.",
            )
        )
    if status == 402 or code in _NO_CREDIT:
        return FailedCallError(
            QuotaExceededError(
                told, **named, remedy="Add credit to the account, or raise its limit."
            )
        )
    if status == 429:
        error: SecondBrainError = QuotaExceededError(told, **named)
    elif status >= 500 or status in _PASSING_STATUSES:
        error = UnavailableError(told, **named, remedy="Try again later.")
    elif status == 413 or (status in (400, 422) and _TOO_LONG.search(message)):
        error = TextTooLongError(told, **named)
    elif status == 404:
        error = ConfigurationError(
            told, **named, remedy="Check the model's name and the address of the API."
        )
    elif status >= 400:
        error = InvalidInputError(
            told, **named, remedy="Check that the model takes these arguments."
        )
    else:
        error = UnexpectedAnswerError(told, **named, remedy="Check the address of the API.")
    return FailedCallError(
        error,
        may_pass=status >= 500 or status in _PASSING_STATUSES,
        retry_after=_retry_after(headers),
    )


def timed_out(provider: str) -> FailedCallError:
    """Say that a try took too long."""
    return FailedCallError(
        ClientTimeoutError(
            f"{provider} did not answer in time", remedy="Raise timeout, or send less at once."
        ),
        may_pass=True,
    )


def unreachable(provider: str, error: BaseException) -> FailedCallError:
    """Say that a connection could not be made, or broke."""
    return FailedCallError(
        UnavailableError(
            f"{provider} cannot be reached: {safe_message(error) or type(error).__name__}",
            remedy="Check the network and the address of the API.",
        ),
        may_pass=True,
    )


def malformed(provider: str, what: str) -> FailedCallError:
    """Say that an answer is not of the API's form."""
    return FailedCallError(
        UnexpectedAnswerError(
            f"the answer of {provider} cannot be used: {what}",
            remedy="Check the model's name and the address of the API.",
        )
    )


def in_order(provider: str, numbered: Iterable[tuple[Any, _T]], count: int) -> list[_T]:
    """Return the values by their numbers, which must be 0 to count - 1; else FailedCallError."""
    pairs = list(numbered)
    if any(type(number) is not int for number, _ in pairs) or (
        sorted(number for number, _ in pairs) != list(range(count))
    ):
        raise malformed(provider, f"{count} results were due, and it has {len(pairs)}, or others")
    values = dict(pairs)
    return [values[number] for number in range(count)]


def _no_address(provider: str) -> ConfigurationError:
    return ConfigurationError(
        f"the address of {provider} is not a URL", remedy="Give base_url as https://HOST/PATH."
    )


def _what_it_says(body: str) -> tuple[str, str | None]:
    """Return message and code of an error's body, in the forms that providers use."""
    try:
        told: Any = json.loads(body)
    except (ValueError, RecursionError):
        return body, None
    if isinstance(told, dict) and isinstance(told.get("error"), dict):
        told = told["error"]
    if not isinstance(told, dict):
        return body, None
    code = told.get("code")
    message = next((told[name] for name in ("message", "detail", "error") if told.get(name)), body)
    return str(message), code if isinstance(code, str) else None


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that the answer asks to wait: a number or a date; 0 without any."""
    value = headers.get("retry-after")
    if value is None:
        return 0.0
    if re.fullmatch(r"\d+(\.\d+)?", value.strip()):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())

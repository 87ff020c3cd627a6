"""Calls to models behind an API: rate limits, retries, and one error class for each failure.

Embedders and rerankers define the request and read the response; this module knows neither.
"""

import json
import os
import random
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from time import monotonic, sleep
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import urlsplit

from second_brain.errors import (
    AuthenticationError,
    ClientTimeoutError,
    ConfigurationError,
    InvalidInputError,
    QuotaExceededError,
    SecondBrainError,
    UnavailableError,
    UnexpectedAnswerError,
    redacted,
    safe_message,
)
from second_brain.models.providers import Provider

_T = TypeVar("_T")

_FIRST_WAIT = 0.5
_MINUTE = 60.0
# Few tokens are shorter: a token has about 4 bytes in English, 3 in Chinese and in source code.
_BYTES_PER_TOKEN = 3

_PASSING_STATUSES = frozenset((408, 409, 425, 429))
_TOO_LONG = re.compile(
    r"tokens?\b.*(?:max|limit|exceed|too (?:many|long|large)|context)"
    r"|(?:max|limit|exceed|less than|too (?:many|long|large)|context).*tokens?\b|context length"
    # Text Embeddings Inference: too many texts, which halving solves too.
    r"|batch size \d+ >",
    re.IGNORECASE | re.DOTALL,
)
_NO_CREDIT = frozenset(("insufficient_quota", "billing_hard_limit_reached"))


class TextTooLongError(InvalidInputError):
    """A text has more tokens than the model accepts."""

    kind = "text_too_long"
    default_remedy = "Cut the text into smaller chunks."


class FailedCallError(Exception):
    """One try failed: `error` is the error to raise, `may_pass` whether another try may succeed.

    `retry_after` is the wait that the provider requests, in seconds.
    """

    def __init__(
        self, error: SecondBrainError, *, may_pass: bool = False, retry_after: float = 0.0
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_pass = may_pass
        self.retry_after = retry_after


class RateLimit:
    """A limit of requests and estimated tokens in any minute; share one object per API key.

    A request with more tokens than the limit is sent alone in its minute.
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
        # Start time (past or planned) and tokens of each request of the last minute.
        self._taken: deque[tuple[float, int]] = deque()
        self._tokens_taken = 0

    def reserve(self, tokens: int = 0) -> float:
        """Reserve the next free time for a request of `tokens`; return the seconds to wait."""
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
    """Calls to one provider, with retries while the provider is busy or unreachable.

    A temporary failure is retried up to `retries` times. Each wait is the provider's Retry-After
    plus a backoff: 0.5 s, doubled with each try, times a random factor between 0.5 and 1. If
    Retry-After is more than `longest_wait` seconds, the call fails at once.
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
        """Return the result of `attempt`, which raises FailedCallError when a try fails."""
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
                    # The cause of an authentication error may contain the key.
                    is_secret = isinstance(failed.error, AuthenticationError)
                    raise failed.error from (None if is_secret else failed.__cause__)
                backoff = min(_FIRST_WAIT * 2 ** (tries - 1), self._longest_wait)
                wait = failed.retry_after + backoff * random.uniform(0.5, 1)  # noqa: S311
            sleep(wait)


class Closes(Protocol):
    """An object that has connections to close."""

    def close(self) -> None:
        """Close the connections."""


class HostedModel:
    """A model behind an API: a context manager that closes the connections it opened."""

    _client: Closes

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class JsonApi:
    """A client that posts JSON to one provider with its key, if it has one; thread-safe.

    `timeout` is in seconds for each try.
    """

    def __init__(self, provider: str, base_url: str, key: str, *, timeout: float) -> None:
        import httpx

        self._provider = provider
        self._key = key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._made = partial(httpx.Client, base_url=base_url, headers=headers, timeout=timeout)
        self._process = os.getpid()
        try:
            self._client = self._made()
        except httpx.InvalidURL as exc:
            raise no_address(provider) from redacted(exc, secrets=[base_url])

    def close(self) -> None:
        """Close the connections."""
        # There is no client if the address is not a URL. Copies are the connections of the parent.
        if self._process == os.getpid() and (client := getattr(self, "_client", None)):
            client.close()

    def __del__(self) -> None:
        # A command does not close its embedder.
        self.close()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of the response; raises FailedCallError for any other response."""
        if self._process != os.getpid():
            # On a copied connection come the answers of the process that was forked.
            self._process, self._client = os.getpid(), self._made()
        with http_errors(self._provider, self._key):
            response = self._client.post(path, json=body)
        if not response.is_success:
            raise refused(
                self._provider, response.status_code, response.headers, response.text, self._key
            )
        try:
            return response.json()
        except ValueError as exc:
            raise malformed(self._provider, "it is not JSON") from redacted(
                exc, secrets=[self._key]
            )


@contextmanager
def http_errors(provider: str, key: str) -> Iterator[None]:
    """Raise FailedCallError for an exception of an HTTP client, with the key removed."""
    try:
        yield
    except _of_httpx("TimeoutException") as exc:
        raise timed_out(provider) from redacted(exc, secrets=[key])
    except _of_httpx("UnsupportedProtocol") as exc:
        raise FailedCallError(no_address(provider)) from redacted(exc, secrets=[key])
    except _of_httpx("TransportError") as exc:
        raise unreachable(provider, exc) from redacted(exc, secrets=[key])
    except _of_httpx("DecodingError") as exc:
        raise malformed(provider, "it cannot be decompressed") from redacted(exc, secrets=[key])


def _of_httpx(name: str) -> tuple[type[Exception], ...]:
    """Return the exception of httpx, and that of its fork httpx2, which some packages use."""
    loaded = (sys.modules.get(package) for package in ("httpx", "httpx2"))
    return tuple(getattr(package, name) for package in loaded if package is not None)


def find_key(provider: Provider, key: str | None, *, is_needed: bool = True) -> str:
    """Return `key`, or that of the environment; raises ConfigurationError without one.

    If none is needed, at another server with the provider's API, the key of the environment is not
    read: it is not for that server. Without a key the result is empty.
    """
    found = key or ""
    if not found and is_needed:
        found = next(filter(None, map(os.environ.get, provider.key_variables)), "")
        if not found:
            raise ConfigurationError(
                f"there is no key for {provider.name}",
                remedy=f"Give api_key, or set {' or '.join(provider.key_variables)}.",
            )
    if re.search(r"[^!-~]", found):
        raise ConfigurationError(
            f"the key for {provider.name} has characters that an HTTP header cannot contain",
            remedy="Remove spaces and line breaks from the key.",
        )
    return found


def server_name(provider: Provider, base_url: str) -> str:
    """Return what errors call a server: the provider, or host and port of another server.

    Raises ConfigurationError if `base_url` is not a URL.
    """
    try:
        address = urlsplit(base_url)
        host, port = address.hostname, address.port
    except ValueError:
        raise no_address(provider.name) from None
    if address.scheme not in ("http", "https") or not host:
        raise no_address(provider.name)
    if host == urlsplit(provider.base_url).hostname:
        return provider.name
    return host if port is None else f"{host}:{port}"


def estimate_tokens(text: str, name: str) -> int:
    """Estimate the tokens of a text; raises InvalidInputError if it cannot be encoded as UTF-8."""
    try:
        return 1 + len(text.encode()) // _BYTES_PER_TOKEN
    except UnicodeEncodeError as exc:
        raise InvalidInputError(f"{name} has half of a surrogate pair") from exc


def refused(
    provider: str, status: int, headers: Mapping[str, str], body: str, key: str
) -> FailedCallError:
    """Return the error for a response with an error status."""
    message, code = _message_and_code(body)
    text = safe_message(message, secrets=[key]) or "no message"
    full_message = f"{provider} returned status {status}: {text}"
    named = {"code": str(status)}
    if status in (401, 403):
        return FailedCallError(
            AuthenticationError(
                f"{provider} rejected the key with status {status}",
                **named,
                remedy="Check that the key is valid and may use this model.",
            )
        )
    if status == 402 or code in _NO_CREDIT:
        return FailedCallError(
            QuotaExceededError(
                full_message, **named, remedy="Add credit to the account, or raise its limit."
            )
        )
    if status == 429:
        error: SecondBrainError = QuotaExceededError(full_message, **named)
    elif status >= 500 or status in _PASSING_STATUSES:
        error = UnavailableError(full_message, **named, remedy="Try again later.")
    elif status == 413 or (status in (400, 422) and _TOO_LONG.search(message)):
        error = TextTooLongError(full_message, **named)
    elif status == 404:
        error = ConfigurationError(
            full_message, **named, remedy="Check the model's name and the address of the API."
        )
    elif status >= 400:
        remedy = (
            "Give dimensions that the model has, or none."
            if re.search("dimension|matryoshka", message, re.IGNORECASE)
            else "Check that the model accepts these arguments."
        )
        error = InvalidInputError(full_message, **named, remedy=remedy)
    else:
        error = UnexpectedAnswerError(full_message, **named, remedy="Check the address of the API.")
    return FailedCallError(
        error,
        may_pass=status >= 500 or status in _PASSING_STATUSES,
        retry_after=retry_after(headers.get("retry-after")) or 0.0,
    )


def timed_out(provider: str) -> FailedCallError:
    """Return the error for a try that exceeded `timeout`."""
    return FailedCallError(
        ClientTimeoutError(
            f"{provider} did not answer in time", remedy="Raise timeout, or send fewer texts."
        ),
        may_pass=True,
    )


def unreachable(provider: str, error: BaseException) -> FailedCallError:
    """Return the error for a connection that failed or broke."""
    return FailedCallError(
        UnavailableError(
            f"{provider} cannot be reached: {safe_message(error) or type(error).__name__}",
            remedy="Check the network and the address of the API.",
        ),
        may_pass=True,
    )


def malformed(provider: str, defect: str) -> FailedCallError:
    """Return the error for a response that does not have the API's form."""
    return FailedCallError(
        UnexpectedAnswerError(
            f"the response of {provider} cannot be used: {defect}",
            remedy="Check the model's name and the address of the API.",
        )
    )


def in_order(provider: str, numbered: Iterable[tuple[Any, _T]], count: int) -> list[_T]:
    """Return the values in the order of their numbers; raises FailedCallError.

    The numbers must be 0 to count - 1, each once.
    """
    pairs = list(numbered)
    if any(type(number) is not int for number, _ in pairs) or (
        sorted(number for number, _ in pairs) != list(range(count))
    ):
        raise malformed(
            provider,
            f"{len(pairs)} results where {count} are expected, or their numbers are wrong",
        )
    values = dict(pairs)
    return [values[number] for number in range(count)]


def no_address(provider: str) -> ConfigurationError:
    """Return the error for a base_url that is not a URL."""
    return ConfigurationError(
        f"the address of {provider} is not a URL", remedy="Give base_url as https://HOST/PATH."
    )


def _message_and_code(body: str) -> tuple[str, str | None]:
    """Return message and code of an error's body, in the forms that providers use."""
    try:
        error: Any = json.loads(body)
    except (ValueError, RecursionError):
        return body, None
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not isinstance(error, dict):
        return body, None
    code = error.get("code")
    names = ("message", "detail", "error")
    message = next((error[name] for name in names if error.get(name)), body)
    return str(message), code if isinstance(code, str) else None


def retry_after(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which has them or a date; None without them."""
    if header is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", header.strip()):
        return float(header)
    try:
        moment = parsedate_to_datetime(header)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())

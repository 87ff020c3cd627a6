"""Search over Supabase's REST API: each method is one `rpc` call."""

import os
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, Unpack

from second_brain.errors import (
    NO_KEY,
    ClientUnavailableError,
    ConfigurationError,
    ConnectionLostError,
    UnexpectedAnswerError,
    redacted,
    translate,
)
from second_brain.filters import json_form
from second_brain.services.arguments import without_defaults
from second_brain.services.calls import Client, ClientOptions, Deadline, keys_of, uncertain
from second_brain.services.functions import functions, packed
from second_brain.services.install import check_schema
from second_brain.services.own_documents import AsyncOwnDocuments, OwnDocuments
from second_brain.services.processes import refuse_process
from second_brain.services.provider import AsyncSearchProvider, SearchProvider
from second_brain.services.results import CutRows, Source
from second_brain.services.searches import integer, listing_of
from second_brain.services.writing import AsyncWrites, Writes

if TYPE_CHECKING:
    import httpx

    from supabase import AsyncClient
    from supabase import Client as SupabaseClient

TIMEOUT = 30.0
"""Seconds. It is for hanging connections; Supabase's statement_timeout is much shorter."""

PAGE = 100
"""Rows that an answer can have at any usual Max rows of a project; for more, a call asks how many
rows there are."""

AnyClient = TypeVar("AnyClient")
AnyHttp = TypeVar("AnyHttp")

_timeout: ContextVar[float | None] = ContextVar("_timeout", default=TIMEOUT)


class _Project(Client, Generic[AnyClient, AnyHttp]):
    """The client of a Supabase project: given by the caller, or created on first use."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        client: AnyClient | None = None,
        schema: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        if schema is not None:
            check_schema(schema)
        self.config = dict(config or {})
        options["on_error"] = options.get("on_error") or self.config.get("on_error") or "empty"
        options.setdefault("timeout", TIMEOUT)
        super().__init__(**options)
        self._schema = schema
        self._client: Any = client
        self._is_callers = client is not None
        self._http: AnyHttp | None = None
        self._lock = threading.Lock()
        # That of the first call: without one, there is no open connection.
        self._process: int | None = None

    @abstractmethod
    def _make(self, url: str, key: str) -> tuple[AnyClient, AnyHttp]:
        """Create a client and its HTTP client; raise when the URL is invalid."""

    def _load_client(self) -> AnyClient | None:
        """Return the client, created on first use; None without credentials.

        Raises ConfigurationError when the URL is invalid, and for a caller's client that was used
        before a fork.
        """
        if self._process != os.getpid():
            if self._process is not None:
                if self._is_callers:
                    refuse_process("client")
                # The copies of the connections are not closed: the parent still uses them.
                self._lock, self._client, self._http = threading.Lock(), None, None
            self._process = os.getpid()
        with self._lock:
            if self._client is None:
                url, key = self._credentials()
                if url and key:
                    if not (key.isascii() and key.isprintable()):
                        raise ConfigurationError(NO_KEY, remedy="Check SUPABASE_KEY.")
                    try:
                        self._client, self._http = self._make(url, key)
                    # Any exception here means that the URL or the key is invalid.
                    except Exception as error:  # noqa: BLE001
                        raise ConfigurationError(
                            "the Supabase client cannot be created from this URL and key",
                            remedy="Check SUPABASE_URL (https://….supabase.co) and SUPABASE_KEY.",
                        ) from redacted(error, secrets=(url, key))
            client: AnyClient | None = self._client
            return client

    def _needed_client(self) -> Any:
        client = self._load_client()
        if client is None:
            raise ClientUnavailableError("no Supabase URL and key")
        return client

    @abstractmethod
    async def _execute(self, request: Any) -> Any:
        """Send a request and return its answer."""

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        # Before the deadline: the first call imports supabase-py, which takes its time.
        self._needed_client()
        deadline, pages = Deadline(timeout), _Pages(function, arguments)
        while not pages.is_complete:
            request = self._request(function, arguments, pages.received)
            try:
                with _limited(deadline.left()):
                    pages.add(await self._execute(request))
            except Exception as error:
                _note_status(error)
                is_lost = isinstance(translate(error), ConnectionLostError)
                if is_lost and functions()[function].writes:
                    cause = redacted(error, secrets=self._secrets())
                    raise uncertain("before the answer", keys_of(arguments)) from cause
                raise
        return pages.answer

    def _request(self, function: str, arguments: dict[str, Any], first: int) -> Any:
        """Return the call whose answer begins with the row `first`."""
        from postgrest import CountMethod

        client = self._needed_client()
        # The client of a schema shares the HTTP session, and sends the schema in a header.
        api = client if self._schema is None else client.schema(self._schema)
        if functions()[function].writes:
            # A second call for the rest of an answer would write again.
            return api.rpc(
                function, {name: json_form(value, name) for name, value in arguments.items()}
            )
        given = packed(function, without_defaults(arguments))
        if _fits_a_page(arguments):
            return api.rpc(function, given)
        request = api.rpc(function, given, count=CountMethod.exact)
        return request.offset(first) if first else request

    def _released_http(self) -> AnyHttp | None:
        with self._lock:
            http = self._http if self._process == os.getpid() else None
            if http is not None:
                self._http = self._client = None
            return http

    def _credentials(self) -> tuple[str, str]:
        return self._setting("supabase_url"), self._setting("supabase_key")

    def _setting(self, name: str) -> str:
        # Files and secret stores often add a newline, which an HTTP header cannot contain.
        return str(self.config.get(name) or os.environ.get(name.upper()) or "").strip()

    def _secrets(self) -> Iterable[object]:
        """Return the URL and the key."""
        return self._credentials()


class SupabaseProvider(
    _Project["SupabaseClient", "httpx.Client"], OwnDocuments, Writes, SearchProvider
):
    """Search through a Supabase project's REST API with the service role's key.

    `config` has `supabase_url` and `supabase_key`; missing values are read from SUPABASE_URL and
    SUPABASE_KEY on first use. `on_error` is "empty" here, as in the class that this one replaces,
    unless the argument or `config["on_error"]` says "raise". A `client` of the caller keeps its own
    timeouts. `schema` is that of the install, which the API must expose; the default is the
    client's, usually public.
    It writes, too: a lost connection then raises UncertainWriteError. `search_my_knowledge` and the
    methods for a user's own documents need a client with the user's token. Thread-safe.
    """

    name: ClassVar[Source] = "supabase"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of the provider's own client; a later call creates a new one."""
        http = self._released_http()
        if http is not None:
            http.close()

    def _make(self, url: str, key: str) -> "tuple[SupabaseClient, httpx.Client]":
        import httpx
        from supabase.lib.client_options import SyncClientOptions

        from supabase import create_client

        # HTTP/1.1, because with HTTP/2 all threads share one connection, and all calls fail when
        # the server closes it.
        # No redirects, because httpx would send the apikey header to the other host.
        http = httpx.Client(follow_redirects=False, event_hooks=_HOOKS)
        options = SyncClientOptions(
            httpx_client=http, auto_refresh_token=False, persist_session=False
        )
        try:
            return create_client(url, key, options), http
        except BaseException:
            http.close()
            raise

    async def _execute(self, request: Any) -> Any:
        return request.execute()


class AsyncSupabaseProvider(
    _Project["AsyncClient", "httpx.AsyncClient"],
    AsyncOwnDocuments,
    AsyncWrites,
    AsyncSearchProvider,
):
    """`SupabaseProvider` for an event loop, with supabase-py's AsyncClient; one for each loop."""

    name: ClassVar[Source] = "supabase"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of the provider's own client; a later call creates a new one."""
        http = self._released_http()
        if http is not None:
            await http.aclose()

    def _make(self, url: str, key: str) -> "tuple[AsyncClient, httpx.AsyncClient]":
        import httpx
        from supabase.lib.client_options import AsyncClientOptions

        from supabase import AsyncClient

        http = httpx.AsyncClient(follow_redirects=False, event_hooks=_HOOKS_OF_A_LOOP)
        options = AsyncClientOptions(
            httpx_client=http, auto_refresh_token=False, persist_session=False
        )
        # acreate_client would only look for a stored session in addition, and there is none.
        return AsyncClient(url, key, options), http

    async def _execute(self, request: Any) -> Any:
        return await request.execute()


def _fits_a_page(arguments: Mapping[str, Any]) -> bool:
    rows = integer(arguments.get("match_count", arguments.get("page_size")))
    return rows is not None and rows <= PAGE


def _note_status(error: Exception) -> None:
    """Set `status` of an error of postgrest-py, which drops it; its frame has the response."""
    import httpx
    from postgrest.exceptions import APIError

    if isinstance(error, APIError):
        for frame, _ in walk_tb(error.__traceback__):
            for value in frame.f_locals.values():
                if isinstance(value, httpx.Response):
                    error.status = value.status_code  # type: ignore[attr-defined]


class _Pages:
    """The answer of a function, in as many pages as the project's Max rows makes of it.

    PostgREST cuts an answer without an error, and reports the number of rows on request. Where it
    was not asked, the rows of a hybrid search tell the length of their list.
    """

    def __init__(self, function: str, arguments: Mapping[str, Any]) -> None:
        self._is_rows = functions()[function].returns == "rows"
        self._arguments = arguments
        self._rows: list[object] = []
        self._count: int | None = None
        self.answer: object = None
        self.is_complete = False

    @property
    def received(self) -> int:
        """The number of rows so far."""
        return len(self._rows)

    def add(self, page: Any) -> None:
        """Take a page. Each is a call of its own, and another count means that data changed."""
        if not self._is_rows or not isinstance(page.data, list):
            self.answer, self.is_complete = page.data, True
            return
        is_first = self._count is None
        self._rows += page.data
        # A caller's own client may have no count, or a mock of one.
        given = getattr(page, "count", None)
        count = given if isinstance(given, int) else None
        has_all = self.received >= (self._listed() if count is None else count)
        has_changed = not is_first and count != self._count
        self.is_complete = count is None or has_all or has_changed or not page.data
        self._count = count
        self.answer = self._rows if has_all and not has_changed else CutRows(self._rows)

    def _listed(self) -> int:
        """Return how many rows the list has for this page of it; 0 when no row says."""
        offset = integer(self._arguments.get("match_offset")) or 0
        rows = integer(self._arguments.get("match_count")) or 0
        return min(rows, (listing_of(self._rows).total_count or 0) - offset)


@contextmanager
def _limited(timeout: float | None) -> Iterator[None]:
    token = _timeout.set(timeout)
    try:
        yield
    finally:
        _timeout.reset(token)


def _limit(request: "httpx.Request") -> None:
    # supabase-py has no timeout for a single call.
    request.extensions["timeout"] = dict.fromkeys(
        ("connect", "read", "write", "pool"), _timeout.get()
    )


def _refuse_nothing(response: "httpx.Response") -> None:
    # postgrest-py makes no hits of it, but PostgREST writes each answer as JSON.
    headers = response.headers
    has_content = headers.get("content-length") != "0" and response.status_code != 204
    if response.is_success and not has_content:
        raise UnexpectedAnswerError("the answer is empty")


def _of_a_loop(hook: Callable[[Any], None]) -> Callable[[Any], Awaitable[None]]:
    async def call(given: Any) -> None:
        hook(given)

    return call


_HOOKS: Mapping[str, list[Any]] = {"request": [_limit], "response": [_refuse_nothing]}
_HOOKS_OF_A_LOOP = {name: list(map(_of_a_loop, hooks)) for name, hooks in _HOOKS.items()}

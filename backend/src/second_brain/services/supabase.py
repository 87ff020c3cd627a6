"""Search over Supabase's REST API: one `rpc` per call, no logic of its own."""

import os
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from second_brain.errors import ConfigurationError
from second_brain.services.provider import (
    ClientUnavailableError,
    SearchProvider,
    without_defaults,
)
from second_brain.services.results import Source

if TYPE_CHECKING:
    import httpx

    from supabase import Client

TIMEOUT = 30.0
"""Seconds. Supabase ends a statement long before; this is for a connection that says nothing."""


class SupabaseProvider(SearchProvider):
    """Search through a Supabase project's REST API with the service role's key.

    `config` has `supabase_url` and `supabase_key`; what it does not say is read from SUPABASE_URL
    and SUPABASE_KEY when the client is first needed. A `client` that is given is used as it is: one
    that carries a user's token is for `search_my_knowledge`. One provider serves many threads.
    """

    name: ClassVar[Source] = "supabase"

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        client: "Client | None" = None,
        timeout: float = TIMEOUT,
        multi_tenant: bool = False,
    ) -> None:
        super().__init__(multi_tenant=multi_tenant)
        self._config = dict(config or {})
        self._client: Any = client
        self._timeout = timeout
        self._http: httpx.Client | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of a client that this provider made; a later call makes another."""
        with self._lock:
            if self._http is not None:
                self._http.close()
                self._http = self._client = None

    def _load_client(self) -> "Client | None":
        """Return the client, made on first use; None without credentials.

        Raises ConfigurationError when the URL is not one.
        """
        with self._lock:
            if self._client is None:
                url, key = self._credentials()
                if url and key:
                    self._client = self._make_client(url, key)
            return self._client

    def _make_client(self, url: str, key: str) -> "Client":
        import httpx
        from supabase.lib.client_options import SyncClientOptions

        from supabase import create_client

        # HTTP/1.1: httpx's HTTP/2 connections are shared by all threads, and one that the server
        # ends takes every call on it along; a POST is not tried again.
        # No redirects: the apikey header would go along to whatever host is named.
        http = httpx.Client(timeout=self._timeout, follow_redirects=False)
        options = SyncClientOptions(
            httpx_client=http, auto_refresh_token=False, persist_session=False
        )
        try:
            client = create_client(url, key, options)
        except Exception as error:
            http.close()
            raise ConfigurationError(
                "no Supabase client can be made of this URL and key",
                remedy="Check SUPABASE_URL (https://….supabase.co) and SUPABASE_KEY.",
            ) from error
        self._http = http
        return client

    def _credentials(self) -> tuple[str, str]:
        return self._setting("supabase_url"), self._setting("supabase_key")

    def _setting(self, name: str) -> str:
        # A newline at the end of a key, as files and secret stores leave it, is no header.
        return str(self._config.get(name) or os.environ.get(name.upper()) or "").strip()

    def _secrets(self) -> Iterable[object]:
        return self._credentials()

    def _call(self, function: str, arguments: dict[str, Any]) -> object:
        client = self._load_client()
        if client is None:
            raise ClientUnavailableError("no Supabase URL and key")
        return client.rpc(function, without_defaults(arguments)).execute().data

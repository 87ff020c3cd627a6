"""Web pages and sitemaps, fetched one after the other, within bounds and as robots.txt allows.

Every request, redirects included, goes to an address that was checked after the host's name was
resolved, so neither a page nor a name server can lead it into a private network.
"""

import contextlib
import posixpath
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING

import httpx

from second_brain.errors import ConfigurationError
from second_brain.extras import needed
from second_brain.ingest.document import (
    LeftOutError,
    LoadedDocument,
    UnreadableDocumentError,
    is_web_address,
)
from second_brain.ingest.loading import described, load_bytes
from second_brain.ingest.sources import FoundFiles, KnowledgeSource, UnreadDocument, is_excluded
from second_brain.ingest.web_answers import (
    BUSY,
    HEAD_BYTES,
    INVALID,
    NO_INDEX,
    Answer,
    RefusedError,
    answer_of,
    checked,
    is_login,
    read_sitemap,
    refresh_of,
    suffix_of,
)

if TYPE_CHECKING:
    from protego import Protego

MAX_PAGES = 1_000
MAX_REDIRECTS = 5
MAX_ROBOTS_BYTES = 512_000
"""RFC 9309 asks for 500 KiB; a parsed rule needs more memory than its line."""

_AGENT = "second-brain"
_CONNECT_SECONDS, _READ_SECONDS, _PAGE_SECONDS = 10.0, 30.0, 120.0
_LONGEST_DELAY = 10.0
_MAX_SITEMAPS = 50
_SITEMAP = re.compile(r"\.xml(\.gz)?$|/sitemap[^/]*\.txt$", re.IGNORECASE)
_TRIES, _LONGEST_WAIT = 3, 60.0
# What reaches an IPv4 address from IPv6: NAT64, 6to4, translated and compatible addresses.
_WITH_IPV4 = {"64:ff9b::": 12, "2002::": 2, "::ffff:0:0:0": 12, "::": 12}
# Services of a cloud's own machines, outside the private ranges: Oracle's and Azure's.
_OF_CLOUDS = (IPv4Network("192.0.0.0/24"), IPv4Network("168.63.129.16/32"))
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
Address = IPv4Address | IPv6Address


def is_public(address: Address) -> bool:
    """Return whether an address is on the public internet, whatever form it is written in."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped:
            return is_public(address.ipv4_mapped)
        for prefix, first in _WITH_IPV4.items():
            if address.packed[:first] == IPv6Address(prefix).packed[:first]:
                return is_public(IPv4Address(address.packed[first : first + 4]))
        if address in _LOCAL_NAT64 or address.is_site_local:
            return False
    elif any(address in network for network in _OF_CLOUDS):
        return False
    return address.is_global and not address.is_multicast


@dataclass
class WebReader:
    """Finds and reads pages; close it, or use it in a `with` statement.

    `is_allowed` decides to which addresses it connects; `encoding` is that of all pages.
    """

    is_allowed: Callable[[Address], bool] = is_public
    encoding: str | None = None
    _clients: dict[str, httpx.Client] = field(default_factory=dict)
    _robots: "dict[str, Protego]" = field(default_factory=dict)
    _asked_at: dict[str, float] = field(default_factory=dict)
    _listed: dict[httpx.URL, bool] = field(default_factory=dict)

    def __enter__(self) -> "WebReader":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def find(
        self,
        addresses: Iterable[str],
        *,
        source: str | None = None,
        exclude: Sequence[str] = (),
        max_pages: int = MAX_PAGES,
    ) -> FoundFiles:
        """List pages; an address that ends in `.xml` or `.xml.gz` is a sitemap.

        A key is `SOURCE:PATH`, SOURCE by default the host, and PATH with the query. Of a sitemap,
        the first `max_pages` pages of its host are taken. A sitemap that cannot be read is listed
        as a document that cannot be read.
        """
        found = FoundFiles()
        documents: dict[str, UnreadDocument] = {}
        for address in addresses:
            try:
                url = checked(httpx.URL(address))
            except INVALID as exc:
                raise ConfigurationError(f"{address} is no address of the web: {exc}") from exc
            place = url.netloc.decode()
            belongs_to = KnowledgeSource(source or place.replace(":", "-"), place)
            is_sitemap = bool(_SITEMAP.search(url.path))
            pages: dict[str, UnreadDocument] = {}
            others = 0
            try:
                unread: dict[httpx.URL, UnreadableDocumentError] = {}
                for page in self._sitemap_pages(url, unread) if is_sitemap else [url]:
                    key = belongs_to.key(_path(page))
                    if page.netloc != url.netloc:
                        others += 1
                    elif is_excluded(page.path.strip("/"), exclude):
                        found.excluded.add(key)
                    elif len(pages) < max_pages or key in pages:
                        load = partial(self._load, page, stay=is_sitemap)
                        pages[key] = UnreadDocument(key, load, belongs_to)
                        self._listed[page] = True
                    else:
                        found.notes.append(
                            f"{address}: only the first {max_pages} pages are read; "
                            "--max-pages allows more"
                        )
                        break
                else:
                    if is_sitemap:
                        folder = belongs_to.key(f"{posixpath.dirname(url.path).rstrip('/')}/")
                        if not unread:
                            # Else the pages of another sitemap would be gone.
                            found.folders.append((belongs_to, folder))
                        pages = {key: replace(page, site=folder) for key, page in pages.items()}
                for child, error in unread.items():
                    key = belongs_to.key(_path(child))
                    pages[key] = UnreadDocument(key, partial(_refuse, error), belongs_to)
            except UnreadableDocumentError as error:
                key = belongs_to.key(_path(url))
                pages[key] = UnreadDocument(key, partial(_refuse, error), belongs_to)
            if others:
                found.notes.append(f"{address}: {others} pages of other hosts are left out")
            documents |= {key: page for key, page in pages.items() if key not in documents}
        found.documents.extend(documents.values())
        return found

    def _sitemap_pages(
        self, sitemap: httpx.URL, unread: dict[httpx.URL, UnreadableDocumentError]
    ) -> Iterator[httpx.URL]:
        """Yield the pages of a sitemap and of those that it names; `unread` gets what fails."""
        waiting, seen = [sitemap], 0
        while waiting:
            seen += 1
            if seen > _MAX_SITEMAPS:
                raise UnreadableDocumentError(f"names more than {_MAX_SITEMAPS} sitemaps")
            current = waiting.pop(0)
            try:
                kind, found = read_sitemap(self._get(current, stay=True))
            except UnreadableDocumentError as error:
                if current == sitemap:
                    raise
                unread[current] = error
                continue
            for text in found:
                with contextlib.suppress(*INVALID):
                    url = checked(httpx.URL(text))
                    if kind == "urlset":
                        yield url
                    elif url.netloc == sitemap.netloc:
                        waiting.append(url)

    def _load(self, url: httpx.URL, *, stay: bool) -> LoadedDocument:
        answer = self._get(url, stay=stay)
        for _ in range(MAX_REDIRECTS):
            suffix = suffix_of(answer)
            target = refresh_of(answer) if suffix == ".html" else None
            if target is None:
                break
            answer = self._get(target, stay=stay)
        if is_web_address(str(answer.url)) and is_login(url, answer.url):
            raise UnreadableDocumentError(
                f"leads to a page for signing in, {answer.url.copy_with(query=None)}",
                remedy="It cannot be read without an account: leave it out with --exclude.",
            )
        if suffix is None:
            is_xml = answer.data.lstrip()[:5] == b"<?xml"
            hint = " (a sitemap has an address that ends in .xml)" * is_xml
            raise UnreadableDocumentError(
                f"is of an unsupported type, {answer.content_type or 'unknown'}{hint}"
            )
        file = posixpath.basename(url.path.rstrip("/"))
        document = load_bytes(
            answer.data, suffix, file or url.host, demanded=self.encoding, named=answer.charset
        )
        if answer.is_private or NO_INDEX.search(answer.data[:HEAD_BYTES]):
            raise LeftOutError("it asks not to be indexed (noindex)")
        document = described(document, _path(url), file or url.host, suffix)
        stated = document.source_url
        is_own = is_web_address(stated) and _site(httpx.URL(stated or "")) == _site(answer.url)
        own = httpx.URL(stated or "") if is_own else answer.url
        if _path(checked(own)) != _path(url) and self._listed.get(own.copy_with(fragment=None)):
            raise LeftOutError(f"it is a copy of {own} by its own account, which is read too")
        return replace(document, source_url=str(own), source_origin="web", is_page=True)

    def _get(self, url: httpx.URL, *, stay: bool, check_robots: bool = True) -> Answer:
        """Fetch an address; with `stay`, a redirect to another host is refused."""
        host = url.host
        for _ in range(MAX_REDIRECTS + 1):
            if url.scheme not in ("http", "https") or not url.host:
                raise UnreadableDocumentError(f"{url} is no address of http or https")
            if url.userinfo:
                raise UnreadableDocumentError(
                    "the address has a user name or a password",
                    remedy="It would be stored with the document: use an address without.",
                )
            if stay and url.host != host:
                raise UnreadableDocumentError(f"leads to another host, {url.host}")
            if check_robots and not self._robots_of(url).can_fetch(str(url), _AGENT):
                raise UnreadableDocumentError(
                    f"robots.txt of {url.host} does not allow it",
                    remedy="Ask the owner of the site, or leave it out with --exclude.",
                )
            answer = self._request(url)
            if isinstance(answer, Answer):
                return answer
            url = answer
        raise UnreadableDocumentError(f"is redirected more than {MAX_REDIRECTS} times")

    def _robots_of(self, url: httpx.URL) -> "Protego":
        """Return the rules of a host, as RFC 9309 says: the longest that fits, with `*` and `$`."""
        with needed("protego", "ingest"):
            from protego import Protego
        origin = f"{url.scheme}://{url.netloc.decode()}"
        if origin not in self._robots:
            try:
                file = httpx.URL(f"{origin}/robots.txt")
                text = _robots_text(self._get(file, stay=False, check_robots=False).data)
            except ValueError as error:
                raise UnreadableDocumentError(
                    f"robots.txt of {url.host} cannot be read: {error}"
                ) from error
            except RefusedError as error:
                if error.status >= 500:
                    raise UnreadableDocumentError(
                        f"robots.txt of {url.host} cannot be read: {error}"
                    ) from error
                text = ""
            self._robots[origin] = Protego.parse(text)
        return self._robots[origin]

    def _request(self, url: httpx.URL) -> Answer | httpx.URL:
        """Ask for an address, again where the server says when; return the answer or redirect."""
        for _ in range(_TRIES - 1):
            try:
                return self._ask(url)
            except RefusedError as error:
                if error.status not in BUSY or error.wait is None or error.wait > _LONGEST_WAIT:
                    raise
                time.sleep(error.wait)
        return self._ask(url)

    def _ask(self, url: httpx.URL) -> Answer | httpx.URL:
        host = url.raw_host.decode()
        self._wait(url)
        error: Exception | None = None
        for address in self._resolve(url):
            client = self._client(host)
            request = client.build_request(
                "GET",
                url.copy_with(host=str(address), fragment=None),
                headers={"Host": url.netloc.decode()},
                extensions={"sni_hostname": host},
            )
            # The timeouts of httpx are those of each byte.
            deadline = threading.Timer(_PAGE_SECONDS, self._drop, [host])
            deadline.start()
            response: httpx.Response | None = None
            try:
                response = client.send(request, stream=True)
                return answer_of(url, response)
            except httpx.ConnectError as exc:
                error = exc
            # httpx reads the address of a redirect too, and a closed socket raises anything.
            except (httpx.HTTPError, httpx.StreamError, RuntimeError, OSError, *INVALID) as exc:
                if deadline.finished.is_set():
                    raise UnreadableDocumentError(
                        f"takes longer than {_PAGE_SECONDS:g} seconds"
                    ) from exc
                if response is None:
                    raise _unreachable(url, exc) from exc
                raise UnreadableDocumentError(f"the answer of {host} is damaged: {exc}") from exc
            finally:
                deadline.cancel()
                if response is not None:
                    response.close()
        raise _unreachable(url, error) from error

    def _drop(self, host: str) -> None:
        """Close the connections to a host, whose answer does not end."""
        if client := self._clients.pop(host, None):
            client.close()

    def _client(self, host: str) -> httpx.Client:
        # One for each host: a connection is verified for the host that it was opened for.
        if host not in self._clients:
            self._clients[host] = httpx.Client(
                headers={
                    "User-Agent": f"{_AGENT}/{version('second-brain')}",
                    "Accept": "text/html, text/markdown, */*;q=0.5",
                    "Accept-Encoding": "gzip",
                },
                timeout=httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS),
                # A proxy would resolve the name again.
                trust_env=False,
                verify=httpx.create_ssl_context(),
            )
        return self._clients[host]

    def _wait(self, url: httpx.URL) -> None:
        """Wait as long as robots.txt asks between two requests, within bounds."""
        rules = self._robots.get(f"{url.scheme}://{url.netloc.decode()}")
        delay = min((rules.crawl_delay(_AGENT) if rules else None) or 0.0, _LONGEST_DELAY)
        since = time.monotonic() - self._asked_at.get(url.host, float("-inf"))
        if since < delay:
            time.sleep(delay - since)
        self._asked_at[url.host] = time.monotonic()

    def _resolve(self, url: httpx.URL) -> list[Address]:
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            found = socket.getaddrinfo(url.raw_host.decode(), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as exc:
            raise UnreadableDocumentError(f"the host {url.host} is not found") from exc
        addresses = [ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        if refused := [one for one in addresses if not self.is_allowed(one)]:
            raise UnreadableDocumentError(
                f"the host {url.host} has the private address {refused[0]}",
                remedy="Pass --allow-private to read pages of a private network.",
            )
        return addresses


def _robots_text(data: bytes) -> str:
    if len(data) > MAX_ROBOTS_BYTES:
        raise ValueError(f"it is larger than {MAX_ROBOTS_BYTES // 1_000} KB")
    return data.decode("utf-8", "replace")


def _site(url: httpx.URL) -> str:
    return url.host.removeprefix("www.")


def _path(url: httpx.URL) -> str:
    return url.raw_path.decode("ascii")


def _unreachable(url: httpx.URL, error: Exception | None) -> UnreadableDocumentError:
    return UnreadableDocumentError(
        f"{url.host} cannot be reached: {str(error) or type(error).__name__}",
        remedy="Run the command again later; the others are not affected.",
    )


def _refuse(error: UnreadableDocumentError) -> LoadedDocument:
    raise error

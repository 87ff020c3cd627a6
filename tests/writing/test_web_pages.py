"""Web pages and sitemaps, from a server on this machine."""

import contextlib
import gzip
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

import pytest
from ingested import contents, outcomes, store, unreadable

from conftest import Connection
from local_server import Quiet
from second_brain.errors import ConfigurationError
from second_brain.ingest import FoundFiles, KnowledgeSource, LoadedDocument, WebReader, is_public
from support.emptied import dsn as dsn

Answer = tuple[int, dict[str, str], bytes]
PACKED = {"Content-Type": "text/html; charset=utf-8", "Content-Encoding": "gzip"}


class Site(ThreadingHTTPServer):
    """Answers from a dictionary by path, lists the requests, and has a reader of its own."""

    web: WebReader

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.place = f"127.0.0.1:{self.server_port}"
        self.address = f"http://{self.place}"

    def find(self, path: str, **options: Any) -> FoundFiles:
        return self.web.find([self.address + path], source="s", **options)

    def load(self, path: str) -> LoadedDocument:
        (document,) = self.find(path).documents
        return document.load()

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


class Handler(Quiet, BaseHTTPRequestHandler):
    server: Site
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers.items())))
        status, headers, body = self.server.answers.get(self.path, (404, {}, b"nothing"))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def site() -> Iterator[Site]:
    """A site whose reader may connect to 127.0.0.1 and to public addresses."""
    allowed = WebReader(is_allowed=lambda one: is_public(one) or str(one) == "127.0.0.1")
    with Site() as site, allowed as site.web:
        thread = threading.Thread(target=site.serve_forever, args=[0.01])
        thread.start()
        yield site
        site.shutdown()
        thread.join()


def html(body: str, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return 200, {"Content-Type": "text/html; charset=utf-8", **named}, body.encode()


def page(title: str, text: str) -> Answer:
    return html(f"<title>{title}</title><nav>Home</nav><main><h1>{title}</h1><p>{text}</main>")


def moved(target: str) -> Answer:
    return 302, {"Location": target}, b""


def sitemap(*addresses: str, kind: str = "url") -> Answer:
    places = "".join(f"<{kind}><loc>{address}</loc></{kind}>" for address in addresses)
    root = {"url": "urlset", "sitemap": "sitemapindex"}[kind]
    text = f'<{root} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{places}</{root}>'
    return 200, {}, text.encode()


def keys(found: FoundFiles) -> list[str]:
    return [document.external_key for document in found.documents]


def test_a_page_is_a_document_of_its_host(site: Site) -> None:
    site.answers["/guide/keys?lang=en"] = page("Keys … how", "Rotate <b>all</b> keys.")
    found = site.web.find([f"{site.address}/guide/keys?lang=en#part"])
    assert found.sources == [KnowledgeSource(site.place.replace(":", "-"), site.place)]
    assert keys(found) == [f"127.0.0.1-{site.server_port}:/guide/keys?lang=en"]
    document = found.documents[0].load()
    assert (document.title, document.source_origin) == ("Keys … how", "web")
    assert document.source_url == f"{site.address}/guide/keys?lang=en"
    assert document.text == "# Keys … how\n\nRotate **all** keys."
    path = {"path": "/guide/keys?lang=en", "document_type": "html", "source_file": "keys"}
    assert document.metadata == path
    (_, asked) = site.asked[-1]
    assert asked["User-Agent"].startswith("second-brain/")
    assert asked["Host"] == site.place


def test_a_sitemap_gives_the_pages_of_its_host(site: Site) -> None:
    site.answers["/docs/sitemap.xml"] = sitemap(f"{site.address}/docs/1.xml.gz", kind="sitemap")
    addresses = [f"{site.address}/docs/{name}" for name in ("a", "b", "old/c", "b", "d")]
    _, _, listed = sitemap(*addresses, "https://example.org/x", "file:///etc/passwd")
    site.answers["/docs/1.xml.gz"] = (200, {}, gzip.compress(listed))
    found = site.find("/docs/sitemap.xml", exclude=["old"])
    assert keys(found) == ["s:/docs/a", "s:/docs/b", "s:/docs/d"]
    assert found.folders == [(found.sources[0], "s:/docs/")]
    assert found.excluded == {"s:/docs/old/c"}
    assert found.notes == [f"{site.address}/docs/sitemap.xml: 1 pages of other hosts are left out"]
    short = site.find("/docs/sitemap.xml", max_pages=2)
    assert keys(short) == ["s:/docs/a", "s:/docs/b"]
    # What was left out must not be pruned.
    assert short.folders == []
    assert "only the first 2 pages are read" in short.notes[0]


@pytest.mark.parametrize(
    "data",
    [
        b"<html>not one</html>",
        b"<urlset>cut off",
        b'<!DOCTYPE x [<!ENTITY a "b">]><urlset><url><loc>&a;</loc></url></urlset>',
        b"\x1f\x8bno gzip",
    ],
    ids=["other XML", "damaged", "entities", "damaged gzip"],
)
def test_a_bad_sitemap_is_a_document_that_cannot_be_read(site: Site, data: bytes) -> None:
    site.answers |= {"/sitemap.xml": (200, {}, data), "/a": page("A", "text")}
    found = site.web.find([f"{site.address}/sitemap.xml", f"{site.address}/a"])
    with unreadable("no sitemap"):
        found.documents[0].load()
    assert found.documents[1].load().title == "A"
    assert found.folders == []


def test_a_server_whose_robots_txt_fails_is_left_alone(site: Site) -> None:
    site.answers |= {"/robots.txt": (503, {}, b""), "/a": page("A", "text")}
    with unreadable(r"robots\.txt .* cannot be read"):
        site.load("/a")
    assert "/a" not in site.paths()


ALL, OURS = "User-agent: *\n", "\n\nUser-agent: second-brain\nDisallow: /private"
LONGEST = f"{ALL}Disallow: /*.pdf$\nDisallow: /docs\nAllow: /docs/public\nDisallow: /print/*raw"
WRONG = ("Crawl-delay: ²", "Crawl-delay: nan", "Disallow: http://[a")


@pytest.mark.parametrize(
    ("rules", "allowed", "forbidden"),
    [
        (f"{ALL}Disallow: /{OURS}", "/open", "/private/a"),
        (LONGEST, "/a/report.pdf?page=1", "/a/report.pdf"),
        (LONGEST, "/docs/public/a", "/docs/private"),
        (LONGEST, "/print/a", "/print/a?view=raw"),
        # A wrong line is left out.
        *((f"{ALL}{line}\nDisallow: /b", "/a", "/b") for line in WRONG),
    ],
)
def test_what_robots_txt_forbids_is_not_asked_for(
    site: Site, rules: str, allowed: str, forbidden: str
) -> None:
    site.answers["/robots.txt"] = (200, {}, f"{rules}\n".encode())
    site.answers |= {path: page("Title", "text") for path in (allowed, forbidden)}
    assert site.load(allowed).title == "Title"
    with unreadable(r"robots\.txt of 127\.0\.0\.1 does not allow"):
        site.load(forbidden)
    assert site.paths() == ["/robots.txt", allowed]


def test_a_delay_of_any_length_is_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    rules = f"User-agent: *\nCrawl-delay: {'9' * 40}".encode()
    site.answers |= {"/robots.txt": (200, {}, rules), "/a": page("A", "text")}
    assert site.load("/a").title == "A"
    assert 9 < max(waits) <= 10


def test_an_answer_that_unpacks_to_nothing_ends(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("second_brain.ingest.web._PAGE_SECONDS", 0.0)
    empty = gzip.compress(b"")[:10] + b"\x00\x00\x00\xff\xff" * 20
    site.answers |= {"/robots.txt": (404, {}, b""), "/a": (200, PACKED, empty)}
    with unreadable("takes longer than"):
        site.load("/a")


def test_an_answer_that_is_cut_in_the_middle_is_refused(site: Site) -> None:
    whole = gzip.compress(b"<p>" + b"word " * 9_000)
    for cut in (len(whole) // 2, len(whole) - 4, 12):
        site.answers["/a"] = (200, PACKED, whole[:cut])
        with unreadable("is cut off"):
            site.load("/a")
    site.answers["/a"] = (200, PACKED, whole)
    assert site.load("/a").text.count("word") == 9_000


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("http://127.0.0.2:{port}/secret", "has the private address 127.0.0.2"),
        ("http://[::ffff:169.254.169.254]/latest", "has the private address"),
        ("http://0x7f000002:{port}/secret", "has the private address 127.0.0.2|is not found"),
        ("file:///etc/passwd", "is no address of http"),
        ("http://user:secret@127.0.0.1:{port}/secret", "a user name or a password"),
        ("/loop", "redirected more than 5 times"),
        ("http://xn--/", "cannot be reached"),
    ],
)
def test_a_redirect_that_leads_elsewhere_is_refused(site: Site, target: str, message: str) -> None:
    site.answers["/loop"] = moved(target.format(port=site.server_port))
    site.answers["/secret"] = page("Secret", "text")
    with unreadable(message):
        site.load("/loop")
    assert "/secret" not in site.paths()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_private_addresses_are_refused_unless_they_are_allowed(site: Site, host: str) -> None:
    site.answers["/a"] = page("A", "text")
    with WebReader() as web, unreadable("private address") as refused:
        web.find([f"http://{host}:{site.server_port}/a"]).documents[0].load()
    assert "--allow-private" in refused.value.remedy
    assert site.asked == []


def test_a_page_of_a_sitemap_stays_on_its_host(site: Site) -> None:
    other = f"http://localhost:{site.server_port}/b"
    site.answers |= {"/a": moved(other), "/b": page("B", "text")}
    site.answers["/sitemap.xml"] = sitemap(f"{site.address}/a")
    with WebReader(is_allowed=lambda one: one.is_loopback) as site.web:
        with unreadable("leads to another host, localhost"):
            site.load("/sitemap.xml")
        # A page that is named itself may.
        assert site.load("/a").source_url == other


FOREIGN = """
    https://evil.example/a //evil.example/a javascript:alert(1) data:text/html,x
    http://127.0.0.1@evil.example/ http://127.0.0.1.evil.example/
"""
OF_THE_SITE = "http://127.0.0.1/guide"


@pytest.mark.parametrize("canonical", [*FOREIGN.split(), OF_THE_SITE])
def test_a_canonical_address_of_another_site_is_no_citation(site: Site, canonical: str) -> None:
    site.answers["/a"] = html(f'<link rel="canonical" href="{canonical}"><title>T</title><p>text')
    markdown = f"---\nurl: {canonical!r}\n---\ntext\n".encode()
    site.answers["/b.md"] = (200, {"Content-Type": "text/markdown"}, markdown)
    for path in ("/a", "/b.md"):
        cited = canonical if canonical == OF_THE_SITE else site.address + path
        assert site.load(path).source_url == cited


PUBLIC = {"93.184.215.14", "2606:4700::1111"}
PRIVATE = """
    10.1.2.3 192.168.0.1 172.16.0.1 100.64.0.1 169.254.169.254 0.0.0.0 224.0.0.1 255.255.255.255
    ::1 :: fe80::1 fd00::1 fec0::1 ff02::1 ::ffff:10.0.0.1 64:ff9b::a00:1 64:ff9b:1::1 2002:a00:1::
    ::10.0.0.1 ::ffff:0:10.0.0.1 192.0.0.192 168.63.129.16 ::ffff:168.63.129.16
"""


def test_only_addresses_of_the_internet_are_public() -> None:
    assert {one for one in [*PUBLIC, *PRIVATE.split()] if is_public(ip_address(one))} == PUBLIC


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, {}, b""), "answers 404"),
        ((200, {"Content-Type": "image/png"}, b"x"), "unsupported type, image/png"),
        (html("x", Content_Encoding="gzip, gzip"), "in the encoding gzip, gzip"),
        ((200, PACKED, b"no gzip"), "is damaged"),
        (html("x" * 2_000), "larger than"),
        ((200, PACKED, gzip.compress(b"x" * 2_000)), "larger than"),
    ],
)
def test_a_bad_answer_is_refused_with_the_reason(
    site: Site, monkeypatch: pytest.MonkeyPatch, answer: Answer, message: str
) -> None:
    monkeypatch.setattr("second_brain.ingest.web_answers.MAX_PAGE_BYTES", 1_000)
    site.answers["/a"] = answer
    with unreadable(message):
        site.load("/a")


@pytest.mark.parametrize("address", ["http://[::1", "http://xn--/"])
def test_an_invalid_address_ends_the_command(site: Site, address: str) -> None:
    with pytest.raises(ConfigurationError, match="no address of the web"):
        site.web.find([address])


def test_a_crawl_stores_each_page_once_without_what_the_pages_repeat(
    site: Site, database: Connection
) -> None:
    names = [f"page-{number}" for number in range(6)]
    site.answers["/sitemap.xml"] = sitemap(*(f"{site.address}/{one}" for one in names))
    for name in names[:5]:
        site.answers[f"/{name}"] = page(name, f"text of {name}<p>All rights reserved")
    reports = store(database, site.find("/sitemap.xml"))
    assert [report.repeated_lines for report in reports.values()] == [1, 1, 1, 1, 1, 0]
    assert reports["s:/page-5"].outcome == "failed"
    assert sorted(path for path in site.paths() if "page" in path) == [f"/{one}" for one in names]
    assert contents(database) == {f"s:/{name}": [f"text of {name}"] for name in names[:5]}
    origins = database.execute("select distinct source_origin from public.knowledge_documents")
    assert origins.fetchall() == [("web",)]
    again = outcomes(store(database, site.find("/sitemap.xml")))
    assert [*again.values()] == ["unchanged"] * 5 + ["failed"]


EMPTY = ("<main id=app></main><script>x</script>", "<title>App</title>", "<body> </body>", "<nav>a")


@pytest.mark.parametrize("shell", EMPTY)
def test_a_page_that_lost_its_text_keeps_what_is_stored_of_it(
    site: Site, database: Connection, shell: str
) -> None:
    site.answers["/a"] = page("A", "the text")
    store(database, site.find("/a"))
    site.answers["/a"] = html(shell)
    (report,) = store(database, site.find("/a")).values()
    assert report.outcome == "failed"
    assert "what is stored of it stays" in str(report.error)
    assert contents(database) == {"s:/a": ["the text"]}


@pytest.mark.parametrize(
    ("status", "after", "times"),
    [
        (429, "0", 3),
        (503, "Wed, 21 Oct 2015 07:28:00 GMT", 3),
        *((429, after, 1) for after in (None, "3600", "soon", "Wed, 21 Oct 2999 07:28:00 GMT")),
    ],
)
def test_a_busy_server_is_asked_again_only_when_it_says(
    site: Site, status: int, after: str | None, times: int
) -> None:
    site.answers["/a"] = (status, {"Retry-After": after} if after else {}, b"busy")
    with unreadable(f"answers {status}") as refused:
        site.load("/a")
    assert "again later" in refused.value.remedy
    assert site.paths().count("/a") == times


def test_the_head_of_an_answer_has_a_deadline_too(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("second_brain.ingest.web._PAGE_SECONDS", 0.3)
    ends = threading.Event()

    def drip(listening: socket.socket) -> None:
        robots, _ = listening.accept()
        with robots:
            robots.recv(65_536)
            robots.sendall(b"HTTP/1.1 404 no\r\nContent-Length: 0\r\n\r\n")
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 yes\r\n")
            while not ends.wait(0.05):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        threads.submit(drip, listening)
        with unreadable(r"takes longer than 0\.3 seconds"):
            address = f"http://127.0.0.1:{listening.getsockname()[1]}/a"
            site.web.find([address]).documents[0].load()
        ends.set()


def test_a_missing_sitemap_is_named_and_the_others_are_read(site: Site) -> None:
    children = [f"{site.address}/{name}.xml" for name in ("one", "gone", "two")]
    site.answers["/index.xml"] = sitemap(*children, kind="sitemap")
    for name in ("one", "two"):
        status, headers, listed = sitemap(f"{site.address}/{name}")
        site.answers[f"/{name}.xml"] = (status, headers, b"\n\n" + listed)
    found = site.find("/index.xml")
    assert keys(found) == ["s:/one", "s:/two", "s:/gone.xml"]
    with unreadable("answers 404"):
        found.documents[-1].load()
    # Its pages are not known: none is gone.
    assert found.folders == []


SIGN_IN = """
    /login?next=/a /users/sign_in /wp-login.php /auth/realms/x /welcome?returnTo=%2Fdocs%2Fa
    /session/new
"""


@pytest.mark.parametrize("target", SIGN_IN.split())
def test_a_page_for_signing_in_is_not_the_page(site: Site, target: str) -> None:
    site.answers |= {"/docs/a": moved(target), target: page("Please", "log in")}
    with unreadable("leads to a page for signing in"):
        site.load("/docs/a")


@pytest.mark.parametrize(
    ("tag", "head"),
    [
        ("noindex", ""),
        ("nofollow, none", ""),
        ("all", '<meta name="robots" content="noindex, nofollow">'),
        ("all", "<META CONTENT=noindex NAME=ROBOTS>"),
        ("all", '<link rel=canonical href="{}/a">'),
    ],
)
def test_a_page_that_does_not_want_to_be_stored_is_left_out(
    site: Site, database: Connection, tag: str, head: str
) -> None:
    unwanted = html(f"{head.format(site.address)}<title>T</title><p>text", X_Robots_Tag=tag)
    site.answers |= {"/a": page("A", "text"), "/b": unwanted}
    site.answers["/sitemap.xml"] = sitemap(f"{site.address}/a", f"{site.address}/b")
    reports = store(database, site.find("/sitemap.xml"))
    assert outcomes(reports) == {"s:/a": "stored", "s:/b": "left out"}
    assert reports["s:/b"].notes
    assert list(contents(database)) == ["s:/a"]


PLAIN = {"Content-Type": "text/plain"}
TWICE_PACKED = gzip.compress(b"one ", mtime=0) + gzip.compress(b"two", mtime=0)
READ: list[tuple[dict[str, str], bytes, str]] = [
    (PLAIN, b"<!DOCTYPE html><p>one <b>word</b>", "one **word**"),
    ({}, b"\n<html><p>one", "one"),
    (PLAIN, b"a < b <p>", "a < b <p>"),
    ({**PLAIN, "Content-Encoding": "gzip"}, TWICE_PACKED, "one two"),
    ({"Content-Type": "text/html; charset=iso-8859-5"}, b"<p>\xbf\xe0", "Пр"),
    ({"Content-Type": "text/html; charset=latin1"}, b"don\x92t \x80", "don\u2019t \u20ac"),
    ({"Content-Type": "text/html; charset=Shift_JIS"}, "①髙".encode("cp932"), "①髙"),
]


def test_an_answer_is_read_as_browsers_read_it(site: Site) -> None:
    site.answers = {f"/{at}": (200, headers, body) for at, (headers, body, _) in enumerate(READ)}
    assert [site.load(path).text for path in [*site.answers]] == [text for *_, text in READ]


def test_a_page_that_sends_its_readers_on_is_followed(site: Site) -> None:
    site.answers["/a"] = html('<meta http-equiv="refresh" content="0; url=/final">Redirecting')
    site.answers["/final"] = page("Final", "the text")
    document = site.load("/a")
    assert (document.title, document.source_url) == ("Final", f"{site.address}/final")


def test_a_sitemap_can_be_a_text(site: Site) -> None:
    site.answers["/sitemap.txt"] = (200, {}, f"{site.address}/final\n".encode())
    assert keys(site.find("/sitemap.txt")) == ["s:/final"]

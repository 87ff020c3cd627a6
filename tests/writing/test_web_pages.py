"""Web pages and sitemaps, from a server on this machine."""

import contextlib
import gzip
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

import pytest
from ingested import CountingEmbedder

from conftest import Connection
from second_brain.errors import ConfigurationError
from second_brain.ingest import (
    KnowledgeSource,
    LoadedDocument,
    UnreadableDocumentError,
    WebReader,
    ingest,
    is_public,
)
from support.emptied import dsn as dsn

Answers = dict[str, tuple[int, dict[str, str], bytes]]
HTML = {"Content-Type": "text/html; charset=utf-8"}


class Server(ThreadingHTTPServer):
    """Answers from a dictionary by path, and lists what was asked."""

    answers: Answers
    asked: list[tuple[str, dict[str, str]]]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers GET; nothing is printed."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers.items())))
        status, headers, body = self.server.answers.get(self.path, (404, {}, b"nothing"))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as site:
        site.answers, site.asked = {}, []
        thread = threading.Thread(target=site.serve_forever, args=[0.01])
        thread.start()
        yield site
        site.shutdown()
        thread.join()


@pytest.fixture
def web() -> Iterator[WebReader]:
    """A reader that may connect to 127.0.0.1 and to public addresses."""
    with WebReader(is_allowed=lambda one: is_public(one) or str(one) == "127.0.0.1") as reader:
        yield reader


def page(title: str, text: str) -> tuple[int, dict[str, str], bytes]:
    html = f"<title>{title}</title><nav>Home</nav><main><h1>{title}</h1><p>{text}</main>"
    return 200, HTML, html.encode()


def sitemap(*addresses: str) -> bytes:
    urls = "".join(f"<url><loc>{address}</loc></url>" for address in addresses)
    return f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{urls}</urlset>'.encode()


def load(web: WebReader, address: str) -> LoadedDocument:
    (document,) = web.find([address]).documents
    return document.load()


def test_a_page_is_a_document_of_its_host(site: Server, web: WebReader) -> None:
    site.answers["/guide/keys?lang=en"] = page("Keys … how", "Rotate <b>all</b> keys.")
    found = web.find([f"{site.address}/guide/keys?lang=en#part"])
    place = f"127.0.0.1:{site.server_port}"
    assert found.sources == [KnowledgeSource(place.replace(":", "-"), place)]
    (unread,) = found.documents
    assert unread.external_key == f"127.0.0.1-{site.server_port}:/guide/keys?lang=en"
    document = unread.load()
    assert (document.title, document.source_origin) == ("Keys … how", "web")
    assert document.source_url == f"{site.address}/guide/keys?lang=en"
    assert document.text == "# Keys … how\n\nRotate **all** keys."
    assert document.metadata == {
        "path": "/guide/keys?lang=en",
        "document_type": "html",
        "source_file": "keys",
    }
    (_, asked) = site.asked[-1]
    assert asked["User-Agent"].startswith("second-brain/")
    assert asked["Host"] == place


def test_a_sitemap_gives_the_pages_of_its_host(site: Server, web: WebReader) -> None:
    index = f"<sitemapindex><sitemap><loc>{site.address}/docs/1.xml.gz</loc></sitemap>"
    site.answers["/docs/sitemap.xml"] = (200, {}, f"{index}</sitemapindex>".encode())
    addresses = [f"{site.address}/docs/{name}" for name in ("a", "b", "old/c", "b", "d")]
    data = gzip.compress(sitemap(*addresses, "https://example.org/x", "file:///etc/passwd"))
    site.answers["/docs/1.xml.gz"] = (200, {}, data)
    found = web.find([f"{site.address}/docs/sitemap.xml"], source="s", exclude=["old"])
    assert [one.external_key for one in found.documents] == ["s:/docs/a", "s:/docs/b", "s:/docs/d"]
    assert found.folders == [(found.sources[0], "s:/docs/")]
    assert found.excluded == {"s:/docs/old/c"}
    assert found.notes == [f"{site.address}/docs/sitemap.xml: 1 pages of other hosts are left out"]
    short = web.find([f"{site.address}/docs/sitemap.xml"], source="s", max_pages=2)
    assert [one.external_key for one in short.documents] == ["s:/docs/a", "s:/docs/b"]
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
def test_a_bad_sitemap_is_a_document_that_cannot_be_read(
    site: Server, web: WebReader, data: bytes
) -> None:
    site.answers["/sitemap.xml"] = (200, {}, data)
    site.answers["/a"] = page("A", "text")
    found = web.find([f"{site.address}/sitemap.xml", f"{site.address}/a"])
    with pytest.raises(UnreadableDocumentError, match="no sitemap"):
        found.documents[0].load()
    assert found.documents[1].load().title == "A"
    assert found.folders == []


def test_a_server_whose_robots_txt_fails_is_left_alone(site: Server, web: WebReader) -> None:
    site.answers |= {"/robots.txt": (503, {}, b""), "/a": page("A", "text")}
    with pytest.raises(UnreadableDocumentError, match=r"robots\.txt .* cannot be read"):
        load(web, f"{site.address}/a")
    assert "/a" not in [path for path, _ in site.asked]


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
    site: Server, web: WebReader, rules: str, allowed: str, forbidden: str
) -> None:
    site.answers["/robots.txt"] = (200, {}, f"{rules}\n".encode())
    site.answers |= {path: page("Title", "text") for path in (allowed, forbidden)}
    assert load(web, site.address + allowed).title == "Title"
    with pytest.raises(
        UnreadableDocumentError, match=r"robots\.txt of 127\.0\.0\.1 does not allow"
    ):
        load(web, site.address + forbidden)
    assert [path for path, _ in site.asked] == ["/robots.txt", allowed]


def test_a_delay_of_any_length_is_bounded(
    site: Server, web: WebReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    rules = f"User-agent: *\nCrawl-delay: {'9' * 40}".encode()
    site.answers |= {"/robots.txt": (200, {}, rules), "/a": page("A", "text")}
    assert load(web, f"{site.address}/a").title == "A"
    assert 9 < max(waits) <= 10


def test_an_answer_that_unpacks_to_nothing_ends(
    site: Server, web: WebReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("second_brain.ingest.web._PAGE_SECONDS", 0.0)
    empty = gzip.compress(b"")[:10] + b"\x00\x00\x00\xff\xff" * 20
    site.answers |= {"/robots.txt": (404, {}, b"")}
    site.answers["/a"] = (200, {**HTML, "Content-Encoding": "gzip"}, empty)
    with pytest.raises(UnreadableDocumentError, match="takes longer than"):
        load(web, f"{site.address}/a")


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
def test_a_redirect_that_leads_elsewhere_is_refused(
    site: Server, target: str, message: str
) -> None:
    location = {"Location": target.format(port=site.server_port)}
    site.answers |= {"/loop": (302, location, b""), "/secret": page("Secret", "text")}
    with (
        WebReader(is_allowed=lambda one: str(one) == "127.0.0.1") as web,
        pytest.raises(UnreadableDocumentError, match=message),
    ):
        load(web, f"{site.address}/loop")
    assert "/secret" not in [path for path, _ in site.asked]


def test_private_addresses_are_refused_unless_they_are_allowed(site: Server) -> None:
    site.answers["/a"] = page("A", "text")
    with WebReader() as web:
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(UnreadableDocumentError, match="private address") as refused:
                load(web, f"http://{host}:{site.server_port}/a")
            assert "--allow-private" in refused.value.remedy
    assert site.asked == []


def test_a_page_of_a_sitemap_stays_on_its_host(site: Server) -> None:
    other = f"http://localhost:{site.server_port}/b"
    site.answers |= {"/a": (301, {"Location": other}, b""), "/b": page("B", "text")}
    site.answers["/sitemap.xml"] = (200, {}, sitemap(f"{site.address}/a"))
    with WebReader(is_allowed=lambda one: one.is_loopback) as web:
        (document,) = web.find([f"{site.address}/sitemap.xml"]).documents
        with pytest.raises(UnreadableDocumentError, match="leads to another host, localhost"):
            document.load()
        # A page that is named itself may.
        assert load(web, f"{site.address}/a").source_url == other


@pytest.mark.parametrize(
    ("canonical", "is_kept"),
    [
        ("https://evil.example/a", False),
        ("//evil.example/a", False),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("http://127.0.0.1@evil.example/", False),
        ("http://127.0.0.1.evil.example/", False),
        ("http://127.0.0.1/guide", True),
    ],
)
def test_a_canonical_address_of_another_site_is_no_citation(
    site: Server, web: WebReader, canonical: str, is_kept: bool
) -> None:
    html = f'<link rel="canonical" href="{canonical}"><title>T</title><p>text'
    site.answers["/a"] = (200, HTML, html.encode())
    markdown = f"---\nurl: {canonical!r}\n---\ntext\n".encode()
    site.answers["/b.md"] = (200, {"Content-Type": "text/markdown"}, markdown)
    for path in ("/a", "/b.md"):
        own = f"{site.address}{path}"
        assert load(web, own).source_url == (canonical if is_kept else own)


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        *((one, True) for one in ("93.184.215.14", "2606:4700::1111")),
        *((one, False) for one in ("10.1.2.3", "192.168.0.1", "172.16.0.1", "100.64.0.1")),
        *((one, False) for one in ("169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255")),
        *((one, False) for one in ("::1", "::", "fe80::1", "fd00::1", "::ffff:10.0.0.1")),
        *((one, False) for one in ("64:ff9b::a00:1", "64:ff9b:1::1", "2002:a00:1::", "ff02::1")),
        *((one, False) for one in ("::10.0.0.1", "::ffff:0:10.0.0.1", "fec0::1")),
        *((one, False) for one in ("192.0.0.192", "168.63.129.16", "::ffff:168.63.129.16")),
    ],
)
def test_only_addresses_of_the_internet_are_public(address: str, is_allowed: bool) -> None:
    assert is_public(ip_address(address)) is is_allowed


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, {}, b""), "answers 404"),
        ((200, {"Content-Type": "image/png"}, b"x"), "unsupported type, image/png"),
        ((200, {**HTML, "Content-Encoding": "gzip, gzip"}, b"x"), "in the encoding gzip, gzip"),
        ((200, {**HTML, "Content-Encoding": "gzip"}, b"no gzip"), "is damaged"),
        ((200, HTML, b"x" * 2_000), "larger than"),
        (
            (200, {**HTML, "Content-Encoding": "gzip"}, gzip.compress(b"x" * 2_000)),
            "larger than",
        ),
    ],
)
def test_a_bad_answer_is_refused_with_the_reason(
    site: Server,
    web: WebReader,
    monkeypatch: pytest.MonkeyPatch,
    answer: tuple[int, dict[str, str], bytes],
    message: str,
) -> None:
    monkeypatch.setattr("second_brain.ingest.web_answers.MAX_PAGE_BYTES", 1_000)
    site.answers["/a"] = answer
    with pytest.raises(UnreadableDocumentError, match=message):
        load(web, f"{site.address}/a")


@pytest.mark.parametrize("address", ["http://[::1", "http://xn--/"])
def test_an_invalid_address_ends_the_command(web: WebReader, address: str) -> None:
    with pytest.raises(ConfigurationError, match="no address of the web"):
        web.find([address])


def test_a_second_run_replaces_the_pages_that_changed(
    site: Server, web: WebReader, database: Connection
) -> None:
    names = ("a", "b", "gone")
    addresses = [f"{site.address}/{name}" for name in names]
    site.answers["/sitemap.xml"] = (200, {}, sitemap(*addresses))
    site.answers |= {f"/{name}": page(name, f"text of {name}") for name in ("a", "b")}

    def outcomes() -> list[str]:
        found = web.find([f"{site.address}/sitemap.xml"], source="s")
        embedder = CountingEmbedder()
        return [report.outcome for report in ingest(found.documents, database, embedder)]

    assert outcomes() == ["stored", "stored", "failed"]
    site.answers["/b"] = page("b", "another text")
    assert outcomes() == ["unchanged", "stored", "failed"]
    assert database.execute(
        "select external_key, source_origin from public.knowledge_documents order by external_key"
    ).fetchall() == [("s:/a", "web"), ("s:/b", "web")]


def test_a_crawl_leaves_out_what_its_pages_repeat_and_asks_once_for_each(
    site: Server, web: WebReader, database: Connection
) -> None:
    names = [f"page-{number}" for number in range(6)]
    site.answers["/sitemap.xml"] = (200, {}, sitemap(*(f"{site.address}/{one}" for one in names)))
    for name in names[:5]:
        site.answers[f"/{name}"] = page(name, f"text of {name}<p>All rights reserved")
    found = web.find([f"{site.address}/sitemap.xml"], source="s")
    reports = list(ingest(found.documents, database, CountingEmbedder()))
    assert [report.repeated_lines for report in reports] == [1, 1, 1, 1, 1, 0]
    assert reports[5].outcome == "failed"
    assert sorted(path for path, _ in site.asked if "page" in path) == [f"/{one}" for one in names]
    assert database.execute(
        "select content from public.knowledge_chunks order by 1"
    ).fetchall() == [(f"text of {name}",) for name in names[:5]]


def _stored(database: Connection) -> dict[str, str]:
    rows = database.execute(
        "select document.external_key, chunk.content from public.knowledge_documents as document"
        " join public.knowledge_chunks as chunk on chunk.document_id = document.id"
        " where chunk.status = 'active'"
    ).fetchall()
    return {key.partition(":")[2]: content for key, content in rows}


@pytest.mark.parametrize(
    "shell",
    [
        b"<main id=app></main><script>x</script>",
        b"<title>App</title>",
        b"<body> </body>",
        b"<nav>a",
    ],
)
def test_a_page_that_lost_its_text_keeps_what_is_stored_of_it(
    site: Server, web: WebReader, database: Connection, shell: bytes
) -> None:
    site.answers["/a"] = page("A", "the text")
    found = web.find([f"{site.address}/a"]).documents
    assert [one.outcome for one in ingest(found, database, CountingEmbedder())] == ["stored"]
    site.answers["/a"] = (200, HTML, shell)
    (report,) = ingest(found, database, CountingEmbedder())
    assert report.outcome == "failed"
    assert "what is stored of it stays" in str(report.error)
    assert "the text" in _stored(database)["/a"]


@pytest.mark.parametrize(
    ("status", "after", "times"),
    [
        (429, "0", 3),
        (503, "Wed, 21 Oct 2015 07:28:00 GMT", 3),
        *((429, after, 1) for after in (None, "3600", "soon", "Wed, 21 Oct 2999 07:28:00 GMT")),
    ],
)
def test_a_busy_server_is_asked_again_only_when_it_says(
    site: Server, web: WebReader, status: int, after: str | None, times: int
) -> None:
    site.answers["/a"] = (status, {"Retry-After": after} if after else {}, b"busy")
    with pytest.raises(UnreadableDocumentError, match=f"answers {status}") as refused:
        load(web, f"{site.address}/a")
    assert "again later" in refused.value.remedy
    assert [path for path, _ in site.asked].count("/a") == times


def test_the_head_of_an_answer_has_a_deadline_too(
    web: WebReader, monkeypatch: pytest.MonkeyPatch
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

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=[listening])
        thread.start()
        with pytest.raises(UnreadableDocumentError, match=r"takes longer than 0\.3 seconds"):
            load(web, f"http://127.0.0.1:{listening.getsockname()[1]}/a")
        ends.set()
        thread.join()


def test_a_missing_sitemap_is_named_and_the_others_are_read(site: Server, web: WebReader) -> None:
    children = "".join(
        f"<sitemap><loc>{site.address}/{name}.xml</loc></sitemap>"
        for name in ("one", "gone", "two")
    )
    site.answers["/index.xml"] = (200, {}, f"<sitemapindex>{children}</sitemapindex>".encode())
    for name in ("one", "two"):
        site.answers[f"/{name}.xml"] = (200, {}, b"\n\n" + sitemap(f"{site.address}/{name}"))
        site.answers[f"/{name}"] = page(name, "text")
    found = web.find([f"{site.address}/index.xml"], source="s")
    assert [one.external_key for one in found.documents] == ["s:/one", "s:/two", "s:/gone.xml"]
    with pytest.raises(UnreadableDocumentError, match="answers 404"):
        found.documents[-1].load()
    # Its pages are not known: none is gone.
    assert found.folders == []


@pytest.mark.parametrize(
    "target",
    [
        "/login?next=/a",
        "/users/sign_in",
        "/wp-login.php",
        "/auth/realms/x",
        "/welcome?returnTo=%2Fdocs%2Fa",
        "/session/new",
    ],
)
def test_a_page_for_signing_in_is_not_the_page(site: Server, web: WebReader, target: str) -> None:
    site.answers["/docs/a"] = (302, {"Location": target}, b"")
    site.answers[target] = page("Please", "log in")
    with pytest.raises(UnreadableDocumentError, match="leads to a page for signing in"):
        load(web, f"{site.address}/docs/a")


@pytest.mark.parametrize(
    ("headers", "head"),
    [
        ({"X-Robots-Tag": "noindex"}, ""),
        ({"X-Robots-Tag": "nofollow, none"}, ""),
        ({}, '<meta name="robots" content="noindex, nofollow">'),
        ({}, "<META CONTENT=noindex NAME=ROBOTS>"),
        ({}, '<link rel=canonical href="/a">'),
    ],
)
def test_a_page_that_does_not_want_to_be_stored_is_left_out(
    site: Server,
    web: WebReader,
    database: Connection,
    headers: dict[str, str],
    head: str,
) -> None:
    html = f"{head.replace('/a', site.address + '/a')}<title>T</title><p>text"
    site.answers |= {"/a": page("A", "text"), "/b": (200, {**HTML, **headers}, html.encode())}
    site.answers["/sitemap.xml"] = (200, {}, sitemap(f"{site.address}/a", f"{site.address}/b"))
    found = web.find([f"{site.address}/sitemap.xml"], source="s").documents
    reports = {one.external_key: one for one in ingest(found, database, CountingEmbedder())}
    assert {key: one.outcome for key, one in reports.items()} == {
        "s:/a": "stored",
        "s:/b": "left out",
    }
    assert reports["s:/b"].notes
    assert list(_stored(database)) == ["/a"]


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ({"Content-Type": "text/plain"}, b"<!DOCTYPE html><p>one <b>word</b>", "one **word**"),
        ({}, b"\n<html><p>one", "one"),
        ({"Content-Type": "text/plain"}, b"a < b <p>", "a < b <p>"),
        (
            {"Content-Type": "text/plain", "Content-Encoding": "gzip"},
            gzip.compress(b"one ", mtime=0) + gzip.compress(b"two", mtime=0),
            "one two",
        ),
        ({"Content-Type": "text/html; charset=iso-8859-5"}, b"<p>\xbf\xe0", "Пр"),
        ({"Content-Type": "text/html; charset=latin1"}, b"don\x92t \x80", "don\u2019t \u20ac"),
        ({"Content-Type": "text/html; charset=Shift_JIS"}, "①髙".encode("cp932"), "①髙"),
    ],
)
def test_an_answer_is_read_as_browsers_read_it(
    site: Server, web: WebReader, headers: dict[str, str], body: bytes, text: str
) -> None:
    site.answers["/a"] = (200, headers, body)
    assert load(web, f"{site.address}/a").text == text


def test_a_page_that_sends_its_readers_on_is_followed(site: Server, web: WebReader) -> None:
    refresh = b'<meta http-equiv="refresh" content="0; url=/final">Redirecting'
    site.answers |= {"/a": (200, HTML, refresh), "/final": page("Final", "the text")}
    document = load(web, f"{site.address}/a")
    assert (document.title, document.source_url) == ("Final", f"{site.address}/final")
    site.answers["/sitemap.txt"] = (200, {}, f"{site.address}/final\n".encode())
    (found,) = web.find([f"{site.address}/sitemap.txt"]).documents
    assert found.load().title == "Final"

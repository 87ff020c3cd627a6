"""Who may use the workbench, and what a failure shows."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from starlette.testclient import TestClient

from conftest import Connection, Server
from opened_workbench import ADDRESS, browser_of, closed, page_of

TOKEN = "right-token"
PATHS = ("/", "/?q=bread", "/why-not?q=bread&key=x", "/search/filters", "/nowhere")


def test_every_answer_forbids_scripts_of_others_and_framing(workbench: TestClient) -> None:
    for path in (*PATHS, "/static/workbench.css"):
        headers = workbench.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"], path
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff", path


def test_only_names_of_this_machine_are_answered(workbench: TestClient) -> None:
    for host in ("localhost:8787", "[::1]:8787", "127.0.0.1"):
        assert workbench.get("/", headers={"host": host}).status_code == 200, host
    # A page of that name could resolve it to 127.0.0.1.
    for host in ("evil.example", "127.0.0.1.evil.example:8787", ""):
        assert workbench.get("/", headers={"host": host}).status_code == 421, host


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", ADDRESS + "0"])
def test_a_form_of_another_site_is_refused(workbench: TestClient, origin: str) -> None:
    assert workbench.post("/why-not", headers={"origin": origin}).status_code == 403
    # The same form of this site reaches the page, which has no form to send.
    assert workbench.post("/why-not").status_code == 405


def test_without_the_token_nothing_is_shown(shared_dsn: str) -> None:
    with browser_of(shared_dsn, token=TOKEN) as browser:
        for path in (*PATHS, "/static/workbench.js", "/?token=wrong-token", "/?token="):
            answer = browser.get(path)
            assert answer.status_code == 401, path
            assert "set-cookie" not in answer.headers


def test_the_token_is_needed_once_and_leaves_the_address(shared_dsn: str) -> None:
    with browser_of(shared_dsn, token=TOKEN) as browser:
        answer = browser.get(f"/?q=a+b&token={TOKEN}", follow_redirects=False)
        assert answer.headers["location"] == "/?q=a+b"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        # Other servers on this host name get the cookie, too.
        assert TOKEN not in cookie
        assert browser.get("/").status_code == 200
        given = cookie.partition(";")[0]
        elsewhere = {"host": "search.example", "cookie": given}
        assert browser.get("/", headers=elsewhere).status_code == 200
        wrong = {"cookie": given[:-1] + ("0" if given[-1] != "0" else "1")}
        browser.cookies.clear()
        assert browser.get("/", headers=wrong).status_code == 401


def test_the_redirect_after_the_token_stays_here(shared_dsn: str) -> None:
    with browser_of(shared_dsn, token=TOKEN) as browser:
        answer = browser.get(f"//evil.example/?token={TOKEN}", follow_redirects=False)
        assert not answer.headers.get("location", "/").startswith("//")


def test_the_head_names_the_database_and_the_install(shared_dsn: str) -> None:
    parts = conninfo_to_dict(shared_dsn)
    with browser_of(shared_dsn) as browser:
        for path in ("/", "/why-not", "/corpus", "/settings"):
            head = page_of(browser, path).select_one(".at")
            assert head is not None
            place = f"{parts['host']}:{parts['port']}/{parts['dbname']}"
            assert head.get_text() == f"{place}, schema public, all modules", path


def test_no_secret_of_the_connection_string_reaches_the_browser(
    server: Server, shared_dsn: str
) -> None:
    private = [str(conninfo_to_dict(shared_dsn)["password"])]
    wrong = server.owner_dsn("no_such_database").replace("no_such", "hidden_name_of_a")
    cases = {
        shared_dsn: private,
        wrong: ["hidden_name"],
        "postgresql://secret_user:hunter2@localhost:1/secret_database": ["secret", "hunter2"],
        "postgresql://u:pa@ss/word@localhost/x": ["pa@", "ss/word"],
    }
    for dsn, hidden in cases.items():
        with browser_of(dsn) as browser:
            for path in PATHS:
                answer = browser.get(path)
                for text in hidden:
                    assert text not in answer.text, (path, text)
                    assert text not in str(answer.headers), (path, text)


def test_a_broken_connection_is_replaced_without_a_failure(
    workbench: TestClient, shared: Connection
) -> None:
    assert workbench.get("/?q=bread").status_code == 200
    # As a restart does.
    shared.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and application_name = 'second-brain workbench'"
    )
    assert workbench.get("/?q=bread").status_code == 200


def test_a_database_that_is_away_says_so_and_comes_back(server: Server, shared_dsn: str) -> None:
    with browser_of(shared_dsn) as browser:
        assert browser.get("/?q=bread&legs=text").status_code == 200
        with closed(server, shared_dsn):
            answer = browser.get("/?q=bread&legs=text")
            assert answer.status_code == 503
            assert "The database does not answer" in answer.text
            assert 'http-equiv="refresh"' in answer.text
            assert 'href="/?q=bread&amp;legs=text"' in answer.text
        assert browser.get("/?q=bread&legs=text").status_code == 200


def test_reading_pages_cannot_write(workbench: TestClient) -> None:
    connections = workbench.app.state.workbench.connections  # type: ignore[attr-defined]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), connections.reading() as database:
        database.execute("delete from public.knowledge_documents")
    with connections.writing() as database:
        database.execute("delete from public.knowledge_documents")

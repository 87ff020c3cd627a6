"""schedule.sql: what it does without its extensions, and with schemas that stand for them.

pg_cron, pg_net and Vault are not here. The stand-ins have the documented signatures, and only note
what they are called with.
"""

import re
from pathlib import Path

import pglast
import psycopg
import pytest

from conftest import Connection
from support.documents import embedded, upsert
from support.pg_cron import PG_CRON

FILE = Path(__file__).parents[2] / "supabase" / "functions" / "embed" / "schedule.sql"
URL, KEY = "https://project.example.org/functions/v1/embed", "the service key"

STAND_INS = f"""{PG_CRON}
create schema net;
create table net.requests (url text, body jsonb, headers jsonb);
create function net.http_post(
  url text, body jsonb default '{{}}', params jsonb default '{{}}',
  headers jsonb default '{{"Content-Type": "application/json"}}',
  timeout_milliseconds integer default 5000
)
returns bigint language sql as $$
  insert into net.requests values (url, body, headers) returning 1
$$;
create schema vault;
create table vault.secrets (name text, secret text);
create view vault.decrypted_secrets as select name, secret as decrypted_secret from vault.secrets;
create function vault.create_secret(new_secret text, new_name text) returns void language sql as $$
  insert into vault.secrets values (new_name, new_secret)
$$;
"""


@pytest.fixture
def notices(database: Connection) -> list[str]:
    reported: list[str] = []
    database.add_notice_handler(lambda notice: reported.append(notice.message_primary or ""))
    return reported


@pytest.fixture
def project(database: Connection, notices: list[str]) -> Connection:
    """A database with the stand-ins and the secrets, which the file has scheduled."""
    database.execute(STAND_INS.encode())
    for secret in re.findall(r"select vault\.create_secret\(.*?\);", comments(), re.DOTALL):
        project_url = "https://PROJECT.supabase.co/functions/v1/embed"
        database.execute(secret.replace(project_url, URL).replace("SERVICE_ROLE_KEY", KEY).encode())
    run(database)
    assert notices == ["second-brain-embed is scheduled for every minute"]
    return database


def run(connection: Connection) -> None:
    connection.execute(FILE.read_text("utf-8").encode())


def comments() -> str:
    lines = re.findall(r"^--(.*)$", FILE.read_text("utf-8"), re.MULTILINE)
    return "\n".join(lines)


def test_the_job_of_another_schema_has_another_name(
    project: Connection, notices: list[str]
) -> None:
    project.execute("create schema kb")
    project.execute("create function kb.pending_knowledge_embeddings() returns int return 1")
    project.execute(FILE.read_text("utf-8").replace("public", "kb").encode())
    assert notices[-1] == "second-brain-embed-kb is scheduled for every minute"
    names = project.execute("select jobname from cron.job order by 1").fetchall()
    assert names == [("second-brain-embed",), ("second-brain-embed-kb",)]


def tick(connection: Connection) -> list[tuple[str, object, object]]:
    """Run the job as pg_cron does, and return the requests that it made."""
    connection.execute("truncate net.requests")
    row = connection.execute("select command from cron.job").fetchone()
    assert row is not None
    connection.execute(row[0].encode())
    return connection.execute("select url, body, headers from net.requests").fetchall()


def add(connection: Connection, model: str | None = None) -> None:
    upsert(connection, "note", embedded("text", model) if model else "text")


def test_without_the_extensions_it_says_so_and_changes_nothing(
    database: Connection, notices: list[str]
) -> None:
    pglast.parse_sql(FILE.read_text("utf-8"))
    before = database.execute("select count(*) from pg_class").fetchone()
    run(database)
    run(database)
    assert database.execute("select count(*) from pg_class").fetchone() == before
    assert len(notices) == 2
    for name in ("pg_cron", "pg_net", "supabase_vault", "corpus embed"):
        assert name in notices[0]


def test_without_the_secrets_or_the_migrations_nothing_is_scheduled(
    plain_dsn: str, database: Connection, notices: list[str]
) -> None:
    database.execute(STAND_INS.encode())
    run(database)
    assert "second_brain_embed_key" in notices[-1]
    assert "second_brain_embed_url" in notices[-1]
    assert database.execute("select count(*) from cron.job").fetchone() == (0,)
    with psycopg.connect(plain_dsn, autocommit=True) as plain:
        plain.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        plain.execute(STAND_INS.encode())
        run(plain)
    assert "migrations" in notices[-1]


def test_the_job_sends_the_key_only_while_something_is_pending(project: Connection) -> None:
    assert tick(project) == []
    add(project)
    ((url, body, headers),) = tick(project)
    assert (url, body) == (URL, {"seconds": 50})
    assert headers == {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    add(project, "a")
    assert tick(project) == []


def test_texts_that_a_worker_has_or_that_failed_cause_no_call(project: Connection) -> None:
    add(project)
    project.execute("select public.claim_knowledge_embeddings('a', worker => 'one')")
    assert tick(project) == []
    project.execute(
        "select public.store_knowledge_embeddings('a', jsonb_build_array(jsonb_build_object("
        "  'content_hash', (select content_hash from public.knowledge_chunks),"
        "  'error', 'too long', 'is_final', true)), worker => 'one')"
    )
    assert tick(project) == []
    project.execute("select public.retry_knowledge_embeddings()")
    assert len(tick(project)) == 1


def test_embeddings_of_another_model_than_the_collections_cause_a_call(project: Connection) -> None:
    add(project, "a")
    project.execute("select public.set_knowledge_settings(embedding_model => 'b')")
    assert len(tick(project)) == 1


def test_no_secret_is_in_the_job_and_a_second_run_changes_nothing(project: Connection) -> None:
    before = project.execute("select * from cron.job").fetchall()
    ((_, _, command, *_),) = before
    assert KEY not in command
    assert URL not in command
    run(project)
    assert project.execute("select * from cron.job").fetchall() == before


def test_the_undo_of_its_comment_removes_the_job_and_the_secrets(project: Connection) -> None:
    undo = comments().partition("Undo:")[2]
    for statement in re.findall(r"^ +((?:select|delete) .*?;)", undo, re.MULTILINE | re.DOTALL):
        project.execute(statement.encode())
    for table in ("cron.job", "vault.secrets"):
        assert project.execute(f"select count(*) from {table}".encode()).fetchone() == (0,)

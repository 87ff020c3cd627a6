"""The command adopt: what it proposes, writes, refuses and reports."""

from pathlib import Path

import psycopg
import pytest
from adopted import GUIDE

from command_line import Run

pytestmark = pytest.mark.module("adoption")


@pytest.fixture
def source(dsn: str) -> str:
    """The DSN of a database with a table of Supabase's guide and two rows."""
    with psycopg.connect(dsn) as connection:
        connection.execute(GUIDE.encode())
        connection.execute(
            "insert into public.documents (content, embedding)"
            " values ('Rotate the keys.', '[1,0,0]'), ('Water the plants.', null)"
        )
    return dsn


def test_a_table_is_adopted_by_a_migration(run: Run, source: str, tmp_path: Path) -> None:
    done = run("adopt", "public.documents", "--model", "m", "--dsn", source)
    assert done.code == 0, done.err
    assert "id: the primary key" in done.err
    (file,) = (tmp_path / "supabase" / "migrations").glob("*_adopt_documents.sql")
    with psycopg.connect(source) as connection:
        connection.execute(file.read_text().encode())
    done = run("adopt", "--backfill", "documents", "--dsn", source)
    assert "documents: 2 rows carried over." in done.out
    done = run("adopt", "--check", "--dsn", source)
    assert (done.code, "2 rows compared, 0 differences" in done.out) == (0, True)


def test_a_model_is_required_for_the_embeddings_of_the_table(run: Run, source: str) -> None:
    done = run("adopt", "public.documents", "--dsn", source)
    assert done.code == 1
    assert "--model is not given" in done.err
    done = run("adopt", "public.documents", "--embed", "--dsn", source)
    assert (done.code, "--model" in done.err) == (0, False)


def test_a_model_that_is_not_used_is_a_warning(run: Run, source: str) -> None:
    used = run("adopt", "public.documents", "--model", "m", "--dsn", source)
    assert "--model is not used" not in used.err
    done = run("adopt", "public.documents", "--model", "m", "--embed", "--dsn", source)
    assert done.code == 0, done.err
    assert "warning: --model is not used" in done.err


def test_a_difference_is_an_exit_code_of_1_until_it_is_repaired(run: Run, source: str) -> None:
    assert run("adopt", "public.documents", "--model", "m", "--apply", "--dsn", source).code == 0
    done = run("adopt", "--check", "--dsn", source)
    assert done.code == 1
    assert "2 missing" in done.out
    assert run("adopt", "--check", "--repair", "--dsn", source).code == 0
    assert "0 differences" in run("adopt", "--check", "--dsn", source).out


def test_a_row_that_cannot_be_carried_over_is_named_with_an_exit_code_of_1(
    run: Run, source: str
) -> None:
    with psycopg.connect(source) as connection:
        connection.execute("update public.documents set content = null where id = 2")
    assert run("adopt", "public.documents", "--model", "m", "--apply", "--dsn", source).code == 0
    run("adopt", "--backfill", "--dsn", source)
    for more in ([], ["--repair"]):
        done = run("adopt", "--check", *more, "--dsn", source)
        assert (done.code, "  2: content is null" in done.out) == (1, True)


def test_a_removed_adoption_is_gone(run: Run, source: str) -> None:
    assert run("adopt", "public.documents", "--model", "m", "--apply", "--dsn", source).code == 0
    assert run("adopt", "--backfill", "--dsn", source).code == 0
    done = run("adopt", "--remove", "documents", "--delete-documents", "--apply", "--dsn", source)
    assert done.code == 0
    with psycopg.connect(source) as connection:
        left = connection.execute("select count(*) from public.knowledge_documents").fetchone()
        assert left == (0,)
        connection.execute("insert into public.documents (content) values ('No trigger.')")
    assert "no table is adopted" in run("adopt", "--check", "--dsn", source).err


@pytest.mark.parametrize(
    ("columns", "options", "refusal"),
    [
        ("content text", (), "has no key"),
        ("id int unique, content text", (), "the key column id can be null"),
        ("id int primary key, n int", (), "no column of texts"),
        ("id int primary key, content text", ("--key", "content"), "no unique index on (content)"),
        ("id int primary key, content text", ("--title", "nothing"), "'nothing' is not a column"),
        (
            "id int primary key, content text, embedding extensions.vector(2)",
            ("--model", "m"),
            "has 2 dimensions, the corpus has 3",
        ),
        ("id int primary key, content text", ("--name", "No Name"), "--name must be 1 to 40"),
        (
            "id int primary key, content text",
            ("--from", "langchain"),
            "not of the layout langchain",
        ),
        ("id float primary key, content text", ("--apply", "--copy"), "has one of the types"),
        ("id float primary key, content text", (), "--copy"),
        (
            "id int, part int, content text, primary key (id, part)",
            (),
            'alter table "public"."notes" add search_id bigint',
        ),
        ("id int primary key, content text", ("--split",), "--copy"),
    ],
)
def test_a_table_that_cannot_be_adopted_is_refused_with_a_remedy(
    run: Run, dsn: str, tmp_path: Path, columns: str, options: tuple[str, ...], refusal: str
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(f"create table public.notes ({columns})".encode())
    done = run("adopt", "public.notes", *options, "--dsn", dsn)
    assert (done.code, refusal in done.err) == (1, True), done.err
    assert not (tmp_path / "supabase").exists()


def test_a_key_is_printed_short_and_without_control_characters(run: Run, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create table public.notes (id text primary key, body text)")
        connection.execute(
            "insert into public.notes values (E'\\x1b[2J', 'x'), (repeat('k', 3000), 'x')"
        )
    assert run("adopt", "public.notes", "--apply", "--dsn", dsn).code == 0
    done = run("adopt", "--check", "--dsn", dsn)
    assert "   [2J: missing\n" in done.out
    assert f"  {'k' * 60}…: missing\n" in done.out


def test_a_renamed_key_is_reported_until_the_table_is_adopted_again(run: Run, source: str) -> None:
    adoption = ("adopt", "public.documents", "--model", "m", "--apply", "--dsn", source)
    assert run(*adoption).code == 0
    assert run("adopt", "--backfill", "--dsn", source).code == 0
    with psycopg.connect(source) as connection:
        connection.execute("alter table public.documents rename id to number")
    assert "has no column id, which is in the key" in run("doctor", "--dsn", source).out
    assert run(*adoption).code == 0
    found = run("adopt", "--check", "--dsn", source).out
    assert "  1: source_row\n" in found
    assert "  null: left over\n" in found
    assert run("adopt", "--check", "--repair", "--dsn", source).code == 0
    assert "2 rows compared, 0 differences" in run("adopt", "--check", "--dsn", source).out


@pytest.mark.parametrize("name", ["public.nothing", "public.seen", "'; drop table x"])
def test_what_is_not_a_table_is_refused(run: Run, dsn: str, name: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create view public.seen as select 1 as id, 'x' as content")
    assert run("adopt", name, "--dsn", dsn).code == 1


def test_a_table_that_is_written_with_quotes_is_suggested(run: Run, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute('create table public."Notes" (id int primary key, body text)')
    for name in ("public.Notes", "notes"):
        done = run("adopt", name, "--dsn", dsn)
        assert (done.code, """Did you mean 'public."Notes"'?""" in done.err) == (1, True), done.err


def test_the_proposal_warns_of_policies_and_of_missing_owners(run: Run, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "create table public.notes (id int primary key, body text, user_id uuid);"
            " alter table public.notes enable row level security"
        )
    done = run("adopt", "public.notes", "--dsn", dsn)
    assert "policies of public.notes hold in search_visible_knowledge_chunks" in done.err
    assert "There is no owner" not in done.err
    assert "There is no owner" in run("adopt", "public.notes", "--owner", "none", "--dsn", dsn).err


def test_an_install_in_another_schema_adopts_into_its_own_tables(
    run: Run, source: str, dsn: str
) -> None:
    schema = ("--schema", "knowledge_de", "--dsn", source)
    assert run("migrate", "--dimensions", "3", "--with", "adoption", *schema).code == 0
    assert run("adopt", "public.documents", "--model", "m", "--apply", *schema).code == 0
    assert "2 rows carried over" in run("adopt", "--backfill", *schema).out
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("insert into public.documents (content) values ('Third.')")
        connection.execute("update public.documents set content = 'Second.' where id = 2")
        counts = connection.execute(
            "select (select count(*) from knowledge_de.knowledge_chunks where status = 'active'),"
            " (select count(*) from public.knowledge_chunks)"
        ).fetchone()
    assert counts == (3, 0)
    assert run("adopt", "--check", *schema).code == 0
    assert "documents (public.documents): 3 rows compared" in run("doctor", *schema).out
    assert run("server", "uninstall", "--apply", "--yes", *schema).code == 0
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("delete from public.documents")


def test_the_same_adoption_is_written_once(run: Run, source: str, tmp_path: Path) -> None:
    adoption = ("adopt", "public.documents", "--model", "m", "--dsn", source)
    first, second = run(*adoption), run(*adoption)
    assert second.out.split(":")[0] == first.out.strip()
    assert "nothing changed" in second.out
    assert "Next:" not in second.err
    changed, again = run(*adoption, "--title", "none"), run(*adoption)
    folder = tmp_path / "supabase" / "migrations"
    assert len(list(folder.glob("*_adopt_documents.sql"))) == 3, changed.out + again.out


def test_later_and_carry_over(run: Run, source: str) -> None:
    adoption = ("adopt", "public.documents", "--model", "m", "--later", "--apply")
    done = run(*adoption, "--dsn", source)
    assert done.code == 0, done.err
    assert "After writes: second-brain adopt --carry-over documents" in done.err
    assert run("adopt", "--backfill", "--dsn", source).code == 0
    with psycopg.connect(source) as connection:
        connection.execute("insert into public.documents (content) values ('Later.')")
    done = run("adopt", "--check", "--dsn", source)
    assert (done.code, "1 noted write to carry over" in done.out) == (0, True)
    assert "1 noted row carried over." in run("adopt", "--carry-over", "--dsn", source).out
    assert "3 rows compared, 0 differences" in run("adopt", "--check", "--dsn", source).out


def test_an_adoption_whose_table_is_gone_does_not_stop_the_others(run: Run, source: str) -> None:
    with psycopg.connect(source) as connection:
        connection.execute("create table public.notes (id int primary key, body text)")
    for table in ("notes", "documents"):
        given = ("adopt", f"public.{table}", "--embed", "--apply", "--dsn", source)
        assert run(*given).code == 0
    with psycopg.connect(source) as connection:
        connection.execute("drop table public.documents cascade")
    for option, told in (("--backfill", "0 rows carried over"), ("--check", "0 differences")):
        done = run("adopt", option, "--dsn", source)
        assert (done.code, f"notes: {told}" in done.out or told in done.out) == (1, True)
        assert "documents: the adoption 'documents' has no view" in done.err
        assert "adopt --remove documents" in done.err


def test_the_hints_can_be_followed_as_they_stand(run: Run, source: str, dsn: str) -> None:
    public = ("adopt", "public.documents", "--embed", "--visibility", "public", "--apply")
    assert "only service_role" not in run(*public, "--dsn", source).err
    done = run("adopt", "--check", "documents", "--dsn", source)
    (hint,) = [line for line in done.err.splitlines() if line.startswith("Repair: ")]
    assert run(*hint.split("second-brain ")[1].split(), "--dsn", source).code == 0
    assert run("adopt", "--check", "--dsn", source).code == 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            'create table public."My Notes" (id int, body text);'
            " create table public.lines (body text);"
            ' create table public.marks ("Key" int unique, body text)'
        )
        for table in ('public."My Notes"', "public.lines", "public.marks"):
            refused = run("adopt", table, "--dsn", dsn).err
            connection.execute(refused.split("Run: ")[1].encode())
            assert run("adopt", table, "--apply", "--dsn", dsn).code == 0


@pytest.mark.parametrize(
    ("created", "others"),
    [
        (
            "create table public.part_1 partition of public.part for values in (1)",
            "its parent table",
        ),
        ("create table public.child () inherits (public.part_1)", "its child tables"),
    ],
)
def test_rows_written_through_another_table_are_a_warning(
    run: Run, source: str, created: str, others: str
) -> None:
    columns = "(id int primary key, content text)"
    with psycopg.connect(source) as connection:
        if "partition" in created:
            connection.execute(
                f"create table public.part {columns} partition by list (id)".encode()
            )
        else:
            connection.execute(f"create table public.part_1 {columns}".encode())
        connection.execute(created.encode())
    done = run("adopt", "public.part_1", "--embed", "--dsn", source)
    assert done.code == 0, done.err
    assert f"written through {others} are not followed" in done.err

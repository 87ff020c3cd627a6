"""The command adopt: what it proposes, writes, refuses and reports."""

from collections.abc import Callable
from pathlib import Path

import pytest
from adopted import GUIDE

from command_line import Done, Run
from support.databases import query

pytestmark = pytest.mark.module("adoption")

DOCUMENTS = ("public.documents", "--model", "m")
APPLIED = (*DOCUMENTS, "--apply")
CHANGED = "update public.documents set content = "
Adopt = Callable[..., Done]


@pytest.fixture
def adopt(run: Run, dsn: str) -> Adopt:
    """Run `second-brain adopt` on this test's database; it succeeds unless `code` is given."""

    def run_adopt(*arguments: str, code: int = 0) -> Done:
        done = run("adopt", *arguments, "--dsn", dsn)
        assert done.code == code, done.err
        return done

    return run_adopt


@pytest.fixture
def source(dsn: str) -> str:
    """The DSN of a database with a table of Supabase's guide and two rows."""
    rows = "('Rotate the keys.', '[1,0,0]'), ('Water the plants.', null)"
    query(dsn, GUIDE, f"insert into public.documents (content, embedding) values {rows}")
    return dsn


def test_a_table_is_adopted_by_a_migration(adopt: Adopt, source: str, tmp_path: Path) -> None:
    assert "id: the primary key" in adopt(*DOCUMENTS).err
    (file,) = (tmp_path / "supabase" / "migrations").glob("*_adopt_documents.sql")
    query(source, file.read_text())
    assert "documents: 2 rows carried over." in adopt("--backfill", "documents").out
    assert "2 rows compared, 0 differences" in adopt("--check").out
    adopt("--remove", "documents", "--apply")
    assert "no table is adopted" in adopt("--check", code=1).err


@pytest.mark.usefixtures("source")
def test_a_model_is_required_for_the_embeddings_of_the_table_alone(
    adopt: Adopt,
) -> None:
    assert "--model is not given" in adopt("public.documents", code=1).err
    assert "--model" not in adopt("public.documents", "--embed").err
    assert "--model is not used" not in adopt(*DOCUMENTS).err
    assert "warning: --model is not used" in adopt(*DOCUMENTS, "--embed").err


def test_a_row_that_is_not_carried_over_is_named_with_status_1(adopt: Adopt, source: str) -> None:
    query(source, f"{CHANGED} null where id = 2")
    adopt(*APPLIED)
    adopt("--backfill")
    for more in ([], ["--repair"]):
        assert "  2: content is null" in adopt("--check", *more, code=1).out


@pytest.mark.parametrize(
    ("columns", "options", "refusal"),
    [
        ("content text", "", "has no key"),
        ("id int unique, content text", "", "the key column id can be null"),
        ("id int primary key, n int", "", "no column of texts"),
        ("id int primary key, content text", "--key content", "no unique index on (content)"),
        ("id int primary key, content text", "--title nothing", "'nothing' is not a column"),
        (
            "id int primary key, content text, embedding extensions.vector(2)",
            "--model m",
            "has 2 dimensions, the corpus has 3",
        ),
        ("id int primary key, content text", "--name No_Name", "--name must be 1 to 40"),
        ("id float primary key, content text", "", "add search_id bigint"),
        (
            "id int, part int, content text, primary key (id, part)",
            "",
            'alter table "public"."notes" add search_id bigint',
        ),
    ],
)
def test_a_table_that_cannot_be_adopted_is_refused_with_a_remedy(
    adopt: Adopt, dsn: str, tmp_path: Path, columns: str, options: str, refusal: str
) -> None:
    query(dsn, f"create table public.notes ({columns})")
    assert refusal in adopt("public.notes", *options.split(), code=1).err
    assert not (tmp_path / "supabase").exists()


def test_a_key_is_printed_short_and_without_control_characters(adopt: Adopt, dsn: str) -> None:
    query(
        dsn,
        "create table public.notes (id text primary key, body text)",
        "insert into public.notes values (E'\\x1b[2J', 'x'), (repeat('k', 3000), 'x')",
    )
    adopt("public.notes", "--apply")
    done = adopt("--check", code=1)
    assert "   [2J: missing\n" in done.out
    assert f"  {'k' * 60}…: missing\n" in done.out


def test_a_renamed_key_is_reported_until_adopted_again(adopt: Adopt, run: Run, source: str) -> None:
    adopt(*APPLIED)
    adopt("--backfill")
    query(source, "alter table public.documents rename id to number")
    assert "has no column id, which is the key" in run("doctor", "--dsn", source).out
    adopt(*APPLIED)
    assert "  1: source_row\n" in adopt("--check", code=1).out
    adopt("--check", "--repair")
    assert "2 rows compared, 0 differences" in adopt("--check").out


@pytest.mark.parametrize("name", ["public.nothing", "public.seen", "'; drop table x"])
def test_what_is_not_a_table_is_refused(adopt: Adopt, dsn: str, name: str) -> None:
    query(dsn, "create view public.seen as select 1 as id, 'x' as content")
    adopt(name, code=1)


@pytest.mark.parametrize("name", ["public.Notes", "notes"])
def test_a_table_that_needs_quotes_is_suggested(adopt: Adopt, dsn: str, name: str) -> None:
    query(dsn, 'create table public."Notes" (id int primary key, body text)')
    assert """Did you mean 'public."Notes"'?""" in adopt(name, code=1).err


def test_the_proposal_warns_of_policies_and_of_missing_owners(adopt: Adopt, dsn: str) -> None:
    query(
        dsn,
        "create table public.notes (id int primary key, body text, user_id uuid)",
        "alter table public.notes enable row level security",
    )
    done = adopt("public.notes")
    assert "policies of public.notes hold in search_visible_knowledge_chunks" in done.err
    assert "There is no owner" not in done.err
    assert "There is no owner" in adopt("public.notes", "--owner", "none").err


def test_an_install_in_another_schema_adopts_by_itself(adopt: Adopt, run: Run, source: str) -> None:
    schema = ("--schema", "knowledge_de")
    migrate = ("migrate", "--dimensions", "3", "--with", "adoption")
    assert run(*migrate, *schema, "--dsn", source).code == 0
    adopt(*APPLIED, *schema)
    assert "2 rows carried over" in adopt("--backfill", *schema).out
    counts = query(
        source,
        "insert into public.documents (content) values ('Third.')",
        f"{CHANGED} 'Second.' where id = 2",
        "select (select count(*) from knowledge_de.knowledge_chunks where status = 'active'),"
        " (select count(*) from public.knowledge_chunks)",
    )
    assert counts == [(3, 0)]
    adopt("--check", *schema)
    doctor = run("doctor", *schema, "--dsn", source)
    assert "documents (public.documents): 3 rows compared" in doctor.out
    assert run("server", "uninstall", "--apply", "--yes", *schema, "--dsn", source).code == 0
    query(source, "delete from public.documents")


@pytest.mark.usefixtures("source")
def test_the_same_adoption_is_written_once(adopt: Adopt, tmp_path: Path) -> None:
    first, second = adopt(*DOCUMENTS), adopt(*DOCUMENTS)
    assert second.out.split(":")[0] == first.out.strip()
    assert "nothing changed" in second.out
    assert "Next:" not in second.err
    changed, again = adopt(*DOCUMENTS, "--title", "none"), adopt(*DOCUMENTS)
    folder = tmp_path / "supabase" / "migrations"
    assert len(list(folder.glob("*_adopt_documents.sql"))) == 3, changed.out + again.out


def test_an_adoption_without_its_table_does_not_stop_the_others(adopt: Adopt, source: str) -> None:
    query(source, "create table public.notes (id int primary key, body text)")
    for table in ("notes", "documents"):
        adopt(f"public.{table}", "--embed", "--apply")
    query(source, "drop table public.documents cascade")
    for option, told in (("--backfill", "0 rows carried over"), ("--check", "0 differences")):
        done = adopt(option, code=1)
        assert told in done.out
        assert "documents: the adoption 'documents' has no view" in done.err
        assert "adopt --remove documents" in done.err


def test_the_hints_can_be_followed_as_they_stand(adopt: Adopt, source: str) -> None:
    public = ("public.documents", "--embed", "--visibility", "public", "--apply")
    assert "only service_role" not in adopt(*public).err
    done = adopt("--check", "documents", code=1)
    assert "2 missing" in done.out
    (hint,) = [line for line in done.err.splitlines() if line.startswith("Repair: ")]
    adopt(*hint.split("second-brain adopt ")[1].split())
    assert "0 differences" in adopt("--check").out
    query(
        source,
        'create table public."My Notes" (id int, body text)',
        "create table public.lines (body text)",
        'create table public.marks ("Key" int unique, body text)',
    )
    for table in ('public."My Notes"', "public.lines", "public.marks"):
        query(source, adopt(table, code=1).err.split("Run: ")[1])
        adopt(table, "--apply")


def test_rows_of_a_partition_that_are_written_elsewhere_are_a_warning(
    adopt: Adopt, dsn: str
) -> None:
    query(
        dsn,
        "create table public.part (id int primary key, content text) partition by list (id)",
        "create table public.part_1 partition of public.part for values in (1)",
    )
    done = adopt("public.part_1", "--embed")
    assert "written through its parent table are not followed" in done.err

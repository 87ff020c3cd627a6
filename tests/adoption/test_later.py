"""A table adopted with --later: writes note their rows, and a worker carries them over."""

import adopted
import psycopg
import pytest
from adopted import GUIDE, adopt, backfill, compare, contents, documents, reasons

from conftest import Connect, Connection
from second_brain.adoption import carrying
from second_brain.database import doctor
from second_brain.services.install import Database

pytestmark = [pytest.mark.module("adoption"), pytest.mark.usefixtures("both_ways")]


@pytest.fixture
def source(database: Connection) -> Connection:
    database.execute(GUIDE)
    adopt(database, is_later=True)
    database.execute("insert into public.documents (content) values ('one'), ('two'), (null)")
    return database


def work(connection: Connection, batch_size: int = 200) -> int:
    return carrying.carry_over_noted(Database(connection), batch_size=batch_size)


def noted(connection: Connection) -> int:
    return carrying.noted(Database(connection), "documents")[0]


def test_a_row_is_found_when_the_worker_has_been_there(source: Connection) -> None:
    assert (documents(source), noted(source)) == ({}, 3)
    found = compare(source)
    assert (found.differences, found.noted) == (0, 3)
    assert work(source) == 3
    assert contents(source) == {"documents/1": ["one"], "documents/2": ["two"]}
    assert reasons(source) == {"3": "content is null"}
    source.execute("update public.documents set content = 'ONE' where id = 1")
    source.execute("update public.documents set content = 'One' where id = 1")
    # In place, the text is that of the table.
    assert contents(source)["documents/1"] == ["One" if adopted.IN_PLACE else "one"]
    assert work(source, batch_size=1) == 2
    assert contents(source)["documents/1"] == ["One"]
    assert (work(source), noted(source), compare(source).differences) == (0, 0, 0)


def test_deleted_rows_are_not_findable_from_then_on(source: Connection) -> None:
    work(source)
    source.execute("delete from public.documents where id = 1")
    assert contents(source) == {"documents/2": ["two"]}
    source.execute("insert into public.documents (content) values ('late')")
    source.execute("truncate public.documents")
    assert (documents(source), noted(source)) == ({}, 0)


def test_a_changed_key_deletes_the_document_of_the_old_one(database: Connection) -> None:
    database.execute("create table public.notes (id int primary key, content text)")
    adopt(database, "public.notes", is_later=True)
    database.execute("insert into public.notes values (1, 'one'), (2, 'two')")
    work(database)
    database.execute("update public.notes set id = 11 where id = 1")
    assert contents(database) == {"notes/2": ["two"]}
    work(database)
    assert contents(database) == {"notes/2": ["two"], "notes/11": ["one"]}


def test_an_update_without_a_mapped_change_is_not_noted(source: Connection) -> None:
    work(source)
    source.execute("alter table public.documents add views integer")
    source.execute("update public.documents set views = 1, content = content")
    assert noted(source) == 0


def test_a_row_that_a_writer_holds_stays_noted(source: Connection, connect: Connect) -> None:
    writer = connect()
    with writer.transaction():
        writer.execute("update public.documents set content = 'newer' where id = 1")
        assert work(source) == 2
        assert contents(source) == {"documents/2": ["two"]}
    assert work(source) == 2
    assert contents(source)["documents/1"] == ["newer"]


def test_two_workers_share_the_rows(source: Connection, connect: Connect) -> None:
    other = connect()
    with other.transaction():
        (done,) = other.execute(
            "select knowledge_internal.carry_over_noted(most_rows => 2)"
        ).fetchone() or (0,)
        assert (done, work(source)) == (2, 1)
    assert (noted(source), compare(source).differences) == (0, 0)


def test_an_adoption_at_once_leaves_nothing_noted(source: Connection) -> None:
    adopt(source)
    source.execute("insert into public.documents (content) values ('at once')")
    assert contents(source) == {"documents/4": ["at once"]}
    backfill(source)
    assert work(source) == 3
    assert compare(source).differences == 0


def test_a_removed_adoption_leaves_nothing_noted(source: Connection) -> None:
    carrying.remove(Database(source), "documents")
    assert source.execute("select from public.knowledge_adoption_changes").fetchall() == []


def test_the_doctor_reports_writes_that_nobody_carries_over(source: Connection) -> None:
    source.execute(
        "update public.knowledge_adoption_changes set noted_at = now() - '1 day'::interval"
    )
    (found,) = [one for one in doctor.examine(source) if one.check == "adoptions"]
    assert (found.status, "3 noted writes are not carried over" in found.message) == (
        "warning",
        True,
    )


def test_a_writer_needs_no_rights_on_the_notes(source: Connection, connect: Connect) -> None:
    source.execute("grant insert on public.documents to authenticated")
    user = connect("authenticated")
    user.execute("insert into public.documents (content) values ('mine')")
    assert noted(source) == 4
    for statement in (
        "select from public.knowledge_adoption_changes",
        "select knowledge_internal.carry_over_noted()",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            user.execute(statement.encode())

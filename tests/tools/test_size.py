"""The README of the SQL has the figures of `make size`."""

from pathlib import Path

from tools import schema_files, size

SQL = """-- 01_notes: notes of users.
-- Adds a table.

-- One line.
create table public.notes (id int);

-- Extension point: counts.
create function knowledge_internal.count_notes() returns int language sql as $$
  select 1
$$;
"""


def test_the_readme_has_todays_figures() -> None:
    assert size.page() == size.README.read_text("utf-8"), "run `make size`"


def test_a_file_is_counted_without_the_comment_above_a_function(tmp_path: Path) -> None:
    file = tmp_path / "01_notes.sql"
    file.write_text(SQL)
    (found,) = schema_files.read(tmp_path)
    (function,) = found.functions
    assert found.public_tables == 1
    assert function.comment == "-- Extension point: counts.\n"
    assert len(function.definition.splitlines()) == 3

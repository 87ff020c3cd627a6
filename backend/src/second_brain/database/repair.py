"""Statements that make an install as this version has it again. Rows stay; nothing foreign changes.

Most follow from the manifest: `statements`. Functions, tables and types are created again by the
statements of the SQL files: `apply` runs both until nothing is left to heal.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from second_brain.database import catalogue, condition, naming
from second_brain.database.catalogue import Catalogue, Definition, Difference
from second_brain.database.packaged import Migration, find_state, select
from second_brain.database.rendering import here
from second_brain.database.statements import statements as split
from second_brain.errors import ConfigurationError
from second_brain.services.connections import connect

Connection = psycopg.Connection[Any]

INDEX = "index public.knowledge_chunks_embedding"
_LOCK = "select pg_advisory_xact_lock(hashtext('second_brain migrations'))"
_SETTINGS = """
select set_config('statement_timeout', '0', true), set_config('check_function_bodies', 'off', true)
"""
_STORAGE = {"p": "plain", "e": "external", "m": "main", "x": "extended"}
_COMMANDS = {"r": "select", "a": "insert", "w": "update", "d": "delete", "*": "all"}
_ROW_SECURITY = {
    "row_security": ("enable row level security", "disable row level security"),
    "row_security_forced": ("force row level security", "no force row level security"),
}
# What the trigger of the chunks sets: a chunk without its lexemes is written anew.
_ANALYSED = ("content_tsv", "bm25", "embedding_bits", "text_length", "content_words")
ANALYSE = "update public.knowledge_chunks set content_tsv = null"
_VIEWS = ("chunk_rows", "searchable_chunks")
_WRITE_VIEWS = """
do $$
begin
  if to_regprocedure('knowledge_internal.write_places()') is not null then
    perform knowledge_internal.write_places();
  end if;
  perform knowledge_internal.use_vector_index(
    case
      when pg_get_indexdef(to_regclass('public.knowledge_chunks_embedding')) like '%.vector\\_%'
        then 'vector'
      else 'halfvec'
    end
  );
end
$$
"""
_LISTED = """
select array_agg(listed.column1::text) filter (
         where not exists (select from {table} as stored where stored.{key} = listed.column1)
       ), count(*)
  from ({rows}) as listed
"""
_DERIVED = """
select case
         when not exists (select from {table})
              and exists (
                    select from public.knowledge_chunks as chunk
                     where chunk.status = 'active' and chunk.text_length > 0
                  )
           then array['all']
       end, 1
"""
_CREATE = re.compile(
    r"create (?:or replace )?(function|table|type|schema|index|view) (?:if not exists )?([\w.]+)"
)
_COMMENT = re.compile(r"comment on (\w+) ([\w.]+)")
# Rows that the files insert: those with their keys, and those that follow from the chunks.
_INSERT = re.compile(
    r"^insert into (?P<table>public\.\w+) \((?P<key>\w+)[^)]*\)\n(?P<rows>(?:values|select)[^;]*);",
    re.MULTILINE,
)
_DIMENSION = re.compile(r"(extensions\.vector)\(\d+\)")


def statements(
    difference: Difference, expected: Catalogue, found: Catalogue, owner: str
) -> list[str] | None:
    """Return what heals one difference, as SQL for schema public; None if it is not known here."""
    kind, name = difference.kind, difference.name
    table, _, member = name.rpartition(".")
    wanted = expected.get(difference.object, {})
    is_missing = difference.change == "missing"
    if kind == "column" and f"table {table}" in expected:
        if is_missing:
            return [f"alter table {table} add column {member} {_column(wanted)}"]
        return _changed(difference.properties, f"alter table {table} alter column {member}", name)
    if kind == "column" and f"type {table}" in expected and is_missing:
        return [f"alter type {table} add attribute {member} {wanted['type']}"]
    if kind == "constraint" and table.count("."):
        add = f"alter table {table} add constraint {member} {wanted.get('definition')}"
        drop = f"alter table {table} drop constraint {member}"
        if difference.properties.keys() == {"validated"}:
            return [f"alter table {table} validate constraint {member}"]
        return [add] if is_missing else [drop, add]
    if kind == "index" and "unique" not in str(wanted.get("definition")).lower():
        if difference.properties.keys() == {"invalid"}:
            return [f"reindex index concurrently {name}"]
        if difference.object == INDEX:
            return None
        drops = [] if is_missing else [f"drop index {name}"]
        return [*drops, str(wanted["definition"])]
    if kind in ("trigger", "policy"):
        if difference.properties.keys() == {"enabled"}:
            return [f"alter table {table} enable trigger {member}"]
        drops = [] if is_missing else [f"drop {kind} {member} on {table}"]
        made = _policy(member, table, wanted) if kind == "policy" else str(wanted["definition"])
        return [*drops, made]
    if is_missing:
        return None
    return _changed(difference.properties, f"alter {kind} {name}", name, owner=owner, kind=kind)


def _changed(
    properties: Mapping[str, tuple[Any, Any]],
    alter: str,
    name: str,
    *,
    owner: str = "",
    kind: str = "column",
) -> list[str] | None:
    healing: list[str] = []
    for key, (wanted, found) in properties.items():
        if key == "comment" and len(properties) > 1:
            continue  # until the others are healed
        if key == "grants":
            healing += grants(kind, name, wanted or {}, found or {})[1]
        elif key == "owner":
            healing.append(f"{alter} owner to {owner}")
        elif key == "usage":
            roles = ", ".join(sorted({*wanted} - {*(found or ())}))
            healing.append(f"grant usage on schema {name} to {roles}")
        elif key in _ROW_SECURITY:
            healing.append(f"{alter} {_ROW_SECURITY[key][0 if wanted else 1]}")
        elif key == "replica_identity":
            healing.append(f"{alter} replica identity default")
        elif key == "persistence":
            healing.append(f"{alter} set logged")
        elif key in ("options", "toast_options"):
            before = "toast." if key == "toast_options" else ""
            extra = {one.partition("=")[0] for one in found or ()}
            extra -= {one.partition("=")[0] for one in wanted or ()}
            if extra:
                healing.append(
                    f"{alter} reset ({', '.join(before + one for one in sorted(extra))})"
                )
            if wanted:
                healing.append(f"{alter} set ({', '.join(before + one for one in wanted)})")
        elif key == "not_null":
            healing.append(f"{alter} {'set' if wanted else 'drop'} not null")
        elif key == "default":
            healing.append(f"{alter} set default {wanted}" if wanted else f"{alter} drop default")
        elif key == "storage":
            healing.append(f"{alter} set storage {_STORAGE[wanted]}")
        elif key == "statistics" and kind == "column":
            healing.append(f"{alter} set statistics {wanted or -1}")
        elif key == "attributes":
            extra = {*found} - {*wanted}
            healing += [f"{alter} drop attribute {one}" for one in sorted(extra)]
        elif key == "type":
            healing.append(f"{alter} type {wanted}")
        else:
            return None
    return healing


def grants(
    kind: str, name: str, expected: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[str]]
) -> tuple[str, list[str]]:
    """Return what is wrong with the grants of an object, and the statements that heal them."""
    kind = "table" if kind == "view" else kind
    table, _, column = name.rpartition(".")
    on = f"table {table}" if kind == "column" else f"{kind} {name}"
    told, healing = [], []
    for verb, run, extra in (
        ("has", "revoke {} on {} from {}", _beyond(found, expected)),
        ("lacks", "grant {} on {} to {}", _beyond(expected, found)),
    ):
        if not extra:
            continue
        roles = ", ".join(extra)
        listed = sorted({one.rstrip("*").lower() for one in set().union(*extra.values())})
        privileges = ", ".join(listed) + (f" ({column})" if kind == "column" else "")
        what = f"{verb} {privileges} on {on}"
        if kind == "function":
            what = f"{'may' if verb == 'has' else 'may not'} call {name}"
        told.append(f"{roles} {what}" + (" but should not" if verb == "has" else ""))
        healing.append(run.format(privileges, on, roles))
    return "; ".join(told), healing


def _beyond(
    some: Mapping[str, Sequence[str]], others: Mapping[str, Sequence[str]]
) -> dict[str, set[str]]:
    """Return the privileges of each role that others do not have."""
    return {role: one for role in some if (one := {*some[role]} - {*others.get(role, ())})}


def _column(wanted: Definition) -> str:
    # A column that cannot be null is filled first; the next pass sees that it can.
    text = str(wanted["type"])
    if "collation" in wanted:
        text += f' collate "{wanted["collation"]}"'
    if wanted.get("generated"):
        return f"{text} generated always as ({wanted['default']}) stored"
    return f"{text} default {wanted['default']}" if "default" in wanted else text


def _policy(name: str, table: str, wanted: Definition) -> str:
    parts = [f"create policy {name} on {table}"]
    if not wanted.get("permissive"):
        parts.append("as restrictive")
    parts.append(f"for {_COMMANDS[wanted['command']]} to {', '.join(wanted['roles'])}")
    parts += [f"using ({wanted['using']})"] if "using" in wanted else []
    parts += [f"with check ({wanted['with_check']})"] if "with_check" in wanted else []
    return " ".join(parts)


class _Texts:
    """The statements of the SQL files that create an object of core and of these modules."""

    def __init__(self, files: Iterable[Migration]) -> None:
        self._created: dict[str, str] = {}
        self._comments: dict[str, list[str]] = {}
        for _, text in (one for file in files for one in split(file.sql)):
            statement = re.sub(r"\A(?:\s*--[^\n]*\n)+", "", text).strip()
            if made := _CREATE.match(statement):
                self._created[f"{made[1]} {made[2]}"] = statement
            elif said := _COMMENT.match(statement):
                self._comments.setdefault(f"{said[1]} {said[2]}", []).append(statement)
            elif statement.startswith("do "):
                for made in _CREATE.finditer(statement):
                    self._created.setdefault(f"{made[1]} {made[2]}", statement)

    def in_order(self, differences: Iterable[Difference]) -> list[Difference]:
        """Sort by the place in the files; what is in no file comes last."""
        places = {name: place for place, name in enumerate(self._created)}
        return sorted(differences, key=lambda one: places.get(_key(one), len(places)))

    def statements(self, difference: Difference) -> list[str]:
        key = _key(difference)
        if difference.object == INDEX:
            made = self._created[f"index {difference.name.partition('.')[2]}"]
            return [f"drop index if exists {difference.name}", made]
        if difference.properties.keys() == {"comment"}:
            return self._comments.get(key, [])
        if {*difference.name.split(".")[1:2]} & {*_VIEWS}:
            return [_WRITE_VIEWS]
        if difference.kind == "view" and key in self._created:
            return [f"drop view if exists {difference.name}", self._created[key]]
        if key not in self._created or (
            difference.change != "missing" and difference.kind != "function"
        ):
            return []
        text = re.sub("^create function", "create or replace function", self._created[key])
        is_other = difference.properties.keys() & {"arguments", "returns", "kind"}
        drops = [f"drop function {difference.name}"] if is_other else []
        return [*drops, text, *self._comments.get(key, [])]


def _key(difference: Difference) -> str:
    return difference.object.partition("(")[0]


def apply(dsn: str, schema: str = naming.SCHEMA, dimensions: int | None = None) -> list[str]:
    """Heal the install in `schema`, in one transaction; return the names of what was healed.

    A missing table is created without rows, with embeddings of `dimensions`; an index is built
    while writes wait. Raises ConfigurationError in another condition than whole or damaged, and,
    when the rest is healed, for what this role cannot heal.
    """
    with connect(dsn) as connection:
        connection.execute(_LOCK)
        healed, left = heal(connection, schema, dimensions)
    if left:
        raise ConfigurationError(
            f"{len(healed)} objects were repaired; not healed: {'; '.join(left)}",
            remedy="See the remedies of `second-brain doctor`.",
        )
    return healed


def heal(
    connection: Connection, schema: str = naming.SCHEMA, dimensions: int | None = None
) -> tuple[list[str], list[str]]:
    """Heal the install in the open transaction; return what was healed, and what was not."""
    there = condition.examine(connection, schema)
    if there.found is None:
        raise ConfigurationError(
            there.what or f"migrations are missing in schema {schema}",
            remedy=there.remedy or "Apply them: `second-brain migrate`.",
        )
    embedding = "column public.knowledge_chunks.embedding"
    if dimensions is None and embedding not in there.found:
        raise ConfigurationError(
            "the embeddings are gone, and with them their size",
            remedy="Pass the number of their dimensions: `second-brain migrate --repair "
            "--dimensions N`.",
        )
    modules = there.modules
    texts = _Texts(select(find_state(), (), modules))
    expected = catalogue.manifest().of(modules)
    connection.execute(_SETTINGS)
    healed: dict[str, None] = {}
    # What reads an object that a later step creates succeeds in the next pass.
    while True:
        found = catalogue.read(connection, schema)
        owner = catalogue.owner(found)
        found = catalogue.portable(found)
        left, before = [], len(healed)
        for one in texts.in_order(_wrong(expected, found)):
            healing = statements(one, expected, found, owner)
            healing = texts.statements(one) if healing is None else healing
            if one.kind == "column" and one.name.endswith(_ANALYSED):
                healing.append(ANALYSE)
            try:
                with connection.transaction():
                    for text in healing:
                        _run(connection, schema, text, dimensions)
                healed |= dict.fromkeys([f"{one} by {healing}"] if healing else [])
            except psycopg.Error as error:
                left.append(f"{one.object}: {error.diag.message_primary}")
        if len(healed) == before:
            break
    for rows in missing_rows(connection, schema, modules):
        if rows.is_all:
            connection.execute(rows.statement.encode())
            healed[f"rows of {rows.table}"] = None
    names = dict.fromkeys(name.partition(": ")[0] for name in healed)
    return [here(connection, schema, name) for name in names], [
        here(connection, schema, name) for name in left
    ]


def _wrong(expected: Catalogue, found: Catalogue) -> list[Difference]:
    return [
        one
        for one in catalogue.compare(expected, found, loosely=True)
        if one.change != "left over" and one.kind != "extension"
    ]


def _run(connection: Connection, schema: str, text: str, dimensions: int | None) -> None:
    text = _DIMENSION.sub(f"\\1({dimensions or 1024})", text)
    # Outside of a transaction, as `doctor` advises it, writes could go on.
    text = text.replace("reindex index concurrently", "reindex index")
    connection.execute(here(connection, schema, text).encode())


@dataclass(frozen=True, slots=True)
class MissingRows:
    """Rows that the files insert into a table and that are not there: all, or these keys."""

    table: str
    keys: tuple[str, ...]
    is_all: bool
    statement: str


def missing_rows(
    connection: Connection, schema: str, modules: Collection[str]
) -> Iterator[MissingRows]:
    """Look for the rows that the files insert; a dump of the schema alone has none."""
    for file in select(find_state(), (), modules):
        for one in _INSERT.finditer(file.sql):
            if "pg_temp" in one[0]:
                continue
            query = _LISTED if one["rows"].startswith("values") else _DERIVED
            text = query.format(table=one["table"], key=one["key"], rows=one["rows"])
            keys, count = connection.execute(
                here(connection, schema, text).encode()
            ).fetchone() or (
                (),
                0,
            )
            if keys:
                statement = " ".join(f"{one[0].rstrip(';')} on conflict do nothing".split())
                table, statement = (
                    here(connection, schema, text) for text in (one["table"], statement)
                )
                yield MissingRows(table, tuple(keys), len(keys) == count, statement)

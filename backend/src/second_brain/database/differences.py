"""What differs between a database and the manifest, as findings: what it breaks, what heals it.

The checks of everything else are in `doctor`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from second_brain.database import catalogue, naming, repair
from second_brain.database.catalogue import Catalogue, Definition, Difference
from second_brain.database.condition import REPAIR, Condition

Status = Literal["ok", "info", "warning", "error"]

_CHUNK_TABLE = f"{naming.INTERNALS}.physical_table()"
_NOT_ON_CITUS = f"For a tenant on Citus it is that of docs/citus.sql. Elsewhere: {REPAIR}"
# The indexes of the two legs may be dropped for a bulk load, those for filters for good.
_LEG_INDEXES = re.compile(
    r"index public\.knowledge_(chunks_(embedding|content_tsv|identifiers)|native_texts_bm25)$"
)
_FILTER_INDEXES = re.compile(
    r"index public\.knowledge_chunks_(metadata|knowledge_type|collection|source_origin"
    r"|document_date|language|visibility|groups)$"
)
_MEANINGS = {
    "row_security": "row level security is off: the API roles can read all rows that grants allow",
    "row_security_forced": "row level security is forced: the functions, which run as the owner,"
    " see no row",
    "replica_identity": "it has no replica identity: under a publication, updates fail",
    "invalid": "it is not valid: no search uses it, and each write maintains it",
    "enabled": "it is disabled: what it keeps is not written",
    "persistence": "it is unlogged: a crash empties it, and no standby has its rows",
}
_RELATIONS = ("table", "view", "type")
# The migrations grant these to nobody; a project can grant the search to visitors, and reads of the
# column to users and visitors.
_FOR_VISITORS = (
    "public.search_public_knowledge_chunks(",
    "public.search_visible_knowledge_chunks(",
)
_SHOWN_COLUMN = "public.knowledge_documents.source_row"
_OF_DROP_INS = f"{naming.INTERNALS}.adopted_hits_for_caller("
_VIEWS_OF_ADOPTIONS = f"{naming.INTERNALS}.adopted_"
_HARMLESS = {"comment"}
_SLOWER = {"comment", "storage", "statistics", "options", "toast_options", "compression", "cost"}
_LONGEST_REMEDY = 200


@dataclass(frozen=True)
class Finding:
    """The result of one check; `remedy` is the action to take, None if there is none."""

    check: str
    status: Status
    message: str
    remedy: str | None = None


def differences(there: Condition, schema: str) -> Iterator[Finding]:
    """Compare the database with the manifest; report missing, different and left over objects."""
    expected, found = catalogue.manifest().of(there.modules), there.found or {}
    findings = [
        finding
        for difference in catalogue.compare(expected, found, loosely=True)
        for finding in _findings(difference, expected, found, there.owner)
    ]
    if schema != naming.SCHEMA:
        names = {name.partition(" public.")[2].partition("(")[0] for name in expected} - {""}
        findings = [_renamed(one, names, schema) for one in findings]
    functions = sum(name.startswith("function ") for name in expected)
    tables = sum(name.startswith("table ") for name in expected)
    in_order = {
        "owners": "all objects belong to one role",
        "functions": f"{functions} functions with the expected grants",
        "row level security": f"on for all {tables} tables",
        "tables": f"{tables} tables with their columns, constraints and triggers",
        "indexes": "",
    }
    for check, message in in_order.items():
        about = [one for one in findings if one.check == check]
        if message and not any(one.status == "error" for one in about):
            yield Finding(check, "ok", message)
        yield from about


def _findings(
    difference: Difference, expected: Catalogue, found: Catalogue, owner: str
) -> Iterator[Finding]:
    """Yield what is wrong with an object: a finding for its owner, its grants, and the others."""
    check, name = _check(difference), f"{difference.kind} {difference.name}"
    properties = dict(difference.properties)
    if difference.kind == "extension":
        return
    if difference.change == "left over":
        yield from filter(None, [_left_over(difference, expected, found)])
        return
    if difference.change == "missing":
        if difference.kind != "index" or not _same_index(expected[difference.object], found):
            yield Finding(check, *_missing_index(difference, expected), REPAIR)
        return
    if "owner" in properties:
        _, other = properties.pop("owner")
        yield Finding(
            "owners",
            "error",
            f"{name} belongs to {other}, and most objects to {owner}",
            f"Run as a superuser: alter {name} owner to {owner}",
        )
    if "grants" in properties:
        expected_grants, found_grants = (value or {} for value in properties.pop("grants"))
        if not _is_choice(difference, found):
            message, healing = repair.grants(
                difference.kind, difference.name, expected_grants, found_grants
            )
            yield Finding(check, "error", message, f"Run: {'; '.join(healing)}")
    if "usage" in properties:
        wanted, there = (value or [] for value in properties.pop("usage"))
        roles = ", ".join(sorted({*wanted} - {*there}))
        if roles:
            message = f"{roles} lacks usage on {name}: every call fails"
            # The owner of the tables owns the other schemas, or may grant there.
            run = "Run as a superuser" if difference.name == "auth" else "Run"
            remedy = f"{run}: grant usage on {name} to {roles}"
            yield Finding(check, "error", message, remedy)
    if not properties:
        return
    if difference.name == _CHUNK_TABLE and properties.keys() == {"body"}:
        yield Finding(check, "info", f"{name} is not that of core", _NOT_ON_CITUS)
        return
    status: Status = "error"
    if properties.keys() <= _SLOWER or properties.keys() == {"replica_identity"}:
        status = "info" if properties.keys() <= _HARMLESS else "warning"
    message = f"{name} differs from this version in: {', '.join(sorted(properties))}"
    if len(properties) == 1 and (meaning := _MEANINGS.get(next(iter(properties)))):
        message = f"{name}: {meaning}"
    yield Finding(
        check, status, message, _remedy(replace(difference, properties=properties), expected, found)
    )


def _missing_index(difference: Difference, expected: Catalogue) -> tuple[Status, str]:
    what = f"{difference.kind} {difference.name} is missing"
    if _FILTER_INDEXES.fullmatch(difference.object):
        return "info", f"{what}: searches that filter by it can read more rows"
    is_unique = "UNIQUE" in str(expected[difference.object].get("definition"))
    if difference.kind != "index" or is_unique or _LEG_INDEXES.fullmatch(difference.object):
        return "error", what
    return "warning", f"{what}: writes and deletions read more rows"


def _remedy(difference: Difference, expected: Catalogue, found: Catalogue) -> str:
    """Return the statements that heal the difference if they are short, else the command."""
    healing = repair.statements(difference, expected, found, "")
    short = healing and len("; ".join(healing)) < _LONGEST_REMEDY
    return f"Run: {'; '.join(healing or ())}" if short else REPAIR


def _check(difference: Difference) -> str:
    if difference.kind in ("function", "index"):
        return {"function": "functions", "index": "indexes"}[difference.kind]
    if difference.kind == "policy" or {*difference.properties} & {
        "row_security",
        "row_security_forced",
    }:
        return "row level security"
    return "tables"


def _left_over(difference: Difference, expected: Catalogue, found: Catalogue) -> Finding | None:
    """Return the finding for an object that is not in the manifest; None if it is a project's."""
    check, what = _check(difference), f"{difference.kind} {difference.name}"
    if difference.kind in ("view", "column") and difference.name.startswith(_VIEWS_OF_ADOPTIONS):
        return None
    if difference.kind == "function" and naming.OF_READERS.search(difference.name):
        return None
    internal = difference.name.startswith(f"{naming.INTERNALS}.")
    if difference.kind == "column" and f"type {difference.name.rpartition('.')[0]}" in expected:
        return None  # the type differs
    if difference.kind == "function":
        name = difference.name.partition("(")[0]
        named_alike = [one for one in expected if one.startswith(f"function {name}(")]
        if not named_alike and not internal:
            return None
        message = f"{what} is left over from another version"
        if any(one in found for one in named_alike):
            count = sum(one.startswith(f"function {name}(") for one in found)
            message = f"{name} exists {count} times: PostgREST cannot choose (PGRST203)"
        return Finding(check, "error", message, f"Run: drop function {difference.name}")
    definition = found[difference.object]
    if difference.kind == "index":
        owner = str(definition["table"])
        # The manifest is made without pg_textsearch, so it has no index of it.
        if _same_index(definition, expected) or _LEG_INDEXES.match(what):
            return None
    else:
        owner = ".".join(difference.name.split(".")[:2])
    of_ours = owner != difference.name and any(f"{one} {owner}" in expected for one in _RELATIONS)
    if not internal and not of_ours:
        return None
    # These can allow access to rows, or change or refuse writes.
    is_unique = "UNIQUE" in str(definition.get("definition"))
    if difference.kind in ("policy", "trigger", "constraint", "rule") or is_unique:
        table, _, member = difference.name.rpartition(".")
        drop = {
            "index": f"drop index {difference.name}",
            "constraint": f"alter table {table} drop constraint {member}",
        }.get(difference.kind, f"drop {difference.kind} {member} on {table}")
        message = f"{what} is not part of this version"
        return Finding(check, "warning", message, f"Unless it is your own, run: {drop}")
    return Finding(check, "info", f"{what} is not part of this version", "Keep what is your own.")


def _same_index(definition: Definition, among: Catalogue) -> bool:
    """Return whether an index with this definition exists under any name."""
    return any(
        name.startswith("index ") and _without_name(one) == _without_name(definition)
        for name, one in among.items()
    )


def _without_name(definition: Definition) -> tuple[str, str, str]:
    text = re.sub(r"INDEX \S+ ON", "INDEX ON", definition.get("definition", ""), count=1)
    return definition["table"], definition["method"], text


def _is_choice(difference: Difference, found: Catalogue) -> bool:
    """Return whether the grants are those that a project may give."""
    if difference.name == naming.INTERNALS:
        # The roles for which `adopt --calls` wrote drop-ins look up their keys there.
        keys = [one for name, one in found.items() if name.startswith(f"function {_OF_DROP_INS}")]
        lookers = {role for one in keys for role in one["grants"]}
        _, granted = difference.properties["grants"]
        return {(role, *one) for role, one in (granted or {}).items()} == {
            (role, "USAGE") for role in lookers
        }
    if difference.name == _SHOWN_COLUMN:
        _, granted = difference.properties["grants"]
        return all(privileges == ["SELECT"] for privileges in (granted or {}).values())
    return difference.name.startswith((*_FOR_VISITORS, _OF_DROP_INS))


def _renamed(finding: Finding, names: set[str], schema: str) -> Finding:
    message = naming.rename(finding.message, names, naming.SCHEMA, schema)
    remedy = finding.remedy and naming.rename(finding.remedy, names, naming.SCHEMA, schema)
    return replace(finding, message=message, remedy=remedy)

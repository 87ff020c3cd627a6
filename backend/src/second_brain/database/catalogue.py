"""The objects of an install, read from the system catalogues of a database and compared.

This module does not contain names of objects. The wheel has the catalogue of the current state as
`manifest.json`: a section for core, and one for each module with what it adds or changes. `doctor`
compares a database with it. It does not read rows of tables: settings
and contents belong to the project.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeAlias

import psycopg

from second_brain.database import naming, pgvector
from second_brain.database.catalogue_queries import QUERIES

Connection: TypeAlias = psycopg.Connection[Any]
Definition: TypeAlias = dict[str, Any]
MANIFEST = "manifest.json"

CORE = "core"
"""The section of the manifest beside those of the modules."""

Catalogue: TypeAlias = dict[str, Definition]
"""Properties by object, such as `index public.knowledge_chunks_owner`, as if in schema public."""

Change = Literal["missing", "different", "left over"]

REPLACED_BY_PROJECT = f"function public.{naming.VIEWER_GROUPS}()"
# An adoption in place writes the bodies of these.
_OF_PLACES = f"function {naming.INTERNALS}.place_"
_FIXED_IN_REPLACEMENT = ("kind", "arguments", "returns")

API_ROLES = ("public", "anon", "authenticated", "service_role")
_OWNER = "the owner"
_ROW_PRIVILEGES = ("DELETE", "INSERT", "SELECT", "UPDATE")

# With an empty search_path, Postgres prints all names with their schema.
_WITHOUT_PATH = """
select set_config('search_path', '', true), set_config('quote_all_identifiers', 'off', true)
"""

# Postgres prints an access list as grantee=privileges/grantor; a star marks a grant option.
_GRANT = re.compile(r'(?:"?([\w$-]*)"?)=([a-zA-Z*]*)/"?[\w$-]+"?')
_PRIVILEGES = {
    "r": "SELECT",
    "a": "INSERT",
    "w": "UPDATE",
    "d": "DELETE",
    "D": "TRUNCATE",
    "x": "REFERENCES",
    "t": "TRIGGER",
    "m": "MAINTAIN",
    "X": "EXECUTE",
    "U": "USAGE",
    "C": "CREATE",
}
_SIZE = re.compile(r"\b(extensions\.(?:vector|halfvec))\(\d+\)")
# The expression, half or full precision and the parameters of the vector index are a choice.
_HNSW = re.compile(r"\(.*\s[\w.]*?(?:half)?vec(?:tor)?(_\w+_ops)\)(?: WITH \([^)]*\))?")
_TEMPORARY = re.compile(
    r"(knowledge_chunks\.embedding(_bits|_model)?|knowledge_chunks_embedding(_not_zero)?)"
    r"_(next|old|lacking|building|replaced)|follow_reembedding\b"
)


@dataclass(frozen=True)
class Difference:
    """One object that is not as expected; `properties` has (expected, found) by name."""

    object: str
    change: Change
    properties: Mapping[str, tuple[Any, Any]]

    @property
    def kind(self) -> str:
        """The kind of the object: table, column, index, function, ..."""
        words = self.object.split(" ")
        return " ".join(words[: 2 if words[0] in ("materialized", "foreign") else 1])

    @property
    def name(self) -> str:
        """The object's name, with its schema and, for a function, its argument types."""
        return self.object.removeprefix(self.kind + " ")

    def __str__(self) -> str:
        details = "".join(
            f"\n  {name}: {_shown(expected)} expected, {_shown(found)} found"
            for name, (expected, found) in sorted(self.properties.items())
        )
        return f"{self.object}: {self.change}{details}"


def read(connection: Connection, schema: str = naming.SCHEMA) -> Catalogue:
    """Read the exact definition of the install in `schema`.

    Names of another schema are replaced by `public`, and of another schema of pgvector by
    `extensions`, so that two installs can be compared. Objects of extensions are left out. The body
    of a function is its digest.
    """
    arguments = {
        "schemas": [schema, naming.internals(schema)],
        "schema": schema,
        "internals": naming.internals(schema),
    }
    rows: list[tuple[str, Definition]] = []
    with connection.transaction():
        connection.execute(_WITHOUT_PATH)
        for query in QUERIES:
            rows += connection.execute(query, arguments).fetchall()
        vector = pgvector.installed(connection)
        members = pgvector.members(connection)
    if vector is not None and vector.schema != naming.EXTENSIONS:
        rows = _mapped(rows, lambda text: naming.without_vector(text, vector.schema, members))
    if schema != naming.SCHEMA:
        rows = _as_default(rows, schema)
    return dict(sorted((name, _normal(definition)) for name, definition in rows))


def portable(catalogue: Catalogue) -> Catalogue:
    """Return the part of a catalogue that is equal on every server and project with this version.

    Left out are: the dimension of embeddings, the kind and parameters of the vector index and its
    view, the columns and indexes of an unfinished re-embedding, the role that owns most objects,
    grants to roles other than the API roles, the text of views, which differs between major
    versions, and all but the signature of the function that a project replaces. Comments are
    digests.
    """
    most = owner(catalogue)
    return {
        name: _portable(name, definition, most)
        for name, definition in catalogue.items()
        if not _TEMPORARY.search(name)
    }


def owner(catalogue: Catalogue) -> str:
    """Return the role that owns most objects of an exact catalogue."""
    owners = Counter(one["owner"] for one in catalogue.values() if "owner" in one)
    return owners.most_common(1)[0][0] if owners else ""


def compare(expected: Catalogue, found: Catalogue, *, loosely: bool = False) -> list[Difference]:
    """List the objects that are missing, different or left over in `found`, by name.

    Loosely, conditions may have other parentheses, as after a dump and restore.
    """
    differences = []
    for name in sorted(expected.keys() | found.keys()):
        before, after = expected.get(name), found.get(name)
        if before == after:
            continue
        if after is None:
            differences.append(Difference(name, "missing", {}))
        elif before is None:
            differences.append(Difference(name, "left over", {}))
        else:
            properties = {
                key: (before.get(key), after.get(key))
                for key in sorted(before.keys() | after.keys())
                if before.get(key) != after.get(key)
                and not (loosely and _bare(before.get(key)) == _bare(after.get(key)))
            }
            if not properties:
                continue
            differences.append(Difference(name, "different", properties))
    return differences


def _bare(value: Any) -> Any:
    return re.sub(r"[()]", "", value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Manifest:
    """The portable catalogue of core, and what each module adds to it or changes in it."""

    core: Catalogue
    modules: Mapping[str, Catalogue]

    def of(self, modules: Iterable[str]) -> Catalogue:
        """Return the catalogue of an install that has core and these modules."""
        merged = dict(self.core)
        for module in modules:
            merged |= self.modules[module]
        return merged

    def dump(self) -> str:
        """Return the manifest as JSON with one line for each object, for reviews of a diff."""
        sections = {CORE: self.core, **self.modules}
        return _object(f"{json.dumps(name)}: {_dump(one)}" for name, one in sections.items())


@cache
def manifest() -> Manifest:
    """Return the manifest of this version's state."""
    file = resources.files("second_brain.database").joinpath(MANIFEST)
    modules = json.loads(file.read_text("utf-8"))
    return Manifest(modules.pop(CORE), modules)


def added(core: Catalogue, with_module: Catalogue) -> Catalogue:
    """Return what a module adds to core or changes in it."""
    return {name: one for name, one in with_module.items() if core.get(name) != one}


def _dump(catalogue: Catalogue) -> str:
    return _object(
        f"{json.dumps(name)}: {json.dumps(definition, sort_keys=True, ensure_ascii=False)}"
        for name, definition in sorted(catalogue.items())
    )


def _object(members: Iterable[str]) -> str:
    return "{\n" + ",\n".join(members) + "\n}"


def _as_default(rows: Iterable[tuple[str, Definition]], schema: str) -> list[tuple[str, Any]]:
    rows = list(rows)
    names = {
        match[1] for name, _ in rows if (match := re.search(rf" {schema}\.(\w+)", name)) is not None
    }

    return _mapped(rows, lambda text: naming.rename(text, names, schema, naming.SCHEMA))


def _mapped(
    rows: Iterable[tuple[str, Definition]], rewrite: Callable[[str], str]
) -> list[tuple[str, Any]]:
    """Apply a function to every text of the definitions."""

    def mapped(value: Any) -> Any:
        if isinstance(value, str):
            return rewrite(value)
        if isinstance(value, list):
            return [mapped(one) for one in value]
        if isinstance(value, dict):
            return {key: mapped(one) for key, one in value.items()}
        return value

    return [(mapped(name), mapped(definition)) for name, definition in rows]


def _normal(definition: Definition) -> Definition:
    """Leave out unset properties; replace the body by its digest; list the grants by role."""
    normal = {
        key: value for key, value in definition.items() if value not in (None, "", False, [], {})
    }
    if "body" in normal:
        normal["body"] = _digest(normal["body"])
    if "grants" in normal:
        normal["grants"] = _grants(normal["grants"], normal.get("owner"))
    return normal


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _grants(text: str, owner: str | None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in text.strip("{}").split(","):
        match = _GRANT.fullmatch(entry.replace('\\"', '"').strip('"'))
        if match is None:
            continue
        role = _OWNER if owner is not None and match[1] == owner else match[1] or "public"
        privileges = [
            _PRIVILEGES.get(letter, letter) + ("*" if star else "")
            for letter, star in re.findall(r"([a-zA-Z])(\*?)", match[2])
        ]
        found[role] = sorted({*found.get(role, []), *privileges})
    return dict(sorted(found.items()))


def _portable(name: str, definition: Definition, most: str) -> Definition:
    kept = {key: value for key, value in definition.items() if key != "support"}
    if kept.get("owner") == most:
        del kept["owner"]
    # A subscriber of a replication has triggers that always fire.
    if kept.get("enabled") in ("O", "A"):
        del kept["enabled"]
    if name == REPLACED_BY_PROJECT or (
        name.startswith(_OF_PLACES) and not name.startswith(f"{_OF_PLACES}order(")
    ):
        return {key: value for key, value in kept.items() if key in _FIXED_IN_REPLACEMENT}
    if name.startswith(("view ", "materialized view ")):
        kept.pop("definition", None)
    if kept.get("method") == "hnsw":
        kept["definition"] = _HNSW.sub(r"\1", kept["definition"])
    if name.endswith(".indexed_embedding"):
        kept.pop("type", None)
    if "comment" in kept:
        kept["comment"] = _digest(kept["comment"])
    if "type" in kept:
        kept["type"] = _SIZE.sub(r"\1", kept["type"])
    if "grants" in kept:
        kept["grants"] = {
            role: privileges
            for role in API_ROLES
            if (privileges := _portable_privileges(role, kept["grants"].get(role, [])))
        }
    return kept


def _portable_privileges(role: str, privileges: list[str]) -> list[str]:
    # Whether service_role may also truncate depends on the project's default privileges.
    if role == "service_role" and set(privileges) & set(_ROW_PRIVILEGES):
        return [one for one in privileges if one in _ROW_PRIVILEGES]
    return [one for one in privileges if one.rstrip("*") != "MAINTAIN"]


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)

"""Values that are set once for all commands: environment variables and a configuration file.

An option overrides the variable, the variable overrides the file, the file overrides the default.
The file is `second-brain.toml`, or `[tool.second-brain]` of pyproject.toml, in the current folder
or in the nearest folder above it that has one of them. No other module of the command line reads
the environment.
"""

import difflib
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import Field, TypeAdapter, ValidationError

from second_brain.errors import ConfigurationError
from second_brain.retrieval.settings import (
    MATCH_COUNT_BOUND,
    ModeField,
    SearchSettings,
    Weight,
    other_names,
)
from second_brain.services.arguments import Fusion
from second_brain.services.connections import secrets

FILE = "second-brain.toml"
_PROJECT = "pyproject.toml"
_SEARCH = "search"

_Text = Annotated[str, Field(min_length=1)]
_Limit = Annotated[int, Field(ge=1, le=MATCH_COUNT_BOUND)]
_Similarity = Annotated[float, Field(ge=-1, le=1)]
_Constant = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SearchMode = Literal["websearch", "simple", "phrase"]


@dataclass(frozen=True, slots=True)
class Key:
    """A value that can be set: its name in the file is that of the option, without the dashes.

    `setting` is the field of SearchSettings with the same meaning. A secret is never read from a
    file. For `limits_rows`, a variable with an empty text is not the same as no variable.
    """

    name: str
    kind: Any
    variables: tuple[str, ...]
    default: str
    setting: str | None = None
    is_secret: bool = False
    limits_rows: bool = False

    @property
    def option(self) -> str:
        """The name of the option."""
        return self.name.removeprefix(f"{_SEARCH}.")


def _search(name: str, kind: Any, setting: str, default: str) -> Key:
    """Return the key of a search's option, with the variables that the service reads."""
    others = other_names(SearchSettings.model_fields)
    names = (setting, *(other for other, named in others.items() if named == setting))
    variables = tuple(one.upper() for one in names)
    return Key(f"{_SEARCH}.{name}", kind, variables, default, setting)


KEYS = (
    Key(
        "dsn", _Text, ("SECOND_BRAIN_DSN", "DATABASE_URL"), "the dev database of the current folder"
    ),
    Key("schema", _Text, ("SECOND_BRAIN_SCHEMA",), "public"),
    Key("embedder", _Text, ("SECOND_BRAIN_EMBEDDER",), "wordllama"),
    Key("embedder-address", _Text, ("SECOND_BRAIN_EMBEDDER_ADDRESS",), "the model's provider"),
    Key("embedder-key", _Text, ("SECOND_BRAIN_EMBEDDER_KEY",), "none", is_secret=True),
    Key("viewer-id", UUID, ("SECOND_BRAIN_VIEWER_ID",), "every row is shown", limits_rows=True),
    Key(
        "viewer-groups",
        list[str],
        ("SECOND_BRAIN_VIEWER_GROUPS",),
        "no restriction",
        limits_rows=True,
    ),
    Key("public-only", bool, ("SECOND_BRAIN_PUBLIC_ONLY",), "false", limits_rows=True),
    _search("mode", ModeField, "search_default_mode", "hybrid"),
    _search("limit", _Limit, "search_default_limit", "10"),
    _search("fusion", Fusion, "search_fusion", "as stored, else rrf"),
    _search("vector-weight", Weight, "vector_weight", "1"),
    _search("text-weight", Weight, "text_weight", "1"),
    _search("rrf-k", _Constant, "rrf_constant", "60"),
    _search("pool-size", _Limit, "hybrid_candidate_count", "50"),
    _search("min-similarity", _Similarity, "similarity_threshold", "-1"),
    _search("rerank", bool, "use_reranking", "false"),
    Key("search.reranker", _Text, ("SECOND_BRAIN_RERANKER",), "cross-encoder"),
    _search("include-memory", bool, "search_include_memory", "false"),
    Key("supabase-url", _Text, ("SUPABASE_URL",), "none"),
    Key("supabase-key", _Text, ("SUPABASE_KEY",), "none", is_secret=True),
    *(
        Key(name, str, (variable,), "none", is_secret=True, limits_rows=True)
        for name, variable in (
            ("supabase-jwt-secret", "SUPABASE_JWT_SECRET"),
            ("mcp-token", "SECOND_BRAIN_MCP_TOKEN"),
            ("workbench-token", "SECOND_BRAIN_WORKBENCH_TOKEN"),
        )
    ),
)
_BY_NAME = {key.name: key for key in KEYS}


@dataclass(frozen=True, slots=True)
class Value:
    """What is set for a key, and where: in `$VARIABLE` or in the file with this path."""

    key: Key
    given: Any
    source: str

    @property
    def is_variable(self) -> bool:
        """Whether an environment variable sets it."""
        return self.source.startswith("$")

    @property
    def value(self) -> Any:
        """The value in its type; raises ConfigurationError with its source if it is wrong."""
        try:
            return TypeAdapter(self.key.kind).validate_python(self.given)
        except ValidationError as error:
            # Without the value, which may be a secret in the wrong place.
            fault = error.errors(include_url=False, include_input=False)[0]["msg"]
        where = self.source if self.is_variable else f"{self.source}: {self.key.name}"
        raise ConfigurationError(f"{where}: {fault}", remedy="Correct the value, or remove it.")

    def shown(self) -> str:
        """Return the value as text, without secrets."""
        if self.key.is_secret:
            return "***"
        if self.key.name == "dsn":
            return without_password(self.value)
        value = self.value
        if isinstance(value, list):
            return ", ".join(value)
        return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What variables and the file set."""

    file: Path | None
    values: Mapping[str, Value]

    def get(self, name: str) -> Any:
        """Return the value of a key, None if nothing sets it."""
        found = self.values.get(name)
        return None if found is None else found.value

    def defaults(self, path: tuple[str, ...], command: Any) -> dict[str, Any]:
        """Return the values for the options of a command, by parameter, and of its commands."""
        subcommands = getattr(command, "commands", {})
        defaults = {name: self.defaults((*path, name), one) for name, one in subcommands.items()}
        for parameter in command.params:
            for flag in parameter.opts:
                found = self._of_option(path, flag.removeprefix("--"))
                # A required option names something new, such as the model of `reembed start`.
                if found is not None and not parameter.required:
                    defaults[parameter.name] = _for_option(found.value, parameter.multiple)
        return defaults

    def _of_option(self, path: tuple[str, ...], option: str) -> Value | None:
        if path == (_SEARCH,) and f"{_SEARCH}.{option}" in self.values:
            return self.values[f"{_SEARCH}.{option}"]
        # The option --dsn of `eval` is another one; `resolve_dsn` reads the key.
        return None if option == "dsn" else self.values.get(option)

    def search_settings(self) -> SearchSettings:
        """Return the settings of a retrieval service, which reads the variables itself."""
        return SearchSettings(
            **{
                one.key.setting: one.value
                for one in self.values.values()
                if one.key.setting is not None and not one.is_variable
            }
        )


def load() -> Configuration:
    """Read the variables and the file; raises ConfigurationError for a wrong key or value of it.

    A variable is checked when its value is used: most are also those of other programs.
    """
    file, table = _nearest_file()
    values = {}
    if file is not None:
        for name, value in _flat(table):
            values[name] = Value(_BY_NAME[_known(name, file)], value, str(file))
            _ = values[name].value
    for key in KEYS:
        for variable in key.variables:
            text = os.environ.get(variable)
            if text or (text is not None and key.limits_rows):
                given = [one.strip() for one in text.split(",")] if key.kind == list[str] else text
                values[key.name] = Value(key, given, f"${variable}")
                break
    return Configuration(file, values)


def _nearest_file() -> tuple[Path | None, Mapping[str, Any]]:
    folder = Path.cwd()
    for place in (folder, *folder.parents):
        for name in (FILE, _PROJECT):
            path = place / name
            # Not Path.is_file, which fails in a folder that may not be read.
            if os.path.isfile(path) and (found := _table(path)) is not None:
                return path, found
    return None, {}


def _table(path: Path) -> Mapping[str, Any] | None:
    """Return what a file sets, None for a pyproject.toml without the table."""
    try:
        text = path.read_text("utf-8")
        # Most are of other projects, and some are templates that are not TOML.
        if path.name == _PROJECT and "second-brain" not in text:
            return None
        found: Any = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"cannot read {path}: {error}", remedy="Correct the file, or remove it."
        ) from error
    for part in ("tool", "second-brain") if path.name == _PROJECT else ():
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _flat(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys with their table; both `vector-weight` and `vector_weight` are a name."""
    for name, value in given.items():
        key = name.replace("_", "-")
        if key == _SEARCH and isinstance(value, dict):
            yield from ((f"{key}.{inner.replace('_', '-')}", one) for inner, one in value.items())
        else:
            yield key, value


def _known(name: str, file: Path) -> str:
    allowed = [key.name for key in KEYS if not key.is_secret]
    if name in allowed:
        return name
    if name in _BY_NAME:
        raise ConfigurationError(
            f"{file}: {name} is a secret, which is not read from a file",
            remedy=f"Set the environment variable {_BY_NAME[name].variables[0]}.",
        )
    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    # A name without its table, such as limit.
    near = [one for one in allowed if one == f"{_SEARCH}.{name}"] or near
    guess = f"Did you mean {near[0]}? " if near else ""
    raise ConfigurationError(
        f"{file}: unknown key {name!r}", remedy=f"{guess}The keys are {', '.join(allowed)}."
    )


def _for_option(value: Any, is_repeated: bool) -> Any:
    if is_repeated:
        # An option that is given without a value: no group.
        return value or [""] if isinstance(value, list) else [value]
    return str(value) if isinstance(value, UUID) else value


def without_password(dsn: str) -> str:
    """Return a connection string for people: `***` for the password, a note if it is malformed."""
    try:
        given = conninfo_to_dict(dsn)
        hidden = {name: "***" for name in ("password", "sslpassword") if given.get(name)}
        return make_conninfo("", **{**given, **hidden})
    except (psycopg.Error, ValueError):
        return "(malformed)"


def warning_of_password(dsn: Value) -> str | None:
    """Return a warning if the password of a connection string is in a file that git may share."""
    git = shutil.which("git")
    if git is None or dsn.is_variable or len(secrets(dsn.value)) == 1:
        return None
    folder, name = os.path.split(dsn.source)
    checked = subprocess.run(  # noqa: S603
        [git, "-C", folder, "check-ignore", "--quiet", name], capture_output=True, check=False
    )
    # 0: ignored; 128: not in a repository.
    if checked.returncode != 1:
        return None
    return (
        f"{dsn.source} has a password, and git does not ignore the file. Set SECOND_BRAIN_DSN "
        "instead, or write the password into ~/.pgpass."
    )

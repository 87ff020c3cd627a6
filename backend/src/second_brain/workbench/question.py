"""What the address of a page asks for: a question, the arguments of the search, who asks.

The address holds everything, so that a view can be shared. Only values that differ from their
defaults are in it.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from typing import Any, Literal, get_args
from uuid import UUID

from psycopg import sql
from starlette.datastructures import QueryParams

from second_brain.errors import InvalidInputError
from second_brain.filters import conditions, listed_conditions
from second_brain.services.arguments import DEFAULTS, SQL_NAMES, Leg, SearchOptions, TextMode
from second_brain.services.install import SCHEMA, Install
from second_brain.workbench.frame import link

Fusion = Literal["stored_or_auto", "rrf", "relative_score", "auto"]
LEGS: tuple[Leg, ...] = get_args(Leg)
TEXT_MODES: tuple[TextMode, ...] = get_args(TextMode)
FUSIONS: tuple[Fusion, ...] = get_args(Fusion)

FACETS = {"types": "knowledge_type", "origins": "source_origin", "languages": "language"}
"""The lists of the form that become a filter, and their columns."""

_FILTERS_REMEDY = 'Write an object such as {"team": "platform"}, or a list of conditions.'


@dataclass(frozen=True, slots=True)
class Question:
    """A question with all that the address says. The names are those in the address."""

    q: str = ""
    legs: Leg = "hybrid"
    fusion: Fusion = "stored_or_auto"
    limit: int = 10
    offset: int = 0
    vector_weight: float = 1.0
    text_weight: float = 1.0
    pool: int = 50
    threshold: float = 0.0
    rrf_k: float = 60.0
    search_mode: TextMode = "websearch"
    collections: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    filters: str = ""
    date_from: str = ""
    date_to: str = ""
    viewer: str = ""
    groups: str = ""
    public: bool = False
    documents: bool = False
    half_life: float | None = None
    prefix: bool = False

    def address(self, path: str = "/", **changes: Any) -> str:
        """Return the address of a page for this question, with other values of these names."""
        names = {one.name for one in fields(self)}
        changed = replace(self, **{name: changes.pop(name) for name in names & changes.keys()})
        pairs = {
            one.name: _written(getattr(changed, one.name))
            for one in fields(changed)
            if getattr(changed, one.name) != one.default
        }
        return link(path, **pairs, **changes)

    def hidden(self) -> list[tuple[str, str]]:
        """Return the fields of a form that asks the same question."""
        return [
            (one.name, text)
            for one in fields(self)
            if getattr(self, one.name) != one.default
            for text in _texts(_written(getattr(self, one.name)))
        ]

    @property
    def more_is_set(self) -> bool:
        """Whether an argument that the page folds away differs from its default."""
        plain = replace(self, q="", legs="hybrid", fusion="stored_or_auto", limit=10, offset=0)
        return plain != Question()

    def options(self) -> SearchOptions:
        """Return the arguments of the search. Raises InvalidInputError for filters or a viewer."""
        options: SearchOptions = {
            "fusion": self.fusion,
            "top_k": self.limit,
            "match_offset": self.offset,
            "vector_weight": self.vector_weight,
            "text_weight": self.text_weight,
            "pool_size": self.pool,
            "threshold": self.threshold,
            "rrf_k": self.rrf_k,
            "search_mode": self.search_mode,
            "collections": list(self.collections) or None,
            "filters": self._conditions(),
            "date_from": self.date_from or None,
            "date_to": self.date_to or None,
            "viewer_id": self.viewer or None,
            "viewer_groups": self.group_names,
            "public_only": self.public,
            "one_per_document": self.documents,
            "recency_half_life": self.half_life,
            "prefix_last": self.prefix,
        }
        return options

    @property
    def group_names(self) -> list[str] | None:
        """The groups of the viewer; None if none is given."""
        names = [name.strip() for name in self.groups.split(",")]
        return [name for name in names if name] or None

    def python(self, embedder: str | None, schema: str) -> str:
        """Return a program that does this search, for None with the text leg alone.

        It reads the DSN from the environment.
        """
        text = None if self.legs == "vector" else self.q
        given = {
            name: value
            for name, value in self.options().items()
            if name not in DEFAULTS or value != DEFAULTS[name]
        }
        lines = ["import os", ""]
        if embedder is not None:
            lines.append("from second_brain.models import embed_query, load_embedder")
        lines += [
            "from second_brain.services.postgres import PostgresProvider",
            "",
            'provider = PostgresProvider(os.environ["SECOND_BRAIN_DSN"]'
            + ("" if schema == SCHEMA else f", schema={schema!r}")
            + ")",
            f"question = {self.q!r}",
            "hits, details = provider.find(",
            f"    embed_query(load_embedder({embedder!r}), question),"
            if embedder is not None
            else "    None,",
            "    None," if text is None else "    question,",
            *(f"    {name}={value!r}," for name, value in given.items()),
            ")",
            "for hit in hits:",
            '    print(hit.metadata["rrf_score"], hit.metadata["external_key"], hit.content[:60])',
        ]
        return "\n".join(lines) + "\n"

    def sql(self, embedding: Sequence[float] | None, install: Install) -> str:
        """Return this search as a statement for psql or the SQL editor."""
        given: dict[str, Any] = {}
        if embedding is not None:
            given["query_embedding"] = "[" + ",".join(f"{one:.7g}" for one in embedding) + "]"
        if self.legs != "vector":
            given["query_text"] = self.q
        given.update(
            (SQL_NAMES.get(name, name), value)
            for name, value in self.options().items()
            if value != DEFAULTS[name]
        )
        # The default of match_count is another one than that of top_k.
        given["match_count"] = self.limit
        arguments = ",\n".join(f"  {name} => {_literal(value)}" for name, value in given.items())
        function = sql.Identifier(install.schema, "hybrid_search_knowledge_chunks").as_string(None)
        return (
            "select rrf_score, vector_rank, text_rank, similarity, text_score, external_key,\n"
            f"       left(content, 60) as beginning\nfrom {function}(\n{arguments}\n);\n"
        )

    def _conditions(self) -> list[Any] | None:
        given: Any = None
        if self.filters:
            try:
                given = json.loads(self.filters)
            except (ValueError, RecursionError) as error:
                raise InvalidInputError(
                    f"filters is not JSON: {error}",
                    remedy=_FILTERS_REMEDY,
                ) from error
            if not isinstance(given, dict | list | None):
                raise InvalidInputError(
                    f"filters must be a JSON object or a list, not {self.filters[:100]}",
                    remedy=_FILTERS_REMEDY,
                )
        known = conditions(given)
        listed = [*(listed_conditions(known) if isinstance(known, dict) else known or ())]
        for name, column in FACETS.items():
            if values := getattr(self, name):
                listed.append({"field": column, "op": "in", "value": list(values)})
        return listed or None


def read_question(params: QueryParams) -> tuple[Question, list[str]]:
    """Return what an address asks for, and a sentence for each value that cannot be read."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for one in fields(Question):
        given = [text.strip() for text in params.getlist(one.name)]
        texts = [text for text in given if text]
        if not texts:
            continue
        try:
            values[one.name] = _read(one.name, one.default, texts)
        except ValueError as error:
            problems.append(f"{one.name} must be {error}, not {texts[0][:100]!r}")
    return Question(**values), problems


_CHOICES: dict[str, Sequence[str]] = {
    "legs": LEGS,
    "fusion": FUSIONS,
    "search_mode": TEXT_MODES,
}


def _read(name: str, default: object, texts: list[str]) -> object:
    """Return the value of a field; the error says what it must be."""
    text = texts[0]
    if name in _CHOICES:
        if text not in _CHOICES[name]:
            raise ValueError("one of " + ", ".join(_CHOICES[name]))
        return text
    if isinstance(default, tuple):
        return tuple(dict.fromkeys(texts))
    if isinstance(default, bool):
        return text not in ("0", "false")
    if isinstance(default, int):
        return _parsed(int, text, "a whole number")
    if isinstance(default, float) or name == "half_life":
        number = _parsed(float, text, "a number")
        if not math.isfinite(number):
            raise ValueError("a number")
        return number
    if name == "viewer":
        return str(_parsed(UUID, text, "a UUID"))
    if name in ("date_from", "date_to"):
        return _parsed(date.fromisoformat, text, "a date such as 2026-01-31").isoformat()
    return text


def _parsed(parse: Callable[[str], Any], text: str, what: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(what) from error


def _written(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return value


def _texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _literal(value: object) -> str:
    """Return a value as an SQL literal, quoted by psycopg."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "array[" + ", ".join(_literal(one) for one in value) + "]::text[]"
    if isinstance(value, list | dict):
        return _literal(json.dumps(value, ensure_ascii=False)) + "::jsonb"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return sql.Literal(str(value)).as_string(None).strip()

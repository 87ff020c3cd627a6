"""What the address of a page asks for: a question, the arguments of the search, who asks.

The address holds everything, so that a view can be shared. Only values that differ from their
defaults are in it.
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, get_args
from uuid import UUID

from psycopg import sql
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from starlette.datastructures import QueryParams

from second_brain.errors import InvalidInputError
from second_brain.filters import listed
from second_brain.retrieval.plan import invalid_query, planned, search_options
from second_brain.retrieval.query import Access, Names, OperatorQuery
from second_brain.retrieval.settings import MATCH_COUNT_BOUND, SearchSettings, Weight
from second_brain.services.arguments import DEFAULTS, SQL_NAMES, Fusion, Leg, TextMode, converted
from second_brain.services.install import SCHEMA, Install
from second_brain.workbench.frame import link

LEGS: tuple[Leg, ...] = get_args(Leg)
TEXT_MODES: tuple[TextMode, ...] = get_args(TextMode)
FUSIONS: tuple[Fusion | None, ...] = (None, *get_args(Fusion))

FACETS = {"types": "knowledge_type", "origins": "source_origin", "languages": "language"}
"""The lists of the form that become a filter, and their columns."""

_FILTERS_REMEDY = 'Write an object such as {"team": "platform"}, or a list of conditions.'

_IN_ADDRESS = {
    "query": "q",
    "mode": "legs",
    "pool_size": "pool",
    "min_similarity": "threshold",
    "viewer_id": "viewer",
    "viewer_groups": "groups",
    "public_only": "public",
    "one_per_document": "documents",
    "recency_half_life": "half_life",
    "prefix_last": "prefix",
    "include_memory": "memory",
}
"""The names in the address, where they are not those of a search."""

_EXPECTED = {
    "float_parsing": "a number",
    "finite_number": "a number",
    "int_parsing": "a whole number",
    "literal_error": "one of {expected}",
    "uuid_parsing": "a UUID",
}


def _split(given: object) -> object:
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    return [name for name in names if name] or None if isinstance(names, list) else names


class Question(OperatorQuery, Access):
    """A search and who asks, with the values of the form.

    Without a query and without `like_ids` it is no question yet.

    `filters` is JSON, as it is typed.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=lambda name: _IN_ADDRESS.get(name, name),
        validate_by_name=True,
        validate_by_alias=True,
    )

    query: str = ""
    mode: Leg = "hybrid"
    fusion: Fusion | None = None
    limit: int = Field(default=10, ge=1, le=MATCH_COUNT_BOUND)
    vector_weight: Weight = 1.0
    text_weight: Weight = 1.0
    pool_size: int = Field(default=50, ge=1, le=MATCH_COUNT_BOUND)
    min_similarity: float = Field(default=0.0, ge=-1, le=1, allow_inf_nan=False)
    rrf_k: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    search_mode: TextMode = "websearch"
    collections: Names = ()
    like_ids: tuple[UUID, ...] = ()
    types: Names = ()
    origins: Names = ()
    languages: Names = ()
    filters: str = ""
    viewer_groups: Annotated[Names | None, BeforeValidator(_split)] = None
    include_memory: bool = False

    def address(self, path: str = "/", **changes: Any) -> str:
        """Return the address of a page for this question, with other values of these names."""
        names = type(self).model_fields.keys() & changes.keys()
        changed = self.model_copy(update={name: changes.pop(name) for name in names})
        return link(path, **changed._pairs(), **changes)

    def like(self, chunk_id: str) -> str:
        """Return the address of a search for more like this chunk."""
        return self.address(like_ids=(*self.like_ids, UUID(chunk_id)), offset=0)

    def hidden(self) -> list[tuple[str, str]]:
        """Return the fields of a form that asks the same question."""
        return [
            (name, text)
            for name, value in self._pairs().items()
            for text in (value if isinstance(value, list) else [value])
        ]

    @property
    def more_is_set(self) -> bool:
        """Whether an argument that the page folds away differs from its default."""
        return bool(self._pairs().keys() - {"q", "legs", "fusion", "limit", "offset"})

    @property
    def settings(self) -> dict[str, Any]:
        """What the settings of the service say in other searches."""
        return {"hybrid_candidate_count": self.pool_size, "rrf_constant": self.rrf_k}

    def search(self, **changes: Any) -> OperatorQuery:
        """Return the search for the service. Raises InvalidInputError."""
        given = {name: getattr(self, name) for name in OperatorQuery.model_fields}
        given |= {"filters": self._conditions(), "collections": self.collections or None}
        given |= {"like_ids": self.like_ids or None, **changes}
        try:
            return OperatorQuery(**given)
        except ValidationError as error:
            raise invalid_query(error) from None

    def access(self) -> Access:
        """Return who asks."""
        return Access(**{name: getattr(self, name) for name in Access.model_fields})

    def python(
        self,
        embedder: str | None,
        schema: str,
        settings: SearchSettings,
        embedding_from_text: bool = False,
    ) -> str:
        """Return a program that does this search; without an embedder, it gives the text alone.

        It reads the DSN from the environment.
        """
        text = None if self.mode == "vector" else self.query or None
        options = self._options(settings, embedding_from_text)
        lines = ["import os", ""]
        if embedder is not None:
            lines.append("from second_brain.models import embed_query, load_embedder")
        lines += [
            "from second_brain.services.postgres import PostgresProvider",
            "",
            'provider = PostgresProvider(os.environ["SECOND_BRAIN_DSN"]'
            + ("" if schema == SCHEMA else f", schema={schema!r}")
            + ")",
            f"question = {self.query!r}",
            "hits, details = provider.find(",
            f"    embed_query(load_embedder({embedder!r}), question),"
            if embedder is not None
            else "    None,",
            "    None," if text is None else "    question,",
            *(f"    {name}={value!r}," for name, value in options.items()),
            ")",
            "for hit in hits:",
            '    print(hit.metadata["rrf_score"], hit.metadata["external_key"], hit.content[:60])',
        ]
        return "\n".join(lines) + "\n"

    def sql(
        self,
        embedding: Sequence[float] | None,
        install: Install,
        settings: SearchSettings,
        embedding_from_text: bool = False,
    ) -> str:
        """Return this search as a statement for psql or the SQL editor."""
        given: dict[str, Any] = {}
        if embedding is not None:
            given["query_embedding"] = "[" + ",".join(f"{one:.7g}" for one in embedding) + "]"
        if self.mode != "vector" and self.query:
            given["query_text"] = self.query
        options = self._options(settings, embedding_from_text)
        given.update((SQL_NAMES.get(name, name), value) for name, value in options.items())
        if self.like_ids:
            given["like_ids"] = f"{{{','.join(map(str, self.like_ids))}}}"
        # The default of match_count is another one than that of top_k.
        given["match_count"] = self.limit
        arguments = ",\n".join(f"  {name} => {_literal(value)}" for name, value in given.items())
        function = sql.Identifier(install.schema, "hybrid_search_knowledge_chunks").as_string(None)
        return (
            "select rrf_score, vector_rank, text_rank, similarity, text_score, external_key,\n"
            f"       left(content, 60) as beginning\nfrom {function}(\n{arguments}\n);\n"
        )

    def _options(self, settings: SearchSettings, embedding_from_text: bool) -> dict[str, Any]:
        """Return the arguments of a provider for this search that differ from their defaults."""
        plan = planned(self.search(), self.access(), settings)
        given = search_options(
            *(plan, plan.retrieval, (), settings, None), embedding_from_text=embedding_from_text
        )
        options = converted(given)
        return {
            name: value
            for name, value in options.items()
            if name in DEFAULTS and value != DEFAULTS[name]
        }

    def _conditions(self) -> list[Any] | None:
        given: Any = None
        if self.filters.strip():
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
        wanted = listed(given)
        for name, column in FACETS.items():
            if values := getattr(self, name):
                wanted.append({"field": column, "op": "in", "value": list(values)})
        return wanted or None

    def _pairs(self) -> dict[str, Any]:
        """Return what differs from its default, by the names of the address, as texts."""
        given = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return {
            name: ",".join(value) if name == "groups" else _written(value)
            for name, value in given.items()
        }


def read_question(params: QueryParams) -> tuple[Question, list[str]]:
    """Return what an address asks for, and a sentence for each value that cannot be read."""
    fields = Question.model_fields.items()
    lists = {name for name, one in fields if one.annotation in (tuple[str, ...], tuple[UUID, ...])}
    given: dict[str, Any] = {}
    for name in params:
        texts = [text.strip() for text in params.getlist(name) if text.strip()]
        if texts:
            given[name] = tuple(dict.fromkeys(texts)) if name in lists else texts[0]
    try:
        return Question(**given), []
    except ValidationError as error:
        problems = []
        for fault in error.errors():
            name = str(fault["loc"][0])
            said = re.sub("^(Input should be|Value error, must be) ", "", fault["msg"])
            expected = _EXPECTED.get(fault["type"], said.partition(", not ")[0])
            expected = expected.format(**fault.get("ctx", {}))
            problems.append(f"{name} must be {expected}, not {str(given.pop(name, ''))[:100]!r}")
    return Question(**given), problems


def _written(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return value if isinstance(value, list) else str(int(value) if value is True else value)


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

"""The settings of the retrieval service, from environment variables or keyword arguments.

The names are the same as in comparable projects. `docs/service.md` describes each setting and how
limits combine. The environment is read only when `SearchSettings()` is called.
"""

import difflib
import logging
import os
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from second_brain.errors import ConfigurationError
from second_brain.services.arguments import Fusion, Leg, OnBadEmbedding

logger = logging.getLogger(__name__)

MATCH_COUNT_BOUND = 1000
"""The maximum number of rows and of candidates that the SQL function accepts."""

LIMIT_BOUND = 100
"""The maximum number of results of one search."""

_ALIASES = {"bm25": "text"}


def without_alias(mode: object) -> object:
    """Return the mode that another name of it stands for."""
    return _ALIASES.get(mode, mode) if isinstance(mode, str) else mode


Mode = Literal[Leg, "rerank"]
"""How the service runs a search: `rerank` is hybrid search with reranking."""

ModeField = Annotated[Mode, BeforeValidator(without_alias)]
"""A field of type Mode that accepts `bm25` for `text`."""

LoggedSearches = Literal["off", "without_viewer", "all"]
"""Which searches the service adds to the query log in the database."""


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


PREFIX = "search_"


def other_names(fields: Iterable[str]) -> dict[str, str]:
    """Return the other names of settings: with the prefix, and bm25 for text."""
    others = {f"{PREFIX}{name}": name for name in fields if not name.startswith(PREFIX)}
    return {**others, "search_bm25_weight": "text_weight", "bm25_weight": "text_weight"}


def _environment(fields: dict[str, Any]) -> dict[str, str]:
    """Return the settings in the environment: in upper or lower case, and not empty.

    Logs one warning with the variables SEARCH_* that are no setting. Raises ConfigurationError for
    two names of one setting with different values.
    """
    variables = {name.lower(): value for name, value in os.environ.items() if value}
    settings = {name: value for name, value in variables.items() if name in fields}
    others = other_names(fields)
    for other, name in others.items():
        if other not in variables:
            continue
        if settings.setdefault(name, variables[other]) != variables[other]:
            names = [name, *(each for each, same in others.items() if same == name)]
            given = " and ".join(each.upper() for each in names if each in variables)
            raise ConfigurationError(
                f"{given} are names of one setting and have different values",
                remedy=f"Set {name.upper()} alone.",
            )
    known = [*fields, *others]
    unknown = sorted(name for name in variables if name.startswith(PREFIX) and name not in known)
    if unknown:
        logger.warning(
            "ignored environment variables: %s",
            ", ".join(f"{name.upper()} ({_nearest(name, known)})" for name in unknown),
        )
    return settings


def _nearest(name: str, known: list[str]) -> str:
    (nearest,) = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return f"the nearest setting is {nearest.upper()}"


class SearchSettings(BaseModel):
    """The settings of `RetrievalService`; each has an environment variable with the same name.

    Raises ConfigurationError with the name of the variable if a value is out of bounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **given: Any) -> None:
        others = other_names(type(self).model_fields)
        named = {others.get(name, name): value for name, value in given.items()}
        if len(named) < len(given):
            raise ConfigurationError(
                f"of {', '.join(given)}, two are names of one setting",
                remedy="Give each setting once.",
            )
        super().__init__(**{**_environment(type(self).model_fields), **named})

    search_default_mode: ModeField = "hybrid"
    use_hybrid_search: bool = True
    use_reranking: bool = False

    search_default_limit: int = Field(default=10, ge=1, le=LIMIT_BOUND)
    vector_match_count: int = Field(default=10, ge=1, le=LIMIT_BOUND)
    max_hybrid_search_results: int = Field(default=MATCH_COUNT_BOUND, ge=1, le=MATCH_COUNT_BOUND)
    hybrid_candidate_count: int = Field(default=50, ge=1, le=MATCH_COUNT_BOUND)
    overfetch_multiplier: int = Field(default=3, ge=1, le=100)
    reranking_candidate_multiplier: int = Field(default=5, ge=1, le=100)

    similarity_threshold: float = Field(default=0.0, ge=-1, le=1)
    vector_weight: Weight = 1.0
    text_weight: Weight = 1.0
    search_fusion: Fusion | None = None
    rrf_constant: float = Field(default=60.0, gt=0, allow_inf_nan=False)

    crossencoder_model: Annotated[str, AfterValidator(_not_empty)] = (
        "cross-encoder/ms-marco-MiniLM-L6-v2"
    )
    crossencoder_max_length: int = Field(default=512, ge=1, le=8192)
    rerank_cache_max_entries: int = Field(default=10_000, ge=0, le=1_000_000)

    search_include_memory: bool = False
    search_on_bad_embedding: OnBadEmbedding = "error"

    search_timeout_seconds: Seconds | None = 30.0
    search_model_check_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    search_pending_check_seconds: float = Field(default=10.0, ge=0, allow_inf_nan=False)

    search_cache_enabled: bool = False
    search_cache_ttl_seconds: Seconds = 300.0
    search_cache_max_entries: int = Field(default=1000, ge=1, le=1_000_000)

    search_log_queries: bool = False
    search_log_json: bool = False
    query_log: LoggedSearches = "off"
    query_log_max_rows: int = Field(default=10_000, ge=1, le=100_000)
    query_log_max_days: int = Field(default=30, ge=1, le=3650)

    @model_validator(mode="after")
    def _one_leg_counts(self) -> Self:
        if self.vector_weight == 0 and self.text_weight == 0:
            raise ValueError("vector_weight and text_weight must not both be 0")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _named_by_variable(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(given)
        except ValidationError as error:
            faults = [
                ": ".join([*(str(name).upper() for name in fault["loc"]), fault["msg"]])
                for fault in error.errors()
            ]
            raise ConfigurationError(
                "; ".join(faults),
                remedy="Correct the environment variable or the argument of SearchSettings; "
                "docs/service.md lists the bounds.",
            ) from error

    @property
    def default_mode(self) -> Mode:
        """The mode of a search without a mode: the default, changed by the two `use_` settings."""
        if self.search_default_mode != "hybrid":
            return self.search_default_mode
        if self.use_reranking:
            return "rerank"
        return "hybrid" if self.use_hybrid_search else "vector"

    def default_limit(self, mode: str) -> int:
        """Return the number of results for a search of this mode without a limit."""
        return self.vector_match_count if mode == "vector" else self.search_default_limit

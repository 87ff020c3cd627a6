"""The arguments of tools that language models call: what a model may set, and what it sends.

Who asks, and whatever else the developer binds, is never among them.
"""

import json
from collections.abc import Collection, Mapping
from datetime import date
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from second_brain.errors import InvalidInputError
from second_brain.retrieval.earlier_names import QUERY_FIELDS
from second_brain.retrieval.plan import invalid_query
from second_brain.retrieval.query import SearchQuery, Text

COMMON = ("limit", "offset", "date_from", "date_to")
"""What a model may set beside the query, if the developer names nothing."""


class ToolArguments(BaseModel):
    """The arguments of one call: an unknown one is refused by name.

    Models send null for what they leave out, and lists, objects and booleans as JSON in a text.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _sent(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {
            name: _from_json(value)
            if name in cls.model_fields and not _takes_text(cls.model_fields[name].annotation)
            else value
            for name, value in given.items()
            if value is not None or name not in cls.model_fields
        }


def _from_json(value: object) -> object:
    """Return what a text in JSON stands for."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _takes_text(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _takes_text(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_takes_text, get_args(annotation)))
    return annotation in (str, date, UUID) or get_origin(annotation) is Literal


def search_arguments(
    names: Collection[str] | None, options: Mapping[str, Any]
) -> type[ToolArguments]:
    """Return the arguments of a tool that searches: `query`, and fields of SearchQuery by name.

    `names` None means COMMON without what `options` binds. Raises InvalidInputError for a name
    that is no field of SearchQuery, or that `options` has.
    """
    bound = {QUERY_FIELDS.get(name, name) for name in options}
    offered = SearchQuery.model_fields.keys() - {"query"}
    if names is None:
        names = [name for name in COMMON if name not in bound]
    for name in names:
        if name not in offered:
            raise InvalidInputError(
                f"arguments: {name!r:.100} is no argument that a model may set",
                remedy=f"Name some of {', '.join(sorted(offered))}.",
            )
        if name in bound:
            raise InvalidInputError(
                f"{name} is in options, so the model may not set it",
                remedy="Leave it out of options or of arguments.",
            )
    fields: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in SearchQuery.model_fields.items()
        if name in names
    }
    # Documents at hand can stand for a question.
    needed: Any = "" if "like_ids" in names else ...
    question = Field(needed, description="What to find, in natural language.")
    return create_model("Search", __base__=ToolArguments, query=(Text, question), **fields)


def checked(arguments: type[ToolArguments], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model sent as arguments of a search, or raise InvalidInputError."""
    try:
        asked = arguments.model_validate(given)
    except ValidationError as error:
        raise invalid_query(error) from None
    return {name: getattr(asked, name) for name in asked.model_fields_set}

"""The SQL files of this package as an install has them: schema, dimensions, fusion, pgvector.

The SQL is in files. This module knows only one of their objects: the column whose type has the
embedding dimension.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import psycopg

from second_brain.database import naming, pgvector
from second_brain.database.packaged import Migration, find
from second_brain.errors import ConfigurationError, InvalidInputError
from second_brain.services.arguments import Fusion

# The maximum dimension of pgvector's type vector.
MAX_DIMENSIONS = 16_000

_DIMENSION = re.compile(r"extensions\.vector\((\d+)\)")
# Added to the file that creates the table, so that it runs in a new install alone.
_SETTINGS_TABLE = "create table public.knowledge_settings ("
_STORE_FUSION = """
-- The fusion of this install's searches that name none.
insert into public.knowledge_settings (collection, fusion) values ('', '{fusion}');
"""
# After the head of the first file for another schema; Supabase does the same for public.
_CREATE_SCHEMA = """
-- The schema of this install.
create schema if not exists {schema};

grant usage on schema {schema} to anon, authenticated, service_role;
"""


def render(
    migrations: Sequence[Migration],
    dimensions: int | None = None,
    schema: str = naming.SCHEMA,
    vector_schema: str = naming.EXTENSIONS,
    fusion: Fusion | None = None,
) -> list[Migration]:
    """Return the migrations for `schema`, with `dimensions` in the type of the embedding column.

    Without `dimensions` the type is not changed. For another schema than public, internal objects
    are in `<schema>_internal`, and the first file creates the schema. `vector_schema` is the schema
    that has pgvector. `fusion` is stored for searches that name none; None stores nothing.

    Raises ConfigurationError for dimensions that pgvector does not support or if the type does not
    occur exactly once, and InvalidInputError for an invalid schema name or fusion.
    """
    rendered = list(migrations)
    if fusion is not None:
        if fusion not in get_args(Fusion):
            raise InvalidInputError(
                f"fusion must be one of {', '.join(get_args(Fusion))}, or None, not {fusion!r}",
                remedy="Without a stored fusion, searches that name none use rrf.",
            )
        stored = _STORE_FUSION.format(fusion=fusion)
        rendered = [
            replace(one, sql=one.sql + stored) if _SETTINGS_TABLE in one.sql else one
            for one in rendered
        ]
    if dimensions is not None:
        _check_dimensions(dimensions)
        places = [place for one in rendered for place in _DIMENSION.findall(one.sql)]
        if len(places) != 1:
            raise ConfigurationError(
                f"extensions.vector(N) must occur once in the migrations, it occurs {len(places)} "
                "times",
                remedy="Write the dimension only in the type of the column; in functions use "
                "extensions.vector.",
            )
        column = f"extensions.vector({dimensions})"
        rendered = [replace(one, sql=_DIMENSION.sub(column, one.sql)) for one in rendered]
    naming.check_schema(schema)
    if schema != naming.SCHEMA and rendered:
        names = naming.created_names(one.sql for one in rendered)
        rendered = [
            replace(one, sql=naming.rename(one.sql, names, naming.SCHEMA, schema))
            for one in rendered
        ]
        create = _CREATE_SCHEMA.format(schema=schema)
        after_head = re.sub(r"\A((?:--.*\n)*)", rf"\1{create}\n", rendered[0].sql, count=1)
        rendered[0] = replace(rendered[0], sql=after_head)
    if not naming.is_plain(vector_schema):
        raise InvalidInputError(
            f"the schema of pgvector must be a name that needs no quotes, not {vector_schema!r}",
            remedy="Use lower-case letters, digits and underscores.",
        )
    return [replace(one, sql=naming.with_vector(one.sql, vector_schema)) for one in rendered]


def here(connection: psycopg.Connection[Any], schema: str, text: str) -> str:
    """Return SQL of the files as it is in an install in this schema."""
    vector = pgvector.installed(connection)
    return naming.with_vector(
        naming.rename(text, _names(), naming.SCHEMA, schema),
        vector.schema if vector else naming.EXTENSIONS,
    )


@cache
def _names() -> frozenset[str]:
    return naming.created_names(one.sql for one in find())


def _check_dimensions(dimensions: int) -> None:
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ConfigurationError(
            f"dimensions is {dimensions}, but pgvector's type vector stores 1 to {MAX_DIMENSIONS}",
            remedy=(
                "Request shorter embeddings from the model (OpenAI: `dimensions`, Voyage: "
                "`output_dimension`), or truncate and normalise those of a Matryoshka model."
            ),
        )

"""The values that the filters of the page Search offer, with how many chunks have each.

A small corpus is counted exactly by the facets function. A large one is counted in a sample of its
blocks, since a count of 100,000 chunks takes seconds; the numbers are then marked as estimates.
"""

from dataclasses import dataclass
from typing import TypeAlias

from second_brain.errors import ModuleMissingError
from second_brain.services.install import Database
from second_brain.workbench.frame import provider_of
from second_brain.workbench.question import FACETS, Question

_COUNTED_EXACTLY = 20_000
_SAMPLED = 10_000
_MOST_VALUES = 12

_SIZE = """
    select greatest(relation.reltuples, 0)::bigint
    from pg_catalog.pg_class as relation
    where relation.oid = 'public.knowledge_chunks'::regclass
"""

_SAMPLE = """
    with sample as (
      select chunk.collection, chunk.knowledge_type, chunk.source_origin, chunk.language
      from public.knowledge_chunks as chunk tablesample system (%(percent)s)
      where chunk.status = 'active'
    )
    select facet.name, facet.value, count(*) as chunks, (select count(*) from sample) as sampled
    from sample
    cross join lateral (
      values
        ('collection', sample.collection), ('knowledge_type', sample.knowledge_type),
        ('source_origin', sample.source_origin), ('language', sample.language)
    ) as facet (name, value)
    where facet.value is not null
    group by facet.name, facet.value
    order by facet.name, chunks desc, facet.value
"""


@dataclass(frozen=True, slots=True)
class Value:
    """A value that a filter offers. `count` is None for one that is chosen and was not counted."""

    value: str
    count: int | None
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Facet:
    """A list of the form: its name there, its title and its values."""

    name: str
    title: str
    values: list[Value]
    is_exact: bool


_TITLES = {
    "collections": "Collection",
    "types": "Type",
    "origins": "Origin",
    "languages": "Language",
}
_Counts: TypeAlias = dict[str, dict[str, int]]
_FIELDS = {"collections": "collection", **FACETS}


def chosen(question: Question) -> list[Facet]:
    """Return only the values that are chosen, without asking the database."""
    return _facets(question, {}, is_exact=True)


def offered(database: Database, question: Question) -> list[Facet]:
    """Return the values in the corpus, the most frequent ones first, and the chosen ones.

    In a small corpus without the module facets, only the chosen ones.
    """
    row = database.execute(_SIZE).fetchone()
    size = 0 if row is None else row[0]
    counts: _Counts = {field: {} for field in _FIELDS.values()}
    if size <= _COUNTED_EXACTLY:
        try:
            counted = provider_of(database).count_facets(None, None, list(counts), _MOST_VALUES)
        except ModuleMissingError:
            return chosen(question)
        for one in counted:
            counts[one.facet][str(one.value)] = one.count
        return _facets(question, counts, is_exact=True)
    percent = min(100.0, 100.0 * _SAMPLED / size)
    for name, value, chunks, sampled in database.execute(_SAMPLE, {"percent": percent}):
        counts[name][value] = round(size * chunks / sampled)
    return _facets(question, counts, is_exact=False)


def _facets(
    question: Question, counts: dict[str, dict[str, int]], *, is_exact: bool
) -> list[Facet]:
    facets = []
    for name, field in _FIELDS.items():
        picked = getattr(question, name)
        counted = dict(list(counts.get(field, {}).items())[:_MOST_VALUES])
        values = [Value(value, count, value in picked) for value, count in counted.items()]
        values += [
            Value(value, counts.get(field, {}).get(value), is_chosen=True)
            for value in picked
            if value not in counted
        ]
        facets.append(Facet(name, _TITLES[name], values, is_exact))
    return facets

"""What the page Search offers: values of the filters with how many chunks have each, and questions.

A small corpus is counted exactly by the facets function. A large one is counted in a sample of its
blocks, since a count of 100,000 chunks takes seconds; the numbers are then marked as estimates.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

from second_brain.errors import ModuleMissingError
from second_brain.services.install import Database
from second_brain.workbench.frame import provider_of
from second_brain.workbench.question import FACETS, Question

_COUNTED_EXACTLY = 20_000
_SAMPLED = 10_000
_MOST_VALUES = 12
_SAMPLED_FOR_QUESTIONS = 500
_MOST_QUESTIONS = 6
_LENGTHS = range(4, 81)
_PATH = " > "

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


# Of a viewer who is named, what everybody sees is enough.
_HEADINGS = """
    select
      coalesce(chunk.document_id, chunk.id)::text as document,
      coalesce(nullif(chunk.heading, ''), document.title) as heading
    from public.knowledge_chunks as chunk tablesample system (%(percent)s) repeatable (0)
    left join public.knowledge_documents as document on document.id = chunk.document_id
    where chunk.status = 'active'
      and (not %(is_public)s or chunk.visibility = 'public')
      and (%(collections)s::text[] is null or chunk.collection = any (%(collections)s::text[]))
    limit %(sampled)s
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
    size = _size(database)
    counts: _Counts = {field: {} for field in _FIELDS.values()}
    if size <= _COUNTED_EXACTLY:
        try:
            counted = provider_of(database).count_facets(None, None, list(counts), _MOST_VALUES)
        except ModuleMissingError:
            return chosen(question)
        for one in counted:
            counts[one.facet][str(one.value)] = one.count
        return _facets(question, counts, is_exact=True)
    percent = _percent(size, _SAMPLED)
    for name, value, chunks, sampled in database.execute(_SAMPLE, {"percent": percent}):
        counts[name][value] = round(size * chunks / sampled)
    return _facets(question, counts, is_exact=False)


def questions(database: Database, question: Question) -> list[str] | None:
    """Return questions made of headings and titles; None for an empty corpus.

    Each is of another document, and the same ones are offered until the table changes. Those of
    several words come first. If a viewer is named, they are of public documents.
    """
    is_public = question.public_only or bool(question.viewer_id or question.viewer_groups)
    arguments = {
        "percent": _percent(_size(database), _SAMPLED_FOR_QUESTIONS),
        "is_public": is_public,
        "collections": list(question.collections) or None,
        "sampled": 10 * _SAMPLED_FOR_QUESTIONS,
    }
    rows = database.execute(_HEADINGS, arguments).fetchall()
    if not rows and not is_public and not question.collections:
        return None
    found = {}
    for document, heading in rows:
        text = (heading or "").rpartition(_PATH)[2].strip()
        if len(text) in _LENGTHS:
            found[text] = document
    by_document: dict[str, str] = {}
    for text in sorted(found, key=lambda one: (" " not in one, sha256(one.encode()).digest())):
        by_document.setdefault(found[text], text)
    return list(by_document.values())[:_MOST_QUESTIONS]


def _size(database: Database) -> int:
    row = database.execute(_SIZE).fetchone()
    return 0 if row is None else row[0]


def _percent(size: int, sampled: int) -> float:
    return min(100.0, 100.0 * sampled / max(size, 1))


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

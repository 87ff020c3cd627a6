"""The synonyms of the module words: read, stored and removed by the page Settings.

The table's constraints hold the rules; this says what they refuse.
"""

from dataclasses import asdict, dataclass
from typing import NamedTuple

import psycopg

from second_brain.errors import InvalidInputError
from second_brain.services.install import Database

MOST_LISTED = 500

_LIST = """
    select synonym.collection, synonym.term, synonym.synonym, synonym.is_two_way, synonym.weight,
      count(*) over ()
    from public.knowledge_synonyms as synonym
    order by synonym.collection, synonym.term, synonym.synonym
    limit %(most)s
"""
_STORE = """
    insert into public.knowledge_synonyms as stored
      (collection, term, synonym, is_two_way, weight)
    values (%(collection)s, %(term)s, %(synonym)s, %(is_two_way)s, %(weight)s)
    on conflict (collection, term, synonym) do update
    set is_two_way = excluded.is_two_way, weight = excluded.weight
"""
_REMOVE = """
    delete from public.knowledge_synonyms as stored
    where stored.collection = %(collection)s and stored.term = %(term)s
      and stored.synonym = %(synonym)s
"""
_REFUSED = {
    "term_is_one_word": "term must be one word of 2 to 60 letters",
    "synonym_is_one_word": "synonym must be one word of 2 to 60 letters",
    "synonym_is_another_word": "term and synonym are the same word",
    "weight_is_a_share": "weight must be above 0 and at most 1",
}


@dataclass(frozen=True, slots=True)
class Synonym:
    """A row of `knowledge_synonyms`; the collection `""` stands for all searches."""

    collection: str
    term: str
    synonym: str
    is_two_way: bool = True
    weight: float = 0.8


class Listed(NamedTuple):
    """The first synonyms, and how many there are."""

    synonyms: list[Synonym]
    total: int


def listed(database: Database) -> Listed:
    """Return the first synonyms. Raises UndefinedTable without the module words."""
    rows = database.execute(_LIST, {"most": MOST_LISTED}).fetchall()
    return Listed([Synonym(*row[:-1]) for row in rows], rows[0][-1] if rows else 0)


def store(database: Database, synonym: Synonym) -> None:
    """Store a synonym, in place of the same one. Raises InvalidInputError."""
    try:
        database.execute(_STORE, asdict(synonym))
    except psycopg.errors.CheckViolation as error:
        name = error.diag.constraint_name or ""
        raise InvalidInputError(_REFUSED.get(name, f"the table refuses it: {name}")) from error


def remove(database: Database, synonym: Synonym) -> None:
    """Remove a synonym, if it is there."""
    database.execute(_REMOVE, asdict(synonym))

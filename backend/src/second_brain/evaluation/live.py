"""The questions judged in a database, and the ways to search its corpus for them.

Nothing is exported or copied. A document has the best grade of itself and of its chunks.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Literal

from second_brain.errors import InvalidInputError
from second_brain.evaluation.collection import CollectionError, Query, Questions
from second_brain.evaluation.comparison import FUSIONS, IN_USE, LEGS, Mode
from second_brain.evaluation.judgments import grades, read
from second_brain.evaluation.runs import Settings
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.install import Database
from second_brain.services.judgments import Judgment
from second_brain.services.write import KnowledgeWriter

ALL = "all collections"
"""The name of the questions that are asked in no collection alone."""

Kind = Literal["judged", "generated", "all"]
"""Questions that somebody asked, that were generated from documents, or both."""

# Of 2 ** 5 assignments of signs, the two extreme ones are 6 %.
_FEWEST_SIGNIFICANT = 6
_REMEDY = (
    "Judge hits in `second-brain workbench`, or store a question and its document in each line: "
    "`second-brain corpus judgments import questions.tsv`."
)

_DOCUMENT_COUNT = """
    select count(distinct coalesce(chunk.document_id, chunk.id))
    from public.knowledge_chunks as chunk
    where chunk.status = 'active'
      and (%(collection)s::text is null or chunk.collection = %(collection)s::text)
"""


def read_questions(
    database: Database,
    collection: str | None = None,
    kind: Kind | None = None,
    file: Path | None = None,
) -> Questions:
    """Return the questions judged in a collection; None: those asked in all of the corpus.

    Without a kind, the questions that somebody asked, or the generated ones if there are no others.
    A file has the judgments instead of the database, all of the collection if one is given. Raises
    CollectionError if no question has a right or partly right document.
    """
    if file is None:
        writer = KnowledgeWriter(database.connection, schema=database.install.schema)
        stored = writer.judgments()
    else:
        stored = [
            one if collection is None else one.model_copy(update={"collection": collection})
            for one in read(file)
        ]
        if any(one.document_key is None for one in stored):
            raise CollectionError(
                f"{file} judges chunks, whose documents only the database knows",
                remedy=f"`second-brain corpus judgments import {file}`, then give no file.",
            )
    asked = [one for one in stored if one.collection == (collection or "")]
    counts = Counter(one.is_generated for one in asked)
    if kind is None:
        kind = "generated" if counts[True] and not counts[False] else "judged"
    chosen = [one for one in asked if kind == "all" or one.is_generated == (kind == "generated")]
    graded = grades(chosen)
    used = {question: found for question, found in sorted(graded.items()) if any(found.values())}
    if not used:
        raise _nothing_judged(collection, kind, stored)
    queries = [Query(f"q{row + 1}", question, row) for row, question in enumerate(used)]
    (count,) = database.execute(_DOCUMENT_COUNT, {"collection": collection}).fetchone() or (0,)
    remarks = []
    if kind == "generated":
        remarks.append(
            "the questions were made from words of their documents, so the text leg looks better "
            "than it is"
        )
    others = len({one.question for one in asked} - graded.keys())
    if others:
        other = "judged" if kind == "generated" else "generated"
        remarks.append(f"{others} {other} questions left out")
    if len(graded) > len(used):
        remarks.append(f"{len(graded) - len(used)} questions left out: nothing is right for them")
    if len(used) < _FEWEST_SIGNIFICANT:
        remarks.append(
            f"with fewer than {_FEWEST_SIGNIFICANT} questions no difference can be significant"
        )
    return Questions(
        name=collection or ALL,
        queries=queries,
        qrels={query.id: used[query.text] for query in queries},
        document_count=count,
        remarks=tuple(remarks),
    )


def parse_mode(text: str) -> Mode:
    """Return a mode by name, or one of a JSON object with the settings of a hybrid search.

    Raises InvalidInputError that lists what is allowed.
    """
    named = {mode.name: mode for mode in (*LEGS, *FUSIONS, IN_USE)}
    if text in named:
        return named[text]
    allowed = [field.name for field in fields(Settings)]
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not given or given.keys() - set(allowed):
        raise InvalidInputError(
            f"a mode must be {', '.join(named)}, or a JSON object with {', '.join(allowed)}, "
            f"not {text[:200]!r}",
            remedy='For example: rrf, or \'{"fusion": "auto", "vector_weight": 0.7}\'.',
        )
    return Mode(text, settings=Settings(**given))


def modes_of(
    settings: Sequence[CorpusSettings], collection: str | None, *, has_vectors: bool = True
) -> list[Mode]:
    """Return the legs, the fusions, and the stored settings if the collection has any.

    Without vectors, the text leg is all there is.
    """
    if not has_vectors:
        return [LEGS[1]]
    used = {one.collection for one in settings} & {collection or "", ""}
    return [*LEGS, *FUSIONS, *([IN_USE] if used else [])]


def _nothing_judged(
    collection: str | None, kind: Kind, stored: Sequence[Judgment]
) -> CollectionError:
    counts = Counter(one.collection for one in stored)
    asked_in = f"collection {collection!r}" if collection else "all collections together"
    remedy = _REMEDY
    if counts:
        named = ", ".join(
            f"{name!r} ({count})" if name else f"all collections together ({count})"
            for name, count in sorted(counts.items())
        )
        remedy = f"There are judgments in: {named}. --collection names one. {remedy}"
    what = "generated question" if kind == "generated" else "question"
    return CollectionError(
        f"no {what} asked in {asked_in} has a right document in knowledge_judgments", remedy=remedy
    )

"""The weight of an embedding model under `auto`, measured on judged questions or on titles.

A title is a question whose document is known. So that its words do not give it away, the chunks of
this document are searched without it: heading and title are removed and the texts are embedded
again, in a transaction that is rolled back after each title.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from second_brain.evaluation.collection import CollectionError, Query, Questions
from second_brain.evaluation.metrics import NDCG, judge, mean
from second_brain.evaluation.runs import Run, Searcher, Settings, rankings
from second_brain.evaluation.tuning import FEWEST, paired_gain
from second_brain.models import Embedder, embed_queries
from second_brain.services.install import Database

WEIGHTS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
PROBES = 150
"""Titles that are asked, at most."""
_DEPTH = 10

_TITLES = """
select document.external_key, document.title
  from public.knowledge_documents as document
 where document.external_key is not null
   and document.title ~ '\\w\\W+\\w'
   and (%(collection)s::text is null or document.collection = %(collection)s)
   and (
     select count(*) between 1 and 20 and bool_and(chunk.embedding_bits is not null)
       from public.knowledge_chunks as chunk
      where chunk.document_id = document.id and chunk.status = 'active'
   )
 order by md5(document.external_key)
 limit %(most)s
"""
_TEXTS = """
select chunk.id, coalesce(nullif(btrim(replace(chunk.content, document.title, '')), ''), '-')
  from public.knowledge_documents as document
  join knowledge_internal.chunk_rows as chunk on chunk.document_id = document.id
 where document.external_key = %s and chunk.status = 'active'
 order by chunk.chunk_index, chunk.id
"""
_WITHOUT_TITLE = """
update public.knowledge_documents set title = null where external_key = %s
"""
_TEXT_ALONE = """
update public.knowledge_chunks
   set heading = null, content = %s, embedding = %s, embedding_model = %s
 where id = %s
"""
_STORED = "select vector_weight from public.knowledge_model_weights where model = %s"
_STORE = """
insert into public.knowledge_model_weights (model, vector_weight)
values (%s, %s)
    on conflict (model) do update set vector_weight = excluded.vector_weight
"""

Around = Callable[[Query], AbstractContextManager[object]]
"""What surrounds the searches for a question."""


def as_stored(_query: Query) -> AbstractContextManager[object]:
    """Search the corpus as it is."""
    return nullcontext()


@dataclass(frozen=True)
class ModelWeight:
    """The nDCG@10 of `auto` with each weight of a model, by question; `in_use` is one of them."""

    model: str
    questions: Questions
    in_use: float
    values: dict[float, dict[str, float]]

    @property
    def best(self) -> float:
        """The weight with the highest mean; the one in use wins a tie."""
        return max(
            self.values,
            key=lambda one: (round(self.mean(one), 9), one == self.in_use, -abs(one - self.in_use)),
        )

    @property
    def gain(self) -> tuple[float, float]:
        """The mean gain of the best weight over the one in use, and its standard error."""
        return paired_gain(self.values[self.best], self.values[self.in_use])

    @property
    def is_storable(self) -> bool:
        """Whether the gain is above its standard error, over enough questions."""
        gain, error = self.gain
        return gain > error and len(self.questions.queries) >= FEWEST

    def mean(self, weight: float) -> float:
        """Return the mean nDCG@10 with a weight."""
        return mean(self.values[weight])


def titles(
    database: Database, embedder: Embedder, collection: str | None
) -> tuple[Questions, Searcher, Around]:
    """Draw titles as questions. Raises CollectionError if there are fewer than two."""
    drawn = database.execute(_TITLES, {"collection": collection, "most": PROBES}).fetchall()
    if len(drawn) < 2:
        raise CollectionError(
            "fewer than two documents have a title of two words and embedded chunks",
            remedy="Judge questions instead: `second-brain corpus judgments import questions.tsv`.",
        )
    queries = [Query(str(key), str(title), row) for row, (key, title) in enumerate(drawn)]
    vectors = np.asarray(embed_queries(embedder, [one.text for one in queries]))
    questions = Questions(
        name=f"titles of {collection or 'all collections'}",
        queries=queries,
        qrels={one.id: {one.id: 1} for one in queries},
        document_count=len(queries),
    )

    @contextmanager
    def without_title(query: Query) -> Iterator[None]:
        with database.connection.transaction(force_rollback=True):
            texts = database.execute(_TEXTS, [query.id]).fetchall()
            embedded = embedder.embed([text for _, text in texts])
            database.execute(_WITHOUT_TITLE, [query.id])
            for (id_, text), vector in zip(texts, embedded, strict=True):
                given = str(vector.tolist()) if vector.any() else None
                database.execute(_TEXT_ALONE, [text, given, embedder.model, id_])
            yield

    return questions, Searcher(database, vectors, collection), without_title


def measure_weight(
    searcher: Searcher,
    questions: Questions,
    model: str,
    around: Around = as_stored,
    advance: Callable[[], None] = lambda: None,
) -> ModelWeight:
    """Ask each question with each weight; `advance` is called after each question."""
    row = searcher.database.execute(_STORED, [model]).fetchone()
    in_use = 1.0 if row is None else float(row[0])
    runs: dict[float, Run] = {weight: {} for weight in sorted({*WEIGHTS, in_use})}
    with searcher.database.connection.transaction(force_rollback=True):
        for query in questions.queries:
            with around(query):
                for weight, run in runs.items():
                    store_weight(searcher.database, model, weight)
                    run[query.id] = searcher.answer(query, "hybrid", Settings("auto"), _DEPTH)
            advance()
    values = {
        weight: judge(questions.qrels, rankings(run), (NDCG,))[NDCG] for weight, run in runs.items()
    }
    return ModelWeight(model, questions, in_use, values)


def store_weight(database: Database, model: str, weight: float) -> None:
    """Store the weight of a model, for all searches."""
    database.execute(_STORE, [model, weight])

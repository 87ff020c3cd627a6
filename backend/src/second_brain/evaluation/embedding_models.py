"""A second embedding model compared with the stored embeddings, before a corpus is re-embedded.

Both models rank the same chunks exactly, without an index, in memory: the whole corpus if it is
small, else the candidates of the questions and a random sample of other chunks. This measures the
vector leg alone; fusion is the database's.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from second_brain.errors import ConfigurationError
from second_brain.evaluation.collection import Embeddings, Questions, embed_questions
from second_brain.evaluation.comparison import LEGS
from second_brain.evaluation.metrics import NDCG, Difference, compare, judge, mean
from second_brain.evaluation.runs import DEFAULT, Searcher
from second_brain.models import Embedder

MOST_CHUNKS = 2000
_BATCH = 256

_CHUNKS = """
    select
      chunk.id,
      coalesce(document.external_key, 'chunk:' || chunk.id) as document,
      concat_ws(E'\\n', chunk.heading, chunk.content) as text,
      chunk.embedding::text as embedding,
      count(*) over () as chunk_count,
      count(*) filter (
        where coalesce(document.external_key, 'chunk:' || chunk.id) = any (%(judged)s::text[])
      ) over () as judged_count
    from knowledge_internal.chunk_rows as chunk
    left join public.knowledge_documents as document on document.id = chunk.document_id
    where chunk.status = 'active'
      and chunk.embedding_bits is not null
      and (%(collection)s::text is null or chunk.collection = %(collection)s::text)
    order by
      coalesce(document.external_key, 'chunk:' || chunk.id) = any (%(judged)s::text[]) desc,
      coalesce(document.external_key, 'chunk:' || chunk.id) = any (%(found)s::text[]) desc,
      md5(chunk.id::text || %(seed)s::text),
      chunk.id
    limit %(most)s
"""


@dataclass(frozen=True)
class ModelComparison:
    """The vector leg of two models over the same chunks; `values` by model, measure and query."""

    collection: Questions
    stored_model: str
    other_model: str
    chunks: int
    chunk_count: int
    values: dict[str, dict[str, dict[str, float]]]
    gain: Difference
    """nDCG@10 of the other model against the stored embeddings."""

    @property
    def is_whole(self) -> bool:
        """Whether all embedded chunks were ranked."""
        return self.chunks == self.chunk_count

    def mean(self, model: str, measure: str) -> float:
        """Return the mean of a measure over the questions."""
        return mean(self.values[model][measure])


def compare_models(
    searcher: Searcher,
    questions: Questions,
    stored_model: str,
    other: Embedder,
    *,
    collection: str | None = None,
    most: int = MOST_CHUNKS,
    seed: int = 0,
) -> ModelComparison:
    """Rank at most `most` chunks for each question by the stored embeddings and by `other`.

    The searcher has embeddings of the questions by the stored model. If the corpus has more chunks,
    those of judged documents come first, then those of the documents that the vector and the text
    leg find, then others by chance. A document that only `other` would find may be missing then, so
    a gain is rather too small. Raises ConfigurationError if both models have one name, and for more
    chunks of judged documents than `most`.
    """
    if stored_model == other.model:
        raise ConfigurationError(
            f"the other embedder is of the same model, {other.model}",
            remedy="Name another one with --compare-embedder.",
        )
    asked = searcher.embeddings
    if asked is None:
        raise ConfigurationError("the questions have no embeddings", remedy="Embed them first.")
    rows = searcher.database.execute(
        _CHUNKS,
        {
            "collection": collection,
            "judged": sorted({one for grades in questions.qrels.values() for one in grades}),
            "found": sorted(_found(searcher, questions)),
            "seed": str(seed),
            "most": most,
        },
    ).fetchall()
    if not rows:
        raise ConfigurationError(
            "no chunk has an embedding", remedy="Embed them first: second-brain corpus embed"
        )
    *_, chunk_count, judged_count = rows[0]
    if judged_count > most:
        raise ConfigurationError(
            f"the judged documents have {judged_count:,} chunks, and --max-chunks is {most:,}",
            remedy="Raise --max-chunks, or compare fewer questions with --max-queries.",
        )
    documents = [document for _, document, *_ in rows]
    texts = [text for _, _, text, *_ in rows]
    embedded = np.array([np.fromstring(one[3][1:-1], np.float32, sep=",") for one in rows])
    embedded_by_other = np.concatenate(
        [other.embed(texts[first : first + _BATCH]) for first in range(0, len(texts), _BATCH)]
    )
    rankings = {
        stored_model: _ranked(questions, documents, embedded, asked),
        other.model: _ranked(
            questions, documents, embedded_by_other, embed_questions(questions, other)
        ),
    }
    measures = (NDCG, f"Recall@{questions.depth}", "MRR@10")
    values = {
        model: judge(questions.qrels, ranking, measures) for model, ranking in rankings.items()
    }
    return ModelComparison(
        collection=questions,
        stored_model=stored_model,
        other_model=other.model,
        chunks=len(rows),
        chunk_count=chunk_count,
        values=values,
        gain=compare(values[other.model][NDCG], values[stored_model][NDCG], seed=seed),
    )


def _found(searcher: Searcher, questions: Questions) -> set[str]:
    found: set[str] = set()
    for query in questions.queries:
        for mode in LEGS:
            found.update(searcher.answer(query, mode.leg, DEFAULT, questions.depth).documents)
    return found


def _ranked(
    questions: Questions, documents: Sequence[str], embedded: Embeddings, asked: Embeddings
) -> Mapping[str, Sequence[str]]:
    """Return the documents of each question by their nearest chunk."""
    lengths = np.linalg.norm(embedded, axis=1, keepdims=True)
    unit = embedded / np.where(lengths == 0, 1, lengths)
    rankings = {}
    for query in questions.queries:
        vector = asked[query.row]
        best: dict[str, float] = defaultdict(lambda: -2.0)
        if vector.any():
            for document, similarity in zip(documents, unit @ vector, strict=True):
                best[document] = max(best[document], float(similarity))
        rankings[query.id] = sorted(best, key=lambda one: (-best[one], one))[: questions.depth]
    return rankings

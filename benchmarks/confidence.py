"""How well `answer_confidence` tells questions of another subject, over several test collections.

Each collection is loaded into a scratch database and asked its own questions, those of the other
collections, and its own again while their relevant documents are archived. The table has AUROC (the
chance that an own question has more confidence than one of another collection), and the share of
questions whose answer has at least OFF_SUBJECT: own, of others, and own without relevant documents.
An answer without hits has a confidence of 0. `from text` is text with embedding_from_text.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench_report import line
from benchmarks.quality import read
from second_brain.evaluation.collection import Embeddings
from second_brain.evaluation.scratch import Connection, load, scratch_database
from second_brain.services.results import OFF_SUBJECT

# Whether it has the embedding and the text, its fusion, and embedding_from_text.
SEARCHES = {
    "auto": (True, True, "auto", False),
    "rrf": (True, True, "rrf", False),
    "vector": (True, False, "auto", False),
    "text": (False, True, "auto", False),
    "from text": (False, True, "auto", True),
}
SEARCH = """
select answer_confidence
  from public.hybrid_search_knowledge_chunks(
         query_embedding => %s::extensions.vector, query_text => %s, fusion => %s,
         embedding_from_text => %s, match_count => 1
       )
"""
ARCHIVE = """
update public.knowledge_chunks as chunk set status = 'archived'
  from public.knowledge_documents as document
 where document.id = chunk.document_id and document.external_key = any (%s)
"""
Values = NDArray[np.float64]


def auroc(own: Values, others: Values) -> float:
    """Return the chance that one of `own` is above one of `others`; a tie counts half."""
    difference = own[:, None] - others[None, :]
    return float(((difference > 0) + (difference == 0) / 2).mean())


def confidences(connection: Connection, embedding: Embeddings, text: str) -> list[float]:
    """Return the confidence of each search for a question."""
    found = []
    for has_embedding, has_text, *options in SEARCHES.values():
        vector = str(embedding.tolist()) if has_embedding else None
        row = connection.execute(SEARCH, [vector, text if has_text else None, *options]).fetchone()
        found.append(row[0] if row else 0.0)
    return found


def measure(folders: list[Path], embeddings: str, questions: int) -> list[Values]:
    """Return the confidence by search of own questions, of others, and without what is relevant."""
    read_in = [read(folder, embeddings) for folder in folders]
    found: list[list[list[float]]] = [[], [], []]
    for corpus, documents in read_in:
        with scratch_database(documents.dimensions) as connection:
            load(connection, corpus, documents, "english", lambda doing: None)
            for asked, vectors in read_in:
                for query in asked.sample(questions, 1).queries:
                    question = vectors.queries[query.row], query.text
                    found[asked is not corpus].append(confidences(connection, *question))
                    if asked is corpus:
                        with connection.transaction(force_rollback=True):
                            connection.execute(ARCHIVE, [list(corpus.relevant(query.id))])
                            found[2].append(confidences(connection, *question))
    return [np.array(one).T for one in found]


def main() -> None:
    """Print a Markdown table with a row for each search."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", type=Path, nargs="+", metavar="COLLECTION")
    parser.add_argument("--embeddings", choices=("minilm384", "wordllama"), default="minilm384")
    parser.add_argument("--questions", type=int, default=250, help="of each collection, at most")
    options = parser.parse_args()

    measured = measure(options.collections, options.embeddings, options.questions)
    header = ("search", "AUROC", "own", "others", "own, removed", "AUROC, removed")
    print(line(header), line(["---"] * len(header)), sep="\n")
    for name, own, others, removed in zip(SEARCHES, *measured, strict=True):
        shares = [f"{(one >= OFF_SUBJECT).mean():.3f}" for one in (own, others, removed)]
        print(line([name, f"{auroc(own, others):.3f}", *shares, f"{auroc(own, removed):.3f}"]))


if __name__ == "__main__":
    main()

"""Questions made from words of a document, which the search should find again.

They show documents that a search loses, and compare settings roughly. They are no substitute for
questions of people, who use other words: the text leg looks better on them than it is.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

from second_brain.evaluation.collection import CollectionError
from second_brain.services.install import Database
from second_brain.services.judgments import Judgment

_SAMPLED = 2000
_WORDS = 4
_SHORTEST = 3
_LONGEST = 40
_MOST_COMMON = 0.1
_WORD = re.compile(r"[^\W_](?:[\w'-]*\w)?")

# By a digest, so that a seed gives the same documents in every run. One chunk of each document.
_CHUNKS = """
    select sample.key, sample.chunk_id, sample.content, sample.language
    from (
      select distinct on (coalesce(chunk.document_id, chunk.id))
        document.external_key as key, chunk.id as chunk_id, chunk.content, chunk.language,
        md5(coalesce(document.external_key, chunk.id::text) || %(seed)s::text) as place
      from knowledge_internal.chunk_rows as chunk
      left join public.knowledge_documents as document on document.id = chunk.document_id
      where chunk.status = 'active'
        and (%(collection)s::text is null or chunk.collection = %(collection)s::text)
      order by
        coalesce(chunk.document_id, chunk.id),
        md5(chunk.content_hash || %(seed)s::text),
        chunk.id
    ) as sample
    order by sample.place, sample.chunk_id
    limit %(sampled)s
"""

_STOP_WORDS = """
    select listed.language, listed.word
    from unnest(%(languages)s::text[], %(words)s::text[]) as listed (language, word)
    where to_tsvector(knowledge_internal.text_configuration(listed.language), listed.word) = ''
"""


class _Chunk(NamedTuple):
    key: str | None
    chunk_id: str
    content: str
    language: str


def generate(
    database: Database, count: int, *, collection: str | None = None, seed: int = 0
) -> list[Judgment]:
    """Return a question for each of `count` documents, of which it is the right one.

    A question has the most distinctive words of a chunk that other documents have too, in the order
    of the text: a word of one document alone would make it too easy, and stop words find nothing.
    The same corpus and seed give the same questions. A document without such words, or with the
    question of another one, has none. Raises CollectionError if there is no question at all.
    """
    arguments = {"collection": collection, "seed": str(seed), "sampled": max(_SAMPLED, 2 * count)}
    chunks = [_Chunk(*row) for row in database.execute(_CHUNKS, arguments)]
    words = [*{(chunk.language, word) for chunk in chunks for word in _words(chunk)}]
    listed = {"languages": [one for one, _ in words], "words": [word for _, word in words]}
    stop_words = {(language, word) for language, word in database.execute(_STOP_WORDS, listed)}
    found = []
    for judgment in _questions(chunks, collection or "", stop_words):
        found.append(judgment)
        if len(found) == count:
            break
    if not found:
        where = f"collection {collection!r}" if collection else "the corpus"
        raise CollectionError(
            f"{where} has no chunk from which a question can be made",
            remedy="Ingest documents first, or judge questions that people ask.",
        )
    return found


def _questions(
    chunks: list[_Chunk], collection: str, stop_words: Collection[tuple[str, str]]
) -> Iterator[Judgment]:
    frequencies = Counter(word for chunk in chunks for word in set(_words(chunk)))
    seen = set()
    for chunk in chunks:
        counts = Counter(word for word in _words(chunk) if (chunk.language, word) not in stop_words)
        question = _question(counts, frequencies, len(chunks))
        if question is None or question in seen:
            continue
        seen.add(question)
        unit = {"chunk_id": chunk.chunk_id} if chunk.key is None else {"document_key": chunk.key}
        yield Judgment.model_validate(
            {"question": question, "collection": collection, "is_generated": True, **unit}
        )


def _question(counts: Mapping[str, int], frequencies: Mapping[str, int], chunks: int) -> str | None:
    most = min(chunks - 1, max(10, _MOST_COMMON * chunks))
    shared = [word for word in counts if len(word) >= _SHORTEST and 2 <= frequencies[word] <= most]
    if len(shared) < 2:
        return None
    # tf-idf. The digest decides between equal words, so that it is not always the alphabet's first.
    shared.sort(
        key=lambda word: (
            -(1 + math.log(counts[word])) * math.log(chunks / frequencies[word]),
            sha256(word.encode()).digest(),
        )
    )
    chosen = set(shared[:_WORDS])
    return " ".join(word for word in counts if word in chosen)


def _words(chunk: _Chunk) -> list[str]:
    return [word.group().lower()[:_LONGEST] for word in _WORD.finditer(chunk.content)]

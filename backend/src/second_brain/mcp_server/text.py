"""The text of an answer, for a model to read: each hit with its ranks, and quoted passages."""

import html
import re

from second_brain.retrieval.answer import FROM_TEXT, SearchResponse, SearchResult
from second_brain.services.results import off_subject_note, pending_note

PASSAGE_BOUND = 1000
"""Characters. The text shows an excerpt of a longer passage; the JSON has all of it."""


def as_text(response: SearchResponse, excerpt: int = PASSAGE_BOUND) -> str:
    """Return the response as text for a model: failed parts, then the hits, or why there are none.

    A passage of more than `excerpt` characters is shown in part. Every line of a passage begins
    with `> `, so that a passage cannot imitate another hit.
    """
    notes = []
    failed = response.degraded
    while failed is not None:
        effect = f"Degraded to {response.mode_used} search: {failed.part} failed ({failed.kind})."
        if failed.part == "embed" and response.is_inferred:
            effect = f"The embedding of the question is {FROM_TEXT}."
        notes.append(f"{effect} {sentence(failed.message)} {failed.remedy}")
        failed = failed.also
    said = pending_note(response.pending_embeddings), off_subject_note(response.answer_confidence)
    notes += (note for note in said if note is not None)
    if not response.results:
        why = f" {one_line(response.empty.message)}" if response.empty else ""
        return "\n".join([*notes, f"No results found.{why}"])
    found = len(response.results)
    total = response.total_count if response.total_count is not None else found
    counted = f"{found} result{'s'[: found > 1]}"
    if total > found:
        counted += f" of {total}"
    return "\n\n".join(
        [
            "\n".join([*notes, f"{counted}, {response.mode_used} search:"]),
            *(_hit_text(hit, excerpt) for hit in response.results),
        ]
    )


def sentence(text: str) -> str:
    """Return a message with a full stop."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _hit_text(hit: SearchResult, excerpt: int) -> str:
    name = " > ".join(str(part) for part in (hit.title, hit.metadata.get("section")) if part)
    because = [f"score {hit.score:.4f}"]
    if hit.rerank_score is not None:
        because.append(f"reranked from {hit.original_rank}")
    if hit.vector_rank is not None:
        because.append(f"vector rank {hit.vector_rank}")
    if hit.text_rank is not None:
        because.append(f"text rank {hit.text_rank} ({', '.join(hit.matched_terms)})")
    kind = {
        "type": hit.knowledge_type,
        "collection": hit.collection,
        "sensitivity": hit.sensitivity,
        "date": hit.document_date and hit.document_date.isoformat(),
    }
    origin = {"id": document_id(hit), "source": hit.source_origin, "evidence": hit.source_url}
    return "\n".join(
        [
            f"{hit.rank}. {one_line(name or 'untitled')}",
            "; ".join(map(one_line, because)),
            *(
                "; ".join(f"{label}: {one_line(value)}" for label, value in one.items() if value)
                for one in (kind, origin)
            ),
            *(f"> {line}" for line in _passage(hit, excerpt).splitlines()),
        ]
    )


def document_id(hit: SearchResult) -> str:
    """Return the id that `fetch` reads; a chunk without a document has only its own."""
    return hit.document_id or hit.id


def _passage(hit: SearchResult, excerpt: int) -> str:
    if hit.context is not None:
        return hit.context
    passage = hit.content
    if len(passage) > excerpt and hit.snippet:
        passage = html.unescape(re.sub("</?mark>", "", hit.snippet))
    return passage if len(passage) <= excerpt else f"{passage[:excerpt].rstrip()} …"


def one_line(text: str) -> str:
    """Return a text without line breaks, which could imitate another hit."""
    return " ".join(text.split())

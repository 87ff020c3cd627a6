"""Why a search has no hits or lacks one, and what a search does that fails."""

from typing import Any, Literal, TypeAlias

OnError = Literal["raise", "empty"]
"""What a search does that fails: raise a SecondBrainError, or return no hits and the failure in the
details, as in the systems that this package replaces."""

EmptyReason: TypeAlias = dict[str, Any]
"""Why there are no hits, as explain_empty_knowledge_search says it: `reason`, `message`, facts."""

REMEDIES = {
    "boosts": "Give boosts that raise it more, or none.",
    "collection": "Name its collection, or none.",
    "confidence": "Lower min_confidence to this confidence.",
    "date": "Give dates that include its own, or none.",
    "diversity": "Lower diversity, or raise match_count.",
    "duplicate": "Ask without merge_duplicates, which shows one of the hits that say the same.",
    "earlier_page": "Lower match_offset.",
    "excluded_words": "Ask without the excluded words.",
    "filter": "Leave out this filter, or change the row.",
    "fusion": "Raise match_count, or ask for the next page.",
    "grouped": "Ask without one_per_document or max_per_document, which leave out chunks.",
    "missed": "Raise pool_size.",
    "no_embedding": "Run `second-brain corpus embed --once`, or ingest its document again.",
    "no_words": "Ask with a word that it has.",
    "not_stored": "Check the name, or ingest the document.",
    "order": "Ask without order_by, or for the next page.",
    "permission": "Give it an owner or groups that the viewer has, or make its document public.",
    "pool": "Raise pool_size to this rank, or leave out other rows by a filter.",
    "recency": "Give a longer recency_half_life, or none.",
    "required_words": "Ask without quotation marks, or with the search_mode websearch.",
    "status": "Make it active: ingest its document again.",
    "threshold": "Lower match_threshold to this similarity.",
}
"""What to do about each cause of explain_missing_knowledge_chunk."""


def past_end(total: int, offset: int) -> EmptyReason:
    """Return the reason of a page that begins after the last hit."""
    said = f"The offset is {offset} and total_count is {total}. Lower the offset."
    return {"reason": "offset", "message": said, "total_count": total}

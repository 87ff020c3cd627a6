"""Why a search has no hits, and what a search does that fails."""

from typing import Any, Literal, TypeAlias

OnError = Literal["raise", "empty"]
"""What a search does that fails: raise a SecondBrainError, or return no hits and the failure in the
details, as in the systems that this package replaces."""

EmptyReason: TypeAlias = dict[str, Any]
"""Why there are no hits, as explain_empty_knowledge_search says it: `reason`, `message`, facts."""


def past_end(total: int, offset: int) -> EmptyReason:
    """Return the reason of a page that begins after the last hit."""
    said = f"The offset is {offset} and total_count is {total}. Lower the offset."
    return {"reason": "offset", "message": said, "total_count": total}

"""Judgments of documents and chunks for questions. Writers store, list and delete them.

Files of judgments are read and written in `evaluation/judgments.py`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from second_brain.frozen import Frozen

_MOST = 1000
"""Judgments that the database stores in one call."""


class Judgment(Frozen):
    """Whether a document, or one chunk of it, answers a question.

    `grade` is 0 for wrong, 1 for partly right and 2 for right. `collection` is the one that the
    question is asked in, empty for all. A chunk without a document has no `document_key`.
    `is_generated`: the question was made from words of the document, nobody asked it.
    """

    question: str
    document_key: str | None = None
    chunk_id: UUID | None = None
    grade: Literal[0, 1, 2] = 2
    collection: str = ""
    judged_by: UUID | None = None
    judged_at: datetime | None = None
    is_generated: bool = False


def batches(
    judgments: Sequence[Judgment], *, withdrawn: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """Yield the judgments as JSON, as many as one call may have."""
    update = {"grade": None} if withdrawn else {}
    for first in range(0, len(judgments), _MOST):
        yield [one.model_dump(mode="json") | update for one in judgments[first : first + _MOST]]

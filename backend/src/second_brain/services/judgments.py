"""Judgments of documents and chunks for questions: stored, listed and deleted.

Over REST these are methods of the provider, which needs the service role's key. Over psycopg the
`KnowledgeWriter` has them. Files of judgments are read and written in `evaluation/judgments.py`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from second_brain.errors import documented
from second_brain.services.blocking import blocking
from second_brain.services.searches import Searches

SET = """
    select public.set_knowledge_judgments(judgments => %(judgments)s::jsonb)
"""

LIST = """
    select
      question, collection, document_key, chunk_id, grade, judged_by, judged_at, is_generated
    from public.list_knowledge_judgments(
      in_collection => %(in_collection)s::text, by_user => %(by_user)s::uuid
    )
"""

DELETE = """
    select public.delete_knowledge_judgments(
      question => %(question)s::text,
      collection => %(collection)s::text,
      judged_by => %(judged_by)s::uuid,
      is_generated => %(is_generated)s::boolean
    )
"""

_MOST = 1000
"""Judgments that the database stores in one call."""


class Judgment(BaseModel):
    """Whether a document, or one chunk of it, answers a question.

    `grade` is 0 for wrong, 1 for partly right and 2 for right. `collection` is the one that the
    question is asked in, empty for all. A chunk without a document has no `document_key`.
    `is_generated`: the question was made from words of the document, nobody asked it.
    """

    model_config = ConfigDict(frozen=True)

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


@documented
class AsyncStoredJudgments(Searches):
    """The judgments of a corpus, for a provider over REST; every method raises on failure."""

    async def set_judgments(
        self, judgments: Sequence[Judgment], *, timeout: float | None = None
    ) -> int:
        """Store judgments, each in place of the same user's for the same question and thing.

        Returns their number. More than 1,000 are sent in several calls. Raises a SecondBrainError.
        """

        async def stored() -> int:
            for some in batches(judgments):
                await self._call("set_knowledge_judgments", {"judgments": some}, timeout)
            return len(judgments)

        return await self._raising(stored())

    async def withdraw_judgments(
        self, judgments: Sequence[Judgment], *, timeout: float | None = None
    ) -> None:
        """Remove these judgments, of the same user for the same question and thing.

        Their grades are not compared. Raises a SecondBrainError.
        """

        async def withdrawn() -> None:
            for some in batches(judgments, withdrawn=True):
                await self._call("set_knowledge_judgments", {"judgments": some}, timeout)

        await self._raising(withdrawn())

    async def judgments(
        self,
        collection: str | None = None,
        judged_by: UUID | str | None = None,
        *,
        timeout: float | None = None,
    ) -> list[Judgment]:
        """Return the judgments in a collection, of one user, by question and document.

        Raises a SecondBrainError.
        """

        async def read() -> list[Judgment]:
            arguments = {
                "in_collection": collection,
                "by_user": None if judged_by is None else str(judged_by),
            }
            rows = await self._rows("list_knowledge_judgments", arguments, timeout)
            return [Judgment.model_validate(row) for row in rows]

        return await self._raising(read())

    async def delete_judgments(
        self,
        *,
        question: str | None = None,
        collection: str | None = None,
        judged_by: UUID | str | None = None,
        is_generated: bool | None = None,
        timeout: float | None = None,
    ) -> int:
        """Delete the judgments that fit all that is given; return their number.

        Raises a SecondBrainError.
        """

        async def deleted() -> int:
            arguments = {
                "question": question,
                "collection": collection,
                "judged_by": None if judged_by is None else str(judged_by),
                "is_generated": is_generated,
            }
            answer = await self._call("delete_knowledge_judgments", arguments, timeout)
            return answer if isinstance(answer, int) else 0

        return await self._raising(deleted())


class StoredJudgments(Searches):
    """`AsyncStoredJudgments` for threads."""

    set_judgments = blocking(AsyncStoredJudgments.set_judgments)
    withdraw_judgments = blocking(AsyncStoredJudgments.withdraw_judgments)
    judgments = blocking(AsyncStoredJudgments.judgments)
    delete_judgments = blocking(AsyncStoredJudgments.delete_judgments)

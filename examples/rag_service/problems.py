"""Errors as HTTP answers: problem details (RFC 9457) with the remedy, and one line in the log."""

import logging
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from second_brain.errors import SecondBrainError, http_status

logger = logging.getLogger("rag_service")


def problem(error: Exception) -> dict[str, Any]:
    """Return the answer for the client; details of the server's own errors are in the log only."""
    if isinstance(error, HTTPException):
        return _problem(error.status_code, "http", error.detail)
    if isinstance(error, RequestValidationError):
        # Without the values: they can be long.
        faults = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        return _problem(422, "invalid_request", "; ".join(faults))
    known = error if isinstance(error, SecondBrainError) else SecondBrainError(type(error).__name__)
    status = http_status(known)
    if status < 500:
        logger.info("refused: %s", known.kind)
        return _problem(status, known.kind, str(known), known.remedy)
    logger.error("failed: %s (%s): %s %s", known.kind, known.code, known, known.remedy)
    if status in (503, 504):
        return _problem(status, known.kind, "No answer at the moment.", "Try again later.")
    return _problem(status, known.kind, "The server has an error.", "Report it to the operator.")


def _problem(status: int, kind: str, detail: str, remedy: str | None = None) -> dict[str, Any]:
    title = HTTPStatus(status).phrase
    fields = {"title": title, "status": status, "kind": kind, "detail": detail, "remedy": remedy}
    return {name: value for name, value in fields.items() if value is not None}


async def respond(_: Request, error: Exception) -> Response:
    """Answer a request that failed."""
    if isinstance(error, ClientDisconnect):
        # Nobody reads it; 499 is nginx's code for a client that has closed the connection.
        return Response(status_code=499)
    answer = problem(error)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if answer["status"] == 401:
        headers["www-authenticate"] = "Bearer"
    if answer["status"] == 503:
        headers["retry-after"] = "2"
    return JSONResponse(answer, answer["status"], headers, "application/problem+json")

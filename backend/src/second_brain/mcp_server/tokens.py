"""Tokens of callers over HTTP: one for all, or a file in which each token has its own scope.

The file has digests, not tokens. It is read again when it changes.
"""

import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from mcp.server.auth.provider import AccessToken
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from second_brain.errors import ConfigurationError, SecondBrainError
from second_brain.mcp_server.scope import Scope

logger = logging.getLogger(__name__)

_PREFIX = "sb_"
"""What new tokens begin with, so that scanners for secrets can find them."""


class ScopedAccess(AccessToken):
    """The access of a token with a scope of its own. `token` is its name, not the secret."""

    scope: Scope


class OneToken:
    """Verifies the one token that all callers must send."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the access of the right token; None for any other token."""
        if not hmac.compare_digest(token.encode(), self._token):
            return None
        return AccessToken(token="", client_id="bearer", scopes=[])


class _Line(BaseModel):
    """One token of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=100)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    viewer_id: UUID | None = None
    viewer_groups: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    collections: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    public_only: bool = False
    may_remember: bool = False
    expires: datetime | date | None = None


class _Lines(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: list[_Line]


@dataclass(frozen=True, slots=True)
class _Token:
    digest: str
    access: ScopedAccess


class TokenFile:
    """Verifies the tokens of a TOML file; see docs/mcp.md for its keys.

    Raises ConfigurationError if the file is wrong, or if other users of the machine can read or
    change it. When the file is changed later and is wrong then, every token is refused.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state, self._tokens = _read(path)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the access of a token of the file, which has not expired; else None."""
        given = hashlib.sha256(token.encode()).hexdigest()
        found = None
        # Every digest is compared, so that the time says nothing about the file.
        for one in self._current():
            if hmac.compare_digest(one.digest, given):
                found = one.access
        if found is None or (found.expires_at is not None and found.expires_at <= time.time()):
            return None
        return found

    def _current(self) -> list[_Token]:
        try:
            if _state(os.stat(self._path)) != self._state:
                self._state, self._tokens = _read(self._path)
                logger.info("read %s again: %d tokens", self._path, len(self._tokens))
        except (SecondBrainError, OSError) as error:
            # A token that was removed must not stay valid because of another fault in the file.
            logger.error("every token is refused: %s", error)  # noqa: TRY400
            return []
        return self._tokens


def new_token() -> tuple[str, str]:
    """Return a new random token and the digest that the file has in its place."""
    token = _PREFIX + secrets.token_urlsafe(32)
    return token, hashlib.sha256(token.encode()).hexdigest()


def token_lines(given: Mapping[str, Any]) -> str:
    """Return the lines of a token in the file, and raise ConfigurationError for wrong values."""
    kept = {name: value for name, value in given.items() if value not in (None, False)}
    _checked("mcp-token", {"tokens": [kept]})
    lines = (f"{name} = {_toml(value)}\n" for name, value in kept.items())
    return f"[[tokens]]\n{''.join(lines)}\n"


def _toml(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, datetime):
        return value.isoformat()
    # A string of JSON is one of TOML too.
    return "true" if value is True else json.dumps(str(value), ensure_ascii=False)


def _state(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _read(path: Path) -> tuple[tuple[int, ...], list[_Token]]:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            given = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"cannot read the tokens of {path}: {error}",
            remedy="Correct the file, or give another one.",
        ) from error
    open_to_others = stat.S_IWGRP | stat.S_IRWXO
    if os.name == "posix" and found.st_mode & open_to_others:
        raise ConfigurationError(
            f"other users can read or change {path}", remedy=f"Run: chmod 600 {path}"
        )
    return _state(found), _checked(path, given)


def _checked(place: object, given: Mapping[str, Any]) -> list[_Token]:
    try:
        lines = _Lines.model_validate(given).tokens
    except ValidationError as error:
        # Without the values: a token may be in the place of its digest.
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(
            f"{place}: {key}: {first['msg']}", remedy="Correct the file."
        ) from None
    for name in ("name", "sha256"):
        values = [getattr(line, name) for line in lines]
        if len(set(values)) < len(values):
            raise ConfigurationError(
                f"{place}: two tokens have the same {name}", remedy="Give each token its own."
            )
    return [_Token(line.sha256, _access(place, line)) for line in lines]


def _access(place: object, line: _Line) -> ScopedAccess:
    try:
        scope = Scope(
            collections=line.collections,
            viewer_id=line.viewer_id,
            public_only=line.public_only,
            viewer_groups=line.viewer_groups,
            may_remember=line.may_remember,
        )
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{place}: token {line.name}: {error}", remedy=error.remedy
        ) from error
    if not scope.is_limited:
        raise ConfigurationError(
            f"{place}: token {line.name} would show every row",
            remedy="Give it viewer_id, viewer_groups or public_only = true.",
        )
    return ScopedAccess(
        token=line.name,
        client_id=line.name,
        scopes=[],
        subject=None if line.viewer_id is None else str(line.viewer_id),
        expires_at=None if line.expires is None else int(_moment(line.expires).timestamp()),
        scope=scope,
    )


def _moment(expires: datetime | date) -> datetime:
    """Return when a token expires; a day without a time means its beginning in UTC."""
    if not isinstance(expires, datetime):
        return datetime(expires.year, expires.month, expires.day, tzinfo=UTC)
    return expires if expires.tzinfo else expires.replace(tzinfo=UTC)

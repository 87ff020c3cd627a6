"""Texts of errors without credentials, at most so long that a log line holds them."""

import re
from collections.abc import Iterable

MESSAGE_LIMIT = 300
_READ_AT_MOST = 8_000
# A shorter one stands in many words, which would be garbled and would tell its letters.
_SHORTEST_SECRET = 4
# psycopg, which looks hosts up itself, quotes them singly.
QUOTED = re.compile(r""""[^"]*"|(?<=host )'[^']*'""")
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"[a-z][a-z0-9+.-]{0,30}://\S*", "[url]"),
        (r"\b(bearer|basic)\s+\S+", r"\1 [secret]"),
        (
            r"([\w-]{0,40}(?:password|passwd|pwd|secret|token|api[_-]?key|(?<!external)(?<!document)_key|authorization))"
            r"""(["']?\s*[=:]\s*)(?:"[^"]*"?|'(?:\\.|[^'\\])*'?|[^\s,;&]+)""",
            r"\1\2[secret]",
        ),
        (r"eyJ[\w-]{6,}(?:\.[\w-]*){0,4}", "[key]"),
        (r"\bsb(?:p|_secret|_publishable)_\S+", "[key]"),
        # OpenAI's, Voyage's and Hugging Face's.
        (r"\b(?:sk-[\w-]{16,}|pa-[\w-]{30,}|hf_[a-z0-9]{20,})", "[key]"),
        (r"[^\s:@/]{1,100}:[^\s@]{1,200}@[^\s]+", "[connection]"),
        (r"[\w.-]{1,200}\.supabase\.(?:co|com|net|in)\b", "[host]"),
    )
)


def safe_message(
    error: object, *, secrets: Iterable[object] = (), limit: int = MESSAGE_LIMIT
) -> str:
    """Return the error's text on one line, at most `limit` characters, without credentials.

    Keys, tokens, passwords, URLs and connection strings are replaced by their kind in brackets,
    and `secrets`, the values that the caller knows it holds, wherever they stand.
    """
    text = " ".join(_without_secrets(str(error), secrets).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def redacted(error: BaseException, *, secrets: Iterable[object] = ()) -> BaseException:
    """Take credentials out of an exception and of everything that it was raised from.

    It is changed in place, for `raise known from redacted(error)`: whoever logs the new error logs
    its causes too. An exception whose text is not in its `args` is replaced by a RuntimeError.
    """
    known, seen = tuple(secrets), dict[int, BaseException]()

    def safe(text: str, *, is_libpq: bool) -> str:
        return _without_secrets(QUOTED.sub('"…"', text) if is_libpq else text, known)

    def clean(one: BaseException) -> BaseException:
        if id(one) in seen:
            return seen[id(one)]
        seen[id(one)] = one
        is_libpq = _is_libpq(one)
        one.args = tuple(
            safe(part, is_libpq=is_libpq) if isinstance(part, str) else part for part in one.args
        )
        result = one
        if any(safe(text, is_libpq=is_libpq) != text for text in (str(one), repr(one))):
            text = safe_message(safe(str(one), is_libpq=is_libpq))
            result = seen[id(one)] = RuntimeError(f"{type(one).__name__}: {text}")
            result.__traceback__ = one.__traceback__
        is_suppressed = one.__suppress_context__
        result.__cause__ = one.__cause__ and clean(one.__cause__)
        result.__context__ = one.__context__ and clean(one.__context__)
        result.__suppress_context__ = is_suppressed
        for member in getattr(one, "exceptions", ()):
            clean(member)
        return result

    return clean(error)


def _without_secrets(text: str, secrets: Iterable[object]) -> str:
    known = {str(secret) for secret in secrets if secret}
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) < _SHORTEST_SECRET:
            break
        text = text.replace(secret, "[secret]")
    if len(text) > _READ_AT_MOST:
        # The last word may be half a secret, which no pattern matches.
        text = text[:_READ_AT_MOST].rsplit(None, 1)[0]
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _is_libpq(error: BaseException) -> bool:
    """Say whether the text is libpq's or psycopg's own, which may quote a connection string."""
    import psycopg

    return isinstance(error, psycopg.Error) and error.sqlstate is None

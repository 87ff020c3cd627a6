"""Bytes to text, in the encoding that the caller, the file or a guess names.

Labels mean what they mean on the web: iso-8859-1 is Windows-1252, shift_jis is Windows-31J.
"""

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from second_brain.errors import InvalidInputError
from second_brain.extras import needed
from second_brain.ingest.document import BinaryFileError, clean, note

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Where Python has another name for what the web reads.
_CODECS = {
    "shift_jis": "cp932",
    "gbk": "gb18030",
    "euc-kr": "cp949",
    "big5": "big5hkscs",
    "macintosh": "mac-roman",
    "x-user-defined": "cp1252",
}
# Of each good character beyond ASCII, the share of bad bytes in a text that is UTF-8 all the same.
_BAD_SHARE = 0.25
_SAMPLE_BYTES = 1_000_000
# Japanese in seven bits, as mails have it: letters between two escape sequences.
_ISO_2022 = re.compile(rb"\x1b\$[@B][!-~]{2,}?\x1b\([BJ]")
# No text in Windows-1252 has these between small letters; those of Mac OS are their letters.
_MAC_LETTERS = re.compile(rb"[a-z][\x80-\x84\x86-\x91\x98-\x9f][a-z]")


@dataclass(frozen=True, slots=True)
class Stated:
    """The encoding that the caller demands, and that a server names, if they do."""

    demanded: str | None = None
    named: str | None = None


_STATED: ContextVar[Stated] = ContextVar("the stated encoding", default=Stated())  # noqa: B039


@contextmanager
def stated(demanded: str | None = None, named: str | None = None) -> Iterator[None]:
    """Let `decode` read in these encodings."""
    token = _STATED.set(Stated(demanded, named))
    try:
        yield
    finally:
        _STATED.reset(token)


def codec(label: str) -> str | None:
    """Return Python's name of the encoding of a label; None for an unknown one."""
    with needed("webencodings", "ingest"):
        import webencodings  # type: ignore[import-untyped]
    if found := webencodings.lookup(label):
        return _CODECS.get(found.name, str(found.codec_info.name))
    try:
        known = codecs.lookup(label)
        "".encode(label)
    except (LookupError, TypeError, ValueError):
        return None
    return known.name


def checked_encoding(label: str | None) -> str | None:
    """Return the label. Raises InvalidInputError for an unknown one."""
    if label is not None and codec(label) is None:
        raise InvalidInputError(
            f"encoding must be the name of one, such as windows-1251 or shift_jis, not {label!r}"
        )
    return label


def decode(data: bytes, label: str | None = None) -> str:
    """Return the text of a file; `label` is the encoding that the file names itself.

    Without a name it is UTF-8, also with a few bad bytes, or else a guess; `note` tells which.
    Raises BinaryFileError for what is no text.
    """
    given = _STATED.get()
    for mark, name in _MARKS:
        if data.startswith(mark):
            return _decoded(data, name)
    if given.demanded:
        return _decoded(data, codec(given.demanded) or given.demanded)
    name = codec(given.named or label or "utf-8") or "utf-8"
    if b"\0" in data and not name.startswith("utf-16"):
        return _decoded(data, _utf_16(data))
    if name != "utf-8":
        return _decoded(data, name)
    text = data.decode("utf-8", "replace")
    bad = text.count("\ufffd")
    good = len(re.findall(r"[^\x00-\x7f\ufffd]", text)) if bad else 0
    if _ISO_2022.search(data):
        return _guessed(data)
    if bad <= max(_BAD_SHARE * good, good > 0):
        return _decoded(data, name)
    return _guessed(data)


def _decoded(data: bytes, name: str) -> str:
    text = data.decode(name, "replace")
    if (bad := text.count("\ufffd")) and (bad := bad - data.count("\ufffd".encode())) > 0:
        note(f"{bad} characters are not in the encoding {name}, and are replaced by \ufffd")
    return clean(text)


def _utf_16(data: bytes) -> str:
    """Return the byte order of UTF-16 without a mark: nearly all text has spaces or line feeds."""
    half = len(data) // 2
    even, odd = data[0::2].count(0), data[1::2].count(0)
    for name, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if zeros > half / 3 and others < half / 100:
            return name
    raise BinaryFileError("is binary, not text")


def _guessed(data: bytes) -> str:
    with needed("chardetng-py", "ingest"):
        import chardetng_py  # type: ignore[import-untyped]
    guess = chardetng_py.detect(data[:_SAMPLE_BYTES])
    if guess == "windows-1252" and _MAC_LETTERS.search(data):
        guess = "macintosh"
    name = codec(guess) or "cp1252"
    try:
        text = data.decode(name)
    except UnicodeDecodeError as exc:
        raise BinaryFileError(
            "is neither UTF-8 nor in an encoding that can be guessed",
            remedy="Convert it to UTF-8, or name its encoding with --encoding.",
        ) from exc
    note(f"it is read as {guess}, which is a guess: --encoding names another")
    return clean(text)

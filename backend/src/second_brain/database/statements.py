"""A file of SQL as its statements, as the Supabase CLI splits it."""

import re
from collections.abc import Iterator


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Split SQL at its semicolons; yield each statement with the index of its first character.

    It splits like the Supabase CLI: a statement includes the comments before it, but not its
    semicolon.
    """
    begin = index = depth = 0
    atomic = False
    previous = ""
    while index < len(text):
        token = _TOKEN.match(text, index)
        if token is None:
            index += 1
            continue
        index = token.end()
        if token["comment"]:
            index = _end_of_block_comment(text, index)
        elif token["dollar"]:
            close = text.find(token["dollar"], index)
            index = len(text) if close < 0 else close + len(token["dollar"])
        elif token["word"]:
            word = token["word"].lower()
            if word == "atomic" and previous == "begin":
                atomic, word = True, ";"
            elif atomic and word == "end" and previous == ";":
                atomic = False
            previous = word
        elif token["mark"]:
            previous = token["mark"]
            depth += {"(": 1, ")": -1}.get(previous, 0)
            if previous == ";" and depth <= 0 and not atomic:
                yield from _trimmed(text, begin, index)
                begin, depth = index, 0
    yield from _trimmed(text, begin, index)


_TOKEN = re.compile(
    r"""
      --[^\n\r]*
    | "[^"]*"
    | [eE]'(?:[^'\\]|\\.|'')*'
    | '[^']*'
    | (?P<comment>/\*)
    | (?P<word>[^\W\d][\w$]*)
    | (?P<dollar>\$(?:[^\W\d]\w*)?\$)
    | (?P<mark>[();])
    | \d[\w$.]*
    """,
    re.VERBOSE | re.DOTALL,
)


def _end_of_block_comment(text: str, index: int) -> int:
    depth = 1
    for mark in re.compile(r"/\*|\*/").finditer(text, index):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)


def _trimmed(text: str, begin: int, end: int) -> Iterator[tuple[int, str]]:
    statement = text[begin:end].rstrip(";").strip()
    if statement:
        yield text.index(statement, begin), statement

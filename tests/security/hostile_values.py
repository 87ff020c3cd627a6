"""Texts, JSON and values that nobody means well."""

import itertools
import json
from collections.abc import Mapping
from typing import Any, LiteralString
from uuid import UUID

import pytest

ME = UUID(int=1)
LONGEST_REFUSAL = 2_000  # characters

TYPES: dict[str, LiteralString] = {
    **dict.fromkeys(("query_text", "filter_type", "search_mode", "fusion", "order_by"), "text"),
    **dict.fromkeys(("filters", "formulations", "queries", "search", "boosts"), "jsonb"),
    **dict.fromkeys(("match_count", "pool_size", "neighbor_window", "match_offset"), "integer"),
    **dict.fromkeys(
        ("match_threshold", "vector_weight", "text_weight", "rrf_k", "recency_half_life"), "float8"
    ),
    **dict.fromkeys(("date_from", "date_to"), "date"),
    **dict.fromkeys(("public_only", "one_per_document", "snippet"), "boolean"),
    "collections": "text[]",
    "viewer_id": "uuid",
    "query_embedding": "extensions.vector",
}


def nested(levels: int, opening: str, closing: str) -> str:
    return opening * levels + "1" + closing * levels


def numbered(count: int, form: str = "w{}", joint: str = " ") -> str:
    return joint.join(form.format(number) for number in range(count))


TEXTS = {
    "empty": "",
    "blank": " \t\r\n\v\u00a0\u3000" * 10,
    "quotes": "' '' \" \\ \\' ''\\ cat",
    "backslashes": "cat \\" * 500,
    "tsquery": "cat & dog | !(mouse <-> x) :* <2> (( cat:*A",
    "dollars": "$$ $a$ $1 $tag$ cat $tag$",
    "jsonpath": '$.** ? (@ like_regex ".*" flag "q") cat[*] strict $',
    "injection": "'); drop table public.knowledge_chunks; --",
    "comments": "/* -- */ cat --",
    "percent": "%s %(query_text)s {0} cat% _ %%",
    "braces": '{"cat",NULL,{}}',
    "null": "NULL",
    "surrogate": "cat \ud800",
    "NUL": "cat\0dog",
    "right to left": "\u202ecat\u202c \u200f\u2067dog\u2069",
    "zero width": "c\u200ba\u200bt \u200d\ufeff\u2060 \u200b",
    "emoji": "🐈 👩‍👩‍👧 cat 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "controls": "cat\x01\x1b[2J\x7f\x08",
    "letters": "\U0001d518\U0001d52b\ufdfd\u1e9e\u01c6\u0130 cat",
    "piles": "ca\u0301\u0316t " * 2_000,
    "one pile": "a" + "\u0301\u0316" * 8_192,
    "ligatures": "\ufdfa" * 16_384,
    "Han": "".join(map(chr, range(0x4E00, 0x4E00 + 16_384))),
    "kana": "".join(chr(0x3041 + number % 83) for number in range(16_384)),
    "Han words": " ".join(map(chr, range(0x4E00, 0x4E00 + 8_192))),
    "megabyte": "cat dog " * 130_000,
    "blank megabyte": " " * 1_000_000,
    "one word": "x" * 1_000_000,
    "words": numbered(10_000),
    "short words": " ".join(map("".join, itertools.product("abcdefghijklmnop", repeat=3))),
    "phrases": numbered(10_000, '"w{} b"'),
    "one-word phrases": numbered(10_000, '"w{}"'),
    "minus signs": "cat " + numbered(10_000, "-w{}"),
    "minus phrases": "cat " + numbered(10_000, '-"w{} b"'),
    "alternatives": numbered(10_000, joint=" or "),
    "alternative phrases": numbered(10_000, '"w{} cat"', " or "),
    "only or": "or " * 10_000,
    "only minus": "- " * 10_000,
    "open quotes": '"' * 20_001,
    "compound": numbered(5_000, joint="-"),
    "hyphens": "a-" * 20_000,
    "dots": "a." * 20_000,
    "pluses": "c++ " * 5_000,
    "addresses": "a@b.c " * 5_000,
    "tags": "<a>" * 10_000,
    "entities": "&amp;" * 5_000,
    "brackets": "(" * 20_000 + "cat" + ")" * 20_000,
}

NUMBERS = ("-0", "0.0", "1e400", "-1e400", "1e-400", "1" + "0" * 1_000, "1e131071", "1e200000")
JSON = {
    "null": "null",
    "true": "true",
    "empty array": "[]",
    "empty object": "{}",
    "empty string": '""',
    "nested empties": "[[[]], {}, [{}], null]",
    "empty key": '{"": 1}',
    "quoted keys": json.dumps({"a'b\"c\\d$$e": "';--"}),
    "NaN": "NaN",
    "NaN in a string": '"NaN"',
    "NUL": '"a\\u0000b"',
    "NUL in a key": '{"a\\u0000b": 1}',
    "surrogate": '"\\ud800"',
    "jsonpath": json.dumps("$.** ? (@ == 1)"),
    "injection": json.dumps("'); drop table public.knowledge_chunks; --"),
    "right to left": json.dumps("\u202ecat\u202c\u200b"),
    "broken": '{"a": [1,',
    "no text": "",
    "megabyte": json.dumps("x" * 1_000_000),
    "blank megabyte": json.dumps(" " * 1_000_000),
    **{f"number {one[:8]} of {len(one)}": one for one in NUMBERS},
    "huge numbers": "[" + ",".join(f"{number}e131060" for number in range(1, 1_001)) + "]",
    **{f"{levels} arrays": nested(levels, "[", "]") for levels in (49, 51, 1_000, 10_000, 100_000)},
    **{f"{levels} objects": nested(levels, '{"a":', "}") for levels in (49, 51, 1_000, 10_000)},
    "many numbers": json.dumps(list(range(100_000))),
    "many strings": json.dumps([f"'{number}" for number in range(100_000)]),
    "many nulls": json.dumps([None] * 100_000),
    "many objects": json.dumps([{"a": number} for number in range(100_000)]),
    "many keys": json.dumps({f"k{number}": number for number in range(100_000)}),
    "a thousand objects": json.dumps([{"b": [number, "x"]} for number in range(1_000)]),
}


def mostly(cases: Mapping[str, str]) -> list[Any]:
    """The names of the cases, the long ones of them for the long run only."""
    return [
        pytest.param(name, marks=pytest.mark.slow)
        if len(text) > 9_000 or name == "huge numbers"
        else name
        for name, text in cases.items()
    ]


FILTER_VALUES = [
    (field, op)
    for field, ops in {
        "metadata.a": ("eq", "in", "not_in", "between", "contains", "gte", "exists"),
        "metadata.b.c": ("eq", "not_in", "contains"),
        "metadata": ("contains",),
        "chunk_index": ("eq", "not_in", "between", "gt"),
        "document_date": ("eq", "in", "lte"),
        "created_at": ("ne", "between"),
        "owner_id": ("eq", "not_in"),
        "sensitivity": ("ne", "in"),
        "visibility": ("in",),
    }.items()
    for op in ops
]


THOUSAND = range(1_000)
MANY_VALUES: dict[str, tuple[str, str, list[Any]]] = {
    "numbers in": ("metadata.a", "in", [*THOUSAND]),
    "numbers not in": ("metadata.a", "not_in", [*THOUSAND]),
    "objects in": ("metadata.b", "in", [{"c": [number, "x"]} for number in THOUSAND]),
    "arrays not in": ("metadata.b.c", "not_in", [[number, "x"] for number in THOUSAND]),
    "contained": ("metadata.b.c", "contains", [[number] for number in THOUSAND]),
    "labels not in": ("sensitivity", "not_in", [f"l{number}" for number in THOUSAND]),
    "languages not in": ("language", "not_in", [f"l{number}" for number in THOUSAND]),
    "owners not in": ("owner_id", "not_in", [str(UUID(int=number)) for number in THOUSAND]),
    "places not in": ("chunk_index", "not_in", list(range(10, 2_010, 2))),
    "times not in": ("created_at", "not_in", [f"2020-01-01T00:00:00.{n:04}Z" for n in THOUSAND]),
}


DATES = (
    *("soon", "now", "infinity", "-infinity", "2026-02-30", "0000-01-01", "99999999-01-01"),
    *("4714-11-24 BC", "5874897-12-31", "1e5", "J0", "\u202e2026-01-01", "2026-01-01'; --"),
)
WHOLE_NUMBERS = ("-0", "0x10", "1_0", " 5 ", "1.5", "3e9", "NaN", "-1", "99999999999", "true", "٣")
FLOATS = (
    *("NaN", "Infinity", "-Infinity", "-0", "0", "1e308", "1e-308", "5e-324", "1e400", "1e-400"),
    *("0x1p3", "1_000", "1,5", "٣"),
)
ARRAYS = (
    *("{}", "{NULL}", '{""}', "{{a},{b}}", "{{a,b},{c,NULL}}", "[0:1]={c1,c2}", "{c1,c1}", "{a"),
    *('{"a\\"b"}', "{\u202e}", "{'; --}", "{null}", "c1"),
    "{" + numbered(100_000, joint=",") + "}",
    "{" + "{" * 10 + "a" + "}" * 10 + "}",
    "{" + "x" * 1_000_000 + "}",
)
VECTORS = (
    *("[]", "{1,2,3}", "[NaN,1,1]", "[Infinity,1,1]", "[1e400,1,1]", "[1e39,0,0]", "[1e38,1e38,1]"),
    *("[1e-46,0,0]", "[-0,0,0]", "[1,2]", "[1,2,3,]", "[1,,3]", "[0x1,2,3]", "1", "[1,2,3]; --"),
    "[" + ",".join(["1"] * 16_000) + "]",
    "[" + ",".join(["1"] * 100_000) + "]",
    "[" + "1" * 100_000 + ",1,1]",
    "[" * 10_000,
)
TYPED_TEXTS: dict[LiteralString, tuple[str, ...]] = {
    "date": DATES,
    "integer": WHOLE_NUMBERS,
    "float8": FLOATS,
    "boolean": ("yes", "2", "maybe", "t", "TRUE\0"),
    "uuid": (str(ME).upper(), f"{{{ME}}}", "nobody", "0" * 31, "0" * 33, "'; --"),
    "text[]": ARRAYS,
    "extensions.vector": VECTORS,
}
ALWAYS = ("", " ", "NULL", "\0", "\ud800", "9" * 1_001, "x" * 1_000_000)


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


OBJECTS: dict[str, Any] = {
    **{name: TEXTS[name] for name in ("NUL", "surrogate", "injection", "one word", "empty")},
    "NaN": float("nan"),
    "infinity": float("inf"),
    "huge": 10**1_000,
    "too huge for text": 10**5_000,
    "minus zero": -0.0,
    "bytes": b"\xff\0",
    "object": object(),
    "set": {1, "a"},
    "list": [1, "a", None],
    "nested": deep(900),
    "deeply nested": deep(10_000),
    "circle": circle(),
    "dict": {"a": {"\0": 1}},
    "keys that are no text": {(1, 2): 3},
    "conditions": [{"field": "metadata.a", "op": "eq", "value": float("nan")}],
}

"""Excerpts without the module `snippets`: ts_headline's, in which nothing but the marks is HTML."""

import html
import re
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from conftest import Connection, Server, copy_of
from support.properties import tried

OTHER = "Nothing happened on that day, and nobody was surprised. "
TEXT = r"(?:[^<>&\"'\0-\x1f\x7f]|&(?:amp|lt|gt|quot|#39);)"


@pytest.fixture(scope="module")
def core(server: Server) -> Iterator[Connection]:
    """A connection to a database with core alone."""
    for dsn in copy_of(server, replace(server, modules=()).template(3)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield connection


def excerpt(
    connection: Connection,
    content: str,
    *lexemes: str,
    fragments: int = 1,
    language: str = "english",
) -> str:
    row = connection.execute(
        "select knowledge_internal.marked_snippet(%s, '', %s,"
        "  jsonb_populate_record(null::knowledge_internal.question, %s), %s)",
        [content, language, Jsonb({"lexemes": lexemes}), fragments],
    ).fetchone()
    assert row is not None
    return str(row[0])


def test_the_words_of_the_questions_are_marked_and_the_rest_is_escaped(core: Connection) -> None:
    content = "We <b>rotate</b> the\n\n\x01 'API' keys & \"locks\"; <mark>rotation</mark>."
    assert excerpt(core, content, "rotat", "key") == (
        "We &lt;b&gt;<mark>rotate</mark>&lt;/b&gt; the &#39;API&#39; <mark>keys</mark> &amp; "
        "&quot;locks&quot;; &lt;mark&gt;<mark>rotation</mark>&lt;/mark&gt;."
    )
    assert excerpt(core, "Die Rechnungen", "rechnung", language="german") == (
        "Die <mark>Rechnungen</mark>"
    )


def test_so_many_passages_are_shown_in_text_order(core: Connection) -> None:
    content = OTHER * 9 + "The power failed. " + OTHER * 9 + "We rotate all keys. " + OTHER * 9
    one = excerpt(core, content, "rotat", "power")
    assert len(re.findall("<mark>", one)) == 1
    first, second = excerpt(core, content, "rotat", "power", fragments=2).split(" … ")
    assert "<mark>power</mark> failed" in first
    assert "<mark>rotate</mark> all keys" in second


def test_without_a_match_it_is_the_beginning(core: Connection) -> None:
    content = OTHER * 9
    for lexemes in ((), ("zebra",)):
        shown = excerpt(core, content, *lexemes, fragments=3)
        assert 20 < len(shown) < 240
        assert content.startswith(shown)
    assert excerpt(core, "", "zebra") == ""


def test_the_first_20000_characters_of_a_megabyte_are_read(core: Connection) -> None:
    assert "<mark>" in excerpt(core, "word " * 3_990 + "rotate", "rotat")
    with core.transaction():
        core.execute("set local statement_timeout = '20s'")
        assert "<mark>" not in excerpt(core, "word " * 200_000 + "rotate", "rotat")
        assert len(excerpt(core, "rotate lorem " * 80_000, "rotat", "lorem", fragments=3)) < 3_000


PIECES = st.sampled_from(
    [
        *("rotate", "b", "lt", "amp", "39", "quot", "mark", "DS-7604", "全文检索", "e\u0301"),
        *("<mark>", "</mark>", "<script>", "<b", "&amp;", "&lt", "&#39;", "&", "<", ">", '"', "'"),
        *("http://h/?a=1&b", "a@b.org", "/etc/x<y", "…", " ", "\n", "\x01", "\x7f", "\\", "%s"),
    ]
)


@tried(300)
@given(
    content=st.lists(PIECES | st.text(st.characters(codec="utf-8", exclude_characters="\0"))).map(
        "".join
    ),
    lexemes=st.lists(st.sampled_from(["rotat", "b", "lt", "amp", "39", "quot", "'", "\\", "mark"])),
    fragments=st.integers(1, 3),
)
def test_whatever_the_content_holds_the_only_tags_are_marks(
    core: Connection, content: str, lexemes: list[str], fragments: int
) -> None:
    marked = excerpt(core, content, *lexemes, fragments=fragments)
    assert re.fullmatch(f"(?:{TEXT}|<mark>{TEXT}+</mark>)*", marked)
    for part in html.unescape(re.sub("</?mark>", "", marked)).split(" … "):
        shown = re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", "", part)
        assert shown in re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", "", content) or "…" in content

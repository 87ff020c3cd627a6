"""Excerpts of a content with the query's words in <mark>: what stands in them and how it is cut."""

import html
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Connection
from support.properties import tried

pytestmark = pytest.mark.module("snippets")

LONGEST = 240
"""Characters of an excerpt without its tags and ellipses, marks of the last letter aside."""


def lexemes(connection: Connection, query: str, language: str) -> list[str]:
    row = connection.execute(
        "select tsvector_to_array(to_tsvector(%s::regconfig,"
        "  knowledge_internal.apart(%s) || ' ' || knowledge_internal.joined(%s)))",
        [language, query, query],
    ).fetchone()
    assert row is not None
    return list(row[0])


def excerpt(
    connection: Connection,
    content: str,
    found: Sequence[str] | None,
    language: str = "english",
    fragments: int = 1,
) -> str:
    row = connection.execute(
        "select knowledge_internal.snippet(%s, %s::regconfig, %s::text[], %s)",
        [content, language, None if found is None else list(found), fragments],
    ).fetchone()
    assert row is not None
    return str(row[0])


def snippet(connection: Connection, content: str, query: str, language: str = "english") -> str:
    return excerpt(connection, content, lexemes(connection, query, language), language)


def shown(marked: str) -> str:
    """Take tags, ellipses and escapes away again."""
    text = re.sub("</?mark>", "", marked)
    return html.unescape(text.removeprefix("… ").removesuffix(" …"))


@pytest.mark.parametrize(
    ("content", "query", "expected"),
    [
        ("We rotated the API keys.", "rotate key", "We [rotated] the API [keys]."),
        ("ROTATE, rotation; “rotating”", "rotates", "[ROTATE], [rotation]; “[rotating]”"),
        ("the model DS-7604 is", "DS-7604", "the model [DS-7604] is"),
        ("the model DS-7604 is", "ds7604", "the model [DS-7604] is"),
        ("the model DS-7604 is", "7604", "the model DS-[7604] is"),
        ("(see snake_case_name)", "snake case name", "(see [snake]_[case]_[name])"),
        ("(see snake_case_name)", "snake_case_name", "(see [snake_case_name])"),
        ("in /etc/rotate.conf,", "rotate", "in /etc/[rotate].conf,"),
        ("mail bob@example.org now", "example", "mail bob@[example].org now"),
        ("C++, C# or C", "C++", "[C++], C# or C"),
        ("C++, C# or C", "c#", "C++, [C#] or C"),
        ("about 1,000 genomes", "1000", "about [1,000] genomes"),
        ("call getUserName() here", "user", "call get[User]Name() here"),
        ("call getUserName() here", "getusername", "call [getUserName]() here"),
        ("f(rotate)=g", "rotate", "f([rotate])=g"),
        ("l\u2019homme d'État", "homme", "l\u2019[homme] d&#39;État"),
        # What looks the same is marked as it is written.
        ("cafe\u0301 au lait", "caf\u00e9", "[cafe\u0301] au lait"),
        ("the \ufb01le x\u00b2", "file x2", "the [\ufb01le] [x\u00b2]"),
        ("\uff24\uff33\uff0d\uff17\uff16 is", "DS76", "[\uff24\uff33\uff0d\uff17\uff16] is"),
        ("DS\u20117604", "DS7604", "[DS\u20117604]"),
        ("Donau\u00addampf", "Donaudampf", "[Donau\u00addampf]"),
    ],
)
def test_the_words_of_the_query_are_marked(
    shared: Connection, content: str, query: str, expected: str
) -> None:
    marked = expected.replace("[", "<mark>").replace("]", "</mark>")
    assert snippet(shared, content, query) == marked


@pytest.mark.parametrize(
    ("content", "query", "expected"),
    [
        ("数据库全文检索的性能优化。", "全文检索", "数据库[全文检索]的性能优化。"),
        ("我爱猫咪和PostgreSQL数据库", "猫 postgresql", "我爱[猫]咪和[PostgreSQL]数据库"),
        ("東京タワーへ行く", "タワーへ", "東京[タワーへ]行く"),
        ("กรุงเทพมหานครเป็นเมือง", "เป็นเมือง", "กรุงเทพมหานคร[เป็นเมือง]"),
        ("학교에서 한국어를 배웁니다", "한국어", "학교에서 [한국어]를 배웁니다"),
        ("ﾃﾞｰﾀ を見る", "データ", "[ﾃﾞｰﾀ] を見る"),
    ],
)
@pytest.mark.parametrize("language", ["english", "simple"])
def test_pairs_of_letters_are_marked_in_writing_without_spaces(
    shared: Connection, content: str, query: str, expected: str, language: str
) -> None:
    marked = expected.replace("[", "<mark>").replace("]", "</mark>")
    assert snippet(shared, content, query, language) == marked


def test_a_word_is_read_in_the_language_of_the_content(shared: Connection) -> None:
    content = "Die Rechnungen sind bezahlt"
    marked = "Die <mark>Rechnungen</mark> sind bezahlt"
    assert snippet(shared, content, "Rechnung", "german") == marked
    assert snippet(shared, content, "Rechnung", "simple") == content
    assert snippet(shared, content, "rechnungen", "simple") == marked


def test_everything_but_the_marks_is_escaped(shared: Connection) -> None:
    content = "<mark>rotate</mark> <script>alert('\"x\"')</script> AT&T &amp; <b class=rotate>"
    assert snippet(shared, content, "rotate") == (
        "&lt;mark&gt;<mark>rotate</mark>&lt;/mark&gt; "
        "&lt;script&gt;alert(&#39;&quot;x&quot;&#39;)&lt;/script&gt; "
        "AT&amp;T &amp;amp; &lt;b class=<mark>rotate</mark>&gt;"
    )


@pytest.mark.parametrize("content", ["", "   ", "\n\t"])
def test_an_empty_content_has_an_empty_snippet(shared: Connection, content: str) -> None:
    assert snippet(shared, content, "rotate") == ""
    assert excerpt(shared, content, None) == ""


@pytest.mark.parametrize("found", [None, [], ["zebra"]])
def test_without_a_match_it_is_the_beginning(
    shared: Connection, found: Sequence[str] | None
) -> None:
    assert excerpt(shared, "short & plain", found) == "short &amp; plain"
    content = " ".join(f"word{number}" for number in range(100))
    opening = excerpt(shared, content, found)
    assert opening.endswith(" …")
    assert content.startswith(shown(opening) + " ")
    assert LONGEST - 10 < len(shown(opening)) <= LONGEST


FILLER = " ".join(["filler"] * 100)


def test_it_is_around_the_match_and_cut_between_words(shared: Connection) -> None:
    marked = snippet(shared, f"{FILLER} we rotate keys {FILLER}", "rotate")
    assert " we <mark>rotate</mark> keys " in marked
    assert marked.startswith("… filler ")
    assert marked.endswith(" filler …")
    assert LONGEST - 20 < len(shown(marked)) <= LONGEST
    before, after = shown(marked).split("rotate")
    assert abs(len(before) - len(after)) < 20


def test_the_passage_with_more_of_the_words_wins(shared: Connection) -> None:
    content = f"keys keys keys {FILLER} rotate the keys {FILLER} rotate rotate"
    marked = snippet(shared, content, "rotate keys")
    assert "<mark>rotate</mark> the <mark>keys</mark>" in marked
    assert marked.count("<mark>") == 2


def test_a_rare_word_outweighs_two_common_ones(shared: Connection) -> None:
    content = f"beta gamma delta {FILLER} alpha {FILLER}"
    assert "<mark>alpha</mark>" in excerpt(shared, content, ["alpha", "gamma", "delta"], "simple")
    assert "<mark>gamma</mark>" in excerpt(shared, content, ["delta", "gamma", "alpha"], "simple")


def test_the_end_of_the_content_fills_the_excerpt(shared: Connection) -> None:
    marked = snippet(shared, f"{FILLER} rotate", "rotate")
    assert marked.endswith("filler <mark>rotate</mark>")
    assert len(shown(marked)) > LONGEST - 10


def test_writing_without_spaces_is_cut_by_characters(shared: Connection) -> None:
    marked = snippet(shared, "词" * 500 + "全文检索" + "语" * 500, "全文检索", "simple")
    assert "词<mark>全文检索</mark>语" in marked
    assert marked.startswith("… 词")
    assert marked.endswith("语 …")
    assert len(shown(marked)) == LONGEST


def test_a_cut_leaves_a_letter_its_marks(shared: Connection) -> None:
    marked = snippet(shared, "น้ำ" * 300 + "ไทย" + "น้ำ" * 300, "ไทย", "simple")
    assert re.match("… [\u0e01-\u0e30\u0e32\u0e33]", marked)
    assert not marked.endswith("น …")


def test_a_word_longer_than_an_excerpt_is_cut(shared: Connection) -> None:
    marked = snippet(shared, "x" * 1000 + " rotate", "x" * 1000)
    assert marked == f"<mark>{'x' * LONGEST}</mark> …"


@pytest.mark.parametrize(
    "content",
    [
        "lorem rotate " * 80_000,
        "a-b" * 350_000,
        "a " * 500_000,
        "x" * 1_000_000,
        "全文检索" * 250_000,
        "<" * 1_000_000,
    ],
    ids=["words", "one compound", "letters", "one word", "Chinese", "no word"],
)
def test_a_megabyte_is_answered(shared: Connection, content: str) -> None:
    with shared.transaction():
        shared.execute("set local statement_timeout = '20s'")
        marked = snippet(shared, content, "rotate a b 全文检索", "simple")
    assert marked.endswith(" …")
    assert 0 < len(shown(marked)) <= LONGEST
    assert content.startswith(shown(marked))


def test_the_first_20000_characters_are_read(shared: Connection) -> None:
    marked = snippet(shared, "word " * 3_990 + "rotate " + "word " * 100, "rotate")
    assert "<mark>rotate</mark> word" in marked
    assert marked.endswith(" …")
    assert "<mark>" not in snippet(shared, "word " * 4_000 + "rotate", "rotate")


PIECES = st.sampled_from(
    [
        *("rotate", "Rotated", "keys", "DS-7604", "getUserName", "C++", ".NET", "1,000", "x²"),
        *(
            "<mark>",
            "</mark>",
            "<script>",
            "&amp;",
            "&",
            "<",
            ">",
            '"',
            "'",
            "…",
            " … ",
            "%s",
            "\\",
        ),
        *(" ", "  ", "\n", "\t", "\x01", "\x02", "\x1f", "\x7f", "\x85", "\u00a0", "\u3000"),
        *("全文检索", "数据库", "データ", "ภาษาไทย", "한국어", "é", "e\u0301", "\u0301", "ß"),
        *("👩\u200d👩\u200d👧", "🔑", "\u202e", "\u200f", "עברית", "العربية", "\ufeff", "\u00ad"),
    ]
)
CONTENTS = st.lists(PIECES | st.text(st.characters(codec="utf-8", exclude_characters="\0"))).map(
    "".join
)


@tried(300)
@given(
    content=st.builds(str.__mul__, CONTENTS, st.sampled_from([1, 1, 5, 40])),
    query=CONTENTS,
    further=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))),
    language=st.sampled_from(["english", "german", "simple"]),
    fragments=st.sampled_from([1, 1, 2, 3]),
)
def test_whatever_the_content_holds_the_only_tags_are_marks(
    shared: Connection, content: str, query: str, further: list[str], language: str, fragments: int
) -> None:
    found = [*lexemes(shared, query, language), *further]
    marked = excerpt(shared, content, found, language, fragments)
    assert re.fullmatch(
        "(?:[^<>&\"'\0-\x1f\x7f-\x9f]|&(?:amp|lt|gt|quot|#39);"
        "|<mark>(?:[^<>&\"'\0-\x1f\x7f-\x9f]|&(?:amp|lt|gt|quot|#39);)+</mark>)*",
        marked,
    )

    def spaced(text: str) -> str:
        return re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", "", text)

    assert len(html.unescape(re.sub("</?mark>", "", marked))) <= fragments * (LONGEST + 45)
    if fragments > 1:
        # In text order, and none twice.
        rest = spaced(content)
        for fragment in shown(marked).split(" … ") if "…" not in content else []:
            assert spaced(fragment) in rest
            rest = rest[rest.index(spaced(fragment)) + len(spaced(fragment)) :]
        return
    assert spaced(shown(marked)) in spaced(content) or "…" in content
    assert spaced(html.unescape(re.sub("</?mark>", "", marked)).strip("… ")) in spaced(content)
    if content.isprintable() and len(content) <= LONGEST and not re.search("…|  ", content):
        assert shown(marked) == content.strip()


@tried(100)
@given(
    word=st.sampled_from(
        [*("rotated", "DS-7604", "snake_case", "C++", "getUserName", "1,000", "全文检索", "x²")]
    ),
    before=CONTENTS,
    after=CONTENTS,
    language=st.sampled_from(["english", "german", "simple"]),
)
def test_a_word_between_spaces_is_always_found(
    shared: Connection, word: str, before: str, after: str, language: str
) -> None:
    marked = snippet(shared, f"{before} {word} {after}", word, language)
    assert f"<mark>{word}</mark>" in marked


@pytest.mark.parametrize(
    ("query", "content", "expected"),
    [
        ("E-1042", "E-2001 and vitamin E, then E-1042", "E-2001 and vitamin E, then [E-1042]"),
        ("E-1042", "E-2001 and vitamin E", "E-2001 and vitamin E"),
        ("E-1042 e", "E-2001 and vitamin E", "[E]-2001 and vitamin [E]"),
        ("E-1042", "error E 1042", "error [E] [1042]"),
        ("E-1042", "error 1042", "error [1042]"),
        ("1.2.3", "1.2.4, then 1.2.3", "1.2.4, then [1.2.3]"),
        ("O'Reilly", "by O'Reilly", "by [O&#39;Reilly]"),
    ],
)
def test_a_short_part_of_a_compound_is_not_marked_elsewhere(
    knowledge: Connection, query: str, content: str, expected: str
) -> None:
    knowledge.execute("insert into public.knowledge_chunks (content) values (%s)", [content])
    row = knowledge.execute(
        "select snippet from public.hybrid_search_knowledge_chunks("
        "  query_text => %s, snippet => true)",
        [query],
    ).fetchone()
    assert row is not None
    assert row[0] == expected.replace("[", "<mark>").replace("]", "</mark>")


OUTAGE = "The power failed at noon and the lights went out. "
KEYS = "We rotate all keys of the doors each month. "
OTHER = "Nothing happened on that day, and nobody was surprised. "


def test_fragments_are_whole_sentences_in_text_order(shared: Connection) -> None:
    content = OTHER * 9 + OUTAGE + OTHER * 9 + KEYS + OTHER * 9
    marked = excerpt(shared, content, ["rotat", "power"], fragments=2)
    first, second = re.sub("</?mark>", "", marked).removeprefix("… ").split(" … ")
    assert "<mark>power</mark>" in marked
    assert "<mark>rotate</mark>" in marked
    assert OUTAGE.strip() in first
    assert KEYS.strip() in second
    for fragment in (first, second.removesuffix(" …")):
        assert fragment.startswith(("Nothing", "The", "We"))
        assert fragment.endswith(("surprised.", "out.", "month."))
        assert 100 < len(fragment) <= 160


def test_fragments_show_other_words_before_the_same_again(shared: Connection) -> None:
    content = OUTAGE + OTHER * 9 + OUTAGE + OTHER * 9 + KEYS
    two = excerpt(shared, content, ["power", "rotat"], fragments=2)
    assert (two.count("<mark>power"), two.count("<mark>rotate")) == (1, 1)
    three = excerpt(shared, content, ["power", "rotat"], fragments=3)
    assert (three.count("<mark>power"), three.count("<mark>rotate")) == (2, 1)


def test_fragments_that_meet_are_one(shared: Connection) -> None:
    content = (
        OTHER * 4 + OUTAGE + "Nothing at all happened there on that day. " * 2 + KEYS + OTHER * 4
    )
    marked = excerpt(shared, content, ["power", "rotat"], fragments=3)
    assert " … " not in shown(marked)
    assert marked.count("<mark>") == 2


def test_a_longer_sentence_is_whole_up_to_240_characters(shared: Connection) -> None:
    for length, is_whole in ((200, True), (400, False)):
        sentence = f"Here {'word ' * (length // 10)}power {'word ' * (length // 10)}ends."
        content = OTHER * 5 + sentence + " " + OTHER * 5 + KEYS
        marked = re.sub("</?mark>", "", excerpt(shared, content, ["power", "rotat"], fragments=2))
        assert (f"… {sentence} …" in marked) == is_whole


@pytest.mark.parametrize("stop", ["e.g. ", "4.30 "])
def test_a_sentence_does_not_end_within_it(shared: Connection, stop: str) -> None:
    sentence = f"Some devices, {stop}cameras, lose their power at night."
    content = OTHER * 9 + sentence + " " + OTHER * 9 + KEYS
    assert sentence in re.sub(
        "</?mark>", "", excerpt(shared, content, ["power", "rotat"], "english", 2)
    )


def test_sentences_without_spaces_between_them_are_found(shared: Connection) -> None:
    content = "今天没有事。" * 60 + "数据库全文检索很快。" + "今天没有事。" * 60 + "性能优化更好。"
    words = ["全文", "性能"]
    marked = re.sub("</?mark>", "", excerpt(shared, content, words, "simple", 2))
    first, second = marked.removeprefix("… ").split(" … ")
    assert "数据库全文检索很快。" in first
    assert first.startswith(("今天", "数据库"))
    assert second.endswith("性能优化更好。")


def test_a_text_that_begins_with_the_end_of_a_sentence_is_cut(shared: Connection) -> None:
    assert excerpt(shared, "。" * 500, [], fragments=3).startswith("。" * 200)


def test_one_place_or_a_short_content_is_one_excerpt(shared: Connection) -> None:
    marked = excerpt(shared, OTHER * 20 + KEYS + OTHER * 20, ["rotat"], fragments=3)
    assert 160 < len(shown(marked)) <= LONGEST
    assert shown(marked).endswith("surprised.")
    short = f"{OUTAGE}x {KEYS}".strip()
    assert shown(excerpt(shared, short, ["power", "rotat"], fragments=3)) == short


def test_the_search_returns_so_many_fragments(knowledge: Connection) -> None:
    content = OTHER * 9 + OUTAGE + OTHER * 9 + KEYS
    knowledge.execute("insert into public.knowledge_chunks (content) values (%s)", [content])
    shown_marks = []
    for snippets in (1, 2):
        row = knowledge.execute(
            "select snippet from public.hybrid_search_knowledge_chunks("
            "  query_text => 'power rotate', snippet => true, snippets => %s)",
            [snippets],
        ).fetchone()
        assert row is not None
        shown_marks.append(row[0].count("<mark>"))
    assert shown_marks == [1, 2]

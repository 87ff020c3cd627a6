"""What a query excludes: only what follows an ASCII hyphen, as a phrase, and told in the notes."""

from searching import numbers, search, searched, store

from conftest import Connection

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212\uff0d\ufe63\u05be\u2015"


def test_only_an_ascii_hyphen_excludes(knowledge: Connection) -> None:
    for content, query in (
        ("At {}5 degrees the pipes burst", "{}5 pipes"),
        ("Sales 2019{}2021 rose", "sales 2019 {}2021"),
        ("{} bullets are copied", "{}bullets copied"),
        ("he said {}well{} and went", "said {}well"),
        ("a drop of {}3.5 percent", "drop {}3.5"),
    ):
        for dash in DASHES:
            typed = query.replace("{}", dash)
            (row,) = searched(knowledge, typed, content.replace("{}", dash))
            assert row["notes"] is None, typed


def test_an_excluded_compound_is_excluded_as_a_phrase(knowledge: Connection) -> None:
    for content, query in (
        ("The term is long gone", "term -long-term"),
        ("We sold 10 kinds on 3 May, 2 of them new", "kinds -2.10.3"),
        ("code and notes of the source", "code -source-code"),
        ("mail the letter e by post", "post -e-mail"),
        ("the path of a user home", "path -home/user"),
        ("a name has a user", "name -user_name"),
        ("art of the state", "art -state-of-the-art"),
        ("1 of 000 units", "units -1,000"),
        ("the compiler reads a Java file with a script", "file -JavaScript"),
        ("\u68c0\u7d22 \u6587\u68c0 \u5168\u6587 file", "file -\u5168\u6587\u68c0\u7d22"),
    ):
        (row,) = searched(knowledge, query, content)
        assert row["notes"] == {"excluded": [query.split(" -")[1]]}


def test_what_is_excluded_is_left_out(knowledge: Connection) -> None:
    for content, excluded in (
        ("a long-term plan", "long-term"),
        ("a long term plan", "long-term"),
        ("a longterm plan", "long-term"),
        ("plan 2.10.3", "2.10.3"),
        ("plan AT&T", "AT&T"),
        ("plan user_name", "user-name"),
        ("plan of NVIDIA\u2122", "nvidia"),
        ("plan 1,000", "1000"),
        ("plan \u5168\u6587\u68c0\u7d22", "\u5168\u6587"),
        ("plan \u6211\u7231\u732b\u54aa", "\u732b"),
        ("plan for Java", "java"),
    ):
        rows = searched(knowledge, f"plan -{excluded}", content, "a plan")
        assert numbers(rows) == [2], content
        assert rows[0]["notes"] == {"excluded": [excluded]}


def test_the_notes_say_what_is_excluded(knowledge: Connection) -> None:
    store(knowledge, "rm removes")
    for query, notes in (
        ("rm -rf", {"excluded": ["rf"]}),
        ('rm -"no files" -x', {"excluded": ['"no files"', "x"]}),
        ("rm -the", {"dropped": ["-the"]}),
        ("rm - x", None),
        ("rm -rf now?", None),
        ("rm well-known", None),
        ("how do I run rm with -rf on the files", None),
    ):
        assert search(knowledge, query_text=query)[0]["notes"] == notes, query
    assert search(knowledge, query_text="rm", search_mode="simple")[0]["notes"] is None


def test_a_mark_that_nobody_sees_hides_no_operator(knowledge: Connection) -> None:
    store(knowledge, "a plan for Java", "a plan")
    for unseen in ("\u200e", "\u200f", "\u202a", "\ufeff", "\u2066"):
        assert numbers(search(knowledge, query_text=f"plan {unseen}-java")) == [2]
        assert numbers(search(knowledge, query_text=f"plan\u00a0-{unseen}java")) == [2]

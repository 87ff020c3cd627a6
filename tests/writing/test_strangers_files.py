"""Files as strangers write them: none is lost, none is read wrong without a word."""

import json
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from ingested import OF_A, outcomes, pdf, read, store, write

from conftest import Connection
from second_brain.errors import InvalidInputError
from second_brain.ingest import UnreadDocument, find_files, split
from second_brain.ingest.document import MAX_HEADING, LoadedDocument

TEXTS = {
    "windows-1251": "Привет, мир. Насосы и турбины работают ночью.",
    "koi8-r": "Привет, мир. Насосы и турбины работают ночью.",
    "iso-8859-2": "Zażółć gęślą jaźń. Książka o pompach i łąkach.",
    "windows-1250": "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "windows-1253": "Ένα έγγραφο για αντλίες και τουρμπίνες.",  # noqa: RUF001
    "windows-1252": "Größe der Tür: “die Maße” 5 €",
    "macintosh": "Größe der Tür: die Maße für Öl.",
    "shift_jis": "名前,都市\n山田,東京\n髙橋,①大阪",
    "iso-2022-jp": "検索します。鈴木さんは東京に住んでいます。",
    "euc-jp": "検索します。鈴木さんは東京に住んでいます。",
    "gbk": "数据库的备份每天夜里运行。",
    "big5": "資料庫備份每天夜間執行。請勿關機。",
    "euc-kr": "데이터베이스 백업은 매일 밤 실행됩니다.",
}
CODECS = {"macintosh": "mac-roman", "shift_jis": "cp932", "iso-8859-2": "iso8859-2"}


def says(document: LoadedDocument, words: str) -> bool:
    return any(words in note for note in document.notes)


@pytest.mark.parametrize("label", TEXTS)
def test_an_encoding_is_guessed_and_reported_or_taken_as_demanded(label: str) -> None:
    data = TEXTS[label].encode(CODECS.get(label, label))
    guessed = read("a.txt", data)
    assert guessed.text == TEXTS[label]
    assert says(guessed, "which is a guess")
    demanded = read("a.txt", data, encoding=label)
    assert (demanded.text, demanded.notes) == (TEXTS[label], ())
    page = f'<meta charset="{label}"><p>'.encode() + data.replace(b"\n", b"<br>")
    assert read("a.html", page).text == TEXTS[label]


@pytest.mark.parametrize("bad", [b"\xfc", b"\xe2\x82", b"\xff", b"\x80\x80"])
@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html", "a.csv", "a.rst"])
def test_a_few_bad_bytes_are_replaced_and_counted(name: str, bad: bytes) -> None:
    document = read(name, "Größe, Öl, Übermaß, Tür ".encode() * 3 + bad + b" end")
    assert "Größe" in document.text
    assert "\ufffd" in document.text
    assert says(document, "are not in the encoding utf-8")


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be", "utf-16", "utf-32", "utf-8-sig"])
def test_unicode_in_other_forms_is_read(name: str) -> None:
    text = "Größe der Tür, in several words\nand lines"
    assert read("a.txt", text.encode(name)).text == text


@pytest.mark.parametrize("label", ["none", "utf-9", "", "zlib", "base64"])
def test_an_unknown_encoding_is_refused_by_name(tmp_path: Path, label: str) -> None:
    with pytest.raises(InvalidInputError, match="encoding must be the name of one"):
        find_files([tmp_path], encoding=label)


def grid(rows: str) -> str:
    """Write a table of single characters; a space is an empty cell."""
    header, *others = ("| " + " | ".join(row) + " |" for row in rows.split("/"))
    rule = "| --- " * len(rows.split("/")[0]) + "|"
    return "\n".join([header, rule, *others]).replace("   ", " ")


HTML = {
    "<head><title>T</title><body><p>All of it.": "All of it.",
    "<title>T</title><link rel=x><div>All of it.</div>": "All of it.",
    "<ul><li>one<li>two<li>three</ul>": "* one\n* two\n* three",
    "<p>One<p>Two<h2>Three</h2>Four": "One\n\nTwo\n\n## Three\n\nFour",
    "<main id=app></main><div><p>Text.</div>": "Text.",
    "<main hidden><p>Loading</main><main><p>Text.</main>": "Text.",
    "<main>  <br></main><p>Text.": "Text.",
    "<main><p>Menu</main><main><p>All of the text.</main>": "All of the text.",
    "<details><summary>One</summary>Two</details>Three": "One\n\nTwo\n\nThree",
    "<form>One</form><aside>Two</aside><address>Three</address>": "One\n\nTwo\n\nThree",
    "<html xmlns='http://www.w3.org/1999/xhtml'><title/><script src='a'/><p>One <a/>two": "One two",
    "<b>O</b>nce <i>up</i>on": "Once upon",
    "re<code>set</code>ting": "resetting",
    "<b>O</b><i>nce</i> <a href>up</a><b>on</b> <i>a</i> <b>t</b><b>ime</b>": "Once upon *a* time",
    "<meta charset=unicode><p>Größe": "Größe",
    "<b><i>W</i></b>ord and <b>word</b>": "Word and **word**",
    "10<sup>6</sup>, m<sup>-2</sup>, 1<sup>st</sup>": "10^6, m^-2, 1st",
    "<ruby>漢<rt>かん</rt>字<rp>(</rp><rt>じ</rt></ruby>": "漢字",
    "<math><msup><mi>x</mi><mn>2</mn></msup><mfrac><mn>1</mn><mn>3</mn></mfrac></math>": "x^21/3",
}
TABLES = {
    "<tr><th>A<th>B<tr><td>1<td>2": "AB/12",
    "<tr><th>A<th>B<tr><td rowspan=2>x<td>1<tr><td>2": "AB/x1/x2",
    "<tr><th>A<th>B<tr><td>1<td rowspan=3>y<tr><td>2<tr><td>3": "AB/1y/2y/3y",
    "<thead><tr><th>A<th>B<tfoot><tr><td>3<td>4<tbody><tr><td>1<td>2": "AB/12/34",
    "<tr><th>A<th>B<tbody><tr><td>1<td>2<tbody><tr><td>3<td>4": "AB/12/34",
    "<tr><th colspan=2>A<th>B<tr><td rowspan=0>x<td>1<td>2<tr><td>3<td>4": "A B/x12/x34",
}


def test_html_is_read_as_browsers_read_it() -> None:
    assert {html: read("a.html", f"<!doctype html>{html}").text for html in HTML} == HTML


def test_the_cells_of_a_table_stand_where_browsers_show_them() -> None:
    found = {rows: read("a.html", f"<table>{rows}</table>").text for rows in TABLES}
    assert found == {rows: grid(expected) for rows, expected in TABLES.items()}


@pytest.mark.parametrize("tag", ["div", "b", "ul><li", "blockquote", "span"])
def test_deep_nesting_loses_no_words(tag: str) -> None:
    document = read("a.html", f"<p>first</p>{f'<{tag}>' * 3000}deep<p>second")
    assert {"first", "deep", "second"} <= set(document.text.replace("*", " ").split())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", '""' * 60_000),
        ("a.md", "![](data:" * 60_000),
        ("a.md", "![" * 30_000),
        ("a.md", "<script>" * 20_000),
        ("a.mdx", "{/*" * 30_000),
        ("a.html", f"<p {' '.join(f'a{number}' for number in range(50_000))}>text"),
        ("a.html", f"{'<div>' * 10_000}text"),
        ("a.html", f"{'<table><tr><td>' * 1_000}text"),
        ("a.html", f"{'<nav>' * 1_500}<main>text"),
    ],
)
def test_the_time_does_not_grow_with_the_square_of_the_length(name: str, content: str) -> None:
    start = time.process_time()
    assert split(read(name, content))
    assert time.process_time() - start < 5


def test_a_table_of_merged_cells_does_not_grow_without_bound() -> None:
    row = f"<tr>{'<td rowspan=65534 colspan=1000>x' * 50}</tr>"
    assert len(read("a.html", f"<table>{row}{'<tr></tr>' * 200}</table>").text) < 5_000_000


MARKDOWN = {
    "a ![x](data:image/png;base64,{}) b": "a x b",
    "a ![][i] b\n\n[i]: <data:image/png;base64,{}>\n": "a ![][i] b\n\n",
    'a <img src="data:image/gif;base64,{}" alt="x"> b': "a  b",
    "a <!-- internal\n\n# no --> b": "a  b",
    "<script setup>\nlet a = '<b>'\n</script>\n\ntext<style>.a {}</style >": "\n\ntext",
    '<p align="center">a <b>b</b></p>': "a b",
}
KEPT = [
    "`<b>` stays\n\n```html\n<!-- this too -->\n<p>\n```",
    "    <!-- and this -->\n",
    "<!-- not closed\n\ntext",
    "a <https://example.org> and 3 < 4 > 2 and List<String>",
]


def test_pictures_comments_and_tags_of_markdown_are_no_text() -> None:
    expected = MARKDOWN | dict.fromkeys(KEPT, "")
    found = {one: read("a.md", one.replace("{}", "iVBORw0KGgo" * 900)).text for one in expected}
    assert found == MARKDOWN | {one: one for one in KEPT}


SECOND = date(2024, 1, 2)


@pytest.mark.parametrize(
    ("front", "title", "author", "day", "kept"),
    [
        ("title: Keys\ntags: [ops, keys]", "Keys", None, None, {"tags": ["ops", "keys"]}),
        ("author: [Ann, Ben]\ndate: 2024/01/02", "Plan", "Ann, Ben", SECOND, {}),
        ("author: {name: Ann}\ndate: Jan 2, 2024", "Plan", "Ann", SECOND, {}),
        ("author: [{name: Ann}, Ben]\ndate: 2 January 2024", "Plan", "Ann, Ben", SECOND, {}),
        ("author: 7\ndate: 01/02/2024", "Plan", None, None, {"author": 7, "date": "01/02/2024"}),
        ("author: &a Ann\neditor: *a", "Plan", "Ann", None, {"editor": "Ann"}),
        ("date: Tue, 02 Jan 2024 10:00:00 +0000", "Plan", None, SECOND, {}),
        ("date: 2024-01-02", "Plan", None, SECOND, {}),
        ("title: 2024\ndraft: true", "2024", None, None, {"draft": True}),
    ],
)
def test_front_matter_is_understood_or_kept(
    front: str, title: str, author: str | None, day: date | None, kept: dict[str, object]
) -> None:
    document = read("a.md", f"---\n{front}\n---\n# Plan {{#plan}}\n\ntext\n")
    assert (document.title, document.author, document.document_date) == (title, author, day)
    assert document.metadata == {**kept, **OF_A}
    assert document.text == "# Plan {#plan}\n\ntext\n"
    assert split(document)[0].heading.endswith("Plan")


def test_front_matter_in_toml_is_read() -> None:
    toml = '+++\ntitle = "Plan"\ndate = 2024-01-02\ntags = ["a"]\n+++\ntext\n'
    document = read("a.md", toml)
    assert (document.title, document.document_date) == ("Plan", date(2024, 1, 2))
    assert (document.text, document.metadata["tags"]) == ("text\n", ["a"])


def test_components_in_markdown_are_no_text_and_code_stays() -> None:
    code = "```js\nimport z from 'z'\n<Tag/>\n```\n"
    mdx = "import X from './x'\n\nexport const y = {\n  a: 1\n}\n\n# <Badge/>Keys\n\n"
    document = read("a.mdx", f"{mdx}<Note type={{1}}>Rotate.</Note>\n\n{{/* no */}}\n{code}")
    assert document.title == "Keys"
    assert "Rotate." in document.text
    assert not any(one in document.text for one in ("'./x'", "export", "Note", "{/*"))
    assert "import z from 'z'\n<Tag/>" in document.text


def test_a_notebook_is_its_texts_and_its_code() -> None:
    text = ["# Load\n", "\n", "the ![](data:image/png;base64,aa)"]
    output = {"data": {"image/png": "A" * 9999}}
    cells = [
        {"cell_type": "markdown", "source": text},
        {"cell_type": "code", "source": "x = 1", "outputs": [output]},
        {"cell_type": "raw", "source": []},
        {"cell_type": "code", "source": None},
        "no cell",
    ]
    book = {"cells": cells, "metadata": {"kernelspec": {"name": "python3"}}}
    document = read("a.ipynb", json.dumps(book))
    assert says(document, "its cell 5 is left out")
    assert document.title == "Load"
    assert document.text == "# Load\n\nthe \n\n```python3\nx = 1\n```"


OPEN = ".. py:function:: open(file)\n   :async:\n\n   Opens.\n\n   .. code-block:: c\n\n"
DIRECTIVES = {
    ".. code-block:: python\n   :caption: a\n\n   def f():\n       return 1": "f():\n    ",
    ".. code:: python\n   :emphasize-lines: 2\n\n   x = 1\n\n   y = 2": "x = 1\n\ny = 2",
    f"{OPEN}      a\n        b": "open(file)\n\nOpens.\n\n```\na\n  b\n```",
    ".. toctree::\n   :maxdepth: 2\n\n   intro\n   usage\n\nText.": "Text.",
    ".. raw:: html\n\n   <b>x</b>\n\nText.": "Text.",
    ".. versionadded:: 3.1\n   The option *z*.": "3.1",
}


@pytest.mark.parametrize("source", DIRECTIVES)
def test_directives_of_sphinx_keep_their_text_and_code(source: str) -> None:
    document = read("a.rst", f"Title\n=====\n\n{source}\n")
    assert DIRECTIVES[source] in document.text
    words = (":caption:", ":async:", ":maxdepth:", "intro", "html", "emphasize", "python")
    assert not any(word in document.text for word in words)


CSV = {
    "sep=;\nA;B\n1;2,5\n": "| A | B |\n| --- | --- |\n| 1 | 2,5 |",
    "# Report\n\nA,B\n1,2\n": "Report\n\n" + grid("AB/12"),
    "Of,2024\n\nA,B,C\n1,2,3\n": "Of 2024\n\n" + grid("ABC/123"),
    "# a, b\nA,B,C\n1,2,3\n": "a b\n\n" + grid("ABC/123"),
    "#,B\n1,2\n": grid("#B/12"),
    "A\n1\n2\n": grid("A/1/2"),
    "A,B\n1,2,3\n4,5,6\n": "| A | B |  |\n| --- | --- | --- |\n| 1 | 2 | 3 |\n| 4 | 5 | 6 |",
}


def test_the_header_of_a_csv_file_is_found() -> None:
    assert {csv: read("a.csv", csv).text for csv in CSV} == CSV


@pytest.mark.parametrize(
    ("name", "content", "end", "said"),
    [
        ("a.rst", "T\n=\n\n" + "`a " * 4000, "`a ", "a line of more than 10,000 characters"),
        ("a.rst", "\n".join(f"{' ' * n}- a" for n in range(300)), "- a", "nested too deeply"),
        ("a.csv", 'A,B\n1,"x\n2,y\n', "| 1 | x 2,y |", "a quotation mark is not closed"),
    ],
)
def test_what_cannot_be_read_as_it_is_meant_is_no_loss(
    name: str, content: str, end: str, said: str
) -> None:
    document = read(name, content)
    assert document.text.endswith(end)
    assert says(document, said)
    assert document.is_markdown == (name == "a.csv")


def records(path: Path, *lines: dict[str, Any], encoding: str = "utf-8") -> list[UnreadDocument]:
    text = "\n".join(json.dumps(one, ensure_ascii=False) for one in lines)
    return find_files([write(path / "a.jsonl", text.encode(encoding))], source="s").documents


def test_what_a_record_says_about_itself_is_understood_or_kept(tmp_path: Path) -> None:
    found = records(
        tmp_path,
        {"id": "ä", "text": None, "content": "a", "title": ["b"], "date": 7, "metadata": None},
        {"id": "ö", "text": "b", "title": 2024, "author": [{"name": "Ann"}, "Ben"]},
        {"id": 1.5, "page_content": "c", "a\0": ["b\0"]},
        encoding="cp1252",
    )
    third, first, second = (one.load() for one in found)
    assert (first.text, first.title) == ("a", "a ä")
    assert {"title": ["b"], "date": 7}.items() <= first.metadata.items()
    assert (second.title, second.author) == ("2024", "Ann, Ben")
    assert (third.text, {"id": 1.5, "a": ["b"]}.items() <= third.metadata.items()) == ("c", True)


def test_records_without_an_id_make_room_for_those_with_one(tmp_path: Path) -> None:
    found = records(
        tmp_path, {"text": "a"}, {"id": "1", "text": "b"}, {"id": 2, "text": "c"}, {"text": "d"}
    )
    assert sorted(one.load().text for one in found) == ["a", "b", "c", "d"]
    assert {one.external_key for one in found} >= {"s:a.jsonl/1", "s:a.jsonl/2", "s:a.jsonl/4"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", "<h1>Guide<p>" + "Turbines run at night. " * 900),
        ("a.md", "Turbines run. " * 900 + "\n---\n\nend"),
        ("a.md", "# " + "Turbines run. " * 900),
        ("a.md", f"---\ntitle: {'long ' * 9000}\n---\ntext"),
        ("a.rst", f"{'long ' * 900}\n{'=' * 4500}\n\ntext"),
        ("a.jsonl", json.dumps({"title": "long " * 900, "text": "text"})),
        ("a.pdf", pdf("text", bookmarks=[("long " * 90, 1)], title="long " * 90)),
    ],
)
def test_a_heading_has_a_longest_length(name: str, content: str | bytes) -> None:
    chunks = split(read(name, content))
    assert max(len(chunk.heading) for chunk in chunks) <= 2 * MAX_HEADING + 3
    assert max(len(chunk.content) for chunk in chunks) < 4_000
    assert all(chunk.content.strip() for chunk in chunks)


def test_whatever_a_document_does_the_others_are_stored(
    tmp_path: Path, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("latin\udcfcname.md", "line\nfeed\x1b.md"):
        write(tmp_path / name, "no heading")
    for name, text in (("a", "# A\n\nfine"), ("c", "breaks the splitter"), ("z", "# Z\n\nfine")):
        write(tmp_path / f"{name}.md", text)

    def breaking(document: LoadedDocument, *rest: object) -> object:
        if "breaks" in document.text:
            raise IndexError("list index out of range")
        return split(document)

    monkeypatch.setattr("second_brain.ingest.pipeline.split", breaking)
    reports = store(database, find_files([tmp_path], source="s"))
    assert [key for key, one in outcomes(reports).items() if one == "failed"] == ["s:c.md"]
    assert "list index out of range" in str(reports["s:c.md"].error)
    titles = database.execute("select title from public.knowledge_documents").fetchall()
    assert {title for (title,) in titles} == {"A", "Z", "latin\\xfcname", "line feed"}

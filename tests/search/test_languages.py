"""How text becomes words: writing without spaces, languages, what looks the same, headings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from searching import MODES, numbers, search, searched, store

from conftest import Connection
from second_brain.ingest import Labels, detect_language, find_files, ingest


def answers(knowledge: Connection, query: str, mode: str = "websearch") -> list[int]:
    return numbers(search(knowledge, query_text=query, search_mode=mode))


UNSPACED = {
    "Chinese": ("数据库全文检索的性能优化。", "如何备份服务器上的文件。", "全文检索", "检索全文"),
    "Japanese": ("東京タワーへ行く電車の時刻表", "データの設計を学ぶ", "タワーへ", "へタワー"),
    "Thai": ("ภาษาไทยเป็นภาษาราชการ", "กรุงเทพมหานครเป็นเมืองหลวง", "เป็นภาษา", "ภาษาเป็น"),
    "Lao": ("ພາສາລາວເປັນພາສາທາງການ", "ວຽງຈັນແມ່ນນະຄອນຫຼວງ", "ເປັນພາສາ", "ພາສາເປັນ"),
    "Khmer": ("ភាសាខ្មែរជាភាសាផ្លូវការ", "រាជធានីភ្នំពេញធំណាស់", "ខ្មែរជា", "ជាខ្មែរ"),
    "Burmese": ("မြန်မာဘာသာစကားကိုပြောသည်", "ရန်ကုန်မြို့ကြီး", "ဘာသာစကား", "စကားဘာသာ"),
    "Korean": ("학교에서 한국어를 배웁니다", "데이터베이스를 설계합니다", "한국어", "어한국"),
}
"""A text, another one, a part of the first, and the part's pieces in an order it does not have."""


def test_a_part_of_writing_without_spaces_is_found(knowledge: Connection) -> None:
    for text, other, part, turned in UNSPACED.values():
        with knowledge.transaction(force_rollback=True):
            store(knowledge, other, text)
            for mode in MODES:
                rows = search(knowledge, query_text=part, search_mode=mode)
                assert numbers(rows)[0] == 2, (part, mode)
                assert rows[0]["matched_terms"] == [part]
                assert answers(knowledge, text, mode)[0] == 2
            # A phrase has its letters in order.
            assert answers(knowledge, part, "phrase") == answers(knowledge, f'"{part}"') == [2]
            assert answers(knowledge, turned, "phrase") == []


def test_the_language_of_a_chunk_does_not_matter_to_pairs(knowledge: Connection) -> None:
    for language in ("english", "simple", "zh"):
        row = {"content": "数据库全文检索", "language": language}
        assert numbers(searched(knowledge, "全文检索", row)) == [1]


def test_one_character_is_found_inside_a_run(knowledge: Connection) -> None:
    store(knowledge, "我的狗喜欢食物", "我爱猫咪", "오늘은 집에서 쉽니다")
    for query, found in (("猫", 2), ("狗", 1), ("집", 3), ("食", 1), ("-猫 我", 1)):
        assert answers(knowledge, query) == [found]


def test_chinese_that_shares_more_with_the_query_ranks_higher(knowledge: Connection) -> None:
    store(knowledge, "天气预报。上海今天有雨", "北京的历史很长", "北京今天天气很好")
    assert answers(knowledge, "北京今天天气怎么样")[0] == 3


def test_words_of_other_scripts_inside_a_run_are_words(knowledge: Connection) -> None:
    chinese = "在PostgreSQL数据库中使用DS-7604"
    store(knowledge, "新しいiPhone15の使い方", chinese, "the iPhone manual")
    assert answers(knowledge, "iphone15") == [1, 3]
    assert set(answers(knowledge, "iPhone")) == {3}
    assert answers(knowledge, "postgresql 数据库", "simple") == [2]
    assert answers(knowledge, '"PostgreSQL数据库"') == [2]
    assert answers(knowledge, "DS 7604") == [2]


ARABIC = "المنازل القديمة في المدينة جميلة"


def test_arabic_is_stemmed_when_it_is_stored_as_arabic(knowledge: Connection) -> None:
    weather = {"content": "الطقس اليوم مشمس", "language": "arabic"}
    store(knowledge, {"content": ARABIC, "language": "ar"}, weather)
    # "City" without and with the article that the text has.
    assert answers(knowledge, "مدينة") == answers(knowledge, "المدينة") == [1]


def test_german_and_english_are_read_each_in_its_own_way(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "Rechnungen werden bezahlt", "language": "german"},
        {"content": "invoices are paid", "language": "english"},
        {"content": "die Datenbank-Sicherung der E-Mail-Adressen", "language": "german"},
    )
    assert answers(knowledge, "Rechnung") == [1]
    assert answers(knowledge, "invoice") == [2]
    assert set(answers(knowledge, "invoice Rechnung")) == {1, 2}
    for query in ("Datenbank-Sicherung", "Datenbanksicherung", "datenbank sicherung", "E-Mail"):
        assert answers(knowledge, query) == [3]


def test_what_looks_the_same_is_the_same(knowledge: Connection) -> None:
    for content, query in (
        ("cafe\u0301 au lait", "caf\u00e9"),
        ("caf\u00e9 au lait", "cafe\u0301"),
        ("\uff24\uff33\uff0d\uff17\uff16\uff10\uff14", "DS-7604"),
        ("DS-7604", "\uff24\uff33\uff17\uff16\uff10\uff14"),
        ("\uff83\uff9e\uff70\uff80", "\u30c7\u30fc\u30bf"),
        ("the \ufb01le", "file"),
        ("DS\u20117604", "DS7604"),
        ("Donau\u00addampf", "Donaudampf"),
        ("l\u2019homme", "l'homme"),
        ("in C++11 and later", "C++"),
        ("the C# language", "c#"),
        ("for .NET Core", "dotnet"),
        ("a budget of 1,000,000", "1000000"),
        ("the getUserName call", "getusername"),
        ("the getUserName call", "user name"),
        ("the getUserName call", '"user name"'),
        ("at 192.168.1.10 now", "192.168.1.10"),
        ("see https://example.com/a?user=joe&next=home%20page#top", "joe"),
        ("commit 9e12ab77", "9e12ab77"),
        ("the l'homme d'affaires", "affaires"),
    ):
        with knowledge.transaction(force_rollback=True):
            store(knowledge, content, "C and the net, 8, 000")
            for mode in ("websearch", "simple"):
                (row,) = search(knowledge, query_text=query, search_mode=mode)
                assert row["id"].int == 1, query
                assert row["matched_terms"]


def test_c_is_neither_c_plus_plus_nor_c_sharp(knowledge: Connection) -> None:
    store(knowledge, "C++ code", "C# code", "C code")
    assert [answers(knowledge, query) for query in ("C++", "C#", "C")] == [[1], [2], [3]]
    assert answers(knowledge, "code -C") == [1, 2]


def test_a_word_of_the_heading_counts_more_than_one_of_the_content(knowledge: Connection) -> None:
    headings = [{"heading": "Tea", "content": "coffee"}, {"heading": "Coffee", "content": "tea"}]
    store(knowledge, *headings)
    assert [answers(knowledge, query) for query in ("coffee", "tea")] == [[2, 1], [1, 2]]


def test_a_heading_is_no_phrase_with_itself(knowledge: Connection) -> None:
    store(knowledge, {"heading": "green lake", "content": "a deep one"})
    assert answers(knowledge, '"green lake"') == [1]
    assert answers(knowledge, "lake green", "phrase") == []


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The houses of the town are old and grey, and nobody lives there.", "english"),
        ("Die Häuser der Stadt sind alt und grau, und niemand wohnt dort.", "de"),
        ("Les maisons de la ville sont vieilles et personne n'y habite.", "fr"),
        ("这座城市的房子又老又旧、没有人住在那里。", "zh"),
        ("東京タワーへ行く電車の時刻表", "ja"),
        ("ภาษาไทยเป็นภาษาราชการ", "th"),
        ("학교에서 한국어를 배웁니다", "ko"),
        (ARABIC, "ar"),
        *((undecided, "english") for undecided in ("", "1.2.3", "def f(x): return x")),
    ],
)
def test_a_language_is_detected_from_the_text(text: str, language: str) -> None:
    assert detect_language(text) == language


class Constant:
    """Gives every text the same vector."""

    dimensions = 3
    model = "constant"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vector once for each text."""
        return np.tile(np.array([1, 0, 0], np.float32), (len(texts), 1))


@pytest.mark.parametrize(
    ("language", "languages"),
    [
        (None, ["english", "english"]),
        ("german", ["german", "german"]),
        ("auto", ["de", "english"]),
    ],
)
def test_documents_are_ingested_in_the_language_asked_for(
    database: Connection, tmp_path: Path, language: str | None, languages: list[str]
) -> None:
    (tmp_path / "a.md").write_text("# Häuser\n\nDie Häuser der Stadt sind alt und grau.")
    (tmp_path / "b.md").write_text("# Houses\n\nThe houses of the town are old and grey.")
    found = find_files([tmp_path]).documents
    labels = Labels(language=language) if language else Labels()
    reports: list[Any] = list(ingest(found, database, Constant(), labels))
    assert [report.outcome for report in reports] == ["stored", "stored"]
    stored = database.execute(
        "select chunk.language from public.knowledge_chunks as chunk"
        "  join public.knowledge_documents as document on document.id = chunk.document_id"
        " order by document.external_key"
    )
    assert [language for (language,) in stored] == languages
    assert (numbers(search(database, query_text="Haus")) != []) == (languages[0] != "english")

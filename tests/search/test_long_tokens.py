"""Texts of one long token, or of one character again and again, take no longer than others."""

import base64
import random
from itertools import islice, repeat

import psycopg
import pytest
from searching import search

from conftest import Connection

pytestmark = pytest.mark.module("words")

LENGTH = 100_000
# The slowest shape takes 0.1 s of CPU. The limit is for a machine under load; with time that is
# quadratic in the length, these shapes take minutes.
LIMIT = "set statement_timeout = '5s'"

UNITS = (
    *("a_", "ab_", "1_", "a_b-", "snake_case_name_", "a.", "a.b-c_", "1.", "1.2-", "a-", "a1_"),
    *("a@", "a@b.c_", "joe.doe@example.com,", "http://example.com/a/b?c=d&e=f#", "a://", "www."),
    *("/a", "/usr/local/share_x", "C:\\Users\\a_b\\", "a:", "std::vector_", "~/a_b", "a%20"),
    *("c++", "a#", "<a", "<a href=x_y>", "<!--a_", "a&b", "a[0]_", '{"a_b":"c-d",', "a_b=c&"),
    *("a'b", "l\u2019a", "a", "A", "getUserName", "1", "0xdeadbeef", "-1", "1,000", "_", ".", "-"),
    *(
        "a ",
        "a_\t",
        "漢字",
        "かな",
        "น้ำดื่ม",
        "한글",
        "👩‍👩‍👧",
        "😀",
        "a\u0301",
        "\u0301",
        "مَكْتَبَة",
        "שָׁלוֹם",
    ),
    *("a\u200cb", "é_", "ж_", "\uff41\uff3f\uff42", "ﬁ_", "हिन्दी", "a\u2013b_", "2½", "a™"),
)


def drawn(letters: str) -> str:
    return "".join(random.Random(1).choices(letters, k=LENGTH))


SHAPES = {
    **{unit: "".join(islice(repeat(unit), LENGTH // len(unit))) for unit in UNITS},
    "base64": base64.b64encode(random.Random(1).randbytes(LENGTH)).decode()[:LENGTH],
    "base64 of addresses": base64.urlsafe_b64encode(random.Random(1).randbytes(LENGTH)).decode(),
    "letters": drawn("abcdefghijklmnopqrstuvwxyz"),
    "signs": drawn("ab1._-@:/"),
    "scripts": drawn("äбγ漢 _-.1a"),
}


def test_the_words_of_a_text_of_any_shape_are_found_in_a_moment(shared: Connection) -> None:
    slow = []
    with shared.transaction(force_rollback=True):
        shared.execute(LIMIT)
        words_of = "select count(*) from knowledge_internal.words_of(null, %s)"
        for name, text in SHAPES.items():
            try:
                with shared.transaction():
                    shared.execute(words_of, [text])
            except psycopg.errors.QueryCanceled as error:
                slow.append((name, error))
    assert slow == []
    assert len(SHAPES) > 60


@pytest.mark.parametrize("unit", ["a_", "ab_ab_", "1_", "a_b-", "snake_case_name_", "漢字", "a.b_"])
def test_a_long_token_is_stored_and_searched_beside_a_misspelt_word(
    knowledge: Connection, unit: str
) -> None:
    knowledge.execute(LIMIT)
    knowledge.execute(
        "insert into public.knowledge_chunks (content) select left(repeat(%s, 100000), 40000)"
        " || ' quixotronics quixotronic' from generate_series(1, 3)",
        [unit],
    )
    ((content, notes),) = [
        (row["content"], row["notes"])
        for row in search(knowledge, query_text="quixotronisc", match_count=1)
    ]
    assert content.endswith(" quixotronics quixotronic")
    assert notes["replaced"] == {"quixotronisc": "quixotronic"}


@pytest.mark.parametrize("content", ["my_flies", "flies.csv", "x/flies/y", "flies-eat", "Flies"])
def test_a_word_within_a_compound_is_kept_while_a_chunk_has_it(
    database: Connection, content: str
) -> None:
    insert = "insert into public.knowledge_chunks (content) values (%s) returning id"
    ((first,),) = database.execute(insert, ["Time flies"]).fetchall()
    ((second,),) = database.execute(insert, [content]).fetchall()
    known = "select count(*) from public.knowledge_words where word = 'flies'"
    delete = "delete from public.knowledge_chunks where id = %s"
    database.execute(delete, [first])
    assert database.execute(known).fetchall() == [(1,)]
    assert search(database, query_text="fliees")[0]["notes"]["replaced"] == {"fliees": "flies"}
    database.execute(delete, [second])
    assert database.execute(known).fetchall() == [(0,)]

"""What the database stores of the text and the embedding of a chunk, for searches."""

import pytest

from conftest import Connection
from support.documents import upsert

# Their hashes agree in the 29 bits that are the dimension.
SAME_DIMENSION = "cbdckdxq", "cmhdbjxq"
FILL = "insert into public.knowledge_chunks (language, content) values ('simple', %s)"
WEIGHTS = """
select lexeme,
       -(bm25 operator(extensions.<#>)
           knowledge_internal.lexeme_vector(array[lexeme], array[1.0]))
  from public.knowledge_chunks, unnest(%s::text[]) as lexeme
"""
LENGTH_FACTOR = """
select -(bm25 operator(extensions.<#>) '{536870912:1}/536870912') from public.knowledge_chunks
"""


def test_lexemes_of_one_dimension_add_their_weights(database: Connection) -> None:
    database.execute(FILL, [" ".join((*SAME_DIMENSION, "kettle", "kettle", "lid"))])
    found: dict[str, float] = dict(
        database.execute(WEIGHTS, [[*SAME_DIMENSION, "kettle", "lid"]]).fetchall()
    )
    # A chunk of the mean length: k1 = 1.2.
    assert found["lid"] == pytest.approx(1)
    assert found["kettle"] == pytest.approx(2 * 2.2 / (2 + 1.2))
    assert [found[lexeme] for lexeme in SAME_DIMENSION] == pytest.approx([2, 2])
    assert database.execute(LENGTH_FACTOR).fetchall() == [(pytest.approx(1.2),)]


def test_a_text_of_more_words_than_a_sparsevec_can_hold_keeps_the_heaviest(
    database: Connection,
) -> None:
    database.execute(FILL, ["kettle kettle " + " ".join(f"a{n}z" for n in range(16_001))])
    found: dict[str, float] = dict(database.execute(WEIGHTS, [["kettle"]]).fetchall())
    assert found["kettle"] > 1
    assert database.execute(LENGTH_FACTOR).fetchall() == [(pytest.approx(1.2),)]


def test_inner_words_do_not_count_in_the_length(database: Connection) -> None:
    database.execute(FILL, ["AB12345 shelf"])
    ((lexemes, length),) = database.execute(
        "select tsvector_to_array(content_tsv), text_length from public.knowledge_chunks"
    ).fetchall()
    assert {"ab12345", "12345", "shelf"} <= set(lexemes)
    assert length == 2


def test_a_chunk_is_analysed_again_only_when_text_or_embedding_changes(
    database: Connection,
) -> None:
    database.execute("insert into public.knowledge_chunks (content) values ('kettle')")
    read = "select embedding_bits::text, content_tsv::text from public.knowledge_chunks"

    def updated(change: str) -> tuple[str | None, str]:
        database.execute(f"update public.knowledge_chunks set {change}".encode())
        ((bits, lexemes),) = database.execute(read).fetchall()
        return bits, lexemes

    none, kettle = updated("chunk_index = 1")
    assert none is None
    up, _ = updated("embedding = '[1, 1, 1]'")
    assert up is not None
    assert up[:3] == "111"
    # What somebody writes into these columns is not kept.
    written = "metadata = '{\"a\": 1}', embedding_bits = b'01', content_tsv = 'lid'"
    assert updated(written) == (up, kettle)
    down, lid = updated("embedding = '[-1, -1, -1]', content = 'lid'")
    assert down is not None
    assert down[:3] == "000"
    assert lid != kettle
    assert updated("embedding = null")[0] is None


@pytest.mark.module("words")
def test_the_words_of_chunks_that_are_written_together_are_those_of_each(
    database: Connection,
) -> None:
    texts = ["The kettle, the lid", "Kettle\n(copper) lid. x1 re-use", "CAFÉ kettle/lid 2024"]
    database.execute(
        "insert into public.knowledge_chunks (heading, content)"
        " select 'On tea', unnest(%s::text[])",
        [texts],
    )
    database.execute("insert into public.knowledge_chunks (content) values ('lid handle')")
    words = "knowledge_internal.words_of(chunk.heading, chunk.content)"
    stored = database.execute(
        f"select known.word, known.word in (select {words}) from public.knowledge_words as known"
        "  join public.knowledge_chunks as chunk on chunk.id = known.chunk_id order by 1".encode()
    ).fetchall()
    expected = "café copper handle kettle lid on re tea the use"
    assert stored == [(word, True) for word in expected.split()]


@pytest.mark.module("field_weights")
@pytest.mark.parametrize(("old", "new"), [(0, 2), (2, 0)])
def test_a_title_is_searched_by_the_weight_of_its_new_collection(
    knowledge: Connection, old: int, new: int
) -> None:
    upsert(knowledge, "doc", "zebra", title="First")
    weigh = "select public.set_knowledge_fields(%s, title_weight => %s)"
    for collection, weight in (("knowledge", old), ("other", new)):
        knowledge.execute(weigh, [collection, weight])
    knowledge.execute("update public.knowledge_chunks set content_tsv = null")
    knowledge.execute(
        "update public.knowledge_documents set title = 'Okapis', collection = 'other'"
    )
    found = knowledge.execute("select content_tsv @@ 'okapi' from public.knowledge_chunks")
    assert found.fetchall() == [(new > 0,)]

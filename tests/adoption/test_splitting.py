"""Contents that are split, in the database, when they are carried over."""

import pytest
from adopted import GUIDE, adopt, compare, documents
from hypothesis import given
from hypothesis import strategies as st

from conftest import Connection
from support.properties import tried

pytestmark = pytest.mark.module("adoption")

TEXTS = st.text(alphabet=st.sampled_from("ab  .!?\n\t。é中😀'\\%"), max_size=2500) | st.text(
    alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])
)


def split(connection: Connection, text: str, size: int, overlap: int = 0) -> list[str]:
    (found,) = connection.execute(
        "select knowledge_internal.split_text(%s, %s, %s)", [text, size, overlap]
    ).fetchone() or ([],)
    return list(found)


@given(text=TEXTS, size=st.integers(100, 400))
@tried(60)
def test_the_parts_together_are_the_text(knowledge: Connection, text: str, size: int) -> None:
    parts = split(knowledge, text, size)
    assert "".join(parts) == text
    assert all(0 < len(part) <= size for part in parts) or parts == [""]


@given(text=TEXTS, size=st.integers(100, 400), share=st.floats(0, 0.5))
@tried(60)
def test_with_an_overlap_each_part_continues_within_the_one_before(
    knowledge: Connection, text: str, size: int, share: float
) -> None:
    overlap = int(size * share)
    parts = split(knowledge, text, size, overlap)
    assert all(len(part) <= size for part in parts)
    end = 0
    for part in parts:
        begins = [
            place
            for place in range(max(0, end - overlap), end + 1)
            if text.startswith(part, place) and place + len(part) >= end
        ]
        assert begins, "a part is not in the text after the one before"
        end = max(begins) + len(part)
    assert end == len(text)


def test_a_text_is_split_at_the_largest_break(knowledge: Connection) -> None:
    sentence = "A sentence of words. " * 4
    assert split(knowledge, f"{sentence}\n\n{sentence}", 120) == [f"{sentence}\n\n", sentence]
    assert split(knowledge, sentence * 2, 120)[0] == "A sentence of words. " * 5
    assert split(knowledge, "word " * 40, 102)[0] == "word " * 20
    assert split(knowledge, "x" * 250, 100) == ["x" * 100, "x" * 100, "x" * 50]


@pytest.fixture
def source(database: Connection) -> Connection:
    database.execute(GUIDE)
    adopt(database, chunk_size=100, chunk_overlap=20)
    return database


def test_a_long_content_is_split_in_the_same_transaction(source: Connection) -> None:
    words = " ".join(f"w{number}" for number in range(100))
    source.execute(
        "insert into public.documents (title, content, embedding)"
        " values ('Long', %s, '[1,0,0]'), ('Short', 'w1', '[0,1,0]')",
        [words],
    )
    long, short = documents(source).values()
    assert len(long["chunks"]) > 4
    assert {chunk["embedding"] for chunk in long["chunks"]} == {None}
    assert [chunk["embedding"] for chunk in short["chunks"]] == ["[0,1,0]"]
    assert compare(source).differences == 0


def test_unchanged_parts_keep_their_embedding(source: Connection) -> None:
    paragraphs = [f"{name * 20} " * 3 + "\n\n" for name in ("a", "b", "c")]
    source.execute("insert into public.documents (content) values (%s)", ["".join(paragraphs)])
    source.execute(
        "update public.knowledge_chunks set embedding = '[1,1,1]', embedding_model = 'm'"
    )
    source.execute("update public.documents set title = null, metadata = '{\"a\": 1}'")
    (row,) = documents(source).values()
    assert {chunk["embedding"] for chunk in row["chunks"]} == {"[1,1,1]"}
    source.execute(
        "update public.documents set content = replace(content, %s, 'New. ')", ["c" * 20]
    )
    (row,) = documents(source).values()
    assert row["chunks"][0]["embedding"] == "[1,1,1]"
    assert row["chunks"][-1]["embedding"] is None
    assert compare(source).differences == 0

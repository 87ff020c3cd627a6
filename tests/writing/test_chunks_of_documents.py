"""Documents to chunks: bounds, heading paths, tables, sizes and overlap."""

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from semantic_text_splitter import TextSplitter

from second_brain.errors import InvalidInputError
from second_brain.ingest import Chunking, LoadedDocument, split
from second_brain.ingest.markdown import table


def tokens_fit(text: str, tokens: int) -> bool:
    return len(TextSplitter.from_tiktoken_model("gpt-3.5-turbo", tokens).chunks(text)) <= 1


HEADER = "|a|b||---|---|"

words = st.text("abcdefgh éß日本\U0001f600\"'.,:;()[]`*_#-=>|\n\t", min_size=1, max_size=300)
blocks = st.one_of(
    words,
    words.map(lambda text: f"\n\n{text * 12}\n\n"),
    st.builds(
        lambda depth, text: f"\n\n{'#' * depth} {text}\n\n",
        st.integers(1, 6),
        st.text("abc xyz", min_size=1, max_size=20),
    ),
    words.map(lambda text: f"\n\n```\n{text}\n```\n\n"),
    words.map(lambda text: f"\n\n| a | b |\n|---|---|\n| {text} | x |\n\n"),
)


@settings(max_examples=60)
@given(st.lists(blocks, min_size=1, max_size=25).map("".join), st.booleans())
def test_chunks_are_within_bounds_and_lose_no_text(text: str, is_markdown: bool) -> None:
    chunks = split(LoadedDocument("Title", text, is_markdown))
    rest = "".join(text.split())
    for chunk in chunks:
        assert chunk.content.strip()
        assert chunk.heading.startswith("Title")
        assert tokens_fit(chunk.content, 500)
        # What stands between two chunks is white space or headings, and the path says these.
        content = "".join(chunk.content.split())
        if content not in rest:
            content = content.removeprefix(HEADER)
        before, found, rest = rest.partition(content)
        assert found or chunk.content in chunk.heading
        if not is_markdown:
            assert not before
    if not is_markdown:
        assert not rest
        small = [tokens_fit(chunk.content, 199) for chunk in chunks]
        for index in range(len(chunks) - 1):
            joined = chunks[index].content + chunks[index + 1].content
            assert not (small[index] or small[index + 1]) or not tokens_fit(joined, 450)


def test_a_heading_path_leads_to_each_section() -> None:
    long = "Some words of text to fill this section. " * 30
    text = f"# Guide\n\n{long}\n\n## Setup\n\n{long}\n\n### Keys\n\n{long}\n\n## Use\n\n{long}"
    chunks = split(LoadedDocument("Guide", text))
    assert [chunk.heading for chunk in chunks] == [
        "Guide",
        "Guide > Setup",
        "Guide > Setup > Keys",
        "Guide > Use",
    ]
    assert {chunk.content for chunk in chunks} == {long.strip()}
    assert chunks[2].metadata == {"section": "Setup > Keys"}


@pytest.mark.parametrize("text", ["word " * 20, "." * 100])
def test_splitting_a_line_takes_time_in_proportion_to_its_length(text: str) -> None:
    def seconds(line: str) -> float:
        began = time.process_time()
        chunks = split(LoadedDocument("Title", line))
        assert "".join("".join(chunk.content for chunk in chunks).split()) == line.replace(" ", "")
        return time.process_time() - began

    seconds("warm up")
    # Before, a line of twice the length took four times as long.
    assert seconds(text * 400) < 30 * max(seconds(text * 40), 0.01)


def test_a_document_of_headings_alone_is_not_lost() -> None:
    (chunk,) = split(LoadedDocument("file", "# Only this"))
    assert chunk.heading == "file > Only this"


ROWS = [["Part", "Price"], *([f"part {number}", f"{number}.50"] for number in range(300))]


def test_each_chunk_of_a_table_has_its_header_and_each_row_stands_once() -> None:
    chunks = split(LoadedDocument("Prices", f"# Parts\n\nAll prices.\n\n{table(ROWS)}\n\nThe end."))
    assert len(chunks) > 5
    tables = [chunk.content for chunk in chunks if "| part" in chunk.content]
    for content in tables:
        assert content.count("| Part | Price |\n| --- | --- |\n| part") == 1
        assert tokens_fit(content, 500)
    rows = [line for content in tables for line in content.splitlines() if "| part" in line]
    assert rows == table(ROWS).splitlines()[2:]
    assert "The end." in chunks[-1].content


def test_a_row_that_is_longer_than_a_chunk_has_the_header_in_each_part() -> None:
    chunks = split(LoadedDocument("T", table([["Key", "Text"], ["1", "word " * 1500]])))
    assert len(chunks) > 2
    for chunk in chunks:
        assert chunk.content.startswith("| Key | Text |\n| --- | --- |\n")
        assert tokens_fit(chunk.content, 500)


def test_a_table_ends_at_the_heading_below_it() -> None:
    text = f"# One\n\n{table(ROWS)}\n# Two\n\nsecond"
    chunks = split(LoadedDocument("T", text))
    assert (chunks[-1].heading, chunks[-1].content) == ("T > Two", "second")
    assert sum("part 299" in chunk.content for chunk in chunks) == 1


SENTENCES = [f"Sentence number {number} says something else." for number in range(200)]


def test_an_overlap_repeats_the_last_whole_sentences_within_the_size() -> None:
    chunks = split(LoadedDocument("T", " ".join(SENTENCES)), Chunking(size=100, overlap=25))
    assert len(chunks) > 10
    for before, after in pairwise(chunks):
        assert tokens_fit(after.content, 100)
        first = SENTENCES.index(after.content.split(". ")[0].rstrip(".") + ".")
        last = SENTENCES.index(before.content.split(". ")[-1].rstrip(".") + ".")
        assert tokens_fit(" ".join(SENTENCES[first : last + 1]), 25)
        assert not tokens_fit(" ".join(SENTENCES[first - 1 : last + 1]), 25)


def test_an_overlap_does_not_reach_into_another_section() -> None:
    text = f"# One\n\n{'One. ' * 90}\n\n# Two\n\n{'Two. ' * 90}"
    chunks = split(LoadedDocument("T", text), Chunking(size=100, overlap=50))
    assert {"One" in chunk.content for chunk in chunks if chunk.heading == "T > Two"} == {False}


@pytest.mark.parametrize("size", [50, 200, 1000])
def test_a_chunk_has_no_more_tokens_than_asked_for(size: int) -> None:
    chunks = split(LoadedDocument("T", " ".join(SENTENCES)), Chunking(size=size))
    assert all(tokens_fit(chunk.content, size) for chunk in chunks)
    assert not any(tokens_fit(chunk.content, size * 2 // 5 - 1) for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("size", "overlap", "message"),
    [(49, 0, "50 and 8000 tokens, not 49"), (100, 51, "0 and 50 tokens"), (100, -1, "not -1")],
)
def test_sizes_out_of_bounds_are_refused(size: int, overlap: int, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Chunking(size, overlap)

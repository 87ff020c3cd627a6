"""What a write stores of a chunk for searches, and how few rows it reads for that."""

from random import Random

import psycopg
import pytest
from stored import Documents, embedded, embeddings

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
FRAGMENTS = (
    *("a", "B", "x", "O", "1", "23", "000", "lru", "Cache", "DNA", "NET", "Iran", "v2", "3.11"),
    *("1,000", "é", "Ж", "漢", "한", "β"),
    *"-_/.@:\\&'^+#()[]%;,.!?<>=~*\"|",
    *[" "] * 14,
    "\n",
    "  ",
)
DIFFERENT_WITHOUT_PLAIN_WORDS = """
select given
  from unnest(%s::text[]) as given
 cross join lateral (
         select knowledge_internal.normalised(given) as source,
                knowledge_internal.unusual_words(knowledge_internal.normalised(given)) as unusual
         offset 0
       ) as text
 cross join lateral (select octet_length(source) = length(source) as is_ascii) as known
 where (
         knowledge_internal.joined(unusual, true), knowledge_internal.inner_words(unusual),
         knowledge_internal.apart(source, is_ascii, unusual)
       ) is distinct from (
         knowledge_internal.joined(source, true), knowledge_internal.inner_words(source),
         knowledge_internal.apart(source, is_ascii)
       )
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


def test_what_is_in_a_text_beside_its_plain_words_is_found_without_them(
    database: Connection,
) -> None:
    random = Random(1)
    texts = ["".join(random.choices(FRAGMENTS, k=random.randint(1, 40))) for _ in range(3000)]
    assert database.execute(DIFFERENT_WITHOUT_PLAIN_WORDS, [texts]).fetchall() == []


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


def test_no_entry_of_the_text_index_waits_after_a_write(database: Connection) -> None:
    # How many pages of entries waited.
    waiting = "select gin_clean_pending_list('public.knowledge_chunks_content_tsv')"
    trigger = "alter table public.knowledge_chunks {} trigger keep_statistics"
    database.execute(trigger.format("disable").encode())
    database.execute(FILL, ["kettle"])
    assert database.execute(waiting).fetchall() != [(0,)]
    database.execute(trigger.format("enable").encode())
    database.execute(FILL, ["kettle lid"])
    assert database.execute(waiting).fetchall() == [(0,)]


WORDS = """
select content_words, distinct_words from public.knowledge_chunks order by created_at, id
"""


@pytest.mark.parametrize(
    ("content", "words", "distinct"),
    [
        ("the kettle and the lid of a kettle", 3, 2),
        ("kettle\n\tlid   shelf", 3, 3),
        ("kettle", 1, 1),
        ("kettle-lid", 2, 2),
        # 285 words and a part of one.
        (" ".join(f"w{number:05}" for number in range(400)), 286, 286),
        ("a" * 100 + " kettle", 0, 0),
        ("数据库全文检索性能优化很快" * 3, 0, 0),
        ("", 0, 0),
    ],
)
def test_the_words_of_the_content_are_counted_without_its_heading(
    database: Connection, content: str, words: int, distinct: int
) -> None:
    database.execute(
        "insert into public.knowledge_chunks (heading, language, content)"
        " values ('shelf lamp', 'english', %s)",
        [content],
    )
    assert database.execute(WORDS).fetchall() == [(words, distinct)]


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
    upsert(knowledge, "doc", {"content": "zebra", "heading": "Own"}, title="First")
    weigh = "select public.set_knowledge_fields(%s, title_weight => %s)"
    for collection, weight in (("knowledge", old), ("other", new)):
        knowledge.execute(weigh, [collection, weight])
    knowledge.execute("update public.knowledge_chunks set content_tsv = null")
    knowledge.execute(
        "update public.knowledge_documents set title = 'Okapis', collection = 'other'"
    )
    found = knowledge.execute("select content_tsv @@ 'okapi' from public.knowledge_chunks")
    assert found.fetchall() == [(new > 0,)]


# Writes in a session that began with empty tables read a few rows of large ones, too.

OTHER_ROWS = 600


@pytest.fixture
def documents(database: Connection) -> Documents:
    return Documents(database)


def test_an_unchanged_document_runs_no_statement_on_its_chunks(documents: Documents) -> None:
    documents.upsert(["one", "two"], metadata={"d": 1})
    documents.connection.execute(
        "create function public.refuse() returns trigger language plpgsql as $$"
        " begin raise 'written'; end $$;"
        "create trigger refuse after insert or update or delete on public.knowledge_chunks"
        " execute function public.refuse()"
    )
    documents.upsert(["one", "two"], metadata={"d": 1})
    with pytest.raises(psycopg.errors.RaiseException, match="written"):
        documents.upsert(["one", "two", "three"], metadata={"d": 1})


def rows_read(documents: Documents) -> dict[str, int]:
    """Return how many rows and index entries scans have read of each table."""
    documents.rows("select pg_stat_force_next_flush()")
    return dict(
        documents.rows(
            "select relname, seq_tup_read + (select coalesce(sum(idx_tup_read), 0)"
            "         from pg_stat_user_indexes as index where index.relid = stat.relid)::bigint"
            "  from pg_stat_user_tables as stat"
            " where relname in ('knowledge_chunks', 'knowledge_documents', 'knowledge_words')"
        )
    )


def add_rows(documents: Documents, name: str = "other") -> None:
    """Store documents with chunks, each with a word of its own, which an ANALYZE has not seen."""
    documents.rows(
        "with document as ("
        "  insert into public.knowledge_documents (external_key)"
        "  select concat_ws(' ', %s::text, n) from generate_series(1, %s) as n"
        "  returning id, external_key"
        ") insert into public.knowledge_chunks (document_id, chunk_index, content)"
        " select id, 0, translate(md5(external_key), '0123456789', 'ghijklmnop') from document",
        name,
        OTHER_ROWS,
    )


def test_a_write_reads_its_own_rows_only(documents: Documents, modules: tuple[str, ...]) -> None:
    # A plan for many rows at an empty table prefers to read the whole table.
    documents.upsert([f"Feed cat {number}." for number in range(200)], "first")
    for number in range(8):  # other plans are kept after a few calls
        documents.upsert(["Feed the cat.", f"Row {number}."], f"early {number}")
        documents.upsert(["Feed the dog."], f"early {number}")
    add_rows(documents)
    before = rows_read(documents)
    assert documents.counts(["Water the plants.", "Rotate keys."], "new") == (2, 0, 0, 0)
    assert documents.counts(["Rotate keys.", "Milk cows."], "new", title="x") == (0, 2, 0, 0)
    after = rows_read(documents)
    # Before the first ANALYZE, a transaction that writes texts reads 100 rows for the mean length.
    written = {"knowledge_chunks", "knowledge_documents"}
    if "words" in modules:
        written.add("knowledge_words")
    assert {name for name in after if after[name] - before[name] < OTHER_ROWS} == written


def test_a_load_before_the_first_analyze_reads_the_mean_length_once(documents: Documents) -> None:
    add_rows(documents)
    before = rows_read(documents)["knowledge_chunks"]
    add_rows(documents, "later")
    assert rows_read(documents)["knowledge_chunks"] - before == 100


WAITING = {"content": "The same.", "embedding_model": "m"}


@pytest.mark.parametrize("same", [10, 300])
def test_a_text_that_many_chunks_wait_to_embed_is_stored_as_fast(
    documents: Documents, same: int
) -> None:
    documents.upsert([WAITING] * same, "waiting")
    before = rows_read(documents)["knowledge_chunks"]
    documents.upsert([WAITING], "one more")
    assert rows_read(documents)["knowledge_chunks"] - before < 300


def test_an_embedding_is_found_among_chunks_that_wait(documents: Documents) -> None:
    documents.upsert([WAITING] * 20, "waiting")
    documents.upsert([embedded("The same.", 1)], "embedded")
    assert embeddings(documents.upsert([WAITING], "one more")) == (1, 0)


def test_a_write_that_renews_the_statistics_takes_a_moment(documents: Documents) -> None:
    documents.rows(
        "insert into public.knowledge_chunks (content)"
        " select string_agg('w' || m, ' ') from generate_series(1, 8000) as m group by m % 100"
    )
    documents.upsert(["Feed the cat."], "first")
    documents.rows("analyze public.knowledge_chunks")
    documents.rows("set statement_timeout = '8s'")
    documents.upsert(["Feed the dog."], "second")  # a quadratic refresh takes over 10 s
    listed = "select count(*) > 5000 from public.knowledge_lexeme_statistics"
    assert documents.rows(listed) == [(True,)]
    documents.rows("analyze public.knowledge_chunks")
    documents.upsert(["Feed the cow."], "third")

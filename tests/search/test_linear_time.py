"""The time for a text grows with its length: twice the text takes twice the time, not four times.

The CPU time of the server's backend is read from /proc.
"""

import base64
import random
import re
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sql_trees import body, definitions, dotted

from benchmarks.memory import process_cpu
from conftest import Connection, Server
from second_brain.database import migrations

# A shape is what is repeated until the text has this many bytes, then twice as many.
BYTES = 10_000
MOST_GROWTH = 2.6
# A time below is noise: with time that is quadratic in the length, a text of twice BYTES takes
# hundreds of milliseconds.
NOISE = 100.0  # milliseconds
UNITS = (
    *("12.34 ", "10.0.0.1 ", "1.1.1.", "52.5200,13.4050 ", "1.5e-10 ", '{"a":1.5,"b_c":[2.25]},'),
    *("2024-01-31T12:34:56.789Z ", "EUR 1.234,50 ", "2½ ", "10.0.0.1 200 0.123 ", "123.", "12,"),
    *("1,234 ", "1'234'", "1.234.567,", "1234,", "3.11.2", "v1.2.3-rc.1+build ", "1.2-", "1/2 "),
    *("+49-30-123456 ", "x^2 ", "x² ", "^1", "10^-3 ", "1;2.5;3,5;", '"a","1.5",', "0xdeadbe"),
    *("a_", "snake_case_name_", "a.b-c_", "a1_", "a[0]_", "a{b:c;d:1.5em}", "_", ".", "-", "'"),
    *("/usr/local/share_x/a.b ", "C:\\a_b\\", "joe.doe@example.com, ", "a@b.c_", "a://", "a%20"),
    *("https://example.com/a/b?c=d&e=f#g ", "<a href=x_y>", "&amp;", "AT&T ", "a&", "c++", "]a["),
    *(".NET ", "O'Brien ", "O'Br'", "a\u2013b_", "\\frac{1}{2} ", "a ", "\n", "a", "a. B! ", "A"),
    *("getUserName", "AB1.2c ", "A1", "550e8400-e29b-41d4-a716-446655440000 ", "漢字", "かな "),
    *("น้ำดื่ม", "한글", "👩‍👩‍👧", "a\u0301", "\u0301", "co\u00adop ", "\u00ad", "。", "مَكْتَبَة "),
    *("שָׁלוֹם ", "हिन्दी ", "a\u200cb", "ж_", "\uff41\uff3f\uff42", "ﬁ_", "№5 ", "①", "1\u00a0000 "),
)
DRAWN = {
    "signs": "ab1._-@:/",
    "digits": "0123456789.,' ",
    "decimals": "0123456789.",
    "scripts": "äбγ漢 _-.1a",
    "letters and digits": "aAbB1",
    "punctuation": "a1.,;:!?'\"()[]{}<> -_/\\&^+#",
}
RANDOM = random.Random(1)
BASE64 = base64.b64encode(RANDOM.randbytes(2 * BYTES)).decode()


def shaped(unit: str, size: int) -> str:
    repeated = unit * (size // len(unit.encode()) + 1)
    return repeated.encode()[:size].decode(errors="ignore")


SHAPES: dict[str, Callable[[int], str]] = {
    **{unit: lambda size, unit=unit: shaped(unit, size) for unit in UNITS},  # type: ignore[misc]
    **{
        name: lambda size, letters=letters: "".join(random.Random(1).choices(letters, k=size))  # type: ignore[misc]
        for name, letters in DRAWN.items()
    },
    "base64": lambda size: BASE64[:size],
    "hexadecimal": lambda size: random.Random(1).randbytes(size // 2).hex(),
}

# What is called with a text of each shape. The text of a question is at most 4,096 characters.
CALLS = {
    "store": "insert into public.knowledge_chunks (heading, content) values ('zebra', {text})",
    "search": """
        select snippet from public.hybrid_search_knowledge_chunks(
          query_text => 'zebra ' || left({text}, 60), snippet => true
        )
    """,
    "question": """
        select from public.hybrid_search_knowledge_chunks(
          query_text => '"' || left({text}, 60) || '" zebra ' || left({text}, length({text}) / 20),
          filters => jsonb_build_array(
            jsonb_build_object('field', 'metadata.a', 'op', 'ne', 'value', {text})
          )
        )
    """,
    "functions": """
        select knowledge_internal.is_address({text}),
               knowledge_internal.is_address('https://a/' || {text}),
               knowledge_internal.iso_days({text}), knowledge_internal.is_identifier({text})
    """,
    "words": "select knowledge_internal.has_word('a', null, {text}),"
    " knowledge_internal.without_accents({text})",
    "snippets": "select knowledge_internal.snippet({text}, 'english', '{{a,b,1}}', 3)",
    "drop-ins": "select knowledge_internal.adopted_filters(null, jsonb_build_array("
    "jsonb_build_object('op', 'in', 'is_text', true, 'value', ({text})::text)), null)",
    "substrings": "select knowledge_internal.identifiers_of(null, {text})",
}


@pytest.fixture(scope="module")
def tracked(server: Server, shared_dsn: str) -> Iterator[Connection]:
    """A superuser's connection that counts the calls of each function."""
    name = conninfo_to_dict(shared_dsn)["dbname"]
    with psycopg.connect(server.admin_dsn(str(name)), autocommit=True) as connection:
        if process_cpu(connection.info.backend_pid) is None:
            pytest.skip("the server's processes are not here, or there is no /proc")
        connection.execute("set track_functions = 'all'")
        yield connection


# Functions with a regular expression for something else than a text of any length.
OTHERS = {
    "questions, which have at most 4,096 characters": {
        "adopted_hits",
        "completions",
        "erase_derived",
        "explain_hybrid_search",
        "read_judgment",
        "report_knowledge_queries",
        "search_knowledge_chunks_fulltext",
        "unmet_restriction",
        "visible_completions",
    },
    "lexemes": {"lost_native_texts", "native_text", "native_token", "stop_word_chunks"},
    "names of columns, fields, keys and functions": {
        "adopt_table",
        "is_changed_sql",
        "place_row",
        "reader_function",
        "write_readers",
        "adopted_rows",
        "compiled_order",
        "facet_counts",
        "field_number",
        "place_order",
    },
    "versions and dates": {"check_document", "health_findings"},
}


def with_expressions() -> set[str]:
    """Name the functions that have a regular expression."""
    written = re.compile(
        r"\bregexp_\w+\(|\s!?~\*?\s|\bsimilar to\b"
        r"|\bsubstring\s*\((?:[^()]|\([^()]*\))*?\sfrom\s"
    )
    return {
        dotted(one.funcname).split(".")[1] for _, one in definitions() if written.search(body(one))
    }


def test_twice_the_text_takes_twice_the_time(tracked: Connection, modules: tuple[str, ...]) -> None:
    def spent(call: str, text: str) -> float:
        before = process_cpu(tracked.info.backend_pid)
        tracked.execute(CALLS[call].format(text="%(text)s"), {"text": text})
        after = process_cpu(tracked.info.backend_pid)
        assert before is not None
        assert after is not None
        return after - before

    wanted = [one for one in CALLS if one not in {*migrations.modules()} - {*modules}]
    slow = []
    with tracked.transaction(force_rollback=True):
        # Of a module whose extension this server may not have.
        tracked.execute("set local second_brain.without_extensions = 'allowed'")
        (substrings,) = (one for one in migrations.find() if one.module == "substrings")
        tracked.execute("set local role postgres")
        tracked.execute(substrings.sql.encode())
        tracked.execute("reset role")
        for call in wanted:
            spent(call, "a plan of each statement is made")
        for name, text in SHAPES.items():
            for call in wanted:
                twice = spent(call, text(2 * BYTES))
                if twice > NOISE:
                    # Again: others use the machine, too.
                    twice = min(twice, spent(call, text(2 * BYTES)))
                if twice > NOISE and twice > MOST_GROWTH * spent(call, text(BYTES)):
                    slow.append((name, call, twice))
            tracked.execute("delete from public.knowledge_chunks")
        called = tracked.execute("select funcname from pg_stat_xact_user_functions").fetchall()
    assert slow == []
    if modules == migrations.modules():
        left = with_expressions() - {name for (name,) in called}
        assert left == set().union(*OTHERS.values())

"""The pages Judge and Measure, without a browser: what they show, store and refuse."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from conftest import Connection, Server, copy_of
from corpora import store_document
from judged import (
    COLLECTION,
    DIMENSIONS,
    WORDS,
    axis,
    embedder,
    fill,
    judge_enough,
    judged,
    use_the_worse_leg,
)
from opened_workbench import ADDRESS
from second_brain.services.arguments import FUSIONS
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.judgments import Judgment
from second_brain.services.write import KnowledgeWriter
from second_brain.workbench.app import create_app
from waiting import until

ANNA = UUID(int=1)
SCRIPT = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def judged_dsn(server: Server) -> Iterator[str]:
    """The owner's DSN of the judged corpus."""
    for dsn in copy_of(server, server.template(DIMENSIONS)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            fill(connection)
        yield dsn


@pytest.fixture
def corpus(judged_dsn: str) -> Iterator[Connection]:
    """The owner's connection; judgments and settings are as at first again."""
    with psycopg.connect(judged_dsn, autocommit=True) as connection:
        writer = KnowledgeWriter(connection)
        connection.execute("truncate public.knowledge_judgments, public.knowledge_settings")
        writer.set_judgments(judged(COLLECTION))
        yield connection


@pytest.fixture
def writer(corpus: Connection) -> KnowledgeWriter:
    return KnowledgeWriter(corpus)


def opened(dsn: str) -> TestClient:
    app = create_app(dsn, embedder=embedder())
    given: dict[str, Any] = {"follow_redirects": False, "raise_server_exceptions": False}
    return TestClient(app, base_url=ADDRESS, headers={"origin": ADDRESS}, **given)


@pytest.fixture
def browser(judged_dsn: str, corpus: Connection) -> Iterator[TestClient]:
    """A browser without scripts at a new workbench."""
    with opened(judged_dsn) as client:
        yield client


def chunks(page: str) -> list[str]:
    return re.findall(r'data-chunk="([^"]+)"', page)


def ended(browser: TestClient) -> None:
    """Wait until no run works."""
    until(lambda: browser.get("/measure/progress").status_code == 204)


def run(browser: TestClient, task: str, **form: str) -> str:
    """Run a task, and return the page with its result."""
    given = {"task": task, "collection": COLLECTION, **form}
    assert browser.post("/measure/run", data=given).status_code == 303
    ended(browser)
    return browser.get(f"/measure?collection={COLLECTION}").text


def test_the_chunks_of_each_setting_are_pooled_in_an_order_that_shows_no_rank(
    browser: TestClient,
) -> None:
    first = browser.get("/judge", params={"q": "apples", "collection": COLLECTION})
    assert first.status_code == 200
    # The text leg finds one document, the vector leg all of the collection.
    assert len(chunks(first.text)) == len(set(chunks(first.text))) == len(WORDS)
    again = browser.get("/judge", params={"q": "apples", "collection": COLLECTION})
    assert chunks(again.text) == chunks(first.text)
    other = browser.get("/judge", params={"q": "apples?", "collection": COLLECTION})
    assert sorted(chunks(other.text)) == sorted(chunks(first.text)) != chunks(other.text)
    for word in ("rank", "score", "similarity"):
        assert word not in first.text.lower()


def test_a_document_with_many_chunks_leaves_room_for_the_others(
    browser: TestClient, writer: KnowledgeWriter, corpus: Connection
) -> None:
    for key, count in (("many", 12), ("one", 1)):
        chunk = {"content": "apples", "embedding": axis(0), "embedding_model": "given"}
        writer.upsert_document({"external_key": key, "collection": "sizes"}, [chunk] * count)
    page = browser.get("/judge", params={"q": "apples", "collection": "sizes"}).text
    corpus.execute("delete from public.knowledge_documents where collection = 'sizes'")
    # Measures count documents: each one that a search finds can be judged.
    assert set(re.findall(r"<code[^>]*>(\w+)</code>", page)) == {"many", "one"}


def test_a_mark_is_stored_with_its_judge_and_withdrawn(
    browser: TestClient, writer: KnowledgeWriter
) -> None:
    page = browser.get("/judge", params={"q": "apples pie", "by": str(ANNA)}).text
    form = {"q": "apples pie", "chunk": chunks(page)[0], "by": str(ANNA), "grade": "1"}
    answer = browser.post("/judge/mark", data=form)
    back = f"/judge?q=apples+pie&by={ANNA}#chunk-{chunks(page)[0]}"
    assert (answer.status_code, answer.headers["location"]) == (303, back)
    (stored,) = writer.judgments("")
    assert (stored.grade, stored.judged_by, str(stored.chunk_id)) == (1, ANNA, chunks(page)[0])
    marked = browser.get("/judge", params={"q": "apples pie", "by": str(ANNA)}).text
    assert '<b id="marked">1</b>' in marked
    # Another judge does not see the mark, and cannot withdraw it.
    assert '<b id="marked">0</b>' in browser.get("/judge", params={"q": "apples pie"}).text
    for by, left in (("", 1), (str(ANNA), 0)):
        as_json = {"accept": "application/json"}
        given = {**form, "by": by, "grade": ""}
        answer = browser.post("/judge/mark", data=given, headers=as_json)
        assert (answer.status_code, len(writer.judgments(""))) == (204, left)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"grade": "3"}, "grade must be"),
        ({"chunk": "x"}, "chunk must be a UUID"),
        ({"chunk": str(UUID(int=7))}, "there is no chunk_id"),
    ],
)
def test_a_wrong_mark_is_refused_by_name(
    browser: TestClient, writer: KnowledgeWriter, change: dict[str, str], named: str
) -> None:
    page = browser.get("/judge", params={"q": "apples"}).text
    form = {"q": "apples", "chunk": chunks(page)[0], "grade": "2", **change}
    answer = browser.post("/judge/mark", data=form)
    assert answer.status_code == 400
    assert named in answer.text
    assert writer.judgments("") == []


def test_marks_need_the_right_to_write_judgments(judged_dsn: str, corpus: Connection) -> None:
    read = corpus.execute("select id from public.knowledge_chunks limit 1").fetchone()
    (chunk,) = cast(tuple[UUID], read)
    with opened(make_conninfo(judged_dsn, options="-c role=authenticated")) as browser:
        form = {"q": "apples", "chunk": str(chunk), "grade": "2"}
        answer = browser.post("/judge/mark", data=form)
        assert "permission denied for function set_knowledge_judgments" in answer.text
        answer = browser.post("/measure/reset", data={"collection": COLLECTION})
        assert "permission denied for function reset_knowledge_settings" in answer.text
    assert KnowledgeWriter(corpus).judgments("") == []


def test_a_judge_sees_only_what_the_viewer_may_see(
    browser: TestClient, writer: KnowledgeWriter
) -> None:
    writer.upsert_document(
        {"external_key": "secret", "owner_id": str(ANNA), "visibility": "private"},
        [{"content": "zebras are a secret"}],
    )
    asked = {"q": "zebras"}
    assert "are a secret" in browser.get("/judge", params=asked | {"viewer": str(ANNA)}).text
    other = browser.get("/judge", params=asked | {"viewer": str(UUID(int=2))}).text
    assert "are a secret" not in other
    assert chunks(other) == []
    writer.delete_document("secret")


def test_questions_wait_in_their_order_until_they_are_judged(
    browser: TestClient, writer: KnowledgeWriter
) -> None:
    lines = "first one\r\n\r\nsecond one\r\nfirst one\r\n"
    assert browser.post("/judge/questions", data={"questions": lines}).status_code == 303
    begin = browser.get("/judge/next")
    assert begin.headers["location"] == "/judge?q=first+one"
    following = browser.get("/judge/next", params={"q": "first one"})
    assert following.headers["location"] == "/judge?q=second+one"
    # The last one is skipped, and the list shows what is left.
    assert browser.get("/judge/next?q=second+one").headers["location"] == "/judge"
    writer.set_judgments([Judgment(question="first one", document_key="cars")])
    assert browser.get("/judge/next").headers["location"] == "/judge?q=second+one"
    browser.post("/judge/questions", data={"empty": "1"})
    assert browser.get("/judge/next").headers["location"] == "/judge"


def test_questions_about_which_the_legs_disagree_come_first(
    browser: TestClient, writer: KnowledgeWriter, corpus: Connection
) -> None:
    # Ten documents are nearer to the question for doors than the one with the word.
    contents = [*[("other", 4)] * 10, ("doors", 7), ("eagles", 5)]
    for place, (content, near) in enumerate(contents):
        chunk = {content: axis(near).tolist()}
        store_document(corpus, f"{place}", chunk, "given", collection="apart")
    # No leg has a vector for the unknown word, and no weights change its answer.
    form = {"questions": "unknown\neagles\ndoors", "collection": "apart"}
    browser.post("/judge/questions", data=form)
    page = browser.get("/judge", params={"collection": "apart"}).text
    corpus.execute("delete from public.knowledge_documents where collection = 'apart'")
    waiting = re.findall(r"<li><a href=[^>]*>(\w+)</a>", page)
    assert waiting == ["doors", "unknown", "eagles"]


def test_the_page_counts_the_questions_that_a_fit_needs_and_then_offers_it(
    browser: TestClient, writer: KnowledgeWriter
) -> None:
    def counted(path: str) -> str:
        page = browser.get(path, params={"collection": COLLECTION}).text
        return f"{re.findall('data-judged>([^<]*)<', page)[0]}, {'Find better' in page}"

    assert counted("/judge") == counted("/judge?q=apples") == "8 of 20 questions judged, False"
    wrong = Judgment(question="none", document_key="cars", collection=COLLECTION, grade=0)
    writer.set_judgments([wrong])
    assert counted("/judge") == "8 of 20 questions judged, False"
    judge_enough(writer)
    assert counted("/judge") == "24 questions judged, 30 are better, True"


def test_questions_of_the_query_log_wait_those_without_hits_first(
    browser: TestClient, corpus: Connection
) -> None:
    rows = (("found", 3, None), ("not found", 0, None), ("elsewhere", 0, ["copies"]))
    for question, hits, collections in rows:
        corpus.execute(
            "insert into public.knowledge_query_log"
            " (asked_at, question, collections, mode, mode_used, hits, confidence, embed_ms,"
            " search_ms, rerank_ms, total_ms, is_cached)"
            " values (now(), %s, %s, 'hybrid', 'hybrid', %s, 0.5, 1, 1, 0, 2, false)",
            [question, collections, hits],
        )
    answer = browser.post("/judge/questions", data={"log": "1"})
    assert answer.headers["location"] == "/judge?logged=2"
    assert browser.get("/judge/next").headers["location"] == "/judge?q=not+found"
    assert browser.get("/judge/next?q=not+found").headers["location"] == "/judge?q=found"
    corpus.execute("truncate public.knowledge_query_log")
    empty = browser.post("/judge/questions", data={"log": "1"})
    assert "has no question" in browser.get(empty.headers["location"]).text


def test_questions_are_made_from_words_of_documents(
    browser: TestClient, writer: KnowledgeWriter
) -> None:
    refused = browser.post("/judge/generate", data={"count": "5", "collection": COLLECTION})
    assert refused.status_code == 400
    assert "no chunk from which a question can be made" in refused.text
    writer.upsert_document({"external_key": "one"}, [{"content": "tigers hunt lions at night"}])
    writer.upsert_document({"external_key": "two"}, [{"content": "lions and tigers sleep"}])
    assert browser.post("/judge/generate", data={"count": "5"}).status_code == 303
    assert "made from words" in browser.get("/judge").text
    assert {one.document_key for one in writer.judgments("")} <= {"one", "two"}
    for key in ("one", "two"):
        writer.delete_document(key)


def test_a_number_that_python_does_not_read_is_refused_by_name(browser: TestClient) -> None:
    # int() refuses more than 4300 digits.
    for answer, named in (
        (browser.post("/judge/generate", data={"count": "9" * 5000}), "count must be"),
        (browser.get("/document", params={"key": "a", "offset": "9" * 5000}), "offset must be"),
    ):
        assert (answer.status_code, named in unescape(answer.text)) == (400, True)


def test_a_question_full_of_html_is_text_everywhere(
    browser: TestClient, writer: KnowledgeWriter
) -> None:
    asked = f'apples {SCRIPT} "><img src=x onerror=alert(1)>'
    browser.post("/judge/questions", data={"questions": asked})
    writer.set_judgments(
        [
            Judgment(question=asked, document_key="apples", collection=SCRIPT),
            Judgment(question=asked, document_key="apples", collection=COLLECTION),
        ]
    )
    pages = [
        browser.get("/judge").text,
        browser.get("/judge", params={"q": asked, "collection": SCRIPT}).text,
        browser.get("/judge", params={"collection": COLLECTION}).text,
        run(browser, "measure", fusion="rrf", vector_weight="5"),
        browser.get("/measure", params={"collection": SCRIPT}).text,
    ]
    for page in pages:
        assert "alert" in unescape(page)
        assert "<script>alert" not in page
        assert "<img" not in page


def test_measuring_shows_each_mode_and_does_not_start_again(
    browser: TestClient, writer: KnowledgeWriter
) -> None:
    use_the_worse_leg(writer)
    page = run(browser, "measure", fusion="auto", vector_weight="0.5")
    assert '<div class="table" tabindex="0" role="region" aria-label="Modes">' in page
    modes = re.findall(r'data-mode="([^"]+)"', page)
    assert modes == ["vector", "text", *FUSIONS, "stored", "auto 0.5 : 1"]
    # 1 / log2(3) against 1, and 2 of 2 ** 8 assignments of signs.
    assert "0.631" in page
    assert '<span class="gain">+0.369</span>' in page
    assert "p 0.008" in page
    # The questions that the best one wins, each a link to its search.
    assert "documents=1" in page
    again = browser.get(f"/measure?collection={COLLECTION}")
    assert again.text == page
    assert browser.get("/measure/progress").status_code == 204
    versus = browser.get(f"/measure?collection={COLLECTION}&versus=vector").text
    assert '<option selected value="vector">' in versus


def test_the_page_says_what_is_in_use_who_gets_it_and_that_it_is_stale(
    browser: TestClient, writer: KnowledgeWriter
) -> None:
    def in_use() -> str:
        page = browser.get(f"/measure?collection={COLLECTION}").text
        (line,) = re.findall(r'<p class="in-use">(.*?)</p>', page)
        return re.sub("<[^>]+>", "", line)

    assert in_use().startswith("In use: rrf, nothing is stored. Every caller that names no fusion")
    assert "SQL, REST, Python, the service, the command line, MCP, this workbench" in in_use()
    writer.set_settings(CorpusSettings(fusion="auto"), measured_on="8 questions of first")
    assert "In use: auto, vector 1, text 1 (of all collections); measured on 8 " in in_use()
    writer.set_settings(CorpusSettings(collection=COLLECTION, vector_weight=2))
    assert "In use: auto, vector 2, text 1." in in_use()
    writer.set_settings(CorpusSettings(collection=COLLECTION), measured_on="8 questions of first")
    new = {"external_key": "new", "collection": COLLECTION}
    writer.upsert_document(new, [{"content": "new"}])
    stale = "The stored settings are stale: the corpus had 8 chunks and has 9."
    assert stale in browser.get(f"/measure?collection={COLLECTION}").text
    writer.delete_document("new")


def test_what_is_not_better_is_stored_only_knowingly(
    browser: TestClient, writer: KnowledgeWriter
) -> None:
    use_the_worse_leg(writer)
    writer.delete_judgments(collection=COLLECTION)
    writer.set_judgments(judged(COLLECTION, count=4))
    page = run(browser, "tune")
    assert "4 of 20 judged questions: a fit to so few gains nothing" in page
    found = re.search(r'name="run" value="(\w+)"', page)
    assert found
    refused = browser.post("/measure/apply", data={"run": found[1]})
    assert refused.status_code == 409
    assert writer.settings()[0].text_weight == 0.01
    browser.post("/measure/apply", data={"run": found[1], "force": "1"})
    assert writer.settings()[0].text_weight != 0.01
    unknown = browser.post("/measure/apply", data={"run": "unknown"})
    assert unknown.status_code == 400


def test_one_run_works_at_a_time_and_can_be_cancelled(browser: TestClient) -> None:
    form = {"task": "tune", "collection": COLLECTION}
    assert browser.post("/measure/run", data=form).status_code == 303
    assert browser.post("/measure/run", data=form).status_code == 409
    assert browser.post("/measure/cancel").status_code == 303
    ended(browser)
    page = browser.get(f"/measure?collection={COLLECTION}").text
    assert "Better settings" not in page
    assert "Find better settings" in page


def test_a_run_that_fails_says_why(browser: TestClient) -> None:
    form = {"task": "measure", "collection": "copies"}
    assert browser.post("/measure/run", data=form).status_code == 303
    ended(browser)
    page = unescape(browser.get("/measure?collection=copies").text)
    assert "no question asked in collection 'copies' has a right document" in page
    refused = browser.post("/measure/run", data={"task": "nonsense"})
    assert refused.status_code == 400

"""The pages Corpus and Documents: figures, the map, the query log, lists, and hostile texts."""

import json
import re
from collections.abc import Iterator
from html import unescape
from uuid import UUID, uuid4

import numpy as np
import psycopg
import pytest
from starlette.testclient import TestClient

from conftest import Connection
from opened_workbench import SCRIPT, browser_of, page_of
from second_brain.database.corpus_overview import corpus_overview
from second_brain.services.install import Database
from second_brain.services.write import KnowledgeWriter
from second_brain.workbench import embedding_map
from second_brain.workbench.embedding_map import SampledEmbedding


@pytest.fixture
def stored(library_dsn: str) -> Iterator[Connection]:
    """The owner's connection to the library."""
    with psycopg.connect(library_dsn, autocommit=True) as connection:
        yield connection


def text_of(html: str) -> str:
    """Return what a browser shows of a page, in one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def test_the_corpus_is_counted_by_its_columns(library: TestClient) -> None:
    page = library.get("/corpus")
    assert page.status_code == 200
    shown = text_of(page.text)
    assert re.search(r"Documents \d+ Active chunks \d+ Without an embedding 0", shown)
    assert "decision 1 documents" in shown
    assert "Half of the chunks have at most" in shown
    assert 'href="/documents?type=decision"' in page.text


PAGES = ("/corpus", "/corpus/map", "/corpus/queries", "/corpus/checks", "/documents")


@pytest.mark.parametrize("address", [*PAGES, *(f"{page}?part=1" for page in PAGES[1:4])])
def test_hostile_texts_appear_as_text(
    library: TestClient, stored: Connection, address: str
) -> None:
    question = {"question": f"q{SCRIPT}", "mode": "text", "total_ms": 1, "hits": 0}
    stored.execute(
        "select public.record_knowledge_queries(%s)",
        [json.dumps([{**question, "collections": [SCRIPT]}])],
    )
    page = library.get(address)
    assert page.status_code == 200
    assert SCRIPT not in page.text
    if address not in ("/corpus/checks", "/corpus/checks?part=1"):
        assert SCRIPT in unescape(page.text)
    assert not re.search(r" on\w+=|javascript:|style=", re.sub(r">[^<]*<", "><", page.text))


def test_a_hostile_document_is_shown_as_text(library: TestClient) -> None:
    listed = library.get("/documents", params={"q": "onerror"})
    assert "No document like this" in listed.text
    listed = library.get("/documents", params={"q": SCRIPT, "collection": f"wild{SCRIPT}"})
    (address,) = re.findall(r'href="(/document/[^"]+)"', listed.text)
    page = library.get(address)
    assert page.status_code == 200
    assert SCRIPT not in page.text
    assert "<img" not in page.text
    assert f'<img src=x onerror=alert(1)> {SCRIPT} zebra & "quotes"' in unescape(page.text)


def test_a_document_leads_to_its_chunks_and_to_why_not(library: TestClient) -> None:
    page = library.get("/document", params={"key": "doors.md"})
    assert "Every door of the house" in page.text
    (chunk,) = re.findall(r'href="/why-not\?key=([^"]+)"', page.text)
    alone = library.get(f"/chunk/{chunk}")
    assert "Every door of the house" in alone.text
    assert "All chunks of the document" in alone.text


@pytest.mark.parametrize("address", ["/document?key=<b>no</b>", f"/document/{UUID(int=0)}"])
def test_what_is_not_stored_is_said(library: TestClient, address: str) -> None:
    page = library.get(address)
    assert page.status_code == 404
    assert "No document or chunk is stored" in text_of(page.text)
    assert "<b>" not in page.text


def test_wrong_addresses_are_refused(library: TestClient) -> None:
    assert library.get("/document?key=doors.md&offset=x").status_code == 400
    assert library.get("/document/none").status_code == 404
    assert library.get("/documents?state=lost").status_code == 200


def test_pending_chunks_say_why_they_wait(library: TestClient, stored: Connection) -> None:
    KnowledgeWriter(stored).upsert_document(
        {"external_key": "waiting.md"}, [{"content": "Not embedded."}]
    )
    try:
        listed = library.get("/documents?state=pending")
        assert re.findall(r'href="/document/[^>]+>([^<]+)</a>', listed.text) == ["waiting.md"]
        page = library.get("/document?key=waiting.md")
        assert "it has no embedding, so only the text leg finds it" in page.text
        overview = text_of(library.get("/corpus").text)
        assert "Without an embedding 1" in overview
        assert "have no embedding" in overview
    finally:
        KnowledgeWriter(stored).delete_document("waiting.md")


def test_the_map_has_a_point_for_each_chunk_and_the_question(
    library: TestClient, stored: Connection
) -> None:
    rows = stored.execute(
        "select id, embedding::real[] from public.knowledge_chunks where embedding is not null"
    ).fetchall()
    sample = embedding_map.sampled(Database(stored))
    assert {one.chunk_id for one in sample} == {chunk_id for chunk_id, _ in rows}
    read = {one.chunk_id: one.embedding for one in sample}
    for chunk_id, embedding in rows:
        assert read[chunk_id] == pytest.approx(np.array(embedding, np.float32))
    page = library.get("/corpus/map", params={"q": "a key of iron", "by": "knowledge_type"})
    point = r'<a href="/chunk/[^"]+" tabindex="-1" aria-label="[^"]*"><circle'
    assert len(re.findall(point, page.text)) >= 6
    assert 'class="asked"' in page.text
    shown = text_of(page.text)
    assert re.search(r"Nearest in the sample Cosine Doors 0\.\d+", shown)
    assert "decision 1" in shown


def test_the_query_log_leads_to_search_and_judge(library: TestClient, stored: Connection) -> None:
    stored.execute("delete from public.knowledge_query_log")
    assert "The query log has no search." in library.get("/corpus/queries").text
    lines: list[dict[str, object]] = [
        {"question": "where is the key?", "mode": "text", "total_ms": 12, "hits": hits}
        for hits in (0, 2)
    ]
    lines.append({**lines[0], "question": "which door?", "collections": ["knowledge"]})
    stored.execute("select public.record_knowledge_queries(%s)", [json.dumps(lines)])
    page = library.get("/corpus/queries")
    assert "where is the key? judge 2 1 12.0 12.0" in text_of(page.text)
    assert 'href="/?q=where+is+the+key%3F"' in page.text
    assert 'href="/judge?q=where+is+the+key%3F"' in page.text
    assert 'href="/?q=which+door%3F&amp;collections=knowledge"' in page.text
    assert 'href="/judge?q=which+door%3F&amp;collection=knowledge"' in page.text


def test_the_checks_of_doctor_are_shown(library: TestClient) -> None:
    shown = text_of(library.get("/corpus/checks").text)
    assert "migrations" in shown
    assert "PostgreSQL" in shown


def chunk(place: int, embedding: list[float]) -> SampledEmbedding:
    kind = "left" if place % 2 else "right"
    vector = np.array(embedding, np.float32)
    return SampledEmbedding(uuid4(), None, f"t{place}", kind, "note", "en", "web", vector)


def test_the_map_keeps_the_plane_of_most_variance() -> None:
    random = np.random.default_rng(1)
    sample = [
        chunk(place, [1, (place % 2) * 2 - 1, random.normal() / 4, *(random.normal(size=20) / 50)])
        for place in range(200)
    ]
    drawn = embedding_map.drawn(sample, "collection", np.array([1, 1, *[0] * 21], np.float32))
    assert drawn is not None
    assert drawn.kept > 0.9
    sides = {
        colour: [point.x for point in drawn.points if point.colour == colour] for colour in (0, 1)
    }
    lower, higher = sorted(sides.values(), key=min)
    assert max(lower) < min(higher)
    assert dict(drawn.legend) == {"left": 100, "right": 100}
    assert drawn.question is not None
    at = drawn.question[0]
    (colour,) = {point.colour for point in drawn.points if abs(point.x - at) < 99}
    assert drawn.legend[colour][0] == "left"
    assert {int(near.title[1:]) % 2 for near in drawn.nearest} == {1}
    assert embedding_map.drawn(sample, "collection") == embedding_map.drawn(sample, "collection")


def test_repeated_texts_titles_and_sizes_are_found(database: Connection) -> None:
    writer = KnowledgeWriter(database)
    for key in ("a", "b"):
        document = {"external_key": key, "title": "Twice", "document_date": "2024-02-29"}
        document["source_url"] = f"https://example.org/{key}"
        chunks = [{"content": "The same text."}, {"content": f"{key} " * 4000}]
        writer.upsert_document(document, chunks)
    writer.upsert_document({"external_key": "c", "title": "Once"}, [{"content": "Another text."}])
    found = corpus_overview(Database(database))
    documents, sizes = found["documents"], found["sizes"]
    years = [(one["value"], one["documents"]) for one in documents["facets"]["year"]["values"]]
    assert years == [("2024", 2), ("", 1)]
    assert documents["total"] == 3
    (text,) = found["repeated_texts"]["examples"]
    assert (text["chunks"], text["content"], len(text["ids"])) == (2, "The same text.", 2)
    (title,) = found["repeated_documents"]["title"]["examples"]
    assert (title["value"], title["documents"]) == ("Twice", 2)
    assert found["repeated_documents"]["source_url"]["groups"] == 0
    assert (sizes["short"], sizes["long"], sizes["sampled"]) == (3, 2, 5)
    assert {one["document_key"] for one in sizes["examples"]["long"]} == {"a", "b"}
    assert sizes["is_estimated"] is False
    assert sum(one["chunks"] for one in sizes["histogram"]) == 5


def test_an_empty_corpus_has_pages(dsn: str) -> None:
    with browser_of(dsn) as opened:
        for address in PAGES:
            assert opened.get(address).status_code == 200


def test_what_scrolls_can_have_the_focus_of_the_keyboard(library: TestClient) -> None:
    styles = "".join(
        library.get(f"/static/{name}.css").text for name in ("workbench", "corpus", "judging")
    )
    boxes = re.findall(r"(?m)^([^@{}\n]+) \{[^}]*overflow(?:-[xy])?: (?:auto|scroll)", styles)
    boxes.remove(":root")
    found = set()
    waiting = library.post("/judge/questions", data={"questions": "zebra"})
    assert waiting.status_code == 200
    others = ("/document?key=doors.md", "/?q=zebra", "/judge", "/judge?q=zebra", "/settings")
    for address in (*PAGES, *others):
        page = page_of(library, address)
        for selector in boxes:
            for box in page.select(selector):
                found.add(selector)
                assert (box.get("tabindex"), box.get("role")) == ("0", "region"), address
                assert box.get("aria-label"), address
    assert found == set(boxes)

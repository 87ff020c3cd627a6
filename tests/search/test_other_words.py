"""Other readings of a word: spellings with accents, synonyms, completions of the last word."""

from typing import Any
from uuid import UUID

import psycopg
import pytest
from searching import call, numbers, search, store

from conftest import Connection

pytestmark = pytest.mark.module("words")


def texts(connection: Connection, **arguments: Any) -> list[int]:
    return numbers(search(connection, **arguments))


@pytest.mark.parametrize(
    ("language", "plain", "accented"),
    [
        ("french", "generalites", "généralités"),
        ("spanish", "administracion", "administración"),
        ("spanish", "ano", "año"),
        ("english", "cafe", "café"),
        ("simple", "Strasse", "Straße"),
        ("danish", "smorrebrod", "smørrebrød"),
        ("polish", "lodz", "łódź"),
    ],
)
def test_a_word_finds_its_other_spellings_the_exact_one_first(
    knowledge: Connection, language: str, plain: str, accented: str
) -> None:
    store(
        knowledge,
        {"content": accented, "language": language},
        {"content": plain, "language": language},
        {"content": "x", "language": language},
    )
    assert texts(knowledge, query_text=plain) == [2, 1]
    assert texts(knowledge, query_text=accented) == [1, 2]
    hit = search(knowledge, query_text=plain)[1]
    assert hit["matched_terms"] == [plain]
    assert hit["notes"] is None


@pytest.mark.parametrize(
    ("language", "plain", "accented"),
    [("french", "cafe", "café"), ("german", "Muller", "Müller"), ("german", "Strasse", "Straße")],
)
def test_spellings_that_a_language_reads_as_one_word_rank_alike(
    knowledge: Connection, language: str, plain: str, accented: str
) -> None:
    store(knowledge, *[{"content": one, "language": language} for one in (plain, accented)])
    for asked in (plain, accented):
        first, second = search(knowledge, query_text=asked)
        assert first["text_score"] == second["text_score"]


def test_accents_count_in_phrases(knowledge: Connection) -> None:
    store(knowledge, {"content": "año nuevo", "language": "spanish"})
    assert texts(knowledge, query_text="ano nuevo", search_mode="simple") == [1]
    assert texts(knowledge, query_text="ano nuevo", search_mode="phrase") == []


def add_synonym(connection: Connection, term: str, synonym: str, **columns: object) -> None:
    values = {"term": term, "synonym": synonym, **columns}
    names = ", ".join(values)
    places = ", ".join(f"%({name})s" for name in values)
    connection.execute(
        f"insert into public.knowledge_synonyms ({names}) values ({places})".encode(), values
    )


def test_a_synonym_finds_what_the_typed_word_does_not_the_typed_word_first(
    knowledge: Connection,
) -> None:
    store(knowledge, *[{"content": one} for one in ("an automobile", "a car", "a bicycle")])
    add_synonym(knowledge, "car", "automobile", weight=0.5)
    hits = search(knowledge, query_text="cars", snippet=True)
    assert numbers(hits) == [2, 1]
    assert hits[1]["text_score"] == pytest.approx(hits[0]["text_score"] / 2)
    assert hits[1]["matched_terms"] == ["cars"]
    assert hits[1]["snippet"] == "an <mark>automobile</mark>"
    assert texts(knowledge, query_text="automobiles") == [1, 2]
    assert texts(knowledge, query_text="cars", search_mode="simple") == [2, 1]
    assert texts(knowledge, query_text='"car"') == [2]


def test_a_typed_word_and_its_synonym_count_once(knowledge: Connection) -> None:
    store(knowledge, "car automobile", "car car", "x")
    add_synonym(knowledge, "car", "automobile", weight=1)
    first, second = search(knowledge, query_text="car")
    assert numbers([first, second]) == [2, 1]
    knowledge.execute("delete from public.knowledge_synonyms")
    assert second["text_score"] < first["text_score"]


def test_a_one_way_synonym_works_in_one_direction(knowledge: Connection) -> None:
    store(knowledge, "a vehicle", "a car")
    add_synonym(knowledge, "vehicle", "car", is_two_way=False)
    assert texts(knowledge, query_text="vehicle") == [1, 2]
    assert texts(knowledge, query_text="car") == [2]


def test_a_synonym_of_a_collection_works_in_searches_that_name_it(knowledge: Connection) -> None:
    store(knowledge, {"content": "automobile", "collection": "fleet"})
    add_synonym(knowledge, "car", "automobile", collection="fleet")
    assert texts(knowledge, query_text="car") == []
    assert texts(knowledge, query_text="car", collections=["fleet"]) == [1]
    assert texts(knowledge, query_text="car", collections=["other", "fleet"]) == [1]
    assert texts(knowledge, query_text="car", collections=["other"]) == []
    in_filter = psycopg.types.json.Jsonb({"collection": "fleet"})
    assert texts(knowledge, query_text="car", filters=in_filter) == [1]


@pytest.mark.parametrize(
    ("wrong", "constraint"),
    [
        ({"term": "two words"}, "term_is_one_word"),
        ({"synonym": ""}, "synonym_is_one_word"),
        ({"synonym": "Car"}, "synonym_is_another_word"),
        ({"weight": 0}, "weight_is_a_share"),
        ({"weight": 1.1}, "weight_is_a_share"),
    ],
)
def test_a_wrong_synonym_is_refused(
    knowledge: Connection, wrong: dict[str, Any], constraint: str
) -> None:
    given = {"term": "car", "synonym": "auto", **wrong}
    with pytest.raises(psycopg.errors.CheckViolation, match=constraint), knowledge.transaction():
        add_synonym(knowledge, **given)


@pytest.mark.parametrize("prefix", ["c", "ca", "cam", "came", "camera"])
@pytest.mark.parametrize("mode", ["websearch", "simple"])
def test_the_last_word_may_be_the_beginning_of_a_word(
    knowledge: Connection, prefix: str, mode: str
) -> None:
    store(knowledge, "The recorder has no cameras.", "A recorder.")
    query = {"query_text": f"recorder {prefix}", "search_mode": mode}
    hits = search(knowledge, **query, prefix_last=True, snippet=True)
    assert numbers(hits)[0] == 1
    assert prefix in hits[0]["matched_terms"]
    assert "<mark>cameras</mark>" in hits[0]["snippet"]


@pytest.mark.parametrize("text", ["cam recorder", "recorder cam ", "recorder -cam", '"cam"'])
def test_only_the_last_word_is_completed_and_only_while_it_is_typed(
    knowledge: Connection, text: str
) -> None:
    store(knowledge, "recorder", "camera")
    assert 2 not in texts(knowledge, query_text=text, prefix_last=True)


def test_a_prefix_is_one_word_whose_best_completion_scores(knowledge: Connection) -> None:
    store(knowledge, "camera camel", "camel camel", "x")
    hits = search(knowledge, query_text="came", prefix_last=True)
    assert numbers(hits) == [2, 1]


def test_a_prefix_that_is_a_stop_word_is_completed(knowledge: Connection) -> None:
    store(knowledge, "An invoice", "A reminder")
    assert texts(knowledge, query_text="in", prefix_last=True) == [1]


ME, OTHER = UUID(int=1), UUID(int=2)


def test_hidden_words_do_not_crowd_out_a_visible_completion(knowledge: Connection) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    hidden = " ".join(f"qu{one}{other}" for one in letters for other in letters)
    store(
        knowledge,
        {"content": "quixotronics", "owner_id": ME},
        {"content": hidden, "owner_id": OTHER},
    )
    for prefix in ("q", "qu", "qui", "quix"):
        assert texts(knowledge, query_text=prefix, prefix_last=True, viewer_id=ME) == [1]


@pytest.mark.parametrize("prefix", ["q" * 2046, "q" * 2047, "q" * 4096, "é" * 1023, "é" * 2047])
@pytest.mark.parametrize("viewer", [None, ME])
def test_a_prefix_longer_than_any_word_finds_nothing(
    knowledge: Connection, prefix: str, viewer: UUID | None
) -> None:
    store(knowledge, {"content": "quixotronics", "owner_id": ME})
    assert texts(knowledge, query_text=prefix, prefix_last=True, viewer_id=viewer) == []
    both = f"quixotronics {prefix}"[:4096]
    assert texts(knowledge, query_text=both, prefix_last=True, viewer_id=viewer) == [1]


def test_hidden_spellings_do_not_crowd_out_a_visible_one(knowledge: Connection) -> None:
    hidden = " ".join(f"{e}t{other}" for e in "èêëē" for other in "èêëē")
    # The visible spelling is the last one in every collation.
    store(knowledge, {"content": "ětě", "owner_id": ME}, {"content": hidden, "owner_id": OTHER})
    assert texts(knowledge, query_text="ete", viewer_id=ME) == [1]


def test_without_prefix_last_no_word_is_completed(knowledge: Connection) -> None:
    store(knowledge, "camera")
    assert texts(knowledge, query_text="cam") == []
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="prefix_last"):
        call(knowledge, "hybrid_search_knowledge_chunks", query_text="cam", prefix_last=None)

"""A stop word of one language is common there, whatever another language reads in it."""

from typing import Any

import pytest
from psycopg.types.json import Jsonb
from searching import Row, call, search, store

from conftest import Connection
from second_brain.services.arguments import FUSIONS

SHOPS = [
    {
        "content": f"The refund policy of shop {number}: what is paid is returned in {number} days",
        "language": "english",
        "embedding": [1, 0, 0],
    }
    for number in range(60)
]
QUESTIONS = [
    "what is the refund policy",
    "what is the refund policy of the shop",
    "What is it that the refund is?",
    "is there what the shop has",
    "the refund",
]
FOREIGN = {
    "polish": ("pl", "Klient napisał: what you see is what you get, it is the best there is."),
    "french": ("fr", "Le client : what you see is what you get, it is the best there is. Merci."),
    "unknown code": ("eng", "What you see is what you get, and it is the best that there is."),
    "wrong language": ("nl", "What you see is what you get, and it is the best that there is."),
    "no language": ("xx-old", "What is it? It is what it is, the thing that has the what in it."),
    "german": ("de", "Der Kunde: what is the what of the is, that is it, there has the that."),
}


def add(connection: Connection, *chunks: tuple[str, str]) -> None:
    store(
        connection, *SHOPS, *[{"content": text, "language": language} for language, text in chunks]
    )


def best(connection: Connection, **arguments: Any) -> Row:
    return search(connection, match_count=1, **arguments)[0]


@pytest.mark.parametrize("foreign", FOREIGN)
def test_one_chunk_in_another_language_is_not_first(knowledge: Connection, foreign: str) -> None:
    add(knowledge, FOREIGN[foreign])
    for question in QUESTIONS:
        hit = best(knowledge, query_text=question)
        assert hit["content"].startswith("The refund policy"), question
        assert hit["answer_confidence"] > 0.9


@pytest.mark.parametrize("fusion", FUSIONS)
def test_it_does_not_pass_a_bound_of_confidence(knowledge: Connection, fusion: str) -> None:
    add(knowledge, *FOREIGN.values())
    asked = {"fusion": fusion, "min_confidence": 0.5, "match_count": 100}
    for question in QUESTIONS[:3]:
        for embedding in (None, [1, 0, 0]):
            hits = search(knowledge, query_text=question, query_embedding=embedding, **asked)
            assert len(hits) == 60
            assert all(hit["content"].startswith("The refund policy") for hit in hits)


def test_several_mislabelled_chunks_are_not_first_either(knowledge: Connection) -> None:
    add(knowledge, *[FOREIGN["wrong language"]] * 3, *[FOREIGN["unknown code"]] * 3)
    for question in QUESTIONS:
        assert best(knowledge, query_text=question)["content"].startswith("The refund policy")


HALVES = {
    "german": (
        "Die Umstellung {} war in der Werkstatt, und die Rechnung kam an, weil es so war",
        "Old batteries die in a war of attrition",
        ["Wie war die Umstellung", "Was ist mit der Rechnung", "Warum war das so in der Werkstatt"],
    ),
    "french": (
        "La facture {} est arrivée dans la cuisine, et elle est pour nous avec la lampe",
        "On a la carte menu: les sons et nous",
        ["quelle est la facture", "qui est dans la cuisine", "est-ce que la lampe est pour nous"],
    ),
    "dutch": (
        "De rekening {} was in de keuken, en die is van ons omdat het zo is met de lamp",
        "The men die of thirst over there, was the toe er",
        ["waar was de rekening", "wat is er in de keuken", "is die lamp van ons"],
    ),
    "spanish": (
        "La factura {} estaba en la cocina, y es de nosotros porque no hay otra con la luz",
        "Las Vegas has no equal: es la sin city",
        ["cuál es la factura", "qué hay en la cocina", "de quién es la luz que estaba"],
    ),
    "swedish": (
        "Räkningen {} var i köket, och den är från oss för att det inte är så med lampan",
        "Var i able is a man of men, so he has all",
        ["var är räkningen", "vad var i köket", "hur är det med lampan"],
    ),
}


@pytest.mark.parametrize("language", HALVES)
def test_in_a_corpus_of_two_halves_each_is_found_in_its_language(
    knowledge: Connection, language: str
) -> None:
    text, english, questions = HALVES[language]
    halves = [{"content": text.format(number), "language": language} for number in range(60)]
    store(knowledge, *SHOPS, *halves, {"content": english, "language": "english"})
    beginning = text.split("{}")[0]
    for question in questions:
        hit = best(knowledge, query_text=question)
        assert hit["content"].startswith(beginning), question
    for question in QUESTIONS[:3]:
        assert best(knowledge, query_text=question)["content"].startswith("The refund policy")
    # What no chunk of the other language has says nothing against a hit.
    assert best(knowledge, query_text="when was the refund")["answer_confidence"] > 0.9


@pytest.mark.parametrize("question", ["refund policy", "shop 7", "what is paid in 9 days"])
def test_another_language_leaves_the_scores_of_the_others(
    knowledge: Connection, question: str
) -> None:
    store(knowledge, *SHOPS)
    alone = [hit["text_score"] for hit in search(knowledge, query_text=question, match_count=5)]
    knowledge.execute(
        "insert into public.knowledge_chunks (language, content) values ('pl', 'Dziękujemy.')"
    )
    beside = [hit["text_score"] for hit in search(knowledge, query_text=question, match_count=5)]
    # The corpus has one chunk more.
    assert beside == pytest.approx(alone, rel=0.02, abs=0.1)


@pytest.mark.parametrize("known", ["never analysed", "analysed", "copied", "grown since"])
def test_a_large_corpus_knows_how_many_chunks_each_language_has(
    database: Connection, known: str
) -> None:
    many = (
        "insert into public.knowledge_chunks (language, content)"
        " select 'english', format('The refund policy of shop %s is what it is', n)"
        "   from generate_series(1, 1200) as n"
    )
    database.execute(many)
    add(database, *FOREIGN.values())
    if known != "never analysed":
        database.execute("analyze public.knowledge_chunks")
    if known in ("copied", "grown since"):
        database.execute("select public.refresh_knowledge_statistics()")
    if known == "grown since":
        database.execute(many)
    for question in QUESTIONS[:3]:
        assert best(database, query_text=question)["content"].startswith("The refund policy")


@pytest.mark.module("words")
@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("there", "three"),
        ("other", "otter"),
        ("about", "abort"),
        ("under", "udder"),
        ("their", "heir"),
    ],
)
def test_a_stop_word_is_not_misspelt_in_another_language(
    knowledge: Connection, word: str, near: str
) -> None:
    add(knowledge, ("pl", f"{near} dziękujemy"), ("english", f"The {near} is here"))
    hit = best(knowledge, query_text=f"{word} refund")
    assert (hit["notes"] or {}).get("replaced") is None
    assert hit["content"].startswith("The refund policy")


@pytest.mark.module("like")
@pytest.mark.parametrize("language", ["nl", "pl", "eng", "de", "xx"])
def test_more_like_a_mislabelled_chunk_goes_by_its_content(
    knowledge: Connection, language: str
) -> None:
    add(
        knowledge,
        (language, "What is the marmot? The marmot is what the Alps are known for"),
        (language, "What is it? It is what the other is, and what the thing is"),
        ("english", "A marmot lives in burrows"),
    )
    ((known,),) = knowledge.execute(
        "select id from public.knowledge_chunks where content like 'What is the marmot%'"
    ).fetchall()
    hit = call(knowledge, "hybrid_search_knowledge_chunks", like_ids=[known], match_count=1)[0]
    assert hit["content"] == "A marmot lives in burrows"


PHRASES = {
    "english": ("refund", ["what is the", "it is", "in what"]),
    "german": ("Rechnung", ["was ist", "die der", "in der"]),
    "french": ("facture", ["qui est", "dans la", "pour nous"]),
    "spanish": ("factura", ["es la", "por qué", "en la"]),
    "russian": ("счёт", ["что был", "она в", "и не"]),
}


@pytest.mark.parametrize("language", PHRASES)
def test_a_phrase_that_most_chunks_drop_requires_nothing_of_the_others(
    knowledge: Connection, language: str
) -> None:
    word, phrases = PHRASES[language]
    rows = [{"content": f"{word} {number}", "language": language} for number in range(20)]
    store(knowledge, *rows, {"content": f"a b c {' '.join(phrases)}", "language": "pl"})
    for phrase in phrases:
        hits = search(knowledge, query_text=f'{word} "{phrase}"', match_count=100)
        assert len(hits) == 21
        assert hits[0]["content"].startswith(word)
        assert hits[0]["notes"] == {"dropped": [f'"{phrase}"']}
        hits = search(knowledge, query_text=f'{word} -"{phrase}"', match_count=100)
        assert {hit["content"].split()[0] for hit in hits} >= {word}
        assert hits[0]["notes"] == {"dropped": [f'-"{phrase}"']}


def test_a_word_that_few_chunks_drop_is_required_and_excluded(knowledge: Connection) -> None:
    letters = ("The son came home", "The father came home", "A letter came home")
    store(knowledge, *letters, {"content": "La lettre est chez son père", "language": "french"})
    (hit,) = search(knowledge, query_text='home "son"')
    assert hit["content"] == letters[0]
    hits = search(knowledge, query_text="home -son")
    assert {hit["content"] for hit in hits} == set(letters[1:])
    assert hits[0]["notes"] == {"excluded": ["son"]}


@pytest.mark.module("insight")
@pytest.mark.parametrize("language", PHRASES)
def test_words_that_rows_have_as_stop_words_are_not_named_as_missing(
    knowledge: Connection, language: str
) -> None:
    word, phrases = PHRASES[language]
    store(
        knowledge,
        {"content": f"{word} {' '.join(phrases)}", "language": language, "collection": "one"},
        {"content": "Dziękujemy", "language": "pl", "collection": "two"},
    )

    def why(query_text: str, *collections: str) -> Any:
        asked = {"query_text": query_text, "collections": list(collections) or None}
        row = knowledge.execute(
            "select public.explain_empty_knowledge_search(%s)", [Jsonb(asked)]
        ).fetchone()
        assert row is not None
        return row[0]

    for phrase in phrases:
        said = why(f"{phrase} zzqx")
        assert (said["reason"], 'a word of the question: "zzqx".' in said["message"]) == (
            "no_words",
            True,
        )
        assert why(phrase)["reason"] == "no_searchable_words"
        # No row of the other collection has them.
        assert f'"{phrase.split()[0]}"' in why(phrase, "two")["message"]

"""Share of the questions for a name of code or a part number whose first hit is right.

The corpus is the standard library of the running interpreter (the sections of its documentation,
as `second-brain ingest` reads it, and the source of its functions) and a generated list of parts in
the styles of several manufacturers, in which near neighbours differ by one character. 200 questions
ask for identifiers that are in at most three chunks: half from the library, half from the list. An
identifier is spelled as in the chunk or in another way (`lruCache`, `lru-cache`, `LRU_CACHE`,
`lru_cache()`; `ab12345`, `AB 12345`, `AB12345` of AB-12345/X) and stands alone or in a question
whose other words are common in the corpus. Everything follows from the seed.

A chunk is right when it has the pieces of the identifier (words, numbers) one after the other; this
is decided here and not by the database. Printed is the share of questions whose first hit is right,
for the text leg, fusion auto and rrf, with WordLlama's embeddings.
"""

import argparse
import ast
import json
import re
import sys
import sysconfig
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from second_brain.evaluation import collection as collections
from second_brain.evaluation import runs
from second_brain.evaluation.collection import Collection, Document, Query
from second_brain.evaluation.runs import Settings
from second_brain.evaluation.scratch import load, scratch_database
from second_brain.ingest.standard_library import standard_library
from second_brain.models import load_embedder
from second_brain.services.arguments import Leg
from second_brain.services.install import Database

SEED = 7
MOST_RIGHT = 3
SEARCHES: dict[str, tuple[Leg, Settings]] = {
    "text": ("text", Settings()),
    "auto": ("hybrid", Settings(fusion="auto")),
    "rrf": ("hybrid", Settings(fusion="rrf")),
}
PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
NAME = re.compile(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
MODULES = tuple(
    """
    argparse ast calendar collections configparser contextlib csv dataclasses difflib enum
    fileinput functools heapq http.cookiejar inspect ipaddress json.decoder json.encoder linecache
    logging mailbox optparse pathlib pprint queue random shelve shlex shutil smtplib socket
    statistics string subprocess tempfile textwrap threading tokenize traceback typing
    unittest.case urllib.parse urllib.request uuid zipfile
    """.split()  # noqa: SIM905
)
CODE_QUESTIONS = (
    "{}",
    "what does {} do",
    "how do I use {} to read a file",
    "{} example with a list of strings",
    "what are the arguments of {} and what value does it return",
    "when is an error raised by {} and how is it handled",
    "is {} thread safe or does it need a lock",
    "difference between the default and the given class of {}",
)
PART_QUESTIONS = (
    "{}",
    "datasheet of {}",
    "is {} in stock",
    "what is the supply voltage of {}",
    "replacement for a broken {} connector with black housing",
    "which sealed relay or sensor is {}",
    "maximum current and temperature range of {} in volts and amperes",
)
KINDS = (
    "relay",
    "sensor",
    "connector",
    "regulator",
    "amplifier",
    "bearing",
    "valve",
    "fuse",
    "switch",
    "recorder",
    "encoder",
    "capacitor",
    "terminal block",
    "power supply",
    "bracket",
    "pump",
)
PROPERTIES = (
    "black housing",
    "sealed",
    "with cable",
    "DIN rail",
    "surface mount",
    "low noise",
    "24 V",
    "stainless steel",
    "two channels",
    "IP rated",
    "for outdoor use",
    "with LED",
    "right angle",
)


@dataclass(frozen=True)
class Asked:
    """A question, the identifier in it as its pieces, and where it comes from."""

    text: str
    pieces: tuple[str, ...]
    origin: str


def pieces(text: str) -> tuple[str, ...]:
    """Split a text at punctuation, at capitals and between letters and digits."""
    return tuple(piece.lower() for piece in PIECE.findall(text))


def documentation() -> Iterator[Document]:
    """Yield each section of the documentation of the standard library."""
    for source in standard_library():
        document = source.load()
        for number, section in enumerate(re.split(r"(?m)^(?=#{2,3} )", document.text)):
            if len(section) > 80:
                title = document.title or source.external_key
                yield Document(f"{title}#{number}", title, section[:3000])


def code() -> Iterator[Document]:
    """Yield the source of each function and method of some modules."""
    root = Path(sysconfig.get_path("stdlib"))
    for module in MODULES:
        places = (root / f"{module.replace('.', '/')}{end}" for end in (".py", "/__init__.py"))
        file = next((place for place in places if place.is_file()), None)
        if file is None or module.split(".")[0] not in sys.stdlib_module_names:
            continue
        with tokenize.open(file) as opened:
            text = opened.read()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                source = ast.get_source_segment(text, node) or ""
                if 120 < len(source) < 3000:
                    yield Document(f"{module}:{node.lineno}", f"{module}.py", source)


def part_numbers(random: Random) -> Iterator[tuple[str, list[str]]]:
    """Yield part numbers with the parts of one that also name it, in manufacturers' styles."""

    def letters(count: int) -> str:
        return "".join(random.choices("ABCDEFGHKLMNPRSTVWX", k=count))

    def digits(count: int) -> str:
        return str(random.randrange(10 ** (count - 1), 10**count))

    while True:
        base, number = letters(2), digits(5)
        yield f"{base}-{number}/{letters(1)}", [f"{base}-{number}"]
        yield f"{letters(3)}{digits(4)}{letters(2)}", []
        series = f"{digits(1)}{letters(2)}{digits(4)}"
        yield f"{series}-{digits(1)}{letters(2)}{digits(2)}-{digits(1)}{letters(2)}0", [series]
        yield f"{digits(4)}.{digits(3)}.{digits(3)}", []
        head = f"{letters(2)}-{digits(4)}{letters(2)}"
        yield f"{head}-{letters(1)}{digits(1)}/{digits(1)}P", [head]
        yield f"{letters(2)}_{digits(3)}_{letters(2)}{digits(2)}", []
        yield f"{digits(3)}-{digits(4)}-{letters(2)}", []


def parts(random: Random, count: int) -> tuple[list[Document], dict[str, list[str]]]:
    """Return a chunk for each part, and the names of each part; every third has a neighbour."""
    documents: list[Document] = []
    names: dict[str, list[str]] = {}
    for place, (number, shorter) in enumerate(part_numbers(random)):
        if place >= count:
            return documents, names
        numbers = [number]
        if place % 3 == 0:
            digit = max(found.start() for found in re.finditer(r"\d", number))
            changed = str((int(number[digit]) + 1) % 10)
            numbers.append(number[:digit] + changed + number[digit + 1 :])
            shorter = []
        for variant, one in enumerate(numbers):
            kind, *drawn = random.choice(KINDS), *random.sample(PROPERTIES, 3)
            text = (
                f"{kind.capitalize()} {one}, {', '.join(drawn)}. Supply voltage"
                f" {random.randint(5, 48)} V, current at most {random.randint(1, 40)} A,"
                f" temperature range -{random.randint(10, 40)} to {random.randint(60, 125)}"
                f" degrees. Order number {one}; packed in units of {random.choice((1, 5, 10, 25))}."
            )
            documents.append(Document(f"part{place}.{variant}", f"Parts list: {kind}", text))
            names[one] = [one, *shorter]
    raise AssertionError("part numbers never end")


def code_spellings(name: str) -> list[str]:
    """Return ways to write a name of code."""
    words = [word for word in re.split(r"[_.]+", name) if word]
    last = name.rsplit(".", 1)[-1]
    split = PIECE.findall(last)
    camel = split[0].lower() + "".join(word.capitalize() for word in split[1:])
    return [
        name,
        f"{name}()",
        last,
        f"`{last}`",
        last.upper() if "_" in last else last,
        camel,
        "_".join(word.lower() for word in split),
        "-".join(word.lower() for word in split),
        "::".join(words) if "." in name else last,
    ]


def part_spellings(name: str) -> list[str]:
    """Return ways to write a part number."""
    joined = re.sub(r"[^A-Za-z0-9]+", "", name)
    apart = re.sub(r"[^A-Za-z0-9]+", " ", name)
    spellings = [name, name, name.lower(), re.sub(r"[-_/]", "-", name), apart]
    # 1.23 and 12.3 are two numbers.
    return spellings if re.fullmatch(r"[\d.]+", name) else [*spellings, joined, joined.lower()]


class Corpus:
    """The chunks by their pieces, to find those that have an identifier."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents
        self._runs = [f" {' '.join(pieces(f'{one.title} ; {one.text}'))} " for one in documents]
        self._having: dict[str, set[int]] = defaultdict(set)
        for place, run in enumerate(self._runs):
            for piece in set(run.split()):
                self._having[piece].add(place)

    def right(self, wanted: tuple[str, ...]) -> list[str]:
        """Return the chunks with these pieces one after the other, or as one word."""
        run = f" {' '.join(wanted)} "
        rarest = min((self._having[piece] for piece in wanted), key=len)
        places = {place for place in rarest if run in self._runs[place]}
        places |= self._having.get("".join(wanted), set())
        return [self.documents[place].id for place in sorted(places)]


def code_names(corpus: Corpus) -> list[str]:
    """Return the compound names of code that are in at most three chunks, in order."""
    found: Counter[str] = Counter()
    for one in corpus.documents:
        found.update(set(NAME.findall(one.text)))
    names = [
        name.strip("_")
        for name, chunks in found.items()
        if chunks <= MOST_RIGHT and len(name) >= 8 and len(pieces(name)) in (2, 3, 4)
    ]
    return sorted(
        name
        for name in set(names)
        if re.search(r"[a-z]_[a-z]|[a-z]{2}[A-Z][a-z]|\w{3}\.\w{3}", name)
        and 1 <= len(corpus.right(pieces(name))) <= MOST_RIGHT
    )


def ask(
    corpus: Corpus, random: Random, named: Mapping[str, Sequence[str]], count: int
) -> list[Asked]:
    """Return questions for parts and for names of code, half each."""
    asked: list[Asked] = []
    question: Sequence[str]
    for origin, choices in (("part", list(named)), ("code", code_names(corpus))):
        random.shuffle(choices)
        made = 0
        for choice in choices:
            if made == count // 2:
                break
            if origin == "part":
                name = random.choice(named[choice])
                spelling, question = random.choice(part_spellings(name)), PART_QUESTIONS
            else:
                name = choice
                spelling, question = random.choice(code_spellings(name)), CODE_QUESTIONS
            wanted = pieces(spelling)
            # Without its module, a name may be in more chunks; in small letters it is a word.
            if len(wanted) > 1 and 1 <= len(corpus.right(wanted)) <= MOST_RIGHT:
                asked.append(Asked(random.choice(question).format(spelling), wanted, origin))
                made += 1
    return asked


def build(count: int) -> tuple[Collection, dict[str, str]]:
    """Return the collection, and the origin of each of its questions."""
    random = Random(SEED)
    listed, named = parts(random, 600)
    corpus = Corpus([*documentation(), *code(), *listed])
    asked = ask(corpus, random, named, count)
    queries = [Query(f"q{row}", one.text, row) for row, one in enumerate(asked)]
    qrels = {
        query.id: dict.fromkeys(corpus.right(one.pieces), 1)
        for query, one in zip(queries, asked, strict=True)
    }
    collection = Collection(
        name="identifiers",
        queries=queries,
        qrels=qrels,
        document_count=len(corpus.documents),
        documents=corpus.documents,
        queries_in_file=len(queries),
    )
    return collection, {query.id: one.origin for query, one in zip(queries, asked, strict=True)}


def main() -> None:
    """Print the shares as JSON, and with --misses the questions whose first hit is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--misses", action="store_true", help="list the wrong first hits")
    options = parser.parse_args()
    collection, origins = build(options.questions)
    vectors = collections.embed(collection, load_embedder("wordllama"))
    with scratch_database(vectors.dimensions) as connection:
        load(connection, collection, vectors, "english", lambda doing: None)
        searcher = runs.Searcher(Database(connection), vectors.queries, one_per_document=False)
        for name, (leg, settings) in SEARCHES.items():
            right: Counter[str] = Counter()
            for query in collection.queries:
                documents = searcher.answer(query, leg, settings, 10).documents
                relevant = collection.qrels[query.id]
                if documents and documents[0] in relevant:
                    right[origins[query.id]] += 1
                elif options.misses:
                    first = documents[0] if documents else None
                    print(name, repr(query.text), "found", first, "not", *relevant)
            asked = Counter(origins.values())
            figures = {
                "search": name,
                "questions": len(origins),
                "chunks": len(collection.documents),
                "right_first": round(right.total() / len(origins), 3),
                **{origin: round(right[origin] / asked[origin], 3) for origin in sorted(asked)},
            }
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()

"""Test collections for fusion, in BEIR's layout, from text that is on the machine or in Debian.

Each collection asks for known items: a question is made from one document, which alone is
relevant. The kinds differ in which leg is better, and in whether the embedding model knows the
language. No text is part of the repository; the collections are made from these sources:

- `man-LANGUAGE-name` and `man-LANGUAGE-half`: manual pages, asked by the line of the section NAME
  (which the document does not contain) and by the second half of a sentence of the page;
- `code`: functions of Python's standard library without their docstring, asked by its first
  paragraph;
- `docstrings`: docstrings of the standard library without the first sentence, asked by it;
- `titles-NAME`: documents of a given collection without their title, asked by the title;
- `bodies-NAME`: the questions of a given collection, its documents without their title.

The manual pages come from packages that are not installed:

    apt-get download manpages manpages-dev manpages-de manpages-de-dev ...
    dpkg-deb -x PACKAGE.deb MAN
    python -m benchmarks.make_collections INTO --man MAN/usr/share/man --titles scifact
"""

import argparse
import ast
import gzip
import inspect
import json
import re
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path
from random import Random

from second_brain.evaluation import collection as collections

DOCUMENTS = 800
QUESTIONS = 300
WORDS = 160
SEED = 15
LANGUAGES = {"en": "english", "de": "german", "es": "spanish", "fr": "french", "pl": "simple"}

# Document id, title, text, question: an empty question is not asked.
Item = tuple[str, str, str, str]

_REQUEST = re.compile(r"^[.'].*$", re.M)
_KEPT = re.compile(r"^\.(?:BI?|I|IR|BR|RB|RI|SM|SB) +(.*)$", re.M)
_ESCAPES = (
    (re.compile(r"\\f(?:\[\w*\]|\(\w\w|\w)|\\[,/&|^:%]|\\s[-+]?\d+|\\\*\(\w\w"), ""),
    (re.compile(r"\\\(aq|\\\[aq\]"), "'"),
    (re.compile(r"\\\((?:lq|rq)|\\\[(?:lq|rq)\]|\\\(dq"), '"'),
    (re.compile(r"\\\(\w\w|\\\[\w+\]"), " "),
    (re.compile(r"\\-"), "-"),
    (re.compile(r"\\e"), r"\\"),
    (re.compile(r"\\ |\\~|\\0"), " "),
    (re.compile(r'"'), ""),
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-ZÄÖÜÉÈÀÁÍÓÚŁŚŻ¿¡])")

_CODE = re.compile(r"[_{}<>=;#\\/]|--")


def manual_pages(root: Path, language: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, short description and text of each page of a language, in a random order."""
    folder = root if language == "en" else root / language
    files = sorted(file for file in folder.glob("man[1-8]*/*.gz") if not file.is_symlink())
    Random(SEED).shuffle(files)
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8", errors="replace") as opened:
            sections = _sections(opened.read())
        if len(sections) < 3 or " - " not in sections[0]:
            continue
        names, short = sections[0].split(" - ", 1)
        # The first long section after the synopsis is the description.
        text = next((text for text in sections[2:] if len(text.split()) >= 40), "")
        if text and len(short.split()) >= 3:
            yield file.name.removesuffix(".gz"), names.strip(), short.strip(), _first_words(text)


def _sections(source: str) -> list[str]:
    parts = re.split(r"^\.SH +.*$", re.sub(r'^\.?\\".*$', "", source, flags=re.M), flags=re.M)
    return [_plain(part) for part in parts[1:]]


def _plain(source: str) -> str:
    text = _REQUEST.sub("", _KEPT.sub(r"\1", source))
    for pattern, replacement in _ESCAPES:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def _first_words(text: str) -> str:
    return " ".join(text.split()[:WORDS])


def names(root: Path, language: str) -> Iterator[Item]:
    """Yield manual pages with the description of the section NAME as the question."""
    for page, _, short, text in manual_pages(root, language):
        yield page, "", text, short


def halves(root: Path, language: str) -> Iterator[Item]:
    """Yield manual pages with the second half of one of their sentences as the question."""
    random = Random(SEED)
    for page, _, _, text in manual_pages(root, language):
        sentences = [
            words
            for part in _SENTENCE.split(text)
            if 10 <= len(words := part.split()) <= 40 and not _CODE.search(part)
        ]
        half = random.choice(sentences) if sentences else []
        yield page, "", text, " ".join(half[len(half) // 2 :])


def functions() -> Iterator[tuple[str, str, str]]:
    """Yield name, docstring and source without it of the standard library's functions."""
    folder = Path(sysconfig.get_path("stdlib"))
    for file in sorted(folder.rglob("*.py")):
        relative = file.relative_to(folder)
        if {"test", "tests", "site-packages", "idlelib", "lib2to3"} & set(relative.parts):
            continue
        source = file.read_text("utf-8", errors="replace")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        lines = source.splitlines()
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            docstring = ast.get_docstring(node)
            if docstring is None or node.end_lineno is None or len(node.body) < 2:
                continue
            code = [*lines[node.lineno - 1 : node.body[0].lineno - 1]]
            code += lines[node.body[1].lineno - 1 : node.end_lineno]
            if 4 <= len(code) <= 40:
                name = f"{'.'.join(relative.with_suffix('').parts)}.{node.name}:{node.lineno}"
                yield name, docstring, textwrap.dedent("\n".join(code))


def code() -> Iterator[Item]:
    """Yield functions with the first paragraph of their docstring as the question."""
    for name, docstring, source in functions():
        question = " ".join(docstring.split("\n\n")[0].split())
        if 4 <= len(question.split()) <= 40:
            yield name, "", source, question


def docstrings() -> Iterator[Item]:
    """Yield docstrings with their first sentence as the question."""
    for name, docstring, _ in functions():
        first, _, rest = inspect.cleandoc(docstring).partition("\n\n")
        question = " ".join(first.split())
        if 4 <= len(question.split()) <= 30 and len(rest.split()) >= 15:
            yield name, "", _first_words(" ".join(rest.split())), question


def titles(directory: Path) -> Iterator[Item]:
    """Yield the documents of a collection with their title as the question."""
    for document in collections.load(directory).documents:
        if len(document.title.split()) >= 3 and document.text.strip():
            yield document.id, "", document.text, document.title.rstrip(" .")


def write(into: Path, items: Iterator[Item], language: str = "english") -> None:
    """Write a random sample of the items as a collection."""
    found: dict[str, Item] = {}
    for item in items:
        found.setdefault(item[2], item)
    random = Random(SEED)
    sampled = list(found.values())
    random.shuffle(sampled)
    sampled = sampled[:DOCUMENTS]
    asked = [item for item in sampled if item[3]]
    asked = random.sample(asked, min(QUESTIONS, len(asked)))
    into.mkdir(parents=True, exist_ok=True)
    (into / "language").write_text(language)
    _write_lines(
        into / "corpus.jsonl",
        ({"_id": id_, "title": title, "text": text} for id_, title, text, _ in sampled),
    )
    _write_lines(into / "queries.jsonl", ({"_id": item[0], "text": item[3]} for item in asked))
    judged = (f"{item[0]}\t{item[0]}\t1" for item in asked)
    (into / "qrels.tsv").write_text("\n".join(("query-id\tcorpus-id\tscore", *judged, "")))
    print(f"{into}: {len(sampled)} documents, {len(asked)} questions", flush=True)


def write_bodies(into: Path, directory: Path) -> None:
    """Write a collection without the titles of its documents, with a sample of its questions."""
    given = collections.load(directory).sample(QUESTIONS, SEED)
    into.mkdir(parents=True, exist_ok=True)
    (into / "language").write_text("english")
    _write_lines(
        into / "corpus.jsonl",
        ({"_id": document.id, "text": document.text} for document in given.documents),
    )
    _write_lines(
        into / "queries.jsonl", ({"_id": query.id, "text": query.text} for query in given.queries)
    )
    judged = (
        f"{query}\t{document}\t{grade}"
        for query, grades in given.qrels.items()
        for document, grade in grades.items()
    )
    (into / "qrels.tsv").write_text("\n".join(("query-id\tcorpus-id\tscore", *judged, "")))
    print(f"{into}: {len(given.documents)} documents, {len(given.queries)} questions", flush=True)


def _write_lines(file: Path, items: Iterator[dict[str, str]]) -> None:
    with file.open("w", encoding="utf-8") as opened:
        opened.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in items)


def main() -> None:
    """Write the collections whose sources are given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("into", type=Path)
    parser.add_argument(
        "--man", type=Path, help="a folder of manual pages, with a folder a language"
    )
    parser.add_argument("--titles", type=Path, nargs="*", default=[], metavar="COLLECTION")
    parser.add_argument("--bodies", type=Path, nargs="*", default=[], metavar="COLLECTION")
    options = parser.parse_args()

    write(options.into / "code", code())
    write(options.into / "docstrings", docstrings())
    if options.man:
        for language, configuration in LANGUAGES.items():
            for kind, read in (("name", names), ("half", halves)):
                write(
                    options.into / f"man-{language}-{kind}",
                    read(options.man, language),
                    configuration,
                )
    for directory in options.titles:
        write(options.into / f"titles-{directory.name}", titles(directory))
    for directory in options.bodies:
        write_bodies(options.into / f"bodies-{directory.name}", directory)


if __name__ == "__main__":
    main()

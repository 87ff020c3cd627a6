"""Files of judgments: BEIR folders and CSV, from and for the table knowledge_judgments.

The smallest file has a question and the expected document in each line.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from second_brain.evaluation.collection import CollectionError, load
from second_brain.services.install import Database
from second_brain.services.judgments import Judgment

_COLUMNS = (
    *("question", "document", "chunk", "grade"),
    *("collection", "judged_by", "judged_at", "is_generated"),
)
CHUNK = "chunk:"
"""Before the id of a chunk without a document, as the id of a document in BEIR files."""

_HIGHEST = 2
_REMEDY = (
    "Give a BEIR folder, or a file with a question and a document in each line, separated by a tab "
    f"or as CSV. A header names the columns: {', '.join(_COLUMNS)}."
)

_CORPUS = """
    select
      coalesce(document.external_key, 'chunk:' || chunk.id),
      coalesce(document.title, ''),
      string_agg(chunk.content, E'\\n\\n' order by chunk.chunk_index, chunk.id)
    from knowledge_internal.chunk_rows as chunk
    left join public.knowledge_documents as document on document.id = chunk.document_id
    where chunk.status = 'active'
      and (%(collection)s::text is null or chunk.collection = %(collection)s::text)
    group by 1, 2
    order by 1
"""


def grades(judgments: Iterable[Judgment]) -> dict[str, dict[str, int]]:
    """Return the grades of documents for each question.

    The grade of a document or chunk is the mean of its judges, rounded, one half up. A document has
    the best grade of itself and of its chunks.
    """
    given: dict[str, dict[tuple[str, Any], list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in judgments:
        document = one.document_key or f"{CHUNK}{one.chunk_id}"
        given[one.question][document, one.chunk_id].append(one.grade)
    graded: dict[str, dict[str, int]] = {}
    for question, things in given.items():
        best = graded.setdefault(question, {})
        for (document, _), by_judges in things.items():
            grade = int(sum(by_judges) / len(by_judges) + 0.5)
            best[document] = max(grade, best.get(document, 0))
    return graded


def write_beir(
    folder: Path, judgments: Iterable[Judgment], database: Database, collection: str | None = None
) -> int:
    """Write corpus, queries and qrels of a collection (None: all), and return the queries.

    The grades of documents are those of `grades`. Raises CollectionError for a key with a tab or a
    newline, which the format cannot store.
    """
    graded = grades(judgments)
    for document in (document for found in graded.values() for document in found):
        if not document.isprintable():
            raise CollectionError(
                f"the key {document!r} has a character that BEIR files cannot store"
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "qrels").mkdir(exist_ok=True)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for id_, title, text in database.execute(_CORPUS, {"collection": collection}):
            file.write(_line(_id=id_, title=title, text=text))
    with (
        (folder / "queries.jsonl").open("w", encoding="utf-8") as queries,
        (folder / "qrels" / "test.tsv").open("w", encoding="utf-8") as qrels,
    ):
        qrels.write("query-id\tcorpus-id\tscore\n")
        for number, (question, found) in enumerate(sorted(graded.items()), start=1):
            queries.write(_line(_id=f"q{number}", text=question))
            qrels.writelines(f"q{number}\t{unit}\t{grade}\n" for unit, grade in found.items())
    return len(graded)


def write_csv(file: Path, judgments: Iterable[Judgment]) -> None:
    """Write judgments with all their values, one in each line."""
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(_COLUMNS)
        for one in judgments:
            values = one.model_dump(mode="json")
            document, chunk = values.pop("document_key"), values.pop("chunk_id")
            row = {**values, "document": document, "chunk": chunk}
            writer.writerow([row[name] for name in _COLUMNS])


def read(path: Path) -> list[Judgment]:
    """Read a BEIR folder, a CSV file, or lines with a question and the expected document.

    A grade that is missing is 2. BEIR's grades above 2 become 2, those below 0 become 0. Raises
    CollectionError with the file and line.
    """
    return _beir(path) if path.is_dir() else _table(path)


def _beir(folder: Path) -> list[Judgment]:
    collection = load(folder)
    return [
        Judgment(
            question=query.text,
            **_unit(document),
            grade=max(0, min(_HIGHEST, grade)),  # type: ignore[arg-type]
        )
        for query in collection.queries
        for document, grade in collection.qrels[query.id].items()
    ]


def _unit(id_: str) -> dict[str, Any]:
    is_chunk = id_.startswith(CHUNK)
    return {"chunk_id": id_.removeprefix(CHUNK)} if is_chunk else {"document_key": id_}


def _table(file: Path) -> list[Judgment]:
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CollectionError(f"{file} cannot be read: {error}", remedy=_REMEDY) from error
    delimiter = "\t" if lines and "\t" in lines[0] else ","
    rows = list(csv.reader(lines, delimiter=delimiter))
    columns: Sequence[str] = ("question", "document", "grade")
    first = 1
    if rows and "question" in rows[0]:
        columns, first = rows.pop(0), 2
        unknown = [name for name in columns if name not in _COLUMNS]
        if unknown:
            raise CollectionError(f"{file}: unknown column {unknown[0]!r}", remedy=_REMEDY)
    return [
        _judgment(dict(zip(columns, row, strict=False)), len(row) > len(columns), file, number)
        for number, row in enumerate(rows, start=first)
        if row
    ]


def _judgment(row: dict[str, str], is_long: bool, file: Path, number: int) -> Judgment:
    given = {name: value.strip() for name, value in row.items() if value.strip()}
    place = f"{file}, line {number}"
    if is_long or "question" not in given or not given.keys() & {"document", "chunk"}:
        raise CollectionError(f"{place}: a question and a document are expected", remedy=_REMEDY)
    # The row of a chunk has its document.
    document, chunk = given.pop("document", None), given.pop("chunk", None)
    unit = {"document_key": document} if chunk is None else {"chunk_id": chunk}
    grade = given.pop("grade", str(_HIGHEST))
    try:
        return Judgment.model_validate(
            {**given, **unit, "grade": int(grade) if grade.isdecimal() else grade}
        )
    except ValidationError as error:
        wrong = error.errors()[0]
        raise CollectionError(
            f"{place}: {wrong['loc'][0]}: {wrong['msg']}, not {wrong['input']!r}", remedy=_REMEDY
        ) from error


def _line(**values: str) -> str:
    return json.dumps(values, ensure_ascii=False) + "\n"

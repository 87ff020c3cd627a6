"""Break SQL or Python at places that a seed draws, one at a time; the tests must notice each.

A mutant changes one line of supabase/schemas or of the package, in a copy of this checkout. Its
kind is drawn first, then the place, so that rare kinds (grants, locks) are drawn, too. The tests
are those that reach the changed line or SQL function (`tools.reached`), or all where none is known
to, in the order of the BM25 of the names that they share with the function. A mutant is killed when
a test fails, and broken when the migrations cannot be written or applied. For a survivor, the same
tests run with a function that fails at each call: if all pass, the place was not reached.
"""

import argparse
import ast
import io
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tokenize
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools import throw_away
from tools.reached import tests_of_function, tests_of_line

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "supabase" / "schemas"
PACKAGE = ROOT / "backend" / "src" / "second_brain"
LEFT_OUT = (".*", "node_modules", "__pycache__", "results")
OPTIONS = ("-x", "-q", "--tb=no", "--no-shrinking")
OTHER_TESTS = {"chaos", "models", "citus", "native_bm25"}  # another server or program
OTHER_FILES = {"citus", "native_bm25", "adoption"}

# Each pair is swapped in both directions; of what has one part, the part is left out.
SWAPS = {
    ".sql": {
        "boundary": [" <= | < ", " >= | > "],
        "operator": [" = | <> ", " + | - ", " * | / ", "least(|greatest(", "min(|max("],
        "condition": [
            " and | or ",
            " is null| is not null",
            " not ",
            "true|false",
            "any (|all (",
        ],
        "order": [" desc| asc", " nulls last"],
        "grant": ["security definer|security invoker", "to service_role|to public"],
        "lock": [
            " for update",
            " for share",
            " skip locked",
            "pg_advisory|pg_try_advisory",
        ],
    },
    ".py": {
        "boundary": [" <= | < ", " >= | > "],
        "operator": [" == | != ", " + | - ", " * | / ", "min(|max("],
        "condition": [" and | or ", " is None| is not None", " not ", "True|False"],
        "order": ["reverse=True"],
    },
}
NUMBER = re.compile(r"(?<![\w.$%^:{\\-])\d+(?![\w.%)}\"'\\])")
DROPPED = {  # lines that are left out as a whole
    "condition": re.compile(r"\s*(and|or) (?!.*(\bthen\b|\()$)[^()]*(\([^()]*\)[^()]*)*$"),
    "grant": re.compile(r"\s*(grant|revoke) .*;$|alter table .* enable row level security;$"),
    "lock": re.compile(r"\s*(perform .*lock.*|lock table .*);$"),
}
# What says something and does nothing: comments, messages, names.
SAID = re.compile(
    r"\s*--|.*(\b(raise|using errcode|language|notify|create (function|or)|import|logger)\b|must be"
    r"|search_path)|set \w+ = (on|off)"
)

# What a test of these kinds does, whatever the function is called.
TESTED_BY = {
    "lock": "concurrent lock_timeout await_lock_of threads transaction connect other",
    "grant": "service_role authenticated anon grants permission privilege access",
}

# A text of several words, which says something, and no SQL in a string.
PROSE = re.compile(r"'[A-Za-z][A-Za-z,:;. -]{20,}'")

# The change of no answer: "file: line after": why.
EQUIVALENT: dict[str, str] = {
    "11_writing.sql: if not ((embedding operator(extensions.<=>) embedding) <= 0.5) then": (
        "the distance of a vector from itself is 0 or NaN"
    ),
    "23_embedding_queue.sql: and claim.available_at < moment": "two times of one microsecond",
    "29_query_log.sql: order by last.asked_at desc, last.id asc": "two times of one microsecond",
    "31_estimate.sql: perform max(chunk.bm25 operator(extensions.<#>) word_weights)": (
        "only the time that it takes is read"
    ),
    "32_arrange.sql: ) >= least_cosine then first_value(one.place) over same": (
        "a cosine that is the constant to the last bit"
    ),
}


@dataclass(frozen=True)
class Mutant:
    """A line of a file (numbered from 0) and what stands there instead."""

    kind: str
    file: Path
    number: int
    new: str

    @property
    def old(self) -> str:
        """The line as it is."""
        return self.file.read_text("utf-8").splitlines()[self.number]

    @property
    def name(self) -> str:
        """The file with the line."""
        return f"{self.file.relative_to(ROOT)}:{self.number + 1} ({self.kind})"

    @property
    def reason(self) -> str | None:
        """Why it changes no answer, if that is known."""
        return EQUIVALENT.get(f"{self.file.name}: {self.new.strip()}")

    def unit(self) -> tuple[int, int]:
        """The lines of the statement or Python function that the line is in."""
        lines = self.file.read_text("utf-8").splitlines()
        is_sql = self.file.suffix == ".sql"
        begins = re.compile(
            r"create |alter |grant |revoke " if is_sql else r"\s*(async )?def |class "
        )
        first = self.number
        while first > 0 and not begins.match(lines[first]):
            first -= 1
        last = self.number
        while last + 1 < len(lines) and not begins.match(lines[last + 1]):
            last += 1
        return first, last + 1

    def failing(self) -> tuple[int | None, str]:
        """The line, and what stands there, of a mutant whose function fails at each call."""
        first, last = self.unit()
        lines = self.file.read_text("utf-8").splitlines()
        if self.file.suffix == ".sql":
            place = lines.index("begin", first, last) if "begin" in lines[first:last] else None
            return place, "begin\n  raise exception 'reached';"
        old = self.old
        return (
            self.number,
            f"{old[: len(old) - len(old.lstrip())]}raise AssertionError\n{old}",
        )

    def apply(self, root: Path, number: int, new: str) -> None:
        """Change a line of the file in another checkout."""
        file = root / self.file.relative_to(ROOT)
        lines = file.read_text("utf-8").splitlines()
        lines[number] = new
        file.write_text("\n".join(lines) + "\n", "utf-8")


def code(file: Path) -> Iterator[tuple[int, str]]:
    """Give the lines of a file that do something."""
    source = file.read_text("utf-8")
    left_out: set[int] = set()
    if file.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                left_out.update(range(token.start[0] - 1, token.end[0]))
    is_comment = False
    for number, line in enumerate(source.splitlines()):
        is_comment = is_comment or line.startswith("comment on ")
        if not is_comment and number not in left_out and not SAID.match(line):
            yield number, line
        is_comment = is_comment and not line.endswith(";")


def blank(found: re.Match[str]) -> str:
    """Return as many spaces as the match has characters."""
    return " " * len(found[0])


def changes(line: str, suffix: str) -> Iterator[tuple[str, str]]:
    """Give each kind with the line as it is changed, once for each place."""
    for kind, pairs in SWAPS[suffix].items():
        for pair in pairs:
            one, _, other = pair.partition("|")
            for old, new in ((one, other), (other, one)) if other else ((one, " "),):
                for found in re.finditer(
                    r"\b" * old[0].isalpha() + re.escape(old), PROSE.sub(blank, line)
                ):
                    changed = line[: found.start()] + new + line[found.end() :]
                    if "  skip" not in changed and not (old == " and " and "between" in line):
                        yield kind, changed
    for found in NUMBER.finditer(line):
        yield (
            "constant",
            f"{line[: found.start()]}{int(found[0]) + 1}{line[found.end() :]}",
        )
    for kind, pattern in DROPPED.items():
        if suffix == ".sql" and pattern.match(line):
            yield kind, line[len(line.rstrip(";")) :] if kind == "condition" else ""


def drawn(seed: int, count: int, files: list[Path]) -> list[Mutant]:
    """Draw so many mutants of these files: a kind, and one of its places."""
    draw = random.Random(seed)  # noqa: S311
    places: dict[str, list[Mutant]] = {}
    for file in files:
        for number, line in code(file):
            for kind, new in changes(line, file.suffix):
                places.setdefault(kind, []).append(Mutant(kind, file, number, new.rstrip()))
    for found in places.values():
        draw.shuffle(found)
    kinds = sorted(places)
    return [places[draw.choice([k for k in kinds if places[k]])].pop() for _ in range(count)]


def names(text: str) -> Counter[str]:
    """Count the names in a text: words of at least four letters."""
    return Counter(re.findall(r"[a-z][a-z_]{3,}", text.lower()))


@cache
def usual(suffix: str) -> list[str]:
    """The names in a third of the sources, most of which are those of the language."""
    files = list((SCHEMAS if suffix == ".sql" else PACKAGE).rglob(f"*{suffix}"))
    having = Counter(name for file in files for name in set(names(file.read_text("utf-8"))))
    return [name for name, count in having.items() if count > len(files) / 3]


@cache
def tests() -> dict[str, Counter[str]]:
    """The names in each test: in its function and, a quarter as much, in its file."""
    found = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if OTHER_TESTS & set(file.parts):
            continue
        source = file.read_text("utf-8")
        lines = source.splitlines()
        of_file = names(f"{file.stem.replace('_', ' ')} {source}")
        for one in ast.parse(source).body:
            if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
                first = min([one.lineno, *(mark.lineno for mark in one.decorator_list)])
                text = "\n".join(lines[first - 1 : one.end_lineno])
                words = names(f"{one.name.replace('_', ' ')} {text}")
                shared = {name: 1 + count // 4 for name, count in of_file.items()}
                found[f"{file.relative_to(ROOT)}::{one.name}"] = words + Counter(shared)
    return found


def reaching(mutant: Mutant) -> set[str]:
    """The tests, and the files of tests, that reach the changed line or SQL function."""
    if mutant.file.suffix == ".py":
        return tests_of_line(mutant.file, mutant.number + 1)
    line = mutant.file.read_text("utf-8").splitlines()[mutant.unit()[0]]
    function = re.match(r"create (?:or replace )?function [a-z_]+\.(\w+)", line)
    return tests_of_function(function[1]) if function else set()


def suite(mutant: Mutant, most: int) -> list[str]:
    """The tests that reach the change and share the rarest names with its function, best first."""
    lines = mutant.file.read_text("utf-8").splitlines()
    first, last = mutant.unit()
    asked = names("\n".join(lines[first:last]))
    for name in names("\n".join(lines[max(first, mutant.number - 2) : mutant.number + 3])):
        asked[name] += 3
    for name in names(TESTED_BY.get(mutant.kind, "")):
        asked[name] += 30
    reached = reaching(mutant)
    files = {
        test: found
        for test, found in tests().items()
        if test in reached or test.partition("::")[0] in reached
    } or {
        test: found
        for test, found in tests().items()
        if mutant.file.suffix == ".py" or not test.startswith("tests/tools/")
    }
    for name in usual(mutant.file.suffix):
        asked.pop(name, None)
    having = Counter(name for found in files.values() for name in found)
    weights = {
        name: math.log(len(files) / having[name]) * math.log1p(times)
        for name, times in asked.items()
        if having[name]
    }
    mean = sum(found.total() for found in files.values()) / len(files)

    def score(found: Counter[str]) -> float:
        length = 1.2 * (0.25 + 0.75 * found.total() / mean)
        return sum(one * found[name] / (found[name] + length) for name, one in weights.items())

    return sorted(files, key=lambda test: (-score(files[test]), test))[:most]


def tested(root: Path, chosen: list[str], seconds: float) -> tuple[str, str]:
    """Run tests in a checkout: killed, survived, cut or broken, and the test or message."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(root / "backend" / "src"),
        "TMPDIR": str(root.parent),
    }
    log = root / "mutant.log"
    for command, limit in (
        (("tools.migrations", "baseline"), seconds),
        (("pytest", *chosen, *OPTIONS), seconds),
    ):
        with log.open("w") as output:
            running = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", *command],
                cwd=root,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                code = running.wait(limit)
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGINT)  # the tests stop their server
                try:
                    running.wait(60)
                except subprocess.TimeoutExpired:
                    running.kill()
                    for file in root.parent.rglob("postmaster.pid"):
                        os.kill(int(file.read_text("utf-8").split()[0]), signal.SIGQUIT)
                return "cut", f"after {seconds:.0f} s"
        said = log.read_text("utf-8")
        if failed := re.search(r"^(?:FAILED|ERROR) \S+::(\w+)", said, re.MULTILINE):
            return ("killed" if failed[0][0] == "F" else "broken"), failed[1]
        if code:
            return "broken", said.strip().rpartition("\n")[2]
    return "survived", ""


def outcome(mutant: Mutant, most: int, seconds: float) -> tuple[str, str, float]:
    """Return what became of a mutant, the test or the message, and the seconds."""
    if mutant.reason:
        return "equivalent", mutant.reason, 0
    begun = time.monotonic()
    chosen = suite(mutant, most)
    result, shown = "survived", ""
    for place, new in ((mutant.number, mutant.new), mutant.failing()):
        if result != "survived" or place is None:
            break
        copy = throw_away.folder() / "checkout"
        try:
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
            mutant.apply(copy, place, new)
            found = tested(copy, chosen, seconds)
        finally:
            shutil.rmtree(copy.parent, ignore_errors=True)
        if new == mutant.new:
            result, shown = found
        elif found[0] == "survived":
            result = "not reached"
    return result, shown, time.monotonic() - begun


def main() -> int:
    """Draw mutants, two thirds of them in the SQL, and run them; 1 if one survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=15, help="of mutants (default 15)")
    parser.add_argument("--seed", type=int, default=47, help="of the draw (default 47)")
    parser.add_argument("--tests", type=int, default=60, help="for each (default 60)")
    parser.add_argument("--seconds", type=float, default=300, help="for each (default 300)")
    parser.add_argument("--jobs", type=int, default=2, help="at the same time (default 2)")
    parser.add_argument("--list", action="store_true", help="only print them")
    parser.add_argument("words", nargs="*", help="only mutants with one of these in their place")
    given = parser.parse_args()
    sql = [one for one in SCHEMAS.rglob("*.sql") if not OTHER_FILES & set(one.parts)]
    python = sorted(PACKAGE.rglob("*.py"))
    of_python = given.number // 3
    mutants = [
        one
        for one in (
            *drawn(given.seed, given.number - of_python, sorted(sql)),
            *drawn(given.seed, of_python, python),
        )
        if not given.words or any(word in one.name for word in given.words)
    ]
    results: Counter[str] = Counter()
    with ThreadPoolExecutor(given.jobs) as threads:
        run = threads.map(
            lambda one: (
                ("drawn", "", 0.0) if given.list else outcome(one, given.tests, given.seconds)
            ),
            mutants,
        )
        for one, (result, shown, took) in zip(mutants, run, strict=True):
            results[result] += 1
            print(f"{result}: {one.name}: {shown} ({took:.0f} s)", flush=True)
            if result != "killed":
                print(f"- {one.old}\n+ {one.new}")
                print("  " + " ".join(suite(one, given.tests)))
    print(", ".join(f"{count} {result}" for result, count in sorted(results.items())))
    return 1 if results["survived"] or results["cut"] else 0


if __name__ == "__main__":
    sys.exit(main())

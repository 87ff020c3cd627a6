"""Lines that repeat over the pages of a site: headers, footers and menus, which are left out.

A site is a folder or a sitemap. Its pages with the smallest hashes of their keys are compared
before the first one is stored, so that no page is read twice, and a page that is added or changed
seldom changes the lines. They are kept in `config` of knowledge_sources: a page that is read alone
later, or a folder inside of the site, loses the same lines.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from second_brain.errors import SecondBrainError
from second_brain.ingest.document import LoadedDocument
from second_brain.ingest.sources import KnowledgeSource, UnreadDocument
from second_brain.services.install import Database

MIN_PAGES = 5
"""Pages that a site needs before anything counts as repeated."""
SAMPLE = 40
"""Pages of a site that are compared."""

_SHARE = 0.5
# What stands on a page more often is a label of its content, such as "Parameters:".
_MOST_ON_A_PAGE = 2
_MOST_LINES = 2_000
_LONGEST_KEY = 200
# Below every heading, which has a depth of 1 to 6.
_TEXT = 7

_FENCE = re.compile(r"\s*(`{3,})[^`]*$")
_HEADING = re.compile(r"(#{1,6}) ")

_STORED_LINES = """
    select config -> 'repeated_lines' as lines
    from public.knowledge_sources
    where name = %(source)s
"""

_STORE_LINES = """
    update public.knowledge_sources
    set config = jsonb_set(
      config,
      '{repeated_lines}',
      coalesce(config -> 'repeated_lines', '{}')
        || jsonb_build_object(%(site)s::text, %(lines)s::jsonb)
    )
    where name = %(source)s
"""


@dataclass(frozen=True, slots=True)
class _Block:
    """A line, or a whole table or piece of code, as lines of a text from `first` to `last`."""

    first: int
    last: int
    key: str
    depth: int


def repeated_lines(pages: Sequence[LoadedDocument]) -> frozenset[str]:
    """Return what stands on at least half of the pages, once or twice on each."""
    if len(pages) < MIN_PAGES:
        return frozenset()
    counts: Counter[str] = Counter()
    for page in pages:
        on_page = Counter(block.key for block in _blocks(page.text.split("\n")))
        counts.update(key for key, count in on_page.items() if count <= _MOST_ON_A_PAGE)
    frequent = [key for key, count in counts.items() if count >= _SHARE * len(pages)]
    return frozenset(sorted(frequent, key=lambda key: (-counts[key], key))[:_MOST_LINES])


def without(page: LoadedDocument, lines: Collection[str]) -> tuple[LoadedDocument, int]:
    """Return a page without these lines, and how many were left out.

    A repeated heading stays while there is text below it. A page of nothing else stays as it is.
    """
    text = page.text.split("\n")
    blocks = list(_blocks(text))
    dropped: list[_Block] = []
    # The depth of what follows and stays: more than a heading's if it is below the heading.
    following = 0
    for block in reversed(blocks):
        if block.key in lines and (block.depth == _TEXT or following <= block.depth):
            dropped.append(block)
        else:
            following = block.depth
    if not dropped or len(dropped) == len(blocks):
        return page, 0
    gone = {line for block in dropped for line in range(block.first, block.last)}
    kept = "\n".join(line for number, line in enumerate(text) if number not in gone)
    return replace(page, text=re.sub(r"\n{3,}", "\n\n", kept).strip()), len(dropped)


@dataclass
class Sites:
    """Reads the documents of a run, pages without the lines that their site repeats.

    `prepare` comes before `load`, outside of a transaction: it compares the pages of the site.
    """

    database: Database
    documents: Iterable[UnreadDocument]
    dry_run: bool = False
    _lines: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    _stored: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    _read: dict[str, LoadedDocument | SecondBrainError] = field(default_factory=dict)

    def prepare(self, unread: UnreadDocument) -> None:
        """Find the lines of the site of this document, unless they are known."""
        source, site = unread.source, unread.site
        if source is None or site is None or self._wider(source, site) is not None:
            return
        if (source.name, site) not in self._lines:
            self._lines[source.name, site] = self._compare(source, site)

    def load(self, unread: UnreadDocument) -> tuple[LoadedDocument, int]:
        """Read a document; return it, and how many lines were left out."""
        # Not popped: a transaction that is repeated reads it again.
        read = self._read.get(unread.external_key)
        if isinstance(read, SecondBrainError):
            raise read
        document = read or unread.read()
        if not document.is_page or unread.source is None:
            return document, 0
        inner = unread.external_key if unread.site is None else unread.site
        lines = self._wider(unread.source, inner)
        if lines is None:
            lines = self._lines.get((unread.source.name, inner), frozenset())
        return without(document, lines)

    def forget(self, unread: UnreadDocument) -> None:
        """Free the memory of a document that is stored."""
        self._read.pop(unread.external_key, None)

    def _wider(self, source: KnowledgeSource, inner: str) -> frozenset[str] | None:
        """Return the lines of the widest site that was read before and holds a page or a site."""
        stored = self._of_source(source)
        around = [site for site in stored if inner.startswith(site) and site != inner]
        return frozenset(stored[min(around, key=len)]) if around else None

    def _of_source(self, source: KnowledgeSource) -> dict[str, list[str]]:
        if source.name not in self._stored:
            row = self.database.execute(_STORED_LINES, {"source": source.name}).fetchone()
            self._stored[source.name] = (row and row[0]) or {}
        return self._stored[source.name]

    def _compare(self, source: KnowledgeSource, site: str) -> frozenset[str]:
        pages = [one for one in self.documents if (one.source, one.site) == (source, site)]
        if len(pages) >= MIN_PAGES:
            pages.sort(key=lambda one: hashlib.sha256(one.external_key.encode()).digest())
            for page in pages[:SAMPLE]:
                try:
                    self._read[page.external_key] = page.read()
                except SecondBrainError as error:
                    # It is reported when its turn comes.
                    self._read[page.external_key] = error
        read = [self._read.get(page.external_key) for page in pages[:SAMPLE]]
        found = [one for one in read if isinstance(one, LoadedDocument) and one.is_page]
        stored = self._of_source(source)
        if len(found) < MIN_PAGES <= len(pages):
            # Most could not be read: what was known stays.
            return frozenset(stored.get(site, ()))
        lines = repeated_lines(found)
        if stored.get(site) != sorted(lines) and not self.dry_run:
            arguments = {"source": source.name, "site": site, "lines": json.dumps(sorted(lines))}
            self.database.execute(_STORE_LINES, arguments)
            stored[site] = sorted(lines)
        return lines


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    number = 0
    while number < len(lines):
        first, line = number, lines[number]
        number += 1
        if fence := _FENCE.match(line):
            while number < len(lines) and not lines[number].strip().startswith(fence[1]):
                number += 1
            number += 1
        elif line.lstrip().startswith("|"):
            while number < len(lines) and lines[number].lstrip().startswith("|"):
                number += 1
        if key := " ".join(" ".join(lines[first:number]).split()):
            heading = _HEADING.match(line)
            yield _Block(first, number, _short(key), len(heading[1]) if heading else _TEXT)


def _short(key: str) -> str:
    if len(key) <= _LONGEST_KEY:
        return key
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"

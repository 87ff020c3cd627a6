"""Where documents come from: the source that a path belongs to, and the files under it.

A document is known by its source and its path in it, so that neither the working directory nor
another repository with the same folders changes what a key means. Files are read in `loading`,
and pages are found in `web`.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from second_brain.errors import ConfigurationError, SecondBrainError
from second_brain.ingest.document import LoadedDocument, UnreadableDocumentError, unforeseen
from second_brain.ingest.encoding import checked_encoding
from second_brain.ingest.loading import SUPPORTED, load_file
from second_brain.ingest.records import RECORDS, find_records

# A folder of installed JavaScript has a readme for every package.
_LEFT_OUT = {"node_modules"}
# Hidden files, and those that Office writes beside a file that is open.
_LEFT_OUT_PREFIXES = (".", "~$")

_NO_ENDING = "no ending"
_PAGES = (".html", ".htm", ".xhtml")


@dataclass(frozen=True, slots=True)
class KnowledgeSource:
    """A row of knowledge_sources: its name, and the repository or folder that it stands for.

    `location` tells two sources of the same name apart: the address of a repository's remote, else
    the absolute path of the folder. None is known without it.
    """

    name: str
    location: str | None = None

    def key(self, path: str) -> str:
        """Return the external_key of a document at this path."""
        return f"{self.name}:{path}"


@dataclass(frozen=True, slots=True)
class UnreadDocument:
    """A document that can be loaded: its stable key, and how to read it when its turn comes.

    `site` is what the keys of the pages begin with that it is compared with: see `repeated_lines`.
    """

    external_key: str
    load: Callable[[], LoadedDocument]
    source: KnowledgeSource | None = None
    site: str | None = None

    def read(self) -> LoadedDocument:
        """Load it. Whatever a parser raises is the report of one document, not the end of a run."""
        try:
            return self.load()
        except SecondBrainError:
            raise
        except Exception as exc:
            raise unforeseen(exc) from exc


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The documents under some paths, and what was left out.

    `skipped` counts the files of other types by their ending. `folders` holds what the keys of
    documents under the folders, sitemaps and files of records among the paths begin with, by
    source. `notes` say what else was left out.
    """

    documents: list[UnreadDocument] = field(default_factory=list)
    folders: list[tuple[KnowledgeSource, str]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    excluded: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def add(self, other: "FoundFiles") -> None:
        """Add what was found elsewhere."""
        self.documents.extend(other.documents)
        self.folders.extend(other.folders)
        self.skipped.update(other.skipped)
        self.excluded.update(other.excluded)
        self.notes.extend(other.notes)

    @property
    def sources(self) -> list[KnowledgeSource]:
        """The sources of the documents and folders, each once."""
        named = [one.source for one in self.documents if one.source]
        return list(dict.fromkeys([*named, *(source for source, _ in self.folders)]))


def find_files(
    paths: Iterable[Path],
    *,
    source: str | None = None,
    base: Path | None = None,
    exclude: Sequence[str] = (),
    follow_symlinks: bool = False,
    encoding: str | None = None,
) -> FoundFiles:
    """List the documents under files and folders, ordered by key and each once.

    A path belongs to the git repository that it is in, else to the folder that is named or that
    the file is in; `base` is that folder for all paths. A key is `SOURCE:PATH`, the path relative
    to that repository or folder, and SOURCE by default the last part of the repository's remote,
    else the folder's name.

    In folders only files with a known ending are taken, and nothing hidden. `exclude` has patterns
    of names (`*.draft.md`, `archive`) or paths (`docs/old`). A symbolic link that leads out of its
    folder is listed as a document that cannot be read, unless links are to be followed. A file
    that is named itself is read as text whatever its ending. Each line of a file of records is a
    document. `encoding` is that of all files of text; without it, each is read in its own.

    Raises InvalidInputError for an unknown encoding, and ConfigurationError for a path outside
    `base`, and for one source name for paths that belong to different places.
    """
    checked_encoding(encoding)
    named = {path: _named(path, follow_symlinks) for path in paths}
    roots = _roots(list(named.values()), base)
    if source is not None and len(set(roots.values())) > 1:
        listed = ", ".join(sorted(map(str, set(roots.values()))))
        raise ConfigurationError(
            f"the paths belong to several places ({listed}), and --source names one",
            remedy="Give the folder that holds them all as --base, or ingest one after the other.",
        )
    documents: dict[str, UnreadDocument] = {}
    found = FoundFiles()
    for path in named.values():
        root = roots[path]
        belongs_to = _source(root, source)
        walk = _Walk(root, path, exclude, follow_symlinks, found, belongs_to, encoding)
        for relative, load in walk.files():
            key = belongs_to.key(relative)
            documents[key] = UnreadDocument(key, load, belongs_to)
        if path.is_dir() or path.suffix.lower() in RECORDS:
            inner = _relative(path, root)
            found.folders.append((belongs_to, belongs_to.key("" if inner == "." else f"{inner}/")))
    for key in sorted(documents):
        document = documents[key]
        # The widest of the folders that are named.
        around = [
            folder
            for one, folder in found.folders
            if one == document.source and key.startswith(folder)
        ]
        is_page = key.lower().endswith(_PAGES)
        site = min(around, key=len, default=None) if is_page else None
        found.documents.append(replace(document, site=site))
    return found


def is_excluded(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a name, or a run of names, of this path matches one of the patterns."""
    parts = path.split("/")
    runs = [
        "/".join(parts[first:last])
        for first in range(len(parts))
        for last in range(first + 1, len(parts) + 1)
    ]
    wanted = [pattern.removeprefix("./").rstrip("/") for pattern in patterns]
    return any(fnmatchcase(run, pattern) for run in runs for pattern in wanted)


@dataclass
class _Walk:
    root: Path
    path: Path
    exclude: Sequence[str]
    follow: bool
    found: FoundFiles
    source: KnowledgeSource
    encoding: str | None

    def files(self) -> Iterator[tuple[str, Callable[[], LoadedDocument]]]:
        """Yield the path of each document in the source, and how to read it."""
        if self.path.is_dir():
            yield from self._folder(self.path, {_identity(self.path)})
        elif not self._is_excluded(self.path):
            yield from self._file(self.path, self.root)

    def _folder(
        self, folder: Path, seen: set[tuple[int, int]]
    ) -> Iterator[tuple[str, Callable[[], LoadedDocument]]]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            # It is reported where its documents would be: when it is read.
            yield self._refused(folder, f"cannot be listed: {error.strerror}")
            return
        for entry in entries:
            path = Path(entry.path)
            is_left_out = entry.name.startswith(_LEFT_OUT_PREFIXES) or entry.name in _LEFT_OUT
            if is_left_out or self._is_excluded(path):
                continue
            # Not DirEntry.is_dir(): it raises for a link to itself.
            if path.is_dir():
                yield from self._inner_folder(path, seen)
            elif path.suffix.lower() in SUPPORTED:
                yield from self._file(path, self.path)
            else:
                self.found.skipped[path.suffix.lower() or _NO_ENDING] += 1

    def _inner_folder(
        self, path: Path, seen: set[tuple[int, int]]
    ) -> Iterator[tuple[str, Callable[[], LoadedDocument]]]:
        is_symlink = path.is_symlink()
        if is_symlink and path.resolve().is_relative_to(self.path):
            # Its documents are found under their own path.
            return
        if is_symlink and not self.follow:
            yield _relative(path, self.root), partial(_refuse_link, self.path)
            return
        if (identity := _identity(path)) not in seen:
            seen.add(identity)
            yield from self._folder(path, seen)

    def _file(self, file: Path, folder: Path) -> Iterator[tuple[str, Callable[[], LoadedDocument]]]:
        relative = _relative(file, self.root)
        is_link = not self.follow and file.is_symlink() and file.exists()
        if is_link and not file.resolve().is_relative_to(folder):
            yield relative, partial(_refuse_link, folder)
        elif file.suffix.lower() in RECORDS:
            try:
                yield from find_records(file, relative, self.encoding)
            except (OSError, UnreadableDocumentError) as error:
                yield self._refused(file, str(error))
        else:
            yield relative, partial(load_file, file, relative, self.encoding)

    def _refused(self, path: Path, reason: str) -> tuple[str, Callable[[], LoadedDocument]]:
        return _relative(path, self.root), partial(_refuse, reason)

    def _is_excluded(self, path: Path) -> bool:
        relative = _relative(path, self.root)
        if not is_excluded(relative, self.exclude):
            return False
        self.found.excluded.add(self.source.key(relative))
        return True


def _named(path: Path, follow_symlinks: bool) -> Path:
    """Return the absolute path of what is named; a folder's is its own, not that of a link."""
    absolute = Path(os.path.abspath(path))
    parent = absolute.parent.resolve()
    if not path.is_dir():
        return parent / absolute.name
    real = absolute.resolve()
    repository = _repository(parent)
    leads_out = repository is not None and not real.is_relative_to(repository)
    if path.is_symlink() and leads_out and not follow_symlinks:
        raise ConfigurationError(
            f"{path} is a symbolic link that leads out of {repository}",
            remedy="Pass --follow-symlinks to read it, or name the folder it leads to.",
        )
    return real


def _roots(paths: Sequence[Path], base: Path | None) -> dict[Path, Path]:
    """Return for each path the repository or folder that its documents' paths are relative to."""
    if base is not None:
        folder = base.resolve()
        outside = [path for path in paths if not path.is_relative_to(folder)]
        if outside:
            raise ConfigurationError(
                f"{outside[0]} is not in the base folder {folder}",
                remedy="Give a --base that holds every path.",
            )
        return dict.fromkeys(paths, folder)
    own = {}
    for path in paths:
        folder = path if path.is_dir() else path.parent
        own[path] = _repository(folder) or folder
    # What is inside a folder that is named too has one key, not two.
    return {
        path: min(
            (own[other] for other in paths if other == path or other in path.parents),
            key=lambda root: len(root.parts),
        )
        for path in paths
    }


def _source(root: Path, name: str | None) -> KnowledgeSource:
    remote = _remote(root)
    default = (remote or root.name or "root").rsplit("/", 1)[-1].replace(":", "-")
    return KnowledgeSource(name or default, remote or root.as_posix())


def _repository(folder: Path) -> Path | None:
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


def _remote(repository: Path) -> str | None:
    """Return the address of a repository's remote as `host/owner/name`, None without one.

    Reads git's configuration, so that git itself is not needed. Credentials are left out.
    """
    config = repository / ".git"
    try:
        if config.is_file():
            # Of a worktree or a submodule: a pointer to the folder.
            config = repository / config.read_text("utf-8").removeprefix("gitdir:").strip()
            common = config / "commondir"
            config = config / common.read_text("utf-8").strip() if common.is_file() else config
        text = (config / "config").read_text("utf-8", "replace")
    except (OSError, ValueError):
        return None
    remotes = dict(
        re.findall(r'^\s*\[remote "([^"]*)"\][^\[]*?^\s*url\s*=\s*(\S+)', text, re.MULTILINE)
    )
    address = remotes.get("origin") or next(iter(remotes.values()), None)
    if address is None:
        return None
    # git@host:owner/name.git and https://token@host/owner/name are the same place.
    address = re.sub(r"^\w[\w+.-]*://", "", address)
    address = re.sub(r"^[^/@]*@", "", address)
    address = re.sub(r"^([^/:]+):(\d+/)?", r"\1/", address)
    return address.rstrip("/").removesuffix(".git").rstrip("/") or None


def _relative(file: Path, root: Path) -> str:
    # A name in another encoding than UTF-8 keeps its odd bytes as \xNN.
    return os.fsencode(file.relative_to(root).as_posix()).decode("utf-8", "backslashreplace")


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _refuse(reason: str) -> LoadedDocument:
    raise UnreadableDocumentError(reason)


def _refuse_link(folder: Path) -> LoadedDocument:
    raise UnreadableDocumentError(
        f"is a symbolic link that leads out of {folder}",
        remedy="Pass --follow-symlinks to read it.",
    )

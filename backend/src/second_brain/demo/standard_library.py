"""The standard library of the running interpreter as documents, one for each module.

Python sources are parsed, not imported. Only extension modules are imported, because they have no
source; importing those of the standard library has no side effects.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

from second_brain.ingest import KnowledgeSource, LoadedDocument, UnreadDocument

STANDARD_LIBRARY = KnowledgeSource("python-stdlib")

# Jokes, tables, tests and tools; and readline, which writes to the terminal when it is imported.
_LEFT_OUT = {
    "antigravity",
    "encodings",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "readline",
    "test",
    "this",
    "turtledemo",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One function or class: its dotted name, its signature and its docstring."""

    name: str
    signature: str
    documentation: str
    depth: int


def standard_library() -> list[UnreadDocument]:
    """List the public modules of the standard library, as `python-stdlib:json.decoder`."""
    root = Path(sysconfig.get_path("stdlib"))
    loaders: dict[str, Callable[[], LoadedDocument]] = {}
    for name in sorted(sys.stdlib_module_names - _LEFT_OUT):
        if name.startswith("_"):
            continue
        files = {name: root / f"{name}.py"} if (root / f"{name}.py").is_file() else {}
        if (root / name).is_dir():
            files = dict(_package_files(root / name))
        for module, file in files.items():
            loaders[module] = partial(_load_source, module, file)
        if not files and _is_extension(name):
            loaders[name] = partial(_load_extension, name)
    return [
        UnreadDocument(STANDARD_LIBRARY.key(name), loaders[name], STANDARD_LIBRARY)
        for name in sorted(loaders)
    ]


def _package_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder.parent).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if not any(part.startswith("_") or part in ("test", "tests") for part in parts):
            yield ".".join(parts), file


def _is_extension(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and (
        spec.origin == "built-in" or (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
    )


def _load_source(module: str, file: Path) -> LoadedDocument:
    with tokenize.open(file) as opened:
        tree = ast.parse(opened.read())
    return _document(module, ast.get_docstring(tree), _source_entries(module, tree.body))


def _load_extension(module: str) -> LoadedDocument:
    imported = _import_extension(module)
    if imported is None:
        return _document(module, None, [])
    entries = _object_entries(module, imported, vars(imported))
    return _document(module, inspect.getdoc(imported), entries)


def _document(module: str, documentation: str | None, entries: Iterable[_Entry]) -> LoadedDocument:
    first: dict[str, _Entry] = {}
    for entry in entries:
        first.setdefault(entry.name, entry)
    parts = [_as_paragraphs(documentation or "")]
    for entry in first.values():
        parts += [
            f"{'#' * entry.depth} {entry.name}",
            f"`{entry.signature}`",
            _as_paragraphs(entry.documentation),
        ]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return LoadedDocument(
        title=module,
        text="\n\n".join(part for part in parts if part),
        metadata={"module": module, "python": version},
    )


def _as_paragraphs(documentation: str) -> str:
    """Return a docstring changed so that no line is a Markdown heading."""
    lines = documentation.splitlines()
    for index, line in enumerate(lines):
        if line.startswith("#"):
            lines[index] = f"    {line}"
        elif len(line) > 1 and not line.strip("=-"):
            lines[index] = ""
    return "\n".join(lines).strip("\n")


def _source_entries(module: str, body: Iterable[ast.stmt]) -> Iterator[_Entry]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _function(module, node, 2)
            case ast.ClassDef():
                yield from _class(module, node)
            case ast.If() | ast.Try():
                handlers = [handler.body for handler in getattr(node, "handlers", [])]
                for block in (node.body, *handlers, node.orelse):
                    yield from _source_entries(module, block)
            case ast.ImportFrom(module=str(origin), level=0):
                # A name from an extension module belongs to the module that users import.
                if imported := _import_extension(origin):
                    names = [alias.name for alias in node.names]
                    yield from _object_entries(
                        module, imported, vars(imported) if names == ["*"] else names
                    )


def _function(
    owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef, depth: int
) -> Iterator[_Entry]:
    documentation = ast.get_docstring(node)
    if documentation and not node.name.startswith("_"):
        name = f"{owner}.{node.name}"
        returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        yield _Entry(name, f"{name}({ast.unparse(node.args)}){returned}", documentation, depth)


def _class(module: str, node: ast.ClassDef) -> Iterator[_Entry]:
    if node.name.startswith("_"):
        return
    name = f"{module}.{node.name}"
    methods = [
        item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    if documentation := ast.get_docstring(node):
        init = next((method.args for method in methods if method.name == "__init__"), None)
        arguments = ast.unparse(init).removeprefix("self").lstrip(", ") if init else ""
        yield _Entry(name, f"class {name}({arguments})", documentation, 2)
    for method in methods:
        yield from _function(name, method, 3)


def _object_entries(module: str, imported: ModuleType, names: Iterable[str]) -> Iterator[_Entry]:
    for name in names:
        if name.startswith("_"):
            continue
        # A program may have replaced sys.excepthook; the original is sys.__excepthook__.
        value = vars(imported).get(f"__{name}__", getattr(imported, name, None))
        if inspect.isclass(value):
            yield from _object(f"{module}.{name}", value, 2, "class ")
            for member_name, member in vars(value).items():
                if not member_name.startswith("_"):
                    yield from _object(f"{module}.{name}.{member_name}", member, 3)
        elif inspect.isroutine(value):
            yield from _object(f"{module}.{name}", value, 2)


def _object(name: str, value: object, depth: int, kind: str = "") -> Iterator[_Entry]:
    documentation = inspect.getdoc(value)
    if not documentation or not (inspect.isclass(value) or inspect.isroutine(value)):
        return
    # The signature as text: inspect.signature() would evaluate the defaults.
    signature = re.sub(r"\$\w+(, /)?(, )?", "", getattr(value, "__text_signature__", None) or "")
    yield _Entry(name, f"{kind}{name}{signature}", documentation, depth)


def _import_extension(name: str) -> ModuleType | None:
    if name not in sys.stdlib_module_names - _LEFT_OUT or not _is_extension(name):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return importlib.import_module(name)
        except ImportError:
            return None

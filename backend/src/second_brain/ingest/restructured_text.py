"""reStructuredText to Markdown, with the text of directives that docutils does not know."""

import io
import re
import textwrap
from typing import TYPE_CHECKING, Any

from second_brain.extras import needed
from second_brain.ingest.document import LoadedDocument, expect, note
from second_brain.ingest.encoding import decode
from second_brain.ingest.html import from_html

if TYPE_CHECKING:
    from docutils import nodes

_DIRECTIVE = re.compile(
    # The lines of an argument and of options follow without an empty line; :class:`a` is a role.
    r"\.\. (?P<name>[\w:+.-]+)::(?P<argument>[^\n]*(?:\n[ \t]+(?!:[\w-]+:(?:\s|$))\S[^\n]*)*)"
    r"(?P<options>(?:\n[ \t]+:[\w-]+:(?=\s|$)[^\n]*(?:\n[ \t]+(?!:)\S[^\n]*)*)*)"
    r"(?P<body>(?:\n[\s\S]*)?)"
)
_CODE = (
    *("code", "code-block", "sourcecode", "parsed-literal", "productionlist", "prompt", "math"),
    *("doctest", "testcode", "testoutput", "ipython", "graphviz", "mermaid", "plot", "jinja"),
)
# Of Sphinx: that of docutils has names of CSS, and its argument is no text.
_CLASS = re.compile(r"(?<=\.\. )class(?=:: *[^\n]*[A-Z_(.])")
_DEEPEST = 8
# For a simple reader: directives without text, names, comments, options, roles, and addresses.
_INDENTED = r"[^\n]*(?:\n(?:(?P=indent)[ \t]+[^\n]*)?(?=\n|\Z))*"
_MARKUP = re.compile(
    r"^(?P<indent>[ \t]*)\.\.(?: (?:raw|toctree|include|literalinclude|highlight|currentmodule"
    r"|index|meta|contents|sectnum|image|figure|auto\w+)::"
    rf"|(?=\s)(?! (?:[\w:+-]+::|\||_))){_INDENTED}"
    rf"|^[ \t]*\.\. (?:(?:{'|'.join(set(_CODE) - {'math'})})::[^\n]*|class:: *[a-z0-9 -]*$"
    r"|[\w:+-]+::|[|_][^\n]*)|^[ \t]+:[\w -]+:(?=\s|$)[^\n]*"
    r"|:[\w:+-]+:(?=`)|<[^<>`\n]*>`|`[!~]",
    re.MULTILINE,
)
# docutils drops the whole text for a longer line: its time grows with the square of the length.
_LONGEST_LINE = 10_000


def load_restructured_text(data: bytes, name: str) -> LoadedDocument:
    """Read a file; it can neither include other files nor run anything."""
    with needed("docutils", "ingest"):
        from docutils.core import publish_from_doctree
    settings = {
        # Errors stay in the tree, where the text they are about is taken from; none is fatal.
        "report_level": 3,
        "halt_level": 5,
        "warning_stream": io.StringIO(),
        # A document may not read other files or run anything.
        "file_insertion_enabled": False,
        "raw_enabled": False,
        "_disable_config": True,
        "syntax_highlight": "none",
        "math_output": "LaTeX",
        "embed_stylesheet": False,
        "stylesheet_path": None,
        "output_encoding": "unicode",
        "line_length_limit": _LONGEST_LINE,
    }
    text = decode(data)
    if re.search(rf".{{{_LONGEST_LINE + 1}}}", text):
        note(f"it has a line of more than {_LONGEST_LINE:,} characters, and is read as plain text")
        return LoadedDocument(title=name, text=text, is_markdown=False)
    try:
        tree = _read(_CLASS.sub("py:class", text), settings)
        tree.settings = None  # type: ignore[assignment]
        html = publish_from_doctree(tree, writer="html5", settings_overrides=settings)
    except RecursionError:
        note("its elements are nested too deeply, and it is read as plain text")
        return LoadedDocument(title=name, text=text, is_markdown=False)
    if not tree.get("title"):
        # The writer's own is "<string>".
        html = re.sub("<title>[^<]*</title>", "", html, count=1)
    expect(_MARKUP.sub(" ", text))
    return from_html(html, name)


def _read(text: str, settings: dict[str, Any], depth: int = 0) -> "nodes.document":
    """Parse a text; directives and roles that docutils does not know are replaced by their text.

    Those of Sphinx are among them, and docutils would leave their content out.
    """
    from docutils import nodes
    from docutils.core import publish_doctree

    if depth:
        # A list of fields, or a heading, is about the whole file only at its top.
        settings = {**settings, "docinfo_xform": False, "doctitle_xform": False}
    tree = publish_doctree(text, settings_overrides=settings)
    for message in list(tree.findall(nodes.system_message)):
        blocks: list[nodes.Node] = []
        for literal in message.findall(nodes.literal_block):
            blocks += _content(literal.astext(), settings, depth)
        message.parent.replace(message, blocks)
    # The writer would collect these at the end.
    tree.transform_messages.clear()
    for problem in list(tree.findall(nodes.problematic)):
        inner = re.sub(r"^:[\w:+-]+:`[~!]?(.*?)(\s*<[^>]*>)?`$", r"\1", problem.astext())
        problem.parent.replace(problem, nodes.Text(inner))
    return tree


def _content(source: str, settings: dict[str, Any], depth: int) -> "list[nodes.Node]":
    """Return what a directive has beside its options: its arguments, and its content."""
    from docutils import nodes

    found = _DIRECTIVE.match(source)
    if found is None:
        return [nodes.paragraph(source, source)]
    name, argument = found["name"].rpartition(":")[2], found["argument"].rstrip()
    # Raw is not text, and the entries of the others are names of files.
    if name in ("raw", "toctree", "include", "literalinclude", "highlight", "currentmodule"):
        return []
    body = textwrap.dedent(found["body"]).strip("\n")
    if name in _CODE:
        # After the language, lines without an empty one before them.
        body = f"{textwrap.dedent(argument.partition(chr(10))[2])}\n{body}".strip("\n")
        return [nodes.literal_block(body, body)] if body else []
    blocks: list[nodes.Node] = [nodes.paragraph(argument, argument)] if argument.strip() else []
    if depth < _DEEPEST:
        return [*blocks, *_read(body, settings, depth + 1).children]
    return [*blocks, nodes.paragraph(body, body)]

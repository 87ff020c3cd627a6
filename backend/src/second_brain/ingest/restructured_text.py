"""reStructuredText to Markdown, with the text of directives that docutils does not know."""

import io
import re
import textwrap
from typing import TYPE_CHECKING

from second_brain.extras import needed
from second_brain.ingest.document import LoadedDocument, decode
from second_brain.ingest.html import from_html, parse_html

if TYPE_CHECKING:
    from docutils import nodes


def load_restructured_text(data: bytes, name: str) -> LoadedDocument:
    """Read a file; it can neither include other files nor run anything."""
    with needed("docutils", "ingest"):
        from docutils.core import publish_doctree, publish_from_doctree
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
    }
    tree = publish_doctree(decode(data), settings_overrides=settings)
    _keep_unknown_markup(tree)
    tree.settings = None  # type: ignore[assignment]
    html = publish_from_doctree(tree, writer="html5", settings_overrides=settings)
    page = parse_html(html)
    # The writer's own title is "<string>" where the document has none.
    if page.title and not tree.get("title"):
        page.title.decompose()
    return from_html(page, name)


def _keep_unknown_markup(tree: "nodes.document") -> None:
    """Replace the complaints in a tree by the text they are about.

    Sphinx's directives and roles are unknown to docutils, which would leave their content out.
    """
    from docutils import nodes

    for message in list(tree.findall(nodes.system_message)):
        blocks = [
            nodes.paragraph(block, block)
            for literal in message.findall(nodes.literal_block)
            for block in re.split(r"\n\s*\n", _directive_body(literal.astext()))
            if block.strip()
        ]
        message.parent.replace(message, blocks)
    # The writer would collect these at the end.
    tree.transform_messages.clear()
    for problem in list(tree.findall(nodes.problematic)):
        inner = re.sub(r"^:[\w:+-]+:`[~!]?(.*?)(\s*<[^>]*>)?`$", r"\1", problem.astext())
        problem.parent.replace(problem, nodes.Text(inner))


def _directive_body(text: str) -> str:
    first, _, rest = text.partition("\n")
    first = re.sub(r"^\.\. [\w:+-]+::\s*", "", first)
    return f"{first}\n{textwrap.dedent(rest)}".strip()

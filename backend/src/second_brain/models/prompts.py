"""The texts that a model expects before queries and documents, where its library adds none.

Without them, the model embeds questions and passages alike, and finds less. Those of e5, Qwen3,
embeddinggemma, nomic-embed-text and mxbai were compared with published pages in November 2026, that
of gemini-embedding-2 with a page of another vendor. The others are not compared with the models'
cards yet: the instruct models of e5, bge and arctic-embed.
"""

import re
from typing import Literal, NamedTuple

Role = Literal["document", "query"]


class Prompts(NamedTuple):
    """What is put before each query and each document."""

    query: str = ""
    document: str = ""

    def of(self, role: Role) -> str:
        """Return what is put before a text of this role."""
        return self.query if role == "query" else self.document


_PASSAGES = "Represent this sentence for searching relevant passages: "
_INSTRUCTION = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)

# The first pattern that is found in the name counts.
_KNOWN = (
    (r"nomic-embed-text", Prompts("search_query: ", "search_document: ")),
    (r"\be5-.*instruct", Prompts(f"{_INSTRUCTION} ")),
    (r"\be5-(?:small|base|large)", Prompts("query: ", "passage: ")),
    (r"\bbge-(?:small|base|large)-en", Prompts(_PASSAGES)),
    (r"\bbge-(?:small|base|large)-zh", Prompts("为这个句子生成表示以用于检索相关文章：")),  # noqa: RUF001
    (r"mxbai-embed-large", Prompts(_PASSAGES)),
    (r"arctic-embed2|arctic-embed-[ml]-v2", Prompts("query: ")),
    (r"arctic-embed", Prompts(_PASSAGES)),
    (r"qwen3-embedding", Prompts(_INSTRUCTION)),
    (
        r"embeddinggemma|gemini-embedding-2",
        Prompts("task: search result | query: ", "title: none | text: "),
    ),
)


def prompts_of(model: str) -> Prompts:
    """Return the prompts of a model, by its name in any library or server; empty if unknown."""
    name = model.lower().replace("_", "-")
    return next((prompts for pattern, prompts in _KNOWN if re.search(pattern, name)), Prompts())

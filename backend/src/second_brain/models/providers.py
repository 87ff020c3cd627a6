"""The providers of hosted models: addresses, keys, sizes and limits, by their documentation.

Embedders and rerankers read them here. The values are those of excerpts of these pages, and have
not been tried against the providers:
OpenAI, https://platform.openai.com/docs/api-reference/embeddings/create;
Voyage, https://docs.voyageai.com/reference/embeddings-api;
Cohere, https://docs.cohere.com/reference/embed, but the tokens of a request are those of Oracle's
page on the model, https://docs.oracle.com/iaas/Content/generative-ai/cohere-embed-4.htm;
Google, https://ai.google.dev/gemini-api/docs/embeddings, but the texts of a request are those of
the API's error, "at most 100 requests can be in one batch".
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HostedModelFacts:
    """An embedding model: its dimensions, all sizes it has, and the tokens of one request."""

    dimensions: int
    sizes: Collection[int]
    batch_tokens: int | None = None

    def sizes_as_text(self) -> str:
        """Return the sizes for a message."""
        if isinstance(self.sizes, range):
            return f"{self.sizes[0]} to {self.sizes[-1]}"
        return ", ".join(map(str, sorted(self.sizes)))


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider; `batch_size` is the texts in one request, `batch_tokens` their tokens together.

    With `is_open_api`, other servers have the same API: at another address no key is needed, and
    the key of the environment is not sent.
    """

    name: str
    base_url: str
    key_variables: tuple[str, ...]
    batch_size: int = 1
    batch_tokens: int = 1
    models: Mapping[str, HostedModelFacts] = field(default_factory=dict)
    is_open_api: bool = False
    address_variable: str | None = None

    def address(self) -> str:
        """Return the address in the variable that the provider's own package reads, or its own."""
        given = os.environ.get(self.address_variable) if self.address_variable else None
        return given or self.base_url


def _fixed(dimensions: int, batch_tokens: int | None = None) -> HostedModelFacts:
    return HostedModelFacts(dimensions, (dimensions,), batch_tokens)


def _voyage(batch_tokens: int) -> HostedModelFacts:
    return HostedModelFacts(1024, (256, 512, 1024, 2048), batch_tokens)


OPENAI = Provider(
    "OpenAI",
    "https://api.openai.com/v1",
    ("OPENAI_API_KEY",),
    # The API accepts 2,048; smaller requests are answered sooner, and cost the same.
    batch_size=512,
    batch_tokens=300_000,
    models={
        "text-embedding-3-small": HostedModelFacts(1536, range(1, 1537)),
        "text-embedding-3-large": HostedModelFacts(3072, range(1, 3073)),
        "text-embedding-ada-002": _fixed(1536),
    },
    is_open_api=True,
    address_variable="OPENAI_BASE_URL",
)
# Text Embeddings Inference refuses more than 32 texts in its default configuration, SiliconFlow
# too, and a server on a CPU gains nothing from more.
COMPATIBLE_BATCH_SIZE = 32

VOYAGE = Provider(
    "Voyage",
    "https://api.voyageai.com/v1",
    ("VOYAGE_API_KEY",),
    batch_size=1000,
    batch_tokens=120_000,
    models={
        "voyage-4-large": _voyage(120_000),
        "voyage-4": _voyage(320_000),
        "voyage-4-lite": _voyage(1_000_000),
        "voyage-3-large": _voyage(120_000),
        "voyage-3.5": _voyage(320_000),
        "voyage-3.5-lite": _voyage(1_000_000),
        "voyage-code-3": _voyage(120_000),
        "voyage-finance-2": _fixed(1024, 120_000),
        "voyage-law-2": _fixed(1024, 120_000),
    },
)

COHERE = Provider(
    "Cohere",
    "https://api.cohere.com",
    ("CO_API_KEY", "COHERE_API_KEY"),
    batch_size=96,
    batch_tokens=128_000,
    models={
        "embed-v4.0": HostedModelFacts(1536, (256, 512, 1024, 1536)),
        "embed-english-v3.0": _fixed(1024),
        "embed-multilingual-v3.0": _fixed(1024),
        "embed-english-light-v3.0": _fixed(384),
        "embed-multilingual-light-v3.0": _fixed(384),
    },
    address_variable="CO_API_URL",
)

GOOGLE = Provider(
    "Google",
    "https://generativelanguage.googleapis.com",
    ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    batch_size=100,
    # 100 texts of 2,048 tokens, the most that gemini-embedding-001 reads.
    batch_tokens=204_800,
    models={
        "gemini-embedding-001": HostedModelFacts(3072, range(128, 3073)),
        "gemini-embedding-2": HostedModelFacts(3072, range(128, 3073)),
    },
)

JINA = Provider("Jina", "https://api.jina.ai/v1", ("JINA_API_KEY",), is_open_api=True)

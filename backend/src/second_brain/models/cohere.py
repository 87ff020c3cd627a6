"""Cohere's embedding models through its package cohere.

The request is that of https://docs.cohere.com/reference/embed, version 2.
"""

import json
from collections.abc import Sequence
from typing import Any

from second_brain.errors import redacted
from second_brain.extras import needed
from second_brain.models.hosted import FailedCallError, http_errors, malformed, refused
from second_brain.models.hosted_embedder import HostedEmbedder
from second_brain.models.prompts import Role
from second_brain.models.providers import COHERE


class CohereEmbedder(HostedEmbedder):
    """A model of Cohere's API; documents and queries are embedded differently.

    embed-v4.0 has 256, 512, 1,024 or 1,536 dimensions. A text that is too long is an error, or is
    cut with `truncate`. `client` is a `cohere.ClientV2`. The other arguments are those of
    HostedEmbedder.
    """

    provider = COHERE
    default_model = "embed-v4.0"
    accepts_client = True
    can_truncate = True

    def _connect(self, base_url: str) -> Any:
        with needed("cohere", "cohere"):
            import cohere
        import httpx

        self._http = httpx.Client(timeout=self._timeout)
        return cohere.ClientV2(
            self._key, base_url=base_url, httpx_client=self._http, timeout=self._timeout
        )

    def close(self) -> None:
        """Close the connections, unless the caller passed the client."""
        if not self._is_clients_own:
            self._http.close()

    def _request(self, texts: Sequence[str], role: Role) -> Sequence[Any]:
        from cohere.core import ApiError

        options: dict[str, Any] = {}
        if self._requested_dimensions is not None:
            options["output_dimension"] = self._requested_dimensions
        try:
            with http_errors(self._name, self._key):
                answer = self._client.embed(
                    model=self._model,
                    input_type=f"search_{role}",
                    texts=list(texts),
                    embedding_types=["float"],
                    truncate="END" if self._truncate else "NONE",
                    request_options={"max_retries": 0},
                    **options,
                )
            return list(answer.embeddings.float_)
        except FailedCallError:
            raise
        except ApiError as exc:
            body = exc.body if isinstance(exc.body, str) else json.dumps(exc.body)
            raise refused(
                self._name, exc.status_code or 0, exc.headers or {}, body, self._key
            ) from redacted(exc, secrets=[self._key])
        except (AttributeError, TypeError, ValueError) as exc:
            raise malformed(self._name, "it holds no embeddings") from redacted(
                exc, secrets=[self._key]
            )

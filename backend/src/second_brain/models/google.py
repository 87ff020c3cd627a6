"""Google's embedding models through its package google-genai.

The request is that of https://ai.google.dev/gemini-api/docs/embeddings.
"""

import json
from collections.abc import Sequence
from typing import Any

from second_brain.errors import redacted
from second_brain.extras import needed
from second_brain.models.hosted import FailedCallError, http_errors, malformed, refused
from second_brain.models.hosted_embedder import HostedEmbedder
from second_brain.models.prompts import Role
from second_brain.models.providers import GOOGLE


class GoogleEmbedder(HostedEmbedder):
    """A model of the Gemini API, or of Vertex AI with a `client` of the caller.

    Documents and queries are embedded differently: gemini-embedding-001 by its task type,
    gemini-embedding-2 by prompts. `dimensions` is 128 to 3,072; Google recommends 768, 1,536 and
    3,072. `client` is a `google.genai.Client`. The other arguments are those of HostedEmbedder.
    """

    provider = GOOGLE
    default_model = "gemini-embedding-001"
    accepts_client = True

    def _connect(self, base_url: str) -> Any:
        with needed("google-genai", "google"):
            from google.genai import Client, types
        return Client(
            vertexai=False,
            api_key=self._key,
            http_options=types.HttpOptions(
                base_url=base_url,
                timeout=round(self._timeout * 1000),
                retry_options=types.HttpRetryOptions(attempts=1),
            ),
        )

    def _request(self, texts: Sequence[str], role: Role) -> Sequence[Any]:
        from google.genai import errors, types

        task = None if any(self.prompts) else f"RETRIEVAL_{role.upper()}"
        try:
            with http_errors(self._name, self._key):
                answer = self._client.models.embed_content(
                    model=self._model,
                    # A Content for each text: gemini-embedding-2 embeds a list of texts as one.
                    contents=[types.Content(parts=[types.Part(text=text)]) for text in texts],
                    config=types.EmbedContentConfig(
                        task_type=task, output_dimensionality=self._requested_dimensions
                    ),
                )
            return [one.values for one in answer.embeddings]
        except FailedCallError:
            raise
        except errors.APIError as exc:
            headers, body = getattr(exc.response, "headers", {}), json.dumps(exc.details)
            raise refused(self._name, exc.code, headers, body, self._key) from redacted(
                exc, secrets=[self._key]
            )
        except (AttributeError, TypeError, ValueError) as exc:
            raise malformed(self._name, "it holds no embeddings") from redacted(
                exc, secrets=[self._key]
            )

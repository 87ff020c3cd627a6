"""OpenAI's embedding models, and servers with a compatible API."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from second_brain.errors import MissingExtraError, redacted
from second_brain.models.hosted import (
    Calls,
    RateLimit,
    find_key,
    in_order,
    malformed,
    refused,
    timed_out,
    unreachable,
)
from second_brain.models.hosted_embedder import HostedEmbedder, Role

if TYPE_CHECKING:
    import openai

_PROVIDER = "OpenAI"
_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}


class OpenAIEmbedder(HostedEmbedder):
    """A model of OpenAI's API through the package openai; the key is api_key or OPENAI_API_KEY.

    `dimensions` requests shorter vectors, which the text-embedding-3 models support. `base_url` is
    the address of another server with this API. `client` is a client of the caller, such as an
    AzureOpenAI: the embedder then ignores `api_key` and `base_url`, and does not close the client.
    `timeout` is in seconds for each try; see Calls for `retries` and `longest_wait`.

    Raises MissingExtraError without the extra `openai`, ConfigurationError without a key.
    """

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        *,
        dimensions: int | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        client: "openai.OpenAI | None" = None,
        timeout: float = 30.0,
        retries: int = 4,
        longest_wait: float = 60.0,
        rate_limit: RateLimit | None = None,
        batch_size: int = 512,
        batch_tokens: int = 300_000,
    ) -> None:
        try:
            import openai
        except ImportError as exc:
            raise MissingExtraError("openai", "openai") from exc
        super().__init__(
            model,
            dimensions,
            _DIMENSIONS,
            Calls(retries=retries, longest_wait=longest_wait, rate_limit=rate_limit),
            batch_size=batch_size,
            batch_tokens=batch_tokens,
        )
        if client is None:
            key = find_key(_PROVIDER, api_key, "OPENAI_API_KEY")
            self._client: openai.OpenAI = openai.OpenAI(
                api_key=key, base_url=base_url, timeout=timeout, max_retries=0
            )
            self._is_own_client = True
        else:
            self._client = client.with_options(timeout=timeout, max_retries=0)
            self._is_own_client = False

    def close(self) -> None:
        """Close the connections, unless the caller passed the client."""
        if self._is_own_client:
            self._client.close()

    def _request(self, texts: Sequence[str], role: Role) -> Sequence[Any]:
        import openai

        keys = [self._client.api_key]
        requested = self._requested_dimensions
        dimensions = openai.omit if requested is None else requested
        try:
            answer = self._client.embeddings.create(
                model=self._model, input=list(texts), dimensions=dimensions
            )
            numbered = [(one.index, one.embedding) for one in answer.data]
        except openai.APITimeoutError as exc:
            raise timed_out(_PROVIDER) from redacted(exc, secrets=keys)
        except openai.APIConnectionError as exc:
            raise unreachable(_PROVIDER, exc.__cause__ or exc) from redacted(exc, secrets=keys)
        except openai.APIStatusError as exc:
            response = exc.response
            raise refused(
                _PROVIDER, exc.status_code, response.headers, response.text, *keys
            ) from redacted(exc, secrets=keys)
        # The client raises these for a body that is not JSON, or JSON in another form.
        except (openai.OpenAIError, AttributeError, TypeError, ValueError) as exc:
            raise malformed(_PROVIDER, "it holds no embeddings") from redacted(exc, secrets=keys)
        return in_order(_PROVIDER, numbered, len(texts))

"""OpenAI's embedding models, and any server with the same API."""

from collections.abc import Sequence
from typing import Any

from second_brain.errors import redacted
from second_brain.models.hosted import (
    JsonApi,
    in_order,
    malformed,
    refused,
    timed_out,
    unreachable,
)
from second_brain.models.hosted_embedder import HostedEmbedder, numbered_vectors
from second_brain.models.prompts import Role
from second_brain.models.providers import OPENAI


class OpenAIEmbedder(HostedEmbedder):
    """A model of OpenAI's API, or of another server with this API at `base_url`.

    Another server, such as Ollama, vLLM, Text Embeddings Inference or LM Studio, needs no key and
    does not get OPENAI_API_KEY. It gets at most 32 texts in a request, and no `encoding_format`,
    which some refuse. If it ignores `dimensions`, its vectors are cut to this length, which is only
    useful for a model that is trained for it. `client` is an `openai.OpenAI` or an
    `openai.AzureOpenAI`. The other arguments are those of HostedEmbedder.
    """

    provider = OPENAI
    default_model = "text-embedding-3-small"
    accepts_client = True

    def _connect(self, base_url: str) -> JsonApi:
        return JsonApi(self._name, base_url, self._key, timeout=self._timeout)

    def _request(self, texts: Sequence[str], role: Role) -> Sequence[Any]:
        body: dict[str, Any] = {"model": self._model, "input": list(texts)}
        if self._requested_dimensions is not None:
            body["dimensions"] = self._requested_dimensions
        if self._is_clients_own:
            return in_order(self._name, self._by_client(body), len(texts))
        if not self._is_elsewhere:
            # A third of the bytes of a list of numbers.
            body["encoding_format"] = "base64"
        answer = self._client.post("embeddings", body)
        vectors = numbered_vectors(self._name, answer, len(texts))
        length = self._requested_dimensions if self._is_elsewhere else None
        return [vector[:length] for vector in vectors]

    def _by_client(self, body: dict[str, Any]) -> list[tuple[int, Any]]:
        import openai

        client = self._client.with_options(timeout=self._timeout, max_retries=0)
        secrets = [client.api_key]
        try:
            answer = client.embeddings.create(**body)
            return [(one.index, one.embedding) for one in answer.data]
        except openai.APITimeoutError as exc:
            raise timed_out(self._name) from redacted(exc, secrets=secrets)
        except openai.APIConnectionError as exc:
            raise unreachable(self._name, exc.__cause__ or exc) from redacted(exc, secrets=secrets)
        except openai.APIStatusError as exc:
            answer = exc.response
            raise refused(
                self._name, exc.status_code, answer.headers, answer.text, *secrets
            ) from redacted(exc, secrets=secrets)
        # The client raises these for a body that is not JSON, or JSON in another form.
        except (openai.OpenAIError, AttributeError, TypeError, ValueError) as exc:
            raise malformed(self._name, "it holds no embeddings") from redacted(
                exc, secrets=secrets
            )

"""A local HTTP server that stands in for an API of embeddings or reranking."""

import base64
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np

from local_server import Quiet, serving


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: Any
    port: int = 0
    """That of the client, so of its connection."""


@dataclass
class Answer:
    """The response of the server: JSON, or raw bytes."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class ProviderServer:
    """Returns the answers in `before`, then those of `answer`; None breaks the connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []
        self.before: deque[Answer | None] = deque()
        self.answer: Callable[[Request], Answer | None] = lambda _: Answer({}, 500)

    def bodies(self) -> list[Any]:
        return [request.body for request in self.requests]


@contextmanager
def provider_server() -> Iterator[ProviderServer]:
    """Serve on a free port of this machine."""

    class Handler(Quiet, BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            headers = {name.lower(): value for name, value in self.headers.items()}
            port = self.client_address[1]
            request = Request(self.path, headers, json.loads(self.rfile.read(length)), port)
            served.requests.append(request)
            answer = served.before.popleft() if served.before else served.answer(request)
            if answer is None:
                self.close_connection = True
                return
            is_raw = isinstance(answer.body, bytes)
            body = answer.body if is_raw else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            kind = "text/html" if is_raw else "application/json"
            headers = {"Content-Type": kind, "Content-Length": str(len(body)), **answer.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    with serving(Handler) as url:
        served = ProviderServer(url)
        yield served


def as_openai(vectors: Sequence[Sequence[float]], encoding: str | None = None) -> Answer:
    """Return the answer of OpenAI and Voyage, last vector first: what counts is `index`."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": (
                base64.b64encode(np.array(vector, "<f4").tobytes()).decode()
                if encoding == "base64"
                else vector
            ),
        }
        for index, vector in enumerate(vectors)
    ]
    return Answer({"object": "list", "data": data[::-1], "model": "m", "usage": {}})


def texts_of(request: Request) -> list[str]:
    """Return the texts that were sent to be embedded, in the form of OpenAI, Cohere or Google."""
    if "requests" in request.body:
        return [one["content"]["parts"][0]["text"] for one in request.body["requests"]]
    texts: list[str] = request.body.get("texts") or request.body["input"]
    return texts


def as_embeddings(request: Request, vectors: Sequence[Sequence[float]]) -> Answer:
    """Return vectors in the form of the API that was called."""
    if request.path.endswith(":batchEmbedContents"):
        return Answer({"embeddings": [{"values": vector} for vector in vectors]})
    if request.path == "/v2/embed":
        return Answer({"id": "1", "embeddings": {"float": vectors}, "texts": texts_of(request)})
    return as_openai(vectors, request.body.get("encoding_format"))

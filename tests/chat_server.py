"""A local HTTP server that stands in for a model with OpenAI's chat API, and streams."""

import json
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal, TypeAlias

from local_server import Quiet, serving

Part: TypeAlias = str | dict[str, Any] | threading.Event | Literal[None]
"""A piece of the text, a raw event, a pause until the event is set, or a broken connection."""


class ChatServer:
    """Answers every request with `status`, and then with `parts`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[dict[str, Any]] = []
        self.status = 200
        self.parts: Sequence[Part] = ()
        self.was_left = threading.Event()

    def says(self, *parts: Part, status: int = 200) -> None:
        """Answer in this way from now on, and forget what was asked."""
        self.parts, self.status = parts, status
        self.requests.clear()
        self.was_left.clear()


def chunk(text: str | None, finish_reason: str | None = None) -> dict[str, Any]:
    """Return an event with a piece of the text, or with the end."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    head = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return {**head, "choices": [choice]}


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """Serve on a free port of this machine."""

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            served.requests.append({"path": self.path, **json.loads(body)})
            self.send_response(served.status)
            if served.status != 200:
                self.end_headers()
                # Servers repeat parts of the prompt in their errors.
                self.wfile.write(body)
                return
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for part in served.parts:
                if isinstance(part, threading.Event):
                    if not self.waited(part):
                        served.was_left.set()
                        return
                elif part is None:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                else:
                    self.event(part if isinstance(part, dict) else chunk(part))
            self.event(chunk(None, "stop"))
            self.wfile.write(b"data: [DONE]\n\n")

        def event(self, data: dict[str, Any]) -> None:
            self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

        def waited(self, event: threading.Event) -> bool:
            """Wait; return whether the client is still there."""
            while not event.wait(0.01):
                if select.select([self.connection], [], [], 0)[0]:
                    try:
                        return bool(self.connection.recv(1, socket.MSG_PEEK))
                    except ConnectionResetError:  # it left an event unread
                        return False
            return True

    with serving(Handler) as url:
        served = ChatServer(f"{url}/v1")
        yield served

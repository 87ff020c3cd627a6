"""A slower network: a TCP proxy in a separate process that delays the data it forwards.

Half of the milliseconds each way, from when the bytes came in; it limits no bandwidth. Imports
nothing of this project, so that it starts as a script.
"""

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def slower(port: int, milliseconds: float) -> Iterator[int]:
    """Run a proxy to a port of this machine for a while; yield the proxy's port."""
    command = [sys.executable, __file__, str(port), str(milliseconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def _relay(source: socket.socket, target: socket.socket, delay: float) -> None:
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def deliver() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = waiting.get()
                time.sleep(max(due - time.perf_counter(), 0.0))
                if not data:
                    break
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    threading.Thread(target=deliver, daemon=True).start()
    data = b"-"
    while data:
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        waiting.put((time.perf_counter() + delay, data))


def serve(port: int, milliseconds: float) -> None:
    """Print the port to connect to, then forward data until killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for ends in ((near, far), (far, near)):
                arguments = (*ends, milliseconds / 2000)
                threading.Thread(target=_relay, args=arguments, daemon=True).start()


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))

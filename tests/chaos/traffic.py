"""Writers and searches that go on while a test breaks something, and stand still to be checked."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from versions import Ledger, Version, chunks, document, word

from conftest import Connection
from second_brain.errors import SecondBrainError, UnavailableError, translate
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import AsyncKnowledgeWriter, KnowledgeWriter
from trials import Trial

KEYS = 6
DISK_FULL = "53100"


class Traffic:
    """Writers in threads and on an event loop, and searches, on the server that `dsn` names.

    A writer has keys of its own. After a failure it connects again, once it may go on.
    """

    def __init__(
        self,
        trial: Trial,
        ledger: Ledger,
        dsn: Callable[[], str],
        *,
        writers: int = 3,
        async_writers: int = 2,
        searchers: int = 2,
        searches_survive: bool = False,
    ) -> None:
        self._trial, self._ledger, self._dsn = trial, ledger, dsn
        self._searches_survive = searches_survive
        self._go, self._end = threading.Event(), threading.Event()
        self._standing = 0
        self._lock = threading.Lock()
        self.refusals = self.failures = 0
        names = [f"thread{number}" for number in range(writers)]
        loops = [f"loop{number}" for number in range(async_writers)]
        self._threads = [
            *(threading.Thread(target=self._guard, args=(self._write, name)) for name in names),
            *(
                threading.Thread(target=self._guard, args=(self._search, f"search{number}"))
                for number in range(searchers)
            ),
        ]
        if loops:
            self._threads.append(threading.Thread(target=self._guard, args=(self._loop, loops)))
        self._moving = writers + async_writers + searchers

    @contextmanager
    def running(self) -> Iterator[None]:
        """Begin, and end with the block."""
        self.go_on()
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._end.set()
            self._go.set()
            for thread in self._threads:
                thread.join(timeout=60)
                if thread.is_alive():
                    self._trial.violated(f"{thread.name} hangs")

    def go_on(self) -> None:
        """Let all of them go on."""
        self._go.set()

    def stand_still(self, seconds: float = 60) -> None:
        """Wait until nothing is under way."""
        self._go.clear()
        give_up = time.monotonic() + seconds
        while self._standing < self._moving:
            if time.monotonic() > give_up:
                self._trial.violated(f"writers or searches still wait after {seconds} s")
                return
            time.sleep(0.01)

    def _guard(self, work: Callable[[Any], None], argument: object) -> None:
        try:
            work(argument)
        except Exception as error:  # noqa: BLE001
            self._trial.violated(f"{argument}: {type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._moving -= 1

    def _may_go_on(self) -> bool:
        return self._go.is_set() and not self._end.is_set()

    def _stand(self, by: int) -> None:
        with self._lock:
            self._standing += by

    def _sent(self, key: str, version: Version) -> set[Version]:
        before = set(self._ledger.possible.get(key, {None}))
        self._ledger.sends(key, version)
        self._trial.note("writes")
        return before

    def _failed(
        self, key: str, before: set[Version], error: SecondBrainError, is_lost: bool
    ) -> None:
        self.failures += 1
        # With the connection lost nobody knows whether the commit came first.
        if error.code == DISK_FULL and not is_lost:
            self._ledger.is_refused(key, before)
            self.refusals += 1
            self._trial.held("writes refused with 53100")
        elif isinstance(error, UnavailableError):
            self._trial.held("writes that lost their connection")
        else:
            self._trial.violated(f"a write: {type(error).__name__} {error.code}: {error}")

    def _acknowledged(self, key: str, version: Version) -> None:
        self._ledger.is_acknowledged(key, version)
        self._trial.held("acknowledged writes")

    def _steps(self, name: str) -> Iterator[tuple[str, Version]]:
        draw, version = self._trial.random(name), 0
        while True:
            version += 1
            yield f"{name}k{draw.randrange(KEYS)}", None if draw.random() < 0.1 else version

    def _write(self, name: str) -> None:
        steps = self._steps(name)
        while not self._end.is_set():
            self._stand(1)
            self._go.wait()
            self._stand(-1)
            try:
                connection = psycopg.connect(self._dsn(), autocommit=True, connect_timeout=5)
            except psycopg.OperationalError:
                time.sleep(0.05)
                continue
            with connection:
                writer, is_lost = KnowledgeWriter(connection), False
                while self._may_go_on() and not is_lost:
                    key, version = next(steps)
                    before = self._sent(key, version)
                    try:
                        if version is None:
                            writer.delete_document(key)
                        else:
                            given = chunks(key, version, self._ledger.length)
                            writer.upsert_document(document(key, version), given)
                    except SecondBrainError as error:
                        is_lost = connection.closed
                        self._failed(key, before, error, is_lost)
                    else:
                        self._acknowledged(key, version)

    def _loop(self, names: list[str]) -> None:
        async def all_writers() -> None:
            await asyncio.gather(*map(self._write_async, names))

        asyncio.run(all_writers())

    async def _write_async(self, name: str) -> None:
        steps = self._steps(name)
        while not self._end.is_set():
            self._stand(1)
            while not self._go.is_set():
                await asyncio.sleep(0.01)
            self._stand(-1)
            try:
                connection = await psycopg.AsyncConnection.connect(
                    self._dsn(), autocommit=True, connect_timeout=5
                )
            except psycopg.OperationalError:
                await asyncio.sleep(0.05)
                continue
            async with connection:
                writer, is_lost = AsyncKnowledgeWriter(connection), False
                while self._may_go_on() and not is_lost:
                    key, version = next(steps)
                    before = self._sent(key, version)
                    try:
                        if version is None:
                            await writer.delete_document(key)
                        else:
                            given = chunks(key, version, self._ledger.length)
                            await writer.upsert_document(document(key, version), given)
                    except SecondBrainError as error:
                        is_lost = connection.closed
                        self._failed(key, before, error, is_lost)
                    else:
                        self._acknowledged(key, version)

    def _search(self, name: str) -> None:
        if not self._searches_survive:
            # A server that starts again may have another port.
            self._search_with(
                name, lambda: PostgresProvider(self._dsn(), retries=0, on_error="empty")
            )
            return
        # On a full disk, Postgres may refuse a new session, which writes a file of its own.
        with psycopg.connect(self._dsn(), autocommit=True) as connection:
            self._search_with(name, lambda: PostgresProvider(connection, on_error="empty"))

    def _search_with(self, name: str, provider: Callable[[], PostgresProvider]) -> None:
        draw = self._trial.random(name)
        while not self._end.is_set():
            self._stand(1)
            self._go.wait()
            self._stand(-1)
            while self._may_go_on():
                text = f"thread{draw.randrange(3)}k{draw.randrange(KEYS)} keeps {draw.randrange(4)}"
                _, details = provider().hybrid_search([draw.random(), 1, 1], text, 5, snippet=True)
                self._trial.note("searches")
                if "fallback_reason" not in details:
                    self._trial.held("searches answered")
                elif self._searches_survive or details["error_kind"] not in (
                    "unavailable",
                    "connection_lost",
                ):
                    self._trial.violated(f"a search: {details['code']} {details['error_message']}")
                else:
                    self._trial.held("searches that lost their connection")
                    time.sleep(0.05)


def check_searches(trial: Trial, ledger: Ledger, connection: Connection) -> None:
    """Check that each document is found by the word it alone has, and by a chunk's embedding."""
    provider = PostgresProvider(connection, on_error="empty")
    for key, (version,) in ledger.possible.items():
        if version is None:
            continue
        try:
            by_word, _ = provider.find(None, word(key, version))
            chunk = chunks(key, version, ledger.length)[0]
            by_vector, _ = provider.find(chunk["embedding"], None, threshold=0.999, top_k=50)  # type: ignore[arg-type]
        except (SecondBrainError, psycopg.Error) as error:
            trial.violated(f"a search afterwards: {translate(error)}")
            return
        if [word(key, version) in hit.content for hit in by_word] != [True]:
            trial.violated(f"{key} version {version} is found {len(by_word)} times by its word")
        elif not any(hit.content == chunk["content"] for hit in by_vector):
            trial.violated(f"{key} version {version} is not found by its vector")
        else:
            trial.held("documents found by word and vector afterwards")

"""Read replicas: which server gets a search, and which is next when that one fails or is behind.

This module opens no connection and reads no rows: `replica_provider` does.
"""

import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

from second_brain.errors import InvalidInputError, UnavailableError, translate
from second_brain.replicas.reachability import PROBE_WAIT, Reachability
from second_brain.services.calls import SERIALIZATION_FAILURE

logger = logging.getLogger(__name__)

MAX_LAG = 10.0
"""Seconds by which a replica may be behind the primary."""

WAIT = 1.0
"""The maximum wait for a replica to replay a write, in seconds."""

CHECKED_FOR = 0.5
"""Seconds for which the result of a check holds."""

CONNECTION_WAIT = 1.0
"""The maximum wait for a connection, in seconds, when another server can answer."""

FIRST_POLL, LONGEST_POLL = 0.002, 0.05
"""Seconds between two checks of a replica that has not replayed a write yet."""

# A standby that has replayed all that it received is not behind: without writes, its last
# transaction may be hours old. latest_end_lsn is the end of the primary's WAL, also while the
# standby receives it slowly; it is null without the rights of pg_read_all_stats.
_LAG: LiteralString = """
select case
         when not pg_is_in_recovery() then 0
         when receiver.pid is not null
              and coalesce(receiver.latest_end_lsn, pg_last_wal_receive_lsn())
                  <= pg_last_wal_replay_lsn()
           then 0
         else extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp())
       end::float8 as lag
  from (select) as always
  left join pg_catalog.pg_stat_wal_receiver as receiver on true
"""

_HAS_REPLAYED: LiteralString = """
select case
         when pg_is_in_recovery() then pg_last_wal_replay_lsn()
         else pg_current_wal_insert_lsn()
       end >= %(position)s::pg_lsn as has_replayed
"""

_POSITION = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")

Fetch = Callable[[LiteralString, dict[str, object]], Awaitable[Any]]
"""Runs a statement on the replica's connection and returns the value of its one row."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The state of a replica, as a provider found it.

    `address` is host, port and database. `lag` is the number of seconds by which it was behind at
    the last check, None before the first. `is_resting`: it failed and gets no search for a while.
    """

    address: str
    lag: float | None
    is_resting: bool
    answered: int
    failed: int
    in_use: int


class BehindError(UnavailableError):
    """A replica has not replayed what a search must see."""

    kind = "replica_behind"
    default_remedy = "Search again, or on the primary."


class Server(Reachability):
    """The primary or a replica: its database, and what the last searches and checks found."""

    def __init__(self, database: Any, address: str, *, is_replica: bool) -> None:
        super().__init__()
        self.database = database
        self.address = address
        self.is_replica = is_replica
        self.lag: float | None = None
        self.in_use = 0
        self._checked_at = self._caught_up_at = -1e9
        self.last_turn = 0

    @property
    def must_be_checked(self) -> bool:
        """Whether the last check is too old."""
        return time.monotonic() > self._checked_at + CHECKED_FOR

    def is_within(self, max_lag: float) -> bool:
        """Whether it may answer: it is not known to be further behind."""
        return self.must_be_checked or (self.lag is not None and self.lag <= max_lag)

    def checked(self, lag: float | None) -> None:
        """Record the lag that the replica reports: None if it is unknown."""
        now = time.monotonic()
        if lag == 0:
            self._caught_up_at = now
        # The lag is at most the time since the last check that found none.
        self.lag = min(now - self._caught_up_at, 1e9 if lag is None else max(lag, 0.0))
        self._checked_at = now

    def has_failed(self) -> None:
        """Record a failure; the server rests, longer each time, and is checked afterwards."""
        super().has_failed()
        self._checked_at = -1e9

    def state(self) -> ReplicaState:
        """Return what is known."""
        return ReplicaState(
            self.address, self.lag, self.is_resting, self.answered, self.failed, self.in_use
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """A server for a search, and what is asked of it there."""

    server: Server
    max_lag: float | None
    position: str | None
    wait: float
    connection_wait: float | None

    async def check(self, fetch: Fetch, sleep: Callable[[float], Awaitable[object]]) -> None:
        """Raise BehindError when the replica is too far behind for this search."""
        server = self.server
        if not server.is_replica:
            return
        if self.max_lag is not None and server.must_be_checked:
            server.checked(await fetch(_LAG, {}))
        if self.max_lag is not None and (server.lag is None or server.lag > self.max_lag):
            raise BehindError(f"the replica {server.address} is {server.lag:.1f} s behind")
        if self.position is None:
            return
        give_up, pause = time.monotonic() + self.wait, FIRST_POLL
        while not await fetch(_HAS_REPLAYED, {"position": self.position}):
            if time.monotonic() + pause > give_up:
                raise BehindError(f"the replica {server.address} has not replayed {self.position}")
            await sleep(pause)
            pause = min(2 * pause, LONGEST_POLL)


class Replicas:
    """The replicas of a primary, and the choice among them."""

    def __init__(
        self, primary: Server, replicas: Sequence[Server], *, max_lag: float, wait: float
    ) -> None:
        for name, value in (("max_lag", max_lag), ("max_wait", wait)):
            if not (isinstance(value, int | float) and 0 <= value < float("inf")):
                raise InvalidInputError(
                    f"{name} must be a number of seconds, 0 or more, not {value!r:.100}"
                )
        self._primary = primary
        self._replicas = tuple(replicas)
        self._max_lag = max_lag
        self._wait = wait
        self._lock = threading.Lock()
        self._turns = 0

    def states(self) -> list[ReplicaState]:
        """Return what is known of each replica, in the order in which they were given."""
        return [one.state() for one in self._replicas]

    def databases(self) -> list[Any]:
        """Return the databases of all servers."""
        return [self._primary.database, *(one.database for one in self._replicas)]

    def turns(self, position: str | None) -> Iterator[Turn]:
        """Yield the servers for one search, until one answers.

        First the replicas that are not too far behind, the least busy one first; then the primary.
        When both fail, a search that need not see a write goes to replicas that are behind, and
        last to the servers that rest after a failure.
        """
        tried: set[Server] = set()
        wait = self._wait
        for server in (*self._least_busy_first(), self._primary):
            if server in tried:
                continue
            if server.is_replica and not server.is_within(self._max_lag):
                continue
            if not server.admits(CONNECTION_WAIT):
                continue
            short = PROBE_WAIT if server.is_suspect else CONNECTION_WAIT
            failures = server.failed
            yield Turn(server, self._max_lag, position, wait, short)
            # One wait for a write is enough: the next replica either has it or is left out.
            wait = 0.0
            if server.failed > failures or not server.is_replica:
                tried.add(server)
        behind = [one for one in self._replicas if one not in tried] if position is None else []
        for server in sorted(behind, key=lambda one: (one.is_resting, one.lag or 0.0)):
            yield Turn(server, None, None, 0.0, CONNECTION_WAIT)
        if self._primary not in tried:
            yield Turn(self._primary, None, None, 0.0, None)

    @contextmanager
    def using(self, turn: Turn) -> Iterator[None]:
        """Count the search on its server, and record how it ended."""
        server = turn.server
        with self._lock:
            server.in_use += 1
            self._turns += 1
            server.last_turn = self._turns
        try:
            yield
        except BehindError as error:
            logger.info("%s", error)
            raise
        except Exception as error:
            if server.is_failing(error):
                server.has_failed()
                logger.warning("server %s: %s", server.address, translate(error).kind)
            raise
        else:
            server.has_answered()
        finally:
            with self._lock:
                server.in_use -= 1

    def _least_busy_first(self) -> list[Server]:
        with self._lock:
            return sorted(self._replicas, key=lambda one: (one.in_use, one.last_turn))


def is_for_the_next(error: Exception) -> bool:
    """Say whether a search that failed with this may succeed on another server."""
    known = translate(error)
    return isinstance(known, UnavailableError) or known.code == SERIALIZATION_FAILURE


def checked_position(position: str) -> str:
    """Return a position in the WAL that is one. Raises InvalidInputError."""
    if not isinstance(position, str) or not _POSITION.fullmatch(position):
        raise InvalidInputError(
            f"wait_for() needs a position in the WAL such as 0/3000148, not {position!r:.100}",
            remedy="Pass what wal_position() of the writer has returned.",
        )
    return position

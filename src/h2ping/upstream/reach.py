"""A TCP connection to one of the upstream's addresses, whichever answers (RFC 8305).

Theory of operation
-------------------
1. The families take turns, and the next address is tried when the one before failed or took ATTEMPT_DELAY: an IPv6
   path that swallows packets costs a quarter of a second, not the whole dial.
2. An address that failed, at TCP or later (TLS, SETTINGS), or that was overtaken, is tried after the others from then
   on, the one that failed last as the very last: dials that follow one another do not all run into the same host.
3. The name is resolved for each dial; dials that begin together share one answer. Lookups have threads of their own
   that nobody waits for: one that hangs for its whole timeout neither fills a pool of a few threads, so that the next
   finds no place, nor keeps the program from ending.

This module knows neither TLS nor deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

ATTEMPT_DELAY = 0.25
"""RFC 8305 section 8."""

MOST_REMEMBERED = 64
SHARED_FOR = 0.5
"""Seconds for which a lookup takes further dials. One that is older may hang, and the next may not."""

_NO_WAY_THERE = frozenset(
    (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETDOWN)
)
"""Says that this machine lacks the family; another address's failure says more of the upstream."""


class NotReachedError(Exception):
    """No address took the connection: the one whose failure tells most, and that failure."""

    def __init__(self, address: Any, error: OSError) -> None:
        super().__init__(address, error)
        self.address = address
        self.error = error


class Reach:
    """What is known of the addresses of one upstream."""

    def __init__(self) -> None:
        self._failed: dict[Any, None] = {}
        """In the order of their last failure."""
        self._lookup: asyncio.Future[list[Any]] | None = None
        self._asked_at = 0.0
        self._found: list[Any] = []
        """Addresses of the latest lookup."""

    @property
    def has_others(self) -> bool:
        """An address has not failed since it last served, if ever."""
        return any(address not in self._failed for address in self._found)

    def on_failed(self, address: Any) -> None:
        """No connection came of it."""
        self._failed.pop(address, None)
        self._failed[address] = None
        if len(self._failed) > MOST_REMEMBERED:  # a balancer's addresses change for as long as we run
            del self._failed[next(iter(self._failed))]

    def on_reached(self, address: Any) -> None:
        """It serves."""
        self._failed.pop(address, None)

    async def connect(self, host: str, port: int) -> tuple[socket.socket, Any]:
        """A connected socket and its address. Raises NotReachedError, or OSError when there is no address."""
        found = await self._resolved(host, port)
        ways = self._ordered(
            dict.fromkeys((family, proto, address) for family, _, proto, _, address in found)
        )
        self._found = [address for _, _, address in ways]
        tasks: dict[asyncio.Task[socket.socket], Any] = {}
        failures: list[NotReachedError] = []
        sock: socket.socket | None = None
        try:
            while sock is None:
                if len(tasks) < len(ways):
                    way = ways[len(tasks)]
                    tasks[asyncio.ensure_future(_connect(*way))] = way[2]
                running = {task for task in tasks if not task.done()}
                patience = ATTEMPT_DELAY if len(tasks) < len(ways) else None
                done, _ = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    error = task.exception()
                    if error is None and sock is None:
                        sock, reached = task.result(), tasks.pop(task)
                    elif isinstance(error, OSError):
                        failures.append(NotReachedError(tasks[task], error))
                        self.on_failed(tasks[task])
                    elif error is not None:
                        raise error
                if sock is None and len(tasks) == len(ways) and all(task.done() for task in tasks):
                    raise _most_telling(failures)
        finally:
            for task in tasks:
                task.add_done_callback(_close_unused)
                task.cancel()
        for address in tasks.values():
            self.on_failed(address)
        return sock, reached

    async def _resolved(self, host: str, port: int) -> list[Any]:
        now = asyncio.get_running_loop().time()
        if self._lookup is None or self._lookup.done() or now - self._asked_at > SHARED_FOR:
            self._asked_at = now
            self._lookup = _resolve(host, port)
        return await asyncio.shield(self._lookup)

    def _ordered(self, ways: Iterable[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
        by_family: dict[int, list[tuple[int, int, Any]]] = {}
        for way in ways:
            by_family.setdefault(way[0], []).append(way)
        turns = itertools.chain.from_iterable(itertools.zip_longest(*by_family.values()))
        last = {address: number for number, address in enumerate(self._failed)}
        return sorted((way for way in turns if way is not None), key=lambda way: last.get(way[2], -1))


def _resolve(host: str, port: int) -> asyncio.Future[list[Any]]:
    """What getaddrinfo says or raises, in time."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def settle(found: list[Any] | Exception) -> None:
        if answer.cancelled():
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
            answer.exception()  # retrieved here: all who asked may have given up
        else:
            answer.set_result(found)

    def ask() -> None:
        found: list[Any] | Exception
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except Exception as error:  # raised again for who awaits it
            found = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=ask, name="resolve", daemon=True).start()
    return answer


async def _connect(family: int, proto: int, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM, proto)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _close_unused(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _most_telling(failures: list[NotReachedError]) -> NotReachedError:
    return next((each for each in failures if each.error.errno not in _NO_WAY_THERE), failures[0])

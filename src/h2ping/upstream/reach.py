"""A TCP connection to one of the upstream's addresses, whichever answers (RFC 8305).

Theory of operation
-------------------
1. The families take turns, and the next address is tried when the one before failed or took ATTEMPT_DELAY: an IPv6
   path that swallows packets costs a quarter of a second, not the whole dial.
2. An address that failed, at TCP or later (TLS, SETTINGS), or that was overtaken, is tried after the others from then
   on, the one that failed last as the very last: dials that follow one another do not all run into the same host.
3. The name is resolved for each dial; what resolves to one address is tried as it is.

This module knows neither TLS nor deadlines.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

ATTEMPT_DELAY = 0.25
"""RFC 8305 section 8."""

_NO_WAY_THERE = frozenset(
    (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETDOWN)
)
"""Says that this machine lacks the family; another address's failure says more of the upstream."""


class Reach:
    """What is known of the addresses of one upstream."""

    def __init__(self) -> None:
        self._failed: dict[Any, None] = {}
        """In the order of their last failure."""

    def on_failed(self, address: Any) -> None:
        """No connection came of it."""
        self._failed.pop(address, None)
        self._failed[address] = None

    def on_reached(self, address: Any) -> None:
        """It serves."""
        self._failed.pop(address, None)

    async def connect(self, host: str, port: int) -> tuple[socket.socket, Any]:
        """A connected socket and its address. Raises OSError of the address whose failure tells most."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        ways = self._ordered(
            dict.fromkeys((family, proto, address) for family, _, proto, _, address in found)
        )
        tasks: dict[asyncio.Task[socket.socket], Any] = {}
        errors: list[OSError] = []
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
                        errors.append(error)
                        self.on_failed(tasks[task])
                    elif error is not None:
                        raise error
                if sock is None and len(tasks) == len(ways) and all(task.done() for task in tasks):
                    raise _most_telling(errors)
        finally:
            for task in tasks:
                task.add_done_callback(_close_unused)
                task.cancel()
        for address in tasks.values():
            self.on_failed(address)
        return sock, reached

    def _ordered(self, ways: Iterable[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
        by_family: dict[int, list[tuple[int, int, Any]]] = {}
        for way in ways:
            by_family.setdefault(way[0], []).append(way)
        turns = itertools.chain.from_iterable(itertools.zip_longest(*by_family.values()))
        last = {address: number for number, address in enumerate(self._failed)}
        return sorted((way for way in turns if way is not None), key=lambda way: last.get(way[2], -1))


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


def _most_telling(errors: list[OSError]) -> OSError:
    return next((error for error in errors if error.errno not in _NO_WAY_THERE), errors[0])

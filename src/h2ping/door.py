"""Takes clients from one listening socket, as long as the process has descriptors for them.

Theory of operation
-------------------
1. At `most` clients the door shuts: connects wait in the kernel's queue. Left alone, libuv accepts and drops them
   when descriptors run out, and no descriptor is left to reach the upstream.
2. It opens again when an eighth has left, so that it does not swing with each client.
3. While it is shut the queue lives on by our own descriptor of the socket; what accepts is a duplicate of it.
4. At the end who stands in that queue is let in before the socket closes: the kernel would reset him, with the
   request that he has written. libuv takes one of them a turn, so in a burst there are many.

A burst that comes in one turn of the loop may pass `most`; the reserve is there for that.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from h2ping import log

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

TELL_AGAIN = 60.0
"""Seconds between two log lines about pauses; h2ping_accept_pauses_total counts each."""


class Door:
    """One listening socket and the clients inside."""

    def __init__(self, make_client: Callable[[], asyncio.BaseProtocol], most: int, backlog: int) -> None:
        self._make_client = make_client
        self._most = most
        self._few_enough = most - max(1, most // 8)
        self._backlog = backlog
        self._inside = 0
        self.pauses = 0
        """How often it was shut for want of room."""
        self._told = -TELL_AGAIN
        """When a pause was last logged, by the loop's clock."""
        self._closed = False
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._opening: asyncio.Task[None] | None = None

    @property
    def is_shut(self) -> bool:
        """Nobody is let in just now."""
        return self._server is None

    async def open(self, sock: socket.socket) -> None:
        """Take clients from `sock`, which is the door's from now on."""
        self._socket = sock
        await self._accept()

    def entered(self) -> None:
        """A client connected."""
        self._inside += 1
        if self._inside >= self._most and self._server is not None:
            self._server.close()
            self._server = None
            self.pauses += 1
            self._tell(asyncio.get_running_loop().time())

    def _tell(self, now: float) -> None:
        if now - self._told >= TELL_AGAIN:
            self._told = now
            log.warning(
                f"{self._inside} clients: more wait until some leave, for want of descriptors (ulimit -n); "
                f"pause {self.pauses}"
            )

    def left(self) -> None:
        """A client is gone."""
        self._inside -= 1
        may_open = self.is_shut and self._opening is None and not self._closed
        if may_open and self._inside <= self._few_enough:
            self._opening = asyncio.get_running_loop().create_task(self._accept())

    async def last_call(self) -> None:
        """Let in who has connected already (rule 4), then close."""
        queue = self._socket
        if queue is None:
            return
        guests: list[socket.socket] = []
        with suppress(OSError):  # the queue is empty, or descriptors are short
            queue.setblocking(False)
            while len(guests) < self._backlog:  # who keeps coming does not keep it open
                guests.append(queue.accept()[0])
        self.close()
        loop = asyncio.get_running_loop()
        for guest in guests:
            guest.setblocking(False)
            with suppress(OSError):  # he has left
                await loop.connect_accepted_socket(self._make_client, guest)

    def close(self) -> None:
        """Take no more clients; connects are refused."""
        self._closed = True
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _accept(self) -> None:
        assert self._socket is not None
        try:
            server = await asyncio.get_running_loop().create_server(
                self._make_client, sock=self._socket.dup(), backlog=self._backlog
            )
        finally:
            self._opening = None
        if self._closed:
            server.close()
        else:
            self._server = server

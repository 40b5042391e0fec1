"""Faults that strike whoever dials: at once, or because the connection at hand is taken away first.

A connection at hand goes with GOAWAY below the request and FIN, so that the request may be sent again and has to
dial; where half of the answer is out, with RST.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from tests.faults.cell import ScriptedCell
from tests.faults.result import Moment
from tests.support.framing import goaway
from tests.support.scripted_origin import context_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stage import Certificates


class Outage(ScriptedCell):
    """Nobody gets a new connection until `heal`."""

    certificates: Certificates

    def __init__(self, fault: str, moment: Moment, name: str) -> None:
        super().__init__(fault, moment, name)
        self.refuses = True

    async def reach(self) -> None:
        if self.moment is Moment.BEFORE_SETTINGS:
            self.origin.manners.opening = None
            await self.connect()
            await self.begin()
        else:
            await super().reach()

    async def strike(self) -> None:
        if self.moment is Moment.BEFORE_SETTINGS:
            return
        await self.begin()
        if self.moment is Moment.HALF_RECEIVED:
            self.conn.rst()
        else:
            self.conn.fin(goaway(self.stream - 1))
            await self.conn.closed()

    async def begin(self) -> None:
        """From now on dials fail."""
        raise AssertionError("each kind says how")


class Refused(Outage):
    """Connects are refused."""

    async def begin(self) -> None:
        self.origin.stop_listening()

    async def heal(self) -> None:
        await self.origin.start()


class _OtherListener(Outage):
    """Something else has the port."""

    settings = {"connect_timeout": "5s"}  # noqa: RUF012

    def listener(self, backlog: int) -> socket.socket:
        self.origin.stop_listening()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(("127.0.0.1", self.origin.port))
        sock.listen(backlog)
        return sock


class Hangs(_OtherListener):
    """SYNs are not answered: the backlog is full and nobody accepts (Linux)."""

    async def begin(self) -> None:
        self._listener = self.listener(0)
        self._fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(("127.0.0.1", self.origin.port))
            self._fillers.append(filler)

    async def heal(self) -> None:
        for sock in (*self._fillers, self._listener):
            sock.close()
        await self.origin.start()


class Stalls(_OtherListener):
    """TCP connects, and no byte of TLS comes."""

    async def begin(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)

        self._server = await asyncio.start_server(serve, sock=self.listener(16))

    async def heal(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self.origin.start()


class _OtherContext(Outage):
    """The handshake ends otherwise. Such a fault is permanent, so that until the next dial is due (0.1 s after the
    first that failed) requests get the same answer at once: docs/behaviour.md. The second try is beyond that."""

    next_tries = 2
    chain = "good"
    alpn = ("h2",)

    async def begin(self) -> None:
        self._good = self.origin.context
        self.origin.context = context_for(getattr(self.certificates, self.chain), list(self.alpn))

    async def heal(self) -> None:
        self.origin.context = self._good


class WrongCertificate(_OtherContext):
    """For another name."""

    chain = "other_name"


class ExpiredCertificate(_OtherContext):
    """Of yesterday."""

    chain = "expired"


class UnknownAuthority(_OtherContext):
    """Signed by nobody we know."""

    chain = "unknown"


class NoH2(_OtherContext):
    """ALPN chooses HTTP/1.1."""

    alpn = ("http/1.1",)


class NoName(Outage):
    """The resolver fails, then recovers."""

    names: Path

    async def open(self) -> str:
        await super().open()
        self._host = f"{self.name.lower().replace('_', '-')}.flaky.test"
        return f"https://{self._host}:{self.origin.port}"

    async def begin(self) -> None:
        (self.names / self._host).touch()

    async def heal(self) -> None:
        (self.names / self._host).unlink()


KINDS: dict[str, type[Outage]] = {
    "connect refused": Refused,
    "connect hangs": Hangs,
    "TLS handshake stalls": Stalls,
    "certificate for another name": WrongCertificate,
    "certificate expired": ExpiredCertificate,
    "certificate of an unknown authority": UnknownAuthority,
    "ALPN without h2": NoH2,
    "DNS failure": NoName,
}

__all__ = ["KINDS", "Outage"]

"""Faults of a connection that stands: what the origin, or the path to it, does at the moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h2ping.lab.relay import Relay
from tests.faults.cell import ScriptedCell
from tests.faults.result import Moment
from tests.support.bell import pace
from tests.support.framing import Code, Kind, frame, goaway, ping, rst_stream, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    Shape = Callable[[int], tuple[bytes, ...]]
    """The stream's id to the frames."""

LAST_OF_ALL = 2**31 - 1


class Fin(ScriptedCell):
    """close_notify and FIN, as an orderly end."""

    async def strike(self) -> None:
        self.conn.fin()
        await self.conn.closed()


class HalfClose(ScriptedCell):
    """FIN without close_notify, and the origin goes on reading."""

    async def strike(self) -> None:
        self.conn.fin(close_notify=False)
        await self.conn.closed()


class Rst(ScriptedCell):
    """TCP RST."""

    async def strike(self) -> None:
        self.conn.rst()


class TruncatedFrame(ScriptedCell):
    """HEADERS, or DATA where they were sent, that say 100 octets and have 10, then FIN."""

    async def strike(self) -> None:
        kind = Kind.DATA if self.moment is Moment.HALF_RECEIVED else Kind.HEADERS
        self.conn.raw(frame(kind, 4 if kind == Kind.HEADERS else 0, self.stream, bytes(100))[:19])
        self.conn.fin()
        await self.conn.closed()


class Path(ScriptedCell):
    """With the lab's relay between proxy and origin."""

    relay: Relay

    async def open(self) -> str:
        await super().open()
        self.relay = Relay(self.origin.port)
        await self.relay.accept()
        return self.relay.url

    async def close(self) -> None:
        await self.relay.stop()
        await super().close()


class RelayCut(Path):
    """The relay sends RST to both sides."""

    async def strike(self) -> None:
        self.relay.cut("rst")


class BlackHole(Path):
    """Whatever either side sends vanishes, acknowledged by TCP."""

    settings = {"ping_interval": "400ms", "ping_timeout": "1500ms", "connect_timeout": "5s"}  # noqa: RUF012

    async def strike(self) -> None:
        self.relay.blackhole()


class LateAcks(ScriptedCell):
    """PING is acknowledged after the reply was late, SETTINGS come late."""

    settings = {"ping_interval": "300ms", "ping_timeout": "8s"}  # noqa: RUF012

    async def reach(self) -> None:
        await super().reach()
        if self.moment is not Moment.BEFORE_SETTINGS:
            self.conn.manners.ack_pings = False
        self._held = self._held or self.moment is Moment.IDLE

    async def strike(self) -> None:
        conn = self.conn
        if self.moment is Moment.BEFORE_SETTINGS:
            await pace(0.5)
            conn.manners.ack_settings = False
            conn.send(settings({}))
            await pace(0.5)
            conn.send(frame(Kind.SETTINGS, 1, 0))
        else:
            before = 0
            if self.moment is Moment.IDLE:
                before = len(conn.frames)
                # A connection without requests is not asked: the one that comes now finds the acks late.
                self.send()
                self.request = await self.origin.request(2)
                await self.request.complete()
                self.executed[self.path] += 1
            asked = await conn.saw(Kind.PING, ack=False, since=before)
            await pace(2.5)
            conn.send(ping(asked.payload, ack=True))
            await self.finish()
        conn.manners.ack_pings = True


class Goaway(ScriptedCell):
    """GOAWAY in one of its shapes (RFC 9113 section 6.8)."""

    shape: Shape
    spares = True
    """The request lives on where it is."""
    then = ""
    """`fin` or `rst`: how the connection ends right after it; else not at all."""

    async def strike(self) -> None:
        frames = self.shape(self.stream)
        if self.then == "fin":
            self.conn.fin(*frames)
        elif self.then == "rst":
            await self._send_and_reset(*frames)
        else:
            self.conn.send(*frames)
        if self.moment is Moment.IDLE:
            await self.conn.closed()
        elif self.spares:
            await self.finish()

    async def _send_and_reset(self, *frames: bytes) -> None:
        """RST when the frames were read: with it, TCP may drop what was not (RFC 9293 section 3.10.7.4)."""
        conn = self.conn
        conn.send(*frames, ping(b"is read?"))
        await conn.bell.until(
            lambda: (
                conn.is_closed
                or any(each.ack and each.payload == b"is read?" for each in conn.all(Kind.PING))
            ),
            "sign that GOAWAY was read",
        )
        conn.rst()


def goaway_cell(shape: Shape, *, refuses: bool = False, spares: bool = False, then: str = "") -> type[Goaway]:
    """A kind of cell for one shape."""

    class Made(Goaway):
        def __init__(self, fault: str, moment: Moment, name: str) -> None:
            super().__init__(fault, moment, name)
            self.shape = shape
            self.refuses = refuses
            self.spares = spares
            self.then = then

    return Made


def reset_cell(code: int) -> type[ScriptedCell]:
    """RST_STREAM with that code, on the request's stream."""

    class Made(ScriptedCell):
        def __init__(self, fault: str, moment: Moment, name: str) -> None:
            super().__init__(fault, moment, name)
            self.refuses = code == Code.REFUSED_STREAM

        async def strike(self) -> None:
            self.conn.send(rst_stream(self.stream, code))

    return Made


KINDS: dict[str, type[ScriptedCell]] = {
    "FIN": Fin,
    "RST": Rst,
    "black hole": BlackHole,
    "half-close": HalfClose,
    "truncated frame": TruncatedFrame,
    "relay cut": RelayCut,
    "late acks": LateAcks,
    "GOAWAY below the stream": goaway_cell(lambda s: (goaway(s - 1),), refuses=True),
    "GOAWAY below the stream, FIN": goaway_cell(lambda s: (goaway(s - 1),), refuses=True, then="fin"),
    "GOAWAY below the stream, RST": goaway_cell(lambda s: (goaway(s - 1),), refuses=True, then="rst"),
    "GOAWAY below the stream, debug data": goaway_cell(
        lambda s: (goaway(s - 1, debug=b"maintenance at noon"),), refuses=True
    ),
    "GOAWAY below, ENHANCE_YOUR_CALM": goaway_cell(
        lambda s: (goaway(s - 1, Code.ENHANCE_YOUR_CALM),), refuses=True
    ),
    "GOAWAY at the stream": goaway_cell(lambda s: (goaway(s),), spares=True),
    "GOAWAY at the stream, debug data": goaway_cell(
        lambda s: (goaway(s, debug=b"maintenance at noon"),), spares=True
    ),
    "GOAWAY at the stream, FIN": goaway_cell(lambda s: (goaway(s),), then="fin"),
    "GOAWAY at the stream, RST": goaway_cell(lambda s: (goaway(s),), then="rst"),
    "GOAWAY at 2^31-1": goaway_cell(lambda s: (goaway(LAST_OF_ALL),), spares=True),
    "GOAWAY at the stream, INTERNAL_ERROR, FIN": goaway_cell(
        lambda s: (goaway(s, Code.INTERNAL_ERROR),), then="fin"
    ),
    "GOAWAY in two steps, at": goaway_cell(lambda s: (goaway(LAST_OF_ALL), goaway(s)), spares=True),
    "GOAWAY in two steps, below": goaway_cell(lambda s: (goaway(LAST_OF_ALL), goaway(s - 1)), refuses=True),
    "GOAWAY whose last id grows": goaway_cell(lambda s: (goaway(s - 1), goaway(s + 8)), refuses=True),
    "GOAWAY of 4 octets": goaway_cell(lambda s: (frame(Kind.GOAWAY, 0, 0, bytes(4)),)),
    "GOAWAY on a stream": goaway_cell(lambda s: (frame(Kind.GOAWAY, 0, s, bytes(8)),)),
    **{f"RST_STREAM {code.name}": reset_cell(code) for code in Code},
    "RST_STREAM with an unknown code": reset_cell(0xFACE),
}

"""A TCP relay with the timers of the real path: what the accelerator and the balancer do to a connection.

    async with Relay(origin.port, idle_cut=3.0) as relay:
        ...  # relay.port, relay.cuts, relay.longest_gap

Theory of operation
-------------------
1. Only payload bytes count as life, in either direction. TCP keepalive probes never do: the relay ends TCP on
   both sides, as AWS Global Accelerator does.
2. A connection silent for `idle_cut` is cut the way `mode` says: "rst" resets both sides, "fin" closes both,
   "blackhole" forwards nothing more and says nothing (state forgotten without notice).
3. `max_age` cuts by age in the same way; `truncate` cuts once so many bytes went to the client.
4. `latency` delays each piece and keeps their order. `stall()` stops reading on both sides, `resume()` goes
   on; `blackhole()` swallows what comes; `refuse()` closes the listening port, `hang()` lets connects hang, `accept()`
   opens it again. With `stall_new` a connection is stalled from its first byte.

It does not know HTTP, nor TLS. Times are seconds of the path, divided by its `Scale`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, cast

from h2ping.lab.session import linger_zero
from h2ping.lab.trace import Scale
from h2ping.lab.watch import DEFAULT_PATIENCE, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

MODES = ("rst", "fin", "blackhole")


class Relay:
    """Listens on `port`, forwards to `target` on loopback. Its knobs may be changed while it runs."""

    def __init__(
        self,
        target: int,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        idle_cut: float = 0.0,
        mode: str = "rst",
        max_age: float = 0.0,
        latency: float = 0.0,
        truncate: int = 0,
        scale: Scale | None = None,
    ) -> None:
        assert mode in MODES
        self.target = target
        self.host = host
        self.port = port
        self.idle_cut = idle_cut
        self.mode = mode
        self.max_age = max_age
        self.latency = latency
        self.truncate = truncate
        self.scale = scale if scale is not None else Scale()
        self.watch = Watch()
        self.connections = 0
        self.cuts = 0
        """Connections cut because they were silent."""
        self.age_cuts = 0
        self.truncations = 0
        self.longest_gap = 0.0
        """The longest silence that ended with a byte or a cut, in seconds of this machine."""
        self.bytes_up = 0
        self.bytes_down = 0
        self.links: set[Link] = set()
        self.stall_new = False
        """New connections are taken and stall until `resume`."""
        self._full: list[socket.socket] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Base URL for `-upstream`, when an origin with the lab's certificate is behind."""
        return f"https://localhost:{self.port}"

    async def accept(self) -> None:
        """Listen, on the same port as before."""
        while self._full:
            self._full.pop().close()
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._link, self.host, self.port, backlog=4096)
            self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Close the listening port: connects are refused. Open connections live on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def hang(self) -> None:
        """Nobody takes connections and the backlog is full: further connects hang, on Linux."""
        self.refuse()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.listen(0)
        self._full = [listener]
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((self.host, self.port))
            self._full.append(filler)

    async def stop(self) -> None:
        """Close the port and every connection."""
        self.refuse()
        while self._full:
            self._full.pop().close()
        for link in list(self.links):
            link.end("rst")
        await self.until(lambda: not self.links)

    async def until(self, predicate: Callable[[], bool], patience: float = DEFAULT_PATIENCE) -> None:
        """Wait until `predicate` over these counters holds."""
        await self.watch.until(predicate, patience)

    def stall(self) -> None:
        """Stop reading on all connections: writes of both ends block once the buffers are full."""
        for link in self.links:
            link.stall()

    def resume(self) -> None:
        """Go on reading after `stall` and `stall_new`."""
        self.stall_new = False
        for link in self.links:
            link.resume()

    def blackhole(self) -> None:
        """Swallow whatever comes on the connections that are open now."""
        for link in self.links:
            link.swallowing = True

    def cut(self, mode: str = "rst") -> None:
        """End all connections that are open now."""
        for link in list(self.links):
            link.end(mode)

    def _link(self) -> _Side:
        link = Link(self)
        return link.client


class Link:
    """One forwarded connection: two sides and a clock."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.client = _Side(self)
        self.origin = _Side(self)
        self.client.other, self.origin.other = self.origin, self.client
        self.swallowing = False
        self.stalled = False
        self.over = False
        self.to_client = 0
        self.last = time.monotonic()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._dial: asyncio.Task[None] | None = None

    def opened(self) -> None:
        """The client's side is there: dial the origin."""
        relay = self.relay
        relay.connections += 1
        relay.links.add(self)
        relay.watch.changed()
        self._dial = asyncio.get_running_loop().create_task(self._connect())
        if relay.max_age:
            self._after("age", relay.scale.of(relay.max_age), self._on_age)
        self._arm_idle()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.origin, self.relay.host, self.relay.target)
        except OSError:
            self.end("rst")

    def passed(self, side: _Side, size: int) -> None:
        """`size` bytes came from `side`."""
        relay = self.relay
        now = time.monotonic()
        relay.longest_gap = max(relay.longest_gap, now - self.last)
        self.last = now
        if side is self.client:
            relay.bytes_up += size
        else:
            relay.bytes_down += size

    def _after(self, name: str, delay: float, action: Callable[[], None]) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(delay, action)

    def _arm_idle(self) -> None:
        relay = self.relay
        if relay.idle_cut and not self.over:
            silent = time.monotonic() - self.last
            self._after("idle", max(0.0, relay.scale.of(relay.idle_cut) - silent), self._on_idle)

    def _on_idle(self) -> None:
        """One timer per connection that looks at the clock when it fires; bytes do not touch it."""
        relay = self.relay
        silent = time.monotonic() - self.last
        if silent < relay.scale.of(relay.idle_cut):
            self._arm_idle()
            return
        relay.cuts += 1
        relay.longest_gap = max(relay.longest_gap, silent)
        self.end(relay.mode)
        relay.watch.changed()

    def _on_age(self) -> None:
        self.relay.age_cuts += 1
        self.end(self.relay.mode)
        self.relay.watch.changed()

    def stall(self) -> None:
        """Stop reading on both sides."""
        self.stalled = True
        self.client.settle()
        self.origin.settle()

    def resume(self) -> None:
        """Read again on both sides."""
        self.stalled = False
        self.client.settle()
        self.origin.settle()

    def half_close(self) -> None:
        """FIN to the client, without TLS's close_notify; its bytes are still read."""
        self.client.finish()

    def end(self, mode: str) -> None:
        """Cut: "rst", "fin" or "blackhole"."""
        if mode == "blackhole":
            self.swallowing = True
            return
        self.over = True
        for timer in self._timers.values():
            timer.cancel()
        if self._dial is not None and not self._dial.done():
            self._dial.cancel()
        for side in (self.client, self.origin):
            side.end(mode)
        self.closed()

    def closed(self) -> None:
        """A side is gone; when both are, the link is."""
        if self.client.gone and (self.origin.gone or self.origin.transport is None):
            for timer in self._timers.values():
                timer.cancel()
            self.relay.links.discard(self)
            self.relay.watch.changed()


class _Side(asyncio.Protocol):
    """One socket of a link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.other: _Side
        self.transport: asyncio.Transport | None = None
        self.gone = False
        self.ended = False
        """This side said FIN."""
        self._full = False
        self._early: list[bytes] = []
        self._finished = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self is self.link.client:
            self.link.opened()
            if self.link.relay.stall_new:
                self.link.stall()
            return
        if self.link.over:
            self.transport.abort()
            return
        for data in self._early:
            self.transport.write(data)
        self._early.clear()
        if self._finished:
            self.finish()
        self.settle()

    def data_received(self, data: bytes) -> None:
        link = self.link
        if link.swallowing:
            return
        link.passed(self, len(data))
        relay = link.relay
        if self is link.origin and relay.truncate:
            room = relay.truncate - link.to_client
            link.to_client += len(data)
            if len(data) >= room:
                relay.truncations += 1
                self.other.write(data[: max(0, room)])
                link.swallowing = True
                link.end(relay.mode)
                return
        if relay.latency:
            asyncio.get_running_loop().call_later(relay.scale.of(relay.latency), self.other.write, data)
        else:
            self.other.write(data)

    def write(self, data: bytes) -> None:
        """Towards this side's peer; kept until the origin is connected."""
        if self.transport is None:
            self._early.append(data)
        elif not self._finished and not self.transport.is_closing():
            self.transport.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self.link.swallowing:
            return True
        self.other.finish()
        return not self.other.ended  # half a connection lives on; with both halves closed the sockets go

    def finish(self) -> None:
        """The other side said FIN: pass it on, behind what is still delayed."""
        if self.transport is None:
            self._finished = True
        elif self.link.relay.latency:
            delay = self.link.relay.scale.of(self.link.relay.latency)
            asyncio.get_running_loop().call_later(delay, self._write_eof)
        else:
            self._write_eof()

    def _write_eof(self) -> None:
        self._finished = True
        if self.transport is not None and not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()

    def pause_writing(self) -> None:
        self._full = True
        self.other.settle()

    def resume_writing(self) -> None:
        self._full = False
        self.other.settle()

    def settle(self) -> None:
        """Read exactly while the link is not stalled and the other side takes more."""
        if self.transport is None or self.transport.is_closing():
            return
        if self.link.stalled or self.other._full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def end(self, mode: str) -> None:
        """Close this socket with an RST or a FIN."""
        if self.transport is None or self.gone:
            return
        if mode == "rst":
            linger_zero(self.transport)
            self.transport.abort()
        else:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        if error is None and self.ended and self.other.ended:
            relay = self.link.relay
            asyncio.get_running_loop().call_later(relay.scale.of(relay.latency), self.other.end, "fin")
        elif not self.link.over and not self.link.swallowing:
            self.link.over = True
            self.other.end("rst" if error is not None else "fin")
        self.link.closed()

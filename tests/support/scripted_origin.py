"""An HTTP/2 origin over TLS that a test drives frame by frame.

Theory of operation
-------------------
1. `Origin` accepts; each connection is a `Conn`. A test takes requests as they arrive
   (`await origin.request(2)`), or gives the origin a `handler` that is run for every request.
2. A `Conn` does by itself what its `Manners` say: send SETTINGS, acknowledge SETTINGS and PING, give credit
   for DATA. The rest is the test's: `conn.send(data(1, b"x"), goaway(1))` is one write to the socket.
3. Every frame that arrives is kept in `frames` with its time. `await conn.saw(Kind.PING)` is the first such
   frame, also when it came before; `since=` skips frames with a lower index.
4. It is a strict peer: what the proxy may not send (RFC 9113 sections 4 to 8, as far as a client can break
   them, with flow control and stream limits) is noted in `faults`, and the fixture fails the test for it.
5. TLS runs in memory over a plain TCP protocol, so that FIN without close_notify, RST, half-closed sockets,
   unread sockets and several frames in one segment are all at the test's command.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import struct
from typing import TYPE_CHECKING

from tests.support import framing
from tests.support.bell import PATIENCE, Bell
from tests.support.framing import Code, Frame, Kind, Setting
from tests.support.strict_peer import LARGEST_FRAME, Fields, Manners, Request, StrictPeer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable


class Conn(StrictPeer, asyncio.Protocol):
    """One connection from the proxy."""

    def __init__(self, origin: Origin, number: int) -> None:
        super().__init__(dataclasses.replace(origin.manners, settings=dict(origin.manners.settings)))
        self.origin = origin
        self.number = number
        self.bell = origin.bell
        self.alpn: str | None = None
        self.sni: str | None = None
        self.got_eof = False
        self.got_close_notify = False
        self.lost = False
        self.write_full = False
        self.sent_fin = False
        self._transport: asyncio.Transport | None = None
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = origin.context.wrap_bio(self._in, self._out, server_side=True)
        self._handshaken = False

    def use(self, context: ssl.SSLContext) -> None:
        """Another certificate than the origin's, before a byte of TLS."""
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)

    def __repr__(self) -> str:
        kinds = [(Kind(f.kind).name if f.kind < 10 else f.kind, f.stream, f.flags) for f in self.frames[-12:]]
        return f"<Conn {self.number} eof={self.got_eof} lost={self.lost} last frames {kinds}>"

    # --- the socket -----------------------------------------------------------------------------------------
    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.origin.connections.append(self)
        if self.origin.on_connect is not None:
            self.origin.on_connect(self)
        self.bell.ring()

    def data_received(self, data: bytes) -> None:
        self._in.write(data)
        self._pump()

    def eof_received(self) -> None:
        self.got_eof = True
        self._in.write_eof()
        self._pump()
        self.bell.ring()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.bell.ring()

    def pause_writing(self) -> None:
        self.write_full = True

    def resume_writing(self) -> None:
        self.write_full = False
        self.bell.ring()

    def _pump(self) -> None:
        """Move what the BIOs hold: handshake, then application bytes in, then whatever TLS wants out."""
        if not self._handshaken:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._drain()
                return
            except ssl.SSLError:
                self._drain()
                self.transport.close()
                self.bell.ring()
                return
            self._handshaken = True
            self.alpn = self._tls.selected_alpn_protocol()
            self.sni = self.origin.server_names.pop(id(self._tls), None)
            opening = self.manners.opening
            self.send(framing.settings(self.manners.settings) if opening is None else opening)
        try:
            while True:
                chunk = self._tls.read(262144)
                if not chunk:
                    self.got_close_notify = True
                    break
                self.plain += chunk
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.got_close_notify = True
        except ssl.SSLError:
            pass  # an EOF without close_notify
        self._drain()
        self.feed(self.loop_time)
        self.bell.ring()

    def _drain(self) -> None:
        if (out := self._out.read()) and not self.sent_fin and not self.transport.is_closing():
            self.transport.write(out)

    def send(self, *frames: bytes) -> None:
        """One write of all `frames`."""
        self.account_sent(b"".join(frames))
        if self.lost or self.sent_fin or self.transport.is_closing():
            return
        whole = memoryview(b"".join(frames))
        while whole:
            whole = whole[self._tls.write(whole) :]
        self._drain()

    def raw(self, data: bytes) -> None:
        """Plain bytes into the TLS stream, no bookkeeping (broken frames)."""
        self._tls.write(data)
        self._drain()

    def fin(self, *frames: bytes, close_notify: bool = True) -> None:
        """Send `frames`, close_notify and FIN together; reading goes on until the proxy closes too."""
        self._cork(True)
        if frames:
            self.send(*frames)
        if close_notify:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._drain()
        self.sent_fin = True
        self.transport.write_eof()
        self._cork(False)

    def _cork(self, on: bool) -> None:
        cork = getattr(socket, "TCP_CORK", None)
        if cork is not None and not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, cork, int(on))

    def rst(self) -> None:
        """A TCP RST."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def stop_reading(self) -> None:
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.transport.resume_reading()

    # --- what the test asks ---------------------------------------------------------------------------------
    def _find(
        self, kind: int, stream: int | None, since: int, ack: bool | None, ends: bool | None
    ) -> Frame | None:
        for frame in self.frames[since:]:
            if frame.kind != kind or (stream is not None and frame.stream != stream):
                continue
            if (ack is None or frame.ack == ack) and (ends is None or frame.ends_stream == ends):
                return frame
        return None

    async def saw(
        self, kind: int, *, stream: int | None = None, since: int = 0, ack: bool | None = None,
        ends: bool | None = None, within: float = PATIENCE,
    ) -> Frame:  # fmt: skip
        """The first frame of that kind (on that stream, with or without the ACK flag or END_STREAM)."""
        return await self.bell.until(
            lambda: self._find(kind, stream, since, ack, ends),
            f"{Kind(kind).name} on stream {stream}", within, self.__repr__,
        )  # fmt: skip

    async def saw_none(
        self, kind: int, within: float, *, stream: int | None = None, since: int = 0, ack: bool | None = None
    ) -> None:
        """Measured absence of such a frame."""
        await self.bell.never(
            lambda: self._find(kind, stream, since, ack, None), f"unwanted {Kind(kind).name}", within
        )

    def all(self, kind: int, stream: int | None = None) -> list[Frame]:
        return [f for f in self.frames if f.kind == kind and (stream is None or f.stream == stream)]

    def pings(self) -> list[Frame]:
        """The proxy's own PINGs."""
        return [f for f in self.all(Kind.PING) if not f.ack]

    async def headers(self, stream: int, within: float = PATIENCE) -> Request:
        """The request on that stream, once its field section is complete."""
        return await self.bell.until(
            lambda: self.requests.get(stream), f"request on {stream}", within, self.__repr__
        )

    async def closed(self, within: float = PATIENCE) -> None:
        """The proxy closed the connection (EOF, close_notify or reset)."""
        await self.bell.until(
            lambda: self.got_eof or self.got_close_notify or self.lost,
            f"close of connection {self.number}", within, self.__repr__,
        )  # fmt: skip

    async def standstill(self, quiet: float) -> None:
        """Until nothing was taken of what we send for `quiet` seconds."""
        while True:
            seen = self.send_window
            try:
                await self.bell.until(lambda seen=seen: self.send_window != seen, "movement", quiet)  # type: ignore[misc]
            except AssertionError:
                return

    @property
    def is_closed(self) -> bool:
        return self.got_eof or self.got_close_notify or self.lost

    def response(
        self, stream: int, status: int, fields: Iterable[tuple[bytes, bytes]] = (), *, end: bool = False
    ) -> bytes:
        """A HEADERS frame (with CONTINUATION where the block is long)."""
        return self.field_section(stream, [(b":status", b"%d" % status), *fields], end=end)

    def field_section(
        self, stream: int, fields: Iterable[tuple[bytes, bytes]], *, end: bool = False
    ) -> bytes:
        block = self.encoder.encode(list(fields))
        starts = range(0, max(1, len(block)), LARGEST_FRAME)
        parts = [block[start : start + LARGEST_FRAME] for start in starts]
        out = framing.headers(stream, parts[0], end=end, end_headers=len(parts) == 1)
        for number, part in enumerate(parts[1:], 2):
            out += framing.continuation(stream, part, end_headers=number == len(parts))
        return out

    def reply(self, *frames: bytes) -> None:
        self.send(*frames)

    def arrived(self, request: Request) -> None:
        self.origin.arrived(request)

    def new_request(self, stream: int, fields: Fields, at: float, block: bytes) -> Request:
        return Request(self, stream, fields, at, block)


class Origin:
    """The listener. `handler`, when set, runs as a task for every request from then on."""

    def __init__(
        self, context: ssl.SSLContext, *, manners: Manners | None = None,
        handler: Callable[[Request], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        self.context = context
        self.manners = manners or Manners()
        self.handler = handler
        self.on_connect: Callable[[Conn], None] | None = None
        """Called when TCP connects, before a byte of TLS."""
        self.bell = Bell()
        self.connections: list[Conn] = []
        self.requests: list[Request] = []
        """Every request, on any connection, in order of arrival."""
        self.server_names: dict[int, str] = {}
        self.port = 0
        self.host = "localhost"
        self.tolerated = False
        """The test breaks the protocol itself, so `faults` say nothing."""
        self._server: asyncio.AbstractServer | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        self._failures: list[BaseException] = []
        context.sni_callback = self._on_sni

    def _on_sni(self, tls: ssl.SSLSocket | ssl.SSLObject, name: str, context: ssl.SSLContext) -> None:
        self.server_names[id(tls)] = name

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    @property
    def authority(self) -> bytes:
        return f"{self.host}:{self.port}".encode()

    async def start(self, address: str = "127.0.0.1", port: int = 0) -> None:
        """Listen (again: the same port after `stop_listening`)."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.manners.receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.manners.receive_buffer_bytes)
        # What accept returns inherits it; asyncio sets it only where the listening socket names its protocol.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((address, port or self.port))
        self.port = sock.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Conn(self, len(self.connections)), sock=sock, backlog=1024
        )

    def stop_listening(self) -> None:
        assert self._server is not None
        self._server.close()

    async def request(self, number: int = 1, within: float = PATIENCE) -> Request:
        """The request that arrived as the `number`th of all."""
        return await self.bell.until(
            lambda: self.requests[number - 1] if len(self.requests) >= number else None,
            f"request {number}", within, lambda: f"{len(self.requests)} requests, {self.connections!r}",
        )  # fmt: skip

    async def no_request(self, beyond: int, within: float) -> None:
        """No more than `beyond` requests arrive, for that long."""
        await self.bell.never(
            lambda: self.requests[beyond] if len(self.requests) > beyond else None, "unwanted request", within
        )

    def arrived(self, request: Request) -> None:
        self.requests.append(request)
        if self.handler is None:
            return
        task = asyncio.ensure_future(self.handler(request))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    def faults(self) -> list[str]:
        return [f"connection {conn.number}: {fault}" for conn in self.connections for fault in conn.faults]

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._server is not None:
            self._server.close()
        for conn in self.connections:
            if not conn.lost:
                conn.transport.abort()
        await self.bell.until(lambda: all(conn.lost for conn in self.connections), "end of all connections")
        if self._failures:
            raise self._failures[0]


def context_for(cert: tuple[str, str], alpn: list[str] | None) -> ssl.SSLContext:
    """A server context: chain and key files, protocols in order of preference (None: no ALPN at all)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*cert)
    if alpn is not None:
        context.set_alpn_protocols(alpn)
    return context


__all__ = [
    "Code",
    "Conn",
    "Fields",
    "Frame",
    "Kind",
    "Manners",
    "Origin",
    "Request",
    "Setting",
    "context_for",
]

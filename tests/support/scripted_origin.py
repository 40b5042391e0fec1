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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import hpack

from tests.support import framing
from tests.support.bell import PATIENCE, Bell
from tests.support.framing import Code, Frame, Kind, Setting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

Fields = list[tuple[bytes, bytes]]

DEFAULT_WINDOW = 65535
PSEUDO = (b":method", b":scheme", b":authority", b":path")
CONNECTION_FIELDS = {
    b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"host", b"expect",
}  # fmt: skip
"""Must not be in a request (RFC 9113 section 8.2.2); host and expect are h2ping's own promise."""


@dataclass
class Manners:
    """What a connection does without being told."""

    settings: dict[int, int] = field(default_factory=lambda: {int(Setting.MAX_CONCURRENT_STREAMS): 128})
    opening: bytes | None = None
    """Sent in place of SETTINGS when the handshake is done."""
    ack_settings: bool = True
    ack_pings: bool = True
    credit: bool = True
    """WINDOW_UPDATE for DATA as it arrives, on the stream and on the connection."""
    receive_buffer_bytes: int = 0
    """SO_RCVBUF of accepted sockets; 0 leaves it to the system."""


class Request:
    """One request as the origin sees it."""

    def __init__(self, conn: Conn, stream: int, fields: Fields, at: float, block: bytes = b"") -> None:
        self.conn = conn
        self.block = block
        """The field section as it came (RFC 7541)."""
        self.stream = stream
        self.fields = fields
        self.at = at
        self.body = bytearray()
        self.trailers: Fields | None = None
        self.ended = False
        """END_STREAM was received."""
        self.ended_at = 0.0
        self.reset_code: int | None = None
        """Code of the RST_STREAM that was received."""
        self.answered = False
        """END_STREAM or RST_STREAM was sent."""
        self.receive_window = conn.initial_receive_window
        self.send_window = conn.initial_send_window

    def get(self, name: bytes) -> bytes | None:
        """The only value of a field, None when it is absent; twice the same name is an error."""
        values = [value for key, value in self.fields if key == name]
        assert len(values) < 2, (name, values)
        return values[0] if values else None

    @property
    def method(self) -> bytes:
        return self.get(b":method") or b""

    @property
    def path(self) -> bytes:
        return self.get(b":path") or b""

    @property
    def open(self) -> bool:
        return self.reset_code is None and not (self.ended and self.answered)

    async def complete(self, within: float = PATIENCE) -> bytes:
        """The whole body, once END_STREAM came."""
        await self.conn.bell.until(
            lambda: self.ended or self.reset_code is not None,
            f"end of request {self.stream}",
            within,
            self._told,
        )
        assert self.reset_code is None, f"request {self.stream} was reset with {self.reset_code}"
        return bytes(self.body)

    async def received(self, size: int, within: float = PATIENCE) -> None:
        """At least `size` bytes of body are here."""
        await self.conn.bell.until(
            lambda: len(self.body) >= size, f"{size} bytes on {self.stream}", within, self._told
        )

    async def was_reset(self, within: float = PATIENCE) -> int:
        """The code of the proxy's RST_STREAM."""
        frame = await self.conn.saw(Kind.RST_STREAM, stream=self.stream, within=within)
        return frame.number

    def _told(self) -> str:
        windows = f"send windows {self.send_window} and {self.conn.send_window}"
        return f"has {len(self.body)} bytes, ended={self.ended}, reset={self.reset_code}, {windows}"

    def head(
        self, status: int = 200, fields: Iterable[tuple[bytes, bytes]] = (), *, end: bool = False
    ) -> None:
        self.conn.send(self.conn.response(self.stream, status, fields, end=end))

    def data(self, payload: bytes, *, end: bool = False) -> None:
        self.conn.send(framing.data(self.stream, payload, end=end))

    def respond(
        self, status: int = 200, body: bytes = b"", fields: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """A whole response of at most one window, with content-length, in one write."""
        sized = [(b"content-length", b"%d" % len(body)), *fields]
        parts = [self.conn.response(self.stream, status, sized, end=not body)]
        for start in range(0, len(body), 16384):
            piece = body[start : start + 16384]
            parts.append(framing.data(self.stream, piece, end=start + len(piece) == len(body)))
        self.conn.send(*parts)

    async def pour(self, body: bytes, *, end: bool = True) -> None:
        """DATA frames for `body` as fast as the proxy's windows and the socket take them."""
        offset = 0
        while offset < len(body):
            await self.conn.bell.until(self._may_send, f"window on {self.stream}", PATIENCE, self._told)
            if self.conn.lost or self.reset_code is not None:
                return
            size = min(self.send_window, self.conn.send_window, 16384, len(body) - offset)
            offset += size
            self.data(body[offset - size : offset], end=end and offset == len(body))

    def _may_send(self) -> bool:
        conn = self.conn
        if conn.lost or self.reset_code is not None:
            return True
        return min(self.send_window, conn.send_window) > 0 and not conn.write_full

    def reset(self, code: int) -> None:
        self.conn.send(framing.rst_stream(self.stream, code))


class Conn(asyncio.Protocol):
    """One connection from the proxy."""

    def __init__(self, origin: Origin, number: int) -> None:
        self.origin = origin
        self.number = number
        self.manners = dataclasses.replace(origin.manners, settings=dict(origin.manners.settings))
        self.bell = origin.bell
        self.frames: list[Frame] = []
        self.requests: dict[int, Request] = {}
        self.faults: list[str] = []
        self.alpn: str | None = None
        self.sni: str | None = None
        self.opened_at = 0.0
        self.closed_at = 0.0
        self.plain = bytearray()
        """Decrypted bytes that are not parsed yet."""
        self.saw_preface = False
        self.settled = False
        """The proxy acknowledged our first SETTINGS."""
        self.peer_settings: dict[int, int] = {}
        self.got_eof = False
        self.got_close_notify = False
        self.handshake_error = ""
        self.lost = False
        self.write_full = False
        self.sent_fin = False
        self.silent = False
        """Read and record, parse nothing, answer nothing."""
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder(max_header_list_size=1 << 20)
        self.receive_window = self.initial_receive_window = DEFAULT_WINDOW
        self.send_window = self.initial_send_window = DEFAULT_WINDOW
        self.max_streams: int | None = None
        self._pending_settings: list[dict[int, int]] = []
        self._block: tuple[int, int, bytearray] | None = None
        self._highest = 0
        self._transport: asyncio.Transport | None = None
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = origin.context.wrap_bio(self._in, self._out, server_side=True)
        self._handshaken = False

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
        self.opened_at = self.loop_time
        self.origin.connections.append(self)
        if self.origin.on_connect is not None:
            self.origin.on_connect(self)
        self.bell.ring()

    def data_received(self, data: bytes) -> None:
        if self.origin.stall_tls:
            return
        self._in.write(data)
        self._pump()

    def eof_received(self) -> None:
        self.got_eof = True
        self._in.write_eof()
        self._pump()
        self.bell.ring()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.closed_at = self.loop_time
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
            except ssl.SSLError as error:
                self.handshake_error = error.reason or str(error)
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
        if not self.silent:
            self._parse()
        self.bell.ring()

    def _drain(self) -> None:
        if (out := self._out.read()) and not self.sent_fin and not self.transport.is_closing():
            self.transport.write(out)

    def send(self, *frames: bytes) -> None:
        """One write of all `frames`."""
        self._account_sent(b"".join(frames))
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

    @property
    def open_streams(self) -> int:
        return sum(request.open for request in self.requests.values())

    def response(
        self, stream: int, status: int, fields: Iterable[tuple[bytes, bytes]] = (), *, end: bool = False
    ) -> bytes:
        """A HEADERS frame (with CONTINUATION where the block is long)."""
        return self.field_section(stream, [(b":status", b"%d" % status), *fields], end=end)

    def field_section(
        self, stream: int, fields: Iterable[tuple[bytes, bytes]], *, end: bool = False
    ) -> bytes:
        block = self.encoder.encode(list(fields))
        parts = [block[start : start + 16384] for start in range(0, len(block), 16384)] or [b""]
        out = framing.headers(stream, parts[0], end=end, end_headers=len(parts) == 1)
        for number, part in enumerate(parts[1:], 2):
            out += framing.continuation(stream, part, end_headers=number == len(parts))
        return out

    # --- what we sent ---------------------------------------------------------------------------------------
    def _account_sent(self, data: bytes) -> None:
        for kind, flags, stream, payload in framing.split(data):
            request = self.requests.get(stream)
            if kind == Kind.DATA:
                self.send_window -= len(payload)
                if request is not None:
                    request.send_window -= len(payload)
            elif kind == Kind.WINDOW_UPDATE:
                if stream == 0:
                    self.receive_window += int.from_bytes(payload, "big")
                elif request is not None:
                    request.receive_window += int.from_bytes(payload, "big")
            elif kind == Kind.SETTINGS and not flags & framing.ACK:
                self._note_settings(payload)
            ended = kind in (Kind.DATA, Kind.HEADERS) and flags & framing.END_STREAM
            if request is not None and (ended or kind == Kind.RST_STREAM):
                request.answered = True
                if kind == Kind.RST_STREAM and request.reset_code is None:
                    request.ended = True

    def _note_settings(self, payload: bytes) -> None:
        values = {
            int.from_bytes(payload[i : i + 2], "big"): int.from_bytes(payload[i + 2 : i + 6], "big")
            for i in range(0, len(payload) - 5, 6)
        }
        self._pending_settings.append(values)
        window = values.get(Setting.INITIAL_WINDOW_SIZE)
        if window is not None and window > self.initial_receive_window:
            self._shift_windows(window)  # the larger value may be in use before the ACK reaches us

    def _shift_windows(self, window: int) -> None:
        for request in self.requests.values():
            request.receive_window += window - self.initial_receive_window
        self.initial_receive_window = window

    def _settings_acked(self) -> None:
        self.settled = True
        if not self._pending_settings:
            self.faults.append("SETTINGS ACK without SETTINGS")
            return
        values = self._pending_settings.pop(0)
        if Setting.INITIAL_WINDOW_SIZE in values:
            self._shift_windows(values[Setting.INITIAL_WINDOW_SIZE])
        if Setting.HEADER_TABLE_SIZE in values:
            self.decoder.max_allowed_table_size = values[Setting.HEADER_TABLE_SIZE]
        self.max_streams = values.get(Setting.MAX_CONCURRENT_STREAMS, self.max_streams)

    # --- what arrives ---------------------------------------------------------------------------------------
    def _parse(self) -> None:
        if not self.saw_preface:
            if len(self.plain) < len(framing.PREFACE):
                return
            if not self.plain.startswith(framing.PREFACE):
                self.faults.append(f"no preface: {bytes(self.plain[:24])!r}")
                self.silent = True
                return
            del self.plain[: len(framing.PREFACE)]
            self.saw_preface = True
        while len(self.plain) >= framing.FRAME_HEADER_BYTES:
            size = int.from_bytes(self.plain[:3], "big")
            if size > 16384:
                self.faults.append(f"frame of {size} bytes")
                self.silent = True
                return
            end = framing.FRAME_HEADER_BYTES + size
            if len(self.plain) < end:
                return
            stream = int.from_bytes(self.plain[5:9], "big") & 0x7FFFFFFF
            frame = Frame(
                self.loop_time,
                len(self.frames),
                self.plain[3],
                self.plain[4],
                stream,
                bytes(self.plain[9:end]),
            )
            del self.plain[:end]
            self.frames.append(frame)
            self._on_frame(frame)

    def _on_frame(self, frame: Frame) -> None:
        if len(self.frames) == 1:
            if frame.kind != Kind.SETTINGS or frame.ack:
                self.faults.append("the first frame is not SETTINGS (RFC 9113 section 3.4)")
            self.origin.settled_connections.append(self)
        if self._block is not None and (frame.kind != Kind.CONTINUATION or frame.stream != self._block[0]):
            self.faults.append(f"frame {frame} inside a field section (RFC 9113 section 6.10)")
        if frame.kind == Kind.SETTINGS:
            self._on_settings(frame)
        elif frame.kind == Kind.PING:
            if len(frame.payload) != 8 or frame.stream:
                self.faults.append(f"bad PING {frame}")
            if not frame.ack and self.manners.ack_pings:
                self.send(framing.ping(frame.payload, ack=True))
        elif frame.kind == Kind.HEADERS:
            self._on_headers(frame)
        elif frame.kind == Kind.CONTINUATION:
            if self._block is None:
                self.faults.append("CONTINUATION without HEADERS")
            else:
                self._block[2].extend(frame.payload)
                self._end_block(frame)
        elif frame.kind == Kind.DATA:
            self._on_data(frame)
        elif frame.kind == Kind.RST_STREAM:
            self._on_reset(frame)
        elif frame.kind == Kind.WINDOW_UPDATE:
            self._on_window_update(frame)
        elif frame.kind == Kind.GOAWAY:
            if len(frame.payload) < 8 or frame.stream:
                self.faults.append(f"bad GOAWAY {frame}")
        else:
            self.faults.append(f"unexpected frame {frame}")

    def _on_settings(self, frame: Frame) -> None:
        if frame.stream or len(frame.payload) % 6 or (frame.ack and frame.payload):
            self.faults.append(f"bad SETTINGS {frame}")
        if frame.ack:
            self._settings_acked()
            return
        for i in range(0, len(frame.payload), 6):
            key, value = struct.unpack(">HL", frame.payload[i : i + 6])
            self.peer_settings[key] = value
            if key == Setting.INITIAL_WINDOW_SIZE:
                for request in self.requests.values():
                    request.send_window += value - self.initial_send_window
                self.initial_send_window = value
            elif key == Setting.HEADER_TABLE_SIZE:
                self.encoder.header_table_size = min(value, 4096)
        if self.manners.ack_settings:
            self.send(framing.settings_ack())

    def _on_headers(self, frame: Frame) -> None:
        payload = frame.payload
        if frame.flags & framing.PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if frame.flags & framing.PRIORITY_FLAG:
            payload = payload[5:]
        self._block = (frame.stream, frame.flags, bytearray(payload))
        self._end_block(frame)

    def _end_block(self, frame: Frame) -> None:
        assert self._block is not None
        if not frame.flags & framing.END_HEADERS:
            return
        stream, flags, block = self._block
        self._block = None
        try:
            fields = [
                (bytes(name), bytes(value)) for name, value in self.decoder.decode(bytes(block), raw=True)
            ]
        except hpack.HPACKError as error:
            self.faults.append(f"field section of stream {stream}: {error!r}")
            return
        request = self.requests.get(stream)
        if request is not None:
            self._on_trailers(request, fields, flags, frame)
            return
        if stream % 2 == 0 or stream <= self._highest:
            self.faults.append(f"HEADERS on stream {stream} after {self._highest} (RFC 9113 section 5.1.1)")
        self._highest = max(stream, self._highest)
        self._check_request(stream, fields)
        request = self.requests[stream] = Request(self, stream, fields, frame.at, bytes(block))
        request.ended = bool(flags & framing.END_STREAM)
        request.ended_at = frame.at
        if self.max_streams is not None and self.open_streams > self.max_streams:
            self.faults.append(
                f"{self.open_streams} open streams of {self.max_streams} (RFC 9113 section 5.1.2)"
            )
        if request.ended:
            self._check_length(request)
        self.origin.arrived(request)

    def _on_trailers(self, request: Request, fields: Fields, flags: int, frame: Frame) -> None:
        if not flags & framing.END_STREAM or request.ended:
            self.faults.append(f"second field section on {request.stream}, flags {flags}")
        if any(name.startswith(b":") for name, _ in fields):
            self.faults.append("pseudo-field in trailers")
        request.trailers = fields
        request.ended = True
        request.ended_at = frame.at
        self._check_length(request)

    def _check_request(self, stream: int, fields: Fields) -> None:
        names = [name for name, _ in fields]
        pseudo = [name for name in names if name.startswith(b":")]
        if sorted(pseudo) != sorted(PSEUDO) or names[: len(pseudo)] != pseudo:
            self.faults.append(f"pseudo-fields of stream {stream}: {names} (RFC 9113 section 8.3)")
        for name, value in fields:
            if name != name.lower() or not name or name.strip(b"\0\r\n\t ") != name:
                self.faults.append(f"field name {name!r}")
            if name in CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
                self.faults.append(f"connection field {name!r}: {value!r} (RFC 9113 section 8.2.2)")
            if value != value.strip(b" \t") or any(byte in value for byte in b"\r\n\0"):
                self.faults.append(f"field value of {name!r} (RFC 9113 section 8.2.1)")

    def _check_length(self, request: Request) -> None:
        declared = request.get(b"content-length")
        if declared is not None and int(declared) != len(request.body):
            self.faults.append(f"content-length {declared!r} with {len(request.body)} bytes (RFC 9113 8.1.1)")

    def _on_data(self, frame: Frame) -> None:
        payload = frame.payload
        if frame.flags & framing.PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        request = self.requests.get(frame.stream)
        self.receive_window -= len(frame.payload)
        if self.receive_window < 0:
            self.faults.append(f"connection window overrun by {-self.receive_window} (RFC 9113 section 6.9)")
        if request is None or (request.ended and not request.answered) or request.reset_code is not None:
            self.faults.append(f"DATA on stream {frame.stream} that is not open: {frame}")
            return
        request.receive_window -= len(frame.payload)
        if request.receive_window < 0:
            self.faults.append(f"window of {request.stream} overrun by {-request.receive_window}")
        request.body += payload
        if frame.ends_stream:
            request.ended = True
            request.ended_at = frame.at
            self._check_length(request)
        if self.manners.credit and frame.payload:
            updates = framing.window_update(0, len(frame.payload))
            if not frame.ends_stream and request.open:
                updates += framing.window_update(frame.stream, len(frame.payload))
            self.send(updates)

    def _on_reset(self, frame: Frame) -> None:
        request = self.requests.get(frame.stream)
        if request is None or len(frame.payload) != 4:
            self.faults.append(f"RST_STREAM on idle stream {frame.stream} (RFC 9113 section 6.4)")
        elif request.reset_code is None:
            request.reset_code = frame.number

    def _on_window_update(self, frame: Frame) -> None:
        if len(frame.payload) != 4 or not 0 < frame.number < 1 << 31:
            self.faults.append(f"bad WINDOW_UPDATE {frame}")
        if frame.stream == 0:
            self.send_window += frame.number
            if self.send_window >= 1 << 31:
                self.faults.append("connection window above 2^31-1 (RFC 9113 section 6.9.1)")
        elif (request := self.requests.get(frame.stream)) is not None:
            request.send_window += frame.number
            if request.send_window >= 1 << 31:
                self.faults.append("stream window above 2^31-1 (RFC 9113 section 6.9.1)")
        else:
            self.faults.append(f"WINDOW_UPDATE on idle stream {frame.stream}")


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
        self.stall_tls = False
        self.bell = Bell()
        self.connections: list[Conn] = []
        self.settled_connections: list[Conn] = []
        """Those that sent preface and SETTINGS, in that order."""
        self.requests: list[Request] = []
        """Every request, on any connection, in order of arrival."""
        self.server_names: dict[int, str] = {}
        self.port = 0
        self.host = "localhost"
        self.tolerated = False
        """The test breaks the protocol itself, so `faults` say nothing."""
        self._taken = 0
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
        sock.bind((address, port or self.port))
        self.port = sock.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Conn(self, len(self.connections)), sock=sock, backlog=1024
        )

    def stop_listening(self) -> None:
        assert self._server is not None
        self._server.close()

    async def accept(self, within: float = PATIENCE) -> Conn:
        """The next connection that sent its preface and SETTINGS."""
        conn = await self.bell.until(
            lambda: next(iter(self.settled_connections[self._taken :]), None),
            f"connection {self._taken + 1}", within, lambda: repr(self.connections),
        )  # fmt: skip
        self._taken += 1
        return conn

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

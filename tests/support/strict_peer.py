"""The server's half of one HTTP/2 connection, without I/O: what was received, and every rule that it broke.

Theory of operation
-------------------
1. Bytes go in through `feed`; every frame is kept in `frames`, requests are in `requests`.
2. What a client may not send (RFC 9113 sections 4 to 8, flow control and stream limits with them) is noted in
   `faults`, in words. Nothing is repaired, and nothing raises.
3. What we send is accounted by `account_sent`, so that windows and stream states are known on both sides. A
   setting of ours binds the peer once it acknowledged it (section 6.5.3); a larger window may be used before.
4. `reply` sends what manners ask for; the owner supplies it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import hpack

from tests.support import framing
from tests.support.bell import PATIENCE, Bell
from tests.support.framing import Flag, Frame, Kind, Setting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.scripted_origin import Conn

Fields = list[tuple[bytes, bytes]]

DEFAULT_WINDOW = 65_535
LARGEST_FRAME = 16_384
PSEUDO = {b":method", b":scheme", b":authority", b":path"}
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
    """One request as the origin sees it, and the ways to answer it."""

    def __init__(self, conn: Conn, stream: int, fields: Fields, at: float, block: bytes) -> None:
        self.conn = conn
        self.stream = stream
        self.fields = fields
        self.block = block
        """The field section as it came (RFC 7541)."""
        self.at = at
        self.body = bytearray()
        self.trailers: Fields | None = None
        self.ended = False
        """END_STREAM was received."""
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

    # --- what the test asks ---------------------------------------------------------------------------------
    @property
    def bell(self) -> Bell:
        return self.conn.bell

    async def complete(self, within: float = PATIENCE) -> bytes:
        """The whole body, once END_STREAM came."""
        await self.bell.until(
            lambda: self.ended or self.reset_code is not None, f"end of {self.stream}", within, self._told
        )  # fmt: skip
        assert self.reset_code is None, f"request {self.stream} was reset with {self.reset_code}"
        return bytes(self.body)

    async def received(self, size: int, within: float = PATIENCE) -> None:
        """At least `size` bytes of body are here."""
        await self.bell.until(
            lambda: len(self.body) >= size, f"{size} bytes on {self.stream}", within, self._told
        )  # fmt: skip

    async def was_reset(self, within: float = PATIENCE) -> int:
        """The code of the proxy's RST_STREAM."""
        frame = await self.conn.saw(Kind.RST_STREAM, stream=self.stream, within=within)
        return frame.number

    def _told(self) -> str:
        windows = f"send windows {self.send_window} and {self.conn.send_window}"
        return f"has {len(self.body)} bytes, ended={self.ended}, reset={self.reset_code}, {windows}"

    # --- answers --------------------------------------------------------------------------------------------
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
        for start in range(0, len(body), LARGEST_FRAME):
            piece = body[start : start + LARGEST_FRAME]
            parts.append(framing.data(self.stream, piece, end=start + len(piece) == len(body)))
        self.conn.send(*parts)

    async def pour(self, body: bytes, *, end: bool = True) -> None:
        """DATA frames for `body` as fast as the proxy's windows and the socket take them."""
        offset = 0
        while offset < len(body):
            await self.bell.until(self._may_send, f"window on {self.stream}", PATIENCE, self._told)
            if self.conn.lost or self.reset_code is not None:
                return
            size = min(self.send_window, self.conn.send_window, LARGEST_FRAME, len(body) - offset)
            offset += size
            self.data(body[offset - size : offset], end=end and offset == len(body))

    def _may_send(self) -> bool:
        conn = self.conn
        if conn.lost or self.reset_code is not None:
            return True
        return min(self.send_window, conn.send_window) > 0 and not conn.write_full

    def reset(self, code: int) -> None:
        self.conn.send(framing.rst_stream(self.stream, code))


class StrictPeer:
    """Frames of one connection, its windows, its stream states, its faults."""

    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self.frames: list[Frame] = []
        self.requests: dict[int, Request] = {}
        self.faults: list[str] = []
        self.plain = bytearray()
        """Decrypted bytes that are not parsed yet."""
        self.saw_preface = False
        self.settled = False
        """The proxy acknowledged our first SETTINGS."""
        self.peer_settings: dict[int, int] = {}
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

    def reply(self, *frames: bytes) -> None:
        """Send `frames`."""
        raise AssertionError("the owner sends")

    def arrived(self, request: Request) -> None:
        """A request's field section is complete."""

    def new_request(self, stream: int, fields: Fields, at: float, block: bytes) -> Request:
        """Make the Request of this connection."""
        raise AssertionError("the owner makes it")

    @property
    def open_streams(self) -> int:
        return sum(request.open for request in self.requests.values())

    # --- what we sent ---------------------------------------------------------------------------------------
    def account_sent(self, data: bytes) -> None:
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
            elif kind == Kind.SETTINGS and not flags & Flag.ACK:
                self._note_settings(payload)
            ended = kind in (Kind.DATA, Kind.HEADERS) and flags & Flag.END_STREAM
            if request is not None and (ended or kind == Kind.RST_STREAM):
                request.answered = True
                if kind == Kind.RST_STREAM:
                    request.ended = True

    def _note_settings(self, payload: bytes) -> None:
        values = dict(framing.read_settings(payload))
        self._pending_settings.append(values)
        window = values.get(Setting.INITIAL_WINDOW_SIZE)
        if window is not None and window > self.initial_receive_window:
            self._shift_windows(window)

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
    def feed(self, at: float) -> None:
        """Parse what stands in `plain`."""
        if self.silent:
            return
        if not self.saw_preface:
            if len(self.plain) < len(framing.PREFACE):
                return
            if not self.plain.startswith(framing.PREFACE):
                self.faults.append(f"no preface: {bytes(self.plain[:24])!r}")
                self.silent = True
                return
            del self.plain[: len(framing.PREFACE)]
            self.saw_preface = True
        while len(self.plain) >= framing.FRAME_HEAD_BYTES:
            size, kind, flags, stream = framing.read_head(bytes(self.plain[: framing.FRAME_HEAD_BYTES]), 0)
            if size > LARGEST_FRAME:
                self.faults.append(f"frame of {size} bytes")
                self.silent = True
                return
            end = framing.FRAME_HEAD_BYTES + size
            if len(self.plain) < end:
                return
            payload = bytes(self.plain[framing.FRAME_HEAD_BYTES : end])
            del self.plain[:end]
            frame = Frame(at, len(self.frames), kind, flags, stream, payload)
            self.frames.append(frame)
            self._on_frame(frame)

    def _on_frame(self, frame: Frame) -> None:
        if frame.index == 0 and (frame.kind != Kind.SETTINGS or frame.ack):
            self.faults.append("the first frame is not SETTINGS (RFC 9113 section 3.4)")
        if self._block is not None and (frame.kind != Kind.CONTINUATION or frame.stream != self._block[0]):
            self.faults.append(f"{frame} inside a field section (RFC 9113 section 6.10)")
        take = {
            Kind.SETTINGS: self._on_settings,
            Kind.PING: self._on_ping,
            Kind.HEADERS: self._on_headers,
            Kind.CONTINUATION: self._on_continuation,
            Kind.DATA: self._on_data,
            Kind.RST_STREAM: self._on_reset,
            Kind.WINDOW_UPDATE: self._on_window_update,
            Kind.GOAWAY: self._on_goaway,
        }.get(Kind(frame.kind)) if frame.kind <= Kind.CONTINUATION else None  # fmt: skip
        if take is None:
            self.faults.append(f"unexpected frame {frame}")
        else:
            take(frame)

    def _on_settings(self, frame: Frame) -> None:
        if frame.stream or len(frame.payload) % 6 or (frame.ack and frame.payload):
            self.faults.append(f"bad SETTINGS {frame}")
        if frame.ack:
            self._settings_acked()
            return
        for key, value in framing.read_settings(frame.payload):
            self.peer_settings[key] = value
            if key == Setting.INITIAL_WINDOW_SIZE:
                for request in self.requests.values():
                    request.send_window += value - self.initial_send_window
                self.initial_send_window = value
            elif key == Setting.HEADER_TABLE_SIZE:
                self.encoder.header_table_size = min(value, 4096)
        if self.manners.ack_settings:
            self.reply(framing.settings_ack())

    def _on_ping(self, frame: Frame) -> None:
        if len(frame.payload) != 8 or frame.stream:
            self.faults.append(f"bad PING {frame}")
        if not frame.ack and self.manners.ack_pings:
            self.reply(framing.ping(frame.payload, ack=True))

    def _on_goaway(self, frame: Frame) -> None:
        if len(frame.payload) < 8 or frame.stream:
            self.faults.append(f"bad GOAWAY {frame}")

    def _on_headers(self, frame: Frame) -> None:
        block = framing.unpad(frame.payload, frame.flags, priority=bool(frame.flags & Flag.PRIORITY))
        if block is None:
            self.faults.append(f"padding longer than {frame}")
            return
        self._block = (frame.stream, frame.flags, bytearray(block))
        self._end_block(frame)

    def _on_continuation(self, frame: Frame) -> None:
        if self._block is None:
            self.faults.append("CONTINUATION without HEADERS")
            return
        self._block[2].extend(frame.payload)
        self._end_block(frame)

    def _end_block(self, frame: Frame) -> None:
        assert self._block is not None
        if not frame.flags & Flag.END_HEADERS:
            return
        stream, flags, block = self._block
        self._block = None
        try:
            decoded = self.decoder.decode(bytes(block), raw=True)
        except hpack.HPACKError as error:
            self.faults.append(f"field section of stream {stream}: {error!r}")
            return
        fields = [(bytes(name), bytes(value)) for name, value in decoded]
        request = self.requests.get(stream)
        if request is not None:
            self._on_trailers(request, fields, flags)
            return
        if stream % 2 == 0 or stream <= self._highest:
            self.faults.append(f"HEADERS on {stream} after {self._highest} (RFC 9113 section 5.1.1)")
        self._highest = max(stream, self._highest)
        self._check_request(stream, fields)
        request = self.requests[stream] = self.new_request(stream, fields, frame.at, bytes(block))
        request.ended = bool(flags & Flag.END_STREAM)
        if self.max_streams is not None and self.open_streams > self.max_streams:
            self.faults.append(
                f"{self.open_streams} open streams of {self.max_streams} (RFC 9113 section 5.1.2)"
            )
        if request.ended:
            self._check_length(request)
        self.arrived(request)

    def _on_trailers(self, request: Request, fields: Fields, flags: int) -> None:
        if not flags & Flag.END_STREAM or request.ended:
            self.faults.append(f"second field section on {request.stream}, flags {flags}")
        if any(name.startswith(b":") for name, _ in fields):
            self.faults.append("pseudo-field in trailers")
        request.trailers = fields
        request.ended = True
        self._check_length(request)

    def _check_request(self, stream: int, fields: Fields) -> None:
        names = [name for name, _ in fields]
        pseudo = [name for name in names if name.startswith(b":")]
        if len(pseudo) != len(PSEUDO) or set(pseudo) != PSEUDO or names[: len(pseudo)] != pseudo:
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
            self.faults.append(
                f"content-length {declared!r} with {len(request.body)} bytes (RFC 9113 section 8.1.1)"
            )

    def _on_data(self, frame: Frame) -> None:
        payload = framing.unpad(frame.payload, frame.flags, priority=False)
        request = self.requests.get(frame.stream)
        self.receive_window -= len(frame.payload)
        if self.receive_window < 0:
            self.faults.append(f"connection window overrun by {-self.receive_window} (RFC 9113 section 6.9)")
        closed = request is None or (request.ended and not request.answered) or request.reset_code is not None
        if closed or payload is None or request is None:
            self.faults.append(f"DATA where none may be: {frame}")
            return
        request.receive_window -= len(frame.payload)
        if request.receive_window < 0:
            self.faults.append(f"window of {request.stream} overrun by {-request.receive_window}")
        request.body += payload
        if frame.ends_stream:
            request.ended = True
            self._check_length(request)
        if self.manners.credit and frame.payload:
            updates = framing.window_update(0, len(frame.payload))
            if not frame.ends_stream and request.open:
                updates += framing.window_update(frame.stream, len(frame.payload))
            self.reply(updates)

    def _on_reset(self, frame: Frame) -> None:
        request = self.requests.get(frame.stream)
        if request is None or len(frame.payload) != 4:
            self.faults.append(f"RST_STREAM on idle stream {frame.stream} (RFC 9113 section 6.4)")
        elif request.reset_code is None:
            request.reset_code = frame.number

    def _on_window_update(self, frame: Frame) -> None:
        if len(frame.payload) != 4 or not frame.number:
            self.faults.append(f"bad WINDOW_UPDATE {frame}")
        request = self.requests.get(frame.stream)
        if frame.stream == 0:
            self.send_window += frame.number
            if self.send_window >= 1 << 31:
                self.faults.append("connection window above 2^31-1 (RFC 9113 section 6.9.1)")
        elif request is not None:
            request.send_window += frame.number
            if request.send_window >= 1 << 31:
                self.faults.append("stream window above 2^31-1 (RFC 9113 section 6.9.1)")
        else:
            self.faults.append(f"WINDOW_UPDATE on idle stream {frame.stream}")

"""A raw HTTP/1.1 client: the test writes bytes, and reads responses parsed strictly (RFC 9112)."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.bell import PATIENCE
from tests.support.proxy import CANARY

if TYPE_CHECKING:
    from collections.abc import Iterable

Fields = list[tuple[bytes, bytes]]


@dataclass
class Response:
    """One response; `complete` is False when the connection ended inside it."""

    version: bytes = b""
    status: int = 0
    reason: bytes = b""
    fields: Fields = field(default_factory=list)
    """Names as they stood on the wire."""
    interims: list[tuple[int, Fields]] = field(default_factory=list)
    body: bytes = b""
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """Pieces of the body with the loop's time; HTTP chunks where the response was chunked."""
    trailers: Fields = field(default_factory=list)
    complete: bool = False
    head_at: float = 0.0
    ended_at: float = 0.0

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key.lower() == name]

    def get(self, name: bytes) -> bytes | None:
        values = self.all(name)
        assert len(values) < 2, (name, values)
        return values[0] if values else None

    @property
    def closes(self) -> bool:
        return b"close" in [value.strip().lower() for value in (self.get(b"connection") or b"").split(b",")]

    @property
    def chunked(self) -> bool:
        return self.get(b"transfer-encoding") == b"chunked"

    @property
    def cause(self) -> str | None:
        value = self.get(b"h2ping-cause")
        return None if value is None else value.decode()


def request_bytes(
    method: str = "GET", target: str = "/", body: bytes | None = None,
    fields: Iterable[tuple[str, str]] = (), *, version: str = "1.1", host: str = "127.0.0.1",
) -> bytes:  # fmt: skip
    """A request with a credential, and Content-Length where there is a body."""
    lines = [f"{method} {target} HTTP/{version}", f"Host: {host}", f"Authorization: Bearer {CANARY}"]
    lines += [f"{name}: {value}" for name, value in fields]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def with_key(raw: bytes) -> bytes:
    """The same bytes with a credential as the last field of the first head, where there is a whole one without."""
    head, end, rest = raw.partition(b"\r\n\r\n")
    is_head = head.partition(b"\r\n")[0].endswith((b" HTTP/1.0", b" HTTP/1.1"))
    if not end or not is_head or b"authorization:" in head.lower():
        return raw
    return head + b"\r\nAuthorization: Bearer " + CANARY.encode() + end + rest


class Client:
    """One connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, *, receive_buffer_bytes: int = 0) -> Client:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except OSError:
            sock.close()
            raise
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
        return cls(reader, writer)

    @staticmethod
    def time() -> float:
        return asyncio.get_running_loop().time()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def send_slowly(self, data: bytes, size: int = 1) -> None:
        """Each piece in a write (and a segment) of its own."""
        for start in range(0, len(data), size):
            self.writer.write(data[start : start + size])
            await asyncio.sleep(0)

    async def drained(self) -> None:
        await asyncio.wait_for(self.writer.drain(), PATIENCE)

    def request(
        self, method: str = "GET", target: str = "/", body: bytes | None = None,
        fields: Iterable[tuple[str, str]] = (), *, version: str = "1.1",
    ) -> None:  # fmt: skip
        self.send(request_bytes(method, target, body, fields, version=version))

    async def ask(
        self, method: str = "GET", target: str = "/", body: bytes | None = None,
        fields: Iterable[tuple[str, str]] = (), *, within: float = PATIENCE,
    ) -> Response:  # fmt: skip
        self.request(method, target, body, fields)
        return await self.response(method, within=within)

    async def response(self, method: str = "GET", within: float = PATIENCE) -> Response:
        """The next response to a request of that method."""
        return await asyncio.wait_for(self._response(method), within)

    async def head(self, method: str = "GET", within: float = PATIENCE) -> Response:
        """Its head only; read the rest with `finish`."""
        return await asyncio.wait_for(self._head(method), within)

    async def finish(self, response: Response, method: str = "GET", within: float = PATIENCE) -> Response:
        await asyncio.wait_for(self._body(response, method), within)
        return response

    async def chunk(self, within: float = PATIENCE) -> bytes:
        """The next chunk of a chunked body (b"" for the last)."""
        return await asyncio.wait_for(self._chunk(), within)

    async def interim(self, within: float = PATIENCE) -> int:
        """The status of a 1xx response that must come now."""
        _, status, _, _ = await asyncio.wait_for(self._status_and_fields(), within)
        assert 100 <= status < 200, status
        return status

    async def closed(self, within: float = PATIENCE) -> bytes:
        """Everything up to the end of the connection (FIN or RST)."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := await asyncio.wait_for(self.reader.read(1 << 16), within):
                data += piece
        return data

    async def silent(self, within: float) -> None:
        """Measured absence: nothing comes and the connection stays open, for that long."""
        try:
            data = await asyncio.wait_for(self.reader.read(1), within)
        except (asyncio.TimeoutError, TimeoutError):
            return
        raise AssertionError(f"expected silence, got {data!r}")

    def half_close(self) -> None:
        self.writer.write_eof()

    def close(self) -> None:
        """FIN."""
        self.writer.close()

    def rst(self) -> None:
        """RST."""
        sock = self.writer.get_extra_info("socket")
        if sock.fileno() >= 0:  # else the proxy was faster
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Close and wait for it; for teardown."""
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    # --- parsing --------------------------------------------------------------------------------------------
    async def _line(self) -> bytes:
        line = await self.reader.readuntil(b"\r\n")
        return line[:-2]

    async def _fields(self) -> Fields:
        fields = []
        while line := await self._line():
            name, colon, value = line.partition(b":")
            assert colon, line
            assert name.strip() == name != b"", line
            assert not any(byte in line for byte in b"\r\n\0"), line
            fields.append((name, value.strip(b" \t")))
        return fields

    async def _status_and_fields(self) -> tuple[bytes, int, bytes, Fields]:
        line = await self._line()
        version, _, rest = line.partition(b" ")
        code, _, reason = rest.partition(b" ")
        assert version == b"HTTP/1.1", line
        assert re.fullmatch(rb"[1-9][0-9]{2}", code), line
        return version, int(code), reason, await self._fields()

    async def _head(self, method: str) -> Response:
        response = Response()
        while True:
            version, status, reason, fields = await self._status_and_fields()
            if status >= 200:
                break
            response.interims.append((status, fields))
        response.version, response.status, response.reason, response.fields = version, status, reason, fields
        response.head_at = self.time()
        lengths = response.all(b"content-length")
        codings = response.all(b"transfer-encoding")
        assert len(lengths + codings) < 2, fields
        assert codings in ([], [b"chunked"]), codings
        return response

    async def _response(self, method: str) -> Response:
        response = await self._head(method)
        await self._body(response, method)
        if response.cause is not None:
            assert CANARY.encode() not in response.body + repr(response.fields).encode(), (
                "a secret is in an answer"
            )
        return response

    async def _body(self, response: Response, method: str) -> None:
        try:
            await self._read_body(response, method)
            response.complete = True
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if isinstance(error, asyncio.IncompleteReadError) and not response.chunked:
                response.chunks.append((self.time(), error.partial))
        response.body = b"".join(piece for _, piece in response.chunks)
        response.ended_at = self.time()

    async def _read_body(self, response: Response, method: str) -> None:
        if method == "HEAD" or response.status in (204, 304):
            return
        length = response.get(b"content-length")
        if response.chunked:
            while chunk := await self._chunk():
                response.chunks.append((self.time(), chunk))
            response.trailers = await self._fields()
        elif length is not None:
            left = int(length)
            while left:
                piece = await self.reader.read(min(left, 1 << 16))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", left)
                response.chunks.append((self.time(), piece))
                left -= len(piece)
        else:
            while piece := await self.reader.read(1 << 16):
                response.chunks.append((self.time(), piece))

    async def _chunk(self) -> bytes:
        size = int(await self._line(), 16)
        if size == 0:
            return b""
        chunk = await self.reader.readexactly(size)
        assert await self.reader.readexactly(2) == b"\r\n"
        return chunk

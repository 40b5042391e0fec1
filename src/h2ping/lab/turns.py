"""The origin's HTTP/1.1 face: what a client without a proxy talks to. As small as the demo's control needs.

One request at a time per connection, Content-Length or chunked bodies, keep-alive. RFC 9112's corners are not
tested here: this side of the lab is not what h2ping talks to.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from h2ping.lab.call import Call
from h2ping.lab.script import steer
from h2ping.lab.session import linger_zero
from h2ping.lab.transports import abort

if TYPE_CHECKING:
    from h2ping.lab.script import Fields, Script


class Origin(Protocol):
    """What this face needs of its origin."""

    script: Script

    def admit(self, call: Call) -> str:
        """Count the request; its refusals mean nothing in HTTP/1.1."""

    def execute(self, call: Call) -> None:
        """Start the answer."""

    def finished(self, call: Call, outcome: str) -> None:
        """The call is over."""


class Turns(asyncio.Protocol):
    """One HTTP/1.1 connection; itself the `Reply` of the request that is being answered."""

    def __init__(self, origin: Origin, number: int) -> None:
        self._origin = origin
        self._number = number
        self._parser = httptools.HttpRequestParser(self)
        self._call: Call | None = None
        self._path = b""
        self._fields: Fields = []
        self._chunked = False
        self._held = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport.close()  # as in Session.connection_lost
        if self._call is not None:
            if self._call.task is not None:
                self._call.task.cancel()
            self._origin.finished(self._call, "lost")

    def data_received(self, data: bytes) -> None:
        if self._call is not None and self._call.complete:
            self._held += (
                data  # a request that comes early waits its turn; the socket is read on to see its end
            )
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            abort(self._transport)

    # --- httptools ---

    def on_message_begin(self) -> None:
        self._path, self._fields = b"", []

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        method = self._parser.get_method().decode()
        self._call = Call(
            self, connection=self._number, method=method, path=self._path.decode(), fields=self._fields,
            steer=steer(self._fields),
        )  # fmt: skip
        self._origin.admit(self._call)

    def on_body(self, data: bytes) -> None:
        assert self._call is not None
        self._call.take(data)

    def on_message_complete(self) -> None:
        assert self._call is not None
        self._call.complete = True
        self._origin.execute(self._call)

    # --- Reply ---

    def interim(self, status: int, fields: Fields) -> None:
        self._write_head(status, fields)

    def head(self, status: int, fields: Fields) -> None:
        self._chunked = not any(name == b"content-length" for name, _ in fields)
        if self._chunked:
            fields = [*fields, (b"transfer-encoding", b"chunked")]
        self._write_head(status, fields)

    def data(self, data: bytes) -> None:
        if data:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self, trailers: Fields | None = None) -> None:
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")
        call, self._call = self._call, None
        if call is not None:
            self._origin.finished(call, "answered")
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self.data_received(held)

    def reset(self, code: int) -> None:
        abort(self._transport)

    def cut(self, mode: str) -> None:
        if mode == "rst":
            linger_zero(self._transport)
            abort(self._transport)
        else:
            self._transport.close()

    def _write_head(self, status: int, fields: Fields) -> None:
        lines = [b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode())]
        lines += [name + b": " + value for name, value in fields]
        self._transport.write(b"\r\n".join(lines) + b"\r\n\r\n")

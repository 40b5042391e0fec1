"""What the peer had said before it reset the connection: stands between the TCP transport and its TLS.

A peer that closes before it has read everything resets the connection (RFC 1122 section 4.2.2.13), and the next write
fails. Event loops then close the socket as it is, with what arrived before the reset unread: a GOAWAY that refuses the
request whose body was on its way, an early answer. The kernel has it still.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

READ_BYTES = 64 << 10


class LastWords(asyncio.BufferedProtocol):
    """The loop's TLS protocol with another end. To be set as the transport's in its place, once TLS is up."""

    def __init__(self, tls: Any, sock: socket.socket) -> None:
        """`sock`: the transport's own, open until `connection_lost` returns."""
        self._tls = tls
        self._sock = sock
        # Its own methods: nothing is in between while the connection lives.
        self.get_buffer = tls.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = tls.buffer_updated  # type: ignore[method-assign]
        self.eof_received = tls.eof_received  # type: ignore[method-assign]
        self.pause_writing = tls.pause_writing  # type: ignore[method-assign]
        self.resume_writing = tls.resume_writing  # type: ignore[method-assign]

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ConnectionError):  # so nothing more will come, and what is there has an end
            self._read_what_is_left()
        self._tls.connection_lost(exc)

    def _read_what_is_left(self) -> None:
        with contextlib.suppress(OSError):  # nothing is: that would block, or is the reset
            while data := self._sock.recv(READ_BYTES):
                self._tls.get_buffer(len(data))[: len(data)] = data
                self._tls.buffer_updated(len(data))

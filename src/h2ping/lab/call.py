"""One request at the origin: what came, what became of it, and how its answer is written.

Both faces of the origin (HTTP/2 streams, HTTP/1.1 turns) hand the same `Call` to the same script.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from h2ping.lab.script import Fields, Steer

SEEN_BYTES = 8192
"""How much of a body's beginning and of its end is looked at for `"stream": true`. The rest is counted and
dropped: 2,000 bodies of 512 KiB would be a gigabyte."""


class Reply(Protocol):
    """How an answer is written, on either face."""

    def interim(self, status: int, fields: Fields) -> None:
        """An interim response."""

    def head(self, status: int, fields: Fields) -> None:
        """The head of the final response."""

    def data(self, data: bytes) -> None:
        """Some of the body; sent as flow control allows."""

    def end(self, trailers: Fields | None = None) -> None:
        """The end of the response."""

    def reset(self, code: int) -> None:
        """End the stream with RST_STREAM(code); HTTP/1.1 can only drop its connection."""

    def cut(self, mode: str) -> None:
        """End the whole connection: "fin" or "rst"."""


class Call:
    """One request; `outcome` says what became of it.

    waiting -> answered | refused | goaway | reset | cut | cancelled (by the client) | lost (with its socket).
    """

    __slots__ = (
        "_digest", "_head", "_tail", "attempt", "body", "complete",
        "connection", "executed", "fields", "method", "number", "outcome", "path", "received", "reply",
        "steer", "stream_id", "task",
    )  # fmt: skip

    def __init__(
        self,
        reply: Reply,
        *,
        connection: int,
        method: str,
        path: str,
        fields: Fields,
        steer: Steer,
        stream_id: int = 0,
    ) -> None:
        self.connection = connection
        self.stream_id = stream_id
        """0: HTTP/1.1."""
        self.method = method
        self.path = path
        self.fields = fields
        self.steer = steer
        self.reply = reply
        self.number = 0
        self.attempt = 0
        self.outcome = "waiting"
        self.executed = False
        self.complete = False
        self.received = 0
        self.body: bytearray | None = None
        self.task: asyncio.Task[None] | None = None
        self._digest: hashlib._Hash | None = None
        self._head = b""
        self._tail = b""

    def prepare(self, *, hashed: bool, kept: bool) -> None:
        """Say before the first byte what is to be done with the body."""
        self._digest = hashlib.sha256() if hashed else None
        self.body = bytearray() if kept else None

    def take(self, data: bytes) -> None:
        """Some of the body came."""
        if not data:
            return
        self.received += len(data)
        if self._digest is not None:
            self._digest.update(data)
        if self.body is not None:
            self.body += data
        if len(self._head) < SEEN_BYTES:
            self._head += data[: SEEN_BYTES - len(self._head)]
        self._tail = data[-SEEN_BYTES:] if len(data) >= SEEN_BYTES else (self._tail + data)[-SEEN_BYTES:]

    def seen(self) -> bytes:
        """The beginning and the end of the body."""
        if self.received <= SEEN_BYTES:
            return self._head
        return self._head + b" " + self._tail

    def forget(self) -> None:
        """Drop what was seen of the body; minutes of waiting need none of it."""
        self._head = self._tail = b""

    @property
    def sha256(self) -> str | None:
        """The body's digest, if it was asked for."""
        return self._digest.hexdigest() if self._digest is not None else None

    def field(self, name: bytes) -> bytes | None:
        """The first value of `name`."""
        return next((value for key, value in self.fields if key == name), None)

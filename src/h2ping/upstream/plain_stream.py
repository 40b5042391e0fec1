"""One stream of the plain engine: how far its request and its response are.

It changes nothing on the wire by itself: what a call means for the connection is the Wire's to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from h2ping.upstream.wire import Receiver, RequestBody


class StreamOwner(Protocol):
    """What a stream asks of its Wire."""

    def signal(self) -> None:
        """There may be output."""

    def widen_stream(self, stream: PlainStream, size: int) -> None:
        """A larger window."""

    def give_credit(self, stream: PlainStream, size: int) -> None:
        """Content bytes back to the peer's windows."""

    def reset_stream(self, stream: PlainStream, code: int) -> None:
        """RST_STREAM."""


class PlainStream:
    """One request and its response (h2ping.upstream.wire.WireStream)."""

    def __init__(
        self, wire: StreamOwner, stream_id: int, body: RequestBody | None, receiver: Receiver, head: bool
    ) -> None:
        self.id = stream_id
        self.upload_done = body is None
        self.receiver = receiver
        self.body = body
        self.head_request = head
        self.sent = 0
        """Body bytes made into frames."""
        self.begun = False
        """An interim response has arrived."""
        self.responded = False
        """The final head has arrived."""
        self.complete = False
        """The peer's END_STREAM has arrived."""
        self.over = False
        """Closed in both directions, and out of the Wire's table."""
        self.muted = False
        """`reset` was called: nothing more to the receiver."""
        self.expected: int | None = None
        """Content bytes the response announced, if it did."""
        self.seen = 0
        """Content bytes that arrived."""
        self.owed = 0
        """Content bytes that the receiver has not credited."""
        self._wire = wire

    def body_ready(self) -> None:
        """See WireStream."""
        self._wire.signal()

    def credit(self, size: int) -> None:
        """See WireStream."""
        size = min(size, self.owed)
        if size > 0:
            self.owed -= size
            self._wire.give_credit(self, size)

    def widen(self, size: int) -> None:
        """See WireStream."""
        if not self.over and not self.complete:
            self._wire.widen_stream(self, size)

    def reset(self, code: int) -> None:
        """See WireStream."""
        self.muted = True
        if not self.over:
            self._wire.reset_stream(self, code)

    def has_output(self) -> bool:
        """There are body bytes, or an end, that were not made into frames."""
        if self.over or self.upload_done or self.body is None:
            return False
        return self.body.complete or self.body.received > self.sent

    def wrong_content(self, end: bool) -> str:
        """Why the DATA that just arrived makes the response malformed, or nothing (RFC 9113 section 8.1.1)."""
        if not self.responded:
            return "DATA before HEADERS"
        if self.expected is not None:
            if self.seen > self.expected:
                return "more content than content-length"
            if end and self.seen != self.expected:
                return "less content than content-length"
        return ""

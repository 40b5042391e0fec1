"""An exchange that answers what a test tells it to, and remembers what it was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from h2ping import headers
from h2ping.errors import CLIENT_GONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2ping.downstream.client import Client
    from h2ping.errors import Cause, DownstreamError
    from h2ping.headers import Fields, Request


def has_body(request: Request) -> bool:
    """Body bytes may follow its head."""
    return request.chunked or bool(request.content_length)


class FakeExchange:
    """`heard` is the list of calls; the body goes to the arena, at once unless `hold_body`."""

    def __init__(self, request: Request, client: Client, arena: Any, *, hold_body: bool, kept: bool) -> None:
        self.request = request
        self.client = client
        self.heard: list[str] = []
        self.trailers: Fields | None = None
        self.error: DownstreamError | None = None
        self.gone_for: Cause | None = None
        self.body: Any = None
        self.bytes = b""
        """The body, taken out of the arena when it is complete."""
        self.held = 0
        """Bytes that it was told its client's socket does not take."""
        self.on_event: Callable[[str], None] = lambda event: None
        """Told of "end", "gone" and "writable"."""
        self._arena = arena
        self._hold_body = hold_body
        self._kept = kept

    def start(self) -> None:
        self.heard.append("start")
        if has_body(self.request) and not self._hold_body:
            self.admit()

    def admit(self) -> None:
        """Memory is there."""
        size = None if self.request.chunked else self.request.content_length
        self.body = self._arena.open(size, self._kept)
        assert self.body is not None
        self.body.on_room = self.client.resume_body
        self.client.receive_body(self.body)

    def on_body(self) -> None:
        if self.heard[-1] != "body":
            self.heard.append("body")

    def on_body_end(self, trailers: Fields | None) -> None:
        self.heard.append("end")
        self.trailers = trailers
        if self._kept:
            self.bytes += self.taken(self.body.received)
        self.on_event("end")

    def on_body_stalled(self) -> None:
        if self._kept and self.body.grow():
            self.client.resume_body()
        else:
            self.heard.append("stalled")

    def on_client_error(self, error: DownstreamError) -> None:
        self.heard.append("error")
        self.error = error

    def on_client_gone(self, cause: Cause = CLIENT_GONE) -> None:
        self.gone_for = cause
        self.heard.append("gone")
        self.on_event("gone")

    def on_held(self, size: int) -> None:
        self.held += size

    def on_writable(self) -> None:
        self.held = 0
        self.heard.append("writable")
        self.on_event("writable")

    def taken(self, size: int) -> bytes:
        """The next `size` bytes that go up."""
        taken = b""
        while len(taken) < size:
            taken += bytes(self.body.peek(self.body.sent + len(taken), size - len(taken)))
        self.body.sent_to(self.body.sent + size)
        return taken

    def respond(
        self,
        body: bytes = b"",
        *,
        status: int = 200,
        fields: Fields | None = None,
        trailers: Fields | None = None,
    ) -> None:
        """A whole response, all in one turn, as one HEADERS and one DATA frame would make it."""
        self.begin(status=status, fields=fields, end=not body and trailers is None)
        if body:
            self.client.send_data(body)
        self.client.send_end(trailers)

    def begin(self, *, status: int = 200, fields: Fields | None = None, end: bool = False) -> None:
        """Its head only."""
        head, framing = headers.response_head(status, fields or [], self.request, end, self.client.will_close)
        self.client.send_head(head, framing)

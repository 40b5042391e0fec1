"""What all clients of one listener share: settings, deadlines, whom they ask for exchanges, whose output waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from h2ping.clock import Deadlines, LoopClock
from h2ping.errors import CLIENT_GONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2ping.config import Settings
    from h2ping.door import Door
    from h2ping.downstream.client import Client
    from h2ping.downstream.protocol import Octets
    from h2ping.errors import Cause, DownstreamError
    from h2ping.headers import Fields, Request

LINGER_SECONDS = 2.0
"""Without progress, like nginx' lingering_timeout, shorter: clients on this machine read at once."""


class Exchange(Protocol):
    """What a client tells the one who answers its request."""

    def start(self) -> None:
        """The head is complete; called once, first."""

    def on_body(self) -> None:
        """Body bytes were committed."""

    def on_body_end(self, trailers: Fields | None) -> None:
        """The body is complete."""

    def on_body_stalled(self) -> None:
        """The body has no room; `Client.resume_body` when it has."""

    def on_client_error(self, error: DownstreamError) -> None:
        """The request broke; the client is answered and closed here. The last call."""

    def on_client_gone(self, cause: Cause = CLIENT_GONE) -> None:
        """Nobody reads the response: the client has left, or what `cause` says. The last call."""

    def on_held(self, size: int) -> None:
        """The socket does not take what it was given, which keeps so many bytes of memory."""

    def on_writable(self) -> None:
        """The socket took what was written; also once after the response's end if it had not by then."""


class ClientContext:
    """What all connections of one listener share."""

    __slots__ = (
        "clients", "dirty", "door", "draining", "exchanges", "half_close_waits", "head_deadlines", "idle_deadlines",
        "linger_deadlines", "loop", "on_refused", "prefix", "program", "settings",
    )  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        exchanges: Callable[[Request, Client], Exchange],
        *,
        head_deadlines: Deadlines,
        idle_deadlines: Deadlines,
        clients: set[Client],
        on_refused: Callable[[DownstreamError, bytes, bytes], None] | None = None,
    ) -> None:
        self.settings = settings
        self.exchanges = exchanges
        self.head_deadlines = head_deadlines
        self.idle_deadlines = idle_deadlines
        self.linger_deadlines: Deadlines | None = None
        self.clients = clients
        self.on_refused = on_refused
        """Told of requests that were answered before they had an exchange; method and target as far as known."""
        self.door: Door | None = None
        """Told of those who come and go."""
        self.draining = False
        self.program = settings.program
        self.prefix = settings.upstream.prefix.encode()
        self.half_close_waits = settings.half_close == "wait"
        self.loop: asyncio.AbstractEventLoop | None = None
        self.dirty: list[Octets] = []
        """Those with output gathered in this turn of the loop."""

    def call_soon(self, callback: Callable[[], object]) -> None:
        """At the end of this turn of the loop."""
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
        self.loop.call_soon(callback)

    def linger(self, client: Client) -> None:
        """Have `client.on_linger_timeout` called."""
        if self.linger_deadlines is None:
            clock = LoopClock(asyncio.get_running_loop())
            self.linger_deadlines = Deadlines(
                clock, LINGER_SECONDS, lambda client: client.on_linger_timeout()
            )
        self.linger_deadlines.add(client)

    def mark_dirty(self, octets: Octets) -> None:
        """Flush `octets` at the end of this turn of the loop; one callback serves all."""
        if not self.dirty:
            self.call_soon(self.flush)
        self.dirty.append(octets)

    def flush(self) -> None:
        """Write what was gathered."""
        dirty, self.dirty = self.dirty, []
        for octets in dirty:
            octets.flush()

"""A small, fast HTTP/1.1 client for load: thousands of calls at once, each with its outcome on record.

Theory of operation
-------------------
1. One call at a time per connection; a connection whose answer was whole goes back and is used again, last
   in, first out. Nothing is ever repeated: a call that dies is recorded as dead.
2. An answer is whole when its Content-Length or its last chunk arrived. A connection that ends before that is
   a death, also when the status was 200.
3. `Outcome.error` is one word: "refused", "reset", "closed", "timeout", "malformed"; "" for a whole answer.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import httptools

from h2ping.lab.transports import abort

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from typing_extensions import Self

DIALS_AT_ONCE = 256
"""Below any listener's backlog, so that a burst of calls is not a burst of lost SYNs."""

KEPT_BODY_BYTES = 4096


@dataclass(slots=True)
class Outcome:
    """What became of one call."""

    id: str
    status: int = 0
    error: str = ""
    cause: str = ""
    """The proxy's own word for what went wrong: the value of `h2ping-cause`."""
    elapsed: float = 0.0
    body_bytes: int = 0
    body: bytes = b""
    """The first 4 KiB of the answer."""
    executions: int = 0
    """What the lab's origin says: how often this id was executed until it answered."""

    @property
    def lived(self) -> bool:
        """A whole answer of the origin with status 200."""
        return self.status == 200 and not self.error

    @property
    def words(self) -> str:
        """For a table: why it died, or its status."""
        if self.error:
            return f"connection {self.error}" + (f" within its {self.status} answer" if self.status else "")
        return f"{self.status}" + (f" {self.cause}" if self.cause else "")


class LoadClient:
    """Calls to one address. `async with` closes what is open."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self.port = port
        self.tls = tls
        self.connections = 0
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._dials = asyncio.Semaphore(DIALS_AT_ONCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop every connection."""
        for connection in list(self._open):
            abort(connection.transport)

    async def call(
        self,
        name: str,
        path: str = "/v1/chat/completions",
        body: bytes = b"",
        *,
        method: str = "POST",
        fields: Iterable[tuple[str, str]] = (),
        patience: float | None = None,
    ) -> Outcome:
        """One request with `x-lab-id: name`; whatever happens is in the outcome, nothing is raised."""
        outcome = Outcome(name)
        started = time.monotonic()
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}", f"x-lab-id: {name}"]
        lines += [f"{key}: {value}" for key, value in fields]
        if body or method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        head = "\r\n".join([*lines, "", ""]).encode()
        try:
            if patience is None:
                await self._exchange(outcome, head, body)
            else:
                await asyncio.wait_for(self._exchange(outcome, head, body), patience)
        except asyncio.TimeoutError:
            outcome.error = "timeout"
        except ConnectionRefusedError:
            outcome.error = "refused"
        except (ConnectionError, OSError):
            outcome.error = "reset"
        outcome.elapsed = time.monotonic() - started
        return outcome

    async def _exchange(self, outcome: Outcome, head: bytes, body: bytes) -> None:
        connection = self._idle.pop() if self._idle else await self._dial()
        try:
            reusable = await connection.exchange(outcome, head, body)
        except BaseException:
            abort(connection.transport)
            raise
        if reusable:
            self._idle.append(connection)
        else:
            abort(connection.transport)

    async def _dial(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with self._dials:
            name = "localhost" if self.tls is not None else None
            _, connection = await loop.create_connection(
                lambda: _Connection(self), self.host, self.port, ssl=self.tls, server_hostname=name
            )
        self.connections += 1
        return connection

    def opened(self, connection: _Connection) -> None:
        """A connection is there."""
        self._open.add(connection)

    def lost(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class _Connection(asyncio.Protocol):
    def __init__(self, client: LoadClient) -> None:
        self._client = client
        self._parser = httptools.HttpResponseParser(self)
        self._outcome: Outcome | None = None
        self._done: asyncio.Future[bool] | None = None
        self._alive = True
        self.transport: asyncio.Transport

    async def exchange(self, outcome: Outcome, head: bytes, body: bytes) -> bool:
        """Send and wait; returns whether the connection can be used again."""
        if not self._alive:
            raise ConnectionResetError
        self._outcome = outcome
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(head)
        if body:
            self.transport.write(body)
        return await self._done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._client.opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._settle("malformed")

    def connection_lost(self, error: Exception | None) -> None:
        self._alive = False
        self.transport.close()  # as in Session.connection_lost
        self._settle("closed" if error is None else "reset")
        self._client.lost(self)

    def _settle(self, error: str) -> None:
        done, self._done = self._done, None
        if done is not None and not done.done():
            assert self._outcome is not None
            self._outcome.error = error
            done.set_result(self._alive and not error and bool(self._parser.should_keep_alive()))

    # --- httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._outcome is None:
            return
        key = name.lower()
        if key == b"h2ping-cause":
            self._outcome.cause = value.decode("latin-1")
        elif key == b"x-lab-executions":
            self._outcome.executions = int(value)

    def on_headers_complete(self) -> None:
        if self._outcome is not None:
            self._outcome.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._outcome is not None:
            self._outcome.body_bytes += len(data)
            if len(self._outcome.body) < KEPT_BODY_BYTES:
                self._outcome.body += data[: KEPT_BODY_BYTES - len(self._outcome.body)]

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._settle("")

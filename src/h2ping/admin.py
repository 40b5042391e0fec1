"""The second listener: probes, metrics, connections. Nothing that is proxied passes here.

    /startup    200 once every listener was bound
    /readiness  200 while requests are taken; 503 before and while draining     (also /ready)
    /liveness   200 while the event loop turns                                  (also /live)
    /metrics    Prometheus text
    /connections  JSON: memory, instances and each upstream connection

Theory of operation
-------------------
1. One request a connection, then it is closed: probes and scrapers open a new one anyway.
2. GET and HEAD only; a head of at most 8 KiB within 10 s; at most 64 connections. Whoever breaks a bound is
   cut; of too many it is the oldest, so that visitors who stand still never keep a probe out.
3. What is shown is handed in by a callable and holds no header, no path and no body.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from h2ping import log, metrics
from h2ping.answer import date_line
from h2ping.lifecycle import cannot_bind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from h2ping.address import Address

LONGEST_HEAD_BYTES: Final = 8192
MOST_CONNECTIONS: Final = 64
TIME_LIMIT: Final = 10.0
"""Seconds for a whole visit, the reading of the answer too."""

_REASONS: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip

TEXT: Final = "text/plain; charset=utf-8"


class Counts(Protocol):
    """What /metrics is made from (metrics.Metrics)."""

    def render(self, state: Mapping[str, Any] | None = None) -> str:
        """Prometheus text."""


class Admin:
    """Owns the listener. `ready` is set by whoever knows."""

    def __init__(self, address: Address, counts: Counts, state: Callable[[], Mapping[str, Any]]) -> None:
        self.address = str(address)
        self._listen = address
        self._counts = counts
        self._state = state
        self._ready = False
        self._started = False
        self._server: asyncio.Server | None = None
        self.visits: dict[Visit, None] = {}

    @property
    def ready(self) -> bool:
        return self._ready

    @ready.setter
    def ready(self, value: bool) -> None:
        self._ready = value
        self._started = self._started or value

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Visit(self), self._listen.host or None, self._listen.port, backlog=MOST_CONNECTIONS
            )
        except OSError as error:
            raise cannot_bind(self._listen, error) from None
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for visit in list(self.visits):
            visit.cut()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body for a path."""
        if path == "/startup":
            return _probe(self._started, "started", "starting")
        if path in ("/readiness", "/ready"):
            return _probe(self._ready, "ready", "not ready" if self._started else "starting")
        if path in ("/liveness", "/live"):
            return _probe(True, "live", "")
        if path == "/metrics":
            return 200, metrics.CONTENT_TYPE, self._counts.render(self._state()).encode()
        if path == "/connections":
            return 200, "application/json", json.dumps(self._state(), indent=2).encode() + b"\n"
        return 404, TEXT, b"try /startup /readiness /liveness /metrics /connections\n"


ALLOWED = "allow: GET, HEAD\r\n"
"""RFC 9110 section 15.5.6: a 405 says what is."""


def _path_of(target: bytes) -> str:
    """Of the origin form or the absolute form, which a server must take (RFC 9112 section 3.2.2)."""
    if target[:7].lower() == b"http://":
        target = b"/" + target[7:].partition(b"/")[2]
    return target.partition(b"?")[0].decode("latin-1")


def _probe(is_so: bool, yes: str, no: str) -> tuple[int, str, bytes]:
    return (200, TEXT, f"{yes}\n".encode()) if is_so else (503, TEXT, f"{no}\n".encode())


class Visit(asyncio.Protocol):
    """One connection: a head comes in, an answer goes out, the connection is closed."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it
        visits = self._admin.visits
        if len(visits) >= MOST_CONNECTIONS:
            oldest = next(iter(visits))
            del visits[oldest]
            oldest.cut()
        visits[self] = None
        self._deadline = asyncio.get_running_loop().call_later(TIME_LIMIT, self.cut)

    def connection_lost(self, exc: Exception | None) -> None:
        self._admin.visits.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._head += data
        if self._head.startswith((b"\r", b"\n")):  # RFC 9112 section 2.2: empty lines before the request line
            del self._head[: len(self._head) - len(self._head.lstrip(b"\r\n"))]
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._respond()
        elif len(self._head) > LONGEST_HEAD_BYTES:
            self._send(431, TEXT, b"the request's head is too large\n", with_body=True)

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _respond(self) -> None:
        words = bytes(self._head).split(b"\n", 1)[0].strip().split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self._send(400, TEXT, b"not an HTTP/1.1 request\n", with_body=words[0] != b"HEAD")
            return
        method, path = words[0], _path_of(words[1])
        if method not in (b"GET", b"HEAD"):
            self._send(405, TEXT, b"GET and HEAD only\n", with_body=True)
            return
        try:
            status, content_type, body = self._admin.answer(path)
        except Exception as error:
            # A defect in what is shown must not end the proxy; it is logged once here, where it shows.
            log.defect("the admin page failed", error)
            status, content_type, body = 500, TEXT, b"internal error\n"
        self._send(status, content_type, body, with_body=method == b"GET")

    def _send(self, status: int, content_type: str, body: bytes, *, with_body: bool) -> None:
        assert self._transport is not None
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
            f"content-type: {content_type}\r\n"
            f"content-length: {len(body)}\r\n"
            f"{date_line().decode('ascii')}"
            f"{ALLOWED if status == 405 else ''}"
            "cache-control: no-store\r\n"
            "connection: close\r\n\r\n"
        )
        self._transport.write(head.encode("ascii") + (body if with_body else b""))
        self._transport.close()

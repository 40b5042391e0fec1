"""A scripted origin: TLS, HTTP/2 (and, when asked, HTTP/1.1), and the paths of an OpenAI-like endpoint.

    async with LabOrigin(Script(delay=5.0)) as origin:
        await origin.until(lambda: origin.waiting == 8)  # then origin.url, .ca_file, .executions["my-id"] ...

Theory of operation
-------------------
1. TLS and ALPN choose the face: `Session` (HTTP/2) or `Turns` (HTTP/1.1). Both hand their requests here.
2. A request is *executed* once its whole body arrived and nothing refused it. `executions` counts that per
   `x-lab-id`: a 2 there is the silent second execution that a proxy must never cause.
3. An execution waits for its delay and for the gate (`hold_until`), then answers as path, script and steering
   say.
4. Everything that a test may wait for changes through `watch`; `until()` needs no clock.

Paths: `/v1/chat/completions`, `/v1/responses` (both as server-sent events for `"stream": true`),
`/v1/models`, `/echo` (what arrived, as JSON, or `x-lab-size` bytes). Any prefix in front of them is accepted.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, cast

from h2ping.lab import replies
from h2ping.lab.certificate import Certificate
from h2ping.lab.script import Script
from h2ping.lab.session import Session
from h2ping.lab.trace import Scale
from h2ping.lab.transports import abort
from h2ping.lab.turns import Turns
from h2ping.lab.watch import DEFAULT_PATIENCE, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from h2ping.lab.call import Call
    from h2ping.lab.script import Fields

JSON = b"application/json"
EVENTS = b"text/event-stream"


class LabOrigin:
    """One listening origin and its books."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        scale: Scale | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        self.script = script if script is not None else Script()
        self.scale = scale if scale is not None else Scale()
        self.host = host
        self.port = port
        self.watch = Watch()
        self._own_certificate = certificate is None
        self.certificate = certificate if certificate is not None else Certificate()
        self.ca_file = self.certificate.ca_file
        self.sessions: list[Session] = []
        """HTTP/2 connections that are open now."""
        self.past: deque[Session] = deque(maxlen=1000)
        """... and those that are closed, latest last."""
        self.connections = 0
        self.turns = 0
        """HTTP/1.1 connections so far."""
        self.arrived = 0
        """Request heads so far, refused ones and re-sends included."""
        self.executed = 0
        self.executions: Counter[str] = Counter()
        """How often each `x-lab-id` was executed."""
        self.attempts: Counter[str] = Counter()
        """How often each `x-lab-id` arrived."""
        self.outcomes: Counter[str] = Counter()
        self.waiting = 0
        """Executed requests whose answer has not begun."""
        self.peak_waiting = 0
        self.peak_streams = 0
        """Most streams that were open on one connection."""
        self.goaways = 0
        self.retirements: Counter[str] = Counter()
        """Why connections were retired: "age", "requests", "asked"."""
        self.resets_seen = 0
        self.violations: list[str] = []
        """What clients did against RFC 9113."""
        self.calls: list[Call] = []
        """Every request, in order of arrival, unless `keep_records` is off."""
        self._gate = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; `port` is the real one afterwards."""
        context = self.certificate.server_context(self.script.alpn)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Door(self), self.host, self.port, ssl=context, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        """No new connections; those that are open live on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self) -> None:
        """Close every connection and wait for what ran."""
        self.stop_listening()
        self._gate.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in list(self.sessions):
            abort(session.transport)
        await self.until(lambda: not self.sessions)
        if self._own_certificate:
            self.certificate.close()

    @property
    def url(self) -> str:
        """Base URL for `-upstream`; the certificate is valid for `localhost` and 127.0.0.1."""
        return f"https://localhost:{self.port}"

    async def until(self, predicate: Callable[[], bool], patience: float = DEFAULT_PATIENCE) -> None:
        """Wait until `predicate` over these books holds."""
        await self.watch.until(predicate, patience)

    @property
    def session(self) -> Session:
        """The latest open HTTP/2 connection."""
        return self.sessions[-1]

    @property
    def pings(self) -> int:
        """PINGs received on all HTTP/2 connections, the last thousand closed ones included."""
        return sum(len(session.pings) for session in (*self.sessions, *self.past))

    @property
    def twice(self) -> list[str]:
        """Ids that were executed more than once."""
        return [name for name, count in self.executions.items() if count > 1]

    # --- what the faces call ---

    def session_opened(self) -> int:
        """Count a connection; returns its number."""
        self.connections += 1
        self.watch.changed()
        return self.connections

    def session_lost(self, session: Session) -> None:
        """An HTTP/2 connection ended."""
        if session in self.sessions:
            self.sessions.remove(session)
            self.past.append(session)
        self.watch.changed()

    def admit(self, call: Call) -> str:
        """Count the request and say what becomes of it: "accept", "refuse" or "goaway"."""
        script, wishes = self.script, call.steer
        self.arrived += 1
        call.number = self.arrived
        if wishes.id:
            self.attempts[wishes.id] += 1
            call.attempt = self.attempts[wishes.id]
        if script.keep_records:
            self.calls.append(call)
        call.prepare(hashed=wishes.hash or script.hash_bodies, kept=script.keep_bodies)
        self.watch.changed()
        if wishes.goaway >= call.attempt > 0 or _due(script.goaway_every, call.number):
            return "goaway"
        if wishes.refuse >= call.attempt > 0 or _due(script.refuse_every, call.number):
            return "refuse"
        return "accept"

    def execute(self, call: Call) -> None:
        """Run the request; counted here and nowhere else."""
        call.executed = True
        self.executed += 1
        if call.steer.id:
            self.executions[call.steer.id] += 1
        self.waiting += 1
        self.peak_waiting = max(self.peak_waiting, self.waiting)
        if self.script.hold_until and self.waiting >= self.script.hold_until:
            self._gate.set()
        call.task = asyncio.get_running_loop().create_task(self._answer(call))
        self._tasks.add(call.task)
        call.task.add_done_callback(self._tasks.discard)
        self.watch.changed()

    def open_gate(self) -> None:
        """Let the answers go that `hold_until` holds."""
        self._gate.set()

    def finished(self, call: Call, outcome: str) -> None:
        """The call is over."""
        if call.outcome == "waiting":
            call.outcome = outcome
            self.outcomes[outcome] += 1
            self.watch.changed()

    # --- answers ---

    async def _answer(self, call: Call) -> None:
        try:
            seen = call.seen()
            call.forget()
            await self._think(call)
        finally:
            self.waiting -= 1
            self.watch.changed()
        wishes, script, reply = call.steer, self.script, call.reply
        reset = wishes.reset
        half = wishes.half
        if reset is None and _due(script.reset_every, call.number):
            reset = script.reset_code
        if half is None and _due(script.half_every, call.number):
            half, reset = -1, script.reset_code
        for _ in range(wishes.interim):
            reply.interim(103, [(b"link", b"</lab>; rel=preload")])
        if half is None and (reset is not None or wishes.cut):
            self._break(call, reset)
            return
        events = self._events(call, seen)
        fields: Fields = [(b"x-lab-executions", b"%d" % self.executions[wishes.id])] if wishes.id else []
        if wishes.hash:
            fields.append((b"x-lab-sha256", (call.sha256 or "").encode()))
        if events is not None and wishes.size is None and not script.response_bytes:
            await self._stream(call, events, fields)
            return
        body = self._body(call, seen)
        length = len(body)
        if call.method == "HEAD":
            body = b""
        fields = [(b"content-type", JSON), (b"content-length", b"%d" % length), *fields]
        reply.head(wishes.status, fields)
        if half is not None:
            reply.data(body[: len(body) // 2 if half < 0 else half])
            self._break(call, reset)
            return
        reply.data(body)
        reply.end([(b"x-lab-trailer", b"yes")] if wishes.trailers else None)

    async def _think(self, call: Call) -> None:
        delay = call.steer.delay
        if delay is None:
            fixed = self.script.delay
            delay = fixed() if callable(fixed) else fixed
        if delay:
            await asyncio.sleep(self.scale.of(delay))
        if self.script.hold_until:
            try:
                await asyncio.wait_for(self._gate.wait(), self.scale.of(self.script.hold_patience))
            except asyncio.TimeoutError:
                self._gate.set()  # the rest need not wait out their own patience

    def _break(self, call: Call, reset: int | None) -> None:
        if call.steer.cut:
            self.finished(call, "cut")
            call.reply.cut(call.steer.cut)
        else:
            self.finished(call, "reset")
            call.reply.reset(self.script.reset_code if reset is None else reset)

    def _events(self, call: Call, seen: bytes) -> list[bytes] | None:
        if call.method != "POST" or call.steer.status != 200 or not replies.wants_events(seen):
            return None
        count = self.script.events if call.steer.events is None else call.steer.events
        path = call.path.partition("?")[0]
        if path.endswith("/chat/completions"):
            return replies.chat_events(call.number, replies.model_of(seen), count)
        if path.endswith("/responses"):
            return replies.response_events(call.number, replies.model_of(seen), count)
        return None

    async def _stream(self, call: Call, events: list[bytes], fields: Fields) -> None:
        gap = self.script.event_gap if call.steer.event_gap is None else call.steer.event_gap
        call.reply.head(200, [(b"content-type", EVENTS), (b"cache-control", b"no-cache"), *fields])
        for index, event in enumerate(events):
            if index and gap:
                await asyncio.sleep(self.scale.of(gap))
            call.reply.data(event)
            if call.steer.half is not None and index + 1 >= call.steer.half:
                self._break(call, call.steer.reset)
                return
        call.reply.end([(b"x-lab-trailer", b"yes")] if call.steer.trailers else None)

    def _body(self, call: Call, seen: bytes) -> bytes:
        size = self.script.response_bytes if call.steer.size is None else call.steer.size
        if size or call.steer.size is not None:
            return replies.filler(size)
        path = call.path.partition("?")[0]
        if call.steer.status != 200:
            return replies.problem("as asked by x-lab-status")
        if path.endswith("/chat/completions") and call.method == "POST":
            return replies.chat(call.number, replies.model_of(seen))
        if path.endswith("/responses") and call.method == "POST":
            return replies.responses(call.number, replies.model_of(seen))
        if path.endswith("/models"):
            return replies.models()
        if path.endswith("/echo"):
            return replies.echo(call.method, call.path, call.received, call.sha256)
        call.steer.status = 404
        return replies.problem("no such path in the lab")


class _Door(asyncio.Protocol):
    """Stands at the socket until ALPN is known, then gives way to a face."""

    def __init__(self, origin: LabOrigin) -> None:
        self._origin = origin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        origin = self._origin
        socket = cast("asyncio.Transport", transport)  # uvloop's do not inherit from asyncio's
        tls = socket.get_extra_info("ssl_object")
        chosen = tls.selected_alpn_protocol() if tls is not None else None
        number = origin.session_opened()
        face: Session | Turns
        if chosen == "h2":
            face = Session(origin, number)
            origin.sessions.append(face)
        else:
            origin.turns += 1
            face = Turns(origin, number)
        socket.set_protocol(face)
        face.connection_made(socket)


def _due(every: int, number: int) -> bool:
    return every > 0 and number % every == 0

"""One cell played over sockets: a request is brought to its moment, the fault strikes, and the books are read.

Theory of operation
-------------------
1. The measured request is a POST, so nothing but a proof that it was not processed allows a second sending.
2. `prepare` brings it to its moment and returns; `strike` breaks something; `settle` reads the answer, lets the
   upstream be well again, and asks once more.
3. The origin executes a request when it has the whole of it and does not refuse it. That is counted per path, also
   for requests whose answer never arrives.
4. An answer is right when it is the origin's own bytes, whole, or an error with a documented cause, or a connection
   that was cut before the response was whole.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from h2ping.errors import CAUSES
from tests.faults.result import Moment, Result
from tests.support.bell import pace
from tests.support.client import Client, request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.client import Response
    from tests.support.proxy import Proxy
    from tests.support.scripted_origin import Conn, Origin, Request

BODY = bytes(range(250)) * 4
HALF = len(BODY) // 2
REPEATS_AFTER = 0.2
"""The pause before the next request is made again, where that is allowed: longer than the first delay of a dial."""
NEXT_WITHIN = 4.0
"""The next request's time, all tries: it may have to wait for the delay between two dials, 1 s at most
(docs/behaviour.md), and for a busy machine."""
PATIENCE = 25.0
"""A cell that takes longer hangs."""


def answer_to(path: bytes) -> bytes:
    """What belongs to a request and to no other."""
    return (path + b" answered. " + bytes(1000))[:1000]


class Cell(abc.ABC):
    """One fault at one moment, with an upstream of its own."""

    settings: dict[str, str] = {}  # noqa: RUF012 - never changed, replaced in classes below
    """Further settings of the instance."""
    next_tries = 1
    """The next request must be answered by this try."""

    def __init__(self, fault: str, moment: Moment, name: str) -> None:
        self.result = Result(fault, moment)
        self.moment = moment
        self.name = name
        self.path = f"/{name}"
        self.executed: Counter[str] = Counter()
        self.port = 0
        self.proxy: Proxy
        self._client: Client | None = None
        self._begun: Response | None = None
        """The measured request's answer, when half of it was read."""
        self._sent_at = 0.0

    # --- what a kind of cell supplies ---

    @abc.abstractmethod
    async def open(self) -> str:
        """Start the upstream; its URL."""

    @abc.abstractmethod
    async def reach(self) -> None:
        """Bring the request to its moment."""

    @abc.abstractmethod
    async def strike(self) -> None:
        """Break it."""

    @abc.abstractmethod
    async def heal(self) -> None:
        """The upstream is well again."""

    @abc.abstractmethod
    def resent(self) -> int:
        """How often the measured request was sent again."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Take the upstream down."""

    # --- the play ---

    async def prepare(self) -> None:
        """Up to the moment."""
        try:
            await asyncio.wait_for(self._guarded(self.reach), PATIENCE)
        except (asyncio.TimeoutError, TimeoutError):
            self.wrong("the moment never came")

    async def play(self) -> None:
        """From the moment on."""
        if self.result.wrong:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await asyncio.wait_for(self._guarded(self.strike), PATIENCE)
            if self.moment is Moment.HALF_SENT:
                self.client.send(BODY[HALF:])
            elif not self._sent_at:
                self.send()
            response = await (self._rest() if self._begun is not None else self._answer(self.client))
            self.result.seconds = loop.time() - max(began, self._sent_at)
            self.result.answer = await self._told(response)
            await self._guarded(self.heal)
            await self._guarded(self._follow)
            self.result.executed = self.executed[self.path]
            self.result.resent = self.resent()
            if any(count > 1 for count in self.executed.values()):
                self.wrong("executed twice")
        except (asyncio.TimeoutError, TimeoutError):
            self.wrong("it hangs")
        finally:
            if self._client is not None:
                await self._client.gone()

    def wrong(self, what: str) -> None:
        self.result.wrong.append(what)

    async def _guarded(self, step: Callable[[], object]) -> None:
        try:
            await step()  # type: ignore[misc]
        except AssertionError as error:
            self.wrong(f"{getattr(step, '__name__', step)}: {error}")

    @property
    def client(self) -> Client:
        """The connection that carries the measured request."""
        assert self._client is not None
        return self._client

    async def connect(self) -> Client:
        self._client = await Client.connect(self.port)
        return self._client

    def send(self, *, half: bool = False) -> None:
        """The measured request."""
        self._sent_at = asyncio.get_running_loop().time()
        raw = request_bytes("POST", self.path, BODY)
        self.client.send(raw[:-HALF] if half else raw)

    async def _answer(self, client: Client) -> Response | None:
        try:
            return await client.response("POST", within=PATIENCE)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def read_half(self) -> None:
        """Half of the answer is at the client."""
        self._begun = await self.client.head("POST")
        self._begun.chunks.append((0.0, await self.client.reader.readexactly(HALF)))

    async def _rest(self) -> Response:
        response = self._begun
        assert response is not None
        try:
            rest = await asyncio.wait_for(self.client.reader.readexactly(HALF), PATIENCE)
            response.chunks.append((0.0, rest))
            response.complete = True
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        response.body = b"".join(piece for _, piece in response.chunks)
        return response

    async def _told(self, response: Response | None) -> str:
        if response is None or not response.complete:
            cause = await self._logged_cause()
            if cause not in CAUSES:
                self.wrong(f"cut with the cause {cause}")
            if response is None:
                self.wrong("cut before a response began")
                return f"cut ({cause})"
            if response.body != answer_to(self.path.encode())[: len(response.body)]:
                self.wrong("other bytes")
            return f"{response.status}, cut ({cause})"
        if response.status == 200:
            if response.body != answer_to(self.path.encode()):
                self.wrong("a whole answer with other bytes")
            return "200"
        if response.cause not in CAUSES:
            self.wrong(f"{response.status} with the cause {response.cause}")
        return f"{response.status} {response.cause}"

    async def _logged_cause(self) -> str | None:
        record = await self.proxy.record(path=self.path, within=PATIENCE)
        cause = record.get("cause")
        return cause if isinstance(cause, str) else None

    async def _follow(self) -> None:
        """The next request, on a connection of its own."""
        if self.moment is Moment.DRAINING:
            self.result.following = await self._refusal()
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(self.next_tries):
            if number:
                await pace(REPEATS_AFTER)
            self.result.tries += 1
            self.result.following = await self._next(f"{self.path}/next-{number}")
            if self.result.following == "200":
                break
        else:
            self.wrong(f"the next request fails: {self.result.following}")
        self.result.following_seconds = loop.time() - began
        if self.result.following_seconds > NEXT_WITHIN:
            self.wrong(f"the next request takes {self.result.following_seconds:.1f} s")

    async def _next(self, path: str) -> str:
        client = await Client.connect(self.port)
        try:
            client.send(request_bytes("POST", path, BODY))
            response = await self._answer(client)
        finally:
            await client.gone()
        if response is None or not response.complete:
            return "cut"
        if response.status != 200:
            return f"{response.status} {response.cause}"
        if response.body != answer_to(path.encode()):
            self.wrong("the next request has other bytes")
        return "200"

    async def _refusal(self) -> str:
        """A proxy that drains, or is gone, takes no connection."""
        try:
            client = await Client.connect(self.port)
        except ConnectionRefusedError:
            return "refused"
        await client.gone()
        self.wrong("a proxy that drains took a connection")
        return "taken"


class ScriptedCell(Cell):
    """A cell whose origin lives in this process and does frame by frame as the fault says."""

    def __init__(self, fault: str, moment: Moment, name: str) -> None:
        super().__init__(fault, moment, name)
        self.origin: Origin
        self.request: Request | None = None
        """The measured request on its first connection, where the fault finds it there."""
        self.conn: Conn
        self.refuses = False
        """The fault says that the request was not taken."""
        self._held = moment in (Moment.HALF_SENT, Moment.WAITING, Moment.HALF_RECEIVED, Moment.DRAINING)

    def make_origin(self) -> Origin:
        """Set by whoever makes the cells."""
        raise AssertionError("no origin was given")

    async def open(self) -> str:
        self.origin = self.make_origin()
        self.origin.tolerated = True
        self.origin.handler = self._serve
        if self.moment is Moment.BEFORE_SETTINGS:
            self.origin.manners.opening = b""
            self.origin.manners.ack_settings = False
        await self.origin.start()
        return self.origin.url

    async def _serve(self, request: Request) -> None:
        if self._held and request.path == self.path.encode():
            self._held = False
            return
        await self.execute(request)

    async def execute(self, request: Request) -> None:
        """Wait for all of it, run it, answer."""
        with contextlib.suppress(AssertionError):
            await request.complete(within=PATIENCE)
            if not request.answered:
                self.executed[request.path.decode()] += 1
                request.respond(200, answer_to(request.path))

    async def reach(self) -> None:
        client = await self.connect()
        if self.moment is Moment.IDLE:
            client.send(request_bytes("POST", f"{self.path}/first", BODY))
            assert (await client.response("POST")).status == 200
            self.conn = self.origin.connections[0]
            return
        self.send(half=self.moment is Moment.HALF_SENT)
        if self.moment is Moment.BEFORE_SETTINGS:
            await self.origin.bell.until(
                lambda: bool(self.origin.connections) and self.origin.connections[0].saw_preface, "a preface"
            )
            self.conn = self.origin.connections[0]
            self.origin.manners.opening = None
            self.origin.manners.ack_settings = True
            return
        self.request = await self.origin.request(1)
        self.conn = self.request.conn
        if self.moment is Moment.HALF_SENT:
            await self.request.received(HALF)
            return
        await self.request.complete()
        if not self.refuses or self.moment is Moment.HALF_RECEIVED:
            self.executed[self.path] += 1
        if self.moment is Moment.HALF_RECEIVED:
            whole = answer_to(self.path.encode())
            self.request.head(200, [(b"content-length", b"%d" % len(whole))])
            self.request.data(whole[:HALF])
            await self.read_half()

    def resent(self) -> int:
        mine = [each for each in self.origin.requests if each.path == self.path.encode()]
        for again in mine[1:]:
            if again.fields != mine[0].fields or bytes(again.body) != BODY:
                self.wrong("sent again with other bytes")
        return len(mine) - 1 if mine else 0

    async def heal(self) -> None:
        pass

    @property
    def stream(self) -> int:
        """The stream that a fault names: the request's, else the first."""
        return self.request.stream if self.request is not None else 1

    async def finish(self) -> None:
        """The request lives on: answer it, or the rest of it."""
        if self.request is None:
            return
        if self.moment is Moment.HALF_RECEIVED:
            self.request.data(answer_to(self.path.encode())[HALF:], end=True)
        elif self.moment is Moment.HALF_SENT:
            asyncio.ensure_future(self.execute(self.request))  # noqa: RUF006 - ends with its connection
        else:
            self.request.respond(200, answer_to(self.path.encode()))

    async def close(self) -> None:
        await self.origin.close()

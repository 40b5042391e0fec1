"""Many clients, an origin that breaks in every way at random: each request has one right outcome.

Held for each seed: a POST is never executed twice; a 200 carries its own answer, whole; every failure has a
documented cause; nothing hangs; the proxy breaks no rule of HTTP/2 and ends cleanly. H2PING_CHAOS_SEEDS=50 tries
that many seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from h2ping.errors import CAUSES
from tests.support.bell import pace
from tests.support.client import request_bytes
from tests.support.framing import Code, data, goaway, rst_stream
from tests.support.stage import any_stage, certificates, stage

if TYPE_CHECKING:
    from tests.support.proxy import Proxy
    from tests.support.scripted_origin import Conn, Request
    from tests.support.stage import Stage

__all__ = ["any_stage", "certificates", "stage"]

REQUESTS = 400
AT_ONCE = 40
ANSWERS = ["small", "late", "large", "events", "trailers", "early"]
GENTLE = ["refused", "goaway", "goaway", "reset", "half", "silent"]
HARD = ["rst", "fin", "half fin"]


def answer_to(path: bytes) -> bytes:
    """What belongs to a request and to no other."""
    return path + b" answered. " + path * 50


class Chaos:
    """The origin's side. `executed` counts what was not refused."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.executed: Counter[bytes] = Counter()
        self.last: dict[Conn, int] = {}

    async def __call__(self, request: Request) -> None:
        conn = request.conn
        if request.stream > self.last.get(conn, request.stream):
            return  # refused by the GOAWAY that is under way
        kinds = self.random.choices([ANSWERS, GENTLE, HARD], [85, 13, 2])[0]
        kind = self.random.choice(kinds)
        if kind == "refused":
            request.reset(Code.REFUSED_STREAM)
            return
        if kind == "goaway":
            if conn not in self.last:
                self.last[conn] = max(request.stream - 2, 0)
                conn.send(goaway(self.last[conn]))
                self._close_when_done(conn)
                return
            kind = "small"
        self.executed[request.path] += 1
        if kind == "early":
            self._whole(request)
            if not request.ended:
                request.reset(Code.NO_ERROR)
            return
        with contextlib.suppress(AssertionError):
            await request.complete()
            await self._play(request, kind)
        self._close_when_done(conn)

    async def _play(self, request: Request, kind: str) -> None:
        conn, stream, body = request.conn, request.stream, answer_to(request.path)
        if request.reset_code is not None or conn.lost:
            return
        if kind == "late":
            await pace(self.random.random() * 0.05)
        if kind in ("small", "late"):
            self._whole(request)
        elif kind == "large":
            request.head(200, [(b"content-length", b"%d" % (len(body) * 200))])
            await request.pour(body * 200)
        elif kind == "events":
            request.head(200, [(b"content-type", b"text/event-stream")])
            for start in range(0, len(body), 100):
                request.data(body[start : start + 100])
                await pace(0.001)
            request.data(b"", end=True)
        elif kind == "trailers":
            request.head(200)
            conn.send(data(stream, body), conn.field_section(stream, [(b"x-t", b"1")], end=True))
        elif kind == "reset":
            request.reset(self.random.choice([Code.INTERNAL_ERROR, Code.CANCEL, Code.ENHANCE_YOUR_CALM]))
        elif kind == "rst":
            conn.rst()
        elif kind == "fin":
            conn.fin(close_notify=self.random.random() < 0.5)
        elif kind.startswith("half"):
            request.head(200, [(b"content-length", b"%d" % len(body))] if self.random.random() < 0.5 else [])
            request.data(body[:7])
            if kind == "half":
                conn.send(rst_stream(stream, Code.INTERNAL_ERROR))
            else:
                conn.fin()

    def _whole(self, request: Request) -> None:
        request.respond(200, answer_to(request.path))

    def _close_when_done(self, conn: Conn) -> None:
        last = self.last.get(conn)
        if last is not None and all(r.answered for r in conn.requests.values() if r.stream <= last):
            conn.fin()


class Caller:
    """The clients' side: one request at a time, on one connection as long as it lasts."""

    def __init__(self, stage: Stage, proxy: Proxy, seed: int) -> None:
        self.stage = stage
        self.proxy = proxy
        self.random = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self, numbers: list[int]) -> None:
        client = await self.stage.client(self.proxy)
        for number in numbers:
            path = f"/{number}"
            method = self.random.choice(["POST", "POST", "POST", "GET", "PUT"])
            client.send(self._raw(method, path))
            if self.random.random() < 0.1:
                await pace(self.random.random() * 0.03)
                client.rst()
                self.outcomes["left"] += 1
                client = await self.stage.client(self.proxy)
                continue
            try:
                response = await client.response(method, within=30 if self.random.random() < 0.9 else 0.3)
            except (asyncio.TimeoutError, TimeoutError):
                client.close()
                self.outcomes["gave up"] += 1
                client = await self.stage.client(self.proxy)
                continue
            self._judge(path, response.status, response.cause, response.body, response.complete)
            if response.closes or not response.complete:
                await client.gone()
                client = await self.stage.client(self.proxy)

    def _raw(self, method: str, path: str) -> bytes:
        if method == "GET":
            return request_bytes(method, path)
        body = self.random.randbytes(self.random.choice([0, 10, 1000, 20_000, 300_000]))
        if self.random.random() < 0.5:
            return request_bytes(method, path, body)
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:500], body[500:]) if p)
        return request_bytes(method, path, None, [("Transfer-Encoding", "chunked")]) + chunks + b"0\r\n\r\n"

    def _judge(self, path: str, status: int, cause: str | None, body: bytes, complete: bool) -> None:
        answer = answer_to(path.encode())
        if status == 200:
            self.outcomes["whole" if complete else "cut"] += 1
            if complete and body not in (answer, answer * 200):
                self.wrong.append(f"{path}: a whole 200 with {len(body)} bytes: {body[:60]!r}")
            if not complete and body != (answer * 200)[: len(body)]:
                self.wrong.append(f"{path}: a cut 200 with other bytes: {body[:60]!r}")
        else:
            self.outcomes[str(cause)] += 1
            if cause not in CAUSES or not complete:
                self.wrong.append(f"{path}: {status} {cause} complete={complete}")


@pytest.mark.parametrize("seed", range(1, 1 + int(os.environ.get("H2PING_CHAOS_SEEDS", "2"))))
async def test_each_request_has_one_right_outcome(stage: Stage, seed: int) -> None:
    chaos = Chaos(seed)
    origin = await stage.origin(chaos)
    proxy = await stage.proxy(
        origin, "--max-conn-age=2s", "--max-memory=8MiB", "--ping-interval=200ms", "--first-byte-timeout=2s"
    )  # fmt: skip
    callers = [Caller(stage, proxy, seed * 1000 + number) for number in range(AT_ONCE)]
    share = REQUESTS // AT_ONCE
    await asyncio.gather(
        *(
            caller.run(list(range(number * share, (number + 1) * share)))
            for number, caller in enumerate(callers)
        )
    )
    outcomes = sum((caller.outcomes for caller in callers), Counter())
    assert sum(outcomes.values()) == REQUESTS
    assert not [complaint for caller in callers for complaint in caller.wrong], outcomes
    methods = {request.path: request.method for request in origin.requests}
    twice = {path for path, count in chaos.executed.items() if count > 1 and methods[path] == b"POST"}
    assert not twice, outcomes
    assert outcomes["whole"] > REQUESTS / 3, outcomes

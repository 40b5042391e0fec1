"""The second listener, over real sockets."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from h2ping import admin as admin_module
from h2ping.address import Address
from h2ping.admin import Admin
from h2ping.errors import ConfigError
from h2ping.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = pytest.mark.sockets

STATE: dict[str, Any] = {"memory": {"limit": 5}, "instances": []}


@asynccontextmanager
async def running(state: Any = lambda: STATE) -> AsyncIterator[Admin]:
    admin = Admin(Address("127.0.0.1", 0), Metrics(), state)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


@asynccontextmanager
async def visiting(admin: Admin) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = admin.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All until the connection ends, in whichever way."""
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""


async def exchange(admin: Admin, request: bytes) -> bytes:
    async with visiting(admin) as (reader, writer):
        writer.write(request)
        return await rest(reader)


async def get(admin: Admin, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    answer = await exchange(admin, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body


async def test_probes_follow_the_life_of_the_process() -> None:
    async with running() as admin:
        expected = {"/startup": (503, 200, 200), "/readiness": (503, 200, 503), "/ready": (503, 200, 503),
                    "/liveness": (200, 200, 200), "/live": (200, 200, 200)}  # fmt: skip
        seen: dict[str, tuple[int, ...]] = dict.fromkeys(expected, ())
        for ready in (None, True, False):
            if ready is not None:
                admin.ready = ready
            for path in expected:
                seen[path] += ((await get(admin, path))[0],)
        assert seen == expected
        assert admin.ready is False


async def test_metrics_and_connections_are_shown() -> None:
    async with running() as admin:
        status, fields, body = await get(admin, "/metrics?x=1")
        assert (status, fields["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b"h2ping_memory_limit_bytes 5\n" in body
        assert int(fields["content-length"]) == len(body)
        status, fields, body = await get(admin, "/connections")
        assert (status, fields["content-type"]) == (200, "application/json")
        assert json.loads(body) == STATE
        assert fields["cache-control"] == "no-store"


async def test_head_has_no_body() -> None:
    async with running() as admin:
        status, fields, body = await get(admin, "/liveness", "HEAD")
        assert (status, fields["content-length"], body) == (200, "5", b"")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\nGET /live HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n\r\nGET /live HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://x:9090/live?now HTTP/1.1\r\nHost: x:9090\r\n\r\n",
    ],
)
async def test_empty_lines_before_it_and_the_absolute_form_are_taken(request_bytes: bytes) -> None:
    """RFC 9112 sections 2.2 and 3.2.2."""
    async with running() as admin:
        assert (await exchange(admin, request_bytes)).startswith(b"HTTP/1.1 200 ")


async def test_a_refused_head_request_has_no_body_either() -> None:
    async with running() as admin:
        answer = await exchange(admin, b"HEAD /live HTTP/2.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /secret HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"CONNECT x:1 HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /live\r\n\r\n", 400),
        (b"GET /live HTTP/2.0\r\n\r\n", 400),
        (b"GET /" + b"a" * 9000, 431),
    ],
)
async def test_what_is_no_request_for_us_is_refused(request_bytes: bytes, status: int) -> None:
    async with running() as admin:
        answer = await exchange(admin, request_bytes)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"secret" not in answer
        assert (b"\r\nallow: GET, HEAD\r\n" in answer) == (status == 405)
        assert b"\r\ndate: " in answer


async def test_a_defect_in_what_is_shown_is_a_500_and_the_rest_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("S3CR3T")

    async with running(broken) as admin:
        status, _, body = await get(admin, "/connections")
        assert (status, body) == (500, b"internal error\n")
        assert (await get(admin, "/live"))[0] == 200
    assert "the admin page failed" in caplog.text


async def test_of_too_many_visitors_the_oldest_goes_and_a_probe_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_module, "MOST_CONNECTIONS", 2)
    async with running() as admin, visiting(admin) as (oldest, _), visiting(admin) as (younger, writer):
        assert (await get(admin, "/live"))[0] == 200
        assert await rest(oldest) == b""
        writer.write(b"GET /live HTTP/1.1\r\n\r\n")
        assert (await rest(younger)).startswith(b"HTTP/1.1 200 ")


async def test_no_visitor_stays_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "TIME_LIMIT", 0.2)
    async with running() as admin, visiting(admin) as (reader, writer):
        writer.write(b"GET /live")
        assert await rest(reader) == b""


async def test_closing_cuts_who_is_still_there() -> None:
    async with running() as admin, visiting(admin) as (reader, _):
        assert (await get(admin, "/live"))[0] == 200  # so the visit before it was accepted
        await admin.close()
        assert await rest(reader) == b""


async def test_a_taken_port_says_cannot_bind() -> None:
    async with running() as admin:
        taken = Admin(Address.parse(admin.address), Metrics(), lambda: STATE)
        with pytest.raises(ConfigError, match=f"cannot bind {admin.address}: ") as caught:
            await taken.start()
        assert caught.value.exit_code == 1
        await taken.close()


def test_it_is_served_on_uvloop_too() -> None:
    """The proxy runs on uvloop, whose transports are other classes than asyncio's."""

    async def visit() -> int:
        async with running() as admin:
            return (await get(admin, "/liveness"))[0]

    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(visit()) == 200
    finally:
        loop.close()

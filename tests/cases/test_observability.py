"""The log: who hung up, and exactly one line for each request that failed or was repeated."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.support.framing import Code, goaway

if TYPE_CHECKING:
    from tests.support.proxy import Proxy
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage

PING_TIMEOUT_MS = 200
NEEDED = ("request_id", "attempts", "connection_id", "stream_id", "cause", "code", "elapsed_ms")


async def test_client_aborts_are_499_and_lost_upstreams_502(stage: Stage) -> None:
    """Case client-abort-is-499."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--access-log", "--log-format=json")
    before = await stage.client(proxy)
    before.request("POST", "/before", b"x")
    request = await origin.request(1)
    before.close()
    await request.was_reset()
    record = await proxy.record(path="/before")
    assert (record["status"], record["upstream_status"], record["bytes_in"]) == (499, None, 1)

    amid = await stage.client(proxy)
    amid.request("POST", "/amid", b"x")
    request = await origin.request(2)
    request.head(200)
    request.data(b"half")
    assert (await amid.head("POST")).status == 200
    amid.rst()
    await request.was_reset()
    record = await proxy.record(path="/amid")
    assert (record["status"], record["upstream_status"]) == (499, 200)

    lost = await stage.client(proxy)
    lost.request("POST", "/lost", b"x")
    request = await origin.request(3)
    request.conn.rst()
    response = await lost.response("POST")
    assert (response.status, response.complete) == (502, True)
    record = await proxy.record(path="/lost")
    assert (record["status"], record["cause"]) == (502, "connection-lost")


async def test_each_failed_or_repeated_request_has_one_line_that_says_why(stage: Stage) -> None:
    """Case every-failure-has-one-line."""

    async def script(request: Request) -> None:
        if request.path == b"/goaway":
            if first_time(request):
                request.conn.send(goaway(request.stream - 1))
            else:
                request.respond(200)
        elif request.path == b"/refused":
            request.reset(Code.REFUSED_STREAM)
        elif request.path == b"/internal":
            request.reset(Code.INTERNAL_ERROR)
        elif request.path == b"/silent":
            request.conn.manners.ack_pings = False
            request.conn.manners.ack_settings = False

    def first_time(request: Request) -> bool:
        return sum(r.path == request.path for r in origin.requests) == 1

    origin = await stage.origin(script)
    proxy = await stage.proxy(
        origin, "--log-format=json", "--log-level=info", "--ping-interval=200ms", f"--ping-timeout={PING_TIMEOUT_MS}ms"
    )  # fmt: skip
    wanted = {
        "/goaway": ("goaway-refused", "NO_ERROR", 200),
        "/refused": ("stream-refused", "REFUSED_STREAM", 502),
        "/internal": ("stream-reset", "INTERNAL_ERROR", 502),
        "/silent": ("ping-timeout", None, 502),
    }
    for path, (cause, code, status) in wanted.items():
        asked = time.monotonic()
        response = await stage.ask(proxy, "POST", path, b"x")
        assert response.status == status, path
        record = await one_line(proxy, path)
        assert (record["cause"], record["code"]) == (cause, code), record
        assert all(name in record for name in NEEDED)
        assert record["attempts"] >= 1
        assert record["connection_id"]
        assert record["stream_id"]
        # The loop counts whole milliseconds, and most of these take less than one.
        assert 0 <= record["elapsed_ms"] <= (time.monotonic() - asked) * 1000 + 1
        assert str(record["message"]).strip().rstrip(":") == str(record["message"]).strip()
    assert (await one_line(proxy, "/goaway"))["attempts"] == 2
    assert (await one_line(proxy, "/refused"))["attempts"] > 2
    assert (await one_line(proxy, "/silent"))["elapsed_ms"] >= PING_TIMEOUT_MS


async def test_a_request_that_never_reached_the_upstream_has_its_line_too(any_stage: Stage) -> None:
    """Case every-failure-has-one-line: the TLS failure."""
    origin = await any_stage.origin(cert=any_stage.certificates.unknown)
    proxy = await any_stage.proxy(origin, "--log-format=json")
    await any_stage.ask(proxy, "POST", "/tls", b"x")
    record = await one_line(proxy, "/tls")
    assert (record["cause"], record["attempts"]) == ("certificate", 0)
    assert record["detail"]


async def one_line(proxy: Proxy, path: str) -> dict[str, Any]:
    """The only record with that path."""
    record = await proxy.record(path=path)
    found = [each for each in proxy.records() if each["path"] == path]
    assert len(found) == 1, found
    return record

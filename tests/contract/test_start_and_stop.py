"""Readiness, the log's phrases, exit codes, draining."""

from __future__ import annotations

import re
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from tests.support.client import Client
from tests.support.framing import Code, Kind
from tests.support.proxy import run
from tests.support.stage import ENGINE

if TYPE_CHECKING:
    from tests.contract.conftest import Launcher
    from tests.support.proxy import Proxy

QUICK = 5.0
"""For "at once", on a machine that may be busy."""


async def test_the_ready_file_holds_the_pid_and_appears_after_the_bind(gym: Launcher, free_port: int) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin, listen=f"127.0.0.1:{free_port}")
    assert proxy.ready_file is not None
    await _until_ready(proxy)
    client = await Client.connect(free_port)
    await client.gone()
    assert proxy.ready_file.read_text() == f"{proxy.pid}\n"
    line = await proxy.logged("listening on")
    expected = (
        f"listening on 127.0.0.1:{free_port} -> {origin.url} (HTTP/2, PING every 1s idle, ack deadline 2s)"
    )
    assert expected in line


async def _until_ready(proxy: Proxy) -> None:
    """The launcher polls for the file too: a file has no event that every system can tell."""
    file = proxy.ready_file
    assert file is not None
    for _ in range(500):
        if file.exists() and file.read_text().endswith("\n"):
            return
        with pytest.raises(AssertionError):
            await proxy.bell.until(lambda: None, "file", 0.02)
    raise AssertionError(f"no ready file; log:\n{proxy.log}")


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_a_signal_ends_an_idle_program_cleanly(gym: Launcher, sig: signal.Signals) -> None:
    """Also with a client that keeps its connection open."""
    origin = await gym.stage.origin()
    proxy = await gym.start(origin)
    client = await gym.stage.client(proxy)
    client.request("GET", "/")
    (await origin.request(1)).respond(200)
    await client.response()
    await _until_ready(proxy)
    started = client.time()
    assert await proxy.stop(sig) == 0
    assert client.time() - started < QUICK
    assert "shutdown requested; draining in-flight requests for up to 3s" in proxy.log
    assert proxy.log.rstrip().endswith("stopped")
    assert proxy.ready_file is not None
    assert not proxy.ready_file.exists()


async def test_a_taken_port_is_told_in_the_launchers_words(gym: Launcher) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        address = f"127.0.0.1:{held.getsockname()[1]}"
        proxy = await gym.start("https://localhost:1", listen=address, wait=False)
        proxy.expect_code = 1
        assert await proxy.exited() == 1
        assert f"cannot bind {address}" in proxy.lines[-1][1]
        assert proxy.ready_file is not None
        assert not proxy.ready_file.exists()


async def test_a_ready_file_that_cannot_be_written_is_told(program: str) -> None:
    code, text = await run(
        program, "-upstream", "https://localhost:1", "-listen", "127.0.0.1:0",
        "-ready-file", "/nonexistent/x.ready", engine=ENGINE,
    )  # fmt: skip
    assert code == 1
    assert "cannot write -ready-file /nonexistent/x.ready" in text.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "flags",
    [
        ("--ping-interval", "1.5s", "-max-conn-age=0", "-insecure-skip-verify=true", "-shutdown-grace=1m30s"),
        ("-ping-interval=300ms", "--ping-timeout", "1h", "-shutdown-grace", "1.5h", "-insecure-skip-verify"),
        ("-ping-interval=100000us", "-ping-timeout=200000µs", "-max-conn-age", "1m0.5s"),
        ("-ping-interval", "0", "-retry-body-limit=0", "-insecure-skip-verify=false"),
    ],
)
async def test_other_spellings_are_accepted(gym: Launcher, flags: tuple[str, ...]) -> None:
    """One dash or two, separate or joined, every unit of Go's durations."""
    origin = await gym.stage.origin()
    proxy = await gym.start(origin, *flags)
    client = await gym.stage.client(proxy)
    client.request("GET", "/")
    (await origin.request(1)).respond(200)
    assert (await client.response()).status == 200


@pytest.mark.parametrize("limit", ["512MiB", "1GiB", "268435456", "off"])
async def test_gos_environment_is_taken(gym: Launcher, limit: str) -> None:
    """GOMEMLIMIT is the memory limit, GOMAXPROCS has no effect but a note."""
    origin = await gym.stage.origin()
    proxy = await gym.start(origin, env={"GOMEMLIMIT": limit, "GOMAXPROCS": "1"})
    client = await gym.stage.client(proxy)
    client.request("POST", "/", b"x" * 1000)
    request = await origin.request(1)
    assert await request.complete() == b"x" * 1000
    request.respond(200)
    assert (await client.response("POST")).status == 200
    assert "GOMAXPROCS" in proxy.log


async def test_sigterm_lets_a_pending_request_get_its_full_response(gym: Launcher) -> None:
    """Its response has not begun; new connections are refused meanwhile."""
    origin = await gym.stage.origin()
    proxy = await gym.start(origin)
    client = await gym.stage.client(proxy)
    client.request("POST", "/v1/chat/completions", b"judge")
    request = await origin.request(1)
    await request.complete()
    proxy.process.send_signal(signal.SIGTERM)
    await proxy.logged("shutdown requested; draining in-flight requests for up to 3s")
    with pytest.raises(OSError):  # noqa: PT011 - refused, in the words of the system
        await _connect_until_refused(proxy)
    body = bytes(range(256)) * 400
    request.head(200)
    await request.pour(body)
    response = await client.response("POST")
    assert (response.status, response.complete, response.closes) == (200, True, True)
    assert response.body == body
    assert await proxy.exited() == 0
    assert proxy.ready_file is not None
    assert not proxy.ready_file.exists()
    assert proxy.log.rstrip().endswith("stopped")


async def _connect_until_refused(proxy: Proxy) -> None:
    for _ in range(20):
        client = await Client.connect(proxy.port)
        await client.closed()
        await client.gone()


async def test_sigterm_lets_a_stream_of_events_end_by_itself(gym: Launcher) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin)
    client = await gym.stage.client(proxy)
    client.request("GET", "/events")
    request = await origin.request(1)
    request.head(200, [(b"content-type", b"text/event-stream")])
    request.data(b"data: 1\n\n")
    response = await client.head()
    assert await client.chunk() == b"data: 1\n\n"
    proxy.process.send_signal(signal.SIGTERM)
    await proxy.logged("shutdown requested")
    request.data(b"data: 2\n\n")
    assert await client.chunk() == b"data: 2\n\n"
    request.data(b"", end=True)
    await client.finish(response)
    assert response.complete
    assert await client.closed() == b""
    assert await proxy.exited() == 0


async def test_what_is_left_after_the_grace_is_cut_and_counted(gym: Launcher) -> None:
    """Exit code 0 all the same; the client sees no made-up answer as h2-ping-sidecar."""
    origin = await gym.stage.origin()
    proxy = await gym.start(origin, "-shutdown-grace", "500ms")
    client = await gym.stage.client(proxy)
    client.request("POST", "/", b"judge")
    request = await origin.request(1)
    await request.complete()
    started = client.time()
    assert await proxy.stop() == 0
    assert 0.4 < client.time() - started < 0.5 + QUICK
    line = next(line for line in proxy.log.splitlines() if "graceful shutdown incomplete:" in line)
    assert re.search(r"\b1\b", line), line
    assert proxy.log.rstrip().endswith("stopped")
    left = await client.closed()
    if gym.program == "h2-ping-sidecar":
        assert left == b""
    else:
        assert left == b"" or left.startswith(b"HTTP/1.1 503 ")
    conn = request.conn
    await conn.bell.until(lambda: conn.is_closed or request.reset_code == Code.CANCEL, "end of the stream")


async def test_a_second_signal_stops_at_once(gym: Launcher) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin, "-shutdown-grace", "15m")
    proxy.expect_code = None
    client = await gym.stage.client(proxy)
    client.request("POST", "/", b"judge")
    await origin.request(1)
    proxy.process.send_signal(signal.SIGTERM)
    await proxy.logged("draining in-flight requests for up to 15m")
    proxy.process.send_signal(signal.SIGTERM)
    started = client.time()
    await proxy.exited()
    assert client.time() - started < QUICK
    assert proxy.ready_file is not None
    assert not proxy.ready_file.exists()


async def test_it_starts_while_the_upstream_is_down_and_finds_it_later(gym: Launcher) -> None:
    origin = await gym.stage.origin(listen=False)
    proxy = await gym.start(origin)
    client = await gym.stage.client(proxy)
    response = await client.ask("POST", "/v1/chat/completions?key=s3cret", b"judge")
    assert (response.status, response.complete) == (502, True)
    assert (response.get(b"content-type") or b"").startswith(b"text/plain")
    assert response.body.startswith(f"{gym.program}: upstream error:".encode())
    line = await proxy.logged("upstream error: POST /v1/chat/completions: ")
    assert "s3cret" not in proxy.log
    assert "refused" in line
    await origin.start()
    client.request("GET", "/")
    (await origin.request(1)).respond(200, b"up")
    assert (await client.response()).body == b"up"


async def test_pings_go_on_while_draining(gym: Launcher) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin, "-ping-interval", "100ms", "-shutdown-grace", "10s")
    client = await gym.stage.client(proxy)
    client.request("POST", "/", b"judge")
    request = await origin.request(1)
    proxy.process.send_signal(signal.SIGTERM)
    await proxy.logged("shutdown requested")
    await request.conn.saw(Kind.PING, ack=False, since=len(request.conn.frames))
    request.respond(200, b"done")
    assert (await client.response("POST")).body == b"done"
    assert await proxy.exited() == 0

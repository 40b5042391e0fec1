"""The command as a process among others: several instances, probes, systemd, its parent."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.bell import PATIENCE
from tests.support.client import Client
from tests.support.proxy import Proxy, command_for, environment
from tests.support.stage import any_stage, certificates

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.client import Response
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage

__all__ = ["any_stage", "certificates"]

ORPHAN_LIMIT = 2.0
"""Seconds that a proxy may outlive its parent."""


async def admin_port(proxy: Proxy) -> int:
    line = await proxy.logged("probes and metrics on http://")
    match = re.search(r":(\d+)/", line)
    assert match is not None
    return int(match[1])


async def visit(port: int, path: str) -> Response:
    client = await Client.connect(port)
    response = await client.ask("GET", path)
    await client.gone()
    return response


async def answer_with_path(request: Request) -> None:
    request.respond(200, request.path)


async def test_several_instances_each_have_their_upstream_and_share_the_second_listener(
    any_stage: Stage,
) -> None:
    judge, policy = [await any_stage.origin(answer_with_path) for _ in range(2)]
    file = any_stage.folder / "h2ping.yaml"
    file.write_text(
        f"ca_file: {any_stage.certificates.ca}\nadmin_listen: 127.0.0.1:0\nmax_memory: 64MiB\ninstances:\n"
        f"- {{name: judge, upstream: '{judge.url}', listen: '127.0.0.1:0'}}\n"
        f"- {{name: policy, upstream: '{policy.url}/v1/', listen: '127.0.0.1:0', ping_interval: 30s}}\n"
    )
    proxy = Proxy("-config", str(file), "-shutdown-grace", "3s", engine=any_stage.engine)
    any_stage.proxies.append(proxy)
    await proxy.start()
    for name, origin, seen in (("judge", judge, b"/a"), ("policy", policy, b"/v1/a")):
        line = await proxy.logged(f"[{name}] listening on 127.0.0.1:")
        match = re.search(r"listening on 127\.0\.0\.1:(\d+) -> (\S+) ", line)
        assert match is not None
        assert match[2].startswith(origin.url)
        client = await Client.connect(int(match[1]))
        assert (await client.ask("GET", "/a")).body == seen
        await client.gone()
        assert len(origin.requests) == 1
    port = await admin_port(proxy)
    metrics = (await visit(port, "/metrics")).body.decode()
    for name in ("judge", "policy"):
        assert f'h2ping_requests_total{{instance="{name}",status="200"}} 1' in metrics
        assert f'h2ping_upstream_connections{{instance="{name}"}} 1' in metrics
    assert f"h2ping_memory_limit_bytes {64 << 20}" in metrics
    shown = json.loads((await visit(port, "/connections")).body)
    assert [each["name"] for each in shown["instances"]] == ["judge", "policy"]
    assert [len(each["connections"]) for each in shown["instances"]] == [1, 1]


async def test_probes_say_when_it_stops(any_stage: Stage) -> None:
    """Kubernetes takes a pod that is not ready out of its services and lets it live."""
    origin = await any_stage.origin()
    proxy = await any_stage.proxy(origin, "--admin-listen=127.0.0.1:0")
    port = await admin_port(proxy)
    client = await any_stage.client(proxy)
    client.request("POST", "/slow", b"x")
    request = await origin.request(1)
    paths = ("/startup", "/readiness", "/liveness")
    assert [(await visit(port, path)).status for path in paths] == [200, 200, 200]
    assert 'h2ping_requests_in_flight{instance=""} 1\n' in (await visit(port, "/metrics")).body.decode()
    proxy.process.send_signal(signal.SIGTERM)
    await proxy.logged("shutdown requested")
    assert [(await visit(port, path)).status for path in paths] == [200, 503, 200]
    request.respond(200, b"done")
    assert (await client.response("POST")).body == b"done"
    assert await proxy.exited() == 0


async def test_systemd_is_told_of_the_start_and_the_stop(any_stage: Stage, tmp_path: Path) -> None:
    """sd_notify(3): READY=1 after the bind, STOPPING=1 before the drain."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.setblocking(False)
        loop = asyncio.get_running_loop()
        proxy = await any_stage.proxy("https://localhost:1", env={"NOTIFY_SOCKET": str(path)})
        assert await asyncio.wait_for(loop.sock_recv(manager, 100), PATIENCE) == b"READY=1"
        client = await Client.connect(proxy.port)
        await client.gone()
        assert await proxy.stop() == 0
        assert await asyncio.wait_for(loop.sock_recv(manager, 100), PATIENCE) == b"STOPPING=1"


async def test_who_holds_a_taken_port_is_named(any_stage: Stage) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux tells")
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        proxy = await any_stage.proxy("https://localhost:1", f"--listen={address}", start=False)
        proxy.expect_code = 1
        assert await proxy.exited() == 1
    assert f"cannot bind {address}: " in proxy.lines[-1][1]
    assert f"(held by process {os.getpid()} (" in proxy.lines[-1][1]


PARENT = "import subprocess, sys; subprocess.Popen(sys.argv[1:]); sys.stdin.read()"


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "with a request in flight"])
async def test_a_proxy_ends_soon_after_its_parent_was_killed(any_stage: Stage, busy: bool) -> None:
    """The launcher killed with SIGKILL: no process is left behind, and the port is free."""
    origin = await any_stage.origin()
    command = [
        *command_for("h2ping"), "-exit-with-parent", "-listen", "127.0.0.1:0", "-upstream", origin.url,
        "-ca-file", str(any_stage.certificates.ca), "-shutdown-grace", "60s",
    ]  # fmt: skip
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, *command, env=environment(any_stage.engine),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert parent.stdout is not None
    line = (await asyncio.wait_for(parent.stdout.readline(), PATIENCE)).decode()
    match = re.search(r"listening on 127\.0\.0\.1:(\d+) -> ", line)
    assert match is not None, line
    port = int(match[1])
    client = await Client.connect(port)
    any_stage.clients.append(client)
    if busy:
        client.request("POST", "/slow", b"x")
        await origin.request(1)
    loop = asyncio.get_running_loop()
    parent.kill()
    killed = loop.time()
    # The output ends when the proxy, its last writer, does.
    rest = await asyncio.wait_for(parent.stdout.read(), PATIENCE)
    assert loop.time() - killed < ORPHAN_LIMIT
    await parent.wait()
    assert b"the parent process is gone" in rest
    assert rest.rstrip().endswith(b"stopped")
    with pytest.raises(ConnectionRefusedError):
        await Client.connect(port)

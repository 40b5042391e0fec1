"""Several processes behind one listen address."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from h2ping import config
from h2ping.workers import DELAY_MOST, SNAPSHOT_EVERY, Supervisor, Worker, added, how_it_ended, share_of
from tests.e2e.test_process import ORPHAN_LIMIT, admin_port, answer_with_path, visit
from tests.support.bell import pace
from tests.support.stage import any_stage, certificates

if TYPE_CHECKING:
    from tests.support.client import Response
    from tests.support.proxy import Proxy
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage

__all__ = ["any_stage", "certificates"]

linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads children from Linux's /proc")


def workers_of(proxy: Proxy) -> set[int]:
    children = Path(f"/proc/{proxy.pid}/task/{proxy.pid}/children").read_text(encoding="ascii")
    return {int(child) for child in children.split()}


async def gone(processes: set[int], within: float) -> None:
    """Return once all have ended: a pidfd becomes readable then."""
    loop = asyncio.get_running_loop()
    for process in processes:
        try:
            pidfd = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        ended = asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), within)
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)


async def counted(port: int) -> int:
    """Requests that /metrics has counted as answered 200."""
    text = (await visit(port, "/metrics")).body.decode()
    lines = [
        line for line in text.splitlines() if line.startswith("h2ping_requests_total{") and '"200"' in line
    ]
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines)


async def until_counted(port: int, wanted: int) -> None:
    """Workers tell their counts once every SNAPSHOT_EVERY: as often is worth a look."""
    while await counted(port) < wanted:
        await pace(SNAPSHOT_EVERY / 2)


async def start(stage: Stage, behaviour: Any = answer_with_path, *flags: str) -> Proxy:
    origin = await stage.origin(behaviour)
    return await stage.proxy(origin, "-workers", "2", "-admin-listen", "127.0.0.1:0", *flags)


async def think_for_ever(request: Request) -> None:
    await asyncio.Event().wait()


async def eight_held(stage: Stage, proxy: Proxy) -> list[asyncio.Task[Response]]:
    """Eight requests that have reached the origin."""
    asked = [asyncio.ensure_future(stage.ask(proxy, "POST", "/x", body=b"hello")) for _ in range(8)]
    await stage.origins[0].request(8)
    return asked


@linux
async def test_workers_serve_one_address_and_their_counts_are_added(any_stage: Stage) -> None:
    proxy = await start(any_stage)
    admin = await admin_port(proxy)
    assert len(workers_of(proxy)) == 2
    for _ in range(20):
        assert (await any_stage.ask(proxy, "GET", "/x")).status == 200
    await until_counted(admin, 20)
    state = json.loads((await visit(admin, "/connections")).body)
    assert state["memory"]["limit"] == 2**30
    assert (await visit(admin, "/readiness")).status == 200


@linux
async def test_a_worker_that_dies_is_replaced_and_its_loss_is_reported(any_stage: Stage) -> None:
    proxy = await start(any_stage)
    admin = await admin_port(proxy)
    assert (await any_stage.ask(proxy, "GET", "/x")).status == 200
    await until_counted(admin, 1)
    before = workers_of(proxy)
    for victim in before:
        os.kill(victim, signal.SIGKILL)
        await proxy.logged(f"(process {victim}) died: SIGKILL")
    again = [await proxy.logged(f"worker {number} runs again (process ") for number in (1, 2)]
    assert workers_of(proxy) == {int(line.partition("(process ")[2].rstrip(")")) for line in again}
    assert (await any_stage.ask(proxy, "GET", "/x")).status == 200
    assert await counted(admin) >= 1


@linux
async def test_a_worker_that_cannot_be_started_is_tried_again_and_readiness_tells(any_stage: Stage) -> None:
    """While the parent has no descriptor left for a pipe to a new worker."""
    proxy = await start(any_stage)
    reader, writer = await asyncio.open_connection("127.0.0.1", await admin_port(proxy))
    assert (await visit(await admin_port(proxy), "/readiness")).status == 200
    _, hard = limits = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (3, hard))
    for victim in workers_of(proxy):
        os.kill(victim, signal.SIGKILL)
    for number in (1, 2):
        await proxy.logged(f"worker {number} could not be started (")
    writer.write(b"GET /readiness HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"503"
    writer.close()
    await writer.wait_closed()
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, limits)
    for number in (1, 2):
        await proxy.logged(f"worker {number} runs again (process ")
    assert (await visit(await admin_port(proxy), "/readiness")).status == 200
    assert (await any_stage.ask(proxy, "GET", "/x")).status == 200


@linux
async def test_a_worker_that_dies_while_the_others_drain_is_not_replaced(any_stage: Stage) -> None:
    gate = asyncio.Event()

    async def hold(request: Request) -> None:
        await gate.wait()
        request.respond(200, b"late")

    proxy = await start(any_stage, hold)
    asked = await eight_held(any_stage, proxy)
    os.kill(proxy.pid, signal.SIGTERM)
    await proxy.logged("shutdown requested; draining")
    victim = min(workers_of(proxy))
    os.kill(victim, signal.SIGKILL)
    assert not (await proxy.logged(f"(process {victim}) died: SIGKILL")).endswith("replacing it")
    gate.set()
    await asyncio.gather(*asked, return_exceptions=True)
    assert await proxy.exited() == 0


@linux
async def test_a_second_signal_ends_all_workers_at_once(any_stage: Stage) -> None:
    proxy = await start(any_stage, think_for_ever)
    workers = workers_of(proxy)
    asked = await eight_held(any_stage, proxy)
    os.kill(proxy.pid, signal.SIGTERM)
    await proxy.logged("shutdown requested; draining")
    os.kill(proxy.pid, signal.SIGTERM)
    assert await proxy.exited() == 0
    await gone(workers, ORPHAN_LIMIT)
    await asyncio.gather(*asked, return_exceptions=True)


@linux
async def test_the_ready_file_holds_the_parent_while_workers_listen(any_stage: Stage, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    proxy = await start(any_stage, answer_with_path, "-ready-file", str(ready))
    admin = await admin_port(proxy)
    while (await visit(admin, "/readiness")).status != 200:
        await pace(0.02)
    assert int(ready.read_text(encoding="ascii")) == proxy.pid
    os.kill(proxy.pid, signal.SIGTERM)
    assert await proxy.exited() == 0
    assert not ready.exists()


@linux
async def test_a_signal_lets_the_requests_of_all_workers_finish(any_stage: Stage) -> None:
    gate = asyncio.Event()

    async def hold(request: Request) -> None:
        await gate.wait()
        request.respond(200, b"late")

    proxy = await start(any_stage, hold)
    workers = workers_of(proxy)
    asked = await eight_held(any_stage, proxy)
    os.kill(proxy.pid, signal.SIGTERM)
    await proxy.logged("shutdown requested; draining")
    gate.set()
    assert [(response.status, response.body) for response in await asyncio.gather(*asked)] == [
        (200, b"late")
    ] * 8
    assert await proxy.exited() == 0
    assert proxy.log.rstrip().endswith("stopped")
    await gone(workers, ORPHAN_LIMIT)


@linux
async def test_workers_end_with_their_parent_and_the_port_is_free(any_stage: Stage) -> None:
    proxy = await start(any_stage)
    workers, port = workers_of(proxy), proxy.port
    os.kill(proxy.pid, signal.SIGKILL)
    await proxy.exited()
    any_stage.proxies.remove(proxy)
    await gone(workers, ORPHAN_LIMIT)
    with socket.create_server(("127.0.0.1", port)):
        pass


@linux
async def test_the_memory_limit_holds_for_all_workers_together(any_stage: Stage) -> None:
    """Each has room for one of these bodies: whatever the kernel gives to whom, two are under way at the most."""
    limit, size = 2 << 20, 600_000
    gate, under_way = asyncio.Event(), asyncio.Semaphore(2)

    async def hold(request: Request) -> None:
        await request.complete()
        assert not under_way.locked(), "more than the limit has room for"
        async with under_way:
            await gate.wait()
            request.respond(200, b"%d" % len(request.body))

    proxy = await start(any_stage, hold, f"-max-memory={limit}", "-memory-pressure=keep")
    admin = await admin_port(proxy)
    asked = [asyncio.ensure_future(any_stage.ask(proxy, "POST", "/x", bytes(size))) for _ in range(6)]
    await any_stage.origins[0].request(1)
    while True:
        memory = json.loads((await visit(admin, "/connections")).body)["memory"]
        assert memory["limit"] == limit
        assert memory["used"] <= limit
        if memory["waiting"] + len(any_stage.origins[0].requests) == len(asked):
            break
        await pace(SNAPSHOT_EVERY / 2)
    gate.set()
    answers = await asyncio.gather(*asked)
    assert [(each.status, each.body) for each in answers] == [(200, b"%d" % size)] * len(asked)


@pytest.mark.pure
async def test_a_worker_that_dies_again_and_again_is_replaced_ever_more_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    supervisor = Supervisor([config.parse({"upstream": "https://h", "workers": "2"})], lambda: None)
    delays: list[float] = []

    class ShortLived(Worker):
        async def follow(self) -> int:
            return 1

        async def listen(self) -> bool:
            return False

    async def replaced(number: int, delay: float) -> bool:
        delays.append(delay)
        supervisor._workers[number] = worker
        if len(delays) == 8:
            supervisor._draining.set()
        return True

    process: Any = SimpleNamespace(pid=1, returncode=1)
    worker = ShortLived(1, process)
    monkeypatch.setattr(supervisor, "_replaced", replaced)
    await supervisor._keep(worker)
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, DELAY_MOST, DELAY_MOST]


@pytest.mark.pure
def test_a_worker_has_its_share_of_what_holds_for_all() -> None:
    settings = config.parse(
        {"upstream": "https://h", "max_memory": "1GiB", "max_conns": "64", "workers": "4"}
    )
    share = share_of(settings, 4)
    assert (share.max_memory, share.max_conns, share.max_queue) == (2**28, 16, settings.max_queue // 4)
    assert share.exit_with_parent


@pytest.mark.pure
def test_states_of_several_processes_are_added() -> None:
    one: dict[str, Any] = {
        "memory": {"used": 3},
        "instances": [{"name": "a", "requests": 2, "connections": [{"id": 1}]}],
    }
    both = added([one, one])
    assert both["memory"]["used"] == 6
    assert both["instances"] == [{"name": "a", "requests": 4, "connections": [{"id": 1}, {"id": 1}]}]
    assert added([]) == {}


@pytest.mark.pure
def test_an_end_is_told_in_words() -> None:
    assert (how_it_ended(-9), how_it_ended(3)) == ("SIGKILL", "exit code 3")

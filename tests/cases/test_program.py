"""The program among others: how it was started, what the environment says, who else uses its second listener."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.bell import PATIENCE
from tests.support.client import Client
from tests.support.proxy import command_for, environment, run
from tests.support.stage import ENGINE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage


async def _answer(request: Request) -> None:
    await request.complete()
    request.respond(200, b"ok")


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
async def test_it_runs_with_standard_streams_that_are_closed(
    any_stage: Stage, tmp_path: Path, closed: str
) -> None:
    """A launcher may close them (contract: "standard input closed"); a socket must not take their place."""
    origin = await any_stage.origin(_answer)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, socket.socket() as free:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command_for("h2ping"),
            "-listen", f"127.0.0.1:{port}", "-upstream", origin.url, "-ca-file", str(any_stage.certificates.ca),
            env=environment(ENGINE, {"NOTIFY_SOCKET": str(tmp_path / "notify")}), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            loop = asyncio.get_running_loop()
            assert await asyncio.wait_for(loop.sock_recv(manager, 100), PATIENCE) == b"READY=1"
            for _ in range(3):  # descriptors come and go
                client = await Client.connect(port)
                assert (await client.ask("POST", "/", b"x")).body == b"ok"
                await client.gone()
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_signal_that_is_for_others_ends_no_call(any_stage: Stage, workers: int) -> None:
    """Slurm's --signal=USR1@60 reaches every process of a step; SIGUSR1 and SIGUSR2 end a process by default."""
    origin = await any_stage.origin()
    proxy = await any_stage.proxy(origin, f"--workers={workers}")
    client = await any_stage.client(proxy)
    client.request("POST", "/", b"judge")
    request = await origin.request(1)
    proxy.process.send_signal(signal.SIGUSR1)
    proxy.process.send_signal(signal.SIGUSR2)
    await client.silent(ABSENCE)
    request.respond(200, b"ok")
    assert (await client.response("POST")).body == b"ok"


async def test_a_ready_file_of_a_process_that_is_gone_does_not_outlive_a_failed_start(tmp_path: Path) -> None:
    """The contract: it never appears when the bind failed. After SIGKILL of the one before it was there already."""
    ready = tmp_path / "ready"
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    with socket.create_server(("127.0.0.1", 0)) as held:
        flags = (
            f"--listen=127.0.0.1:{held.getsockname()[1]}",
            "--upstream=https://h",
            f"--ready-file={ready}",
        )
        ready.write_text(f"{gone.pid}\n")
        code, said = await run("h2ping", *flags, engine=ENGINE)
        assert (code, "cannot bind" in said, ready.exists()) == (1, True, False)
        ready.write_text(f"{os.getpid()}\n")
        await run("h2ping", *flags, engine=ENGINE)
        assert ready.exists(), "that of a process which runs is not ours to take"


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
async def test_a_proxy_in_the_environment_is_for_others(any_stage: Stage, name: str) -> None:
    """*Policy*: h2ping is the proxy; between it and its one upstream there is no other that could cut the silence."""
    origin = await any_stage.origin(_answer)
    proxy = await any_stage.proxy(origin, env={name: "http://127.0.0.1:9", "NO_PROXY": ""})
    assert (await any_stage.ask(proxy, "POST", "/", b"x")).body == b"ok"


FILES: dict[str, tuple[str, int, str]] = {
    "a port that is taken": (
        "instances:\n- {name: a, upstream: 'https://h', listen: '127.0.0.1:0'}\n"
        "- {name: b, upstream: 'https://h', listen: '127.0.0.1:PORT'}\n",
        1, "cannot bind 127.0.0.1:PORT",
    ),
    "one name twice": (
        "instances:\n- {name: a, upstream: 'https://h', listen: '127.0.0.1:0'}\n"
        "- {name: a, upstream: 'https://h', listen: '127.0.0.1:0'}\n",
        1, 'the name "a" is used twice',
    ),
    "one address twice": (
        "instances:\n- {name: a, upstream: 'https://h', listen: '127.0.0.1:7'}\n"
        "- {name: b, upstream: 'https://h', listen: '127.0.0.1:7'}\n",
        1, "the address 127.0.0.1:7 is used twice",
    ),
    "no instances": ("instances: []\n", 1, "instances must be a list"),
    "a setting of the process in an instance": (
        "instances:\n- {upstream: 'https://h', workers: 2}\n", 1, "is for the whole process",
    ),
    "a list": ("- a\n", 1, "must be a mapping"),
    "a key twice": ("upstream: https://h\nupstream: https://i\n", 2, ":2: the key"),
    "an unknown key": ("upstrean: https://h\n", 2, "did you mean upstream?"),
    "a merge key": ("<<: {upstream: https://h}\n", 2, "unknown key"),
    "a value that is a list": ("upstream: [https://h]\n", 2, "one word or number"),
    "a call of Python": ("upstream: !!python/object/apply:os.system ['id']\n", 2, "one word or number"),
    "two documents": ("upstream: https://h\n---\nupstream: https://h\n", 2, "not YAML"),
    "a number of base 60": ("upstream: https://h\nping_interval: 1:30\n", 2, "not a plain number of seconds"),
    "a number of base 16": ("upstream: https://h\nping_interval: 0x10\n", 2, "not a plain number of seconds"),
    "no end of time": ("upstream: https://h\nping_interval: .inf\n", 2, "not a plain number of seconds"),
    "a negative time": ("upstream: https://h\nping_interval: -1\n", 1, "must not be below 0"),
    "too long a time": ("upstream: https://h\nping_interval: 340\n", 1, "must be below 340s"),
    "a password": ("upstream: https://u:S3CR3T@h/?k=S3CR3T\n", 2, "must not hold a user or password"),
}  # fmt: skip


async def test_a_file_that_cannot_work_ends_it_with_one_line_and_no_ready_file(tmp_path: Path) -> None:
    """The contract's codes: 2 for what cannot be read, 1 for what cannot work; the place is named."""
    wrong: list[tuple[object, ...]] = []
    file, ready = tmp_path / "h2ping.yaml", tmp_path / "ready"
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        for name, (text, code, words) in FILES.items():
            file.write_text(text.replace("PORT", port), encoding="utf-8")
            got, said = await run("h2ping", "-config", str(file), "-ready-file", str(ready), engine=ENGINE)
            if got != code or words.replace("PORT", port) not in said or "S3CR3T" in said or ready.exists():
                wrong.append((name, got, said))
            if "Traceback" in said or len(said.strip().splitlines()) != 1:
                wrong.append((name, "more than one line", said))
    assert not wrong


VISITS: dict[str, tuple[bytes, bytes]] = {
    "a HEAD": (b"HEAD /liveness HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200"),
    "a query": (b"GET /readiness?verbose HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200"),
    "HTTP/1.0": (b"GET /startup HTTP/1.0\r\n\r\n", b"HTTP/1.1 200"),
    "a POST": (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 405"),
    "an unknown path": (b"GET /../metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 404"),
    "garbage": (b"\x16\x03\x01\x00\r\n\r\n", b"HTTP/1.1 400"),
    "a head without end": (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000, b"HTTP/1.1 431"),
}


async def test_the_second_listener_bears_any_visitor(any_stage: Stage) -> None:
    """RFC 9110 section 15.5; and requests that are proxied do not feel it."""
    origin = await any_stage.origin(_answer)
    proxy = await any_stage.proxy(origin)
    await proxy.page("/liveness")
    port = int((await proxy.logged("probes and metrics on http://")).rpartition(":")[2].rstrip("/"))
    wrong: list[tuple[object, ...]] = []
    idle = [await Client.connect(port) for _ in range(80)]  # more than it lets in
    for visitor in idle:
        visitor.rst()
        await visitor.gone()
    for name, (raw, opening) in VISITS.items():
        visitor = await Client.connect(port)
        visitor.send(raw)
        answer = await visitor.closed(within=SOON)
        await visitor.gone()
        if not answer.startswith(opening):
            wrong.append((name, answer[:60]))
    assert not wrong
    assert (await any_stage.ask(proxy, "POST", "/", b"x")).body == b"ok"
    assert json.loads(await proxy.page("/connections"))["instances"][0]["requests"] == 0

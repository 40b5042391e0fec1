"""The command as NeMo Gym's launcher starts it: one dash, value as the next argument, all eight flags."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.support.proxy import Proxy
from tests.support.stage import PROGRAMS, Stage, any_stage, certificates

if TYPE_CHECKING:
    from tests.support.scripted_origin import Origin

__all__ = ["any_stage", "certificates"]


class Launcher:
    """Starts one program for one test."""

    def __init__(self, stage: Stage, program: str) -> None:
        self.stage = stage
        self.program = program

    async def start(
        self,
        upstream: Origin | str,
        *flags: str,
        env: dict[str, str] | None = None,
        listen: str = "127.0.0.1:0",
        wait: bool = True,
    ) -> Proxy:
        """The process, listening. A flag given twice counts as given last, as in Go."""
        stage = self.stage
        url = upstream if isinstance(upstream, str) else upstream.url
        ready = stage.folder / f"{len(stage.proxies)}.ready"
        proxy = Proxy(
            *("-listen", listen, "-upstream", url, "-ping-interval", "1s", "-ping-timeout", "2s"),
            *("-shutdown-grace", "3s", "-retry-body-limit", "16777216", "-max-conn-age", "50m"),
            *("-ready-file", str(ready), *flags),
            program=self.program,
            engine=stage.engine,
            env={"SSL_CERT_FILE": str(stage.certificates.ca), **(env or {})},
        )
        proxy.ready_file = ready
        stage.proxies.append(proxy)
        await (proxy.start() if wait else proxy.spawn())
        return proxy


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    """Both console scripts."""
    return str(request.param)


@pytest.fixture
def gym(any_stage: Stage, program: str) -> Launcher:
    """The launcher of one program."""
    return Launcher(any_stage, program)


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port

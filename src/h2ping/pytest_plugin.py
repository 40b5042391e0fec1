"""Fixtures for tests of code that calls a slow HTTP/2 endpoint: the lab's origin, a relay with the path's
timers, and h2ping in front of them.

    @pytest.mark.h2ping(delay=5, idle_cut=2)
    def test_my_client_survives_silence(h2ping_proxy, h2ping_relay):
        answer = my_client(base_url=h2ping_proxy.openai_base_url)
        assert h2ping_relay.cuts == 0

| fixture        | what it is                                                                                   |
|----------------|----------------------------------------------------------------------------------------------|
| `h2ping_origin` | `h2ping.lab.origin.LabOrigin`: HTTP/2 over TLS, answers like an OpenAI endpoint after `delay` |
| `h2ping_relay`  | `h2ping.lab.relay.Relay` in front of it: cuts a connection silent for `idle_cut` seconds       |
| `h2ping_proxy`  | `h2ping.Running` in front of both, with a PING interval of `ping_interval` (default 1 s)       |

The mark's keywords are those of `h2ping.lab.script.Script`, `idle_cut` and `mode` of `Relay`, and any setting
of h2ping. Origin and relay run in a thread of their own, so the fixtures serve plain and async tests alike.

Loaded by pytest wherever h2ping is installed, so nothing of h2ping is imported before a fixture is asked for.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from h2ping.child import Running
    from h2ping.lab.origin import LabOrigin
    from h2ping.lab.relay import Relay

RELAY_KEYS = ("idle_cut", "mode", "max_age", "latency")
HANG = 20.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "h2ping(**knobs): knobs of the lab's origin, relay and of h2ping's fixtures"
    )


class _Thread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="h2ping-lab", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(HANG)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG)
        self._loop.close()


def _knobs(request: pytest.FixtureRequest) -> dict[str, Any]:
    mark = request.node.get_closest_marker("h2ping")
    return dict(mark.kwargs) if mark is not None else {}


def _script_keys() -> set[str]:
    import dataclasses

    from h2ping.lab.script import Script

    return {field.name for field in dataclasses.fields(Script)}


@pytest.fixture
def _h2ping_thread() -> Iterator[_Thread]:
    thread = _Thread()
    yield thread
    thread.close()


@pytest.fixture
def h2ping_origin(request: pytest.FixtureRequest, _h2ping_thread: _Thread) -> Iterator[LabOrigin]:
    """An HTTP/2 origin; `url`, `ca_file`, `executed`, `waiting`, `violations`, `script`."""
    from h2ping.lab.origin import LabOrigin
    from h2ping.lab.script import Script

    keys = _script_keys() - set(RELAY_KEYS)
    script = Script(**{name: value for name, value in _knobs(request).items() if name in keys})

    async def start() -> LabOrigin:
        return await LabOrigin(script).__aenter__()

    origin: LabOrigin = _h2ping_thread.run(start())
    yield origin
    _h2ping_thread.run(origin.stop())


@pytest.fixture
def h2ping_relay(
    request: pytest.FixtureRequest, _h2ping_thread: _Thread, h2ping_origin: LabOrigin
) -> Iterator[Relay]:
    """A relay in front of the origin; `url`, `cuts`, `connections`."""
    from h2ping.lab.relay import Relay

    knobs = {name: value for name, value in _knobs(request).items() if name in RELAY_KEYS}

    async def start() -> Relay:
        return await Relay(h2ping_origin.port, **knobs).__aenter__()

    relay: Relay = _h2ping_thread.run(start())
    yield relay
    _h2ping_thread.run(relay.stop())


@pytest.fixture
def h2ping_proxy(
    request: pytest.FixtureRequest, h2ping_origin: LabOrigin, h2ping_relay: Relay
) -> Iterator[Running]:
    """h2ping in front of the relay; `base_url`, `openai_base_url`, `log()`."""
    from h2ping.child import running

    settings: dict[str, Any] = {"ping_interval": "1s", "ping_timeout": "2s", "shutdown_grace": "2s"}
    others = {*RELAY_KEYS, *_script_keys()}
    settings |= {name: value for name, value in _knobs(request).items() if name not in others}
    with running(upstream=h2ping_relay.url, ca_file=h2ping_origin.ca_file, **settings) as proxy:
        yield proxy

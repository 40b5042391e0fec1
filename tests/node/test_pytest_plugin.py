"""The fixtures that h2ping gives to other projects' tests."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from h2ping.child import Running
    from h2ping.lab.origin import LabOrigin
    from h2ping.lab.relay import Relay


def ask(base_url: str) -> Any:
    body = json.dumps({"model": "m", "messages": []}).encode()
    request = urllib.request.Request(
        f"{base_url}/chat/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


@pytest.mark.h2ping(delay=1.5, idle_cut=0.8, ping_interval="300ms")
def test_a_silent_call_lives(h2ping_proxy: Running, h2ping_relay: Relay, h2ping_origin: LabOrigin) -> None:
    assert ask(h2ping_proxy.openai_base_url)["object"] == "chat.completion"
    assert (h2ping_relay.cuts, h2ping_origin.executed, h2ping_origin.violations) == (0, 1, [])


@pytest.mark.h2ping(delay=3.0, idle_cut=0.5, ping_interval="0s")
def test_a_silent_call_without_ping_dies(h2ping_proxy: Running, h2ping_relay: Relay) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(h2ping_proxy.openai_base_url)
    with caught.value as error:
        assert error.headers["h2ping-cause"] == "connection-lost"
    assert h2ping_relay.cuts == 1


async def test_fixtures_serve_async_tests(h2ping_proxy: Running) -> None:
    answer = await asyncio.to_thread(ask, h2ping_proxy.openai_base_url)
    assert answer["object"] == "chat.completion"


def test_importing_the_plugin_imports_nothing_of_the_proxy() -> None:
    import subprocess
    import sys

    script = "import sys, h2ping.pytest_plugin; print([m for m in sys.modules if m.startswith('h2ping')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['h2ping', 'h2ping.pytest_plugin']"

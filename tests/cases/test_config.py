"""Settings: no hidden limits, and typing errors are told before anything listens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import SOON
from tests.support.framing import Code
from tests.support.proxy import run
from tests.support.stage import ENGINE

if TYPE_CHECKING:
    from tests.support.stage import Stage


async def test_there_is_no_limit_on_the_first_byte_by_default(any_stage: Stage) -> None:
    """Case no-hidden-first-byte-timeout: 6 s here, minutes in unit tests with a clock of their own."""
    origin = await any_stage.origin()
    proxy = await any_stage.proxy(origin)
    client = await any_stage.client(proxy)
    client.request("POST", "/", b"judge")
    request = await origin.request(1)
    await client.silent(6.0)
    request.respond(200, b"at last")
    assert (await client.response("POST")).body == b"at last"
    code, text = await run("h2ping", "config", f"--upstream={origin.url}", engine=any_stage.engine)
    assert code == 0, text
    line = next(line for line in text.splitlines() if re.search("first[-_]byte[-_]timeout", line))
    assert re.search(r"\b(0s?|none|off)\b", line), line


async def test_a_limit_on_the_first_byte_is_named_when_it_fires(stage: Stage) -> None:
    """Case no-hidden-first-byte-timeout: 504 (RFC 9110 section 15.6.5)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--first-byte-timeout=300ms")
    client = await stage.client(proxy)
    client.request("POST", "/", b"judge")
    request = await origin.request(1)
    response = await client.response("POST", within=SOON)
    assert (response.status, response.cause) == (504, "first-byte-timeout")
    assert b"first-byte-timeout" in response.body
    assert await request.was_reset() == Code.CANCEL


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h", 1),
        ("h:443", 1),
        ("https://", 2),
        ("https://u:p4ssw0rd@h", 2),
        ("https://h/base?x=1", 2),
        ("https://h/#f", 2),
    ],
)
async def test_an_upstream_that_cannot_work_is_refused_at_start(url: str, expected: int) -> None:
    """Case upstream-url-validation (RFC 9113 section 8.3.1). 1 where the scheme is another: docs/behaviour.md."""
    code, text = await run("h2ping", f"--upstream={url}", "--listen=127.0.0.1:0", engine=ENGINE)
    assert code == expected, text
    assert "upstream" in text
    assert "listening" not in text
    assert "p4ssw0rd" not in text
    assert len(text.strip().splitlines()) == 1, text


async def test_an_ipv6_upstream_with_a_path_works(any_stage: Stage) -> None:
    """Case upstream-url-validation: the one that is right; the joined path has no double slash."""
    origin = await any_stage.origin(address="::1")
    proxy = await any_stage.proxy(f"https://[::1]:{origin.port}/base/")
    client = await any_stage.client(proxy)
    client.request("GET", "/v1/models")
    request = await origin.request(1)
    assert request.path == b"/base/v1/models"
    assert request.get(b":authority") == b"[::1]:%d" % origin.port
    request.respond(200)
    assert (await client.response()).status == 200

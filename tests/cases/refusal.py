"""What refusing a request means: 400, Connection: close, the socket ends, and nothing reached the origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cases.timing import ABSENCE, SOON
from tests.support.client import with_key

if TYPE_CHECKING:
    from tests.support.stage import Stage


async def assert_refused(stage: Stage, raw: bytes, status: int = 400) -> None:
    """`raw` is the whole request."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(with_key(raw))
    response = await client.response(within=SOON)
    assert (response.status, response.closes, response.complete) == (status, True, True)
    assert await client.closed() == b""
    await origin.no_request(0, ABSENCE)

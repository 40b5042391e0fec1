"""What a crash leaves behind."""

from __future__ import annotations

import resource
import signal
import sys
from typing import TYPE_CHECKING

from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stage import Stage

CANARY = "C0RE-CANARY"


async def test_a_proxy_that_aborts_leaves_no_core_and_no_key(stage: Stage, tmp_path: Path) -> None:
    """It holds keys and prompts: the soft limit of core files is 0, whatever the one who starts it allows."""
    origin = await stage.origin()
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    folder = tmp_path / "cwd"
    folder.mkdir()
    flags = [f"--upstream={origin.url}", "--listen=127.0.0.1:0", f"--ca-file={stage.certificates.ca}"]
    proxy = Proxy(*flags, engine=stage.engine, folder=folder)
    proxy.expect_code = None
    stage.proxies.append(proxy)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        await proxy.start()
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    if sys.platform == "linux":
        limit = resource.prlimit(proxy.pid, resource.RLIMIT_CORE)
        assert limit == (0, hard)
    client = await stage.client(proxy)
    client.request("POST", "/", CANARY.encode(), [("Authorization", f"Bearer {CANARY}")])
    await (await origin.request(1)).complete()
    assert await proxy.stop(signal.SIGABRT) == -signal.SIGABRT
    assert CANARY not in proxy.log
    assert list(folder.iterdir()) == []

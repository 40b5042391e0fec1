"""All cells at once against two proxies: one that runs on, one that is told to stop when its cells are ready.

Each cell has an instance (a listener and an upstream) of its own in one of the two processes. Those of the
second reach their moment, and so do those whose upstream process is to be stopped; then it gets SIGTERM, then their
faults strike.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults import breaks, outages
from tests.faults.frozen import FrozenCell, Upstream
from tests.faults.result import Moment, Result
from tests.support.proxy import Proxy
from tests.support.scripted_origin import Manners, Origin, context_for

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tests.faults.cell import Cell, ScriptedCell
    from tests.support.stage import Certificates

AT_ONCE = 24
"""Cells that are played at the same time, beside those that have to be struck together."""
DNS = "DNS failure"
ONLY_LINUX = ("connect hangs", DNS)


class Matrix:
    """One run over one engine."""

    def __init__(
        self, certificates: Certificates, folder: Path, engine: str, only: Collection[str] = ()
    ) -> None:
        """`only`: these faults, else all."""
        self.only = only
        self.certificates = certificates
        self.folder = folder
        self.engine = engine
        self.names = folder / "names"
        self.names.mkdir()
        self.resolver = _build_resolver(folder)
        self.wrong: list[str] = []
        """What is wrong beside the cells."""

    async def run(self) -> list[Result]:
        """Play every cell."""
        cells = [cell for cell in self._cells() if not self.only or cell.result.fault in self.only]
        running = [cell for cell in cells if cell.moment is not Moment.DRAINING]
        draining = [cell for cell in cells if cell.moment is Moment.DRAINING]
        proxies = await asyncio.gather(self._start(running, "running"), self._start(draining, "draining"))
        try:
            gate = asyncio.Semaphore(AT_ONCE)
            together = [cell for cell in cells if cell in draining or isinstance(cell, FrozenCell)]
            apart = [cell for cell in cells if cell not in together]
            await asyncio.gather(_play_together(together, proxies[1]), *(_play(cell, gate) for cell in apart))
        finally:
            ends = await asyncio.gather(*(proxy.finish() for proxy in proxies), return_exceptions=True)
            ends += await asyncio.gather(*(cell.close() for cell in cells), return_exceptions=True)
        self.wrong += [str(end) or repr(end) for end in ends if end is not None]
        return [cell.result for cell in cells]

    def _cells(self) -> Iterator[Cell]:
        kinds: dict[str, type[ScriptedCell]] = {**outages.KINDS, **breaks.KINDS}
        left_out = not_played()
        for row, (fault, kind) in enumerate(kinds.items()):
            if fault in left_out:
                continue
            for moment in Moment:
                cell = kind(fault, moment, f"c{row}-{moment.name}")
                cell.make_origin = self._origin  # type: ignore[method-assign]
                if isinstance(cell, outages.Outage):
                    cell.certificates = self.certificates
                if isinstance(cell, outages.NoName):
                    cell.names = self.names
                yield cell
        stops = {
            "stopped for 2 s, continued": (2.0, {"ping_interval": "300ms", "ping_timeout": "12s"}),
            "stopped for 6 s, continued": (6.0, {"ping_interval": "300ms", "ping_timeout": "1500ms"}),
        }
        for row, (fault, (seconds, settings)) in enumerate(stops.items()):
            upstream = Upstream(self.certificates.good)
            for moment in Moment:
                frozen = FrozenCell(fault, moment, f"s{row}-{moment.name}", upstream, seconds)
                frozen.settings = settings
                if moment is Moment.BEFORE_SETTINGS and seconds > 3:
                    frozen.settings = {"connect_timeout": "3s"}
                yield frozen

    def _origin(self) -> Origin:
        return Origin(context_for(self.certificates.good, ["h2"]), manners=Manners())

    async def _start(self, cells: list[Cell], name: str) -> Proxy:
        instances = []
        for cell in cells:
            url = await cell.open()
            instances.append({"name": cell.name, "listen": "127.0.0.1:0", "upstream": url, **cell.settings})
            if ".flaky.test" in url:
                instances[-1]["server_name"] = "localhost"
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps({"instances": instances}))
        env = {"FLAKY_NAMES": str(self.names)}
        if self.resolver:
            before = os.environ.get("LD_PRELOAD", "")  # a sanitizer's runtime, which has to come first
            env["LD_PRELOAD"] = f"{before} {self.resolver}".strip()
        proxy = Proxy(
            f"--config={file}", f"--ca-file={self.certificates.ca}", "--shutdown-grace=30s", "--log-format=json",
            "--log-level=debug", "--admin-listen=127.0.0.1:0", engine=self.engine, env=env,
        )  # fmt: skip
        await proxy.start()
        state = json.loads(await proxy.page("/connections"))
        ports = {each["name"]: int(each["listen"].rpartition(":")[2]) for each in state["instances"]}
        for cell in cells:
            cell.port, cell.proxy = ports[cell.name], proxy
        return proxy


async def _play(cell: Cell, gate: asyncio.Semaphore) -> None:
    async with gate:
        await cell.prepare()
        await cell.play()


async def _play_together(cells: list[Cell], draining: Proxy) -> None:
    await asyncio.gather(*(cell.prepare() for cell in cells))
    draining.process.send_signal(signal.SIGTERM)
    await draining.logged("shutdown requested")
    await asyncio.gather(*(cell.play() for cell in cells))


def _find_compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def not_played() -> set[str]:
    """Faults that this machine cannot play."""
    if sys.platform != "linux":
        return set(ONLY_LINUX)
    return set() if _find_compiler() else {DNS}


def _build_resolver(folder: Path) -> Path | None:
    """The library that makes names fail; None where it cannot be built or preloaded."""
    compiler = _find_compiler()
    if sys.platform != "linux" or compiler is None:
        return None
    library = folder / "resolver.so"
    source = Path(__file__).parent / "resolver.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library

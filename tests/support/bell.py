"""Waiting for something to become true, without polling: whoever changes the world rings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PATIENCE = 15.0
"""How long a test waits for what must come. Only names a hang: this long is never the expected time."""


class Bell:
    """Rung after each change; `until` looks again at each ring."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def until(
        self,
        look: Callable[[], T | None],
        what: str,
        within: float = PATIENCE,
        told: Callable[[], object] = str,
    ) -> T:
        """The first result of `look` that is not None or False. `told` says what was seen instead."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while True:
            found = look()
            if found is not None and found is not False:
                return found
            left = end - loop.time()
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait_for(future, max(left, 0))
            except (asyncio.TimeoutError, TimeoutError):
                self._waiting.discard(future)
                raise AssertionError(f"no {what} within {within:g} s; {told()}") from None

    async def never(self, look: Callable[[], object], what: str, within: float) -> None:
        """Measured absence: fails as soon as `look` finds something, returns after `within` seconds."""
        try:
            found = await self.until(look, what, within)
        except AssertionError:
            return
        raise AssertionError(f"{what}: {found!r}")


async def pace(seconds: float) -> None:
    """The gap between two actions of a slow peer: part of the situation, never a wait for a result."""
    await asyncio.sleep(seconds)

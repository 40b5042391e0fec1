"""Waiting in the lab: for a condition to hold, never for time to pass."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_PATIENCE = 10.0
"""Only there to name a hang: far above anything that the lab waits for."""


class Watch:
    """Futures that settle when a predicate over somebody's books turns true."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def changed(self) -> None:
        """The books changed: settle what now holds. Costs nothing while nobody waits."""
        if not self._waiting:
            return
        still = []
        for predicate, future in self._waiting:
            if future.done():
                continue
            if predicate():
                future.set_result(None)
            else:
                still.append((predicate, future))
        self._waiting = still

    async def until(self, predicate: Callable[[], bool], patience: float = DEFAULT_PATIENCE) -> None:
        """Return as soon as `predicate` holds; `asyncio.TimeoutError` after `patience` seconds."""
        if predicate():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((predicate, future))
        await asyncio.wait_for(future, patience)

"""A clock that stands still until a test moves it."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeTimer:
    """A call that is due later."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """`advance` fires what is due, in order, each at its own time."""

    def __init__(self) -> None:
        self.time = 1000.0
        self._order = itertools.count()
        self._due: list[tuple[float, int, FakeTimer]] = []

    def now(self) -> float:
        return self.time

    def call_later(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(self._due, (self.time + delay, next(self._order), timer))
        return timer

    @property
    def pending(self) -> int:
        """Timers that were neither fired nor cancelled."""
        return sum(timer.callback is not None for _, _, timer in self._due)

    def advance(self, seconds: float) -> None:
        end = self.time + seconds
        while self._due and self._due[0][0] <= end:
            due, _, timer = heapq.heappop(self._due)
            self.time = max(self.time, due)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self.time = end

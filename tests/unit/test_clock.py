"""Deadlines of one length behind one timer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fake_clock import FakeClock

from h2ping.clock import LATE, ONE_TURN, Deadlines


def test_deadlines_expire_in_the_order_they_were_set() -> None:
    clock = FakeClock()
    gone: list[Any] = []
    deadlines = Deadlines(clock, 5.0, lambda key: gone.append((key, clock.now())))
    start = clock.now()
    deadlines.add("a")
    clock.advance(2)
    deadlines.add("b")
    clock.advance(10)
    assert gone == [("a", start + 5), ("b", start + 7)]


def test_a_deadline_that_is_set_again_counts_from_then() -> None:
    clock = FakeClock()
    gone: list[Any] = []
    deadlines = Deadlines(clock, 5.0, gone.append)
    deadlines.add("a")
    clock.advance(4)
    deadlines.add("a")
    clock.advance(4)
    assert gone == []
    clock.advance(1)
    assert gone == ["a"]


def test_after_a_standstill_the_sockets_are_looked_at_before_a_deadline_is_held_to_have_passed() -> None:
    """SIGSTOP, or a machine that was frozen: what a deadline waits for may be there, unread."""
    clock = FakeClock()
    gone: list[Any] = []
    deadlines = Deadlines(clock, 5.0, gone.append)
    deadlines.add("a")
    deadlines.add("b")
    clock.time += 5.0 + 2 * LATE  # nothing fires meanwhile
    clock.advance(0)
    assert gone == []
    deadlines.discard("a")
    clock.advance(ONE_TURN)
    assert gone == ["b"]


def test_a_discarded_deadline_never_expires() -> None:
    clock = FakeClock()
    gone: list[Any] = []
    deadlines = Deadlines(clock, 5.0, gone.append)
    deadlines.add("a")
    deadlines.discard("a")
    clock.advance(100)
    assert gone == []
    assert clock.pending == 0


def test_a_thousand_deadlines_need_one_timer() -> None:
    clock = FakeClock()
    gone: list[Any] = []
    deadlines = Deadlines(clock, 5.0, gone.append)
    for key in range(1000):
        deadlines.add(key)
    assert clock.pending == 1
    clock.advance(5)
    assert len(gone) == 1000


def test_a_timeout_of_zero_sets_no_deadline() -> None:
    clock = FakeClock()
    gone: list[Any] = []
    deadlines = Deadlines(clock, 0, gone.append)
    deadlines.add("a")
    assert (len(deadlines), clock.pending) == (0, 0)


def test_closed_deadlines_leave_no_timer() -> None:
    clock = FakeClock()
    gone: list[Any] = []
    deadlines = Deadlines(clock, 5.0, gone.append)
    deadlines.add("a")
    deadlines.close()
    clock.advance(10)
    assert gone == []
    assert clock.pending == 0


def test_a_callback_that_raises_costs_no_other_its_deadline() -> None:
    clock = FakeClock()
    gone: list[str] = []

    def expire(key: str) -> None:
        gone.append(key)
        if key == "a":
            raise RuntimeError

    deadlines = Deadlines(clock, 5.0, expire)
    deadlines.add("a")
    deadlines.add("b")
    with pytest.raises(RuntimeError):
        clock.advance(5)
    clock.advance(1)
    assert gone == ["a", "b"]


def test_a_deadline_that_a_callback_sets_makes_no_other_late() -> None:
    """An idle connection that was retired set a deadline anew: those due a moment later waited as long again."""
    clock = FakeClock()
    gone: list[tuple[object, float]] = []

    def expire(key: object) -> None:
        gone.append((key, clock.now() - begun))
        if key == "a":
            deadlines.add("again")

    deadlines = Deadlines(clock, 5.0, expire)
    begun = clock.now()
    deadlines.add("a")
    clock.advance(1)
    deadlines.add("b")
    clock.advance(20)
    assert gone == [("a", 5.0), ("b", 6.0), ("again", 10.0)]

"""Who may keep a body in memory, each test one of the rules in h2ping.memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tests.support.fake_clock import FakeClock

from h2ping.memory import SPARE_BYTES, TRIM_DELAY, Memory

if TYPE_CHECKING:
    from h2ping.errors import DownstreamError


class FakeBody:
    def __init__(self, arena: FakeArena, size: int) -> None:
        self.arena, self.size = arena, size

    def grow(self) -> bool:
        if self.arena.used >= self.arena.limit:
            return False
        self.arena.used += 1
        self.size += 1
        return True

    def release(self) -> None:
        self.arena.used -= self.size
        self.size = 0


class FakeArena:
    """Counts as the arena does, one byte a byte; a body that is not kept needs a window of 2."""

    WINDOW = 2

    def __init__(self, limit: int) -> None:
        self.limit, self.used, self.resident = limit, 0, 0
        self.trims: list[int] = []

    def needs(self, size: int | None, kept: bool) -> int:
        return size if kept and size is not None else self.WINDOW

    def could_fit(self, size: int | None, kept: bool) -> bool:
        return self.needs(size, kept) <= self.limit

    def open(self, size: int | None, kept: bool) -> FakeBody | None:
        need = self.needs(size, kept)
        if self.used + need > self.limit:
            return None
        self.used += need
        return FakeBody(self, need)

    def trim(self, most: int) -> int:
        given = min(most, self.resident - self.used)
        self.trims.append(given)
        self.resident -= given
        return given


class FakeExchange:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.body: FakeBody | None = None
        self.error: DownstreamError | None = None
        self.gave_up = False

    def on_memory(self, body: Any) -> None:
        self.body = body

    def on_no_memory(self, error: DownstreamError) -> None:
        self.error = error

    def give_up_copy(self) -> None:
        self.gave_up = True
        self.release()

    def release(self) -> None:
        assert self.body is not None
        self.body.release()
        self.body = None


def make(limit: int, *, keep: bool = False) -> tuple[Any, FakeArena, FakeClock]:
    clock, arena = FakeClock(), FakeArena(limit)
    return Memory(cast("Any", arena), clock, 60.0, keep=keep), arena, clock


def admit(memory: Memory, size: int | None, *, kept: bool = True) -> FakeExchange:
    exchange = FakeExchange(memory)
    memory.admit(exchange, size, kept=kept)
    return exchange


def test_a_body_is_read_once_its_whole_room_is_reserved() -> None:
    memory, arena, _ = make(10)
    first, second = admit(memory, 6), admit(memory, 6)
    assert first.body is not None
    assert second.body is None
    assert (arena.used, memory.waiting) == (6, 1)


def test_copies_of_bodies_that_were_sent_whole_go_first_the_oldest_before_others() -> None:
    memory, arena, _ = make(10)
    old, young = admit(memory, 5), admit(memory, 5)
    memory.on_sent_whole(old)
    memory.on_sent_whole(young)
    new = admit(memory, 4)
    assert (old.gave_up, young.gave_up, new.body is not None) == (True, False, True)
    assert memory.given_up == 1
    assert arena.used <= arena.limit


def test_a_body_sent_whole_makes_room_for_one_that_waits() -> None:
    memory, _, _ = make(10)
    old, waiting = admit(memory, 10), admit(memory, 10)
    assert waiting.body is None
    memory.on_sent_whole(old)
    assert old.gave_up
    assert waiting.body is not None


def test_keep_prefers_waiting_over_giving_up_copies() -> None:
    memory, _, _ = make(10, keep=True)
    old, waiting = admit(memory, 10), admit(memory, 10)
    memory.on_sent_whole(old)
    assert not old.gave_up
    assert waiting.body is None
    old.release()
    memory.on_released(old)
    assert waiting.body is not None


def test_waiting_is_first_in_first_out_and_nobody_overtakes() -> None:
    memory, _, _ = make(10)
    first = admit(memory, 8)
    large, small = admit(memory, 8), admit(memory, 1)
    assert (large.body, small.body) == (None, None)
    first.release()
    memory.on_released(first)
    assert large.body is not None
    assert small.body is not None


def test_a_body_larger_than_the_limit_streams_through_a_window() -> None:
    memory, arena, _ = make(10)
    exchange = admit(memory, 1000)
    assert exchange.body is not None
    assert arena.used == FakeArena.WINDOW


def test_waiting_that_cannot_help_is_refused_at_once() -> None:
    memory, _, _ = make(1)
    exchange = admit(memory, 1000)
    assert exchange.error is not None
    assert exchange.error.cause.status == 503


def test_waiting_ends_with_503_after_the_queue_timeout() -> None:
    memory, _, clock = make(10)
    admit(memory, 10)
    waiting = admit(memory, 10)
    clock.advance(60)
    assert waiting.error is not None
    assert waiting.error.cause.token == "memory-timeout"
    assert memory.waiting == 0


def test_one_who_left_no_longer_waits() -> None:
    memory, _, clock = make(10)
    admit(memory, 10)
    gone = admit(memory, 10)
    memory.on_released(gone)
    clock.advance(60)
    assert gone.error is None
    assert memory.waiting == 0


def test_a_growing_body_takes_the_room_of_given_up_copies() -> None:
    memory, _, _ = make(10)
    old = admit(memory, 8)
    growing = admit(memory, None)
    assert growing.body is not None
    assert not memory.make_room(growing.body)
    memory.on_sent_whole(old)
    assert memory.make_room(growing.body)
    assert old.gave_up


def test_pages_go_back_in_slices_once_the_burst_is_over() -> None:
    memory, arena, clock = make(10)
    arena.resident = 64 << 20
    exchange = admit(memory, 10)
    exchange.release()
    memory.on_released(exchange)
    clock.advance(TRIM_DELAY / 2)
    memory.on_released(exchange)
    clock.advance(TRIM_DELAY / 2)
    assert arena.trims == []
    clock.advance(TRIM_DELAY)
    assert len(arena.trims) > 1
    assert arena.resident <= SPARE_BYTES + (16 << 20)
    memory.close()
    assert clock.pending == 0

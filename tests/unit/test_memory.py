"""Who may keep a body in memory, each test one of the rules in h2ping.memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tests.support.fake_clock import FakeClock

from h2ping._fast.arena_py import Arena
from h2ping.memory import (
    PACK_LEAST_BYTES,
    PATIENCE,
    SAY_AFTER,
    SET_ASIDE_BYTES,
    TRIM_DELAY,
    TRIM_EVERY,
    TRIM_SLICE_BYTES,
    Memory,
    share_of_bodies,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2ping.errors import DownstreamError


class FakeBody:
    def __init__(self, arena: FakeArena, size: int) -> None:
        self.arena, self.size, self.received = arena, size, size

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
        self.spare = self.least_spare = 0
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

    def charge(self, size: int) -> None:
        self.used += size

    def refund(self, size: int) -> None:
        self.used -= size

    def trim(self, most: int) -> int:
        given = min(most, self.spare)
        self.trims.append(given)
        self.spare -= given
        self.least_spare -= given
        self.resident -= given
        return given

    def watch(self) -> None:
        self.least_spare = self.spare


class FakeExchange:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.body: FakeBody | None = None
        self.error: DownstreamError | None = None
        self.gave_up = False
        self.packed_to: int | None = None

    def on_memory(self, body: Any) -> None:
        self.body = body

    def on_no_memory(self, error: DownstreamError) -> None:
        self.error = error

    def give_up_copy(self) -> None:
        self.gave_up = True
        self.release()

    def on_packed(self, pieces: list[bytes]) -> None:
        assert self.body is not None
        self.packed_to = sum(map(len, pieces))
        self.memory.arena.used += self.packed_to - self.body.size
        self.body.size = self.packed_to

    def release(self) -> None:
        assert self.body is not None
        self.body.release()
        self.body = None


class FakePacker:
    """Packs when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[FakeBody, Callable[[list[bytes] | None], None]]] = []
        self.most_at_once = 0
        self.closed = False

    def pack(self, body: FakeBody, on_packed: Callable[[list[bytes] | None], None]) -> None:
        self.jobs.append((body, on_packed))
        self.most_at_once = max(self.most_at_once, len(self.jobs))

    def finish(self, *, worth_it: bool = True) -> FakeBody:
        """The oldest job comes out, a quarter as large."""
        body, on_packed = self.jobs.pop(0)
        on_packed([bytes(body.size // 4)] if worth_it else None)
        return body

    def close(self) -> None:
        self.closed = True


class FakeReader:
    """A response whose client does not read."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.held = 0
        self.cut_off = False

    def hold(self, size: int) -> None:
        self.held += size
        self.memory.hold(self, size)

    def read(self) -> None:
        held, self.held = self.held, 0
        self.memory.let_go(self, held)

    def on_unread_too_long(self) -> None:
        self.cut_off = True
        self.read()


def make(limit: int, *, keep: bool = False, bodies: int | None = None) -> tuple[Any, FakeArena, FakeClock]:
    clock, arena = FakeClock(), FakeArena(limit if bodies is None else bodies)
    return Memory(cast("Any", arena), clock, 60.0, keep=keep, limit=limit), arena, clock


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


def release(memory: Any, exchange: FakeExchange) -> None:
    exchange.release()
    memory.on_released(exchange)


def test_pages_go_back_in_slices_once_nobody_needed_them_for_a_while() -> None:
    memory, arena, clock = make(10)
    arena.spare = arena.resident = 64 << 20
    release(memory, admit(memory, 10))
    clock.advance(TRIM_DELAY - TRIM_EVERY)
    assert arena.trims == []
    clock.advance(TRIM_DELAY)
    assert arena.trims[:4] == [TRIM_SLICE_BYTES] * 4
    assert arena.spare == 0
    clock.advance(TRIM_DELAY)
    assert clock.pending == 0


def test_pages_that_were_needed_meanwhile_stay() -> None:
    memory, arena, clock = make(10)
    arena.spare = arena.resident = TRIM_SLICE_BYTES
    release(memory, admit(memory, 10))
    arena.least_spare = 0  # all of them were taken for a moment
    clock.advance(TRIM_DELAY)
    assert sum(arena.trims) == 0
    memory.close()
    assert clock.pending == 0


UNIT = PACK_LEAST_BYTES
"""Smallest body that is compressed."""


def make_packing(units: int, *, keep: bool = False) -> tuple[Any, FakeArena, FakePacker, FakeClock]:
    """A limit of so many units beside the window that is set aside."""
    clock, arena, packer = FakeClock(), FakeArena(SET_ASIDE_BYTES + units * UNIT), FakePacker()
    memory = Memory(cast("Any", arena), clock, 60.0, keep=keep, packer=cast("Any", packer))
    return memory, arena, packer, clock


def sent(memory: Memory, units: int) -> FakeExchange:
    exchange = admit(memory, units * UNIT)
    assert exchange.body is not None
    memory.on_sent_whole(exchange, cast("Any", exchange.body))
    return exchange


def test_nothing_is_compressed_while_less_than_half_of_the_limit_is_in_use() -> None:
    memory, _, packer, _ = make_packing(100)
    sent(memory, 20)
    assert packer.jobs == []
    oldest = sent(memory, 40)
    assert len(packer.jobs) == 1
    assert oldest.packed_to is None


def test_copies_are_compressed_one_at_a_time_the_oldest_first() -> None:
    memory, _, packer, _ = make_packing(16)
    exchanges = [sent(memory, 5), sent(memory, 5), sent(memory, 5)]
    bodies = [exchange.body for exchange in exchanges]
    assert [packer.finish(), packer.finish()] == bodies[:2]
    assert packer.most_at_once == 1
    assert memory.packed == 2
    assert [exchange.packed_to is not None for exchange in exchanges] == [True, True, False]


def test_copies_below_64_kib_are_not_compressed() -> None:
    memory, _, packer, _ = make_packing(2)
    small = admit(memory, UNIT - 1)
    memory.on_sent_whole(small, cast("Any", small.body))
    sent(memory, 1)
    assert [body.size for body, _ in packer.jobs] == [UNIT]


def test_no_copy_is_given_up_for_a_new_request_while_one_is_being_compressed_or_can_be() -> None:
    memory, arena, packer, clock = make_packing(8)
    old = sent(memory, 8)
    new = admit(memory, 5 * UNIT)
    assert (old.gave_up, new.body) == (False, None)
    packer.finish()
    assert (old.gave_up, new.body is not None) == (False, True)
    another = admit(memory, 2 * UNIT)
    clock.advance(PATIENCE)
    assert old.gave_up, "compressed is all it can be"
    assert another.body is not None
    assert arena.used <= arena.limit


def test_no_copy_is_given_up_while_much_is_about_to_be_sent_whole_and_uploads_move() -> None:
    memory, _, packer, clock = make_packing(16)
    old = sent(memory, 8)
    packer.finish()
    coming = admit(memory, 14 * UNIT)
    new = admit(memory, 1 * UNIT)
    assert (old.gave_up, new.body) == (False, None)
    memory.on_sent_whole(coming, cast("Any", coming.body))
    packer.finish()
    assert (old.gave_up, new.body is not None) == (False, True)
    clock.advance(60)


def test_uploads_that_stand_still_do_not_keep_others_waiting() -> None:
    memory, _, packer, clock = make_packing(16)
    old = sent(memory, 8)
    packer.finish()
    admit(memory, 14 * UNIT)
    new = admit(memory, 2 * UNIT)
    assert new.body is None
    clock.advance(PATIENCE)
    assert (old.gave_up, new.body is not None) == (True, True)
    memory.on_sent_whole(new, cast("Any", new.body))
    another = admit(memory, 1 * UNIT)
    assert another.body is None, "what can be compressed is"
    packer.finish(worth_it=False)
    assert (new.gave_up, another.body is not None) == (True, True)


def test_a_copy_that_is_not_worth_compressing_is_given_up_like_any_other() -> None:
    memory, _, packer, _ = make_packing(8)
    old = sent(memory, 8)
    new = admit(memory, 5 * UNIT)
    packer.finish(worth_it=False)
    assert (old.gave_up, old.packed_to, memory.packed) == (True, None, 0)
    assert new.body is not None


def test_a_request_that_ends_while_its_copy_is_compressed_is_left_out() -> None:
    memory, _, packer, _ = make_packing(8)
    old = sent(memory, 8)
    old.release()
    memory.on_released(old)
    next_one = sent(memory, 6)
    packer.finish()
    assert old.packed_to is None
    packer.finish()
    assert next_one.packed_to is not None


def test_compressing_goes_on_where_no_copy_may_be_given_up() -> None:
    """--memory-pressure keep."""
    memory, _, packer, _ = make_packing(8, keep=True)
    old = sent(memory, 8)
    new = admit(memory, 5 * UNIT)
    packer.finish()
    assert (old.gave_up, new.body is not None) == (False, True)


def test_a_growing_body_does_not_wait_for_the_packer() -> None:
    memory, _, packer, _ = make_packing(8)
    growing = admit(memory, None)
    old = admit(memory, 8 * UNIT - FakeArena.WINDOW)
    memory.on_sent_whole(old, cast("Any", old.body))
    assert len(packer.jobs) == 1
    assert memory.make_room(cast("Any", growing.body))
    assert old.gave_up
    packer.finish()
    assert old.packed_to is None


def test_a_copy_that_is_about_to_be_sent_again_is_not_given_up() -> None:
    memory, _, _ = make(10)
    old = admit(memory, 10)
    memory.on_sent_whole(old)
    memory.on_again(old)
    new = admit(memory, 5)
    assert (old.gave_up, new.body) == (False, None)
    memory.on_sent_whole(old)
    assert (old.gave_up, new.body is not None) == (True, True)


def full(*, keep: bool = True) -> tuple[Any, Arena, FakeClock]:
    """A real arena without room, but for the window that is set aside."""
    clock, arena = FakeClock(), Arena(SET_ASIDE_BYTES + (1 << 20))
    memory = Memory(cast("Any", arena), clock, 60.0, keep=keep, packer=cast("Any", FakePacker()))
    arena.charge(1 << 20)
    return memory, arena, clock


def again(memory: Any) -> FakeExchange:
    exchange = FakeExchange(memory)
    memory.admit_again(exchange, 8 * UNIT)
    return exchange


def test_a_resend_from_a_compressed_copy_goes_before_new_requests() -> None:
    memory, arena, _ = full()
    new = admit(memory, 1)
    first, second = again(memory), again(memory)
    assert first.body is not None
    assert (second.body, new.body) == (None, None)
    arena.refund(SET_ASIDE_BYTES)
    memory.on_again(FakeExchange(memory))
    assert second.body is not None
    assert new.body is None


def test_resends_whose_copies_fill_the_memory_go_one_by_one_through_the_window_set_aside() -> None:
    memory, arena, _ = full()
    exchanges = [again(memory) for _ in range(3)]
    for number, exchange in enumerate(exchanges):
        assert exchange.body is not None
        assert all(later.body is None for later in exchanges[number + 1 :])
        assert arena.used == arena.limit
        exchange.release()
        memory.on_sent_whole(exchange)
    assert arena.used == arena.limit
    assert memory.waiting == 0


def test_a_resend_that_waits_too_long_for_memory_is_answered_503() -> None:
    memory, _, clock = full()
    first, second = again(memory), again(memory)
    clock.advance(60)
    assert (first.error, memory.waiting) == (None, 0)
    assert second.error is not None
    assert second.error.cause.token == "memory-timeout"


def test_the_packer_ends_with_the_memory() -> None:
    memory, _, packer, _ = make_packing(8)
    memory.close()
    assert packer.closed


def test_an_eighth_of_the_limit_is_for_responses() -> None:
    assert share_of_bodies(256 << 20) == 224 << 20
    assert share_of_bodies(0) == 0


def test_responses_that_nobody_reads_have_half_of_the_limit_and_the_longest_unread_goes_first() -> None:
    memory, arena, _ = make(80, bodies=70)
    readers = [FakeReader(memory) for _ in range(9)]
    for reader in readers:
        reader.hold(5)
    assert [reader.cut_off for reader in readers] == [True] + 8 * [False]
    assert (memory.unread, arena.used, memory.cut_off) == (40, 40, 1)
    assert admit(memory, 30).body is not None


def test_a_client_that_has_read_all_is_behind_the_others_when_it_stops_again() -> None:
    memory, _, _ = make(80, bodies=70)
    slow, stalled = FakeReader(memory), FakeReader(memory)
    slow.hold(20)
    stalled.hold(20)
    slow.read()
    slow.hold(20)
    slow.hold(1)
    assert (slow.cut_off, stalled.cut_off) == (False, True)


def test_copies_go_before_clients_that_do_not_read() -> None:
    memory, arena, _ = make(80, bodies=70)
    upload = admit(memory, 70)
    memory.on_sent_whole(upload)
    reader = FakeReader(memory)
    reader.hold(10)
    assert not upload.gave_up
    reader.hold(1)
    assert (upload.gave_up, reader.cut_off) == (True, False)
    assert arena.used == 11


def test_beside_copies_that_are_to_be_kept_responses_have_their_share_alone() -> None:
    memory, arena, _ = make(80, keep=True, bodies=70)
    upload = admit(memory, 70)
    memory.on_sent_whole(upload)
    first, second = FakeReader(memory), FakeReader(memory)
    first.hold(5)
    second.hold(5)
    assert not first.cut_off
    second.hold(1)
    assert (first.cut_off, second.cut_off, upload.gave_up) == (True, False, False)
    assert arena.used == 76


def test_a_reader_that_alone_is_too_much_is_cut_off_itself() -> None:
    memory, arena, _ = make(80, bodies=70)
    reader = FakeReader(memory)
    reader.hold(1000)
    assert (reader.cut_off, arena.used, memory.unread) == (True, 0, 0)


def test_a_body_that_waits_gets_the_room_of_a_response_that_was_read() -> None:
    memory, _, _ = make(80, bodies=70)
    reader = FakeReader(memory)
    reader.hold(40)
    waiting = admit(memory, 60)
    assert waiting.body is None
    reader.read()
    assert waiting.body is not None


def test_without_a_limit_nobody_is_cut_off() -> None:
    memory, arena, _ = make(0)
    reader = FakeReader(memory)
    reader.hold(1 << 40)
    assert (reader.cut_off, arena.used) == (False, 1 << 40)


def test_windows_grow_while_clients_read_what_they_get() -> None:
    memory, _, _ = make(80, bodies=70)
    reader = FakeReader(memory)
    reader.hold(5)
    assert memory.may_widen
    reader.hold(1)
    assert not memory.may_widen


def test_one_line_says_how_many_clients_were_cut_off(monkeypatch: Any) -> None:
    said: list[int] = []
    monkeypatch.setattr("h2ping.log.readers_cut_off", said.append)
    monkeypatch.setattr("h2ping.log.copies_given_up", lambda count: said.append(-count))
    memory, _, clock = make(80, bodies=70)
    for _ in range(10):
        FakeReader(memory).hold(10)
    clock.advance(SAY_AFTER)
    assert said == [6]

"""Who gets the next stream, each test one of the rules in h2ping.upstream.pool."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_clock import FakeClock

from h2ping import config, errors, units
from h2ping.errors import H2pingError, Processed, UpstreamError
from h2ping.upstream import pool as pool_module
from h2ping.upstream.pool import DIAL_ATTEMPTS, KEPT_IDLE, Pool, Slots, first_window
from h2ping.upstream.reach import Reach
from h2ping.upstream.wire import WireLimits


class FakeConnection:
    """What the pool sees of a connection."""

    def __init__(self, ident: int, pool: Pool, max_streams: int) -> None:
        self.ident, self.pool = ident, pool
        self.wire = SimpleNamespace(max_streams=max_streams)
        self.born = 0.0
        self.load = self.requests = 0
        self.load_slot = -1
        self.lost = self.retired = False
        self.failure: object = None
        self.late = False
        self.address: object = None
        self.polite = True
        """Answers close_notify."""

    @property
    def is_open(self) -> bool:
        return not (self.retired or self.lost or self.late)

    def use(self) -> None:
        self.load += 1
        self.requests += 1
        self.pool.on_load(self)  # type: ignore[arg-type]

    def done(self, streams: int = 1) -> None:
        self.load -= streams
        self.pool.on_load(self)  # type: ignore[arg-type]
        if self.retired and not self.load:
            self.abort()

    def retire(self) -> None:
        if not self.retired:
            self.retired = True
            self.pool.on_load(self)  # type: ignore[arg-type]
            if not self.load and self.polite:
                self.abort()

    def abort(self, error: object = None) -> None:
        if not self.lost:
            self.lost = True
            self.pool.on_lost(self)  # type: ignore[arg-type]


class FakeWaiter:
    def __init__(self, world: World) -> None:
        self.world = world
        self.connection: FakeConnection | None = None
        self.error: H2pingError | None = None

    def on_connection(self, connection: FakeConnection) -> None:
        self.connection = connection
        self.world.served.append(self)
        connection.use()

    def on_no_connection(self, error: H2pingError) -> None:
        self.error = error


class World:
    """A pool whose dials the test answers."""

    def __init__(self, **settings: str) -> None:
        self.clock = FakeClock()
        self.lost_to: list[str] = []
        self.settings = config.parse({"upstream": "https://judge.example", "max_conn_age": "0", **settings})
        self.bursts_over = 0
        self.pool = Pool(
            self.settings, None, self.clock, lambda _: None, self.lost_to.append, self._on_burst_over,  # type: ignore[arg-type]
        )  # fmt: skip
        self.reach: Any = None
        self.dials: list[asyncio.Future[FakeConnection]] = []
        self.served: list[FakeWaiter] = []
        self.ident = 0

    def _on_burst_over(self) -> None:
        self.bursts_over += 1

    async def dial(self, *_: Any) -> FakeConnection:
        future: asyncio.Future[FakeConnection] = asyncio.get_running_loop().create_future()
        self.dials.append(future)
        return await future

    async def connect(self, max_streams: int = 128) -> FakeConnection:
        self.ident += 1
        connection = FakeConnection(self.ident, self.pool, max_streams)
        self.dials.pop(0).set_result(connection)
        await self.turn()
        return connection

    async def fail(self, error: UpstreamError) -> None:
        self.dials.pop(0).set_exception(error)
        await self.turn()

    async def ask(self, count: int = 1) -> list[FakeWaiter]:
        waiters = [FakeWaiter(self) for _ in range(count)]
        for waiter in waiters:
            self.pool.acquire(waiter)  # type: ignore[arg-type]
        await self.turn()
        return waiters

    @staticmethod
    async def turn() -> None:
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(**settings: str) -> World:
        reach = Reach()
        monkeypatch.setattr(pool_module, "Reach", lambda: reach)
        made = World(**settings)
        made.reach = reach
        monkeypatch.setattr(pool_module, "dial", made.dial)
        return made

    monkeypatch.setattr("h2ping.upstream.pool.random.uniform", lambda low, high: high)
    return make


REFUSED = UpstreamError(errors.CONNECT_FAILED, "connection refused", processed=Processed.NEVER_SENT)
WRONG_CERTIFICATE = UpstreamError(errors.CERTIFICATE, "unknown authority", processed=Processed.NEVER_SENT)


async def test_a_cold_burst_of_300_dials_19_connections(world: Any) -> None:
    w = world()
    await w.ask(300)
    assert len(w.dials) == 19
    for _ in range(19):
        await w.connect()
    assert len(w.served) == 300
    assert max(connection.load for connection in w.pool.connections) == 16


async def test_the_first_who_waits_is_served_first(world: Any) -> None:
    w = world()
    waiters = await w.ask(10)
    await w.connect()
    assert w.served == waiters


async def test_the_least_loaded_connection_takes_the_next_stream(world: Any) -> None:
    w = world(streams_per_conn="4")
    await w.ask(8)
    one, two = await w.connect(), await w.connect()
    one.done(1)
    two.done(3)
    await w.ask(2)
    assert (one.load, two.load) == (3, 3)


@pytest.mark.parametrize("how", ["goaway", "lost"])
@pytest.mark.parametrize("age", [0.0, pool_module.SHORT_LIFE])
async def test_who_ends_a_connection_at_once_is_tried_after_the_others(
    world: Any, how: str, age: float
) -> None:
    """A host that is on its way out says GOAWAY or FIN to each that comes."""
    w = world()
    await w.ask()
    connection = await w.connect()
    connection.address, connection.born = ("192.0.2.1", 443), w.clock.now()
    w.clock.advance(age)
    if how == "goaway":
        w.pool.on_goaway(connection, 0, 0, b"")
    else:
        connection.failure = REFUSED
        connection.abort()
    assert list(w.reach._failed) == ([] if age else [connection.address])


async def test_a_permanent_fault_is_final_once_all_addresses_have_it(world: Any) -> None:
    w = world()
    reach = w.reach
    reach._found = ["one", "two"]
    (waiter,) = await w.ask()
    reach.on_failed("one")
    await w.fail(WRONG_CERTIFICATE)
    assert waiter.error is None
    w.clock.advance(pool_module.DIAL_DELAY)
    await w.turn()
    reach.on_failed("two")
    await w.fail(WRONG_CERTIFICATE)
    assert waiter.error is WRONG_CERTIFICATE


async def test_a_peer_that_takes_none_just_now_sets_off_no_storm_of_dials(world: Any) -> None:
    w = world()
    await w.ask(10)
    (busy,) = [await w.connect()]
    busy.wire.max_streams = 0
    w.pool.on_load(busy)
    await w.ask(32)
    assert len(w.dials) == 2


async def test_a_connection_that_takes_no_stream_hides_no_other(world: Any) -> None:
    """SETTINGS_MAX_CONCURRENT_STREAMS of 0 on the idle one (RFC 9113 section 6.5.2)."""
    w = world(streams_per_conn="4")
    waiters = await w.ask(8)
    one, two = await w.connect(), await w.connect()
    for waiter in waiters:
        if waiter.connection is two:
            two.done()
    one.done(3)
    two.wire.max_streams = 0
    w.pool.on_load(two)
    await w.ask(7)
    assert (one.load, two.load, len(w.dials)) == (8, 0, 0), (
        "past its share too: a dial would bring one more of those"
    )
    two.wire.max_streams = 128
    w.pool.on_load(two)
    await w.ask(4)
    assert (one.load, two.load) == (8, 4)


async def test_a_connection_at_the_limit_of_its_peer_hides_no_other(world: Any) -> None:
    w = world(max_conns="2", streams_per_conn="1")
    await w.ask(2)
    one, two = await w.connect(128), await w.connect(1)
    await w.ask(8)
    assert (one.load, two.load) == (9, 1)
    two.done()
    await w.ask(1)
    assert (one.load, two.load) == (9, 1)


async def test_a_connection_is_filled_past_its_share_once_no_more_may_be_opened(world: Any) -> None:
    w = world(max_conns="2", streams_per_conn="4")
    await w.ask(300)
    assert len(w.dials) == 2
    one, two = await w.connect(128), await w.connect(128)
    assert (one.load, two.load) == (128, 128)
    assert w.pool.waiting == 300 - 256


async def test_a_peer_that_allows_two_streams_gets_two_and_more_connections_are_opened(world: Any) -> None:
    w = world()
    await w.ask(5)
    assert len(w.dials) == 1
    assert (await w.connect(2)).load == 2
    assert len(w.dials) == 2
    await w.connect(2)
    await w.connect(2)
    assert w.pool.waiting == 0


async def test_a_limit_that_shrinks_is_obeyed(world: Any) -> None:
    w = world(max_conns="1")
    await w.ask(4)
    connection = await w.connect(128)
    connection.wire.max_streams = 3
    w.pool.on_load(connection)
    await w.ask(1)
    assert (connection.load, w.pool.waiting) == (4, 1)
    connection.done(2)
    assert (connection.load, w.pool.waiting) == (3, 0)


async def test_a_full_queue_refuses_at_once_with_503(world: Any) -> None:
    w = world(max_conns="1", max_queue="5")
    await w.ask(1)
    await w.connect(1)
    waiters = await w.ask(19)
    refused = [waiter for waiter in waiters if waiter.error is not None]
    assert len(refused) == 14
    assert {waiter.error.cause.token for waiter in refused} == {"queue-full"}


async def test_one_who_waits_too_long_gets_503(world: Any) -> None:
    w = world(max_conns="1", queue_timeout="30s")
    await w.ask(1)
    await w.connect(1)
    (waiter,) = await w.ask(1)
    w.clock.advance(30)
    assert waiter.error.cause.token == "queue-timeout"
    assert w.pool.waiting == 0


async def test_one_who_left_the_queue_is_not_served(world: Any) -> None:
    w = world()
    gone, stays = await w.ask(2)
    w.pool.cancel(gone)
    await w.connect()
    assert w.served == [stays]


async def test_a_permanent_fault_fails_everybody_who_waits_and_those_who_come_next(world: Any) -> None:
    w = world()
    waiters = await w.ask(40)
    dials = len(w.dials)
    for _ in range(dials):
        assert w.pool.waiting == 40, "another of the dials may come to something"
        await w.fail(WRONG_CERTIFICATE)
    assert all(waiter.error is WRONG_CERTIFICATE for waiter in waiters)
    (late,) = await w.ask(1)
    assert late.error is WRONG_CERTIFICATE
    assert w.pool.dialled == dials


async def test_after_a_failed_dial_the_next_waits_and_is_one_only(world: Any) -> None:
    w = world()
    await w.ask(128)
    assert len(w.dials) == 8
    for _ in range(8):
        await w.fail(REFUSED)
    # Dials that were under way together fail as one: a burst is not worse off than a single request.
    assert w.pool.waiting == 128
    assert w.dials == []
    w.clock.advance(pool_module.DIAL_DELAY)
    await w.turn()
    assert len(w.dials) == 1
    await w.connect()
    assert len(w.served) == 16


@pytest.mark.parametrize("error", [REFUSED, WRONG_CERTIFICATE], ids=["transient", "permanent"])
async def test_those_who_wait_go_on_waiting_while_a_connection_is_open(
    world: Any, error: UpstreamError
) -> None:
    """One bad host of several behind a name must not fail requests that an open connection will take."""
    w = world(queue_timeout="60s")
    await w.ask()
    connection = await w.connect(max_streams=1)
    (waiter,) = await w.ask()
    for _ in range(DIAL_ATTEMPTS + 2):
        await w.fail(error)
        (late,) = await w.ask()
        assert waiter.error is late.error is None
        w.pool.cancel(late)
        w.clock.advance(1)
        await w.turn()
    connection.done()
    assert waiter.connection is connection


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "GOAWAY"])
async def test_a_connection_that_takes_no_stream_when_it_comes_is_a_failed_dial(
    world: Any, lost: bool
) -> None:
    """RFC 9113 section 6.8: an endpoint that is going away says so at once; it is not dialled in a tight loop."""
    w = world()
    (waiter,) = await w.ask()
    for number in range(DIAL_ATTEMPTS):
        assert waiter.error is None
        useless = FakeConnection(number, w.pool, 128)
        useless.lost, useless.retired = lost, not lost
        w.dials.pop(0).set_result(useless)
        await w.turn()
        assert w.dials == [], "at once again"
        w.clock.advance(1)
        await w.turn()
    assert waiter.error.cause is (errors.CONNECTION_LOST if lost else errors.GOAWAY_REFUSED)
    assert waiter.error.processed is Processed.NEVER_SENT


async def test_no_further_dial_while_an_idle_connection_takes_no_stream(world: Any) -> None:
    """RFC 9113 section 6.5.2: a limit of 0 lasts a short time; 64 connections would not shorten it."""
    w = world()
    (waiter,) = await w.ask()
    connection = await w.connect(max_streams=0)
    assert w.dials == []
    await w.ask(20)
    assert w.dials == []
    connection.wire.max_streams = 30
    w.pool.on_load(connection)
    await w.turn()
    assert waiter.connection is connection
    assert len(w.served) == 16


async def test_the_replacement_is_dialled_before_the_request_count_is_reached(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    w = world(max_requests_per_conn="100")
    await w.ask()
    first = await w.connect()
    for _ in range(96):
        await w.ask()
        first.done()
        assert w.dials == []
    await w.ask()
    assert len(w.dials) == 1, "two before the last"
    second = await w.connect()
    (waiter,) = await w.ask()
    assert waiter.connection is second
    assert not first.retired


async def test_the_last_connection_is_kept_while_nobody_can_be_reached(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An age is a precaution; giving up what works for what cannot be had is not."""
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    w = world(max_conn_age="100s")
    await w.ask()
    first = await w.connect()
    w.clock.advance(98)
    await w.turn()
    for _ in range(5):
        await w.fail(REFUSED)
        w.clock.advance(2)
        await w.turn()
        assert not first.retired
    await w.connect()
    w.clock.advance(2)
    await w.turn()
    assert first.retired


async def test_an_upstream_that_stays_down_fails_a_request_after_a_few_dials(world: Any) -> None:
    w = world()
    (waiter,) = await w.ask(1)
    for _ in range(DIAL_ATTEMPTS):
        assert waiter.error is None
        await w.turn()
        await w.fail(REFUSED)
        w.clock.advance(1)
        await w.turn()
    assert waiter.error is REFUSED


async def test_while_the_upstream_cannot_be_reached_open_connections_fill_up(world: Any) -> None:
    w = world(streams_per_conn="2")
    await w.ask(2)
    connection = await w.connect(128)
    (waiter,) = await w.ask(1)
    assert waiter.connection is None
    await w.fail(REFUSED)
    assert waiter.connection is connection


async def test_a_connection_whose_ping_reply_is_late_takes_no_new_stream(world: Any) -> None:
    w = world()
    await w.ask(1)
    late = await w.connect()
    late.late = True
    w.pool.on_load(late)
    (waiter,) = await w.ask(1)
    assert waiter.connection is None
    late.late = False
    w.pool.on_load(late)
    assert waiter.connection is late


async def test_a_connection_that_fails_its_streams_is_not_given_to_them_again(world: Any) -> None:
    w = world()
    await w.ask(1)
    broken = await w.connect()
    broken.late = True
    (waiter,) = await w.ask(1)
    assert waiter.connection is None
    assert len(w.dials) == 1


async def test_age_retires_a_connection_and_its_replacement_is_dialled_first(world: Any) -> None:
    w = world(max_conn_age="100s")
    await w.ask(1)
    old = await w.connect()
    w.clock.advance(98.5)
    await w.turn()
    assert len(w.dials) == 1
    assert not old.retired
    new = await w.connect()
    w.clock.advance(1.5)
    assert old.retired
    assert not old.lost
    (waiter,) = await w.ask(1)
    assert waiter.connection is new
    old.done()
    assert old not in w.pool.connections


async def test_the_request_count_retires_a_connection(world: Any) -> None:
    w = world(max_requests_per_conn="3")
    await w.ask(3)
    connection = await w.connect()
    assert connection.retired
    assert not connection.lost


async def test_an_idle_connection_is_closed_before_the_path_drops_it(world: Any) -> None:
    w = world()
    await w.ask(1)
    connection = await w.connect()
    connection.done()
    w.clock.advance(89)
    assert not connection.lost
    w.clock.advance(1)
    assert connection.lost


async def test_closing_ends_idle_connections_and_dials(world: Any) -> None:
    w = world()
    await w.ask(17)
    connection = await w.connect()
    connection.done(16)
    await w.pool.close()
    assert connection.lost
    assert w.clock.pending == 0


@pytest.mark.parametrize(
    ("max_memory", "window"),
    [(0, 131_072), (1 << 30, 131_072), (300 << 20, 76_800), (256 << 20, 65_536), (1 << 20, 65_535)],
)
def test_responses_that_nobody_reads_fit_the_memory_limit(max_memory: int, window: int) -> None:
    assert first_window(max_memory) == window


async def test_slots_find_the_least_loaded_without_looking_at_all() -> None:
    slots: Any = Slots()
    connections = [FakeConnection(ident, None, 1) for ident in range(5)]  # type: ignore[arg-type]
    for load, connection in enumerate(connections):
        slots.place(connection, load + 3)
    assert slots.least() is connections[0]
    slots.place(connections[0], 9)
    assert slots.least() is connections[1]
    slots.shrink()
    assert slots.least() is connections[1]
    slots.place(connections[4], 0)
    assert slots.least() is connections[4]
    for connection in connections:
        slots.place(connection, -1)
    assert slots.least() is None


@pytest.mark.parametrize(
    ("interval", "idle_limit", "closes"),
    [
        ("60s", "340s", 90.0),
        ("20s", "340s", 30.0),
        ("1s", "340s", 2.0),
        ("0s", "340s", 90.0),
        ("20s", "40s", 20.0),
    ],
)
def test_an_idle_connection_is_closed_before_the_path_forgets_it(
    interval: str, idle_limit: str, closes: float
) -> None:
    """A short PING interval says that the path forgets soon, and nothing PINGs an idle connection."""
    settings = config.parse({"upstream": "https://a", "ping_interval": interval, "idle_limit": idle_limit})
    assert pool_module.idle_close(settings) == closes


async def idle_connections(w: World, count: int) -> list[FakeConnection]:
    """So many connections, each of which has served one burst."""
    await w.ask(16 * count)
    connections = [await w.connect() for _ in range(count)]
    for connection in connections:
        connection.done(connection.load)
    return connections


async def test_what_a_burst_leaves_is_closed_soon_and_its_memory_given_back(world: Any) -> None:
    w = world()
    connections = await idle_connections(w, KEPT_IDLE + 1)
    w.clock.advance(pool_module.SURPLUS_CLOSE)
    assert all(connection.lost for connection in connections)
    assert w.bursts_over == 0
    w.clock.advance(pool_module.TIDY_DELAY)
    assert w.bursts_over == 1
    await w.pool.close()
    assert w.clock.pending == 0


async def test_requests_that_go_on_after_a_burst_do_not_put_it_off(world: Any) -> None:
    """Always one in flight, each on another connection: the pool takes the oldest of equally loaded ones."""
    w = world()
    connections = await idle_connections(w, KEPT_IDLE + 3)
    (before,) = await w.ask()
    for _ in range(9):
        (waiter,) = await w.ask()
        before.connection.done()
        before = waiter
        w.clock.advance(pool_module.SURPLUS_CLOSE / 10)
    w.clock.advance(pool_module.SURPLUS_CLOSE / 10)
    assert [connection for connection in connections if not connection.lost] == [before.connection]
    await w.ask()
    new = await w.connect()
    w.clock.advance(pool_module.TIDY_DELAY)
    assert w.bursts_over == 1
    before.connection.done()
    assert before.connection.lost
    w.clock.advance(pool_module.TIDY_DELAY)
    assert w.bursts_over == 2
    w.clock.advance(pool_module.SURPLUS_CLOSE + pool_module.TIDY_DELAY)
    assert (new.lost, w.bursts_over) == (False, 2)


async def test_connections_of_which_enough_are_needed_again_and_again_stay(world: Any) -> None:
    w = world()
    connections = await idle_connections(w, KEPT_IDLE + 2)
    for _ in range(4):
        waiters = await w.ask(2)
        w.clock.advance(pool_module.SURPLUS_CLOSE / 2)
        for waiter in waiters:
            waiter.connection.done()
        w.clock.advance(pool_module.SURPLUS_CLOSE / 2)
    assert not any(connection.lost for connection in connections)


async def test_a_burst_that_ends_little_by_little_is_over_as_soon(world: Any) -> None:
    """The five seconds begin when more than half of the connections are idle."""
    w = world()
    await w.ask(16 * 4 * KEPT_IDLE)
    connections = [await w.connect() for _ in range(4 * KEPT_IDLE)]
    for connection in connections:
        connection.done(connection.load)
        w.clock.advance(0.01)
    w.clock.advance(pool_module.SURPLUS_CLOSE)
    assert all(connection.lost for connection in connections)


async def test_connections_of_which_half_are_busy_stay_and_are_looked_at_again(world: Any) -> None:
    """With one stream each, what comes and goes leaves many of them idle at any moment."""
    w = world(streams_per_conn="1")
    waiters = await w.ask(2 * KEPT_IDLE + 2)
    for _ in waiters:
        await w.connect()
    for waiter in waiters[: KEPT_IDLE + 1]:
        waiter.connection.done()
    w.clock.advance(3 * pool_module.SURPLUS_CLOSE)
    assert not any(waiter.connection.lost for waiter in waiters)
    waiters[-1].connection.done()
    w.clock.advance(2 * pool_module.SURPLUS_CLOSE)
    assert sum(waiter.connection.lost for waiter in waiters) == KEPT_IDLE + 2


async def test_what_is_idle_stays_while_nobody_can_be_reached(world: Any) -> None:
    w = world()
    connections = await idle_connections(w, KEPT_IDLE + 1)
    await w.ask(16 * len(connections) + 1)
    await w.fail(REFUSED)
    for connection in connections:
        connection.done(connection.load)
    assert all(connection.load == 0 for connection in connections)
    w.clock.advance(2 * pool_module.SURPLUS_CLOSE)
    assert not any(connection.lost for connection in connections)


async def test_a_burst_whose_connections_the_peer_ends_is_tidied_too(world: Any) -> None:
    w = world()
    for connection in await idle_connections(w, KEPT_IDLE + 1):
        connection.abort()
    w.clock.advance(pool_module.TIDY_DELAY)
    assert w.bursts_over == 1
    await w.ask()
    (await w.connect()).abort()
    w.clock.advance(pool_module.TIDY_DELAY)
    assert w.bursts_over == 1, "one connection is no burst"
    await w.pool.close()
    assert w.clock.pending == 0


async def test_a_pool_that_closes_tidies_no_more(world: Any) -> None:
    w = world()
    for connection in await idle_connections(w, KEPT_IDLE + 1):
        connection.abort()
    await w.pool.close()
    assert w.clock.pending == 0


async def test_the_end_does_not_wait_for_an_upstream_that_does_not_say_goodbye(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "CLOSE_PATIENCE", 0.0)
    w = world()
    (connection,) = await idle_connections(w, 1)
    connection.polite = False
    await w.pool.close()
    assert (connection.retired, connection.lost) == (True, True)


async def test_nothing_is_tidied_while_many_requests_are_open(world: Any) -> None:
    """The collector would make them wait."""
    w = world()
    many = pool_module.TIDY_STREAMS + 1
    for connection in await idle_connections(w, KEPT_IDLE + 1):
        connection.abort()
    await w.ask(many)
    w.clock.advance(pool_module.TIDY_DELAY)
    assert w.bursts_over == 0, "they wait"
    busy = [await w.connect() for _ in range(-(-many // 16))]
    w.clock.advance(10 * pool_module.TIDY_DELAY)
    assert w.bursts_over == 0
    busy[0].done()
    w.clock.advance(pool_module.TIDY_DELAY)
    assert w.bursts_over == 1


async def test_a_short_ping_interval_ends_a_burst_sooner(world: Any) -> None:
    w = world(ping_interval="1s")
    connections = await idle_connections(w, KEPT_IDLE + 1)
    w.clock.advance(pool_module.SHORTEST_IDLE_CLOSE / 2)
    assert all(connection.lost for connection in connections)


@pytest.mark.parametrize("first", ["late", "new"])
async def test_a_late_connection_that_recovers_does_not_make_one_too_many(world: Any, first: str) -> None:
    """Found by the state machine of tests/property."""
    w = world(max_conns="1", streams_per_conn="1")
    await w.ask(2)
    late = await w.connect(max_streams=1)
    late.late = True
    w.pool.on_load(late)
    await w.turn()
    if first == "late":
        late.late = False
        w.pool.on_load(late)
        new = await w.connect(max_streams=1)
    else:
        new = await w.connect(max_streams=1)
        late.late = False
        w.pool.on_load(late)
    assert [late.retired, new.retired] == [first == "new", first == "late"]
    (late if first == "late" else new).done()
    assert len(w.served) == 2
    assert [late.lost, new.lost] == [False, first == "late"]


async def test_a_few_idle_connections_are_kept_and_nothing_is_tidied(world: Any) -> None:
    w = world()
    connections = await idle_connections(w, KEPT_IDLE)
    for _ in range(3):
        w.clock.advance(pool_module.SURPLUS_CLOSE + pool_module.TIDY_DELAY)
        (waiter,) = await w.ask()
        waiter.connection.done()
    assert not any(connection.lost for connection in connections)
    w.clock.advance(pool_module.IDLE_CLOSE)
    assert all(connection.lost for connection in connections)
    assert w.bursts_over == 0
    await w.pool.close()
    assert w.clock.pending == 0


async def test_a_dial_that_ends_in_a_defect_counts_as_failed_and_is_logged(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait get the next dial after the same delay, and their answer after as many."""
    said: list[object] = []
    monkeypatch.setattr("h2ping.log.defect", lambda text, error: said.append(error))
    w = world(max_conns="1")
    (waiter,) = await w.ask()
    for dials in range(1, DIAL_ATTEMPTS + 1):
        await w.fail(ZeroDivisionError())
        assert len(said) == dials
        w.clock.advance(pool_module.DIAL_DELAY_MAX)
        await w.turn()
    assert waiter.error.cause is errors.INTERNAL
    assert waiter.error.processed is Processed.NEVER_SENT
    await w.ask()
    await w.connect()
    assert len(w.served) == 1


@pytest.mark.parametrize(("setting", "times"), [("1KiB", 1), ("64KiB", 1), ("65KiB", 2), ("1MiB", 16)])
def test_longer_response_heads_are_taken_where_longer_requests_are(setting: str, times: int) -> None:
    """All limits of a field section grow together, or the smallest would make the others void."""
    limits = WireLimits(**pool_module.section_limits(units.parse_size(setting)))
    assert limits.max_field_section_bytes == max(64 << 10, units.parse_size(setting))
    assert limits.max_field_block_bytes == times * WireLimits.max_field_block_bytes
    assert limits.max_continuations == times * WireLimits.max_continuations

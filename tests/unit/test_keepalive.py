"""The PING schedule, each test one of the rules in h2ping.upstream.keepalive."""

from __future__ import annotations

import pytest

from h2ping.upstream.keepalive import Action, Cadence, KeepAlive, Schedule

INTERVAL, TIMEOUT = 60.0, 15.0


@pytest.fixture(autouse=True)
def _no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h2ping.upstream.keepalive.random.random", lambda: 0.0)


def started(cadence: Cadence | None = None) -> KeepAlive:
    keepalive = KeepAlive(cadence or Cadence(Schedule(INTERVAL, TIMEOUT), 340.0), 0.0)
    assert keepalive.on_streams(1, 0.0)
    return keepalive


def run(
    keepalive: KeepAlive, end: float, received: dict[float, None] | None = None
) -> list[tuple[float, Action]]:
    """Drive it as a connection does, with bytes received at the given times."""
    log: list[tuple[float, Action]] = []
    times = sorted(received or {})
    now, delay = 0.0, keepalive.on_timer(0.0)[1]
    while delay is not None:
        due = now + delay
        while times and times[0] <= due:
            keepalive.on_received(times.pop(0))
        now = due
        if now > end:
            break
        action, delay = keepalive.on_timer(now)
        if action is not Action.NOTHING:
            log.append((now, action))
    return log


def test_no_ping_while_no_stream_is_open() -> None:
    keepalive = KeepAlive(Cadence(Schedule(INTERVAL, TIMEOUT), 340.0), 0.0)
    assert keepalive.on_timer(1000.0) == (Action.NOTHING, None)


def test_pinging_stops_with_the_last_stream_and_resumes_with_the_next() -> None:
    keepalive = started()
    assert not keepalive.on_streams(0, 10.0)
    assert keepalive.on_timer(70.0) == (Action.NOTHING, None)
    assert keepalive.on_streams(1, 500.0)
    assert keepalive.on_timer(500.0) == (Action.NOTHING, INTERVAL)
    assert keepalive.on_timer(560.0)[0] is Action.PING


def test_silence_for_the_interval_makes_a_ping_due() -> None:
    assert run(started(), 60.0) == [(60.0, Action.PING)]


def test_any_received_byte_proves_life_not_only_the_acknowledgement() -> None:
    data_every_ten_seconds = {float(second): None for second in range(10, 600, 10)}
    assert run(started(), 590.0, data_every_ten_seconds) == []


def test_a_byte_after_the_ping_keeps_the_connection() -> None:
    log = run(started(), 130.0, {74.0: None})
    assert log == [(60.0, Action.PING), (63.75, Action.LATE)]


def test_an_interval_far_below_the_timeout_is_kept_while_replies_come() -> None:
    """`-ping-interval 50ms` beside the default timeout of 15 s."""
    keepalive = started(Cadence(Schedule(1.0, TIMEOUT), 340.0))
    now, delay, pings = 0.0, keepalive.on_timer(0.0)[1], 0
    while delay is not None and now + delay <= 10.0:
        now += delay
        action, delay = keepalive.on_timer(now)
        if action is Action.PING:
            pings += 1
            keepalive.on_received(now)
    assert pings == 10


def test_a_short_interval_does_not_shorten_the_timeout() -> None:
    log = run(started(Cadence(Schedule(1.0, TIMEOUT), 340.0)), 100.0)
    assert log == [(1.0, Action.PING), (4.75, Action.LATE), (16.0, Action.DEAD)]


def test_nothing_within_the_timeout_is_dead() -> None:
    assert run(started(), 100.0) == [(60.0, Action.PING), (63.75, Action.LATE), (75.0, Action.DEAD)]


def test_a_late_reply_takes_no_new_stream_until_the_next_byte() -> None:
    keepalive = started()
    run(keepalive, 64.0)
    assert keepalive.late
    keepalive.on_received(65.0)
    assert not keepalive.late


def test_the_deadline_runs_from_when_the_ping_was_due() -> None:
    keepalive = started()
    assert keepalive.on_timer(62.0) == (Action.PING, 1.75)
    keepalive.on_timer(63.75)
    assert keepalive.on_timer(75.0)[0] is Action.DEAD


def test_a_process_that_stood_still_does_not_blame_the_peer() -> None:
    keepalive = started()
    assert keepalive.on_timer(60.0)[0] is Action.PING
    assert keepalive.on_timer(500.0)[0] is not Action.DEAD
    keepalive.on_received(500.0)
    assert keepalive.on_timer(500.0) == (Action.NOTHING, INTERVAL)


def test_a_ping_that_is_due_long_ago_gets_its_whole_timeout() -> None:
    keepalive = started()
    action, delay = keepalive.on_timer(1000.0)
    assert (action, delay) == (Action.PING, 3.75)
    assert keepalive.on_timer(1003.75) == (Action.LATE, 11.25)


def test_enhance_your_calm_doubles_the_interval_never_past_the_idle_limit() -> None:
    cadence = Cadence(Schedule(INTERVAL, TIMEOUT), 340.0)
    assert [cadence.calm_down() for _ in range(4)] == [120.0, 240.0, 306.0, None]


def test_without_a_schedule_there_is_no_ping() -> None:
    keepalive = KeepAlive(Cadence(None, 340.0), 0.0)
    assert not keepalive.on_streams(1, 0.0)
    assert keepalive.on_timer(1000.0) == (Action.NOTHING, None)
    assert Cadence(None, 340.0).calm_down() is None


def test_jitter_only_shortens_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h2ping.upstream.keepalive.random.random", lambda: 0.999)
    assert 53.9 < run(started(), 60.0)[0][0] < 54.1

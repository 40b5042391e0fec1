"""The soak's judges: what they must not let pass."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from h2ping.lab import growth
from h2ping.lab.client import Outcome
from h2ping.lab.growth import Mark
from h2ping.lab.ledger import Ledger
from h2ping.lab.report import Report
from h2ping.lab.soak import Plan

pytestmark = pytest.mark.pure

CANARY = "sk-canary-1"


def line(name: str, cause: str) -> str:
    return json.dumps(
        {"path": f"/{name}/v1/chat/completions", "cause": cause, "processed": "maybe-processed"}
    )


def failed(name: str, cause: str) -> Outcome:
    body = f"h2ping: upstream error: {cause}: detail\n".encode()
    return Outcome(name, status=502, cause=cause, body=body)


def page(**causes: int) -> str:
    return "\n".join(
        f'h2ping_request_failures_total{{instance="",cause="{cause.replace("_", "-")}"}} {count}'
        for cause, count in causes.items()
    )


def broken(ledger: Ledger, metrics: str) -> set[str]:
    """The claims that do not hold, of a ledger that has ten calls that lived beside what is in it."""
    for _ in range(10):
        ledger.note(Outcome(ledger.next_call(), status=200), left=False, distrust=False)
    report = Report("soak")
    ledger.check(report, metrics, Counter(ledger.lived))
    return {claim.what for claim in report.claims if not claim.held}


def test_a_failure_that_is_told_as_it_was_seen_is_no_breach() -> None:
    ledger = Ledger(CANARY)
    ledger.read(line("a", "connection-lost"))
    ledger.note(failed("a", "connection-lost"), left=False, distrust=False)
    ledger.read(line("b", "stream-reset"))
    ledger.note(Outcome("b", status=200, error="closed"), left=False, distrust=False)
    ledger.note(Outcome("c", error="timeout"), left=True, distrust=False)
    assert broken(ledger, page(connection_lost=1, stream_reset=1)) == set()


TOLD_OTHERWISE = "failures told otherwise than clients saw them"


def test_a_failure_without_a_line_is_found() -> None:
    ledger = Ledger(CANARY)
    ledger.note(failed("a", "connection-lost"), left=False, distrust=False)
    assert TOLD_OTHERWISE in broken(ledger, "")


def test_a_cut_answer_without_a_line_is_found() -> None:
    ledger = Ledger(CANARY)
    ledger.note(Outcome("a", status=200, error="closed"), left=False, distrust=False)
    assert TOLD_OTHERWISE in broken(ledger, "")


def test_another_cause_in_the_log_than_in_the_answer_is_found() -> None:
    ledger = Ledger(CANARY)
    ledger.read(line("a", "stream-reset"))
    ledger.note(failed("a", "connection-lost"), left=False, distrust=False)
    assert TOLD_OTHERWISE in broken(ledger, page(stream_reset=1))


def test_a_line_about_a_call_that_was_well_is_found() -> None:
    ledger = Ledger(CANARY)
    ledger.read(line("a", "stream-reset"))
    ledger.note(Outcome("a", status=200), left=False, distrust=False)
    assert TOLD_OTHERWISE in broken(ledger, page(stream_reset=1))


def test_a_cause_that_is_not_documented_is_found() -> None:
    ledger = Ledger(CANARY)
    ledger.read(line("a", "bad-luck"))
    ledger.note(failed("a", "bad-luck"), left=False, distrust=False)
    assert broken(ledger, page(bad_luck=1)) == {TOLD_OTHERWISE, "causes that are not in docs/causes.md"}


def test_metrics_that_count_otherwise_than_the_log_are_found() -> None:
    ledger = Ledger(CANARY)
    ledger.read(line("a", "connection-lost"))
    ledger.note(failed("a", "connection-lost"), left=False, distrust=False)
    assert "failures by /metrics, cause by cause" in broken(ledger, page(connection_lost=2))


def test_a_call_that_was_not_processed_has_no_excuse() -> None:
    """RFC 9113 section 8.7."""
    ledger = Ledger(CANARY)
    ledger.read(line("a", "connect-failed"))
    ledger.note(failed("a", "connect-failed"), left=False, distrust=True)
    assert broken(ledger, page(connect_failed=1)) == {"lost though not processed"}


@pytest.mark.parametrize("distrust", [True, False])
def test_a_false_certificate_is_told_only_while_there_is_one(distrust: bool) -> None:
    ledger = Ledger(CANARY)
    ledger.read(line("a", "certificate"))
    ledger.note(failed("a", "certificate"), left=False, distrust=distrust)
    assert broken(ledger, page(certificate=1)) == (set() if distrust else {"lost though not processed"})


def test_the_key_is_found_in_the_log_and_in_an_answer() -> None:
    ledger = Ledger(CANARY)
    ledger.read(f"Authorization: Bearer {CANARY}")
    outcome = failed("a", "connection-lost")
    outcome.body += CANARY.encode()
    ledger.note(outcome, left=False, distrust=False)
    assert ledger.leaks == ["log", "error answer"]


def marks(leak: float) -> list[Mark]:
    """Of an hour: every five minutes from the tenth, with the noise that allocators make."""
    noise = random.Random(1)
    state: dict[str, Any] = {
        "instances": [{"requests": 0, "waiting": 0, "clients": 0, "connections": []}],
        "memory": {"used": 0, "resident": 0},
    }
    found = []
    for minute in range(10, 61, 5):
        calls = minute * 3500
        resident = int(48e6 + leak * calls + noise.uniform(-2e5, 2e5))
        found.append(Mark(minute, calls, resident, 22, {"all": 300}, state))
    return found


@pytest.mark.parametrize(("leak", "held"), [(0.0, True), (20.0, False)])
def test_a_leak_of_twenty_bytes_a_call_shows_in_an_hour_and_noise_does_not(leak: float, held: bool) -> None:
    report = Report("soak")
    growth.check(report, marks(leak))
    assert report.held is held, report.text()


def test_what_is_left_at_a_quiet_moment_is_found() -> None:
    restless = marks(0.0)
    restless[3].state["memory"]["used"] = 1
    report = Report("soak")
    growth.check(report, restless)
    assert not report.held


def test_marks_are_taken_after_ten_minutes_and_then_every_five() -> None:
    assert Plan(minutes=60).phases() == [10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60]
    assert Plan(minutes=3).phases() == [1.5, 3]

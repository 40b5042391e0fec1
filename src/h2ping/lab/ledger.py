"""What clients saw, beside what h2ping says of the same calls: the books of `h2ping lab soak`.

Theory of operation
-------------------
1. Every call has an id that stands in its path, so that h2ping's line about a failure (JSON) names the call. A client
   sees an error answer (with a cause), a cut answer (without), or leaves; each must be told by exactly one line, an
   answer's with the same cause, and no line may tell of a call that was well.
2. A client that leaves may do so before its request or behind its answer: there h2ping may have no line, or any.
3. The counters of /metrics must be the lines, cause by cause.
4. A cause that proves that the request was not processed has no excuse: it should have been sent again. The one
   exception are permanent faults (certificate, ALPN) while the run itself has made them, which fail at once.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING

from h2ping.errors import CAUSES

if TYPE_CHECKING:
    from h2ping.lab.client import Outcome
    from h2ping.lab.report import Report

NOT_PROCESSED = frozenset(
    ("goaway-refused", "stream-refused", "copy-not-kept", "connect-failed", "connect-timeout", "dns-failed",
     "tls-failed", "queue-full", "queue-timeout", "memory-timeout")
)  # fmt: skip
"""Causes that prove that the request was not processed: such a call should have been sent again until it lived."""
DISTRUST = frozenset(cause.token for cause in CAUSES.values() if cause.permanent)
LIVED_SHARE = 0.8
"""Of many calls. Of few, chance may take four standard deviations more: faults are asked for at random."""
FAILURES = "h2ping_request_failures_total{"


class Ledger:
    """Of one run."""

    def __init__(self, canary: str) -> None:
        self.canary = canary
        self.outcomes: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        """Failures that were not told, or otherwise than they were."""
        self.distrusted = 0
        self.leaks: list[str] = []
        """Where the canary was found."""
        self.searched = 0
        """Texts without it."""
        self.calls = 0
        self.lived: set[str] = set()
        self._told: dict[str, str] = {}
        """Cause by the call's id, as h2ping's log has it."""
        self._causes: Counter[str] = Counter()
        self._failed: dict[str, str] = {}
        """Cause by the call's id, as its client has it; "" for a cut answer."""
        self._left: set[str] = set()

    def next_call(self) -> str:
        """The id of one more call."""
        self.calls += 1
        return f"soak-{self.calls}"

    def search(self, where: str, text: str) -> None:
        """Nothing that h2ping shows may have the client's key."""
        self.searched += 1
        if self.canary in text:
            self.leaks.append(where)

    def read(self, line: str) -> None:
        """A line of h2ping's log."""
        self.search("log", line)
        if not line.startswith("{"):
            return
        record = json.loads(line)
        if record.get("processed") is None:  # no request that failed
            return
        cause = str(record["cause"])
        self._causes[cause] += 1
        name = str(record["path"]).split("/")[1]
        if name in self._told:
            self.wrong[f"told twice: {cause}"] += 1
        self._told[name] = cause

    def note(self, outcome: Outcome, *, left: bool, distrust: bool) -> None:
        """A call is over. `left`: its client meant to; `distrust`: the run has made the upstream untrustworthy."""
        words = "left" if left else outcome.words
        self.outcomes[words] += 1
        if left:
            self._left.add(outcome.id)
        elif outcome.lived:
            self.lived.add(outcome.id)
        else:
            self._note_failure(outcome, words, distrust=distrust)

    def _note_failure(self, outcome: Outcome, words: str, *, distrust: bool) -> None:
        cause = outcome.cause
        cut = outcome.status == 200 and outcome.error in ("closed", "reset")
        self._failed[outcome.id] = cause
        if not cut:
            body = outcome.body.decode("latin-1")
            self.search("error answer", body)
            if cause not in CAUSES or f"{cause}:" not in body:
                self.wrong[f"without a documented cause: {words}"] += 1
        if cause in DISTRUST and distrust:
            self.distrusted += 1
        elif cause in NOT_PROCESSED or cause in DISTRUST:
            self.lost[words] += 1

    def check(self, report: Report, metrics: str, executions: Counter[str]) -> None:
        """Compare, once h2ping is quiet. `metrics` is its page."""
        lived = len(self.lived)
        chance = 4 * math.sqrt(self.calls * LIVED_SHARE * (1 - LIVED_SHARE))
        enough = lived > self.calls * LIVED_SHARE - chance
        report.claim("calls that lived", "most", f"{lived} of {self.calls}", enough)
        report.claim("lost though not processed", 0, dict(self.lost) or 0, not self.lost)
        twice = sum(count > 1 for count in executions.values())
        report.claim("executed twice", 0, twice, not twice)
        unexecuted = sum(name not in executions for name in self.lived)
        report.claim("answered, though never executed", 0, unexecuted, not unexecuted)
        for name, cause in self._failed.items():
            told = self._told.get(name)
            if told is None or (cause and told != cause):
                self.wrong[f"seen {cause or 'cut'}, told {told}"] += 1
        for name, told in self._told.items():
            if name not in self._failed and name not in self._left:
                self.wrong[f"told {told}, seen well"] += 1
        report.claim(
            "failures told otherwise than clients saw them", 0, dict(self.wrong) or 0, not self.wrong
        )
        counted = _failures(metrics)
        same = counted == self._causes
        report.claim(
            "failures by /metrics, cause by cause",
            "as in the log",
            "as there" if same else dict(self._causes),
            same,
        )
        seen = len(self._failed) + sum(name in self._told for name in self._left)
        report.claim("failures that clients saw, clients that left", counted.total(), seen,
                     seen == counted.total())  # fmt: skip
        unknown = set(counted) - set(CAUSES) or counted["internal-error"]
        report.claim("causes that are not in docs/causes.md", 0, unknown or 0, not unknown)
        report.claim("places with the clients' key", 0, self.leaks[:3] or 0, not self.leaks)
        report.facts["outcomes"] = dict(self.outcomes.most_common())
        report.facts["causes"] = dict(counted)
        report.facts["left before or behind it all"] = sum(name not in self._told for name in self._left)
        report.facts["told of a false certificate or protocol, rightly"] = self.distrusted
        report.facts["texts searched for the key"] = self.searched


def _failures(metrics: str) -> Counter[str]:
    causes: Counter[str] = Counter()
    for line in metrics.splitlines():
        if line.startswith(FAILURES):
            labels, _, value = line.rpartition(" ")
            causes[labels.partition('cause="')[2].partition('"')[0]] += int(float(value))
    return causes

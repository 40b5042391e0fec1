"""The table of re-sends (RFC 9110 section 9.2.2, RFC 9113 sections 6.8 and 8.7)."""

from __future__ import annotations

import pytest

from h2ping import errors
from h2ping.errors import Processed, UpstreamError
from h2ping.retry import FIRST_DELAY, LONGEST_DELAY, MAX_ATTEMPTS, Attempted, Verdict, decide, delay


def attempted(method: bytes = b"POST", **changes: object) -> Attempted:
    values = {"attempts": 1, "lost": 0, "response_begun": False, "body_kept": True, **changes}
    return Attempted(method=method, **values)  # type: ignore[arg-type]


REFUSED = UpstreamError(errors.GOAWAY_REFUSED, processed=Processed.REFUSED)
NEVER_SENT = UpstreamError(errors.CONNECTION_LOST, processed=Processed.NEVER_SENT)
MAYBE = UpstreamError(errors.CONNECTION_LOST)
SILENT = UpstreamError(errors.PING_TIMEOUT)


@pytest.mark.parametrize(
    ("what", "error", "verdict"),
    [
        (attempted(), REFUSED, Verdict.AGAIN),
        (attempted(), NEVER_SENT, Verdict.AGAIN),
        (attempted(lost=1), MAYBE, Verdict.ANSWER),
        (attempted(b"PATCH", lost=1), MAYBE, Verdict.ANSWER),
        (attempted(b"GET", lost=1), MAYBE, Verdict.AGAIN),
        (attempted(b"DELETE", lost=1), MAYBE, Verdict.AGAIN),
        (attempted(b"GET", lost=1), SILENT, Verdict.AGAIN),
        (attempted(b"GET", attempts=2, lost=2), MAYBE, Verdict.ANSWER),
        (attempted(body_kept=False), REFUSED, Verdict.NOT_KEPT),
        (attempted(b"PUT", lost=1, body_kept=False), MAYBE, Verdict.ANSWER),
        (attempted(attempts=MAX_ATTEMPTS), REFUSED, Verdict.ANSWER),
        (attempted(response_begun=True), REFUSED, Verdict.CUT),
        (attempted(b"GET", lost=1, response_begun=True), MAYBE, Verdict.CUT),
    ],
    ids=[
        "refused-post", "never-sent-post", "maybe-processed-post", "maybe-processed-patch", "maybe-processed-get",
        "maybe-processed-delete", "silent-get", "maybe-processed-get-twice", "refused-not-kept",
        "maybe-processed-put-not-kept", "attempts-used-up", "response-begun-refused", "response-begun-get",
    ],
)  # fmt: skip
def test_the_verdict_follows_from_what_was_tried(
    what: Attempted, error: UpstreamError, verdict: Verdict
) -> None:
    assert decide(what, error) is verdict


@pytest.mark.parametrize(
    "cause",
    [
        errors.STREAM_RESET, errors.MALFORMED_RESPONSE, errors.RESPONSE_HEAD_TOO_LARGE, errors.PROTOCOL_ERROR,
        errors.FLOOD,
    ],
    ids=lambda cause: cause.token,
)  # fmt: skip
def test_a_peer_that_was_reached_is_not_asked_twice(cause: errors.Cause) -> None:
    """RFC 9110 section 9.2.2 lets a communication failure be repeated, which invalid HTTP/2 is not
    (cloudflare/pingora#979 repeats it)."""
    assert decide(attempted(b"GET", lost=1), UpstreamError(cause)) is Verdict.ANSWER


def test_a_request_that_a_goaway_refused_is_sent_again_at_once() -> None:
    assert delay(1, REFUSED) == 0


def test_other_delays_grow_to_a_bound() -> None:
    refused = UpstreamError(errors.STREAM_REFUSED, processed=Processed.REFUSED)
    assert FIRST_DELAY / 2 <= delay(1, refused) <= FIRST_DELAY
    assert all(0 < delay(attempts, refused) <= LONGEST_DELAY for attempts in range(1, 30))
    assert delay(20, refused) >= LONGEST_DELAY / 2

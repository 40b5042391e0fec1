"""The one function that turns an error into a response."""

from __future__ import annotations

import json

import pytest

from h2ping import errors
from h2ping.answer import error_response, status_of
from h2ping.errors import DownstreamError, UpstreamError
from h2ping.headers import parse_request

GYM_RETRIES = {404, 408, 429, 500, 502, 503, 504, 520}


def request(*fields: tuple[bytes, bytes], method: bytes = b"POST"):  # type: ignore[no-untyped-def]
    return parse_request(method, b"/v1?key=1", "1.1", [(b"host", b"x"), *fields], b"")


def test_an_upstream_error_is_one_line_of_text_that_names_program_and_cause() -> None:
    raw = error_response(
        UpstreamError(errors.STREAM_RESET, "INTERNAL_ERROR"), request(), "h2ping", close=False
    )
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert b"\r\nh2ping-cause: stream-reset" in head
    assert b"Connection: close" not in head
    assert body == b"h2ping: upstream error: stream-reset: INTERNAL_ERROR\n"
    assert b"Content-Length: %d\r\n" % len(body) in head


def test_a_client_that_accepts_problem_json_gets_it() -> None:
    accept = (b"accept", b"application/problem+json")
    raw = error_response(UpstreamError(errors.CONNECT_FAILED, "refused"), request(accept), "h2ping")
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"Content-Type: application/problem+json\r\n" in head
    problem = json.loads(body)
    assert (problem["status"], problem["cause"]) == (502, "connect-failed")


def test_a_503_says_when_to_come_back() -> None:
    assert b"\r\nRetry-After: 1\r\n" in error_response(DownstreamError(errors.QUEUE_FULL), None, "h2ping")


def test_head_gets_the_length_of_the_body_and_no_body() -> None:
    raw = error_response(UpstreamError(errors.CONNECT_FAILED), request(method=b"HEAD"), "h2ping")
    assert raw.endswith(b"\r\n\r\n")
    assert b"Content-Length: 0" not in raw
    refused = error_response(DownstreamError(errors.AMBIGUOUS_LENGTH), None, "h2ping", method=b"HEAD")
    assert refused.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("cause", [c for c in errors.CAUSES.values() if c.permanent], ids=lambda c: c.token)
def test_a_permanent_fault_has_a_status_that_no_caller_repeats(cause: errors.Cause) -> None:
    assert status_of(cause, errors.PERMANENT_STATUS) not in GYM_RETRIES
    assert status_of(cause, 502) == 502


@pytest.mark.parametrize("cause", errors.CAUSES.values(), ids=lambda c: c.token)
def test_every_cause_says_what_it_means_and_what_to_do(cause: errors.Cause) -> None:
    assert errors.CAUSES[cause.token] is cause
    assert cause.meaning.endswith(".")
    assert cause.action.endswith((".", "."))
    assert 400 <= cause.status <= 599

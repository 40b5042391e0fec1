"""The lab's origin is strict about a request's head (RFC 9113 sections 8.2 and 8.3)."""

from __future__ import annotations

import re

import pytest

from h2ping.lab.head import RequestHead

PSEUDO = [(b":method", b"POST"), (b":scheme", b"https"), (b":path", b"/v1"), (b":authority", b"a")]


def test_a_head_in_order_is_read() -> None:
    head = RequestHead.of([*PSEUDO, (b"content-length", b"3"), (b"x-lab-size", b"9"), (b"te", b"trailers")])
    assert (head.method, head.path, head.content_length, head.steer.size) == ("POST", "/v1", 3, 9)


@pytest.mark.parametrize(
    ("fields", "breach"),
    [
        ([(b"Accept", b"*/*")], "field b'Accept' in HTTP/2"),
        ([(b"connection", b"close")], "field b'connection' in HTTP/2"),
        ([(b"te", b"gzip")], "te: b'gzip' in HTTP/2"),
        ([(b"a", b"b"), (b":authority", b"b")], "pseudo-field b':authority' late or twice"),
        ([(b":path", b"/2")], "pseudo-field b':path' late or twice"),
        ([(b"content-length", b"+3")], "content-length b'+3' bad or twice"),
        ([(b"content-length", b"3"), (b"content-length", b"3")], "content-length b'3' bad or twice"),
        ([(b"x-lab-delay", b"soon")], "x-lab field"),
    ],
)
def test_a_breach_is_named(fields: list[tuple[bytes, bytes]], breach: str) -> None:
    with pytest.raises(ValueError, match=re.escape(breach)):
        RequestHead.of([*PSEUDO, *fields])


def test_pseudo_fields_may_not_be_missing() -> None:
    with pytest.raises(ValueError, match="pseudo-fields missing"):
        RequestHead.of(PSEUDO[1:])

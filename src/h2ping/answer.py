"""What h2ping itself writes to a client: error responses, and the lines that it adds to the heads of others."""

from __future__ import annotations

import json
import time
from email.utils import formatdate
from typing import TYPE_CHECKING

from h2ping.errors import Cause, DownstreamError, UpstreamError

if TYPE_CHECKING:
    from h2ping.headers import Request

_REASONS = {
    400: b"Bad Request",
    403: b"Forbidden",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    421: b"Misdirected Request",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}
RETRY_AFTER_SECONDS = 1
"""Value of Retry-After on a 503 (RFC 9110 section 10.2.3): places come free all the time."""


def status_of(cause: Cause, permanent_status: int) -> int:
    """The status that `cause` is answered with; `permanent_status` is the setting for permanent faults."""
    return permanent_status if cause.permanent else cause.status


def error_response(
    error: DownstreamError | UpstreamError,
    request: Request | None,
    program: str,
    *,
    status: int | None = None,
    close: bool = True,
    method: bytes = b"",
) -> bytes:
    """A complete HTTP/1.1 error response. No header or body of the request is echoed in it.

    `application/problem+json` (RFC 9457) when the client accepts it, else one line of text/plain. `close` adds
    `Connection: close`. `method`: of a head that never became a request.
    """
    cause = error.cause
    status = status or cause.status
    reason = f"{cause.token}: {error.detail}" if error.detail else f"{cause.token}: {cause.meaning}"
    whose = "upstream error: " if isinstance(error, UpstreamError) else ""
    if request is not None and request.wants_problem:
        kind = b"application/problem+json"
        problem = {
            "type": "about:blank",
            "title": cause.meaning,
            "status": status,
            "detail": f"{program}: {whose}{reason}",
            "cause": cause.token,
            "action": cause.action,
        }
        body = json.dumps(problem).encode() + b"\n"
    else:
        kind = b"text/plain; charset=utf-8"
        body = f"{program}: {whose}{reason}\n".encode()
    head = [
        b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nh2ping-cause: %s\r\n"
        % (status, _REASONS.get(status, b"Error"), kind, len(body), cause.token.encode())
    ]
    if status == 503:
        head.append(b"Retry-After: %d\r\n" % RETRY_AFTER_SECONDS)
    if status == 405:
        head.append(b"Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n")
    if close:
        head.append(b"Connection: close\r\n\r\n")
    else:  # a 1.0 client takes silence for an end (RFC 9112 section 9.3)
        is_old = request is not None and request.version < (1, 1)
        head.append(b"connection: keep-alive\r\n\r\n" if is_old else b"\r\n")
    if (request.method if request is not None else method) != b"HEAD":
        head.append(body)
    return b"".join(head)


class _Date:
    """The Date field, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        """RFC 9110 section 6.6.1: who forwards a response without Date adds one."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._line


date_line = _Date().line


def inserted(head: bytes, lines: bytes) -> bytes:
    """`lines` right behind the status line."""
    start = head.index(b"\r\n") + 2
    return head[:start] + lines + head[start:]

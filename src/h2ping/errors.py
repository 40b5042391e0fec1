"""What can go wrong, whose fault it is, and what the client is told.

Theory of operation
-------------------
1. Every failure carries one `Cause`: a row of the table below, named by a one-token string that stands in the
   log line, in the metric, in the `h2ping-cause` header and in docs/causes.md.
2. `Processed` says whether the upstream may have acted on the request (RFC 9110 section 9.2.2, RFC 9113
   section 8.7). NEVER_SENT and REFUSED are earned: the request was never written, or the peer refused the stream
   with REFUSED_STREAM or with a GOAWAY whose last stream id is lower. Everything else is MAYBE.
3. Faults of configuration or trust are permanent: a client that repeats the call gets the same answer. They have
   a status that callers do not retry (NeMo Gym repeats 404, 408, 429, 500, 502, 503, 504 and 520).

This module knows neither response bytes nor logging nor who retries what.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Processed(enum.Enum):
    """Whether the upstream may have acted on a request."""

    NEVER_SENT = "never-sent"
    REFUSED = "refused"
    MAYBE = "maybe-processed"


PERMANENT_STATUS = 421
"""Status of a permanent fault: 421 Misdirected Request (RFC 9110 section 15.5.20: "unable or unwilling to produce
an authoritative response for the target URI"). Neither NeMo Gym nor the openai client repeats it."""


@dataclass(frozen=True)
class Cause:
    """One row of the table from cause to status."""

    token: str
    status: int
    meaning: str
    action: str
    permanent: bool = False
    """True when repeating the request cannot help before somebody changes the configuration."""


CAUSES: dict[str, Cause] = {}


def _cause(token: str, status: int, meaning: str, action: str, *, permanent: bool = False) -> Cause:
    CAUSES[token] = cause = Cause(token, status, meaning, action, permanent)
    return cause


# --- the client's side ----------------------------------------------------------------------------------------
BAD_REQUEST = _cause(
    "bad-request", 400,
    "The request head or its chunk framing is not HTTP/1.1 as RFC 9112 defines it.",
    "Look at the detail; the client or something between it and h2ping writes malformed HTTP.",
)  # fmt: skip
AMBIGUOUS_LENGTH = _cause(
    "ambiguous-length", 400,
    "The request has both Content-Length and Transfer-Encoding, several lengths, or a length that is no number.",
    "Send exactly one of the two fields (RFC 9112 section 6.3).",
)  # fmt: skip
UNSUPPORTED_CODING = _cause(
    "unsupported-coding", 501,
    "The request body has a transfer coding other than chunked.",
    "Send the body with Content-Length or as chunked only.",
)  # fmt: skip
CONNECT_REFUSED = _cause(
    "connect-method", 405,
    "CONNECT asks for a tunnel; h2ping forwards requests to its one upstream only.",
    "Do not set h2ping as HTTPS_PROXY; use its address as the base URL.",
)  # fmt: skip
MAX_FORWARDS = _cause(
    "max-forwards", 501,
    "OPTIONS or TRACE with Max-Forwards 0 ends here, and h2ping has no answer of its own to either.",
    "Send it with a higher Max-Forwards, or without one (RFC 9110 section 7.6.2).",
)  # fmt: skip
VERSION_UNSUPPORTED = _cause(
    "http-version", 505,
    "The request line names an HTTP version other than 1.0 or 1.1.",
    "Speak HTTP/1.1 to h2ping; it speaks HTTP/2 to the upstream.",
)  # fmt: skip
HEAD_TOO_LARGE = _cause(
    "head-too-large", 431,
    "The request head is larger than -max-header-bytes.",
    "Send fewer or shorter fields, or raise -max-header-bytes.",
)  # fmt: skip
BODY_TOO_LARGE = _cause(
    "body-too-large", 413,
    "The request body is larger than -max-body-bytes.",
    "Send a smaller body, or raise -max-body-bytes.",
)  # fmt: skip
HEAD_TIMEOUT = _cause(
    "head-timeout", 408,
    "The client opened a request and did not finish its head within -client-head-timeout.",
    "Look for a stalled client; raise -client-head-timeout if it is only slow.",
)  # fmt: skip
BODY_TIMEOUT = _cause(
    "body-timeout", 408,
    "The client sent nothing of its request's body for -client-idle-timeout.",
    "Look for a stalled client; raise -client-idle-timeout if it may pause that long.",
)  # fmt: skip
READER_TIMEOUT = _cause(
    "reader-timeout", 408,
    "The client read nothing of its response for -client-idle-timeout, so the response was cut. Never written.",
    "Look for a stalled client; raise -client-idle-timeout if it may pause that long.",
)  # fmt: skip
CLIENT_GONE = _cause(
    "client-gone", 499,
    "The client closed its connection before the response was complete. Never written to a socket.",
    "Look at the client's own timeout; the upstream request was cancelled.",
)  # fmt: skip
RESPONSE_UNREAD = _cause(
    "response-unread", 503,
    "The client did not read its response, and all memory for such responses under -max-memory was in use.",
    "Look for clients that stopped reading, or raise -max-memory. The status is the upstream's: it had begun.",
)  # fmt: skip

# --- h2ping itself --------------------------------------------------------------------------------------------
QUEUE_FULL = _cause(
    "queue-full", 503,
    "More requests wait for a stream than -max-queue allows.",
    "Send fewer at once, or raise -max-queue, -max-conns or -streams-per-conn.",
)  # fmt: skip
QUEUE_TIMEOUT = _cause(
    "queue-timeout", 503,
    "The request waited longer than -queue-timeout for a stream.",
    "Raise -max-conns or -streams-per-conn, or -queue-timeout.",
)  # fmt: skip
MEMORY_TIMEOUT = _cause(
    "memory-timeout", 503,
    "The request waited longer than -queue-timeout for memory under -max-memory.",
    "Raise -max-memory, or send fewer large bodies at once.",
)  # fmt: skip
DRAINING = _cause(
    "draining", 503,
    "h2ping is stopping and takes no new request.",
    "Repeat the request when h2ping runs again.",
)  # fmt: skip
SHUTDOWN_GRACE = _cause(
    "shutdown-grace", 503,
    "h2ping stopped and the request was not finished within -shutdown-grace.",
    "Raise -shutdown-grace above the longest call.",
)  # fmt: skip
INTERNAL = _cause(
    "internal-error", 500,
    "A defect of h2ping.",
    "Report it with the log line; it holds no header or body.",
)  # fmt: skip

# --- reaching the upstream ------------------------------------------------------------------------------------
DNS_FAILED = _cause(
    "dns-failed", 502,
    "The name of the upstream could not be resolved.",
    "Check the name in -upstream and the resolver of this machine.",
)  # fmt: skip
CONNECT_FAILED = _cause(
    "connect-failed", 502,
    "The TCP connection to the upstream was refused, reset or unreachable.",
    "Check that the endpoint is up and that this machine may reach it.",
)  # fmt: skip
CONNECT_TIMEOUT = _cause(
    "connect-timeout", 504,
    "TCP, TLS and the first SETTINGS frame together took longer than -connect-timeout.",
    "Check the path to the endpoint, or raise -connect-timeout.",
)  # fmt: skip
TLS_FAILED = _cause(
    "tls-failed", 502,
    "The TLS handshake broke for a reason other than the certificate.",
    "Look at the detail; the endpoint may not speak TLS on this port.",
)  # fmt: skip
CERTIFICATE = _cause(
    "certificate", PERMANENT_STATUS,
    "The certificate of the upstream did not verify: unknown authority, wrong name, or out of date.",
    "Name the authority with -ca-file or SSL_CERT_FILE, or correct -upstream or -server-name.",
    permanent=True,
)  # fmt: skip
ALPN = _cause(
    "alpn", PERMANENT_STATUS,
    "The upstream did not choose h2 by ALPN, so it does not speak HTTP/2 here (RFC 9113 section 3.2).",
    "Check that -upstream names the HTTP/2 endpoint; h2ping never falls back to HTTP/1.1.",
    permanent=True,
)  # fmt: skip

# --- on the upstream's connection -----------------------------------------------------------------------------
GOAWAY_REFUSED = _cause(
    "goaway-refused", 502,
    "The upstream closed the connection with GOAWAY and did not take this request; every re-send was refused too.",
    "Look at the load on the endpoint; the request was not executed.",
)  # fmt: skip
STREAM_REFUSED = _cause(
    "stream-refused", 502,
    "The upstream refused the request with REFUSED_STREAM; every re-send was refused too.",
    "Look at the load on the endpoint; the request was not executed.",
)  # fmt: skip
COPY_NOT_KEPT = _cause(
    "copy-not-kept", 502,
    "The upstream refused the request, and its body was no longer kept, so it could not be re-sent.",
    "Raise -retry-body-limit or -max-memory, or use -memory-pressure keep. The request was not executed.",
)  # fmt: skip
STREAM_RESET = _cause(
    "stream-reset", 502,
    "The upstream reset the stream after it took the request.",
    "Look at the error code, the elapsed time and what timer it looks like (docs/causes.md).",
)  # fmt: skip
CONNECTION_LOST = _cause(
    "connection-lost", 502,
    "The upstream's connection ended while the request was in flight, without a GOAWAY that spares it.",
    "Look at the elapsed time and what timer it looks like (docs/causes.md).",
)  # fmt: skip
PING_TIMEOUT = _cause(
    "ping-timeout", 502,
    "Nothing was received for -ping-interval and then nothing within -ping-timeout.",
    "The path is dead or the endpoint hangs; look at both.",
)  # fmt: skip
PROTOCOL_ERROR = _cause(
    "protocol-error", 502,
    "The upstream broke HTTP/2 (RFC 9113) or HPACK (RFC 7541) and the connection was closed.",
    "Report it to the endpoint's operator with the detail.",
)  # fmt: skip
MALFORMED_RESPONSE = _cause(
    "malformed-response", 502,
    "The response broke HTTP (RFC 9113 section 8.1.1): bad fields, wrong length or wrong frame order.",
    "Report it to the endpoint's operator with the detail.",
)  # fmt: skip
RESPONSE_HEAD_TOO_LARGE = _cause(
    "response-head-too-large", 502,
    "The head or the trailers of the response are larger than 64 KiB (or -max-header-bytes, where that is more).",
    "Look at what the endpoint puts into its fields; raise -max-header-bytes if that is right.",
)  # fmt: skip
FLOOD = _cause(
    "flood", 502,
    "The upstream sent more control frames, header bytes or interim responses than any sane peer.",
    "Report it to the endpoint's operator with the detail.",
)  # fmt: skip
FIRST_BYTE_TIMEOUT = _cause(
    "first-byte-timeout", 504,
    "No response began within -first-byte-timeout.",
    "Raise -first-byte-timeout (0 sets no limit).",
)  # fmt: skip


class H2pingError(Exception):
    """Root of every error that h2ping raises on purpose."""


class ConfigError(H2pingError):
    """A setting that cannot work. `setting` names it as the user wrote it; `exit_code` is the command's.

    2: an unknown flag or a value that cannot be read. 1: a value that can be read and cannot work.
    """

    def __init__(self, setting: str, reason: str, *, exit_code: int = 1) -> None:
        super().__init__(f"{setting}: {reason}" if setting else reason)
        self.setting = setting
        self.reason = reason
        self.exit_code = exit_code


class _CausedError(H2pingError):
    def __init__(self, cause: Cause, detail: str = "") -> None:
        super().__init__(f"{cause.token}: {detail}" if detail else cause.token)
        self.cause = cause
        self.detail = detail


class DownstreamError(_CausedError):
    """The client's fault, or h2ping's own limit: no upstream is to blame."""


class UpstreamError(_CausedError):
    """The upstream's or the path's fault.

    `processed` says whether the upstream may have acted on the request; `code` is the HTTP/2 error code, if one
    was received.
    """

    def __init__(
        self,
        cause: Cause,
        detail: str = "",
        *,
        processed: Processed = Processed.MAYBE,
        code: int | None = None,
    ) -> None:
        super().__init__(cause, detail)
        self.processed = processed
        self.code = code

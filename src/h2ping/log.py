"""What h2ping says: logger names, line formats, the phrases people search for, the one record of a request.

Theory of operation
-------------------
1. All lines go through the standard library's loggers `h2ping` and `h2ping.access`, so a program that embeds
   h2ping decides by itself; the command calls `configure`.
2. The loop never waits for whoever reads the log. A line is written only when the descriptor takes it;
   lines that do not fit wait in a bounded backlog, and what is dropped is counted and said.
3. A request that failed or was sent again gets exactly one line, when it ends; with -access-log every
   request does.
4. No header, body or query value is ever logged. Text that a peer chose goes through `safe`: printable ASCII,
   at most 200 characters, control characters escaped.
5. The phrases that people and launchers search for each stand in one function here.

This module decides nothing: neither what is an error nor what is repeated.
"""

from __future__ import annotations

import codecs
import logging
import os
import select
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from h2ping.errors import (
    CAUSES,
    CLIENT_GONE,
    CONNECTION_LOST,
    DRAINING,
    INTERNAL,
    MEMORY_TIMEOUT,
    QUEUE_FULL,
    QUEUE_TIMEOUT,
    SHUTDOWN_GRACE,
)
from h2ping.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from h2ping.config import Settings
    from h2ping.errors import UpstreamError

MAIN: Final = logging.getLogger("h2ping")
ACCESS: Final = logging.getLogger("h2ping.access")

LONGEST_TEXT: Final = 200
"""Characters of a text that a peer chose. Enough for any message; too little to bury a log."""

LONGEST_PATH: Final = 400

LONGEST_LINE_BYTES: Final = 4000
"""Below PIPE_BUF (4096 on Linux): poll() promises that much room in a pipe, so no write blocks."""

LONGEST_TRACEBACK_BYTES: Final = 16_000

BACKLOG_LINES: Final = 2000


_escape = codecs.getencoder("unicode_escape")
"""Looked up in time: the first use of a codec opens its module, and lines are logged when descriptors have run out."""


def safe(text: str | bytes, limit: int = LONGEST_TEXT) -> str:
    """Printable ASCII on one line, escaped and capped."""
    if isinstance(text, bytes):
        text = text[: limit + 1].decode("latin-1")
    shown = _escape(text[: limit + 1])[0].decode("ascii")
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def safe_path(target: bytes) -> str:
    """A request's path without its query, whose values may be keys."""
    for end in (b"?", b"#"):
        target = target.partition(end)[0]
    return safe(target, LONGEST_PATH)


# --- where lines go -------------------------------------------------------------------------------


class Sink(logging.Handler):
    """Writes whole lines to a descriptor and never waits for its reader."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._backlog: deque[bytes] = deque()
        self._dropped = 0
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode("ascii", "backslashreplace")
        except Exception:
            self.handleError(record)
            return
        limit = LONGEST_TRACEBACK_BYTES if record.exc_info else LONGEST_LINE_BYTES
        if len(line) > limit:
            line = line[: limit - 3] + b"..."
        if len(self._backlog) < BACKLOG_LINES:
            self._backlog.append(line + b"\n")
        else:
            self._dropped += 1
        self._write(0)

    def flush(self) -> None:
        self._write(0)

    def close(self) -> None:
        """Wait up to two seconds in all, so that the last line, which says why we ended, is read."""
        end = time.monotonic() + 2
        while self._backlog and time.monotonic() < end:
            self._write(max(0, end - time.monotonic()))
        self._backlog.clear()  # closed once more, as logging does, it must not wait once more
        super().close()

    def _write(self, wait: float) -> None:
        backlog = self._backlog
        while backlog and self._poll.poll(wait * 1000):
            try:
                sent = os.write(self._descriptor, backlog[0][:LONGEST_LINE_BYTES])
            except BlockingIOError:
                return  # somebody else's writes were faster
            except OSError:
                backlog.clear()  # nobody can read it any more
                return
            if rest := backlog[0][sent:]:
                backlog[0] = rest  # a traceback, in slices that fit
                continue
            backlog.popleft()
            if self._dropped and len(backlog) < BACKLOG_LINES:
                backlog.append(b"(%d log lines dropped: nobody read them)\n" % self._dropped)
                self._dropped = 0


class TextFormat(logging.Formatter):
    """`2026-11-30T19:41:00.123Z INFO message`"""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_timestamp(record.created)} {record.levelname} {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonFormat(logging.Formatter):
    """One JSON object a line; a request's record has its fields apart."""

    def __init__(self) -> None:
        super().__init__()
        import json

        self._dumps = json.dumps

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[:LONGEST_LINE_BYTES]
        return self._dumps(line)


def _timestamp(seconds: float) -> str:
    whole = int(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"


def configure(level: str = "info", form: str = "text", descriptor: int = 2) -> Sink:
    """Send the lines of h2ping and asyncio to `descriptor`. Close the sink to end."""
    sink = Sink(descriptor)
    sink.setFormatter(JsonFormat() if form == "json" else TextFormat())
    for name in ("h2ping", "asyncio"):
        logger = logging.getLogger(name)
        for old in [each for each in logger.handlers if isinstance(each, Sink)]:
            logger.removeHandler(old)
        logger.addHandler(sink)
        logger.propagate = False
    MAIN.setLevel(level.upper())
    # asyncio's own warnings are about us; its "Using selector" is not.
    logging.getLogger("asyncio").setLevel(max(MAIN.level, logging.WARNING))
    return sink


# --- one request ----------------------------------------------------------------------------------


@dataclass(slots=True)
class AccessRecord:
    """One request, as its line tells it."""

    ident: int | str | None
    """None for what was refused before it became a request; method and path may then be empty."""
    method: bytes
    path: bytes
    """The request's target; its query is cut off here, not by the caller."""
    status: int = 0
    """What the client was told; 499 when it had left. 0: its connection was cut before any status."""
    upstream_status: int | None = None
    attempts: int = 0
    """How often the request was given to an upstream connection."""
    connection_id: int | str | None = None
    """The last upstream connection it was on, and its stream there; 0 is none."""
    stream_id: int | None = None
    cause: str | None = None
    """Token of what went wrong last, also when a later attempt succeeded; see docs/causes.md."""
    detail: str = ""
    code: int | None = None
    """HTTP/2 error code that was received (RFC 9113 section 7)."""
    processed: str | None = None
    """Value of errors.Processed for a request that failed."""
    elapsed: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def what(self) -> str:
        return f"{safe(self.method, 32) or '-'} {safe_path(self.path) or '-'}"

    def fields(self) -> dict[str, Any]:
        """For the JSON line, every value safe to print."""
        return {
            "request_id": self.ident,
            "method": safe(self.method, 32) or None,
            "path": safe_path(self.path) or None,
            "status": self.status,
            "upstream_status": self.upstream_status,
            "attempts": self.attempts,
            "connection_id": self.connection_id or None,
            "stream_id": self.stream_id or None,
            "cause": self.cause,
            "detail": safe(self.detail),
            "code": None if self.code is None else error_name(self.code),
            "processed": self.processed,
            "elapsed_ms": round(self.elapsed * 1000, 1),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
        }

    def evidence(self) -> str:
        """The part in parentheses at the end of a line: all of it, so that one pattern reads every line."""
        shown = {
            "request": self.ident,
            "status": self.status,
            "upstream_status": self.upstream_status,
            "attempts": self.attempts,
            "conn": self.connection_id or None,
            "stream": self.stream_id or None,
            "cause": self.cause,
            "code": None if self.code is None else error_name(self.code),
            "processed": self.processed,
            "elapsed_ms": round(self.elapsed * 1000),
            "in": self.bytes_in,
            "out": self.bytes_out,
        }
        return " ".join(f"{name}={'-' if value is None else value}" for name, value in shown.items())


# RFC 9113 section 7, in the order of the codes.
_ERROR_NAMES = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
    "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
)  # fmt: skip


def error_name(code: int) -> str:
    """Name of an HTTP/2 error code; the number for one that RFC 9113 does not define."""
    return _ERROR_NAMES[code] if 0 <= code < len(_ERROR_NAMES) else f"0x{code:x}"


_OWN = {
    each.token for each in (QUEUE_FULL, QUEUE_TIMEOUT, MEMORY_TIMEOUT, DRAINING, SHUTDOWN_GRACE, INTERNAL)
}


def _opening(cause: str) -> str:
    """Whose fault it is, in the words that open the line."""
    if cause == CLIENT_GONE.token:
        return "client gone"
    if cause in _OWN:
        return "request failed"
    row = CAUSES.get(cause)
    if row is not None and not row.permanent and row.status not in (502, 504):
        return "client error"
    return "upstream error"


def request_failed(settings: Settings, record: AccessRecord) -> None:
    """The one line of a request that did not get the upstream's whole response."""
    cause = record.cause or "unknown"
    reason = f"{cause}: {safe(record.detail)}" if record.detail else cause
    level = logging.INFO if cause == CLIENT_GONE.token else logging.WARNING
    _request_line(MAIN, level, settings, record, f"{_opening(cause)}: {record.what}: {reason}")


def request_done(settings: Settings, record: AccessRecord) -> None:
    """The line of a request that was answered, if it was sent more than once or -access-log asks for all."""
    if record.attempts > 1:
        text = f"request re-sent: {record.what}: answered at attempt {record.attempts}"
        _request_line(MAIN, logging.INFO, settings, record, text)
    elif settings.access_log:
        _request_line(ACCESS, logging.INFO, settings, record, f"request: {record.what}")


def request_retried(settings: Settings, record: AccessRecord) -> None:
    """One attempt failed and another follows. Its request's own line comes when it ends (rule 3)."""
    text = f"sending again: {record.what}: {record.cause}"
    _request_line(MAIN, logging.DEBUG, settings, record, text)


def _request_line(
    logger: logging.Logger, level: int, settings: Settings, record: AccessRecord, text: str
) -> None:
    if logger.isEnabledFor(level):
        fields = {**_instance_field(settings), **record.fields()}
        logger.log(level, "%s%s (%s)", _of(settings), text, record.evidence(), extra={"fields": fields})


# --- phrases --------------------------------------------------------------------------------------


def listening(settings: Settings, address: object) -> None:
    every, deadline = format_duration(settings.ping_interval), format_duration(settings.ping_timeout)
    ping = f"PING every {every} idle, ack deadline {deadline}"
    _say(logging.INFO, settings, f"listening on {address} -> {settings.upstream} (HTTP/2, {ping})")


def cannot_bind(address: object, reason: str) -> str:
    """The message of the error: the launcher looks for `cannot bind` and the address to give its hint."""
    return f"cannot bind {address}: {safe(reason)}"


def cannot_write_ready_file(path: str, reason: str) -> str:
    return f"cannot write -ready-file {path}: {safe(reason)}"


def draining(grace: float, in_flight: int) -> None:
    text = f"shutdown requested; draining in-flight requests for up to {format_duration(grace)}"
    _say(logging.INFO, None, f"{text} ({in_flight} in flight)")


def drain_incomplete(cut: int, grace: float, why: str | None = None) -> None:
    reason = why or f"{format_duration(grace)} ran out"
    requests = "1 request was cut" if cut == 1 else f"{cut} requests were cut"
    _say(logging.WARNING, None, f"graceful shutdown incomplete: {reason}; {requests}")


def stopped() -> None:
    """Always the last line of a run that ended by a signal; the lines before it say how."""
    _say(logging.INFO, None, "stopped")


def retired(settings: Settings, age: float) -> None:
    after = format_duration(round(age, 1) if age > 10 else round(age, 3))
    text = f"retired upstream connections after {after}; new requests use a fresh connection"
    _say(logging.INFO, settings, text)


def retired_by_count(settings: Settings, requests: int) -> None:
    text = f"retired upstream connections after {requests} requests; new requests use a fresh connection"
    _say(logging.INFO, settings, text)


def retired_after_burst(settings: Settings, connections: int, idle: int) -> None:
    text = f"retired {connections} upstream connections after a burst: {idle} or more of them were idle"
    _say(logging.INFO, settings, text)


def retired_as_surplus(settings: Settings, most: int) -> None:
    text = f"retired an upstream connection whose PING was late: others have its place (-max-conns {most})"
    _say(logging.INFO, settings, text)


def goaway(
    settings: Settings, connection_id: int | str, last_stream_id: int, code: int, debug: bytes = b""
) -> None:
    said = f', "{safe(debug)}"' if debug else ""
    text = f"upstream sent GOAWAY {error_name(code)} on connection {connection_id}"
    _say(logging.INFO, settings, f"{text} (last stream {last_stream_id}{said})")


def calm_down(settings: Settings, connection_id: int | str, interval: float) -> None:
    """The upstream closed with ENHANCE_YOUR_CALM: our PINGs may be what it does not like."""
    text = f"upstream sent ENHANCE_YOUR_CALM on connection {connection_id}"
    _say(logging.WARNING, settings, f"{text}; the PING interval is now {format_duration(interval)}")


def connection_lost(settings: Settings, connection_id: int | str, error: UpstreamError) -> None:
    """Its requests have lines of their own; a fault is told all the same, there may have been none."""
    level = logging.DEBUG if error.cause is CONNECTION_LOST else logging.WARNING
    text = (
        f"lost connection {connection_id} to {settings.upstream}: {error.cause.token}: {safe(error.detail)}"
    )
    _say(level, settings, text)


def dial_failed(settings: Settings, error: UpstreamError, delay: float) -> None:
    """At the level debug: each request that is lost by it has its own line."""
    text = f"connecting to {settings.upstream} failed: {error.cause.token}: {safe(error.detail)}"
    _say(
        logging.DEBUG,
        settings,
        f"{text}; the next attempt is at most {format_duration(round(delay, 3))} away",
    )


def worker_died(number: int, process: int, how: str, in_flight: int, *, replacing: bool) -> None:
    requests = "1 request" if in_flight == 1 else f"{in_flight} requests"
    text = f"worker {number} (process {process}) died: {how}; it had {requests}"
    _say(logging.ERROR, None, f"{text}; replacing it" if replacing else text)


def worker_not_started(number: int, error: OSError) -> None:
    # uvloop tells nothing about a failed spawn but -1, and what it was is nearly always one of these.
    text = f"worker {number} could not be started ({safe(str(error), 200)})"
    _say(logging.ERROR, None, f"{text}: out of descriptors, processes or memory? trying again")


def worker_replaced(number: int, process: int) -> None:
    _say(logging.INFO, None, f"worker {number} runs again (process {process})")


def copy_compressed(size: int) -> None:
    _say(logging.DEBUG, None, f"compressed the kept copy of a request body to {size} bytes")


def copies_given_up(count: int) -> None:
    text = f"memory pressure: gave up the kept copies of {count} request bodies; those are not sent again"
    _say(logging.WARNING, None, text)


def readers_cut_off(count: int) -> None:
    text = f"memory pressure: cut off {count} clients that did not read their responses"
    _say(logging.WARNING, None, text)


def plain_engine() -> None:
    text = "the compiled engine is not in use: plain Python does the work, several times slower"
    _say(logging.WARNING, None, text)


def processors_ignored(value: str) -> None:
    _say(
        logging.INFO,
        None,
        f"GOMAXPROCS={safe(value, 20)} has no effect: -workers sets how many cores are used",
    )


def warning(text: str, settings: Settings | None = None) -> None:
    _say(logging.WARNING, settings, text)


def note(text: str, settings: Settings | None = None) -> None:
    _say(logging.INFO, settings, text)


def failed(text: str) -> None:
    """Why the program ends, when it cannot work."""
    _say(logging.ERROR, None, text)


def defect(text: str, error: BaseException) -> None:
    """An exception that nobody expected: the one place where a traceback is logged."""
    MAIN.error("%s", text, exc_info=(type(error), error, error.__traceback__))


def loop_exception(context: Mapping[str, Any]) -> None:
    """For loop.set_exception_handler: the message and the traceback, none of the objects it names."""
    text = safe(str(context.get("message", "unhandled exception in the event loop")))
    error = context.get("exception")
    if error is None:
        MAIN.error("%s", text)
    else:
        defect(text, error)


def _of(settings: Settings | None) -> str:
    return f"[{settings.name}] " if settings is not None and settings.name else ""


def _instance_field(settings: Settings | None) -> dict[str, Any]:
    return {"instance": settings.name} if settings is not None and settings.name else {}


def _say(level: int, settings: Settings | None, text: str) -> None:
    if MAIN.isEnabledFor(level):
        MAIN.log(level, "%s%s", _of(settings), text, extra={"fields": _instance_field(settings)})

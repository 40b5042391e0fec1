"""Log: phrases, the one line of a request, nothing secret, nobody waits for the reader."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h2ping import errors, log
from h2ping.config import parse
from h2ping.log import AccessRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = parse({"upstream": "https://api.example/v1"})
NAMED = parse({"upstream": "https://api.example", "name": "judge", "access_log": "true"})


class Pipe:
    """A sink whose other end a test reads."""

    def __init__(self, level: str = "debug", form: str = "text") -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._writer = writer
        self.sink = log.configure(level, form, writer)

    def text(self) -> str:
        self.sink.flush()
        parts = []
        while True:
            try:
                part = os.read(self._reader, 1 << 20)
            except BlockingIOError:
                break
            if not part:
                break
            parts.append(part)
        return b"".join(parts).decode("ascii")

    def lines(self) -> list[str]:
        return self.text().splitlines()

    @contextmanager
    def reading(self) -> Iterator[list[bytes]]:
        """Another thread reads until the writing end is closed, when the block ends."""
        parts: list[bytes] = []
        os.set_blocking(self._reader, True)
        thread = threading.Thread(
            target=lambda: parts.extend(iter(lambda: os.read(self._reader, 65536), b""))
        )
        thread.start()
        yield parts
        os.close(self._writer)
        thread.join(10)
        self._writer = os.open(os.devnull, os.O_WRONLY)

    def close(self) -> None:
        for descriptor in (self._reader, self._writer):
            os.close(descriptor)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()
    reset()


def reset() -> None:
    for name in ("h2ping", "asyncio"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


def record(**values: Any) -> AccessRecord:
    known: dict[str, Any] = {
        "ident": 7, "method": b"POST", "path": b"/v1/chat/completions?token=S3CR3T&b",
        "status": 502, "attempts": 2,
        "connection_id": 3, "stream_id": 5, "cause": "goaway-refused", "code": 0, "processed": "refused",
        "elapsed": 1.5, "bytes_in": 10, "bytes_out": 20,
    }  # fmt: skip
    return AccessRecord(**{**known, **values})


# --- phrases --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "phrase"),
    [
        (lambda: log.listening(SETTINGS, "127.0.0.1:9"),
         "on 127.0.0.1:9 -> https://api.example/v1 (HTTP/2, PING every 1m0s idle, ack deadline 15s)"),
        (lambda: log.draining(3.0, 2),
         "shutdown requested; draining in-flight requests for up to 3s (2 in flight)"),
        (lambda: log.drain_incomplete(2, 3.0),
         "graceful shutdown incomplete: 3s ran out; 2 requests were cut"),
        (lambda: log.drain_incomplete(1, 3.0, "a second signal"),
         "graceful shutdown incomplete: a second signal; 1 request was cut"),
        (lambda: log.retired(SETTINGS, 2871.04),
         "retired upstream connections after 47m51s; new requests use a fresh connection"),
        (lambda: log.retired(SETTINGS, 0.3812),
         "retired upstream connections after 381ms; new requests use a fresh connection"),
        (lambda: log.retired_by_count(SETTINGS, 9000),
         "retired upstream connections after 9000 requests; new requests use a fresh connection"),
        (lambda: log.goaway(SETTINGS, 3, 9, 11, b"too\x00many\n"), 'GOAWAY ENHANCE_YOUR_CALM on connection 3 '
         '(last stream 9, "too\\x00many\\n")'),
        (lambda: log.goaway(SETTINGS, 3, 9, 0), "GOAWAY NO_ERROR on connection 3 (last stream 9)"),
        (lambda: log.calm_down(SETTINGS, 3, 120.0), "the PING interval is now 2m0s"),
        (lambda: log.dial_failed(SETTINGS, errors.UpstreamError(errors.DNS_FAILED, "no\nname"), 0.5),
         "connecting to https://api.example/v1 failed: dns-failed: no\\nname; the next attempt is at"),
        (lambda: log.copies_given_up(4), "gave up the kept copies of 4 request bodies"),
        (lambda: log.plain_engine(), "the compiled engine is not in use"),
        (lambda: log.processors_ignored("4"), "GOMAXPROCS=4 has no effect"),
        (lambda: log.warning("careful", NAMED), "[judge] careful"),
        (lambda: log.note("so it is"), "INFO so it is"),
        (lambda: log.failed("cannot bind x"), "ERROR cannot bind x"),
    ],
)  # fmt: skip
def test_a_phrase_stands_in_one_line(pipe: Pipe, call: Any, phrase: str) -> None:
    call()
    (line,) = pipe.lines()
    assert phrase in line
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) ", line)


def test_stopped_ends_its_line(pipe: Pipe) -> None:
    log.stopped()
    assert pipe.text().endswith(" stopped\n")


def test_messages_of_errors_have_their_phrases() -> None:
    assert log.cannot_bind("127.0.0.1:1", "address in use") == "cannot bind 127.0.0.1:1: address in use"
    text = log.cannot_write_ready_file("/x/y", "No such file")
    assert text == "cannot write -ready-file /x/y: No such file"


# --- the one line of a request --------------------------------------------------------------------


def test_a_failed_request_has_one_line_with_all_that_is_asked_for(pipe: Pipe) -> None:
    """every-failure-has-one-line"""
    log.request_failed(SETTINGS, record(detail="last stream 3"))
    (line,) = pipe.lines()
    assert "WARNING upstream error: POST /v1/chat/completions: goaway-refused: last stream 3 (" in line
    for part in ("request=7", "status=502", "attempts=2", "conn=3", "stream=5", "cause=goaway-refused",
                 "code=NO_ERROR", "processed=refused", "elapsed_ms=1500", "in=10", "out=20"):  # fmt: skip
        assert f"{part} " in line.replace(")", " "), part


@pytest.mark.parametrize("cause", sorted(errors.CAUSES))
def test_each_cause_opens_its_line_with_whose_fault_it_is(pipe: Pipe, cause: str) -> None:
    """client-abort-499-accounting: a client that left is not blamed on the upstream."""
    log.request_failed(SETTINGS, record(cause=cause))
    (line,) = pipe.lines()
    opening = line.split(" ", 2)[2].split(":")[0]
    client = {"bad-request", "ambiguous-length", "unsupported-coding", "connect-method", "max-forwards", "http-version",
              "head-too-large", "body-too-large", "body-timeout", "head-timeout",
              "reader-timeout", "response-unread"}  # fmt: skip
    own = {"queue-full", "queue-timeout", "memory-timeout", "draining", "shutdown-grace", "internal-error"}
    expected = (
        "client gone" if cause == "client-gone"
        else "client error" if cause in client
        else "request failed" if cause in own
        else "upstream error"
    )  # fmt: skip
    assert opening == expected


def test_a_message_is_never_empty_after_the_colon(pipe: Pipe) -> None:
    """every-failure-has-one-line"""
    log.request_failed(SETTINGS, record(cause=None, detail=""))
    assert "upstream error: POST /v1/chat/completions: unknown (" in pipe.text()


def test_a_request_that_reached_no_connection_has_none_in_its_line(pipe: Pipe) -> None:
    log.request_failed(SETTINGS, record(connection_id=0, stream_id=0, attempts=0))
    assert "attempts=0 conn=- stream=- " in pipe.text()


def test_a_request_that_was_sent_again_has_one_line_also_when_it_was_answered(pipe: Pipe) -> None:
    pipe.sink.setLevel(logging.INFO)
    log.request_retried(SETTINGS, record(attempts=1))
    log.request_done(SETTINGS, record(status=200, processed=None))
    (line,) = pipe.lines()
    assert "request re-sent: POST /v1/chat/completions: answered at attempt 2" in line
    assert "cause=goaway-refused" in line


def test_the_access_log_adds_the_other_requests(pipe: Pipe) -> None:
    log.request_done(SETTINGS, record(status=200, attempts=1, cause=None))
    assert pipe.lines() == []
    log.request_done(NAMED, record(status=200, attempts=1, cause=None, code=None))
    (line,) = pipe.lines()
    assert "INFO [judge] request: POST /v1/chat/completions (" in line
    assert "cause=- code=-" in line


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_query_value_is_ever_logged(form: str) -> None:
    """secrets-not-logged"""
    pipe = Pipe("debug", form)
    try:
        for path in (b"/v1?token=S3CR3T", b"*?S3CR3T", b"/a#S3CR3T", b"/a?b#S3CR3T?S3CR3T"):
            log.request_failed(NAMED, record(path=path))
            log.request_retried(NAMED, record(path=path))
            log.request_done(NAMED, record(path=path, attempts=1))
        text = pipe.text()
        assert text.count("\n") == 12
        assert "S3CR3T" not in text
    finally:
        pipe.close()
        reset()


def test_a_json_line_has_the_fields_apart() -> None:
    pipe = Pipe("info", "json")
    try:
        log.request_failed(NAMED, record(detail="x\x1b[31m"))
        log.listening(NAMED, "127.0.0.1:9")
        failed, listening = (json.loads(line) for line in pipe.lines())
    finally:
        pipe.close()
        reset()
    assert failed["level"] == "warning"
    assert failed["instance"] == "judge"
    assert (failed["path"], failed["cause"], failed["attempts"]) == (
        "/v1/chat/completions",
        "goaway-refused",
        2,
    )
    assert failed["elapsed_ms"] == 1500
    assert failed["detail"] == "x\\x1b[31m"
    assert listening["message"].startswith("[judge] listening on 127.0.0.1:9 -> ")


def test_what_never_became_a_request_has_no_number_method_or_path() -> None:
    nothing = record(ident=None, method=b"", path=b"")
    assert [nothing.fields()[name] for name in ("request_id", "method", "path")] == [None] * 3
    assert nothing.what == "- -"
    assert nothing.evidence().startswith("request=- ")


def test_lines_of_the_process_name_no_instance() -> None:
    """Draining and stopping are one thing for all instances."""
    pipe = Pipe("info", "text")
    try:
        log.draining(3.0, 0)
        log.drain_incomplete(1, 3.0)
        log.stopped()
        assert not any("[" in line for line in pipe.lines())
    finally:
        pipe.close()
        reset()


@given(st.binary(max_size=600), st.text(max_size=600))
def test_any_text_of_a_peer_becomes_one_short_printable_line(path: bytes, detail: str) -> None:
    for text in (log.safe(path), log.safe(detail)):
        assert len(text) <= log.LONGEST_TEXT
        assert text.isascii()
        assert text.isprintable()
    fields = record(path=path, detail=detail, method=path).fields()
    assert "\n" not in json.dumps(fields)
    assert len(str(fields)) < 2000


def test_error_codes_have_their_names_of_rfc_9113() -> None:
    """RFC 9113 section 7"""
    assert [log.error_name(code) for code in (0, 1, 2, 7, 8, 11, 13)] == [
        "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "REFUSED_STREAM", "CANCEL", "ENHANCE_YOUR_CALM",
        "HTTP_1_1_REQUIRED",
    ]  # fmt: skip
    assert log.error_name(14) == "0xe"


# --- the sink -------------------------------------------------------------------------------------


def test_nobody_waits_for_the_reader_and_what_is_dropped_is_said(pipe: Pipe) -> None:
    for number in range(log.BACKLOG_LINES + 3000):
        log.note(f"{number} " + "x" * 60)
    first = pipe.text()
    assert "0 xxx" in first
    rest = first
    while part := pipe.text():
        rest += part
    assert re.search(r"\((\d+) log lines dropped: nobody read them\)", rest)
    log.note("after all")
    assert pipe.text().endswith("after all\n")


def test_a_line_is_never_longer_than_a_pipe_takes_at_once(pipe: Pipe) -> None:
    log.note("x" * 10_000)
    text = pipe.text()
    assert len(text) == log.LONGEST_LINE_BYTES + 1
    assert text.endswith("...\n")


def test_a_reader_that_is_gone_stops_nothing() -> None:
    reader, writer = os.pipe()
    log.configure("info", "text", writer)
    try:
        os.close(reader)
        for _ in range(3):
            log.note("nobody hears it")
    finally:
        os.close(writer)
        reset()


def test_close_waits_for_a_reader_that_is_late(pipe: Pipe) -> None:
    for _ in range(1500):
        log.note("x" * 100)
    with pipe.reading() as parts:
        pipe.sink.close()
    assert b"".join(parts).count(b"\n") == 1500


def test_close_does_not_wait_for_nobody_twice(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """logging closes every handler once more when the interpreter ends."""
    for _ in range(1500):
        log.note("x" * 100)
    times = iter([0.0, 3.0])
    monkeypatch.setattr("h2ping.log.time.monotonic", lambda: next(times))
    pipe.sink.close()
    monkeypatch.setattr("h2ping.log.time.monotonic", lambda: 0.0)
    pipe.sink.close()


def test_levels_are_kept(pipe: Pipe) -> None:
    again = log.configure("error", "text", pipe.sink._descriptor)
    log.note("hidden")
    log.request_failed(SETTINGS, record())
    log.failed("shown")
    assert [line.split(" ", 1)[1] for line in pipe.lines()] == ["ERROR shown"]
    assert [each for each in logging.getLogger("h2ping").handlers if isinstance(each, log.Sink)] == [again]


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_unexpected_exception_has_a_traceback_and_none_of_the_loops_objects(form: str) -> None:
    pipe = Pipe("info", form)
    try:
        try:
            raise RuntimeError("odd")
        except RuntimeError as error:
            log.loop_exception({"message": "in a callback\n", "exception": error, "handle": "S3CR3T"})
        log.loop_exception({"message": "no exception", "transport": "S3CR3T"})
        text = pipe.text()
    finally:
        pipe.close()
        reset()
    assert "RuntimeError: odd" in text
    assert "in a callback\\" in text
    assert "no exception" in text
    assert "S3CR3T" not in text


def test_a_program_that_embeds_us_decides_where_lines_go(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="h2ping"):
        log.listening(SETTINGS, "127.0.0.1:9")
    assert "listening on 127.0.0.1:9" in caplog.text

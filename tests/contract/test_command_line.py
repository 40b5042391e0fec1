"""Flags, their grammar, and how the program refuses: 2 for what cannot be read, 1 for what cannot work."""

from __future__ import annotations

import re

import pytest

from tests.support.proxy import run
from tests.support.stage import ENGINE

UPSTREAM = "https://localhost:1"
FLAGS = (
    "insecure-skip-verify", "listen", "max-conn-age", "ping-interval", "ping-timeout", "ready-file",
    "retry-body-limit", "shutdown-grace", "upstream",
)  # fmt: skip


async def refused(program: str, *flags: str) -> tuple[int, str]:
    """Exit code and the one line that says why."""
    code, text = await run(program, "-listen", "127.0.0.1:0", *flags, engine=ENGINE)
    assert "listening on" not in text
    lines = text.strip().splitlines()
    assert lines, "it ended without a word"
    return code, text


async def test_an_upstream_is_required(program: str) -> None:
    code, text = await refused(program)
    assert code == 1
    assert "-upstream is required" in text


@pytest.mark.parametrize("url", ["http://localhost:1", "ftp://localhost", "wss://localhost:1"])
async def test_the_upstream_must_be_https(program: str, url: str) -> None:
    code, text = await refused(program, "-upstream", url)
    assert code == 1
    assert "-upstream must be an https:// URL" in text
    assert "HTTP/2 is negotiated via ALPN" in text


@pytest.mark.parametrize("flag", ["-nope", "--nope", "-nope=1", "-lis", "-ping"])
async def test_an_unknown_flag_is_named(program: str, flag: str) -> None:
    """Also one that abbreviates a known flag."""
    code, text = await refused(program, "-upstream", UPSTREAM, flag, "1")
    assert code == 2
    assert f"flag provided but not defined: -{flag.strip('-').partition('=')[0]}" in text


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("ping-interval", "60"),
        ("ping-interval", "5 s"),
        ("ping-interval", "abc"),
        ("ping-timeout", ""),
        ("max-conn-age", "1d"),
        ("shutdown-grace", "1h2"),
        ("retry-body-limit", "many"),
        ("insecure-skip-verify", "maybe"),
    ],
)
async def test_a_value_that_cannot_be_read_is_named_with_its_flag(
    program: str, flag: str, value: str
) -> None:
    code, text = await refused(program, "-upstream", UPSTREAM, f"-{flag}={value}")
    assert code == 2
    assert f'invalid value "{value}" for flag -{flag}' in text or (
        flag == "insecure-skip-verify" and f'invalid boolean value "{value}" for -{flag}' in text
    )


async def test_a_flag_without_its_value_is_refused(program: str) -> None:
    code, text = await refused(program, "-upstream", UPSTREAM, "-ping-interval")
    assert code == 2
    assert "-ping-interval" in text


@pytest.mark.parametrize(
    ("flag", "value", "limit"),
    [("ping-interval", "5m40s", "340s"), ("ping-interval", "1h", "340s"), ("max-conn-age", "1h", "3600s")],
)
async def test_a_duration_beyond_the_path_is_refused_with_the_reason(
    program: str, flag: str, value: str, limit: str
) -> None:
    code, text = await refused(program, "-upstream", UPSTREAM, f"-{flag}", value)
    assert code == 1
    assert f"-{flag} {value}" in text
    assert limit in text


@pytest.mark.parametrize("flag", ["-h", "-help", "--help"])
async def test_help_exits_0_and_lists_every_flag(program: str, flag: str) -> None:
    code, text = await run(program, flag, engine=ENGINE)
    assert code == 0
    for name in FLAGS:
        assert re.search(rf"(?m)^\s+-{name}\b", text), name


async def test_the_two_programs_differ_in_two_defaults() -> None:
    """Listen address and shutdown grace."""
    for program, listen, grace in (
        ("h2ping", "127.0.0.1:1250", ("60s", "1m")),
        ("h2-ping-sidecar", "127.0.0.1:8080", ("15m",)),
    ):
        _, text = await run(program, "-h", engine=ENGINE)
        assert listen in text
        after = re.split(r"(?m)^\s+-shutdown-grace\b", text)[1]
        entry = re.split(r"(?m)^\s+-\w", after)[0]
        assert any(value in entry for value in grace), entry


async def test_version_names_what_is_running(program: str) -> None:
    code, text = await run(program, "--version", engine=ENGINE)
    assert code == 0
    for part in ("Python", "OpenSSL", "h2", "uvloop", "compiled" if ENGINE == "c" else "plain"):
        assert part in text, part

"""Durations and sizes in Go's grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h2ping.units import (
    brief_duration,
    format_duration,
    format_size,
    parse_boolean,
    parse_duration,
    parse_integer,
    parse_limit,
    parse_seconds,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0), ("+0", 0.0), ("0s", 0.0), ("60s", 60.0), ("1m30s", 90.0), ("1.5h", 5400.0),
        ("300ms", 0.3), ("1h0m0.5s", 3600.5), (".5s", 0.5), ("1.s", 1.0), ("-2s", -2.0), ("+2s", 2.0),
        ("5us", 5e-6),
        ("5µs", 5e-6), ("5\u03bcs", 5e-6), ("7ns", 7e-9), ("1s1s", 2.0), ("+.5s", 0.5), ("-0", 0.0),
        ("1h2m3.5s", 3723.5), ("0.1ns", 0.0), ("1.9ns", 1e-9), ("9223372036854775807ns", 2**63 / 1e9),
        ("0.333333333333333333333333333333333333s", 0.333333333),
    ],
)  # fmt: skip
def test_a_duration_is_a_sequence_of_numbers_each_with_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "60", "1.5", "-60", "s", "1", "1 s", " 1s", "1s ", "1d", "1S", "1m30", "1e3s", "\u0661s", "--1s",
    "1s,",
     "1_0s", "inf", "nan", "300years", "9999999999h", "+", "-", ".", ".s", "1.2.3s", "9223372036854775808ns",
     "2562047h47m16.9s", "+-1s", "0x1s", "1s-1s", "9" * 5000 + "s"],
)  # fmt: skip
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_duration(text)


def test_a_number_without_a_unit_is_refused_with_the_spelling_that_works() -> None:
    with pytest.raises(ValueError, match="write 60s for seconds"):
        parse_duration("60")


@pytest.mark.parametrize(
    ("seconds", "text", "brief"),
    [
        (0.0, "0s", "0s"), (60.0, "1m0s", "1m"), (90.0, "1m30s", "1m30s"), (3600.0, "1h0m0s", "1h"),
        (5400.0, "1h30m0s", "1h30m"), (340.0, "5m40s", "5m40s"), (0.3, "300ms", "300ms"),
        (1.5, "1.5s", "1.5s"),
        (0.0015, "1.5ms", "1.5ms"), (1e-6, "1us", "1us"), (1e-9, "1ns", "1ns"), (-90.0, "-1m30s", "-1m30s"),
        (600.0, "10m0s", "10m"), (36000.0, "10h0m0s", "10h"), (3600.25, "1h0m0.25s", "1h0m0.25s"),
    ],
)  # fmt: skip
def test_a_duration_prints_as_go_prints_it(seconds: float, text: str, brief: str) -> None:
    assert format_duration(seconds) == text
    assert brief_duration(seconds) == brief


@given(st.integers(min_value=0, max_value=10**15).map(lambda nanoseconds: nanoseconds / 1e9))
def test_what_is_printed_can_be_read_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-9)
    assert parse_duration(brief_duration(seconds)) == pytest.approx(seconds, abs=1e-9)


def test_a_number_where_the_format_has_numbers_means_seconds() -> None:
    assert parse_seconds(1.5) == 1.5
    for number in (float("nan"), float("inf"), 1e30):
        with pytest.raises(ValueError, match="out of range"):
            parse_seconds(number)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("16777216", 16777216), ("512MiB", 512 << 20), ("1GiB", 1 << 30), ("2TiB", 2 << 40),
        ("5B", 5), ("0x10", 16), ("+5", 5), ("1_000", 1000), ("010", 8), ("010KiB", 10 << 10),
        ("64KiB", 65536), ("64 kib", 65536),
    ],
)  # fmt: skip
def test_a_size_is_bytes_or_has_a_binary_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5GiB", "1GB", "1G", "off", "0x10KiB", "1_0KiB", "MiB", "9" * 25, "9000000TiB"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("-0", 0), ("+5", 5), ("-5", -5), ("00", 0), ("017", 15), ("0_17", 15), ("0o17", 15), ("0O1_7", 15),
        ("0x10", 16), ("0XfF", 255), ("-0x_1F", -31), ("0b101", 5), ("0B1_0", 2), ("1_000_000", 10**6),
        ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)), ("0x7fff_ffff_ffff_ffff", 2**63 - 1),
    ],
)  # fmt: skip
def test_a_whole_number_is_written_as_gos_flags_take_it(text: str, number: int) -> None:
    """strconv.ParseInt with base 0."""
    assert parse_integer(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "+", "-", "_1", "1_", "1__0", "0x", "0x_", "0_", "08", "0o8", "0b2", "0xg", "+-1", "--1", " 1", "1 ", "1.0",
     "1e3", "\u0661", "0x\u0661", "9223372036854775808", "-9223372036854775809", "0x8000000000000000", "9" * 5000],
)  # fmt: skip
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_integer(text)


@pytest.mark.parametrize("size", [1, 1000, 1024, 1536, 16 << 20, (1 << 30) + 1, 3 << 40])
def test_a_size_that_is_printed_can_be_read_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_off_is_no_limit() -> None:
    assert parse_limit("off") == 0
    assert parse_limit("1KiB") == 1024


def test_booleans_are_those_of_go() -> None:
    assert [parse_boolean(text) for text in ("true", "1", "T", "False", "0", "f")] == [True] * 3 + [False] * 3
    for text in ("yes", "", "tRue", "2"):
        with pytest.raises(ValueError, match="true or false"):
            parse_boolean(text)

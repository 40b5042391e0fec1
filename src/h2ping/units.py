"""How numbers, durations and sizes are written: Go's grammars, because the drop-in's users write Go's flags.

Theory of operation
-------------------
1. A duration is a sequence of decimal numbers, each with a unit `ns us ms s m h`, as in `1m30s` or `1.5h`; a
   bare `0` is allowed. A number without a unit is refused, so that nobody has to guess what `60` means.
2. A whole number may have a sign, a base (`0x10`, `0b1`, `0o17` or `017`) and `_` between digits.
3. A size is such a number of bytes or a decimal one with a unit `B KiB MiB GiB TiB`: the grammar of GOMEMLIMIT.
4. What is printed can be read back.

Parsers raise ValueError with the reason only; who calls knows the name of the setting.
"""

from __future__ import annotations

import re

_UNIT_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # the micro sign
    "\u03bcs": 1_000,  # the Greek letter; Go reads both
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION_PART = re.compile(r"(?=\.?[0-9])([0-9]*)\.?([0-9]*)([a-z\u00b5\u03bc]+)")
_BARE_NUMBER = re.compile(r"[0-9]+\.?[0-9]*|\.[0-9]+")

LONGEST_DURATION = 2.0**63 / 1e9
"""Go holds a duration as nanoseconds in 64 bits: about 292 years."""

# What Go's strconv.ParseInt takes where it finds out the base. A leading 0 means octal, which int() refuses.
_INTEGER = re.compile(r"[+-]?(0[xX](_?[0-9a-fA-F])+|0[bB](_?[01])+|0[oO]?(_?[0-7])+|[1-9](_?[0-9])*|0)")
_OCTAL = re.compile(r"^([+-]?)0(?=[0-7_])")

_SIZE = re.compile(r"([0-9]+)\s*([A-Za-z]*)")
_UNIT_BYTES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}

LARGEST_NUMBER = 2**63 - 1

# What Go's strconv.ParseBool takes.
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as `1m30s`; what is less than a nanosecond is cut off."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0.0
    if _BARE_NUMBER.fullmatch(rest):
        raise ValueError(f"a duration needs a unit: write {text}s for seconds")
    total, end = 0, 0
    while end < len(rest):
        part = _DURATION_PART.match(rest, end)
        if part is None or part[3] not in _UNIT_NANOSECONDS:
            raise ValueError("not a duration such as 300ms, 60s or 1m30s")
        whole, fraction, unit = part[1], part[2], _UNIT_NANOSECONDS[part[3]]
        total += int(whole or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        end = part.end()
    if not rest:
        raise ValueError("empty; write a duration such as 300ms, 60s or 1m30s")
    if total > LARGEST_NUMBER:
        raise ValueError("the duration is out of range")
    return sign * total / 1e9


def parse_seconds(number: float) -> float:
    """A duration given as a number where the format has numbers (YAML): seconds."""
    if not abs(number) < LONGEST_DURATION:  # also refuses NaN
        raise ValueError("the duration is out of range")
    return float(number)


def format_duration(seconds: float) -> str:
    """As Go prints it: `1m30s`, `1h0m0s`, `1.5s`, `300ms`, `0s`."""
    sign = "-" if seconds < 0 else ""
    nanoseconds = round(abs(seconds) * 1e9)
    if nanoseconds == 0:
        return "0s"
    for unit, size in (("ns", 1), ("us", 1_000), ("ms", 1_000_000)):
        if nanoseconds < size * 1_000:
            return f"{sign}{_decimal(nanoseconds, size)}{unit}"
    minutes, nanoseconds = divmod(nanoseconds, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(nanoseconds, 1_000_000_000)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else sign + text


def brief_duration(seconds: float) -> str:
    """As people write it: `50m`, not `50m0s`. For tables of defaults."""
    text = format_duration(seconds)
    for tail in ("m0s", "h0m"):
        if text.endswith(tail):
            text = text[:-2]
    return text


def _decimal(value: int, size: int) -> str:
    whole, rest = divmod(value, size)
    if not rest:
        return str(whole)
    digits = str(rest).rjust(len(str(size)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}"


def parse_integer(text: str) -> int:
    """A whole number as Go's flags take it: `5`, `+5`, `0x10`, `1_000`."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("not a whole number")
    number = int(_OCTAL.sub(r"\g<1>0o", text), 0)
    if not -LARGEST_NUMBER - 1 <= number <= LARGEST_NUMBER:
        raise ValueError("the number is out of range")
    return number


def parse_size(text: str) -> int:
    """Bytes of `512MiB`, `1GiB` or a whole number."""
    if _INTEGER.fullmatch(text):
        size = parse_integer(text)
        if size < 0:
            raise ValueError("must not be below 0")
        return size
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a size such as 16777216, 512MiB or 1GiB")
    unit = _UNIT_BYTES.get(match[2].lower())
    if unit is None:
        raise ValueError(f"unknown unit {match[2]}; use KiB, MiB, GiB or TiB")
    if len(match[1]) > 19 or (size := int(match[1]) * unit) > LARGEST_NUMBER:
        raise ValueError("the size is out of range")
    return size


def parse_limit(text: str) -> int:
    """A size, or `off` (no limit), which is 0 here: the grammar of GOMEMLIMIT."""
    return 0 if text.strip().lower() == "off" else parse_size(text)


def format_size(size: int) -> str:
    """In the largest unit that divides it: `512MiB`, `1000`."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def parse_boolean(text: str) -> bool:
    """`true`, `false` and what else Go takes for them."""
    try:
        return _BOOLEANS[text]
    except KeyError:
        raise ValueError("not true or false") from None

"""Options of the sub-commands (`h2ping lab`, `gym`, `env`, `ray`): argparse, with this program's manners.

The flags of the proxy itself have Go's grammar, see arguments.py. What is alike is how a mistake is told: one line
that names the option, says what is wrong with it and where to look, and exit code 2.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, NoReturn, TypeVar

from h2ping.errors import ConfigError
from h2ping.units import parse_duration, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")


class Parser(argparse.ArgumentParser):
    """Whole option names only; a mistake is a ConfigError."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **settings})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """argparse would print its usage, many lines of it, before the one that counts."""
        raise ConfigError("", f"{message}; see {self.prog} -h", exit_code=2)


def option(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """A `type=` for argparse of a parser whose ValueError says why; argparse itself would name the function."""

    def read(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f'invalid value "{text[:60]}": {error}') from None

    return read


def _whole(text: str, least: int, most: float = math.inf) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("not a whole number")
    value = int(text)
    if not least <= value <= most:
        raise ValueError(
            f"must be at least {least}" if most == math.inf else f"must be from {least} to {most}"
        )
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a number") from None
    if not math.isfinite(value):
        raise ValueError("not a number")
    return value


def _seconds(text: str) -> float:
    try:
        value = _number(text)
    except ValueError:
        value = parse_duration(text)
    if value < 0:
        raise ValueError("must not be below 0")
    return value


def _factor(text: str) -> float:
    value = _number(text)
    if value <= 0:
        raise ValueError("must be above 0")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 1:
        raise ValueError("must be from 0 to 1")
    return value


count = option(lambda text: _whole(text, 1))
count_or_none = option(lambda text: _whole(text, 0))
port = option(lambda text: _whole(text, 0, 65535))
duration = option(_seconds)
"""`340s`, `1m30s`, or plain seconds."""
factor = option(_factor)
share = option(_share)
size = option(parse_size)

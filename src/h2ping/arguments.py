"""Go's flag grammar: argv in, field names and texts out.

Theory of operation (the package `flag` of Go is what the drop-in's users know)
-------------------------------------------------------------------------------
1. One dash or two; `-flag value` or `-flag=value`. The next word is the value whatever it looks like.
2. A boolean is bare or `=true|false`; it never takes the next word.
3. The last of several wins.
4. Names are whole: nothing is abbreviated, which is why argparse is not used.

Values are not read here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from h2ping.config import FLAGS
from h2ping.errors import ConfigError
from h2ping.units import parse_boolean

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIELD_OF: Final = {flag.name: name for name, flag in FLAGS.items()}
_SWITCHES: Final = frozenset(flag.name for flag in FLAGS.values() if flag.is_switch) | {
    "h",
    "help",
    "version",
}
_WITH_VALUE: Final = frozenset({"config"}) | (frozenset(_FIELD_OF) - _SWITCHES)


@dataclass
class Arguments:
    """What a command line says."""

    values: dict[str, str] = field(default_factory=dict)
    """Field name -> text."""
    config: str = ""
    help: bool = False
    version: bool = False


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Raises ConfigError with code 2, whose message is one line that names the flag."""
    arguments = Arguments()
    words = iter(argv)
    for word in words:
        name, value = _split(word)
        if name in _SWITCHES:
            text = "true" if value is None else value
            _check_boolean(name, text)
        elif name in _WITH_VALUE:
            text = value if value is not None else next(words, "\0")
            if text == "\0":
                raise ConfigError("", f"flag needs an argument: -{name}", exit_code=2)
        else:
            raise ConfigError("", f"flag provided but not defined: -{_shown(name)}", exit_code=2)
        _take(arguments, name, text)
        if arguments.help:
            break  # as in Go, whatever follows
    return arguments


def _split(word: str) -> tuple[str, str | None]:
    if len(word) < 2 or not word.startswith("-") or word == "--":
        raise ConfigError("", f'unexpected argument "{_shown(word)}": flags only', exit_code=2)
    name, equals, value = word[2 if word.startswith("--") else 1 :].partition("=")
    if not name or name.startswith("-"):
        raise ConfigError("", f"bad flag syntax: {_shown(word)}", exit_code=2)
    return name, value if equals else None


def _check_boolean(name: str, text: str) -> None:
    try:
        parse_boolean(text)
    except ValueError as error:
        reason = f'invalid boolean value "{_shown(text)}" for -{name}: {error}'
        raise ConfigError("", reason, exit_code=2) from None


def _take(arguments: Arguments, name: str, text: str) -> None:
    if name in ("h", "help"):
        arguments.help = parse_boolean(text)
    elif name == "version":
        arguments.version = parse_boolean(text)
    elif name == "config":
        arguments.config = text
    else:
        arguments.values[_FIELD_OF[name]] = text


def _shown(text: str) -> str:
    """Of a word that is none of ours: it may be a URL with a password."""
    text = text.encode("unicode_escape").decode("ascii")
    text = "***@" + text.rpartition("@")[2] if "@" in text else text
    return text if len(text) <= 60 else text[:60] + "..."

"""The `sidecar:` block of NeMo Gym's env.yaml, checked.

Theory of operation
-------------------
1. The block is checked whole before anything starts, and every problem is reported at once, each with its
   path (`sidecar.instances[0].upstream`), because each try costs the user a minute of Gym's own start.
2. A key that is not in the table is an error, also in a block that is not enabled: `enabeld: true` must not
   pass.
3. Durations and sizes are handed on as the user wrote them; a plain number is seconds and becomes `60s`.
4. Only scheme, host and port of an upstream count, in lower case: paths come from the servers' own URLs.

The block arrives as a mapping whose interpolations are resolved; values may then be strings (`"true"`,
`"30"`). This module starts nothing and reads no file, and runs in Gym's interpreter too: standard library
only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from h2ping.address import Address, Upstream
from h2ping.errors import ConfigError
from h2ping.timers import ACCELERATOR_IDLE, ALB_AGE
from h2ping.units import format_duration, parse_boolean, parse_duration, parse_seconds

BLOCK = "sidecar"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_MEMORY = re.compile(r"off|[0-9]+(B|KiB|MiB|GiB|TiB)?")


@dataclass(frozen=True)
class Instance:
    """One proxy: where it listens and which origin is behind it."""

    name: str
    upstream: str
    host: str
    port: int
    listen: Address


@dataclass(frozen=True)
class Block:
    """The block with its defaults filled in. Durations are texts in Go's grammar."""

    enabled: bool = False
    instances: tuple[Instance, ...] = ()
    binary: str = ""
    build_if_missing: bool = True
    ping_interval: str = "60s"
    ping_timeout: str = "15s"
    shutdown_grace: str = "60s"
    retry_body_limit: int = 16777216
    max_conn_age: str = "50m"
    gomemlimit: str = ""
    gomaxprocs: int = 0
    startup_timeout_seconds: float = 30.0
    log_dir: str = ""
    insecure_skip_verify: bool = False
    rewrite_base_urls: bool = True
    warnings: tuple[str, ...] = field(default=())

    @property
    def grace(self) -> float:
        """Seconds that a proxy may take to let its requests finish."""
        return parse_duration(self.shutdown_grace)

    @property
    def environment(self) -> dict[str, str]:
        """What the block adds to a proxy's environment."""
        added = {"GOMEMLIMIT": self.gomemlimit, "GOMAXPROCS": str(self.gomaxprocs or "")}
        return {name: value for name, value in added.items() if value}

    def flags(self, instance: Instance, ready_file: str) -> list[str]:
        """The command line that Gym's own launcher uses: eight flags, always all of them, the switch last."""
        words = [
            "-listen", str(instance.listen),
            "-upstream", instance.upstream,
            "-ping-interval", self.ping_interval,
            "-ping-timeout", self.ping_timeout,
            "-shutdown-grace", self.shutdown_grace,
            "-retry-body-limit", str(self.retry_body_limit),
            "-max-conn-age", self.max_conn_age,
            "-ready-file", ready_file,
        ]  # fmt: skip
        return [*words, "-insecure-skip-verify"] if self.insecure_skip_verify else words


def read(block: object) -> Block:
    """Check the value of the top-level key `sidecar`. Raises ConfigError with every problem found."""
    if block is None:
        return Block()
    if not isinstance(block, Mapping):
        raise ConfigError(BLOCK, f"must be a mapping, not {_shown(block)}")
    reader = _Reader()
    values = reader.known(block, BLOCK, _READERS)
    if values.get("enabled") and not values.get("instances") and not reader.problems:
        reader.refuse(
            f"{BLOCK}.instances", "is required when the block is enabled: a list of {name, upstream, listen}"
        )
    if reader.problems:
        raise ConfigError("", "\n".join(reader.problems))
    return Block(**values, warnings=tuple(reader.warnings))


class _Reader:
    """Reads keys by a table and gathers what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def refuse(self, where: str, reason: str) -> None:
        self.problems.append(f"{where}: {reason}")

    def known(self, mapping: Mapping[Any, Any], where: str, readers: Mapping[str, Any]) -> dict[str, Any]:
        """Values of the keys that are set and hold something."""
        values: dict[str, Any] = {}
        for key in mapping:
            place = f"{where}.{key}"
            if key not in readers:
                near = difflib.get_close_matches(str(key), readers, 1)
                self.refuse(place, f"unknown key; did you mean {near[0]}?" if near else "unknown key")
                continue
            try:
                value = mapping[key]
            except Exception as error:  # an interpolation may fail in any way its resolver likes
                self.refuse(place, str(error).partition("\n")[0])
                continue
            if value is None:
                continue  # a key without a value keeps its default, as in the rest of Gym's configuration
            try:
                values[key] = readers[key](self, value, place)
            except ValueError as error:
                self.refuse(place, str(error))
        return values

    def text(self, value: object, where: str) -> str:
        if not isinstance(value, str):
            raise ValueError(f"must be a text, not {_shown(value)}")
        return value.strip()

    def switch(self, value: object, where: str) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            return parse_boolean(value.strip())
        raise ValueError(f"must be true or false, not {_shown(value)}")

    def count(self, value: object, where: str, lowest: int = 0) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {_shown(value)}")
        if value < lowest:
            raise ValueError(f"must be at least {lowest}, not {value}")
        return value

    def threads(self, value: object, where: str) -> int:
        return self.count(value, where, lowest=1)

    def timeout(self, value: object, where: str) -> float:
        seconds = _seconds(value)[1]
        if seconds <= 0:
            raise ValueError("must be above 0")
        return seconds

    def ping_interval(self, value: object, where: str) -> str:
        text, seconds = _seconds(value)
        if not 0 < seconds < ACCELERATOR_IDLE:
            raise ValueError(
                f"must be above 0 and below {ACCELERATOR_IDLE:g}s, where the path drops silent connections, "
                f"not {text}"
            )
        return text

    def ping_timeout(self, value: object, where: str) -> str:
        text, seconds = _seconds(value)
        if seconds <= 0:
            raise ValueError(f"must be above 0, not {text}")
        return text

    def grace(self, value: object, where: str) -> str:
        text, seconds = _seconds(value)
        if seconds < 0:
            raise ValueError(f"must not be negative, not {text}")
        return text

    def connection_age(self, value: object, where: str) -> str:
        text, seconds = _seconds(value)
        if not 0 <= seconds < ALB_AGE:
            raise ValueError(f"must be below {ALB_AGE:g}s (0s disables it), not {text}")
        return text

    def memory(self, value: object, where: str) -> str:
        text = str(value).strip() if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
        if not _MEMORY.fullmatch(text):
            raise ValueError(f"must be a size such as 512MiB, 1GiB or a number of bytes, not {_shown(value)}")
        return text

    def instances(self, value: object, where: str) -> tuple[Instance, ...]:
        if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
            raise ValueError(f"must be a list of {{name, upstream, listen}}, not {_shown(value)}")
        found: list[Instance] = []
        for index in range(len(value)):
            place = f"{where}[{index}]"
            item = value[index]
            if not isinstance(item, Mapping):
                self.refuse(place, f"must be a mapping with name, upstream and listen, not {_shown(item)}")
                continue
            values = self.known(item, place, _INSTANCE_READERS)
            if "upstream" not in values:
                if not any(problem.startswith(f"{place}.upstream") for problem in self.problems):
                    self.refuse(f"{place}.upstream", "is required")
                continue
            upstream: Upstream = values["upstream"]
            listen = values.get("listen") or Address("127.0.0.1", 1250)
            instance = Instance(
                values.get("name", "nvcf"), upstream.url, upstream.host, upstream.port, listen
            )
            for other in found:
                if other.name == instance.name:
                    self.refuse(
                        f"{place}.name", f"{instance.name} is used twice; give each instance its own name"
                    )
                if other.listen == instance.listen:
                    self.refuse(
                        f"{place}.listen", f"{instance.listen} is used twice; give each instance its own"
                    )
            found.append(instance)
        return tuple(found)

    def name(self, value: object, where: str) -> str:
        text = self.text(value, where)
        if not _NAME.fullmatch(text):
            raise ValueError(
                f"must be letters, digits, _ and -, starting with a letter or digit, not {text!r}"
            )
        return text

    def upstream(self, value: object, where: str) -> Upstream:
        text = self.text(value, where)
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise ValueError(f"not a URL: {error}") from None
        if parts.scheme.lower() != "https":
            raise ValueError("must be an https:// URL: HTTP/2 is negotiated via ALPN, inside TLS")
        return Upstream.parse(f"https://{parts.netloc.lower()}")

    def listen(self, value: object, where: str) -> Address:
        address = Address.parse(self.text(value, where))
        if address.port == 0:
            raise ValueError("the port must be a number from 1 to 65535: URLs are rewritten to it")
        if not address.host:
            raise ValueError("needs a host; write 127.0.0.1:PORT")
        if not address.is_loopback:
            self.warnings.append(
                f"{where}: {address} is not a loopback address: whoever reaches it can use the upstream"
            )
        return address


def _seconds(value: object) -> tuple[str, float]:
    """A duration as text and in seconds; a number, or a text that is one, means seconds."""
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            text += "s"
        return text, parse_duration(text)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(
            f"must be a duration such as 60s or 1m30s, or a number of seconds, not {_shown(value)}"
        )
    seconds = parse_seconds(value)
    text = f"{value}s" if isinstance(value, int) else format_duration(seconds)
    return text, seconds


def _shown(value: object) -> str:
    """What the user wrote, by kind; never a text, which may hold a key."""
    if isinstance(value, (bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a text" if isinstance(value, str) else "a list"


_INSTANCE_READERS = {"name": _Reader.name, "upstream": _Reader.upstream, "listen": _Reader.listen}
_READERS = {
    "enabled": _Reader.switch,
    "instances": _Reader.instances,
    "binary": _Reader.text,
    "build_if_missing": _Reader.switch,
    "ping_interval": _Reader.ping_interval,
    "ping_timeout": _Reader.ping_timeout,
    "shutdown_grace": _Reader.grace,
    "retry_body_limit": _Reader.count,
    "max_conn_age": _Reader.connection_age,
    "gomemlimit": _Reader.memory,
    "gomaxprocs": _Reader.threads,
    "startup_timeout_seconds": _Reader.timeout,
    "log_dir": _Reader.text,
    "insecure_skip_verify": _Reader.switch,
    "rewrite_base_urls": _Reader.switch,
}

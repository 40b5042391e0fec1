"""Every setting: its flag, grammar, default, help and checks, each standing once.

Theory of operation
-------------------
1. `Settings` is one instance: one listener and one upstream. A field's metadata holds a `Flag`; the command
   line, the environment, the file, `h2ping config`, `-help` and docs/flags.md are all made from it.
2. A value goes through two gates. Its grammar (`Kind.parse`): a text that cannot be read ends the program
   with code 2. Then `check`: values that can be read and cannot work together end it with code 1.
3. `h2ping` and `h2-ping-sidecar` are the same program; `Flag.sidecar` holds the few defaults that differ.
4. Zero means "off" or "no limit" exactly where the help says so.

This module reads neither argv nor environment nor files (see sources.py); it opens no socket. The one file it
looks at is the one that -ca-file names, to refuse it early.
"""

from __future__ import annotations

# ruff: noqa: RUF009 - `_setting` returns a dataclass field, which is what belongs there
import importlib.util
import re
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from h2ping.address import HOST_NAME, Address, ProhibitedValue, Upstream
from h2ping.errors import PERMANENT_STATUS, ConfigError
from h2ping.timers import ACCELERATOR_IDLE, ALB_AGE
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

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM: Final = "h2ping"
SIDECAR: Final = "h2-ping-sidecar"

SMALLEST_MEMORY: Final = 2**20
"""Below 1 MiB not even a few stream windows of 256 KiB fit, and nothing would move."""

SMALLEST_HEAD: Final = 1024
"""The head of an ordinary client with a long key; a smaller limit would refuse everybody."""

MOST_WORKERS: Final = 64
"""More than the cores of most machines, and few enough that a slip of the keyboard does not start thousands."""


# --- kinds of values ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """How the values of a setting are written, read and shown."""

    placeholder: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str]
    from_number: Callable[[float], Any] | None = None
    """Set where a YAML number means something other than its text."""


def _choice(*words: str) -> Kind:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be {' or '.join(words)}")
        return text

    return Kind("|".join(words), parse, str)


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text):
        raise ValueError("a name has letters, digits, `_` and `-` only, at most 64")
    return text


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character")
    return text


ADDRESS = Kind("HOST:PORT", Address.parse, lambda value: "" if value is None else str(value))
URL = Kind("URL", Upstream.parse, str)
DURATION = Kind("DURATION", parse_duration, format_duration, parse_seconds)
SIZE = Kind("BYTES", parse_size, format_size)
LIMIT = Kind("BYTES", parse_limit, lambda value: format_size(value) if value else "off")
COUNT = Kind("N", parse_integer, str)
SWITCH = Kind("", parse_boolean, lambda value: "true" if value else "false")
TEXT = Kind("TEXT", _text, str)
PATH = Kind("PATH", _text, str)
NAME = Kind("NAME", _name, str)


@dataclass(frozen=True)
class Flag:
    """What a field's metadata says about its setting."""

    group: str
    kind: Kind
    help: str
    default: Any
    sidecar: Any
    """Default of h2-ping-sidecar."""
    shared: bool
    """True for a setting of the whole process, which an instance of a file cannot have for itself."""
    field: str = ""

    @property
    def name(self) -> str:
        """As on the command line, without its dash."""
        return self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        return "H2PING_" + self.field.upper()

    @property
    def is_switch(self) -> bool:
        """Its bare name means true; its value is never a word of its own."""
        return self.kind is SWITCH

    def default_of(self, program: str) -> Any:
        return self.sidecar if program == SIDECAR else self.default

    def show_default(self, program: str) -> str:
        """The default as people write it; empty when there is none."""
        default = self.default_of(program)
        if default is MISSING or default is None or default == "":
            return ""
        return brief_duration(default) if self.kind is DURATION else self.kind.show(default)


REACHING, KEEPING, RESENDING, LIMITS, CLIENTS, PROCESS, LOGGING = (
    "Where",
    "Keeping connections alive",
    "Re-sends and memory",
    "Limits towards the upstream",
    "Limits towards clients",
    "Process",
    "Log and observation",
)
GROUPS: Final = (REACHING, KEEPING, RESENDING, LIMITS, CLIENTS, PROCESS, LOGGING)


def _setting(
    group: str, kind: Kind, default: Any, text: str, *, sidecar: Any = MISSING, shared: bool = False
) -> Any:
    flag = Flag(group, kind, text, default, default if sidecar is MISSING else sidecar, shared)
    if default is MISSING:
        return field(metadata={"flag": flag})
    return field(default=default, metadata={"flag": flag})


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """One instance. Seconds are float, sizes bytes. `Settings(upstream=...)` has the defaults of h2ping."""

    # --- where ---
    upstream: Upstream = _setting(
        REACHING, URL, MISSING,
        "https:// URL that requests are forwarded to, over HTTP/2 only; a path in it is put before each "
        "request's path; required",
    )  # fmt: skip
    listen: Address = _setting(
        REACHING, ADDRESS, Address("127.0.0.1", 1250),
        "address of the HTTP/1.1 listener; port 0 picks a free one and logs it",
        sidecar=Address("127.0.0.1", 8080),
    )  # fmt: skip
    name: str = _setting(
        REACHING, NAME, "", "name of this instance in log lines and metric labels"
    )  # fmt: skip
    unsafe_listen: bool = _setting(
        REACHING, SWITCH, False,
        "allow a listener that other machines can reach; whoever reaches it reaches the upstream "
        "(h2-ping-sidecar only warns)",
    )  # fmt: skip
    ca_file: str = _setting(
        REACHING, PATH, "",
        "PEM file of the authorities to trust instead of the system's (SSL_CERT_FILE and SSL_CERT_DIR work "
        "too)",
    )  # fmt: skip
    server_name: str = _setting(
        REACHING, TEXT, "", "name for SNI and the certificate check, when it is not the upstream's host"
    )  # fmt: skip
    insecure_skip_verify: bool = _setting(
        REACHING, SWITCH, False, "do not verify the upstream's certificate; for tests only; warns"
    )  # fmt: skip
    connect_timeout: float = _setting(
        REACHING, DURATION, 15.0, "limit for TCP, TLS and the first SETTINGS frame together"
    )  # fmt: skip

    # --- keeping connections alive ---
    ping_interval: float = _setting(
        KEEPING, DURATION, 60.0,
        "while a request waits and nothing was received for this long, send a PING; 0 sends none; "
        "must be below -idle-limit",
    )  # fmt: skip
    ping_timeout: float = _setting(
        KEEPING, DURATION, 15.0, "time in which a connection must show a sign of life after a PING was due"
    )  # fmt: skip
    idle_limit: float = _setting(
        KEEPING, DURATION, ACCELERATOR_IDLE,
        f"silence after which the path cuts a connection (AWS Global Accelerator: {ACCELERATOR_IDLE:g}s)",
    )  # fmt: skip
    max_conn_age: float = _setting(
        KEEPING, DURATION, 3000.0,
        "retire an upstream connection at 90-100 % of this age: requests in flight finish on it, new ones "
        f"use a fresh one; 0 never; must be below {ALB_AGE:g}s",
    )  # fmt: skip
    max_requests_per_conn: int = _setting(
        KEEPING, COUNT, 9000,
        "retire an upstream connection after this many requests (an AWS ALB closes at 10,000); 0 never",
    )  # fmt: skip

    # --- re-sends and memory ---
    retry_body_limit: int = _setting(
        RESENDING, SIZE, 16 * 2**20,
        "request bodies up to this size are kept until the response begins, so that a refused request can be "
        "sent again; larger ones stream through; 0 keeps none",
    )  # fmt: skip
    max_memory: int = _setting(
        RESENDING, LIMIT, 2**30,
        "hard limit over all bodies and unread responses held, 512MiB for example; off or 0 sets none; "
        "GOMEMLIMIT is read when this is not given",
        shared=True,
    )  # fmt: skip
    memory_pressure: str = _setting(
        RESENDING, _choice("drop", "keep"), "drop",
        "when the memory is used up: drop gives up kept copies of bodies that were sent whole, oldest first, "
        "then stops reading from clients; keep goes straight to that",
        shared=True,
    )  # fmt: skip
    compress_waiting_bodies: bool = _setting(
        RESENDING, SWITCH, False,
        "once half of -max-memory is in use, compress copies of bodies that were sent whole (zstd, in a thread of "
        "its own) before any is given up; needs h2ping[zstd]; see docs/performance.md",
        shared=True,
    )  # fmt: skip

    # --- limits towards the upstream ---
    streams_per_conn: int = _setting(
        LIMITS, COUNT, 16,
        "requests on one connection while fewer than -max-conns are open: how many calls one connection "
        "fault may cost",
        # Gym's own check of the drop-in wants 200 calls on at most 8 connections.
        sidecar=32,
    )  # fmt: skip
    max_conns: int = _setting(
        LIMITS, COUNT, 64, "upstream connections; when all are open they fill up to the upstream's own limit"
    )  # fmt: skip
    max_queue: int = _setting(
        LIMITS, COUNT, 65536, "requests that may wait for a connection or for memory; 0 sets no limit"
    )  # fmt: skip
    queue_timeout: float = _setting(
        LIMITS, DURATION, 900.0, "longest wait for a connection or for memory; 0 sets no limit"
    )  # fmt: skip
    first_byte_timeout: float = _setting(
        LIMITS, DURATION, 0.0,
        "longest wait for the response to begin; 0 sets no limit: waiting minutes is the normal case here",
    )  # fmt: skip

    # --- limits towards clients ---
    max_header_bytes: int = _setting(
        CLIENTS, SIZE, 65536, "size of a request's head; a longer one is answered 431"
    )  # fmt: skip
    max_body_bytes: int = _setting(
        CLIENTS, LIMIT, 0, "size of a request's body; a longer one is answered 413; off or 0 sets no limit"
    )  # fmt: skip
    client_head_timeout: float = _setting(
        CLIENTS, DURATION, 30.0, "time in which a client must finish a request's head; 0 sets no limit"
    )  # fmt: skip
    client_idle_timeout: float = _setting(
        # Longer than the idle pools of the clients that use it, so that the client closes first and never
        # sends into a closing connection: Go's net/http 90 s, Gym's aiohttp 15 s, httpx 5 s.
        CLIENTS, DURATION, 120.0,
        "close a client's connection after this long between two requests; 0 never",
    )  # fmt: skip
    half_close: str = _setting(
        CLIENTS, _choice("cancel", "wait"), "cancel",
        "a client that closes its sending side before the response came: cancel the request, or "
        "wait and answer",
    )  # fmt: skip
    permanent_status: int = _setting(
        CLIENTS, COUNT, PERMANENT_STATUS,
        "status for faults that a repeated request cannot cure (certificate, ALPN); clients do not retry 421",
        sidecar=502,
    )  # fmt: skip

    # --- process ---
    ready_file: str = _setting(
        PROCESS, PATH, "",
        "file that gets the process id once all listeners are bound; removed on exit",
        shared=True,
    )  # fmt: skip
    shutdown_grace: float = _setting(
        PROCESS, DURATION, 60.0,
        "on SIGTERM or SIGINT, let requests in flight finish for up to this long",
        sidecar=900.0, shared=True,
    )  # fmt: skip
    workers: int = _setting(
        PROCESS, COUNT, 1,
        "processes behind the listen address; the limits on memory, connections and queue hold for all of "
        "them together",
        shared=True,
    )  # fmt: skip
    exit_with_parent: bool = _setting(
        PROCESS, SWITCH, False, "stop when the process that started this one is gone", shared=True
    )  # fmt: skip

    # --- log and observation ---
    log_level: str = _setting(
        LOGGING, _choice("debug", "info", "warning", "error"), "info", "least severe lines to log",
        shared=True,
    )  # fmt: skip
    log_format: str = _setting(
        LOGGING, _choice("text", "json"), "text", "form of the lines on standard error", shared=True
    )  # fmt: skip
    access_log: bool = _setting(
        LOGGING, SWITCH, False, "one line per request, not only per failed or repeated one"
    )  # fmt: skip
    admin_listen: Address | None = _setting(
        LOGGING, ADDRESS, None,
        "address of a second listener with /startup, /readiness, /liveness, /metrics and /connections",
        shared=True,
    )  # fmt: skip

    program: str = PROGRAM
    """Which of the two names this process was started under; it opens error bodies."""

    @property
    def label(self) -> str:
        """What tells this instance apart in logs and metrics."""
        return self.name or self.upstream.host


def _flags() -> dict[str, Flag]:
    def flag_of(each: Field[Any]) -> Flag:
        flag: Flag = each.metadata["flag"]
        return replace(flag, field=each.name)

    return {each.name: flag_of(each) for each in fields(Settings) if "flag" in each.metadata}


FLAGS: Final[dict[str, Flag]] = _flags()
"""Field name -> its Flag, in the order of the help."""


# --- checks ---------------------------------------------------------------------------------------


def build(values: dict[str, Any], program: str = PROGRAM) -> Settings:
    """Settings of values that were read already, with the program's defaults for the rest; checked."""
    if values.get("upstream") is None:
        raise ConfigError("", "-upstream is required: the https:// URL to forward to")
    merged = {name: flag.default_of(program) for name, flag in FLAGS.items()}
    settings = Settings(**{**merged, **values, "program": program})
    check(settings)
    return settings


def parse(texts: dict[str, str], program: str = PROGRAM) -> Settings:
    """Settings of field names and texts, as in `parse({"upstream": "https://h", "ping_interval": "30s"})`."""
    return build({name: read(name, text) for name, text in texts.items()}, program)


def read(name: str, text: str, *, setting: str = "", is_number: bool = False) -> Any:
    """One value by its field's grammar. `setting` names the source in a message, where it is not a flag."""
    flag = FLAGS[name]
    try:
        if is_number and flag.kind.from_number is not None:
            return flag.kind.from_number(_plain_number(text))
        return flag.kind.parse(text)
    except ProhibitedValue as error:
        raise ConfigError("", f"{setting or '-' + flag.name} {error}") from None
    except ValueError as error:
        where = setting or f"flag -{flag.name}"
        reason = f'invalid value "{_harmless(text)}" for {where}: {error}'
        raise ConfigError("", reason, exit_code=2) from None


def _plain_number(text: str) -> float:
    """YAML 1.1 has numbers that nobody means here: `1:30`, `0x10`, `.inf`."""
    if not re.fullmatch(r"[+-]?[0-9]*\.?[0-9]+", text):
        raise ValueError("not a plain number of seconds, nor a duration such as 1m30s")
    return float(text)


def _harmless(text: str) -> str:
    """A value for a message: no password, no query, no control character, not endless."""
    if "@" in text:
        text = "***@" + text.rpartition("@")[2]
    text = text.partition("?")[0] + ("?..." if "?" in text else "")
    text = text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= 200 else text[:200] + "..."


_POSITIVE = (
    "ping_timeout", "idle_limit", "connect_timeout", "streams_per_conn", "max_conns",
)  # fmt: skip
_NOT_NEGATIVE = (
    "ping_interval", "max_conn_age", "max_requests_per_conn", "retry_body_limit", "max_queue",
    "queue_timeout", "first_byte_timeout", "client_head_timeout", "client_idle_timeout", "shutdown_grace",
)  # fmt: skip


def check(settings: Settings) -> None:
    """Refuse what can be read and cannot work."""
    for name in _POSITIVE:
        if getattr(settings, name) <= 0:
            raise _refused(settings, name, "must be above 0")
    for name in _NOT_NEGATIVE:
        if getattr(settings, name) < 0:
            raise _refused(settings, name, "must not be below 0")
    if settings.ping_interval >= settings.idle_limit:
        limit = f"{settings.idle_limit:g}s"
        raise _refused(
            settings, "ping_interval",
            f"must be below {limit}: the path cuts a connection after {limit} without a byte (-idle-limit)",
        )  # fmt: skip
    if settings.max_conn_age >= ALB_AGE:
        oldest = f"{ALB_AGE:g}s"
        raise _refused(
            settings, "max_conn_age", f"must be below {oldest}: an AWS ALB closes a connection at that age"
        )
    if not 1 <= settings.workers <= MOST_WORKERS:
        raise _refused(settings, "workers", f"must be from 1 to {MOST_WORKERS}")
    if settings.max_conns < settings.workers:
        raise _refused(settings, "max_conns", "must be at least -workers: each needs a connection of its own")
    if settings.max_header_bytes < SMALLEST_HEAD:
        raise _refused(settings, "max_header_bytes", f"must be at least {SMALLEST_HEAD}")
    if 0 < settings.max_memory < SMALLEST_MEMORY * settings.workers:
        least, each = format_size(SMALLEST_MEMORY), " for each of -workers" if settings.workers > 1 else ""
        raise _refused(settings, "max_memory", f"must be at least {least}{each}, or off")
    if not 400 <= settings.permanent_status <= 599:
        raise _refused(settings, "permanent_status", "must be a status from 400 to 599")
    if settings.server_name and not HOST_NAME.fullmatch(settings.server_name):
        raise _refused(settings, "server_name", "is not a host name")
    _check_loopback(settings)
    _check_ca_file(settings)
    if settings.compress_waiting_bodies and importlib.util.find_spec("zstandard") is None:
        raise ConfigError(
            "", "-compress-waiting-bodies needs the package zstandard: pip install 'h2ping[zstd]'"
        )


def _check_loopback(settings: Settings) -> None:
    if settings.unsafe_listen or settings.program == SIDECAR:
        return
    for name in ("listen", "admin_listen"):
        address: Address | None = getattr(settings, name)
        if address is not None and not address.is_loopback:
            raise _refused(
                settings, name,
                "is not a loopback address: other machines could use it; say -unsafe-listen if that is meant",
            )  # fmt: skip


def _check_ca_file(settings: Settings) -> None:
    if not settings.ca_file:
        return
    try:
        with open(settings.ca_file, "rb"):
            pass
    except OSError as error:
        raise _refused(settings, "ca_file", f"cannot be read: {error.strerror}") from None


def _refused(settings: Settings, name: str, reason: str) -> ConfigError:
    flag = FLAGS[name]
    return ConfigError("", f"-{flag.name} {flag.kind.show(getattr(settings, name))} {reason}")


def check_together(instances: list[Settings]) -> None:
    """Refuse instances of one process that get in each other's way."""
    if len(instances) < 2:
        return
    names: set[str] = set()
    addresses: set[Address] = {each for each in [instances[0].admin_listen] if each is not None}
    for number, settings in enumerate(instances):
        if not settings.name:
            raise ConfigError("", f"instances[{number}] needs a name: there are {len(instances)} instances")
        if settings.name in names:
            raise ConfigError("", f'instances[{number}]: the name "{settings.name}" is used twice')
        if settings.listen.port and settings.listen in addresses:
            raise ConfigError("", f"instances[{number}]: the address {settings.listen} is used twice")
        names.add(settings.name)
        addresses.add(settings.listen)


def warnings_of(settings: Settings) -> list[str]:
    """What works and is dangerous, one line each."""
    found = []
    if settings.insecure_skip_verify:
        found.append("-insecure-skip-verify: the upstream's certificate is not verified; for tests only")
    for name in ("listen", "admin_listen"):
        address: Address | None = getattr(settings, name)
        if address is not None and not address.is_loopback:
            flag = FLAGS[name].name
            found.append(f"-{flag} {address} is not a loopback address: other machines can use it")
    if not settings.ping_interval:
        found.append("-ping-interval 0: no PING is sent, a silent connection dies at the path's idle limit")
    return found

"""What h2ping tells about itself: -help, -version, `h2ping config`, docs/flags.md and docs/causes.md.

All of it is made from config.FLAGS, errors.CAUSES and timers, so it cannot drift from them. `python -m
h2ping.show ROOT` writes the generated documents of a repository; a test compares them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Final

from h2ping import __version__, timers
from h2ping.config import FLAGS, GROUPS, PROGRAM, SIDECAR, Flag
from h2ping.errors import CAUSES, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from h2ping.sources import Effective

NOTES: Final = """\
Durations are written 300ms, 60s, 1m30s or 1h; a bare 0 is allowed. Sizes are bytes, or 64KiB, 512MiB, 1GiB.
Each flag is also an environment variable (-ping-interval: H2PING_PING_INTERVAL) and a key of the file given
with -config (ping_interval). The command line goes before the environment, the environment before the file.
GOMEMLIMIT is read as -max-memory where neither gives one."""

FILE_EXAMPLE: Final = """\
max_memory: 512MiB
ping_interval: 45s        # or a number of seconds
admin_listen: 127.0.0.1:1260

instances:
  - name: judge
    upstream: https://judge.example
    listen: 127.0.0.1:1250
  - name: policy
    upstream: https://policy.example/v1
    listen: 127.0.0.1:1251
    streams_per_conn: 32
"""

EXPLANATION: Final = """\
memory_pressure: all bodies together stay under max_memory. When it is used up, h2ping gives up kept copies
  of bodies that were sent whole, oldest first: they are nearest to their answer, and lose only the chance to
  be sent again if the upstream refuses them. Then it stops reading from clients (TCP makes them wait), and a
  request that waits longer than queue_timeout gets 503. With `keep` no copy is given up: requests wait.
compress_waiting_bodies: copies are compressed (zstd) once half of max_memory is in use, before any is given up.
first_byte_timeout: 0s means that the response may take as long as it takes. When a limit is set and runs out,
  the client gets 504 and the upstream RST_STREAM(CANCEL).
ping_interval: PINGs move the idle limit of the path (idle_limit). They do not move the timers of a load
  balancer that waits for the response itself, nor a limit on a connection's age."""


# --- help and version -----------------------------------------------------------------------------


def help_text(program: str, commands: Mapping[str, tuple[str, str]]) -> str:
    """For -h: groups, units, defaults; each flag opens its line as `  -flag`."""
    width = max(60, min(100, shutil.get_terminal_size((100, 24)).columns))
    lines = [f"Usage: {program} -upstream https://HOST[:PORT] [flags]"]
    if commands:
        lines.append(f"       {program} COMMAND [...]")
    lines += ["", "A local HTTP/1.1 to HTTP/2 proxy that keeps minutes-long requests alive with PING."]
    if commands:
        lines += ["", "Commands (each has its own -h):"]
        lines += [f"  {name:<10}{text}" for name, (_, text) in commands.items()]
    for group in GROUPS:
        lines += ["", f"{group}:"]
        for flag in FLAGS.values():
            if flag.group == group:
                lines += _help_of(flag, program, width)
    lines += [
        "", "General:",
        "  -config PATH", "      YAML file of settings, for one instance or for several",
        "  -version", "      print versions and the engine in use",
        "  -h, -help", "      print this",
    ]  # fmt: skip
    lines += ["", *textwrap.wrap(NOTES.replace("\n", " "), width)]
    return "\n".join(lines)


def _help_of(flag: Flag, program: str, width: int) -> list[str]:
    default = flag.show_default(program)
    text = flag.help + (f" (default {default})" if default and not flag.is_switch else "")
    indent = "      "
    return [
        f"  -{flag.name} {flag.kind.placeholder}".rstrip(),
        *textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent),
    ]


def version_text(program: str) -> str:
    """For -version: what a report of a defect needs."""
    import ssl
    from importlib.metadata import PackageNotFoundError, version

    from h2ping._fast import IMPLEMENTATION

    def version_of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "missing"

    return "\n".join([
        f"{program} {__version__} ({IMPLEMENTATION})",
        f"Python {platform.python_version()} ({sys.implementation.name})",
        f"{ssl.OPENSSL_VERSION}",
        f"h2 {version_of('h2')}",
        f"uvloop {version_of('uvloop')}",
    ])  # fmt: skip


# --- effective configuration ----------------------------------------------------------------------


def config_command(argv: Sequence[str]) -> int:
    """`h2ping config [flags]`: takes what serving takes; the output can be read back with -config."""
    from h2ping.arguments import parse_arguments
    from h2ping.sources import load

    arguments = parse_arguments(argv)
    if arguments.help:
        print(f"Usage: {PROGRAM} config [flags]\n\nPrint each effective value and where it came from.")
        print(f"Takes the flags of {PROGRAM} (see {PROGRAM} -h); what it prints is a file for -config.")
        return 0
    try:
        instances = load(arguments.values, os.environ, PROGRAM, arguments.config)
    except ConfigError as error:
        if "upstream" in arguments.values or "-upstream is required" not in error.reason:
            raise
        # The other values can be shown all the same.
        values = {**arguments.values, "upstream": "https://upstream.invalid"}
        instances = load(values, os.environ, PROGRAM, arguments.config)
        for each in instances:
            each.origins["upstream"] = "a placeholder: it is required and not given"
    print(config_text(instances))
    return 0


def config_text(instances: Sequence[Effective]) -> str:
    """YAML whose comments say where each value came from."""
    lines = []
    if len(instances) == 1:
        lines += [_config_line(name, instances[0]) for name in FLAGS]
    else:
        lines += [_config_line(name, instances[0]) for name, flag in FLAGS.items() if flag.shared]
        lines.append("instances:")
        for each in instances:
            own = [_config_line(name, each) for name, flag in FLAGS.items() if not flag.shared]
            lines += ["  -", *(f"    {line}" for line in own)]
    lines += ["", *(f"# {line}" for line in EXPLANATION.splitlines())]
    return "\n".join(lines)


def _config_line(name: str, each: Effective) -> str:
    value = FLAGS[name].kind.show(getattr(each.settings, name))
    text = f"{name}: {_quoted(value)}" if value else f"# {name}: not set"
    return f"{text:<44} # {each.origins[name]}"


def _quoted(value: str) -> str:
    plain = value.isascii() and not any(character in value for character in " #'\"{}[]&*!|>%@`,?")
    return value if plain else json.dumps(value)


def causes_command(argv: Sequence[str]) -> int:
    """`h2ping causes [NAME ...]`: the table of docs/causes.md, or some rows of it."""
    if any(word in ("-h", "-help", "--help") for word in argv):
        print(f"Usage: {PROGRAM} causes [NAME ...]\n\nWhat causes mean and what to do; without a name, all.")
        return 0
    unknown = [word for word in argv if word not in CAUSES]
    if unknown:
        raise ConfigError("", f'no cause is named "{unknown[0][:60]}"; see {PROGRAM} causes', exit_code=2)
    shown = [cause for cause in CAUSES.values() if cause.token in argv or not argv]
    for cause in shown:
        status = f"{cause.status}, permanent" if cause.permanent else str(cause.status)
        print(f"{cause.token} ({status})")
        for text in (cause.meaning, cause.action):
            print(textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="  "))
    return 0


# --- generated documents --------------------------------------------------------------------------


def flags_table() -> str:
    """All flags as Markdown, by group."""
    lines = []
    for group in GROUPS:
        lines += [f"**{group}**", "", "| flag | default | meaning |", "|---|---|---|"]
        for flag in FLAGS.values():
            if flag.group == group:
                lines.append(f"| {_flag_cell(flag)} | {_default_cell(flag)} | {_cell(flag.help)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _flag_cell(flag: Flag) -> str:
    value = f" {_cell(flag.kind.placeholder)}" if flag.kind.placeholder else ""
    return f"`-{flag.name}{value}`"


def _default_cell(flag: Flag) -> str:
    ours, sidecar = (flag.show_default(program) for program in (PROGRAM, SIDECAR))
    if not ours:
        return "required" if flag.name == "upstream" else "none"
    return f"`{ours}`" if ours == sidecar else f"`{ours}`; as `{SIDECAR}` `{sidecar}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def flags_document() -> str:
    """docs/flags.md"""
    return (
        "# Flags\n\n<!-- made by `python -m h2ping.show .` from h2ping/config.py; do not edit -->\n\n"
        + "\n".join(textwrap.wrap(NOTES.replace("\n", " "), 110))
        + "\n\n"
        + flags_table()
        + f"""
## A file

`h2ping -config h2ping.yaml` reads the settings from YAML. One upstream needs only a mapping of settings;
several upstreams in one process stand in a list, each with its own pool, queue and labels, under one memory
limit. What stands beside `instances` holds for all of them:

```yaml
{FILE_EXAMPLE}```

A key that is unknown or stands twice is an error that names file and line. `h2ping config` takes the same
flags, prints every effective value with the place it came from, and its output is such a file.
"""
    )


def causes_document() -> str:
    """docs/causes.md"""
    lines = [
        "# Causes",
        "",
        "<!-- made by `python -m h2ping.show .` from h2ping/errors.py; do not edit -->",
        "",
        "Each failed request has one cause. It stands in the log line, in the metric",
        "`h2ping_request_failures_total`, in the `h2ping-cause` field of the answer and in its body.",
        "",
        "| cause | status | what it means | what to do |",
        "|---|---|---|---|",
    ]
    for cause in CAUSES.values():
        status = f"{cause.status} (permanent)" if cause.permanent else str(cause.status)
        lines.append(f"| `{cause.token}` | {status} | {_cell(cause.meaning)} | {_cell(cause.action)} |")
    lines += [
        "",
        "*Permanent* means that the same request gets the same answer until somebody changes the",
        "configuration. Its status is one that clients do not repeat; `-permanent-status` changes it, and",
        "`h2-ping-sidecar` answers 502.",
        "",
        "A status of 499 is never written to a socket: the log and the metrics count a client that left so.",
        "",
        "## The path's own timers",
        "",
        'When a request is lost and what was seen fits one of these timers, the detail says "looks like" and',
        "the evidence.",
        "",
        *(line for line in (timers.__doc__ or "").splitlines() if line.startswith("|")),
    ]
    return "\n".join(lines) + "\n"


FLAGS_OPEN: Final = "<!-- flags -->"
FLAGS_CLOSE: Final = "<!-- /flags -->"


def with_flags(readme: str) -> str:
    """A README with the table between its two markers made anew."""
    before, opening, rest = readme.partition(FLAGS_OPEN)
    _, closing, after = rest.partition(FLAGS_CLOSE)
    if not opening or not closing:
        raise ValueError(f"the README has no {FLAGS_OPEN} ... {FLAGS_CLOSE}")
    return f"{before}{opening}\n\n{flags_table()}\n{closing}{after}"


def write_documents(root: str) -> None:
    """Write what is generated below the root of a repository."""
    os.makedirs(os.path.join(root, "docs"), exist_ok=True)
    for name, text in (("flags.md", flags_document()), ("causes.md", causes_document())):
        with open(os.path.join(root, "docs", name), "w", encoding="utf-8") as file:
            file.write(text)
    readme = os.path.join(root, "README.md")
    if os.path.exists(readme):
        with open(readme, encoding="utf-8") as file:
            text = file.read()
        if FLAGS_OPEN in text:
            with open(readme, "w", encoding="utf-8") as file:
                file.write(with_flags(text))


if __name__ == "__main__":
    write_documents(sys.argv[1] if len(sys.argv) > 1 else ".")

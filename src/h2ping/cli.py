"""The commands `h2ping` and `h2-ping-sidecar`: argv -> settings -> server; exit codes.

Exit codes: 0 done, or stopped by a signal; 1 a setting that cannot work, a failed bind, a ready file that
cannot be written; 2 an unknown flag or a value that cannot be read.

Nothing heavy is imported before it is known what to do: the time until it listens is part of the product.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from h2ping.config import PROGRAM, SIDECAR, warnings_of
from h2ping.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from h2ping.arguments import Arguments
    from h2ping.sources import Effective

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "config": ("h2ping.show:config_command", "print each effective value and where it came from"),
    "causes": ("h2ping.show:causes_command", "what the causes in log lines and answers mean, what to do"),
    "demo": ("h2ping.lab.cli:demo", "the same slow calls straight and through h2ping, on a simulated path"),
    "lab": (
        "h2ping.lab.cli:lab",
        "the path, simulated; with trace, proof, memory or soak: a run that must hold",
    ),
    "env": (
        "h2ping.shell:main",
        'for eval "$(h2ping env https://HOST)": a proxy for this shell, OPENAI_BASE_URL',
    ),
    "gym": ("h2ping.gym.cli:main", "run a NeMo Gym command with the proxies of its sidecar block"),
    "node": ("h2ping.node:main", "run a command with its proxy beside it: a job step, an entry point"),
    "ray": ("h2ping.cluster:main", "a proxy on every node of a Ray cluster: up, down, status"),
}
"""Sub-commands of `h2ping`: name -> (module:function, what it does). The function takes the words after the
name and returns the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command `h2ping`."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        return _guarded(PROGRAM, lambda: _command(words[0])(words[1:]))
    if words and not words[0].startswith("-"):
        print(f'{PROGRAM}: unknown command "{words[0][:60]}"; see {PROGRAM} -h', file=sys.stderr)
        return 2
    return _guarded(PROGRAM, lambda: run(words, PROGRAM))


def main_sidecar(argv: Sequence[str] | None = None) -> int:
    """The command `h2-ping-sidecar`: the same program with the drop-in's defaults and no sub-commands."""
    words = list(sys.argv[1:] if argv is None else argv)
    return _guarded(SIDECAR, lambda: run(words, SIDECAR))


def run(argv: Sequence[str], program: str) -> int:
    """Read the flags and do what they say: help, version or serve."""
    from h2ping.arguments import parse_arguments

    arguments = parse_arguments(argv)
    if arguments.help:
        from h2ping.show import help_text

        return _print(help_text(program, COMMANDS if program == PROGRAM else {}))
    if arguments.version:
        from h2ping.show import version_text

        return _print(version_text(program))
    return _serve(arguments, program)


def _serve(arguments: Arguments, program: str) -> int:
    from h2ping.sources import load

    instances = load(arguments.values, os.environ, program, arguments.config)
    from h2ping import log
    from h2ping.lifecycle import open_standard_streams

    open_standard_streams()
    main_settings = instances[0].settings
    sink = log.configure(main_settings.log_level, main_settings.log_format)
    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # until the server takes it over
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        if main_settings.workers > 1:
            from h2ping.workers import serve_by_workers as serve
        else:
            from h2ping.server import serve

        return serve([each.settings for each in instances], lambda: _say_notes(instances))
    except ConfigError as error:
        log.failed(str(error))
        return error.exit_code
    except KeyboardInterrupt:  # before the server has taken the signal over
        log.note("interrupted before it was ready")
        return 0
    except Exception as error:
        log.defect("a defect of h2ping ends it", error)
        log.failed(f"stopped by a defect: {type(error).__name__}: {log.safe(str(error))}")
        return 1
    finally:
        sink.close()


def _say_notes(instances: Sequence[Effective]) -> None:
    from h2ping import log
    from h2ping.sources import missing_trust, misspelt_variables

    if processors := os.environ.get("GOMAXPROCS"):
        log.processors_ignored(processors)
    for name, meant in misspelt_variables(os.environ):
        log.warning(f"the environment variable {name} is not one of h2ping's; is {meant} meant?")
    if not all(each.settings.ca_file for each in instances):
        for text in missing_trust(os.environ):
            log.warning(text)
    for each in instances:
        for text in warnings_of(each.settings):
            log.warning(text, each.settings)


def _command(name: str) -> Callable[[list[str]], int]:
    module, _, function = COMMANDS[name][0].partition(":")
    found: Callable[[list[str]], int] = getattr(import_module(module), function)
    return found


def _guarded(program: str, work: Callable[[], int]) -> int:
    """Errors of configuration as one line on standard error; a reader that went away is no error."""
    try:
        code = work()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except ConfigError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _mute_output()
        return 0
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        _mute_output()
        print(f"{program}: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return 1


def _mute_output() -> None:
    """Or the interpreter complains while it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _print(text: str) -> int:
    print(text)
    return 0

"""The second way: nothing inside Gym is touched; the rewritten URLs go on its command line.

Theory of operation
-------------------
1. `gym env resolve` prints the configuration that a selection gives, resolved, with keys masked and URLs in
   clear. It takes no named parts (`--resources-server mcqa`), so these are spelled as the files they stand
   for.
2. The block is read from there; the proxies start; the command starts with
   `++TOP.responses_api_models....=URL` for each URL that changes. Overrides on the command line win over
   env.yaml and every other file.
3. The proxies are watched while the command runs. One that dies stops it by SIGINT, and its log is shown.
4. SIGTERM and SIGHUP become SIGINT, which Gym needs to end well; on Linux it gets SIGINT too when this
   process is killed.

Costs one more start of Gym's parser (5 to 10 s). Needs no interpreter of Gym's and no point in its code.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h2ping import foreground
from h2ping.errors import ConfigError
from h2ping.gym import report, rewrite, sidecar, supervise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from h2ping.gym.locate import GymCommand

RESOLVE_TIMEOUT = 180.0
AS_CTRL_C = {signal.SIGTERM: signal.SIGINT, signal.SIGHUP: signal.SIGINT}
"""SIGTERM makes Ray abort Gym's process (exit code 134), so Gym gets what its Ctrl-C is."""

_SERVING = {("env", "start"), ("eval", "run")}
# Gym's flags that name a part of its library: folder, folder of configs, and the default file (None: the
# part's name).
_ASSETS = {
    "--benchmark": ("benchmarks", "", "config"),
    "--environment": ("environments", "", "config"),
    "--resources-server": ("resources_servers", "configs", None),
    "--model-type": ("responses_api_models", "configs", None),
    "--agent-type": ("responses_api_agents", "configs", None),
}
_VALUES = {
    "--model": "policy_model_name",
    "-m": "policy_model_name",
    "--model-url": "policy_base_url",
    "--model-api-key": "policy_api_key",
}
_SWITCHES = {"--allow-unsupported-pairing": "allow_unsupported_pairing"}
_OVERRIDE = re.compile(r"(\+\+?|~)?[A-Za-z_][\w./-]*(=.*)?", re.DOTALL)
_KEY = re.compile(r"[A-Za-z_][\w-]*")


def serves(arguments: Sequence[str]) -> bool:
    """Whether these arguments of `gym` start model servers."""
    words = tuple(word for word in arguments if not word.startswith("-") and "=" not in word)[:2]
    return words in _SERVING and "--no-serve" not in arguments


def resolve_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of `gym env start` as `gym env resolve` takes them."""
    configs: list[str] = []
    parts: dict[str, list[str]] = {flag: [] for flag in _ASSETS}
    rest: list[str] = []
    words = iter(arguments[2:])
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in _SWITCHES:
            rest.append(f"+{_SWITCHES[flag]}=true")
            continue
        if flag in _ASSETS or flag in _VALUES or flag in ("--config", "--search-dir"):
            value = value if equals else next(words, "")
            if flag in _ASSETS:
                parts[flag].append(asset_path(flag, value))
            elif flag in _VALUES:
                rest.append(f"+{_VALUES[flag]}={value}")
            elif flag == "--config":
                configs.append(value)
            else:
                rest += [flag, value]
        elif _OVERRIDE.fullmatch(word) and ("=" in word or word.startswith("~")):
            rest.append(word)
        # Any other flag is about collecting (`--input`, `--concurrency`) and names no server.
    for found in parts.values():
        configs += found  # after the named files, in Gym's own order
    return ["env", "resolve", *(word for config in configs for word in ("--config", config)), *rest]


def asset_path(flag: str, value: str) -> str:
    """`simpleqa` or `simpleqa/other` as the configuration file that Gym takes it for."""
    folder, below, default = _ASSETS[flag]
    name, _, flavour = value.partition("/")
    middle = f"{below}/" if below else ""
    return f"{folder}/{name}/{middle}{flavour or default or name}.yaml"


def resolve(gym: GymCommand) -> dict[str, Any]:
    """Gym's resolved configuration for the command."""
    import yaml

    command = [*gym.words, *resolve_arguments(gym.arguments)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RESOLVE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError("gym env resolve", str(error)) from None
    if done.returncode != 0:
        raise ConfigError(
            "gym env resolve", f"exit code {done.returncode}\n{done.stderr or done.stdout}".rstrip()
        )
    try:
        config = yaml.safe_load(done.stdout)
    except yaml.YAMLError as error:
        raise ConfigError("gym env resolve", f"did not print YAML: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError("gym env resolve", "did not print a configuration")
    return config


def overrides(plan: rewrite.Plan) -> list[str]:
    """The plan in Hydra's grammar. A text is quoted, a list is a list of quoted texts."""
    words = []
    for path, value in plan.values.items():
        for key in path:
            if not _KEY.fullmatch(key):
                raise ConfigError(
                    ".".join(path), f"the key {key!r} cannot be named in an override; rename it"
                )
        text = _quoted(value) if isinstance(value, str) else f"[{','.join(_quoted(url) for url in value)}]"
        words.append(f"++{'.'.join(path)}={text}")
    return words


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"


def run(gym: GymCommand, program: Sequence[str], *, check: bool = False) -> int:
    """Start the proxies, run the command with the rewritten URLs, stop the proxies. Returns its exit code."""
    if Path(gym.words[-1]).name != "gym":
        raise ConfigError(gym.words[-1], "the overlay way knows the command `gym` only; use `gym env start`")
    if not check and not serves(gym.arguments):
        return subprocess.call([*gym.words, *gym.arguments])
    config = resolve(gym)
    block = sidecar.read(config.get(sidecar.BLOCK))
    plan = rewrite.plan(config, block.instances if block.rewrite_base_urls else ())
    report.way("overrides on Gym's command line", block)
    if check:
        report.plan(block, plan)
        return 0
    if not block.enabled:
        return subprocess.call([*gym.words, *gym.arguments])
    words = [*gym.words, *gym.arguments, *overrides(plan)]
    log_dir = config.get("nemo_gym_log_dir")
    fleet = supervise.fleet_of(block, program, log_dir if isinstance(log_dir, str) else None)
    fleet.start()
    try:
        report.listening(block, socket.gethostname())
        if block.rewrite_base_urls:
            report.rewritten(plan)
        return foreground.run(words, look=fleet.failure, translate=AS_CTRL_C, tell=report.say)
    finally:
        fleet.stop()

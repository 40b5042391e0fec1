"""The sidecar block inside an untouched released Gym, at Gym's own points.

Theory of operation
-------------------
1. Nothing of Gym is changed on disk. When `nemo_gym.cli.env` is imported, three of its names are wrapped:
   `initialize_ray` (the configuration is resolved, and not yet written out for the servers), `RunHelper.poll`
   and `RunHelper.shutdown`. They are the points that Gym's main branch uses for its own launcher.
2. Order: the block and every URL are checked before Ray starts; all proxies start; all are awaited; URLs are
   rewritten in Gym's configuration in memory; then Gym starts its servers.
3. A proxy that dies is noticed within half a second, not at Gym's next poll (60 s): a thread watches, and the
   run is interrupted as by Ctrl-C, which is the one way of stopping that Gym does well. SIGTERM is turned
   into that, too: left alone, Ray's handler ends the process with an abort.
4. Servers stop first, proxies after them, also when the start itself was interrupted.
5. A Gym that has the block itself is left alone. A Gym whose points have moved is left alone as well: before
   anything has started, this process becomes `h2ping gym --way overlay`.

Runs in Gym's interpreter: the standard library, this package's modules that need no more, and what Gym has.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.util
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from h2ping.errors import ConfigError, H2pingError
from h2ping.gym import report, rewrite, sidecar, supervise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

POINT = "nemo_gym.cli.env"
OWN_LAUNCHER = "nemo_gym.h2_ping_sidecar"
"""The module that reads the block in a Gym that knows it."""
WATCH_INTERVAL = 0.5


@dataclass(frozen=True)
class Order:
    """What the launcher asked for."""

    program: Sequence[str]
    mode: str
    command: Sequence[str]


def install(order: Order) -> None:
    """Wrap Gym's points when the module that has them is imported; other commands pay nothing."""
    sys.meta_path.insert(0, _AfterImport(POINT, lambda module: _enter(module, order)))


def _enter(env: Any, order: Order) -> None:
    config = sys.modules.get("nemo_gym.global_config")
    reserved = getattr(config, "NEMO_GYM_RESERVED_TOP_LEVEL_KEYS", None)
    if sidecar.BLOCK in (reserved or ()) or importlib.util.find_spec(OWN_LAUNCHER) is not None:
        report.say(
            "this Gym reads the sidecar block itself and is left to do it (`binary:` names what it starts)"
        )
        return
    reason = unmet(env)
    if reason:
        report.say(f"the hooks do not fit this Gym ({reason}); taking the overlay way")
        sys.stdout.flush()
        sys.stderr.flush()
        words = [*order.program, "gym", "--way", "overlay"]
        os.execv(words[0], [*words, *(["--check"] if order.mode == "check" else []), "--", *order.command])
    if isinstance(reserved, list):
        reserved.append(sidecar.BLOCK)  # so that no Gym takes the block for a server
    _Hooks(env, order).put()


def unmet(env: Any) -> str:
    """Why the hooks cannot work on this module; empty when they can."""
    helper = getattr(env, "RunHelper", None)
    for holder, name in ((env, "initialize_ray"), (env, "get_global_config_dict"), (env, "RunHelper")):
        if not callable(getattr(holder, name, None)):
            return f"{POINT} has no {name}"
    for name in ("start", "poll", "shutdown"):
        if not callable(getattr(helper, name, None)):
            return f"RunHelper has no {name}"
    starters = [getattr(helper, name, None) for name in ("start", "_start")]
    if not any("initialize_ray" in starter.__code__.co_names for starter in starters if starter is not None):
        return "RunHelper.start does not call initialize_ray"
    return ""


class _Hooks:
    """The state of one Gym process."""

    def __init__(self, env: Any, order: Order) -> None:
        self.env = env
        self.order = order
        self.fleet: supervise.Fleet | None = None
        self.failure = ""
        self._told = False
        self._stopped = threading.Event()
        self._error: Any = getattr(env, "ConfigError", None) or RuntimeError

    def put(self) -> None:
        env, helper = self.env, self.env.RunHelper
        start_ray, start, poll, shutdown = env.initialize_ray, helper.start, helper.poll, helper.shutdown

        def initialize_ray(*args: Any, **keywords: Any) -> Any:
            block = self.read()
            result = start_ray(*args, **keywords)
            if block.enabled and self.fleet is None:
                self.begin(block)
            return result

        def start_and_clean_up(run: Any, *args: Any, **keywords: Any) -> Any:
            if self.order.mode == "check":
                self.show(*args, **keywords)
                raise SystemExit(0)
            try:
                return start(run, *args, **keywords)
            except BaseException:
                if getattr(run, "_processes", None):
                    _attempt(lambda: shutdown(run))  # Gym before 0.7 leaves its servers behind here
                self.end()
                self.tell()
                raise

        def poll_and_check(run: Any, *args: Any, **keywords: Any) -> Any:
            result = poll(run, *args, **keywords)
            self.tell()
            return result

        def shutdown_and_stop(run: Any, *args: Any, **keywords: Any) -> Any:
            try:
                return shutdown(run, *args, **keywords)
            finally:
                self.end()
                self.tell()

        env.initialize_ray = initialize_ray
        helper.start, helper.poll, helper.shutdown = start_and_clean_up, poll_and_check, shutdown_and_stop

    def read(self) -> sidecar.Block:
        """Check everything without side effects."""
        config = self.env.get_global_config_dict()
        try:
            block = read_block(config)
            if block.enabled and block.rewrite_base_urls:
                rewrite.plan(config, block.instances)
            if block.enabled and block.binary:
                supervise.binary_path(block)
        except H2pingError as error:
            raise self._error(str(error)) from None
        version = getattr(sys.modules.get("nemo_gym"), "__version__", "")
        report.way(f"hooks in Gym {version}".rstrip(), block)
        return block

    def show(self, *args: Any, **keywords: Any) -> None:
        """`h2ping gym check`: what would happen."""
        self.env.get_global_config_dict(*args, **keywords)
        block = self.read()
        report.plan(block, rewrite.plan(self.env.get_global_config_dict(), block.instances))

    def begin(self, block: sidecar.Block) -> None:
        config = self.env.get_global_config_dict()
        try:
            fleet = supervise.fleet_of(block, self.order.program, _text(config, "nemo_gym_log_dir"))
            self.fleet = fleet  # before the start: an interrupt may come between the two
            atexit.register(self.end)
            fleet.start()
        except H2pingError as error:
            self.fleet = None
            raise self._error(str(error)) from None
        report.listening(block, socket.gethostname())
        if block.rewrite_base_urls:
            plan = rewrite.plan(config, block.instances)
            write(config, plan)
            report.rewritten(plan)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _interrupt)
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
                signal.signal(signal.SIGHUP, _interrupt)  # the terminal was closed
        threading.Thread(target=self._watch, name="h2ping-watch", daemon=True).start()

    def _watch(self) -> None:
        fleet = self.fleet
        while fleet is not None and not self._stopped.wait(WATCH_INTERVAL):
            failure = fleet.failure()
            if failure and not self._stopped.is_set():
                self.failure = failure
                report.say(failure)
                main = threading.main_thread().ident
                if main is not None:
                    signal.pthread_kill(main, signal.SIGTERM)  # to this thread: it may be asleep in a select
                return

    def tell(self) -> None:
        """Raise the death of a proxy, once, where Gym lets an error out."""
        if self.failure and not self._told:
            self._told = True
            raise self._error(self.failure)

    def end(self) -> None:
        fleet, self.fleet = self.fleet, None
        self._stopped.set()
        if fleet is not None:
            fleet.stop()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM as Gym wants it: as Ctrl-C, through whoever handles that now (asyncio replaces the handler)."""
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL, None):
        raise KeyboardInterrupt  # a shell's background job: SIGINT is ignored there
    os.kill(os.getpid(), signal.SIGINT)


def _attempt(call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:  # shutting down a half-started Gym; the first error is the one to show
        report.say(f"while stopping the servers: {error!r}")


def read_block(config: Any) -> sidecar.Block:
    """The block of a configuration whose reading may fail."""
    try:
        value = config.get(sidecar.BLOCK) if sidecar.BLOCK in config else None
    except Exception as error:  # whatever the resolver of an interpolation raises
        raise ConfigError(sidecar.BLOCK, str(error).partition("\n")[0]) from None
    return sidecar.read(value)


def _text(config: Any, key: str) -> str | None:
    value = config.get(key)
    return value if isinstance(value, str) else None


def write(config: Any, plan: rewrite.Plan) -> None:
    """Put the plan's values into Gym's configuration (an OmegaConf DictConfig)."""
    from omegaconf import OmegaConf, open_dict

    with open_dict(config):
        for path, value in plan.values.items():
            node = config
            for key in path[:-1]:
                if OmegaConf.is_interpolation(node, key):
                    # The entry is an alias of a part elsewhere. A copy takes its place, so that the part
                    # stays.
                    node[key] = OmegaConf.create(OmegaConf.to_container(node[key], resolve=False))
                node = node[key]
            node[path[-1]] = list(value) if isinstance(value, list) else value


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back once, after one module was imported."""

    def __init__(self, name: str, callback: Callable[[Any], None]) -> None:
        self._name = name
        self._callback = callback

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        if spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._callback)
        return spec


class _Loader(importlib.abc.Loader):
    """A loader that hands the executed module on, and is the wrapped one in all else."""

    def __init__(self, loader: Any, callback: Callable[[Any], None]) -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        self._callback(module)

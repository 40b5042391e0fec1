"""The points that hooks are put at, and a start that says what the real one says."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config_types import ConfigError
from nemo_gym.global_config import get_global_config_dict

KIND = os.environ.get("FAKE_GYM", "")

SERVER = """
import os, signal, sys, threading

def until_gym_is_gone():
    while os.read(0, 4096):
        pass
    os._exit(1)  # Gym was killed: not a stop, but no test leaves a process behind

# Waited for, not handled: a handler does not run while a read blocks that was begun as the signal came.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
threading.Thread(target=until_gym_is_gone, daemon=True).start()
print("server up", flush=True)
signal.sigwait([signal.SIGINT])
open(sys.argv[1], "a").write("server stopped\\n")
"""


def note(text: str) -> None:
    with Path(os.environ["FAKE_GYM_EVENTS"]).open("a") as events:
        events.write(text + "\n")


def initialize_ray() -> None:
    note("ray started")
    print("Started Ray cluster at 127.0.0.1:6379", flush=True)
    # Ray's own handler ends the process with an abort.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(134))


class RunHelper:
    _processes: dict[str, "subprocess.Popen[str]"]

    def start(self, parser_config: Any) -> None:
        self._processes = {}
        config = get_global_config_dict(global_config_dict_parser_config=parser_config)
        initialize_ray()
        Path("servers.yaml").write_text(OmegaConf.to_yaml(config))
        for name, entry in config.items():
            if isinstance(entry, DictConfig) and "responses_api_models" in entry:
                self._processes[str(name)] = process = subprocess.Popen(
                    [sys.executable, "-c", SERVER, os.environ["FAKE_GYM_EVENTS"]],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                    start_new_session=True,
                )  # fmt: skip
                assert process.stdout is not None
                process.stdout.readline()
        total = len(self._processes)
        print("Checking for HTTP server statuses.")
        print(
            f"0 / {total} servers ready. Waiting for servers to spin up: {list(self._processes)}", flush=True
        )
        if KIND == "slow start":
            signal.pause()
        getattr(self, "poll", self._poll)()
        print(f"All {total} / {total} servers ready! Polling every 60s", flush=True)

    def _poll(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"Process `{name}` finished unexpectedly!")

    poll = _poll

    def shutdown(self) -> None:
        print("Sending interrupt signals to servers...", flush=True)
        for process in self._processes.values():
            process.send_signal(signal.SIGINT)
        for process in self._processes.values():
            process.wait()
        self._processes = {}
        print("NeMo Gym finished!", flush=True)

    def run_forever(self) -> None:
        async def forever() -> None:
            print(
                "fake gym polls", flush=True
            )  # from here on an interrupt is caught; the real one says nothing
            while True:
                getattr(self, "poll", self._poll)()
                await asyncio.sleep(60)

        try:
            asyncio.run(forever())
        except KeyboardInterrupt:
            pass
        finally:
            self.shutdown()


if KIND == "moved points":
    del RunHelper.poll


def exit_cleanly_on_config_error(function: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(function)
    def wrapper() -> None:
        try:
            function()
        except ConfigError as error:
            print(f"Error: {error}")
            raise SystemExit(1) from None

    return wrapper


@exit_cleanly_on_config_error
def run() -> None:
    helper = RunHelper()
    helper.start(None)
    helper.run_forever()


@exit_cleanly_on_config_error
def dump_config() -> None:
    print(OmegaConf.to_yaml(get_global_config_dict(), resolve=True))

"""A stand-in for the proxy: takes exactly the flags that Gym gives, binds, writes its ready file, waits."""

import os
import signal
import socket
import sys
from pathlib import Path

FLAGS = (
    "-listen", "-upstream", "-ping-interval", "-ping-timeout", "-shutdown-grace", "-retry-body-limit",
    "-max-conn-age", "-ready-file",
)  # fmt: skip


def main() -> int:
    words = sys.argv[1:]
    if words[-1:] == ["-insecure-skip-verify"]:
        words.pop()
    values = dict(zip(words[::2], words[1::2], strict=True))
    if tuple(values) != FLAGS:
        print(f"flag provided but not defined: {words}")
        return 2
    kind = os.environ.get("FAKE_SIDECAR", "")
    print("\n".join(f"line {number}" for number in range(30)), flush=True)
    host, _, port = values["-listen"].rpartition(":")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
    except OSError as error:
        print(f"cannot bind {values['-listen']}: {error}")
        return 1
    listener.listen()
    if kind == "never ready":
        signal.pause()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # one that comes early waits for sigwait
    ready = Path(values["-ready-file"])
    ready.write_text(f"{os.getpid()}\n")
    print(f"listening on {values['-listen']} -> {values['-upstream']}", flush=True)
    if kind == "dies with 0":
        return 0
    signal.sigwait({signal.SIGTERM})
    with Path(os.environ["FAKE_GYM_EVENTS"]).open("a") as events:
        events.write("proxy stopped\n")
    ready.unlink()
    print("stopped", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

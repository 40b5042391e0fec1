"""`eval "$(h2ping env https://HOST)"` in real shells."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from h2ping import shell
from h2ping.errors import ConfigError
from tests.gym.conftest import Run, free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHELLS = ["sh", "bash", "zsh"]
SCRIPT = """
h2ping() {{ {python} -m h2ping "$@"; }}
eval "$(h2ping env https://localhost:1 --listen 127.0.0.1:{port})"
echo "url $OPENAI_BASE_URL pid $H2PING_PID"
first=$H2PING_PID
eval "$(h2ping env https://localhost:1 --listen 127.0.0.1:{port})"
[ "$first" = "$H2PING_PID" ] && echo same
read line
"""


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("name", SHELLS)
def test_the_proxy_runs_for_as_long_as_the_shell(
    tmp_path: Path, until: Callable[[Callable[[], bool]], None], name: str
) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    port = free_port()
    script = SCRIPT.format(python=sys.executable, port=port).replace("read line", "kill -STOP $$; :")
    run = Run([name, "-c", script], tmp_path, {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
    line = run.wait_for("^url")
    assert line.startswith(f"url http://127.0.0.1:{port}/v1 pid ")
    run.wait_for("^same$")
    assert answers(port)
    run.end(signal.SIGKILL)
    until(lambda: not answers(port))
    run.close()


def test_a_proxy_that_does_not_start_is_told(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        script = SCRIPT.format(python=sys.executable, port=holder.getsockname()[1]).replace(
            "read line", "exit 3"
        )
        run = Run(["sh", "-c", script], tmp_path, {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
        assert run.end() == 3
    assert "h2ping env: the proxy did not start:" in run.text
    assert "cannot bind" in run.text
    run.close()


@pytest.mark.pure
def test_no_start_only_exports() -> None:
    assert shell.text("https://a.example", "127.0.0.1:1250", [], start=False).splitlines()[0] == (
        "export OPENAI_BASE_URL=http://127.0.0.1:1250/v1"
    )


@pytest.mark.pure
def test_a_users_http_proxy_is_told_to_leave_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    assert "127.0.0.1,localhost" in shell.text("https://a.example", "127.0.0.1:1", [], start=False)


@pytest.mark.pure
@pytest.mark.parametrize(("upstream", "listen"), [("http://a", "127.0.0.1:1"), ("https://a", "127.0.0.1:0")])
def test_what_cannot_work_is_refused(upstream: str, listen: str) -> None:
    with pytest.raises(ConfigError):
        shell.text(upstream, listen, [], start=True)

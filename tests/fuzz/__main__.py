"""Coverage-guided fuzzing of every target: `.ci/sanitized python -m tests.fuzz --seconds 60`.

1. libFuzzer runs each target for so long, on the compiled engine with sanitizers, and keeps the inputs
   that went a new way (build/fuzz/corpus), starting from tests/fuzz/corpus.
2. What it kept is run once more on the ordinary build over both engines, which must come to the same end.
3. An input that fails is a finding: its path, and the command that runs it again, are the last lines printed.

`--replay TARGET FILE` runs one input through 1 and 2. `--merge` puts what was kept into tests/fuzz/corpus, no more
inputs than it takes to go every way.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.targets import CORPUS, TARGETS, WORDS

WORK = Path("build") / "fuzz"
SLOWEST = 30
"""Seconds for one input: a hundred times what the slowest takes."""


def guided(target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """libFuzzer over one target, with all it prints."""
    limits = f"-timeout={SLOWEST}", f"-report_slow_units={SLOWEST}"
    command = [sys.executable, "-m", "tests.fuzz.guided", target, *limits, *arguments]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def ordinary(target: str, *inputs: Path) -> subprocess.CompletedProcess[str]:
    """The inputs over both engines, without sanitizers."""
    left_out = ("LD_PRELOAD", "PYTHONPATH", "PYTHONMALLOC", "SANITIZED")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [sys.executable, "-m", "tests.fuzz.targets", target, *map(str, inputs)]
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def fuzz(target: str, seconds: float) -> list[Path]:
    """The inputs that failed; the figures are printed."""
    kept, words = WORK / "corpus" / target, WORK / f"{target}.words"
    kept.mkdir(parents=True, exist_ok=True)
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in WORDS[target]))
    prefix = WORK / f"{target}-"
    done = guided(
        target, f"-max_total_time={max(1, round(seconds))}", "-print_final_stats=1", "-max_len=4096",
        f"-artifact_prefix={prefix}", f"-dict={words}", str(kept), str(CORPUS / target),
    )  # fmt: skip
    failed = [Path(path) for path in re.findall(r"Test unit written to (\S+)", done.stdout)]
    shown = done.stdout
    inputs = sorted(kept.iterdir())
    again = ordinary(target, *inputs)
    failed += [Path(path) for path in re.findall(r"^failed: (\S+)", again.stdout, re.MULTILINE)]
    runs, coverage = _last(r"number_of_executed_units: (\d+)", shown), _last(r"cov: (\d+)", shown)
    print(
        f"{target}: {runs} runs, {coverage} branches, {len(inputs)} inputs kept, {len(failed)} findings",
        flush=True,
    )
    broken = (done.returncode or again.returncode) and not failed
    if failed or broken:
        print("".join(shown.splitlines(True)[-150:]) if done.returncode else again.stdout, flush=True)
    if broken:
        raise SystemExit(f"{target}: the fuzzer broke off without an input to blame")
    return failed


def _last(pattern: str, text: str) -> str:
    found: list[str] = re.findall(pattern, text)
    return found[-1] if found else "no"


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{octet:02x}" for octet in word)


def merge(target: str) -> None:
    """The smallest of the old and the new inputs that go every way, under the names libFuzzer gives."""
    chosen = WORK / "merged" / target
    shutil.rmtree(chosen, ignore_errors=True)
    chosen.mkdir(parents=True)
    done = guided(
        target, "-set_cover_merge=1", str(chosen), str(CORPUS / target), str(WORK / "corpus" / target)
    )
    if done.returncode or not any(chosen.iterdir()):
        raise SystemExit(done.stdout)
    for path in (CORPUS / target).iterdir():
        path.unlink()
    for path in chosen.iterdir():
        shutil.copy(path, CORPUS / target)
    sizes = [path.stat().st_size for path in chosen.iterdir()]
    print(f"{target}: {len(sizes)} inputs, {sum(sizes)} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--at-once", type=int, default=2, help="targets (default: %(default)s)")
    parser.add_argument("--merge", action="store_true", help="renew tests/fuzz/corpus")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "FILE"))
    parser.add_argument("targets", nargs="*", help="all when none is named")
    given = parser.parse_args()
    targets = given.targets or list(TARGETS)
    if "SANITIZED" not in os.environ:
        parser.error("run it within .ci/sanitized")
    if given.replay:
        target, path = given.replay
        runs = guided(target, path), ordinary(target, Path(path))
        print(*(each.stdout for each in runs), sep="\n")
        sys.exit(any(each.returncode for each in runs))
    if given.merge:
        for target in targets:
            merge(target)
        return
    with ThreadPoolExecutor(given.at_once) as pool:
        found = dict(zip(targets, pool.map(lambda target: fuzz(target, given.seconds), targets), strict=True))
    for target, paths in found.items():
        for path in paths:
            print(f"FINDING {path}\n  .ci/sanitized {sys.executable} -m tests.fuzz --replay {target} {path}")
    sys.exit(any(found.values()))


if __name__ == "__main__":
    main()

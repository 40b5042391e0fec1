"""`python -m bench.callgrind`: count the instructions of each piece's step, and tell what rose.

A piece runs under valgrind, which counts while its steps are repeated and at no other time: the interpreter's start
takes longer than everything else. Counts repeat to the instruction on one machine; another interpreter, compiler or
release of a library gives others, so counts.json keeps them by all of these, and CI installs the releases of
constraints.txt. Whatever is installed, an exchange beside 8,000 open streams may cost at most 1.3 times one beside a
single one.

  --check   exit 1 when a count has risen by more than 5 %, or a piece has none, or cost grows with open streams
  --update  rewrite the counts of these releases; say why in the commit
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from bench.callgrind.pieces import PIECES
from h2ping._fast import IMPLEMENTATION

COUNTS = Path(__file__).with_name("counts.json")
ROOT = COUNTS.parents[2]
ROUNDS = 500
TOLERANCE = 0.05
PLATFORM = f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}, built by "
PLATFORM += platform.python_compiler()
PLATFORM += "".join(f", {name} {metadata.version(name)}" for name in ("h2", "hpack", "httptools"))
GROWTH = ("mux_exchange_beside_8000", "mux_exchange_beside_1", 1.3)
"""The first may cost so many times the second."""


def count(piece: str, switch: Path) -> int:
    """Instructions of one step. The environment is empty: its size moves the stack."""
    with tempfile.NamedTemporaryFile(suffix=".callgrind") as out:
        command = [
            "valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out.name}",
            sys.executable, "-s", "-m", "bench.callgrind.pieces", piece, str(ROUNDS), str(switch),
        ]  # fmt: skip
        environment = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.defpath}
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not counted:
        raise SystemExit(f"{piece}: valgrind failed\n{done.stderr}")
    return round(int(counted[1]) / ROUNDS)


def counts_of(names: list[str]) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        switch = Path(folder) / "switch.so"
        source = Path(__file__).with_name("switch.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", switch, source], check=True)
        return dict(zip(names, pool.map(lambda name: count(name, switch), names), strict=True))


def compare(name: str, now: int, before: int | None) -> bool:
    """Print one line; True when it is bad news."""
    if before is None:
        print(f"{name:32} {now:9,}  no count kept: run with --update")
        return True
    change = now / before - 1
    risen = change > TOLERANCE
    verdict = "RISEN" if risen else "lower: keep it with --update" if change < -TOLERANCE else ""
    print(f"{name:32} {now:9,} {before:9,} {change:+7.1%}  {verdict}")
    return risen


def grows(counts: dict[str, int]) -> bool:
    """Print how much more an exchange costs beside thousands; True when it is too much."""
    many, few, most = GROWTH
    if not {many, few} <= counts.keys():
        return False
    growth = counts[many] / counts[few]
    print(f"{many} is {growth:.2f} x {few}, at most {most}")
    return growth > most


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.callgrind", description=__doc__.splitlines()[0])
    parser.add_argument("pieces", nargs="*", help="names of pieces; all by default")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 when a count has risen by more than 5 %%"
    )
    parser.add_argument("--update", action="store_true", help="rewrite counts.json")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        raise SystemExit("valgrind is not installed (Debian: apt-get install valgrind)")
    if IMPLEMENTATION != "compiled":
        raise SystemExit("the compiled modules are not there, and only they are counted: pip install -e .")
    names = [piece.__name__ for piece in PIECES if not options.pieces or piece.__name__ in options.pieces]
    kept = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    before = kept.get(PLATFORM, {})
    if options.check and not before:
        raise SystemExit(
            f"counts.json has nothing for {PLATFORM}: install constraints.txt, or run with --update"
        )
    counts = counts_of(names)
    bad = [name for name in names if compare(name, counts[name], before.get(name))]
    too_much = grows(counts)
    if options.update:
        kept[PLATFORM] = dict(sorted({**before, **counts}.items()))
        COUNTS.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
        return 0
    return 1 if options.check and (bad or too_much) else 0


if __name__ == "__main__":
    sys.exit(main())

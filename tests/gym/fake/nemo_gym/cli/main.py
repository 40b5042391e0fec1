"""`gym env start|resolve`, `gym --version` and nothing else; what is not needed is not imported."""

import importlib
import sys


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--version"]:
        print("NeMo Gym v0.7.0")
        return
    flags: dict[str, list[str]] = {}
    overrides = []
    rest = iter(words[2:])
    for word in rest:
        if word.startswith("--"):
            flags.setdefault(word, []).append(next(rest))
        else:
            overrides.append(word)
    files = flags.pop("--config", [])
    if words[:2] == ["env", "start"]:
        files += [
            f"responses_api_models/{name}/configs/{name}.yaml" for name in flags.pop("--model-type", [])
        ]
    if flags:
        print(f"gym: error: unrecognized arguments: {' '.join(flags)}", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = [sys.argv[0], *([f"+config_paths=[{','.join(files)}]"] if files else []), *overrides]
    function = {"start": "run", "resolve": "dump_config"}[words[1]]
    getattr(importlib.import_module("nemo_gym.cli.env"), function)()

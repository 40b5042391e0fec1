"""Runs a released `gym` unchanged, with h2ping's hooks in it: `bootstrap.py ORDER SCRIPT [ARGUMENT ...]`.

Executed by Gym's own interpreter, in whose environment h2ping need not be installed: the package is loaded
from the folder of this file, and only its modules that need nothing but the standard library are used. The
script runs as `__main__` with the arguments and the search path that it would have had, so that nothing else
of Gym can tell.

ORDER is JSON: `program` (the command that is h2ping), `mode` ("run" or "check").
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys


def load_package() -> None:
    """Make `import h2ping` mean the package of this file, without a change to the search path."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        "h2ping", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["h2ping"] = module
    spec.loader.exec_module(module)


def main() -> None:
    order, script = json.loads(sys.argv[1]), sys.argv[2]
    sys.argv[:] = sys.argv[2:]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    load_package()
    from h2ping.gym import hooks

    hooks.install(hooks.Order(program=order["program"], mode=order["mode"], command=list(sys.argv)))
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec")
    module = sys.modules["__main__"].__dict__
    for name in [name for name in module if not name.startswith("__")]:
        del module[name]
    module.update(__file__=script, __doc__=None)
    exec(code, module)


if __name__ == "__main__":
    main()

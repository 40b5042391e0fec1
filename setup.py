"""The compiled modules; everything else about the package is in pyproject.toml.

Switches, read from the environment (CFLAGS and LDFLAGS count as well):
  H2PING_NO_EXTENSIONS=1  build no C at all: a pure Python package, correct and slower
  H2PING_CYTHON_TRACE=1   line tracing, so that coverage sees the lines of the .pyx files
  H2PING_DEBUG=1          -Og, assertions and counters on, annotated HTML beside the C in build/
"""

import os
from pathlib import Path

from setuptools import Extension, setup

NO_COMPILER = """
h2ping: its C modules could not be built; the compiler's own words are above. Either
  - install a C compiler and Python's headers (Debian: gcc python3-dev; Fedora: gcc python3-devel;
    macOS: xcode-select --install), or
  - do without: H2PING_NO_EXTENSIONS=1 pip install h2ping  (the same behaviour, more CPU per request).
"""


COMPILED = (
    "clock",
    "downstream/client",
    "downstream/context",
    "downstream/head",
    "exchange",
    "headers",
    "instance",
    "memory",
    "metrics",
    "upstream/keepalive",
    "upstream/pool",
)
"""Python as it stands, compiled with the types in the .pxd beside it. Each request calls these modules dozens of
times, which costs the interpreter more than all its bytes cost the modules that are written in C."""


def is_on(switch: str) -> bool:
    return os.environ.get(switch, "") not in ("", "0")


def extensions() -> list[Extension]:
    from Cython.Build import cythonize

    debug, trace = is_on("H2PING_DEBUG"), is_on("H2PING_CYTHON_TRACE")
    flavour = "debug-trace" if debug and trace else "debug" if debug else "trace" if trace else "release"
    macros = [("H2PING_DEBUG", "1")] if debug else [("CYTHON_WITHOUT_ASSERTIONS", "1")]
    macros += [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1")] if trace else []
    # build_ext compares times only, so a change of switches or CFLAGS has to look like a newer source file.
    stamp = Path("build", "flavour")
    words = f"{flavour} {os.environ.get('CFLAGS', '')} {os.environ.get('LDFLAGS', '')}\n"
    if not stamp.exists() or stamp.read_text() != words:
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(words)
    package = Path("src/h2ping")
    sources = [*sorted(package.glob("_fast/*.pyx")), *(package / f"{name}.py" for name in COMPILED)]
    found = [
        Extension(
            ".".join(path.relative_to("src").with_suffix("").parts),
            [path.as_posix()],
            define_macros=macros,
            extra_compile_args=["-Og", "-g"] if debug else [],
            depends=[stamp.as_posix()],
        )
        for path in sources
    ]
    directives = {"language_level": 3, "linetrace": trace, "binding": trace, "embedsignature": True}
    directives["annotation_typing"] = False  # types of C are in the .pxd only: an int of Python's has no end
    options = {"build_dir": f"build/cython-{flavour}", "include_path": ["src"], "annotate": debug}
    return cythonize(found, compiler_directives=directives, **options)


compiled = not is_on("H2PING_NO_EXTENSIONS")
try:
    # Compilers side by side: they are most of the time that an installation takes.
    setup(
        ext_modules=extensions() if compiled else [], options={"build_ext": {"parallel": os.cpu_count() or 1}}
    )
except SystemExit as failure:  # setuptools turns a compiler's failure into this
    raise SystemExit(f"{failure}\n{NO_COMPILER}" if compiled and failure.code else failure.code) from failure

"""h2ping: a local HTTP/1.1 to HTTP/2 proxy that keeps minutes-long requests alive with PING.

Importing this package costs nothing: no event loop, no HTTP library, no extension module.
"""

import os
import sys

__version__ = "0.1.0"

STARTED_BY = os.getppid()
"""The parent, asked for at once: it may end while the rest is imported, and then another process has its place."""

if os.environ.get("H2PING_NO_EXTENSIONS", "") not in ("", "0"):
    from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader

    # Where a module was compiled from its .py (setup.py, COMPILED), import would prefer that to the .py beside it.
    for _folder in (__path__[0], *(os.path.join(__path__[0], name) for name in ("upstream", "downstream"))):
        sys.path_importer_cache[_folder] = FileFinder(_folder, (SourceFileLoader, SOURCE_SUFFIXES))

TYPE_CHECKING = False  # type checkers take the name for typing's own, whose import would cost
if TYPE_CHECKING:
    from h2ping.child import Running as Running
    from h2ping.child import running as running


def __getattr__(name: str) -> object:
    """`running` and `Running`, imported when they are asked for."""
    if name in ("running", "Running"):
        from h2ping import child

        return getattr(child, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

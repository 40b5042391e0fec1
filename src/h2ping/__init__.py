"""h2ping: a local HTTP/1.1 to HTTP/2 proxy that keeps minutes-long requests alive with PING.

Importing this package costs nothing: no event loop, no HTTP library, no extension module.
"""

__version__ = "0.1.0"

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

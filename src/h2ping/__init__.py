"""h2ping: a local HTTP/1.1 to HTTP/2 proxy that keeps minutes-long requests alive with PING.

Importing this package costs nothing: no event loop, no HTTP library, no extension module.
"""

__version__ = "0.1.0"

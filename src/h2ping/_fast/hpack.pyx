"""HPACK (RFC 7541)."""

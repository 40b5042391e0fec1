"""Bytes from strangers, mutated: what may come from the upstream, from a client, from a file."""

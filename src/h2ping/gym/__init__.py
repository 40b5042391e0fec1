"""NeMo Gym: the `sidecar:` block, the launcher and the `gym` shim."""

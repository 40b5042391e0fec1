class ConfigError(Exception):
    """A mistake in the configuration; printed, not traced."""

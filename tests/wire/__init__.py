"""The Wire, both engines of it, against scripted frames."""

"""A stand-in for NeMo Gym: its names, its output and its order of things, without its servers."""

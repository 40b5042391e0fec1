"""Instruction counts of the engine's pieces: the same on a busy machine as on a quiet one."""

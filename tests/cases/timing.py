"""Times of the cases: minutes of the field are milliseconds here, limits are wide for a busy machine."""

SOON = 3.0
"""For "at once" and "within 100 ms": far below any timer of the situation that it could be mistaken for."""

ABSENCE = 0.6
"""How long "not sent again" is watched: a first re-send leaves within 50 ms of its cause."""

"""Times of the cases. Minutes of the field are milliseconds here; limits are wide, the machine may be busy."""

SOON = 3.0
"""Where a report says "at once" or "within 100 ms": far below any timer of the situation it could be mistaken for."""

ABSENCE = 0.6
"""How long "not sent again" is watched. A re-send leaves within milliseconds of its cause, or after a delay of at
most 50 ms (first attempt)."""

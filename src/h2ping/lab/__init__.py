"""The path, simulated: a scripted HTTP/2 origin, a relay with the timers of the real path, and a demo."""

"""Sources: the only code that touches torch, a driver or the host."""

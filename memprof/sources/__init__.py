"""Sources: the only code that touches torch, a driver or the host; one file a source."""

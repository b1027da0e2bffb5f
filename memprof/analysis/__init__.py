"""Pure functions from a `Run` or a `Trace` to figures, one question a file; nothing here draws."""

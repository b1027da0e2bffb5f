"""The run file: how its records are written, read, checked, and brought up to date."""

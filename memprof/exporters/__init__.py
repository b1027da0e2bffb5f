"""Recordings in other tools' formats, one format a file."""

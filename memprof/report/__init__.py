"""The figures of a run and its verdict, as text and as data."""

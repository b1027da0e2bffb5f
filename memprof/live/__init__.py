"""Runs that are watched while they are written: their figures, in bounded memory."""

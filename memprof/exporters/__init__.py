"""Metrics of runs for other systems, one file each; each names what to install."""

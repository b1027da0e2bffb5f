"""What CPython itself knows or does: its collector, its imports, its frames; nothing of torch."""

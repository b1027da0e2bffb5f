"""Findings over a whole run that are neither waste at a peak nor tensors that grow."""

"""Draws nothing."""


def use(backend):
    """Whatever is named."""

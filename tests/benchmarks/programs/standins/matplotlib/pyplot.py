"""Draws nothing, whatever is asked."""


def __getattr__(name):
    return lambda *_, **__: None

"""A rule that fails on a recording is left out, with a line in the log; the others still speak."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from memprof.errors import MemprofError
from memprof.log import LOG

__all__ = ["STRICT", "left_out_if_it_fails"]

STRICT = "MEMPROF_STRICT"
"""Variable of the environment with which an error of a rule ends the command, for those who write
rules: the tests set it."""


@contextmanager
def left_out_if_it_fails(rule: str) -> Iterator[None]:
    """Inside, an error of a rule's own is logged, and ends what is inside.

    Raises:
        MemprofError: of what is asked of the file; it is no error of the rule's.
    """
    try:
        yield
    except MemprofError:
        raise
    except Exception as error:
        if os.environ.get(STRICT):
            raise
        LOG.warning(
            "the rule %s failed on this recording and is left out: %s: %s; please report it",
            rule,
            type(error).__name__,
            error,
        )

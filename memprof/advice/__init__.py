"""Families of rules that read the finding, the run and the user's source, and what they share.

The vocabulary of fixes is `FIXES`; each has a page in ``docs/fixes``, which `pages` reads.
"""

from memprof.advice.vocabulary import FIXES

__all__ = ["FIXES"]

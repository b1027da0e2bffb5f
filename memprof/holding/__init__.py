"""Who keeps a tensor alive: the search for chains of references from a name down to a tensor.

Runs inside the job, only when asked: it runs none of the job's code, keeps nothing alive when it
returns, and stops when its time is over.
"""

from __future__ import annotations

from memprof.holding.answer import find_holders, holders
from memprof.holding.live import LiveTensor, tensors

__all__ = ["LiveTensor", "find_holders", "holders", "tensors"]

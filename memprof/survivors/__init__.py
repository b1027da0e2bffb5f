"""What only the job can say of memory that stays: who holds it, and what the collector frees.

Looks now and then at what is alive, searches for holders when something grows, and hands over
`Finding` records; it writes nothing and decides nothing for good: that is `rules.leaks`.
"""

from __future__ import annotations

from memprof.survivors.lookout import Lookout

__all__ = ["Lookout"]

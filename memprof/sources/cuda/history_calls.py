"""Notice of the program's own calls to torch's recorder of memory history.

torch does not say who turned its recorder on, and has one for all. So the C function that every
caller goes through is replaced in a window, and only then.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from memprof.cpython.signal_errors import guarded_errors
from memprof.log import LOG

__all__ = ["HistoryCalls", "recording_options"]

_RECORD_HOST = {"_cuda_record_memory_history": 8, "_cuda_record_memory_history_legacy": 9}
"""torch's functions, and where among their arguments ``record_pinned_host_memory`` stands.

``record_cuda`` comes next to it; both came with 2.14.
"""


class HistoryCalls:
    """Tells of each call before and after it; what is called and returned stays torch's."""

    def __init__(
        self, torch: Any, before: Callable[[bool], None], after: Callable[[bool], None]
    ) -> None:
        """Both are told whether the call turns CUDA's on; what they raise is logged only."""
        self._c = torch._C
        self._before, self._after = before, after
        self._own: int | None = None
        self.records_host = False
        """Whether the last call that was heard turned on the recording of pinned host memory."""
        self._originals: dict[str, tuple[Any, Any]] = {}

    def open(self) -> None:
        """Listen from now on; safe to call twice."""
        for name, at in _RECORD_HOST.items():
            real = getattr(self._c, name, None)
            if real is not None and name not in self._originals:
                wrapper = self._wrap(real, at)
                self._originals[name] = (real, wrapper)
                setattr(self._c, name, wrapper)

    def close(self) -> None:
        """Put torch's functions back; where somebody else replaced them since, theirs stay."""
        self.records_host = False
        originals, self._originals = self._originals, {}
        for name, (real, wrapper) in originals.items():
            if getattr(self._c, name, None) is wrapper:
                setattr(self._c, name, real)

    @contextmanager
    def own(self) -> Iterator[None]:
        """Calls that this thread makes inside are memprof's and not told."""
        before, self._own = self._own, threading.get_ident()
        try:
            yield
        finally:
            self._own = before

    def _wrap(self, real: Any, at: int) -> Callable[..., Any]:
        def record(*args: Any, **kwargs: Any) -> Any:
            if not self._originals or self._own == threading.get_ident():
                return real(*args, **kwargs)
            is_on = bool(args[0] if args else kwargs.get("enabled"))
            host = args[at] if len(args) > at else kwargs.get("record_pinned_host_memory", False)
            cuda = args[at + 1] if len(args) > at + 1 else kwargs.get("record_cuda", True)
            turns_on = is_on and bool(cuda)
            self._guard(self._before, turns_on)
            self.records_host = is_on and bool(host)
            try:
                return real(*args, **kwargs)
            finally:
                self._guard(self._after, turns_on)

        return record

    def _guard(self, tell: Callable[[bool], None], turns_on: bool) -> None:
        try:
            tell(turns_on)
        except guarded_errors():  # the call is the program's, and must go on
            LOG.warning("the program's call of torch's recorder was not followed", exc_info=True)


def recording_options(torch: Any, *, on: bool) -> dict[str, Any]:
    """What memprof gives torch's ``_record_memory_history`` beside what to record, as it knows it.

    torch watches ranges that the program names, by a hook that only the thread that turned it on
    can take away, unless it is one of all threads. Both options of newer versions came with 2.8.
    """
    options: dict[str, Any] = {"context": "alloc", "stacks": "python"} if on else {}
    newer = ("clear_history", "global_record_annotations") if on else ("clear_history",)
    parameters = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    return {**options, **{name: True for name in newer if name in parameters}}

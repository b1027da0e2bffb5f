"""Hooks on every optimizer's step, also on those that a gradient scaler leaves out."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

from memprof.cpython.signal_errors import guarded_errors
from memprof.log import LOG
from memprof.sources.loop.main_thread import hands_on, passes_on
from memprof.sources.loop.torch_compile import skips_what_is_called

__all__ = ["KnownOptimizers", "OptimizerHooks", "remove_left", "watch_scalers"]

_METHOD = "_maybe_opt_step"
"""Of `GradScaler`: steps the optimizer unless its gradients hold infinities or NaNs."""

_BETWEEN = ("/sources/loop/optimizer_hooks.py", "/torch/_dynamo/eval_frame.py")
"""Files of the frames between a hook of memprof and the wrapped ``step``."""


class KnownOptimizers:
    """Optimizers in the order in which they first stepped, as long as they live; it holds none."""

    def __init__(self) -> None:
        """None has stepped."""
        self._refs: dict[int, weakref.ref[Any]] = {}

    def add(self, optimizer: Any) -> None:
        """Note one that steps; it may be known."""
        key = id(optimizer)
        reference = self._refs.get(key)
        if reference is None or reference() is None:
            self._refs[key] = weakref.ref(optimizer, functools.partial(self._refs.pop, key))

    def living(self) -> list[Any]:
        """Those that are alive."""
        optimizers = [ref() for ref in list(self._refs.values())]
        return [optimizer for optimizer in optimizers if optimizer is not None]


class OptimizerHooks:
    """Torch's global hooks on optimizers.

    While it calls them torch goes through its own dict and raises, into the job, if an entry was
    added or removed meanwhile. A step's end opens and closes windows: so there is one pair of hooks
    all the time, and none is removed within one: `remove_left` does it later.
    """

    def __init__(
        self,
        began: Callable[[Any, FrameType], None],
        on_end: Callable[[Any], None],
        left_out: Callable[[Any], None],
    ) -> None:
        """``began`` is also given the frame of the wrapped ``step``; an error costs that step."""
        self.optimizers = KnownOptimizers()
        self.crossings: list[Callable[[], None]] = []
        """Called after each of ``began`` and ``on_end``."""
        self._began, self._on_end, self._left_out = began, on_end, left_out
        self._step_count = 0
        self._is_open = self._has_failed = False
        self._inside: list[None] = []
        """An entry for each call under way; threads may step side by side."""
        self._tell_uncompiled: Callable[..., None] | None = None
        """`_tell` as torch.compile leaves it alone: a whole step that is compiled has hooks too."""
        self._is_left_alone = False
        """torch.compile goes past our hooks with all that they call, unless it traces them."""
        self._is_traced: Callable[[], bool] = bool
        self._hooks = ExitStack()
        self._scalers: Callable[[], None] = _nothing

    def open(self) -> None:
        """Register the hooks."""
        from torch.compiler import is_dynamo_compiling
        from torch.optim import optimizer

        remove_left()
        self._is_open = True
        self._is_left_alone, self._is_traced = skips_what_is_called(), is_dynamo_compiling
        pre = optimizer.register_optimizer_step_pre_hook(self._before)
        self._hooks.callback(pre.remove)
        post = optimizer.register_optimizer_step_post_hook(self._after)
        self._hooks.callback(post.remove)
        self._scalers = watch_scalers(lambda: self._step_count, self._note_skip)

    def close(self) -> None:
        """Do nothing any more, hold nothing; remove the hooks, unless one runs. May be repeated."""
        self._is_open = False
        self._scalers()
        self._scalers = self._began = self._on_end = self._left_out = _nothing
        self._tell_uncompiled = None
        if self not in _remaining:
            _remaining.append(self)
        remove_left()

    def remove(self) -> bool:
        """Take the hooks away; False while one of them runs."""
        if self._inside:
            return False
        self._hooks.close()
        return True

    def _before(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_open:
            try:
                self._within(self._begin, optimizer)
            except guarded_errors():  # torch would raise it into the job
                self._say_failed()

    def _begin(self, optimizer: Any) -> None:
        self.optimizers.add(optimizer)
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.endswith(_BETWEEN):
            frame = frame.f_back  # how many there are torch.compile decides
        self._began(optimizer, frame)

    def _after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._step_count += 1
        if self._is_open:
            try:
                self._within(self._on_end, optimizer)
            except guarded_errors():  # as above
                self._say_failed()

    def _within(self, callback: Callable[[Any], None], optimizer: Any) -> None:
        if self._tell_uncompiled is None and "torch._dynamo.decorators" in sys.modules:
            self._tell_uncompiled = sys.modules["torch._dynamo"].disable(self._tell)
        tell = self._tell_uncompiled or self._tell
        if self._is_left_alone and not self._is_traced():
            tell = self._tell  # as nothing is compiled here, without what that switch takes: 4 µs
        self._inside += (None,)  # no call, here and below: no handler of a signal comes between
        try:
            tell(callback, optimizer)
        finally:
            del self._inside[-1]

    def _tell(self, callback: Callable[[Any], None], optimizer: Any) -> None:
        callback(optimizer)
        for crossing in tuple(self.crossings):
            crossing()

    def _say_failed(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            LOG.warning("a step of an optimizer was not seen; the job goes on", exc_info=True)

    def _note_skip(self, optimizer: Any) -> None:
        if self._is_open:
            self.optimizers.add(optimizer)
            self._left_out(optimizer)


_remaining: list[OptimizerHooks] = []
"""Closed, with hooks that could not be removed then."""


def remove_left() -> None:
    """Remove the hooks of recordings that ended within one of them, unless it still runs."""
    for hooks in tuple(_remaining):
        if hooks.remove() and hooks in _remaining:
            _remaining.remove(hooks)


def _nothing(*_: Any) -> None:
    """What a closed recording does."""


@passes_on
def watch_scalers(stepped: Callable[[], int], skipped: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``skipped(optimizer)`` for every step that a scaler leaves out; returns what undoes it.

    No hook of torch tells of them. ``stepped`` counts the steps that optimizers have ended.
    """
    from torch.optim import Optimizer

    kind = _scaler_class()
    original = vars(kind).get(_METHOD) if kind is not None else None
    if original is None:
        return lambda: None
    watching = [True]

    @hands_on
    @functools.wraps(original)
    def maybe_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = stepped()
        result = original(self, optimizer, *args, **kwargs)
        # A wrapper that is no optimizer hands on to one that has its own turn.
        if watching and stepped() == before and isinstance(optimizer, Optimizer):
            skipped(optimizer)
        return result

    def undo() -> None:
        watching.clear()
        if vars(kind).get(_METHOD) is maybe_step:  # else somebody wrapped it anew
            setattr(kind, _METHOD, original)

    setattr(kind, _METHOD, maybe_step)
    return undo


def _scaler_class() -> Any:
    """The class below all scalers; before torch 2.3 it was the one of ``torch.cuda.amp``."""
    try:
        from torch.amp import grad_scaler
    except ImportError:
        from torch.cuda.amp import grad_scaler  # type: ignore[no-redef]
    return getattr(grad_scaler, "GradScaler", None)

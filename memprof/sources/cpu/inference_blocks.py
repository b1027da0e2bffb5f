"""Which blocks of ``torch.inference_mode`` a thread has entered since a dispatch mode is in place.

torch does not say: in ``inference_mode(False)`` within ``inference_mode()`` everything is as if
there were neither, and yet each puts back at its end what there was as it began. So the C class
that every block goes through is replaced while a mode is in place, and only then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from memprof.cpython.signal_errors import covers_entry, is_of_signal, raised_at_death

__all__ = ["InferenceBlocks", "is_asked"]

_NAME = "_InferenceMode"


def is_asked() -> bool:
    """Whether torch asks the modes of this thread about every operator."""
    import torch

    return torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python)


class InferenceBlocks:
    """Those of one thread that will have torch ask for a mode when they end."""

    def __init__(self, on_exit: Callable[[], None]) -> None:
        """``on_exit`` is called in the thread that has just left the last of them."""
        self._on_exit = on_exit
        self.thread = 0
        self._inside: set[int] = set()
        self._is_left = False

    def __bool__(self) -> bool:
        return bool(self._inside)

    def open(self) -> None:
        """Notice the blocks that the calling thread enters from now on; safe to call twice."""
        self.thread = threading.get_ident()
        _replacement.serve(self)

    def close(self) -> None:
        """Notice no more; those that are under way are followed to their ends."""
        _replacement.leave(self)

    def begin(self, block: int) -> None:
        """A block is about to begin, which notes what there is."""
        if is_asked():
            self._inside.add(block)

    def end(self, block: int) -> None:
        """A block has put back what there was."""
        if block in self._inside:
            if self._inside == {block}:
                self._is_left = True  # until it was said
            self._inside.discard(block)
        if self._is_left and not self._inside:
            self._on_exit()
            self._is_left = False


class _InferenceBlock:
    """A block of torch's, which is told of before it begins and after it has ended."""

    def __init__(self, real: Any, watchers: list[InferenceBlocks]) -> None:
        self._real, self._watchers = real, watchers

    def __enter__(self) -> Any:
        for one in self._watchers:
            one.begin(id(self))
        return self._real.__enter__()

    def __exit__(self, *error: object) -> Any:
        try:
            return self._real.__exit__(*error)
        finally:
            self._end()

    @covers_entry
    def __del__(self) -> object:
        try:
            self._real = None  # torch ends it with the object
            self._end()
        except BaseException as error:  # Python ignores it
            if is_of_signal(error):
                return self.__del__(), raised_at_death(error)
            raise
        return None

    def _end(self) -> None:
        for one in self._watchers:
            one.end(id(self))


class _Replacement:
    """What stands in the place of torch's class for as long as anybody wants to know."""

    def __init__(self) -> None:
        self._watchers: list[InferenceBlocks] = []
        self._real: Any = None

    def serve(self, one: InferenceBlocks) -> None:
        import torch

        if one in self._watchers:
            return
        self._watchers.append(one)
        if self._real is None:
            self._real = getattr(torch._C, _NAME)
            setattr(torch._C, _NAME, self._make)

    def leave(self, one: InferenceBlocks) -> None:
        import torch

        if one not in self._watchers:
            return
        self._watchers.remove(one)
        if not self._watchers:
            real, self._real = self._real, None
            if getattr(torch._C, _NAME) == self._make:  # else somebody else's stays
                setattr(torch._C, _NAME, real)

    def _make(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        real = self._real if self._real is not None else getattr(torch._C, _NAME)
        here = threading.get_ident()
        return _InferenceBlock(
            real(*args, **kwargs), [one for one in self._watchers if one.thread == here]
        )


_replacement = _Replacement()

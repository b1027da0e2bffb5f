"""One pair of torch's global hooks on modules, which torch.compile does not get to see."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from memprof.sources.gc_instances import instances_of, subclasses_of
from memprof.sources.loop.suppress_warning import silence

__all__ = ["ModuleHooks"]

_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks"
"""Our hooks know of compiled modules; the program is not to be warned of what it did not do."""
_OWN_TABLES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_TABLES = tuple(f"_global{name}" for name in _OWN_TABLES)


class ModuleHooks:
    """A hook before and one after the call of every module.

    Where torch.compile finds a global hook it compiles with a guard on how many there are, and once
    more when that has changed. So it must find none of these: they are taken out of torch's tables
    while it traces, and put back in their places.
    """

    def __init__(
        self, before: Callable[[Any, Any], None], after: Callable[[Any, Any, Any], None]
    ) -> None:
        """Both are called as torch calls hooks on modules; nothing is hooked before `add`."""
        self._before, self._after = before, after
        self._lock = threading.RLock()
        self._handles: list[Any] = []
        self._hidden_hooks: list[tuple[Any, int, Any, set[int]]] | None = None
        self._unsilence: Callable[[], None] | None = None

    def add(self) -> None:
        """Register them; while torch.compile traces, as soon as it has ended."""
        from torch.nn.modules import module

        with self._lock:
            if self._handles:
                return
            self._unsilence = silence(_WARNING)
            pre = module.register_module_forward_pre_hook(self._before)
            post = module.register_module_forward_hook(self._after, always_call=True)
            self._handles = [pre, post]
            if self._hidden_hooks is not None:
                self._hidden_hooks = list(self._take())

    def remove(self) -> None:
        """Take them away for good; safe to call twice."""
        with self._lock:
            if self._hidden_hooks is not None:
                self._hidden_hooks = []
            for handle in self._handles:
                handle.remove()  # it may be repeated, should a signal end this
            self._handles = []
            unsilence, self._unsilence = self._unsilence, None
            if unsilence is not None:
                unsilence()

    def replace(
        self, before: Callable[[Any, Any], None], after: Callable[[Any, Any, Any], None]
    ) -> None:
        """Have these called instead, at the same places among all hooks."""
        with self._lock:
            self._before, self._after = before, after
            if not self._handles:
                return
            functions = dict(zip((one.id for one in self._handles), (before, after), strict=True))
            for table, key in self._entries():
                if callable(table[key]):  # the third table says of a hook that it has one
                    table[key] = functions[key]
            if self._hidden_hooks is not None:
                self._hidden_hooks = [
                    (table, key, functions[key] if callable(value) else value, earlier)
                    for table, key, value, earlier in self._hidden_hooks
                ]

    def hide(self) -> None:
        """Take them out of torch's tables until `show`."""
        with self._lock:
            if self._hidden_hooks is None:
                self._hidden_hooks = list(self._take())

    def show(self) -> None:
        """Put them back where they were, before whatever the program has registered since."""
        with self._lock:
            hidden_hooks, self._hidden_hooks = self._hidden_hooks, None
            for table, key, value, earlier in hidden_hooks or ():
                later = [other for other in list(table) if other not in earlier]
                table[key] = value
                for other in later if isinstance(table, OrderedDict) else ():
                    with suppress(KeyError):  # another thread has removed it just now
                        table.move_to_end(other)

    def disturb_compiled(self) -> bool:
        """Whether what is compiled has the guard though these hooks are hidden.

        It has where something else is hooked to modules. (torch.compile goes past the tables of
        hooks where neither a module nor all of them have any.) It looks through every object of the
        program, which is short beside a compilation.
        """
        import torch
        from torch.nn.modules import module

        if _guards_empty_tables():
            return True
        own = {handle.id for handle in self._handles}
        if any(key not in own for name in _TABLES for key in list(getattr(module, name))):
            return True
        modules = instances_of(subclasses_of(torch.nn.Module))
        return any(vars(one).get(name) for one in modules for name in _OWN_TABLES)

    def _take(self) -> Iterator[tuple[Any, int, Any, set[int]]]:
        for table, key in self._entries():
            keys = list(table)
            earlier = set(keys[: keys.index(key)])
            yield table, key, table.pop(key), earlier

    def _entries(self) -> Iterator[tuple[Any, int]]:
        """Our entries in torch's tables, with their keys."""
        from torch.nn.modules import module

        if not self._handles:
            return
        pre, post = self._handles
        for name, handle in (
            ("_global_forward_pre_hooks", pre),
            ("_global_forward_hooks", post),
            ("_global_forward_hooks_always_called", post),
        ):
            table = getattr(module, name)
            if handle.id in table:
                yield table, handle.id


def _guards_empty_tables() -> bool:
    """Whether torch.compile traces how a module is called even where nothing is hooked.

    Before 2.5 it does, for modules with code of the program's. What was compiled then asks that the
    tables be empty: every call in a window would be compiled anew, and after eight none ever again.
    """
    tracing = sys.modules.get("torch._dynamo.symbolic_convert")
    tracer = getattr(tracing, "InstructionTranslatorBase", None)
    return tracer is not None and not hasattr(tracer, "nn_modules_globals_vt")

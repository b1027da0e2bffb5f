"""A dispatch mode that shows every operator's result to a recorder, and how it is put in place."""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from memprof.cpython.signal_errors import guarded_errors
from memprof.sources.cpu.inference_blocks import InferenceBlocks, is_asked
from memprof.sources.loop.main_thread import PASSING_ON, MainThread, codes_within, passes_on
from memprof.sources.loop.thread_state import NO_TASK
from memprof.sources.loop.torch_compile import is_used, skips_what_is_called

__all__ = [
    "LEFT_ON_NOTE",
    "Watch",
    "direct_overload",
    "leave_soon",
    "pop_left",
    "skip_in_dynamo",
    "skipped_modules",
    "spoils_compiled",
]

LEFT_ON_NOTE = (
    "a window was ended in another thread than it began in: what watched that thread's operators "
    "is off, and leaves it with the next call of memprof there"
)
"""The note for a `Watch` that `pop` could not take."""
_REMEMBERING = frozenset(
    ("_dynamo_save_local_dispatch_key_set", "_PreserveDispatchKeyGuard", "_ForceDispatchKeyGuard")
)
"""What torch notes with whether modes are to be asked, to put that back as a function returns."""
_PACKAGE = "memprof."
skipped_modules: dict[str, ModuleType] = {}
"""Modules of memprof's that torch.compile was told of, by name."""


class Watch:
    """Keeps one dispatch mode at the bottom of the calling thread's stack of modes.

    At the bottom it sees what the program's own modes made of an operator, and a ``with`` block
    that the program leaves pops the mode that the program pushed.
    """

    def __init__(self, dispatch: Callable[..., Any] | None, like: Watch | None = None) -> None:
        """``dispatch`` becomes the mode's ``__torch_dispatch__``; it is handed the mode first.

        One ``like`` another shares its class and what that shows, in another thread. Where `pop`
        could not take it, it leaves with the next operator there.
        """
        self._rules: list[dict[Any, Any]] = []
        self._thread = 0
        self._is_pushed = self._infers = False
        self._blocks = InferenceBlocks(self._has_left_blocks)
        self._is_of_many = like is not None
        self._kind: Any = like._kind if like is not None else _new_kind(dispatch)
        self._mode = self._kind()

    def another(self) -> Watch:
        """One of the same class, for another thread."""
        return Watch(None, self)

    def push(self) -> None:
        """Start in the calling thread, to be undone by `pop`."""
        self._thread = threading.get_ident()
        self._is_pushed, self._infers = True, _infers()
        self._blocks.open()
        self._teach_higher_order_operators()
        above = _pop_user_modes()
        _push(self._mode)
        for mode in reversed(above):
            _push(mode)

    def pop(self) -> bool:
        """Take the mode from wherever it is on the calling thread's stack; safe to call twice.

        It cannot be had from another thread, nor from within `dispatch`: there torch has put it
        aside, and puts it back afterwards; after a backward pass torch puts back the stack that
        there was before; and where ``torch.inference_mode`` or a compiled call began after it (see
        `is_remembered`). Then it does nothing any more from now on, and comes off its own thread's
        stack with the end of the last such block, by `pop_left`, or in the main thread by
        `leave_soon`.
        """
        if not self._is_pushed:
            return True
        self._is_pushed = False
        _remaining.append(self)  # it is until it has been taken, should that raise
        if self._take():
            _remaining.remove(self)
            return True
        if self.is_elsewhere:
            self._blocks.close()
        show = _pass_on_and_leave if self._is_of_many else _pass_on
        self._kind.__torch_dispatch__ = show
        return False

    def discard(self) -> None:
        """`pop` in a thread that is about to end, after which nothing is left of it."""
        self.pop()
        pop_left()
        if self in _remaining:
            _remaining.remove(self)

    def renew(self) -> None:
        """Go on where the program has left a ``torch.inference_mode`` in which `push` was called.

        The mode is still on the stack then, and torch does not ask it any more.
        """
        if self._is_pushed and not self.is_elsewhere and not is_asked() and self._take():
            self.push()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the calling thread is another one than the mode's."""
        return threading.get_ident() != self._thread

    def _take(self) -> bool:
        """Whether the mode was on the calling thread's stack, and is no more."""
        if self.is_elsewhere or _in_backward() or self.is_remembered():
            return False
        modes = _pop_user_modes()
        for mode in reversed(modes):
            if mode is not self._mode:
                _push(mode)
        if not any(mode is self._mode for mode in modes):
            return False
        self._blocks.close()
        for table in self._rules if not self._is_of_many else ():  # others need theirs
            table.pop(self._kind, None)
        self._rules.clear()
        return True

    def _has_left_blocks(self) -> None:
        if not self._is_pushed:
            pop_left()

    def is_remembered(self, *, in_operator: bool = False) -> bool:
        """Whether torch will ask for a mode when the program leaves a block that it is in.

        ``in_operator``: of the moment when the operator will have returned, of which the mode is
        told; until then torch has put it aside.

        ``torch.inference_mode`` puts back what there was as it began, and with it that a mode is to
        be asked. If there is none by then, every operator of the program fails
        (``c10::InferenceMode``, PythonFallbackKernel.cpp; 2.4 to 2.15). A block that was begun by
        C++ shows only where it infers and the mode was put in place outside of inference; where it
        is the other way round, the block has ended in which the mode was put in place. A call of
        what ``torch.compile`` returned does the same from 2.13 on, and a compilation in all
        versions.
        """
        is_of_cpp = not self._infers and _infers() and (in_operator or is_asked())
        if self._blocks or is_of_cpp:
            return True
        return _is_in_remembering_call()

    def _teach_higher_order_operators(self) -> None:
        """Before torch 2.7 a higher-order operator refuses a mode that it has no rule for."""
        from torch.utils._python_dispatch import TorchDispatchMode

        if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
            return
        import torch._ops

        for operator in list(getattr(torch._ops, "_higher_order_ops", {}).values()):
            for name in ("python_key_table", "python_key_mode_table"):
                table = getattr(operator, name, None)
                if table is not None and self._kind not in table:
                    table[self._kind] = _rule(operator)
                    self._rules.append(table)


def _new_kind(dispatch: Callable[..., Any] | None) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    # torch.compile leaves frames alone under a mode, unless the mode says that it does not
    # want to see inside: with these two, compiled programs run as they do without it.
    kind: Any = type(
        "MemprofMode",
        (TorchDispatchMode,),
        {
            "supports_higher_order_operators": True,
            "is_infra_mode": classmethod(lambda _: True),
            "ignore_compile_internals": classmethod(lambda _: True),
        },
    )
    # Set afterwards: in a class body torch wraps it, which costs 60 µs a call.
    kind.__torch_dispatch__ = dispatch
    return kind


_remaining: list[Watch] = []
"""Modes that were ended where they could not be taken: elsewhere, or within an operator."""


def pop_left() -> None:
    """Take away what was left on the calling thread's stack of modes."""
    for watch in tuple(_remaining):
        if watch._take() and watch in _remaining:
            _remaining.remove(watch)


@passes_on
def _pass_on(_mode: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
    out = func(*args, **kwargs or {})
    leave_soon()
    return out


@passes_on
def _pass_on_and_leave(
    _mode: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    out = func(*args, **kwargs or {})
    # Torch puts the mode back as this returns. A profile function is called soon after that.
    if _can_be_taken(in_operator=True) and sys.getprofile() is None:
        sys.setprofile(_leave)
    return out


def _leave(_frame: Any, _event: str, _argument: Any) -> None:
    try:
        pop_left()
        if not _can_be_taken():
            sys.setprofile(None)
    except guarded_errors():  # it would be raised into the job's thread
        sys.setprofile(None)


def _infers() -> bool:
    import torch

    return torch.is_inference_mode_enabled()


def _is_in_remembering_call() -> bool:
    """Whether a function that this thread is in puts back, as it returns, that modes are asked."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _REMEMBERING.isdisjoint(frame.f_code.co_names):
            return True
        frame = frame.f_back
    return False


def _in_backward() -> bool:
    import torch

    graph_task = getattr(torch._C, "_current_graph_task_id", None)
    return graph_task is not None and graph_task() != NO_TASK


class _Leaving(MainThread):
    """Takes what was left on the main thread's stack as soon as torch has put it back there.

    A call that comes too early, while the operator lasts, asks for the next.
    """

    def _run(self) -> None:
        pop_left()

    def _made(self) -> None:
        if not _is_traced() and _can_be_taken():
            self.request()


_leaving = _Leaving(pop_left)
_attempts = itertools.count(1)


def leave_soon() -> None:
    """Take a mode that ended while an operator was shown to it, as soon as the operator returns.

    Called at the end of that: each instruction of Python in between tries in vain. Where the
    program has its function calls traced, the tracing function's instructions come in between, and
    there are ever more: so ever fewer ends of operators try, until nothing is traced any more.
    """
    if not _remaining or threading.current_thread() is not threading.main_thread():
        return
    if _is_traced():
        attempt = next(_attempts)
        if attempt & (attempt - 1):
            return  # no power of two
    if _can_be_taken(in_operator=True):
        _leaving.request()


def _is_traced() -> bool:
    """Whether a profiler, a debugger or coverage looks at each call; memprof's own is none."""
    return sys.getprofile() not in (None, _leave) or sys.gettrace() is not None


def _can_be_taken(*, in_operator: bool = False) -> bool:
    """Whether one that was left comes off this thread's stack once the operator has returned."""
    return not _in_backward() and any(
        not one.is_elsewhere and not one.is_remembered(in_operator=in_operator)
        for one in _remaining
    )


@passes_on
def _rule(operator: Any) -> Callable[..., Any]:
    def call(_mode: object, *args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs)

    return call


def _pop_user_modes() -> list[Any]:
    """Pop the modes of this thread, the uppermost first; torch keeps its own ones elsewhere."""
    from torch.utils import _python_dispatch as modes

    popped = []
    while (top := modes._get_current_dispatch_mode()) is not None:
        if getattr(top, "_mode_key", None) is not None:
            break
        popped.append(modes._pop_mode())
    return popped


def _push(mode: Any) -> None:
    from torch.utils._python_dispatch import _push_mode

    _push_mode(mode)


def direct_overload() -> Any:
    """The class of an operator whose ``_op`` may be called in its stead, which saves 1 µs a call.

    Its ``__call__`` hands the arguments on, those of subclasses do more. None without an ``_op``.
    """
    import torch

    kind = torch._ops.OpOverload
    return kind if hasattr(torch.ops.aten.detach.default, "_op") else None


def spoils_compiled() -> bool:
    """Whether a program is compiled here that a mode would have compiled anew at every call.

    From torch 2.9 on a mode can ask to be left out of torch.compile's guards. Before, a compiled
    function that meets one is compiled again until a limit is reached, or never again.
    """
    from torch.utils import _python_dispatch

    if hasattr(_python_dispatch, "is_in_any_mode_without_ignore_compile_internals"):
        return False
    return is_used()


def skip_in_dynamo() -> None:
    """Tell torch.compile, where it is loaded, that memprof's functions are not to be compiled.

    After a graph break it tries that with whatever runs: with a window's end within a call of a
    module, with what an operator is shown to. That takes seconds, numpy's functions would be
    computed by torch, and the program's graph breaks would be counted with ours.
    """
    if "torch._dynamo" not in sys.modules:
        return
    skip = _skip_code()
    if skip is None:
        return
    for name in [*sys.modules]:
        module = sys.modules.get(name)
        if (
            name.startswith(_PACKAGE)
            and module is not None
            and skipped_modules.get(name) is not module
        ):
            skipped_modules[name] = module
            for code in _codes(vars(module).values(), module.__name__):
                skip(code)


def _skip_code() -> Callable[[CodeType], None] | None:
    """What leaves calls of a function uncompiled; None if nothing does.

    From torch 2.7 on with all that it calls, unless it runs the program's code.
    """
    from torch._C._dynamo import eval_frame

    calls: Any = eval_frame
    if hasattr(calls, "skip_code"):
        skip_code: Callable[[CodeType], None] = calls.skip_code
        return skip_code
    if not skips_what_is_called():
        return None
    action = calls._FrameAction
    alone = calls._FrameExecStrategy(action.SKIP, action.DEFAULT)
    with_calls = calls._FrameExecStrategy(action.SKIP, action.SKIP)

    def skip(code: CodeType) -> None:
        calls.set_code_exec_strategy(code, alone if code in PASSING_ON else with_calls)

    return skip


def _codes(values: Any, module: str) -> list[CodeType]:
    codes: list[CodeType] = []
    for value in list(values):
        if isinstance(value, type) and value.__module__ == module:
            codes += _codes(vars(value).values(), module)
            continue
        bare: Any = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        # The code of a decorated one may be the decorator's, which serves others as well.
        function = inspect.unwrap(bare)
        if isinstance(function, FunctionType) and function.__module__ == module:
            codes += codes_within(function.__code__)
    return codes

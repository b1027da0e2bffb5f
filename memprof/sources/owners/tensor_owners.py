"""Whose bytes: parameters, buffers, gradients and optimizer state, by what refers to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from memprof.cpython.signal_errors import guarded_errors
from memprof.sources.autograd import gradient_of, has_gradient
from memprof.sources.guarded_access import GuardedAccess
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.training_threads import may_read_graphs
from memprof.trace import Category

__all__ = [
    "MOST_OPTIMIZERS",
    "WHOLE",
    "Differentiated",
    "Owner",
    "gradient_storages",
    "gradients",
    "gradients_of",
    "is_plain",
    "owned_tensors",
    "owners",
    "parameter_paths",
    "parts",
    "storages",
    "tensors_in",
]

WHOLE = 2
"""Steps of each optimizer in a window before which everything is looked at: as it begins with its
parameters, and once it has state; a program may be over before the next drain."""
MOST_OPTIMIZERS = 4
"""Of so many optimizers: some programs have one for every parameter."""
_NESTING = 6
"""Lists and dicts in an optimizer's state or in arguments, and wrappers, are searched this deep."""
_BARREN = frozenset((type(None), bool, int, float, complex, str, bytes))
"""What is so often among arguments and results that it is not asked what else it may be."""
_identity = object.__hash__
"""Like `id`, which has been an audited event since Python 3.12 and so ten times as dear."""


class Owner(NamedTuple):
    """What a storage is, and the module that it belongs to."""

    category: Category
    module: str


class Differentiated:
    """Tensors other than parameters whose ``.grad`` a backward pass fills; it holds none of them.

    They are leaves, such as an input whose gradient is wanted, and those after ``retain_grad()``.
    """

    def __init__(self, guard: GuardedAccess) -> None:
        """None is known."""
        self._guard = guard
        self._refs: dict[int, weakref.ref[Any]] = {}

    def see(self, tensors: Iterable[Any]) -> None:
        """Note those among some objects; what is no tensor is passed over."""
        self._guard.each(self._see, tensors)

    def gradients(self) -> Iterator[Any]:
        """What is in their ``.grad``."""
        differentiable = [ref() for ref in list(self._refs.values())]
        return self._guard.within(_gradient, differentiable)

    def _see(self, item: Any) -> None:
        tensor, parameter = _plain_kinds()[0]
        if isinstance(item, tensor) and item.requires_grad and has_gradient(item):
            key = id(item)
            if key not in self._refs and not isinstance(item, parameter):
                self._refs[key] = weakref.ref(item, partial(self._refs.pop, key))


def _gradient(tensor: Any) -> Iterator[Any]:
    gradient = gradient_of(tensor) if tensor is not None else None
    if gradient is not None:
        yield gradient


def owners(loop_watch: LoopWatch, others: Differentiated) -> dict[int, Owner]:
    """Owner by storage (``UntypedStorage._cdata``) of all that modules and optimizers refer to.

    ``others`` are no parameters but have gradients too.
    """
    return _by_storage(owned_tensors(loop_watch, others), loop_watch.guard)


def owned_tensors(loop_watch: LoopWatch, others: Differentiated) -> Iterator[tuple[Owner, Any]]:
    """The same as tensors; where two own the same, the later one counts."""
    guard = loop_watch.guard
    modules = list(_modules(loop_watch))
    parameters = _first_of(loop_watch, modules)
    for tensor, path in guard.within(_buffers_of, modules):
        yield Owner(Category.BUFFER, path), tensor
    for parameter, state in guard.within(_state_of, loop_watch.optimizers()):
        owner = Owner(Category.OPTIMIZER_STATE, parameters.get(_identity(parameter), (None, ""))[1])
        yield from ((owner, tensor) for tensor in tensors_in(state, guard))
    yield from _gradients(parameters, others, guard)
    for tensor, path in parameters.values():
        yield Owner(Category.PARAMETER, path), tensor


def gradients(loop_watch: LoopWatch, others: Differentiated) -> dict[int, Owner]:
    """Owner by storage of the gradients alone."""
    guard = loop_watch.guard
    return _by_storage(_gradients(_called_parameters(loop_watch), others, guard), guard)


def parameter_paths(loop_watch: LoopWatch) -> Callable[[Any], str]:
    """What gives a parameter's module, by its path; empty where no module has it."""
    paths = {key: path for key, (_, path) in _called_parameters(loop_watch).items()}
    return lambda parameter: paths.get(_identity(parameter), "")


def gradients_of(optimizer: Any, guard: GuardedAccess) -> Iterator[Any]:
    """What is in the ``.grad`` of an optimizer's parameters."""
    return guard.within(_gradient, guard.within(_parameters_in, (optimizer,)))


def gradient_storages(optimizer: Any, guard: GuardedAccess) -> Iterator[Any]:
    """The storages of an optimizer's gradients."""
    for gradient in gradients_of(optimizer, guard):
        yield from storages(gradient, guard)


def _by_storage(
    owned_tensors: Iterable[tuple[Owner, Any]], guard: GuardedAccess
) -> dict[int, Owner]:
    return {s._cdata: owner for owner, tensor in owned_tensors for s in storages(tensor, guard)}


def storages(tensor: Any, guard: GuardedAccess) -> Iterator[Any]:
    """The storages that hold a tensor's bytes; none where it has none (fake, opaque)."""
    for part in (tensor,) if is_plain(tensor) else parts(tensor, guard):
        try:
            yield part.untyped_storage()
        # opaque, a wrapper of functorch's, or a parameter that is not initialised yet
        except (NotImplementedError, RuntimeError, ValueError):
            continue
        except guarded_errors() as error:  # a subclass may raise anything
            guard.add(part, error)


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is no subclass and not sparse, so that it has a single storage."""
    tensors, strided = _plain_kinds()
    return type(tensor) in tensors and tensor.layout is strided


@cache
def _plain_kinds() -> tuple[tuple[Any, Any], Any]:
    import torch

    return (torch.Tensor, torch.nn.Parameter), torch.strided


def parts(tensor: Any, guard: GuardedAccess, nesting: int = _NESTING) -> Iterator[Any]:
    """The plain tensors that a subclass or a sparse tensor is made of; itself if it is plain."""
    try:
        inside = None if is_plain(tensor) else _inside_tensor(tensor)
    except guarded_errors() as error:  # a subclass may raise anything
        guard.add(tensor, error)
        return
    if inside is None:
        yield tensor
    elif nesting:
        for part in inside:
            yield from parts(part, guard, nesting - 1)


def _inside_tensor(tensor: Any) -> Iterable[Any] | None:
    """The tensors that have a tensor's bytes for it; None where it has them itself."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is not None:
        inner_tensors = [getattr(tensor, name) for name in flatten(tensor)[0]]
        kinds = _plain_kinds()[0]
        return [one for one in inner_tensors if isinstance(one, kinds)]  # or a mesh of devices
    layout = str(tensor.layout)
    if layout == "torch.sparse_coo":
        return tensor._indices(), tensor._values()
    if layout in ("torch.sparse_csr", "torch.sparse_bsr"):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if layout in ("torch.sparse_csc", "torch.sparse_bsc"):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return None


def tensors_in(value: Any, guard: GuardedAccess, nesting: int = _NESTING) -> Iterator[Any]:
    """The tensors in nested lists, tuples, dicts and plain objects such as model outputs."""
    kind = type(value)
    try:
        if kind in _BARREN:
            return
        plain = _plain_kinds()[0]
        is_tensor = kind in plain or isinstance(value, plain[0])
        inside = _inside(value) if nesting and not is_tensor else ()
    except guarded_errors() as error:  # a dead proxy, a lazy dict of the program
        guard.add(value, error)
        return
    if is_tensor:
        yield value
    for item in inside:
        yield from tensors_in(item, guard, nesting - 1)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else ()


def _gradients(
    parameters: dict[int, tuple[Any, str]], others: Differentiated, guard: GuardedAccess
) -> Iterator[tuple[Owner, Any]]:
    if not may_read_graphs():
        return
    for gradient in others.gradients():
        yield Owner(Category.GRADIENT, ""), gradient
    for parameter, path in parameters.values():
        try:
            gradient = gradient_of(parameter)
        except guarded_errors() as error:  # a subclass may raise anything
            guard.add(parameter, error)
            continue
        if gradient is not None:
            yield Owner(Category.GRADIENT, path), gradient


def _called_parameters(loop_watch: LoopWatch) -> dict[int, tuple[Any, str]]:
    """Parameters by their `_identity` of the modules that were there at a call, and of optimizers.

    It is asked for in every step, and one that was not there has no gradient, or an optimizer.
    """
    return _first_of(loop_watch, loop_watch.modules.living())


def _first_of(
    loop_watch: LoopWatch, modules: Iterable[tuple[Any, str]]
) -> dict[int, tuple[Any, str]]:
    """Every parameter of modules and optimizers by its `_identity`, with its first path."""
    within = loop_watch.guard.within
    by_key: dict[int, tuple[Any, str]] = {}
    for parameter, path in within(_parameters_of, modules):
        by_key.setdefault(_identity(parameter), (parameter, path))
    for parameter in within(_parameters_in, loop_watch.optimizers()):
        by_key.setdefault(_identity(parameter), (parameter, ""))
    return by_key


def _parameters_of(module_at: tuple[Any, str]) -> Iterable[tuple[Any, str]]:
    module, path = module_at
    return [(one, path) for one in list(module._parameters.values()) if one is not None]


def _parameters_in(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _buffers_of(module_at: tuple[Any, str]) -> Iterable[tuple[Any, str]]:
    module, path = module_at
    return [(one, path) for one in list(module._buffers.values()) if one is not None]


def _modules(loop_watch: LoopWatch) -> Iterator[tuple[Any, str]]:
    """Every module below a root, with its path."""
    return loop_watch.guard.within(_below, loop_watch.modules.roots())


def _below(root: tuple[Any, str]) -> Iterator[tuple[Any, str]]:
    """As ``named_modules``, which passes each one up through all above it."""
    visited, waiting = set(), [root]
    while waiting:
        module, path = waiting.pop()
        if module is None or module in visited:
            continue
        visited.add(module)
        yield module, path
        children = list(module._modules.items())
        waiting += [(child, f"{path}.{name}") for name, child in reversed(children)]


def _state_of(optimizer: Any) -> Iterable[tuple[Any, Any]]:
    """Every parameter that an optimizer has, with the state that is kept for it."""
    return list(optimizer.state.items())

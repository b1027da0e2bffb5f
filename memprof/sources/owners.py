"""Whose bytes: parameters, buffers, gradients and optimizer state, by what refers to them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from memprof.sources.autograd import gradient_of, has_gradient
from memprof.sources.boundaries import Boundaries
from memprof.trace import Category

__all__ = [
    "Differentiated",
    "Owner",
    "gradients",
    "is_plain",
    "owned",
    "owned_tensors",
    "owners",
    "parts",
    "storages",
    "tensors_in",
]

_NESTING = 6
"""Lists and dicts in an optimizer's state or in arguments are searched this deep."""
_BARREN = frozenset((type(None), bool, int, float, complex, str, bytes))
"""What is so often among arguments and results that it is not asked what else it may be."""


class Owner(NamedTuple):
    """What a storage is, and the module that it belongs to."""

    category: Category
    module: str


class Differentiated:
    """Tensors other than parameters whose ``.grad`` a backward pass fills; it holds none of them.

    They are leaves, such as an input whose gradient is wanted, and those after ``retain_grad()``.
    """

    def __init__(self) -> None:
        """None is known."""
        self._refs: dict[int, weakref.ref[Any]] = {}

    def see(self, found: Iterable[Any]) -> None:
        """Note those among some objects; what is no tensor is passed over."""
        import torch

        for item in found:
            if isinstance(item, torch.Tensor) and item.requires_grad and has_gradient(item):
                key = id(item)
                if key not in self._refs and not isinstance(item, torch.nn.Parameter):
                    self._refs[key] = weakref.ref(item, partial(self._forget, key))

    def gradients(self) -> Iterator[Any]:
        """What is in their ``.grad``."""
        for ref in list(self._refs.values()):
            tensor = ref()
            gradient = gradient_of(tensor) if tensor is not None else None
            if gradient is not None:
                yield gradient

    def _forget(self, key: int, _ref: object) -> None:
        self._refs.pop(key, None)


def owners(boundaries: Boundaries, others: Differentiated) -> dict[int, Owner]:
    """Owner by storage (``UntypedStorage._cdata``) of all that modules and optimizers refer to.

    ``others`` are no parameters but have gradients too.
    """
    found = owned(boundaries, others)
    return {s._cdata: owner for owner, tensor in found for s in storages(tensor)}


def owned(boundaries: Boundaries, others: Differentiated) -> Iterator[tuple[Owner, Any]]:
    """The same as tensors; where two own the same, the later one counts."""
    parameters = _parameters(boundaries)
    for tensor, path in _buffers(boundaries):
        yield Owner(Category.BUFFER, path), tensor
    for optimizer in boundaries.optimizers():
        for parameter, state in list(optimizer.state.items()):
            path = parameters.get(id(parameter), (None, ""))[1]
            owner = Owner(Category.OPTIMIZER_STATE, path)
            yield from ((owner, tensor) for tensor in tensors_in(state))
    yield from _gradients(parameters, others)
    for tensor, path in parameters.values():
        yield Owner(Category.PARAMETER, path), tensor


def gradients(boundaries: Boundaries, others: Differentiated) -> dict[int, Owner]:
    """Owner by storage of the gradients alone."""
    found = _gradients(_called_parameters(boundaries), others)
    return {s._cdata: owner for owner, tensor in found for s in storages(tensor)}


def storages(tensor: Any) -> Iterator[Any]:
    """The storages that hold a tensor's bytes; none where it has none (fake, opaque)."""
    for part in (tensor,) if is_plain(tensor) else parts(tensor):
        try:
            yield part.untyped_storage()
        # opaque, a wrapper of functorch's, or a parameter that is not initialised yet
        except (NotImplementedError, RuntimeError, ValueError):
            continue


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is no subclass and not sparse, so that it has a single storage."""
    tensors, strided = _plain_kinds()
    return type(tensor) in tensors and tensor.layout is strided


@cache
def _plain_kinds() -> tuple[tuple[type, ...], Any]:
    import torch

    return (torch.Tensor, torch.nn.Parameter), torch.strided


def parts(tensor: Any) -> Iterator[Any]:
    """The plain tensors that a subclass or a sparse tensor is made of; itself if it is plain."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is not None:
        for name in flatten(tensor)[0]:
            yield from parts(getattr(tensor, name))
        return
    layout = str(tensor.layout)
    if layout == "torch.sparse_coo":
        yield from (tensor._indices(), tensor._values())
    elif layout in ("torch.sparse_csr", "torch.sparse_bsr"):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif layout in ("torch.sparse_csc", "torch.sparse_bsc"):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor


def tensors_in(value: Any, nesting: int = _NESTING) -> Iterator[Any]:
    """The tensors in nested lists, tuples, dicts and plain objects such as model outputs."""
    kind = type(value)
    if kind in _BARREN:
        return
    plain = _plain_kinds()[0]
    if kind in plain or isinstance(value, plain[0]):
        yield value
    elif nesting and isinstance(value, Mapping):
        for item in list(value.values()):
            yield from tensors_in(item, nesting - 1)
    elif nesting and isinstance(value, (list, tuple, set, frozenset)):
        for item in list(value):
            yield from tensors_in(item, nesting - 1)


def _gradients(
    parameters: dict[int, tuple[Any, str]], others: Differentiated
) -> Iterator[tuple[Owner, Any]]:
    for gradient in others.gradients():
        yield Owner(Category.GRADIENT, ""), gradient
    for parameter, path in parameters.values():
        gradient = gradient_of(parameter)
        if gradient is not None:
            yield Owner(Category.GRADIENT, path), gradient


def _called_parameters(boundaries: Boundaries) -> dict[int, tuple[Any, str]]:
    """The same as `_parameters` for modules that were there at a call; takes a third of the time.

    It is asked for in every step, and one that was not there has no gradient, or an optimizer.
    """
    found: dict[int, tuple[Any, str]] = {}
    for module, path in boundaries.modules.known():
        for parameter in module._parameters.values():
            if parameter is not None:
                found.setdefault(id(parameter), (parameter, path))
    return _with_optimizers(found, boundaries)


def _parameters(boundaries: Boundaries) -> dict[int, tuple[Any, str]]:
    """Every parameter by its ``id``, with the path of the first module that has it."""
    found: dict[int, tuple[Any, str]] = {}
    for root, root_path in boundaries.modules.roots():
        for name, module in root.named_modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    path = f"{root_path}.{name}" if name else root_path
                    found.setdefault(id(parameter), (parameter, path))
    return _with_optimizers(found, boundaries)


def _with_optimizers(
    found: dict[int, tuple[Any, str]], boundaries: Boundaries
) -> dict[int, tuple[Any, str]]:
    for optimizer in boundaries.optimizers():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found.setdefault(id(parameter), (parameter, ""))
    return found


def _buffers(boundaries: Boundaries) -> Iterator[tuple[Any, str]]:
    for root, root_path in boundaries.modules.roots():
        for name, module in root.named_modules():
            for buffer in module._buffers.values():
                if buffer is not None:
                    yield buffer, f"{root_path}.{name}" if name else root_path


def owned_tensors(boundaries: Boundaries) -> Iterator[tuple[Category, Any]]:
    """Every parameter, gradient, buffer and tensor of optimizer state, with what it is."""
    for parameter, _ in _parameters(boundaries).values():
        yield Category.PARAMETER, parameter
        gradient = gradient_of(parameter)
        if gradient is not None:
            yield Category.GRADIENT, gradient
    for buffer, _ in _buffers(boundaries):
        yield Category.BUFFER, buffer
    for optimizer in boundaries.optimizers():
        for state in list(optimizer.state.values()):
            yield from ((Category.OPTIMIZER_STATE, tensor) for tensor in tensors_in(state))

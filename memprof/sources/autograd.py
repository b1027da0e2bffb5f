"""What autograd says of one tensor, asked so that no tensor can raise; follows no graph.

A view that came with others (``unbind``, ``split``, ``chunk``) has no node any more once its base
was changed in place: torch raises ``RuntimeError`` when its ``grad_fn`` or ``is_leaf`` is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from types import GetSetDescriptorType
from typing import Any

import numpy as np

from memprof.cpython.dying_objects import bury
from memprof.cpython.signal_errors import guarded_errors

__all__ = [
    "any_was_made",
    "grad_fn_of",
    "grad_fns_of",
    "gradient_of",
    "has_gradient",
    "is_leaf",
    "may_take_gradient",
    "node_number",
]

_GRAD_FN = attrgetter("grad_fn")
_OF_GRADIENT = 2
"""Owners of a gradient that was read: the tensor whose it is, and the Python object."""
_DEEPEST = 3
_WIDEST = 64
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, np.ndarray)
"""Classes whose objects have no tensors."""


def grad_fn_of(tensor: Any) -> Any:
    """The node that made a tensor; ``None`` for a leaf, and where torch cannot tell any more."""
    try:
        return tensor.grad_fn
    except guarded_errors():  # and a subclass of the program may raise anything
        return None


def grad_fns_of(tensors: Sequence[Any]) -> list[Any]:
    """The same of each of many tensors, of which one that cannot be asked is rare."""
    try:
        return list(map(_GRAD_FN, tensors))
    except guarded_errors():  # one of them: each by itself then
        return list(map(grad_fn_of, tensors))


def node_number(root: Any) -> int:
    """The sequence number of what a backward pass begins at, by which a thread counts its nodes.

    ``root`` is a tensor, or a `torch.autograd.graph.GradientEdge`. 0 where it has none.
    """
    node = getattr(root, "node", None) or grad_fn_of(root)
    return int(node._sequence_nr()) if node is not None else 0


def is_leaf(tensor: Any) -> bool:
    """Whether no node made a tensor; one of which torch cannot tell was made by one."""
    try:
        return bool(tensor.is_leaf)
    except guarded_errors():  # and a subclass of the program may raise anything
        return False


def has_gradient(tensor: Any) -> bool:
    """Whether a backward pass fills the ``.grad`` of a tensor; reading another's would warn."""
    return is_leaf(tensor) or bool(tensor.retains_grad)


def gradient_of(tensor: Any) -> Any:
    """What is in the ``.grad`` of a tensor; ``None`` where nothing is, or what is there just ends.

    ``tensor.grad = None`` drops the gradient before the attribute is empty (torch 2.13). What runs
    as its storage ends, a callback of a weak reference or memprof's own call between two of its
    instructions, still reads it there, and by that would end it twice: torch aborts the process.
    """
    try:
        leaf = tensor.is_leaf
    except guarded_errors():  # as in `is_leaf`
        leaf = False
    gradient = tensor.grad if leaf or tensor.retains_grad else None
    count = getattr(gradient, "_use_count", None)  # a class of the program may return anything
    if count is None or count() >= _OF_GRADIENT or not _is_torchs(type(tensor)):
        return gradient
    bury(gradient)  # torch has made a new Python object for a tensor that is being destroyed
    return None


def _is_torchs(kind: type) -> bool:
    """Whether ``.grad`` of a class is torch's own: a subclass may make what it returns anew."""
    classes = type.__dict__["__mro__"].__get__(kind)
    attributes_of = type.__dict__["__dict__"].__get__
    own = next((one["grad"] for one in map(attributes_of, classes) if "grad" in one), None)
    return isinstance(own, GetSetDescriptorType)


def any_was_made(values: Any, deepest: int = _DEEPEST) -> bool:
    """Whether a graph's node made a tensor among ``values``, in tuples, lists and dicts as well."""
    import torch

    with torch._C.DisableTorchFunction():
        return _any_was_made(values, torch.Tensor, deepest)


def _any_was_made(values: Any, tensor: type, deepest: int) -> bool:
    if type.__subclasscheck__(tensor, type(values)):
        return not is_leaf(values)
    if type(values) is dict:
        values = list(values.values())
    if deepest and (type(values) is tuple or type(values) is list):
        return any(_any_was_made(one, tensor, deepest - 1) for one in values[:_WIDEST])
    return False


def may_take_gradient(values: Any, deepest: int = _DEEPEST) -> bool:
    """Whether a tensor among ``values`` takes a gradient, or something there was not looked into.

    Tuples, lists and dicts are looked into, and numbers, texts and arrays take none; any other
    object may have tensors that do.
    """
    import torch

    plain = (*_PLAIN, torch.Size, torch.dtype, torch.device)
    with torch._C.DisableTorchFunction():
        return _may_take_gradient(values, torch.Tensor, plain, deepest)


def _may_take_gradient(values: Any, tensor: type, plain: tuple[type, ...], deepest: int) -> bool:
    kind = type(values)
    if type.__subclasscheck__(tensor, kind):
        try:
            return bool(values.requires_grad)
        except guarded_errors():  # a subclass of the program may raise anything
            return True
    if kind in plain:
        return False
    if kind is dict:
        values, kind = list(values.values()), list
    if kind is not tuple and kind is not list:
        return True
    if not deepest or len(values) > _WIDEST:
        return bool(values)
    return any(_may_take_gradient(one, tensor, plain, deepest - 1) for one in values)
